"""Listeners: called with a record of every finished operation, for example to count it or to write it to a journal.

The arrival and the keys of an operation are noted here and not in the operation. So without listeners, operations are
no larger and their completion takes no longer.
"""

from collections import deque
from collections.abc import Callable, Hashable
from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from purgatory._loop.clock import Clock, report
from purgatory._loop.slices import ExitRequests

if TYPE_CHECKING:
    from purgatory._core.operation import OperationBase

Outcome: TypeAlias = Literal["completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed"]
"""The outcome of an operation, by the names of the counts in `PurgatoryStatistics`."""


class FinishedOperation(NamedTuple):
    """The record of one operation for a listener. You may keep it, because it does not hold the operation.

    For example:

        def log_slow(finished: FinishedOperation) -> None:
            if finished.waited > 10.0:
                print(finished.operation, finished.keys, finished.outcome)

        purgatory.add_listener(log_slow)
    """

    purgatory: str
    """The purgatory's name."""
    operation: str
    """The name of the operation's type."""
    keys: tuple[Hashable, ...]
    """The keys that it was watched on, without repetitions."""
    arrived: float
    """The time at which it was handed to the purgatory, in seconds of the purgatory's clock."""
    timeout: float | None
    """The most seconds that it could wait since its arrival or its last reschedule. `None` means no limit."""
    waited: float
    """Seconds from its arrival until it had its outcome, including `on_complete`. 0.0 if it completed at once."""
    outcome: Outcome
    """How it has ended."""
    late: float | None
    """Seconds from its deadline until it had its outcome, if the outcome is *expired*, else `None`."""
    deadline: float | None
    """Seconds from its arrival to its last deadline, which is its timeout unless it was rescheduled. `None` means no
    deadline."""
    missed: bool = False
    """Whether it is *satisfied*, but only the last try at its deadline found that its condition held. A check of its
    keys is missing, had a limit, or was still queued."""


Listener: TypeAlias = Callable[[FinishedOperation], object]
"""What is called with the record of each finished operation. Its result is ignored."""


class Listeners:
    """The listeners of one purgatory, and the arrivals of the operations that they will be called for."""

    def __init__(self, name: str, clock: Clock, listener: Listener) -> None:
        self._name = name
        self._clock = clock
        self.all: tuple[Listener, ...] = (listener,)
        """The listeners, in the order in which they were added. Replaced as a whole."""
        self._arrivals: dict[int, tuple[float, tuple[Hashable, ...]]] = {}
        """The arrival time and the keys of the pending operations, by `id`."""
        self._rescheduled: dict[int, tuple[float | None, float | None]] = {}
        """The new timeout of rescheduled operations, and their deadline in seconds from the arrival, by `id`."""
        self._calling = False
        self._waiting: deque[FinishedOperation] = deque()
        """Records that the listeners have not been called with yet."""

    def remove(self, listener: Listener) -> bool:
        """Stop calling `listener`. Return whether it was a listener."""
        remaining = list(self.all)
        if listener not in remaining:
            return False
        remaining.remove(listener)
        self.all = tuple(remaining)
        return True

    def arrive(self, operation: object, keys: tuple[Hashable, ...], now: float) -> None:
        """Note the arrival of an operation."""
        self._arrivals[id(operation)] = (now, keys)

    def reschedule(self, operation: "OperationBase", timeout: float | None) -> None:
        """Note that a deadline has been moved to `timeout` seconds from now."""
        arrival = self._arrivals.get(id(operation))
        if arrival is not None:
            self._rescheduled[id(operation)] = timeout, finite(operation._timer_deadline - arrival[0])

    def finish(self, operation: "OperationBase", outcome: Outcome, missed: bool, now: float) -> None:
        """Call the listeners with the record of a finished operation, one record after the other."""
        arrival = self._arrivals.pop(id(operation), None)
        if arrival is None:
            return  # handed over before the first listener was added
        arrived, keys = arrival
        timeout = deadline = finite(operation._purgatory_timeout)
        timeout, deadline = self._rescheduled.pop(id(operation), (timeout, deadline))
        waited = 0.0 if outcome == "completed_at_once" else now - arrived
        late = now - operation._timer_deadline if outcome == "expired" else None
        name = type(operation).__qualname__
        self._waiting.append(
            FinishedOperation(self._name, name, keys, arrived, timeout, waited, outcome, late, deadline, missed)
        )
        if not self._calling:  # a listener that finishes operations must not recurse
            self._calling = True
            try:
                self._call_listeners()
            finally:
                self._calling = False

    def _call_listeners(self) -> None:
        """Call the listeners. Exceptions go to the clock's exception handler, and requests to exit are raised last."""
        exits = ExitRequests()
        while self._waiting:
            finished = self._waiting.popleft()
            for listener in self.all:
                with exits:
                    try:
                        listener(finished)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as exception:  # a CancelledError too, of a future that it looked at
                        report(self._clock, f"a listener of the purgatory {self._name!r} raised", exception)
        exits.raise_first()


def finite(seconds: float) -> float | None:
    """Return `None` for infinity."""
    return seconds if seconds < inf else None
