"""A value grows past the threshold of one of many waiters: the blocking query of Consul and etcd.

Each waiter is a task with a threshold of its own; the value grows by one, past the lowest of them, again and again. The
usual alternative, an `asyncio.Condition`, wakes all of them every time. A purgatory with one key for all tries all of
them. The careful alternative without deadlines is a heap of thresholds with a future each.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from typing import Final

from purgatory import ThresholdPurgatory
from purgatory.bench import machine
from purgatory.bench.case import LOOPS, OURS, Case, Figures, Metric, Plot, Scenario
from purgatory.bench.scenarios.wakeup import Log, condition
from purgatory.bench.scenarios.wakeup import ours as one_key

TIMEOUT: Final = 3600.0

Wait = Callable[[int], Awaitable[object]]
Advance = Callable[[int], Awaitable[object]]


def ours(log: Log) -> tuple[Wait, Advance]:
    index = ThresholdPurgatory(0)

    async def advance(value: int) -> None:
        index.advance(value)

    return lambda threshold: index.reach(threshold, TIMEOUT), advance


def _published(log: Log, made: tuple[Wait, Callable[[], Awaitable[None]]]) -> tuple[Wait, Advance]:
    wait, publish = made

    async def advance(value: int) -> None:
        log.end = value
        await publish()

    return wait, advance


def futures(log: Log) -> tuple[Wait, Advance]:
    """A heap of futures, in the order of thresholds, then of arrival."""
    heap: list[tuple[int, int, asyncio.Future[None]]] = []
    create_future = asyncio.get_running_loop().create_future

    async def wait(threshold: int) -> None:
        future = create_future()
        heappush(heap, (threshold, len(heap), future))
        await future

    async def advance(value: int) -> None:
        while heap and heap[0][0] < value:
            heappop(heap)[2].set_result(None)

    return wait, advance


IMPLEMENTATIONS: "Final[dict[str, Callable[[Log], tuple[Wait, Advance]]]]" = {
    OURS: ours,
    "one key for all": lambda log: _published(log, one_key(log, soon=False)),
    "Condition": lambda log: _published(log, condition(log)),
    "heap of futures": futures,
}


async def run(case: Case) -> Figures:
    """Let all tasks wait, and advance."""
    waiters, times = case.parameters["waiters"], case.parameters["times"]
    log = Log()
    wait, advance = IMPLEMENTATIONS[case.implementation](log)

    async def waiter(threshold: int) -> None:
        await wait(threshold)
        log.run()

    tasks = [asyncio.create_task(waiter(threshold)) for threshold in range(waiters)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    gc.collect()
    gc.freeze()  # collections of the objects that exist already are not measured
    took = 0.0
    for value in range(1, times + 1):
        began = time.perf_counter()
        await advance(value)
        while log.ran < value:
            await asyncio.sleep(0)
        took += log.last - began
    assert log.ran == times
    return {"us": 1e6 * took / times}


def measure(case: Case) -> Figures:
    return machine.run(case.loop, run(case))


def cases(quick: bool) -> list[Case]:
    return [
        Case("threshold", implementation, loop, {"waiters": waiters, "times": 10 if quick else 20})
        for loop in LOOPS[: 1 if quick else 2]
        for waiters in ((1_000, 10_000) if quick else (1_000, 10_000, 100_000))
        for implementation in IMPLEMENTATIONS
    ]


SCENARIO = Scenario(
    name="threshold",
    title="Advance past the threshold of one of many",
    cases=cases,
    measure=measure,
    metrics=(Metric("us", "until the right one has run", "µs", compared=True),),
    plots=(Plot("time", metric="us", x="waiters", log_y=True),),
)
