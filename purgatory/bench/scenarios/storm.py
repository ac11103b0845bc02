"""Very many operations that are due in one tick: their lateness, and the longest iteration of the loop."""

import asyncio
import gc
from array import array
from collections.abc import Callable
from typing import Final

from purgatory import DelayedOperationPurgatory
from purgatory.bench.case import OURS, Case, Figures, Metric, Scenario
from purgatory.bench.machine import Heartbeat
from purgatory.bench.scenarios.pending import IMPLEMENTATIONS, EventWaiters, Operation

PROBE: Final = 2_000
"""The number of operations that are started first, with a far deadline, to measure the time of a start."""


class Storm:
    """The deadline of all operations, and the lateness of each."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.time: Callable[[], float] = loop.time
        self.deadline = deadline
        self.late: array[float] = array("d")

    def note(self) -> None:
        """Note the lateness of an operation that runs now."""
        self.late.append(self.time() - self.deadline)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - self.time()

    async def start(self, implementation: str, count: int) -> None:
        """Start so many operations."""
        watch = DelayedOperationPurgatory().try_complete_else_watch
        call_later = asyncio.get_running_loop().call_later
        wait = EventWaiters().start
        starts: dict[str, Callable[[], object]] = {
            OURS: lambda: watch(Due(self), ("key",)),
            "call_later": lambda: call_later(self.left(), self.note),
            "Event + timeout": lambda: wait(self.left(), lambda _: self.note()),
        }
        start = starts[implementation]
        for number in range(count):
            start()
            if number % 1000 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)


class Due(Operation):
    __slots__ = ("storm",)

    def __init__(self, storm: Storm) -> None:
        super().__init__(storm.left())
        self.storm: Storm = storm

    def on_complete(self) -> None:
        self.storm.note()


async def run(case: Case) -> Figures:
    """Start all operations, wait for the tick, and measure."""
    count = case.parameters["due"]
    loop = asyncio.get_running_loop()
    gc.disable()
    began = loop.time()
    await Storm(loop, began + 3600).start(case.implementation, PROBE)
    each = (loop.time() - began) / PROBE
    storm = Storm(loop, loop.time() + 2.0 + 5 * count * each)  # a busy machine is slower at times
    await storm.start(case.implementation, count)
    gc.collect()
    gc.freeze()  # collections of the objects that exist already are not measured
    gc.enable()
    if storm.left() < 0.05:
        raise RuntimeError(f"this machine is too slow to start {count:,} operations before the first is due")
    await asyncio.sleep(storm.left() - 0.02)
    heartbeat = Heartbeat()
    await heartbeat.until(lambda: len(storm.late) == count)
    late = sorted(storm.late)
    return {
        "stall_ms": 1e3 * heartbeat.longest,
        "late_50_ms": 1e3 * late[count // 2],
        "late_99_ms": 1e3 * late[count * 99 // 100],
        "late_max_ms": 1e3 * late[-1],
        "early": sum(each < 0 for each in late),
    }


SCENARIO = Scenario(
    name="storm",
    title="Expiry storm: all due in one tick",
    implementations=IMPLEMENTATIONS,
    full=[{"due": 1_000_000}],
    quick=[{"due": 20_000}],
    main=run,
    metrics=(
        Metric("stall_ms", "longest turn of the loop", "ms", compared=True),
        Metric("late_50_ms", "late, median", "ms"),
        Metric("late_99_ms", "late, 99 %", "ms"),
        Metric("late_max_ms", "late, at most", "ms"),
        Metric("early", "called early", ""),
    ),
)
