"""Event loops whose timers are a `WheelTimer`: `asyncio.timeout`, `sleep`, `wait_for` and every `call_later` are on it.

asyncio keeps its timers in a heap, and a cancelled one stays there, with its handle and its context, until it is due or
until more than half of them are cancelled. On the wheels a timer is set and cancelled at a cost that does not grow with
what is pending, and a cancelled one is let go at once. The base loop does everything else; in its own heap is one
timer, for the earliest bucket.

    asyncio.run(main(), loop_factory=new_event_loop)           # Python 3.12
    with asyncio.Runner(loop_factory=new_event_loop) as runner:  # Python 3.11
        runner.run(main())
"""

import asyncio
import sys
from asyncio import format_helpers
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import cache
from importlib import import_module
from typing import Any, Final, NoReturn, TypeVarTuple, Unpack, cast
from weakref import proxy

from purgatory._core.clock import Handle
from purgatory._speedups import python_of
from purgatory._timer import WheelTimer
from purgatory._timer.entry import Bucket

__all__ = ["new_event_loop", "new_uvloop"]

Ts = TypeVarTuple("Ts")

_TICK: Final = 1e-6
_WHEEL_SIZE: Final = 256
"""As many levels as with the usual 1 ms and 20 buckets, and the order of any two times that differ by a microsecond.

With ticks of 1 ms `call_later(0, …)` would wait for one, and two timers within one could run in the wrong order.
"""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new `asyncio.SelectorEventLoop` whose timers are on wheels.

    They run in the order of their times, to a microsecond, and never early; those of times that have passed in the
    order in which they were set. A due one runs in the iteration after that in which the loop finds it. Everything else
    is asyncio's own.
    """
    return WheelEventLoop()


def new_uvloop() -> asyncio.AbstractEventLoop:
    """Return a new `uvloop.Loop` whose timers are on wheels.

    They run in the order of their times and, unlike uvloop's own, never early by the loop's time, which counts whole
    milliseconds. Raises `ModuleNotFoundError` if uvloop is not installed.
    """
    return _uvloop_class()()


class TimerHandle(asyncio.TimerHandle):
    """The handle of a timer on the wheels. At its time it is put among the base loop's ready handles."""

    # The names of TimerEntry, which cannot be a second base: each has slots.
    __slots__ = ("_timer_bucket", "_timer_deadline")

    _timer_bucket: Bucket | None
    _timer_deadline: float

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        # As asyncio's, without its two calls: a quarter of a timer that is set and cancelled.
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._source_traceback: object = None
        self._repr: str | None = None
        self._scheduled = False
        self._when = self._timer_deadline = when
        self._timer_bucket = None

    def cancel(self) -> None:
        """Forget the callback, at once. Harmless when it has run or has been cancelled before."""
        number = id(self)
        # As WheelTimer.cancel(). No call from here.
        bucket = self._timer_bucket
        if bucket is not None:
            self._timer_bucket = None
            del bucket[number]
        # To here. Not that of asyncio.TimerHandle, which counts it for the heap.
        asyncio.Handle.cancel(self)

    def _timer_expire(self) -> None:
        # As BaseEventLoop does with the timers of its heap.
        cast(WheelEventLoop, self._loop)._ready.append(self)


class _UvloopTimerHandle(TimerHandle):
    """uvloop's ready handles are its own: one of them is made at the time."""

    __slots__ = ("_ready_handle",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._ready_handle: asyncio.Handle | None = None

    def cancel(self) -> None:
        """As its base class."""
        super().cancel()
        if self._ready_handle is not None:
            self._ready_handle.cancel()

    def _timer_expire(self) -> None:
        if self._callback is not None:  # else cancelled on the way here
            self._ready_handle = self._loop.call_soon(self._callback, *self._args, context=self._context)


class _OwnTimers:
    """The base loop's own timers, as the clock of the wheels."""

    __slots__ = ("_loop",)

    def __init__(self, loop: "_WheelTimers") -> None:
        self._loop = proxy(loop)  # no cycle: a closed loop is let go at once, as asyncio's own

    def time(self) -> float:
        """The loop's time."""
        time: float = self._loop.time()
        return time

    def call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
        """The base loop's own `call_at`."""
        handle: Handle = self._loop._own_call_at(when, callback, *args)
        return handle


def _refuse(handle: TimerHandle, when: float) -> NoReturn:
    raise RuntimeError("Event loop is closed")


class _WheelTimers(asyncio.AbstractEventLoop):
    """The timers of an event loop, in front of its class."""

    _handle: type[TimerHandle]
    _add: Callable[[TimerHandle, float], None]

    def _set_up(self, handle: type[TimerHandle]) -> None:
        self._handle = handle
        self._wheels = python_of(WheelTimer)(_OwnTimers(self), tick=_TICK, wheel_size=_WHEEL_SIZE)
        self._add = cast(Callable[[TimerHandle, float], None], self._wheels.add)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, never early."""
        if delay is None:
            raise TypeError("delay must not be None")
        return self._set_timer(self.time() + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, never early."""
        if when is None:
            raise TypeError("when cannot be None")
        return self._set_timer(when, callback, args, context)

    def close(self) -> None:
        """Close the loop, and forget the timers."""
        super().close()
        self._wheels.close()
        self._add = _refuse

    def _set_timer(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> TimerHandle:
        handle = self._handle(when, callback, args, self, context)
        if self.get_debug():
            self._own_call_at(when, callback).cancel()  # it checks the thread and the callback
            handle._source_traceback = format_helpers.extract_stack(sys._getframe(2))
        self._add(handle, when)  # on a closed loop _own_call_at() raises
        return handle

    def _own_call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
        """The base loop's own `call_at`."""
        return super().call_at(when, callback, *args)


class WheelEventLoop(_WheelTimers, asyncio.SelectorEventLoop):
    """asyncio's selector loop with its timers on wheels."""

    _ready: deque[asyncio.Handle]

    def __init__(self, selector: Any = None) -> None:
        super().__init__(selector)
        self._set_up(TimerHandle)


@cache
def _uvloop_class() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        base: Any = import_module("uvloop").Loop  # the core itself needs the standard library alone
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}: pip install uvloop", name=error.name) from None

    class WheelUvloop(_WheelTimers, base):  # type: ignore[misc]
        """uvloop's loop with its timers on wheels."""

        def __init__(self) -> None:
            super().__init__()
            self._set_up(_UvloopTimerHandle)

        def _own_call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
            # Its call_at() would go by self.call_later().
            handle: Handle = base.call_later(self, when - self.time(), callback, *args)
            return handle

    return WheelUvloop
