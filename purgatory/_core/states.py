"""The life of an operation, as data: its states, and the steps between them.

Every step is a compare-and-set. However many calls try one, in any order and nested in each other, the first finds a
row for its event and the others find none. `OperationBase._purgatory_step` makes every step by this table. The core in
C has a constant copy, and a test compares the two.

    event       made by
    hand over   try_complete_else_watch
    watch       the same, when the first try has not completed the operation
    complete    force_complete
    close       complete_all, close and aclose of the purgatory
    expire      the timer, when the last try at the deadline has not completed the operation
    cancel      cancel, the last awaiting task that leaves, and a purgatory that refuses the operation
    fail        fail, fail_all of the purgatory, and an exception of try_complete
    return      on_complete has returned
    raise       an exception of on_complete
"""

from typing import Final

from purgatory._core.listeners import Outcome

_TABLE: Final[dict[str, tuple[Outcome | None, dict[str, str]]]] = {
    # state: (outcome, {event: next state})
    "new": (
        None,
        {"hand over": "arriving", "complete": "completing at once", "cancel": "cancelled", "fail": "failed"},
    ),
    "arriving": (
        None,
        {"watch": "pending", "complete": "completing at once", "cancel": "cancelled", "fail": "failed"},
    ),
    "pending": (
        None,
        {"complete": "completing", "close": "closing", "expire": "expiring", "cancel": "cancelled", "fail": "failed"},
    ),
    "completing at once": ("completed_at_once", {"return": "completed at once", "raise": "failed"}),
    "completing": ("satisfied", {"return": "completed", "raise": "failed"}),
    "closing": ("closed", {"return": "closed", "raise": "failed"}),
    "expiring": ("expired", {"return": "expired", "raise": "failed"}),
    "completed at once": ("completed_at_once", {}),
    "completed": ("satisfied", {}),
    "closed": ("closed", {}),
    "expired": ("expired", {}),
    "cancelled": ("cancelled", {}),
    "failed": ("failed", {}),
}


class State:
    """A state of the table."""

    __slots__ = ("is_done", "name", "outcome", "steps")

    def __init__(self, name: str, outcome: Outcome | None, is_done: bool) -> None:
        self.name: str = name
        self.outcome: Outcome | None = outcome
        """The outcome of the operation, which `on_complete` sees already."""
        self.is_done: bool = is_done
        """Whether it has finished."""
        self.steps: dict[str, State] = {}
        """The next state, by event."""


STATES: Final = {name: State(name, outcome, not steps) for name, (outcome, steps) in _TABLE.items()}
"""All states, by name."""

for _name, (_, _steps) in _TABLE.items():
    STATES[_name].steps.update({event: STATES[after] for event, after in _steps.items()})

NEW: Final = STATES["new"]
ARRIVING: Final = STATES["arriving"]
PENDING: Final = STATES["pending"]
EXPIRING: Final = STATES["expiring"]

OUTCOMES: Final[tuple[Outcome, ...]] = (
    "completed_at_once",
    "satisfied",
    "expired",
    "closed",
    "cancelled",
    "failed",
)
"""All outcomes, in the order in which statistics count them."""
