"""An event loop of `purgatory.loops` in the place of asyncio's own, for test suites of others."""

import asyncio
import sys
from asyncio import unix_events

from purgatory import loops
from purgatory._speedups import python_of
from purgatory._timer import WheelTimer
from purgatory._timer.entry import TimerEntry

timers = 0
"""How many timers the loops have set."""


def install() -> None:
    """Let asyncio's own loops be ones whose timers are on wheels, and count these."""
    wheels = python_of(WheelTimer)  # those of the loops
    add = wheels.add

    def counted(self: WheelTimer, task: TimerEntry, deadline: float) -> None:
        global timers
        timers += 1
        add(self, task, deadline)

    wheels.add = counted  # type: ignore[method-assign]
    asyncio.SelectorEventLoop = unix_events.SelectorEventLoop = loops.WheelEventLoop
    unix_events._UnixDefaultEventLoopPolicy._loop_factory = loops.WheelEventLoop  # type: ignore[attr-defined]
    if sys.version_info >= (3, 13):
        asyncio.EventLoop = unix_events.EventLoop = loops.WheelEventLoop  # type: ignore[misc,attr-defined]
