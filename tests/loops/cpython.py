"""CPython's own tests of asyncio, on event loops whose timers are on wheels: `python -m tests.loops.cpython MODULE…`.

Every `call_later`, `call_at`, `sleep` and `timeout` of these thousands of tests is a task of a `WheelTimer`, which has
to run them in the order of their times, never early, and not at all once they are cancelled.

Without arguments it runs all modules of `test.test_asyncio`. A test that fails is run again, up to twice, since many of
them measure the time of a busy machine. The last line of the output is JSON: how many tests ran, how many timers they
set on wheels, and the names of those that failed each time.
"""

import asyncio
import json
import sys
import unittest
from asyncio import format_helpers, unix_events
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from typing import Any, Final, TypeVarTuple, Unpack, cast
from weakref import proxy

from test import support, test_asyncio  # type: ignore[import-not-found]

from purgatory import Handle, TimerTask, WheelTimer

Ts = TypeVarTuple("Ts")

ATTEMPTS: Final = 3

TICK: Final = 1e-6
"""Seconds of a tick: with one of 1 ms `call_later(0, …)` would wait for it, and two timers within it could change
places."""

WHEEL_SIZE: Final = 256

timers = 0
"""How many timers the loops have set."""


class Due(TimerTask):
    """Puts a handle among the loop's ready ones at its time, as the loop does with those of its heap."""

    __slots__ = ("handle", "loop")

    def __init__(self, handle: asyncio.TimerHandle, loop: "WheelEventLoop") -> None:
        super().__init__()
        self.handle = handle
        self.loop = loop

    def run(self) -> None:
        self.loop._ready.append(self.handle)


class WheelHandle(asyncio.TimerHandle):
    """asyncio's handle, which takes its task out of the timer when it is cancelled."""

    __slots__ = ("due",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "WheelEventLoop",
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.due: Due | None = Due(self, loop)

    def cancel(self) -> None:
        if self.due is not None:
            self.due.loop.wheels.cancel(self.due)
            self.due = None
        asyncio.Handle.cancel(self)  # not that of asyncio.TimerHandle, which counts it for the heap


class OwnTimers:
    """The loop's own timers, as the clock of the wheels."""

    def __init__(self, loop: "WheelEventLoop") -> None:
        self._loop = proxy(loop)  # no cycle: a closed loop is let go at once, as asyncio's own

    def time(self) -> float:
        time: float = self._loop.time()
        return time

    def call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
        handle: Handle = self._loop.own_call_at(when, callback, *args)
        return handle


class WheelEventLoop(asyncio.SelectorEventLoop):
    """asyncio's selector loop with its timers on wheels."""

    _ready: deque[asyncio.Handle]

    def __init__(self, selector: Any = None) -> None:
        super().__init__(selector)
        self.wheels = WheelTimer(OwnTimers(self), tick=TICK, wheel_size=WHEEL_SIZE)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if delay is None:
            raise TypeError("delay must not be None")
        return self._set_timer(self.time() + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if when is None:
            raise TypeError("when cannot be None")
        return self._set_timer(when, callback, args, context)

    def close(self) -> None:
        super().close()
        self.wheels.close()

    def _set_timer(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> WheelHandle:
        global timers
        timers += 1
        if self.is_closed() or self.get_debug():
            self.own_call_at(when, callback).cancel()  # it checks the loop, the thread and the callback
        handle = WheelHandle(when, callback, args, self, context)
        if self.get_debug():
            vars_ = cast(Any, handle)
            vars_._source_traceback = format_helpers.extract_stack(sys._getframe(2))
        assert handle.due is not None
        self.wheels.add(handle.due, when)
        return handle

    def own_call_at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """The base loop's own `call_at`."""
        return super().call_at(when, callback, *args)


def install() -> None:
    """Let asyncio's own loops be ones whose timers are on wheels."""
    asyncio.SelectorEventLoop = unix_events.SelectorEventLoop = WheelEventLoop
    unix_events._UnixDefaultEventLoopPolicy._loop_factory = WheelEventLoop  # type: ignore[attr-defined]
    if sys.version_info >= (3, 13):
        asyncio.EventLoop = unix_events.EventLoop = WheelEventLoop  # type: ignore[misc,attr-defined]


def modules() -> list[str]:
    """The names of the test modules."""
    return sorted(path.stem for path in Path(test_asyncio.__path__[0]).glob("test_*.py"))


def run(names: list[str]) -> tuple[int, list[str]]:
    """How many of these tests or of the tests of these modules were run, and the names of those that failed."""
    suite = unittest.TestSuite()
    for name in names:
        with suppress(unittest.SkipTest):  # the module is for another system
            suite.addTest(unittest.defaultTestLoader.loadTestsFromName(f"test.test_asyncio.{name}"))
    result = unittest.TextTestRunner(sys.stderr).run(suite)
    failed = [test for test, _ in result.failures + result.errors] + result.unexpectedSuccesses
    tests = {getattr(test, "test_case", test).id() for test in failed}  # of a subtest the test
    return result.testsRun, sorted(test.removeprefix("test.test_asyncio.") for test in tests)


def main() -> None:
    """Run the tests."""
    install()
    support.use_resources = []  # not the network
    count, failed = run(sys.argv[1:] or modules())
    for _ in range(ATTEMPTS - 1):
        _, failed = run(failed)
    print(json.dumps({"tests": count, "timers": timers, "failed": failed}))  # noqa: T201 - a command


if __name__ == "__main__":
    main()
