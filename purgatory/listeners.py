"""Listeners: who is told of every operation that has finished, to count it, to write it down, to see what is slow.

When an operation arrives, its time and its keys are noted here, beside the operation, which has no room for them: so
where nobody listens, operations are no larger and completing them takes no longer.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Literal, NamedTuple, Protocol, TypeAlias

from purgatory.clock import Clock, report

__all__ = ["FinishedOperation", "Listener", "Listeners", "Outcome"]

Outcome: TypeAlias = Literal["completed_at_once", "satisfied", "expired", "cancelled", "failed"]
"""How an operation has finished, by the names of the counts in `PurgatoryStatistics`."""


class FinishedOperation(NamedTuple):
    """What a listener is told of an operation. It does not hold the operation, so it may be kept."""

    purgatory: str
    """The purgatory's name."""
    operation: str
    """The name of the operation's type."""
    keys: tuple[Hashable, ...]
    """What it was watched on, without repetitions."""
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
    """What is looked at of an operation."""

    _deadline: float
    _timeout: float | None


class Listeners:
    """Those of one purgatory, and the arrivals of the operations that they will be told of."""

    __slots__ = ("_arrivals", "_clock", "_listeners", "_name", "_telling", "_waiting")

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._listeners: tuple[Listener, ...] = ()
        self._arrivals: dict[int, tuple[float, tuple[Hashable, ...]]] = {}
        self._telling = False
        self._waiting: deque[FinishedOperation] = deque()
        """What has finished while the listeners are being told of something else, by one of them perhaps."""

    def __len__(self) -> int:
        return len(self._listeners)

    def __contains__(self, listener: Listener) -> bool:
        return listener in self._listeners

    def add(self, listener: Listener) -> None:
        """Tell `listener` too."""
        self._listeners = (*self._listeners, listener)

    def remove(self, listener: Listener) -> None:
        """Tell `listener` no more. It is one of them."""
        remaining = list(self._listeners)
        remaining.remove(listener)
        self._listeners = tuple(remaining)

    def arrive(self, operation: object, keys: tuple[Hashable, ...], now: float) -> None:
        """An operation is handed to the purgatory."""
        self._arrivals[id(operation)] = (now, keys)

    def turn_away(self, operation: object) -> None:
        """It was not let in after all."""
        self._arrivals.pop(id(operation), None)

    def finish(self, operation: _Timed, outcome: Outcome, now: float) -> None:
        """It has its outcome: tell the listeners, of one operation after the other."""
        arrival = self._arrivals.pop(id(operation), None)
        if arrival is None:
            return  # it came before anybody listened
        arrived, keys = arrival
        waited = 0.0 if outcome == "completed_at_once" else now - arrived
        late = now - operation._deadline if outcome == "expired" else None
        # As FinishedOperation(...), in half the time.
        finished = tuple.__new__(
            FinishedOperation,
            (self._name, type(operation).__qualname__, keys, arrived, operation._timeout, waited, outcome, late),
        )
        if self._telling:
            # Not from in here: a listener that finishes others would be told of them ever deeper inside itself.
            self._waiting.append(finished)
            return
        self._telling = True
        try:
            self._tell(finished)
        finally:
            self._telling = False

    def _tell(self, finished: FinishedOperation) -> None:
        """What listeners raise goes to the clock's exception handler, or, if they ask to exit, comes out at the end."""
        leaving: BaseException | None = None
        while True:
            for listener in self._listeners:
                try:
                    listener(finished)
                except (SystemExit, KeyboardInterrupt) as exception:
                    leaving = exception
                except BaseException as exception:
                    report(self._clock, f"a listener of the purgatory {self._name!r} failed", exception)
            if not self._waiting:
                break
            finished = self._waiting.popleft()
        if leaving is not None:
            raise leaving
