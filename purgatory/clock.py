"""Clocks: what the timer needs to know about time, and one that moves only when told.

An asyncio event loop *is* a `Clock`, so the same code runs live and simulated. All times are seconds as `float`,
counted from an origin that is the clock's own business (monotonic time on a loop, 0.0 on a `VirtualClock`).
"""

import logging
import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeVarTuple, Unpack

__all__ = ["Clock", "Handle", "VirtualClock"]

Ts = TypeVarTuple("Ts")

_log = logging.getLogger("purgatory")


class Handle(Protocol):
    """What `Clock.call_at` returns."""

    def cancel(self) -> object:
        """Forget the callback. Harmless when it has run or has been cancelled before."""


class Clock(Protocol):
    """Tells the time and calls back at a time. `asyncio.AbstractEventLoop` has both methods.

    A wake-up is a hint: a clock may call back somewhat early or late (uvloop rounds to whole milliseconds), so who
    is called looks at `time()`. A callback never runs inside the `call_at` that asks for it.
    """

    def time(self) -> float:
        """Now, in seconds; never decreases."""

    def call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
        """Call `callback(*args)` at about `when`, as soon as possible if that has passed."""


def check_callback(name: str, callback: Callable[..., object]) -> None:
    """Raise `TypeError` unless `callback` can be called, and does its work when it is."""
    if not callable(callback):
        raise TypeError(f"{name} is called, which {callback!r} cannot be")
    if iscoroutinefunction(callback):
        raise TypeError(f"{name} must not be async: it is called, and not awaited, and {callback!r} would do nothing")


def report(clock: Clock | None, message: str, exception: BaseException, **context: Any) -> None:
    """Hand an exception that nobody can catch to the clock's exception handler (a loop has one), else to the log."""
    handler = getattr(clock, "call_exception_handler", None)
    if handler is None:
        _log.error(message, exc_info=exception)
    else:
        handler({"message": message, "exception": exception, **context})


class _VirtualHandle:
    __slots__ = ("args", "callback", "clock")

    def __init__(self, clock: "VirtualClock", callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.clock = clock
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.args = ()
            self.clock._forget()


class VirtualClock:
    """A `Clock` whose time moves only by `advance` and `advance_to`: for tests, simulation and replay.

    Callbacks run inside the call that moves the time, in order of their `when` (first come, first served among
    equals), each at its own time. One asked for at a time that has passed runs at the next move, `advance(0)` included.
    """

    __slots__ = ("_advancing", "_cancelled", "_heap", "_now", "_sequence")

    def __init__(self, start: float = 0.0) -> None:
        """Start at `start` seconds. Raises `ValueError` unless it is finite."""
        if not math.isfinite(start):
            raise ValueError(f"start must be a finite number of seconds, not {start!r}")
        self._now = float(start)
        self._heap: list[tuple[float, int, _VirtualHandle]] = []
        self._sequence = 0
        self._cancelled = 0
        self._advancing = False

    def __repr__(self) -> str:
        return f"<VirtualClock time={self._now!r} scheduled={len(self._heap) - self._cancelled}>"

    def time(self) -> float:
        """Now, in seconds."""
        return self._now

    def call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
        """Call `callback(*args)` when the time reaches `when`. Raises `ValueError` if `when` is NaN."""
        if math.isnan(when):
            raise ValueError("when must be a number of seconds, not NaN")
        handle = _VirtualHandle(self, callback, args)
        heappush(self._heap, (when, self._sequence, handle))
        self._sequence += 1
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Take an exception that nobody caught, as an event loop does: it goes to the log. Override to see it."""
        _log.error(context["message"], exc_info=context["exception"])

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass. Raises as `advance_to`."""
        self.advance_to(self._now + seconds)

    def advance_to(self, when: float) -> None:
        """Move the time to `when`, running what is due on the way.

        What a callback raises comes out here, with the time at that callback; the rest stays scheduled. Raises
        `ValueError` if `when` is not finite or lies in the past, `RuntimeError` if called from one of its callbacks.
        """
        if not math.isfinite(when):
            raise ValueError(f"time moves to a finite number of seconds, not {when!r}")
        if when < self._now:
            raise ValueError(f"time does not move backwards, from {self._now!r} to {when!r}")
        if self._advancing:
            raise RuntimeError("the clock is being advanced already: its callbacks cannot move the time")
        self._advancing = True
        try:
            heap = self._heap
            while heap and heap[0][0] <= when:
                at, _, handle = heappop(heap)
                callback = handle.callback
                if callback is None:
                    self._cancelled -= 1
                    continue
                args = handle.args
                handle.callback = None
                handle.args = ()
                if at > self._now:
                    self._now = at
                callback(*args)
                # A traceback that somebody keeps would keep this frame, and with it these.
                del handle, callback, args
            self._now = when
        finally:
            self._advancing = False

    def _forget(self) -> None:
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            # In place: `advance_to` may be walking this very list.
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapify(self._heap)
            self._cancelled = 0
