"""Listeners: called with a record of every finished operation, to count it, to journal it, to find slow ones.

The arrival, timeout and keys of an operation are noted here and not in the operation: without listeners, operations are
no larger and their completion takes no longer.
"""

from collections import deque
from collections.abc import Callable, Hashable
from math import inf
from typing import Literal, NamedTuple, Protocol, TypeAlias

from purgatory._loop.clock import Clock, report
from purgatory._loop.slices import ExitRequests

__all__ = ["FinishedOperation", "Listener", "Listeners", "Outcome"]

Outcome: TypeAlias = Literal["completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed"]
"""The outcome of an operation, by the names of the counts in `PurgatoryStatistics`."""


class FinishedOperation(NamedTuple):
    """The record of one operation for a listener. It does not hold the operation, so it may be kept."""

    purgatory: str
    """The purgatory's name."""
    operation: str
    """The name of the operation's type."""
    keys: tuple[Hashable, ...]
    """The keys that it was watched on, without repetitions."""
    arrived: float
    """The time at which it was handed to the purgatory, by the purgatory's clock."""
    timeout: float | None
    """Seconds that it waits at most, from its arrival or its last reschedule on; `None` is no limit."""
    waited: float
    """Seconds from its arrival until it had its outcome, `on_complete` included; 0.0 if it completed at once."""
    outcome: Outcome
    """How it has ended."""
    late: float | None
    """Seconds from its deadline until it had its outcome, if that is *expired*."""
    deadline: float | None
    """Seconds from its arrival to its last deadline: the timeout, unless it was rescheduled; `None` is no limit."""
    missed: bool = False
    """Whether it is *satisfied*, but only the last try at its deadline found that its condition held. A check of its
    keys is missing, had a limit, or was still queued."""


Listener: TypeAlias = Callable[[FinishedOperation], object]
"""What is called with the record of each finished operation. Its result is ignored."""


class _Timed(Protocol):
    """An operation, as it is read here."""

    _purgatory_timeout: float
    _timer_deadline: float


class Listeners:
    """The listeners of one purgatory, and the arrivals of the operations that will have a record."""

    __slots__ = ("_arrivals", "_calling", "_clock", "_name", "_rescheduled", "_waiting", "all")

    def __init__(self, name: str, clock: Clock, listener: Listener) -> None:
        self._name = name
        self._clock = clock
        self.all: tuple[Listener, ...] = (listener,)
        """The listeners, in the order in which they were added. Replaced as a whole."""
        self._arrivals: dict[int, tuple[float, tuple[Hashable, ...]]] = {}
        """The time and keys of the operations that will have a record, by `id`."""
        self._rescheduled: dict[int, tuple[float | None, float | None]] = {}
        """The timeout of those that were rescheduled, and their deadline in seconds from the time."""
        self._calling = False
        self._waiting: deque[FinishedOperation] = deque()
        """Records that the listeners have not been called with yet."""

    def remove(self, listener: Listener) -> bool:
        """Call `listener` no more. Returns whether it was a listener."""
        remaining = list(self.all)
        if listener not in remaining:
            return False
        remaining.remove(listener)
        self.all = tuple(remaining)
        return True

    def arrive(self, operation: object, keys: tuple[Hashable, ...], now: float) -> None:
        """Note the arrival of an operation."""
        self._arrivals[id(operation)] = (now, keys)

    def reschedule(self, operation: _Timed, timeout: float | None) -> None:
        """Note that a deadline has been moved to `timeout` seconds from now."""
        arrival = self._arrivals.get(id(operation))
        if arrival is not None:
            self._rescheduled[id(operation)] = timeout, _finite(operation._timer_deadline - arrival[0])

    def finish(self, operation: _Timed, outcome: Outcome, missed: bool, now: float) -> None:
        """Call the listeners with the record of a finished operation, one record after the other."""
        arrival = self._arrivals.pop(id(operation), None)
        if arrival is None:
            return  # handed over before the first listener was added
        arrived, keys = arrival
        timeout = deadline = _finite(operation._purgatory_timeout)
        if self._rescheduled:
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
        """Call the listeners. Exceptions go to the exception handler of the clock, requests to exit are raised last."""
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


def _finite(seconds: float) -> float | None:
    return seconds if seconds < inf else None
