"""Clocks: the time as the timer needs it, and a clock that moves only by `advance`.

An asyncio event loop *is* a `Clock`, so the same code runs live and simulated. All times are seconds as `float`,
counted from an origin of the clock's own (monotonic time on a loop, 0.0 on a `VirtualClock`).
"""

import logging
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from traceback import print_exc
from typing import Any, Final, Protocol, TypeVarTuple, Unpack

from purgatory._loop.arguments import check_callable, check_time
from purgatory._loop.arguments import seconds as check_seconds
from purgatory._loop.closing import Unique
from purgatory._loop.standstill import Standstill

Ts = TypeVarTuple("Ts")

log: Final = logging.getLogger("purgatory")


class Handle(Protocol):
    """The handle that `Clock.call_at` returns, such as an `asyncio.TimerHandle`.

    For example:

        clock.call_at(clock.time() + 5.0, print, "never").cancel()
    """

    def cancel(self) -> object:
        """Cancel the call. Does nothing if the callback has run or was cancelled before."""


class Clock(Protocol):
    """Tells the time and calls back at a time: an event loop, a `VirtualClock` or a `WheelTimer`.

    A call may come somewhat early or late, because for example uvloop rounds to whole milliseconds. So each callback
    looks at `time()`. A callback never runs inside the `call_at` that asks for it.

        clock: Clock = asyncio.get_running_loop()
        clock.call_at(clock.time() + 5.0, print, "five seconds later")
    """

    def time(self) -> float:
        """Return the time in seconds. It never decreases."""

    def call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
        """Call `callback(*args)` at about `when`, a time in seconds, or as soon as possible if that has passed."""


def report(clock: Clock | None, message: str, exception: BaseException, **context: Any) -> None:
    """Hand an exception that has no caller to the clock's exception handler (a loop has one), or else to the log.

    `context` contains more entries for the handler's dictionary. Of the handler's own exceptions, only requests to exit
    come out.
    """
    handler = getattr(clock, "call_exception_handler", None)
    try:
        if handler is not None:
            handler({"message": message, "exception": exception, **context})
            return
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        _log_error("the exception handler of %r raised", clock, exc_info=True)
    _log_error(message, exc_info=exception)


def _log_error(*arguments: Any, **options: Any) -> None:
    try:
        log.error(*arguments, **options)
    except Exception:  # of a filter: do as logging does when a handler raises
        print_exc()


class _VirtualHandle:
    __slots__ = ("__weakref__", "args", "callback", "clock", "context")

    def __init__(
        self, clock: "VirtualClock", callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self.clock = clock
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context: Context | None = context

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.args = ()
            self.context = None
            self.clock._forget()


class VirtualClock(Unique):
    """A `Clock` whose time moves only by `advance` and `advance_to`, for tests, simulation and replay.

    Callbacks run inside the call that moves the time, each at its own time and in the order of their `when` (first
    come, first served among equals). A callback for a time that has passed runs at the next move, even at `advance(0)`.

    A task that awaits an operation waits until other code moves the time. After five real seconds without a move there
    is a `RuntimeWarning`, once for each clock. If warnings are errors, it is raised in the task.

        clock = VirtualClock()
        delay = DelayedOperationPurgatory(clock=clock).try_complete_else_watch(Delay(60.0), ["client 1"])
        clock.advance(60.0)
        assert delay.expired()
    """

    __slots__ = (
        "__weakref__",
        "_advancing",
        "_calls",
        "_cancelled",
        "_heap",
        "_moves",
        "_now",
        "_standstill",
        "_warned",
    )

    def __init__(self, start: float = 0.0) -> None:
        """Start at the time `start`, in seconds. Raises `ValueError` if it is not finite."""
        self._now = check_seconds("start", start, "")
        self._heap: list[tuple[float, int, _VirtualHandle]] = []
        self._calls = 0
        """Calls of `call_at` so far: the order of callbacks with the same time."""
        self._cancelled = 0
        """Entries of the heap that have been cancelled."""
        self._advancing = False
        self._standstill: Standstill | None = None
        """Set by the first `await` of an operation."""
        self._moves = 0
        """Moves so far."""
        self._warned = False
        """Whether there was a warning."""

    def _purgatory_describe(self) -> str:
        return f"time={self._now!r} scheduled={len(self._heap) - self._cancelled}"

    def time(self) -> float:
        """Return the time in seconds."""
        return self._now

    def call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
        """Call `callback(*args)` when the time reaches `when`, in a copy of the present context, as event loops do.

        Raises:
            ValueError: `when` is NaN.
            TypeError: `when` is not a number, or `callback` is not callable.
        """
        check_time("when", when)
        check_callable("callback", callback)
        handle = _VirtualHandle(self, callback, args, copy_context())
        self._calls += 1
        heappush(self._heap, (when, self._calls, handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an exception that has no caller. Override it to see such exceptions, for example in a test."""
        log.error(context["message"], exc_info=context["exception"])

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, at least 0, and run the callbacks of that time. Raises as `advance_to`."""
        self.advance_to(self._now + check_seconds("seconds", seconds, ""))

    def advance_to(self, when: float) -> None:
        """Move the time to `when`, in seconds, and run the callbacks up to that time.

        If a callback raises, the exception comes out of this call, the time stays at that callback and the other
        callbacks stay scheduled.

        Raises:
            ValueError: `when` is in the past, NaN or infinite.
            TypeError: `when` is not a number.
            RuntimeError: A callback of this clock made the call.
        """
        when = check_seconds("when", when, "")
        if when < self._now:
            raise ValueError(f"when must be at least {self._now!r}, not {when!r}: time does not move backwards")
        if self._advancing:
            raise RuntimeError(f"{self!r} is being advanced already: its callbacks must not move the time")
        self._advancing = True
        self._moves += 1
        try:
            while self._heap and self._heap[0][0] <= when:
                at, _, handle = heappop(self._heap)
                callback, args, context = handle.callback, handle.args, handle.context
                handle.callback = handle.context = None
                handle.args = ()
                if callback is None or context is None:
                    self._cancelled -= 1
                    continue
                self._now = max(self._now, at)
                context.run(callback, *args)
                # A traceback that is kept would keep this frame, and these objects with it.
                del handle, callback, args, context
            self._now = when
        finally:
            self._advancing = False

    def _is_scheduled(self) -> bool:
        return len(self._heap) > self._cancelled

    def _await(self, waiter: Future[None], loop: AbstractEventLoop) -> None:
        """Check from now on that the clock moves, because a task awaits an operation with `waiter`."""
        if self._warned:
            return
        check = self._standstill
        if check is None or check.loop() is not loop:
            self._standstill = check = Standstill(self, loop)
        check.waiters[waiter] = check.checks

    def _forget(self) -> None:
        """Count an entry that was cancelled, and drop these entries when they are most of the heap."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            # In place, because `advance_to` may be in the middle of this very list.
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapify(self._heap)
            self._cancelled = 0
