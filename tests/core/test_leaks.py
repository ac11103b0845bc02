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
from tests.support.operations import FaultLog, Flag, Moody, raising, turn

TIMES = int(os.environ.get("LEAK_TIMES", "1000"))


class FailsToTry(Flag):
    def try_complete(self) -> bool:
        raise LookupError


def watch(purgatory: DelayedOperationPurgatory, operation: Flag | None = None, keys: Any = ("key", "other")) -> Flag:
    return purgatory.try_complete_else_watch(operation or Flag(0.5), keys)


def check(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    watch(purgatory).ready = True
    purgatory.check_and_complete("key")


def pass_deadline(_: object, clock: VirtualClock) -> None:
    clock.advance(1.0)


def reschedule(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    operation = watch(purgatory)
    operation.reschedule(700.0)
    operation.reschedule(None)
    operation.cancel()


def fail_to_complete(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    operation = watch(purgatory, Flag(then=raising()))
    operation.force_complete()
    operation.result()


PATHS: dict[str, Callable[[DelayedOperationPurgatory, VirtualClock], object]] = {
    "never watched": lambda purgatory, clock: Flag(1.0),
    "complete at once": lambda purgatory, clock: watch(purgatory, Flag(ready=True)),
    "force": lambda purgatory, clock: watch(purgatory).force_complete(),
    "without a deadline": lambda purgatory, clock: watch(purgatory, Flag()).force_complete(),
    "check": check,
    "cancel": lambda purgatory, clock: watch(purgatory).cancel(),
    "cancel for key": lambda purgatory, clock: (watch(purgatory), purgatory.cancel_for_key("key")),
    "complete all": lambda purgatory, clock: (watch(purgatory), purgatory.complete_all()),
    "expire": lambda purgatory, clock: pass_deadline(watch(purgatory), clock),
    "fail in try_complete": lambda purgatory, clock: watch(purgatory, FailsToTry()).result(),
    "fail in on_complete": fail_to_complete,
    "a key that fails": lambda purgatory, clock: watch(purgatory, None, ["key", Moody(left=1)]),
    "reschedule": reschedule,
    "reuse": lambda purgatory, clock: watch(purgatory, watch(purgatory)),
    "many keys": lambda purgatory, clock: watch(purgatory, None, [*range(20), 3]).force_complete(),
    "another purgatory": lambda _, clock: watch(DelayedOperationPurgatory(clock=clock)).cancel(),
    "call later": lambda purgatory, clock: pass_deadline(purgatory.timer.call_later(0.5, int), clock),
    "call later and cancel": lambda purgatory, clock: purgatory.timer.call_later(1.0, int).cancel(),
}


def counted(loop: asyncio.AbstractEventLoop | None = None) -> list[int]:
    gc.collect()
    count_references = getattr(sys, "gettotalrefcount", None)
    if count_references is None or type(loop).__module__ == "uvloop":  # whose own references are not all counted
        return [sys.getallocatedblocks()]
    return [sys.getallocatedblocks(), count_references()]


def grown(before: list[int], after: list[int]) -> int:
    return max(later - earlier for earlier, later in zip(before, after, strict=True))


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leaks(path: str) -> None:
    clock = FaultLog()
    purgatory = DelayedOperationPurgatory(clock=clock, purge_interval=10)

    def repeat() -> list[int]:
        for _ in range(TIMES):
            with suppress(LookupError, PurgatoryError):
                PATHS[path](purgatory, clock)
        clock.advance(2.0)
        clock.advance(2.0)
        clock.armed.clear()
        clock.faults.clear()
        return counted()

    repeat()
    before = repeat()
    assert grown(before, repeat()) < TIMES // 4


@pytest.mark.parametrize("end", ["completes", "fails", "is left"])
async def test_no_await_leaks(end: str) -> None:
    async with DelayedOperationPurgatory(purge_interval=10) as purgatory:

        async def wait() -> None:
            operation = watch(purgatory, Flag(10.0, then=raising() if end == "fails" else int))
            task = asyncio.ensure_future(operation)
            await turn()
            if end == "is left":
                task.cancel()
            else:
                operation.force_complete()
            with suppress(LookupError, asyncio.CancelledError):
                await task

        async def repeat() -> list[int]:
            for _ in range(TIMES):
                await wait()
            for _ in range(5):
                await asyncio.sleep(0.002)
            return counted(asyncio.get_running_loop())

        await repeat()
        before = await repeat()
        assert grown(before, await repeat()) < TIMES // 4
