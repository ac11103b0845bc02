"""Async tests of this folder run on a loop in virtual time, which jumps to the next timer when nothing is ready."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import looptime


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    # A minute without a timer or data is a hang, so the tasks get looptime.IdleTimeoutError.
    return {"virtual time": partial(looptime.new_event_loop, idle_timeout=60.0)}
