"""No path of the core leaks: as many blocks of memory are allocated after thousands of operations as before.

On a debug build of CPython there are as many references, too. `LEAK_TIMES=1000000` takes a million on each path.
"""

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, PurgatoryError, VirtualClock
from tests.support.operations import FaultLog, Flag

TIMES = int(os.environ.get("LEAK_TIMES", "1000"))


class Failing(Flag):
    """Fails in a method."""

    def __init__(self, method: str) -> None:
        super().__init__(1.0)
        self.method = method

    def try_complete(self) -> bool:
        if self.method == "try_complete":
            raise LookupError
        return super().try_complete()

    def on_complete(self) -> str:
        if self.method == "on_complete":
            raise LookupError
        return super().on_complete()


class Unhashable:
    """A key that is refused after another one has been watched."""

    def __init__(self) -> None:
        self.left = 1

    def __hash__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise LookupError
        return 1


World = tuple[DelayedOperationPurgatory, VirtualClock]


def _watch(world: World, operation: Flag, keys: Any = ("key", "other")) -> Flag:
    return world[0].try_complete_else_watch(operation, keys)


def _complete(world: World) -> None:
    operation = _watch(world, Flag(1.0))
    operation.ready = True
    world[0].check_and_complete("key")


def _fail(world: World, method: str) -> None:
    operation = _watch(world, Failing(method))
    operation.force_complete()
    with suppress(LookupError):
        operation.result()


def _withdraw(world: World) -> None:
    with suppress(LookupError):
        _watch(world, Flag(1.0), ["key", Unhashable()])


def _expire(world: World) -> None:
    _watch(world, Flag(0.5))
    world[1].advance(1.0)


def _run_later(world: World) -> None:
    world[0].timer.call_later(0.5, int)
    world[1].advance(1.0)


def _reschedule(world: World) -> None:
    operation = _watch(world, Flag(0.5))
    operation.reschedule(700.0)
    operation.reschedule(None)
    operation.cancel()


def _reuse(world: World) -> None:
    operation = _watch(world, Flag(0.5))
    operation.force_complete()
    with suppress(PurgatoryError):
        _watch(world, operation)


PATHS: dict[str, Callable[[World], object]] = {
    "never watched": lambda world: Flag(1.0),
    "complete at once": lambda world: _watch(world, _ready()),
    "force": lambda world: _watch(world, Flag(1.0)).force_complete(),
    "without a deadline": lambda world: _watch(world, Flag(None)).force_complete(),
    "check": _complete,
    "cancel": lambda world: _watch(world, Flag(1.0)).cancel(),
    "cancel for key": lambda world: (_watch(world, Flag(1.0)), world[0].cancel_for_key("key")),
    "expire": _expire,
    "fail in try_complete": lambda world: _fail(world, "try_complete"),
    "fail in on_complete": lambda world: _fail(world, "on_complete"),
    "withdraw": _withdraw,
    "reschedule": _reschedule,
    "reuse": _reuse,
    "many keys": lambda world: _watch(world, Flag(1.0), [*range(20), 3]).force_complete(),
    "call later and cancel": lambda world: world[0].timer.call_later(1.0, int).cancel(),
    "call later": _run_later,
    "complete all": lambda world: (_watch(world, Flag(1.0)), world[0].complete_all()),
    "another purgatory": lambda world: _watch((_another(world[1]), world[1]), Flag(1.0)).cancel(),
}


def _ready() -> Flag:
    operation = Flag(1.0)
    operation.ready = True
    return operation


def _another(clock: VirtualClock) -> DelayedOperationPurgatory:
    return DelayedOperationPurgatory(clock=clock)


def _counted(loop: asyncio.AbstractEventLoop | None = None) -> list[int]:
    gc.collect()
    count_references = getattr(sys, "gettotalrefcount", None)
    if count_references is None or type(loop).__module__ == "uvloop":  # whose own references are not all counted
        return [sys.getallocatedblocks()]
    return [sys.getallocatedblocks(), count_references()]


def _grown(before: list[int], after: list[int]) -> int:
    return max(later - earlier for earlier, later in zip(before, after, strict=True))


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leaks(path: str) -> None:
    clock = FaultLog()
    world = DelayedOperationPurgatory(clock=clock, purge_interval=10), clock
    call = PATHS[path]

    def repeat() -> list[int]:
        for _ in range(TIMES):
            call(world)
        clock.advance(2.0)
        clock.advance(2.0)
        clock.armed.clear()
        clock.faults.clear()
        return _counted()

    repeat()
    before = repeat()
    assert _grown(before, repeat()) < TIMES // 4


async def _await(purgatory: DelayedOperationPurgatory) -> None:
    operation = purgatory.try_complete_else_watch(Flag(10.0), ["key"])
    task = asyncio.create_task(_result(operation))
    await asyncio.sleep(0)
    operation.force_complete()
    await task


async def _await_and_leave(purgatory: DelayedOperationPurgatory) -> None:
    operation = purgatory.try_complete_else_watch(Flag(10.0), ["key"])
    task = asyncio.create_task(_result(operation))
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _await_failure(purgatory: DelayedOperationPurgatory) -> None:
    operation = purgatory.try_complete_else_watch(Failing("on_complete"), ["key"])
    task = asyncio.create_task(_result(operation))
    await asyncio.sleep(0)
    operation.force_complete()
    with suppress(LookupError):
        await task


async def _result(operation: Flag) -> object:
    return await operation


@pytest.mark.parametrize("wait", [_await, _await_and_leave, _await_failure])
async def test_no_await_leaks(wait: Callable[[DelayedOperationPurgatory], Any]) -> None:
    async with DelayedOperationPurgatory(purge_interval=10) as purgatory:

        async def repeat() -> list[int]:
            for _ in range(TIMES):
                await wait(purgatory)
            for _ in range(5):
                await asyncio.sleep(0.002)
            return _counted(asyncio.get_running_loop())

        await repeat()
        before = await repeat()
        assert _grown(before, await repeat()) < TIMES // 4
