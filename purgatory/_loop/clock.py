"""Clocks: the time as the timer needs it.

An asyncio event loop *is* a `Clock`, so the same code runs live and simulated. All times are seconds as `float`,
counted from an origin of the clock's own (monotonic time on a loop, 0.0 on a `VirtualClock`).

A clock is asked for its time each time, and nothing is kept of how it tells it: tests replace `loop.time` or
`time.monotonic`, and such a time may go back when they end.
"""

import logging
from collections.abc import Callable
from traceback import print_exc
from typing import Any, Final, Protocol, TypeVarTuple, Unpack

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
        """Return the time in seconds."""

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
