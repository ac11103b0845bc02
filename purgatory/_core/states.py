"""The life of an operation, as data: its states, and the steps between them.

Every step is a compare-and-set. However many calls try one, in any order and nested in each other, the first finds a
row for its event and the others find none. The build makes the copy of the core in C from this table.

An end takes two steps. The first gives the operation its outcome, so that no other call can end it. The second makes it
done, when its result is known.

    event       made by
    hand over   try_complete_else_watch
    watch       the same, when the first try has not completed the operation
    complete    force_complete
    close       complete_all, close and aclose of the purgatory
    expire      the timer, when the last try at the deadline has not completed the operation
    cancel      cancel, the last awaiting task that leaves, and a purgatory that refuses the operation
    fail        fail, fail_all of the purgatory, and an exception of try_complete
    raise       an exception of on_complete
    end         the second step: what remains is on_done, the waiters and the listeners
"""

from typing import Final, get_args

from purgatory._core.listeners import Outcome

TABLE: Final[dict[str, tuple[Outcome | None, dict[str, str]]]] = {
    # state: (outcome, {event: next state})
    "new": (
        None,
        {"hand over": "arriving", "complete": "completing at once", "cancel": "cancelling", "fail": "failing"},
    ),
    "arriving": (
        None,
        {"watch": "pending", "complete": "completing at once", "cancel": "cancelling", "fail": "failing"},
    ),
    "pending": (
        None,
        {"complete": "completing", "close": "closing", "expire": "expiring", "cancel": "cancelling", "fail": "failing"},
    ),
    "completing at once": ("completed_at_once", {"raise": "failing", "end": "completed at once"}),
    "completing": ("satisfied", {"raise": "failing", "end": "completed"}),
    "closing": ("closed", {"raise": "failing", "end": "closed"}),
    "expiring": ("expired", {"raise": "failing", "end": "expired"}),
    "cancelling": ("cancelled", {"end": "cancelled"}),
    "failing": ("failed", {"end": "failed"}),
    "completed at once": ("completed_at_once", {}),
    "completed": ("satisfied", {}),
    "closed": ("closed", {}),
    "expired": ("expired", {}),
    "cancelled": ("cancelled", {}),
    "failed": ("failed", {}),
}


class State:
    """A state of the table."""

    __slots__ = ("has_result", "is_done", "name", "outcome", "steps")

    def __init__(self, name: str, outcome: Outcome | None, is_done: bool, has_result: bool) -> None:
        self.name: str = name
        self.outcome: Outcome | None = outcome
        """The outcome of the operation, which `on_complete` sees already."""
        self.is_done: bool = is_done
        """Whether it has finished."""
        self.has_result: bool = has_result
        """Whether `on_complete` makes its result, and was not called or has returned."""
        self.steps: dict[str, State] = {}
        """The next state, by event."""


STATES: Final = {
    name: State(name, outcome, not steps, outcome not in (None, "cancelled", "failed"))
    for name, (outcome, steps) in TABLE.items()
}
"""All states, by name."""

for _name, (_, _steps) in TABLE.items():
    STATES[_name].steps.update({event: STATES[after] for event, after in _steps.items()})

NEW: Final = STATES["new"]
ARRIVING: Final = STATES["arriving"]
PENDING: Final = STATES["pending"]
COMPLETING: Final = STATES["completing"]
EXPIRING: Final = STATES["expiring"]
FAILING: Final = STATES["failing"]

OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
"""All outcomes, in the order in which statistics count them."""
