"""Many tasks wait on one key, and an event satisfies one of them, one in a hundred, or all.

Each waiter is a task that waits for an offset in a log; a publisher moves the log's end. The usual alternatives have
one `asyncio.Condition` for all: every change wakes every waiter, which tests its condition and
waits again. The careful alternative is a list of offsets with a future each. All of these wait without a deadline,
which is to their advantage; ours have one of an hour.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Final

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.bench.case import OURS, Case, Figures, Metric, Scenario
from purgatory.bench.machine import Heartbeat

KEY: Final = ("log",)


class Log:
    """The end of a log, the number of waiters that ran, and the time of the last one."""

    def __init__(self) -> None:
        self.end = 0
        self.ran: int = 0
        self.last: float = 0.0

    def run(self) -> None:
        """Note that a waiter ran."""
        self.ran += 1
        self.last = time.perf_counter()


class Fetch(DelayedOperation[None]):
    __slots__ = ("log", "offset")

    def __init__(self, log: Log, offset: int) -> None:
        super().__init__(3600.0)
        self.log: Log = log
        self.offset: int = offset

    def try_complete(self) -> bool:
        return self.log.end > self.offset and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the waiter runs."""


Wait = Callable[[int], Awaitable[None]]
Publish = Callable[[], Awaitable[None]]


def ours(log: Log, *, soon: bool) -> tuple[Wait, Publish]:
    purgatory = DelayedOperationPurgatory()

    async def wait(offset: int) -> None:
        await purgatory.try_complete_else_watch(Fetch(log, offset), KEY)

    check = purgatory.check_and_complete_soon if soon else purgatory.check_and_complete

    async def publish() -> None:
        check(KEY[0])

    return wait, publish


def condition(log: Log) -> tuple[Wait, Publish]:
    changed = asyncio.Condition()

    async def wait(offset: int) -> None:
        async with changed:
            await changed.wait_for(lambda: log.end > offset)

    async def publish() -> None:
        async with changed:
            changed.notify_all()

    return wait, publish


def futures(log: Log) -> tuple[Wait, Publish]:
    waiting: list[tuple[int, asyncio.Future[None]]] = []
    create_future = asyncio.get_running_loop().create_future

    async def wait(offset: int) -> None:
        if log.end <= offset:
            future = create_future()
            waiting.append((offset, future))
            await future

    async def publish() -> None:
        end = log.end
        still = []
        for each in waiting:
            if end > each[0]:
                each[1].set_result(None)
            else:
                still.append(each)
        waiting[:] = still

    return wait, publish


IMPLEMENTATIONS: "Final[dict[str, Callable[[Log], tuple[Wait, Publish]]]]" = {
    OURS: lambda log: ours(log, soon=False),
    f"{OURS}, soon": lambda log: ours(log, soon=True),
    "Condition": condition,
    "list of futures": futures,
}


async def run(case: Case) -> Figures:
    """Let all tasks wait, publish, and measure until the satisfied ones have run."""
    waiters = case.parameters["waiters"]
    right = {"one": 1, "1 %": waiters // 100, "all": waiters}[case.parameters["satisfied"]]
    log = Log()
    wait, publish = IMPLEMENTATIONS[case.implementation](log)

    async def waiter(offset: int) -> None:
        await wait(offset)
        log.run()

    # The satisfied tasks are spread evenly over all; a single one is in the middle.
    stride = waiters // right
    offsets = [n // stride if n % stride == stride // 2 else waiters for n in range(waiters)]
    tasks = [asyncio.create_task(waiter(offset)) for offset in offsets]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    gc.collect()
    gc.freeze()  # collections of the objects that exist already are not measured
    heartbeat = Heartbeat()
    beating = asyncio.create_task(heartbeat.until(lambda: log.ran >= right))
    await asyncio.sleep(0)
    log.end = right
    began = time.perf_counter()
    await publish()
    await beating
    return {"ms": 1e3 * (log.last - began), "stall_ms": 1e3 * heartbeat.longest}


SCENARIO = Scenario(
    name="wakeup",
    title="Selective wake-up",
    implementations=IMPLEMENTATIONS,
    full=[{"satisfied": satisfied, "waiters": 100_000} for satisfied in ("one", "1 %", "all")],
    quick=[{"satisfied": satisfied, "waiters": 10_000} for satisfied in ("one", "1 %", "all")],
    main=run,
    metrics=(
        Metric("ms", "until the right ones have run", "ms", compared=True),
        Metric("stall_ms", "longest turn of the loop", "ms"),
    ),
)
