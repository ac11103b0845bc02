"""The memory of a pending operation, and the time of a full garbage collection while many are pending."""

import asyncio
import gc
import time
from statistics import median
from typing import Any, Final

import psutil

from purgatory.bench.case import Case, Figures, Metric, Scenario
from purgatory.bench.rivals import PENDING

KEYS: Final = [(f"key-{number}",) for number in range(100)]
SLICE: Final = 1_000


async def run(case: Case) -> Figures:
    """Start the operations of the case, with one key each, and measure while they are pending."""
    start = PENDING[case.implementation][0]()
    pending = case.parameters["pending"]
    started: list[Any] = [None] * pending
    await asyncio.sleep(0)
    gc.collect()
    gc.disable()
    process = psutil.Process()
    before = process.memory_info().rss
    for number in range(0, pending, SLICE):
        started[number : number + SLICE] = start(SLICE, KEYS[number // SLICE % len(KEYS)])
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    held = process.memory_info().rss - before
    collections = []
    for _ in range(3):
        began = time.perf_counter()
        gc.collect()
        collections.append(time.perf_counter() - began)
    return {"bytes": held / pending, "collection_ms": 1e3 * median(collections)}


SCENARIO = Scenario(
    name="memory",
    title="Memory of a pending operation, and the time of a full garbage collection",
    implementations=PENDING,
    full=[{"pending": 100_000}, {"pending": 1_000_000}],
    quick=[{"pending": 20_000}],
    main=run,
    loops=("asyncio",),
    metrics=(
        Metric("bytes", "memory of a pending operation", "B", compared=True),
        Metric("collection_ms", "full collection", "ms", compared=True),
    ),
)
