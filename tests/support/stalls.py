"""The longest iteration of the loop while a million entries are worked on.

    python -m tests.support.stalls [--operations N]

A heartbeat on the loop measures its longest iteration while N operations expire in one tick, a bucket of N cascades, N
dead entries are purged, `check_and_complete_soon` meets N watchers, and half as many again come while N are pending.
The same work is measured in one go, without slices. Both are measured with the garbage collector as it is, tuned as a
server should (`gc.freeze`, a higher threshold), and off. Each measurement has a process of its own.
"""

import argparse
import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import purgatory._core.owner
import purgatory._core.watchers
import purgatory._loop.slices
import purgatory._timer.timer
from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.bench.machine import Heartbeat

OPERATIONS = 1_000_000
COLLECTORS = ("as it is", "tuned", "off")


class Waiting(DelayedOperation[None]):
    """The smallest operation there is."""

    __slots__ = ("ready",)

    def __init__(self, timeout: float | None, *, ready: bool = False) -> None:
        super().__init__(timeout)
        self.ready = ready

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        pass


Ready = Callable[[int], bool]
Prepared = tuple[Callable[[], object], Callable[[], bool]]


def _watch(held: DelayedOperationPurgatory, timeouts: Iterable[float | None], ready: Ready) -> list[Waiting]:
    operations = []
    for n, timeout in enumerate(timeouts):
        operation = held.try_complete_else_watch(Waiting(timeout), ["key"])
        operation.ready = ready(n)
        operations.append(operation)
    return operations


async def _expire(held: DelayedOperationPurgatory, operations: int) -> Prepared:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 4e-6 * operations + 1
    for _ in range(operations):
        held.try_complete_else_watch(Waiting(max(0.0, deadline - loop.time())), ["key"])
    return lambda: None, lambda: held.num_delayed == 0


async def _cascade(held: DelayedOperationPurgatory, operations: int) -> Prepared:
    # All go into one bucket of a high level, which cascades soon after the last one, and long before their deadlines.
    loop = asyncio.get_running_loop()
    unit = 8.0 if operations > 200_000 else 0.4
    expected = 4e-6 * operations
    while True:
        start = (int((loop.time() + expected) / unit) + 2) * unit
        watched = []
        for n in range(operations):
            timeout = max(0.0, start + unit * (0.7 + 0.2 * n / operations) - loop.time())
            watched.append(held.try_complete_else_watch(Waiting(timeout), ["key"]))
        if loop.time() < start:
            break
        for operation in watched:  # a busy machine took longer
            operation.cancel()
        expected *= 2
    cascaded = held.timer.statistics().cascaded
    return lambda: None, lambda: held.timer.statistics().cascaded >= cascaded + operations


async def _purge(held: DelayedOperationPurgatory, operations: int) -> Prepared:
    for operation in _watch(held, [None] * operations, lambda _: False):
        operation.force_complete()
    held._owner.purge_interval = 1000
    return held._owner._begin_purge, lambda: held.watched == 0


def _soon(ready: Callable[[int, int], bool]) -> "Callable[[DelayedOperationPurgatory, int], Awaitable[Prepared]]":
    async def prepare(held: DelayedOperationPurgatory, operations: int) -> Prepared:
        _watch(held, [None] * operations, lambda n: ready(n, operations))
        return lambda: held.check_and_complete_soon("key"), lambda: not held._queue._queue

    return prepare


async def _grow(held: DelayedOperationPurgatory, operations: int) -> Prepared:
    loop = asyncio.get_running_loop()
    _watch(held, [3600.0] * operations, lambda _: False)
    slice_ = min(vars(purgatory._loop.slices)["SLICE"], operations // 2)

    def come() -> None:
        for _ in range(slice_):
            held.try_complete_else_watch(Waiting(3600.0), ["key"])
        if held.num_delayed < operations * 3 // 2:
            loop.call_soon(come)

    return lambda: loop.call_soon(come), lambda: held.num_delayed >= operations * 3 // 2


WORK: "dict[str, Callable[[DelayedOperationPurgatory, int], Awaitable[Prepared]]]" = {
    "expire in one tick": _expire,
    "cascade from one bucket": _cascade,
    "purge of dead entries": _purge,
    "check soon, none completes": _soon(lambda n, operations: False),
    "check soon, one completes": _soon(lambda n, operations: n == operations // 2),
    "check soon, all complete": _soon(lambda n, operations: True),
    "half as many again come": _grow,
}


async def _measure(work: str, operations: int, collector: str) -> str:
    gc.disable()
    held = DelayedOperationPurgatory(purge_interval=10 * operations)
    begin, done = await WORK[work](held, operations)
    gc.collect()
    if collector == "tuned":
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
    if collector != "off":
        gc.enable()
    heartbeat = Heartbeat()
    begin()
    await heartbeat.until(done)
    gc.disable()
    part = heartbeat.collecting / heartbeat.longest
    return f"{1e3 * heartbeat.longest:.1f} ms" + (f" ({part:.0%} collecting)" if part > 0.01 else "")


def measure(work: str, operations: int, collector: str, in_one_go: bool) -> str:
    """Do `work` in this process. Returns the longest iteration, and the part of it that was garbage collection."""
    if in_one_go:
        for module, name in (
            (purgatory._loop.slices, "SLICE"),
            (purgatory._loop.slices, "SLICE_SECONDS"),
            (purgatory._core.owner, "SLICE"),
            (purgatory._timer.timer, "SLICE_SECONDS"),
            (purgatory._core.watchers, "_SHORT"),
            (purgatory._timer.timer, "_LONG"),
        ):
            vars(module)[name] = 2**60
    return asyncio.run(_measure(work, operations, collector))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.stalls", description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", type=int, default=OPERATIONS, help="how many (1000000)")
    operations = parser.parse_args().operations
    _write(f"the longest turn of the loop with {operations:,} operations\n")
    _write("| work | garbage collector | in slices | in one go |")
    _write("| --- | --- | --- | --- |")
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for work, collector in product(WORK, COLLECTORS):
            results = [processes.submit(measure, work, operations, collector, way).result() for way in (False, True)]
            _write(f"| {' | '.join([work, collector, *results])} |")


def _write(line: str) -> None:
    # Each line appears as soon as it is measured, also in a file: all of them take minutes.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
