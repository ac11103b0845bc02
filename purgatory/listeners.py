"""Listeners: called for every operation that has finished, to count it, to write it down, to see what is slow.

When an operation arrives, its time, its timeout and its keys are noted here, beside the operation, which has no room
for them: without listeners, operations are no larger and completing them takes no longer.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Literal, NamedTuple, Protocol, TypeAlias

from purgatory.clock import Clock, report

__all__ = ["FinishedOperation", "Listener", "Listeners", "Outcome"]

Outcome: TypeAlias = Literal["completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed"]
"""How an operation has finished, by the names of the counts in `PurgatoryStatistics`."""


class FinishedOperation(NamedTuple):
    """The record of one operation for a listener. It does not hold the operation, so it may be kept."""

    purgatory: str
    """The purgatory's name."""
    operation: str
    """The name of the operation's type."""
    keys: tuple[Hashable, ...]
    """The keys that it was watched on, without repetitions."""
    arrived: float
    """When it was handed to the purgatory, by the purgatory's clock."""
    timeout: float | None
    """Seconds it was to wait at the most, from its arrival or from when it was last rescheduled; `None` is for ever."""
    waited: float
    """Seconds from its arrival until it had its outcome, `on_complete` included; 0.0 if it completed at once."""
    outcome: Outcome
    late: float | None
    """Seconds from its deadline until it had its outcome, if that is *expired*."""


Listener: TypeAlias = Callable[[FinishedOperation], object]


class _Timed(Protocol):
    """An operation, as far as it is looked at here."""

    _timer_deadline: float


class Listeners:
    """The listeners of one purgatory, and the arrivals of the operations that they will be told of."""

    __slots__ = ("_arrivals", "_clock", "_name", "_telling", "_waiting", "all")

    def __init__(self, name: str, clock: Clock, listener: Listener) -> None:
        self._name = name
        self._clock = clock
        self.all: tuple[Listener, ...] = (listener,)
        """The listeners, in the order in which they were added. Replaced as a whole."""
        self._arrivals: dict[int, tuple[float, tuple[Hashable, ...], float | None]] = {}
        """The time, keys and timeout of the operations that a listener will be told of, by `id`."""
        self._telling = False
        self._waiting: deque[FinishedOperation] = deque()
        """Records of operations that finished while the listeners were being told of another one."""

    def remove(self, listener: Listener) -> bool:
        """Tell `listener` no more. Returns whether it was one of them."""
        while True:
            listeners = self.all
            remaining = list(listeners)
            if listener not in remaining:
                return False
            remaining.remove(listener)
            fewer = tuple(remaining)
            # No call from here.
            if self.all is listeners:
                self.all = fewer
                return True

    def arrive(self, operation: object, keys: tuple[Hashable, ...], now: float, timeout: float | None) -> None:
        """An operation is handed to the purgatory."""
        self._arrivals[id(operation)] = (now, keys, timeout)

    def reschedule(self, operation: object, timeout: float | None) -> None:
        """Its deadline has been moved to `timeout` seconds from now."""
        number = id(operation)
        arrival = self._arrivals.get(number)
        if arrival is not None:
            arrived, keys, _ = arrival
            moved = (arrived, keys, timeout)
            # No call from here.
            if number in self._arrivals:
                self._arrivals[number] = moved

    def reject(self, operation: object) -> None:
        """It was not let in after all."""
        self._arrivals.pop(id(operation), None)

    def finish(self, operation: _Timed, outcome: Outcome, now: float) -> None:
        """It has its outcome: tell the listeners, of one operation after the other."""
        arrival = self._arrivals.pop(id(operation), None)
        if arrival is None:
            return  # handed over before the first listener was added
        arrived, keys, timeout = arrival
        waited = 0.0 if outcome == "completed_at_once" else now - arrived
        late = now - operation._timer_deadline if outcome == "expired" else None
        name = type(operation).__qualname__
        # As FinishedOperation(...), in half the time.
        finished = tuple.__new__(FinishedOperation, (self._name, name, keys, arrived, timeout, waited, outcome, late))
        if self._telling:
            # Not from inside another call: a listener that finishes others would be called ever deeper inside itself.
            self._waiting.append(finished)
        else:
            self._telling = True
            self._tell(finished)

    def _tell(self, finished: FinishedOperation) -> None:
        """Report what listeners raise to the clock's exception handler; a request to exit is raised at the end."""
        leaving: BaseException | None = None
        while True:
            for listener in self.all:
                try:
                    listener(finished)
                except (SystemExit, KeyboardInterrupt) as exception:
                    leaving = leaving or exception
                except BaseException as exception:
                    report(self._clock, f"a listener of the purgatory {self._name!r} raised", exception)
            # No call from here: a record that is appended from now on is told of by its own call.
            if not self._waiting:
                self._telling = False
                break
            finished = self._waiting.popleft()
        if leaving is not None:
            raise leaving
