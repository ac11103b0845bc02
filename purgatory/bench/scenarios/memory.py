"""The memory of a pending operation, and the time of a full garbage collection while many are pending."""

import asyncio
import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from purgatory import DelayedOperationPurgatory
from purgatory.bench import machine
from purgatory.bench.case import OURS, Case, Figures, Metric, Scenario
from purgatory.bench.rivals import Call, CallLaterPurgatory, EventWaiters, Operation

TIMEOUT: Final = 3600.0
KEYS: Final = [(f"key-{number}",) for number in range(100)]


Start = Callable[[tuple[str, ...]], object]


def ours() -> Start:
    watch = DelayedOperationPurgatory().try_complete_else_watch
    return lambda keys: watch(Operation(TIMEOUT), keys)


def _call_later() -> Start:
    watch = CallLaterPurgatory(asyncio.get_running_loop()).try_complete_else_watch
    return lambda keys: watch(Call(TIMEOUT), keys)


def _event() -> Start:
    start = EventWaiters().start
    return lambda keys: start(keys, TIMEOUT, id)


IMPLEMENTATIONS: "Final[dict[str, Callable[[], Start]]]" = {
    OURS: ours,
    "call_later": _call_later,
    "Event + timeout": _event,
}


async def run(case: Case) -> Figures:
    """Start the operations of the case, with one key each, and measure while they are pending."""
    start = IMPLEMENTATIONS[case.implementation]()
    pending = case.parameters["pending"]
    started: list[Any] = [None] * pending
    await asyncio.sleep(0)
    gc.collect()
    gc.disable()
    before = machine.memory()
    for number in range(pending):
        started[number] = start(KEYS[number % len(KEYS)])
        if number % 1000 == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    held = machine.memory() - before
    collections = []
    for _ in range(3):
        began = time.perf_counter()
        gc.collect()
        collections.append(time.perf_counter() - began)
    return {"bytes": held * machine.MIB / pending, "collection_ms": 1e3 * median(collections)}


SCENARIO = Scenario(
    name="memory",
    title="Memory of a pending operation, and the time of a full garbage collection",
    implementations=IMPLEMENTATIONS,
    full=[{"pending": 100_000}, {"pending": 1_000_000}],
    quick=[{"pending": 20_000}],
    main=run,
    loops=("asyncio",),
    metrics=(
        Metric("bytes", "memory of a pending operation", "B", compared=True),
        Metric("collection_ms", "full collection", "ms", compared=True),
    ),
)
