"""The figures of a purgatory that are exported, for any system."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from purgatory import DelayedOperationPurgatory, PurgatoryStatistics, TimerStatistics
from purgatory.lowlevel import Listener, Outcome


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure that can be read from a purgatory at any time."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[PurgatoryStatistics, TimerStatistics], Mapping[str, float]]
    """Returns the values by the value of `label`, or by an empty string if there is no label."""
    label: str | None = None
    seconds: bool = False
    """Whether it is a time in seconds, and not a count."""


MEASURES: Final = (
    Measure(
        "operations",
        "counter",
        "Operations finished",
        lambda purgatory, _: {
            "completed_at_once": purgatory.completed_at_once,
            "satisfied": purgatory.satisfied,
            "expired": purgatory.expired,
            "closed": purgatory.closed,
            "cancelled": purgatory.cancelled,
            "failed": purgatory.failed,
        },
        label="outcome",
    ),
    Measure(
        "missed_operations",
        "counter",
        "Satisfied operations whose condition was found to hold only at the deadline: their keys were not checked",
        lambda purgatory, _: {"": purgatory.missed},
    ),
    Measure("delayed_operations", "gauge", "Operations pending", lambda purgatory, _: {"": purgatory.num_delayed}),
    Measure(
        "watched_entries",
        "gauge",
        "Entries in the watcher lists, including those of finished operations",
        lambda purgatory, _: {"": purgatory.watched},
    ),
    Measure("purges", "counter", "Purges started", lambda purgatory, _: {"": purgatory.purges}),
    Measure(
        "purged_entries",
        "counter",
        "Dead entries removed from the watcher lists",
        lambda purgatory, _: {"": purgatory.purged},
    ),
    Measure(
        "longest_slice",
        "gauge",
        "The longest time for which the purgatory has held up the loop on its own",
        lambda purgatory, _: {"": purgatory.longest_slice},
        seconds=True,
    ),
    Measure(
        "timer_tasks",
        "gauge",
        "Operations in the timing wheels, by level from 1, the lowest",
        lambda _, timer: {str(level): tasks for level, tasks in enumerate(timer.levels, 1)},
        label="level",
    ),
    Measure("timer_wake_ups", "counter", "Wake-ups by the clock", lambda _, timer: {"": timer.wake_ups}),
    Measure("timer_buckets", "counter", "Buckets whose time had come", lambda _, timer: {"": timer.buckets}),
    Measure(
        "timer_cascaded_tasks",
        "counter",
        "Operations moved down from a higher wheel, once for each move",
        lambda _, timer: {"": timer.cascaded},
    ),
)

REQUESTS: Final = ("requests", "HTTP requests of this process that had to wait, by how they were handled")
MISSED: Final = (
    "missed_by_operation",
    "Missed operations, by the operation's type: those that finished since the purgatory was added",
)
WAITED: Final[tuple[Outcome, ...]] = ("satisfied", "expired", "closed", "cancelled", "failed")
"""The outcomes of operations that did not complete at once."""
WAIT: Final = ("wait", "From arrival to outcome, of operations that did not complete at once")
WAIT_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
LATENESS: Final = ("lateness", "From deadline to outcome, of operations that expired")
LATENESS_BOUNDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


L = TypeVar("L", bound=Listener)


class Exporter(ABC, Generic[L]):
    """Purgatories whose figures are exported, each with its listener."""

    def __init__(self, *purgatories: DelayedOperationPurgatory) -> None:
        self._listened: dict[DelayedOperationPurgatory, L] = {}
        self.add(*purgatories)

    def add(self, *purgatories: DelayedOperationPurgatory) -> None:
        """Export the figures of more purgatories. Raise `ValueError`, and add none, if two have the same name."""
        for purgatory in purgatories:
            if not isinstance(purgatory, DelayedOperationPurgatory):
                instead = ": pass its .purgatory" if hasattr(purgatory, "purgatory") else ""
                raise TypeError(f"each purgatory must be a DelayedOperationPurgatory, not {purgatory!r}{instead}")
        names = [purgatory.name for purgatory in (*self._listened, *purgatories)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two purgatories are called {name!r}: give each a name of its own")
        for purgatory in purgatories:
            listener = self._listener()
            purgatory.add_listener(listener)
            self._listened = {**self._listened, purgatory: listener}  # another thread may be reading it

    def remove(self, purgatory: DelayedOperationPurgatory) -> None:
        """Stop exporting the figures of a purgatory. Raise `KeyError` if they are not exported."""
        listened = dict(self._listened)
        purgatory.remove_listener(listened.pop(purgatory))
        self._listened = listened

    def close(self) -> None:
        """Stop exporting all figures."""
        for purgatory in self._listened:
            self.remove(purgatory)

    @abstractmethod
    def _listener(self) -> L:
        """Return a listener for one purgatory."""
