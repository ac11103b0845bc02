"""The cost of a short operation beside idle ones: its own work, and its share of purging.

Short operations are handed over and completed at once, twenty in an iteration of the loop: half of them by a check of
their key, the other half by `force_complete`, each on a key that was never used before. The idle ones are watched on
keys of their own, and never checked. A measurement lasts from one purge to another: the share of purging is that of
whole cycles, however rarely they come. Each run does the same without any idle operation first, so that the ratio is of
two figures of one process.

Garbage collections of the idle ones are not measured here, but in the scenario `memory`: the idle ones are frozen.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import count
from typing import Any, Final

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.bench import machine
from purgatory.bench.case import OURS, Case, Figures, Metric, Plot, Scenario
from purgatory.bench.rivals import CallLaterPurgatory, HeapPurgatory, Request

LONG: Final = 3600.0
SHORT: Final = 30.0
CHECKED: Final = [f"key-{number}" for number in range(10)]
"""Keys that are checked once an iteration. As many operations more are on keys of their own."""

A_TURN: Final = 2 * len(CHECKED)


class Ours(DelayedOperation[None]):
    __slots__ = ("ready",)

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.ready: bool = False

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing."""


class Rival(Request):
    __slots__ = ("ready",)

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.ready: bool = False

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing."""

    def on_expiration(self) -> None:
        """Do nothing."""


class Implementation:
    """The functions that make, watch and check operations, and count purges."""

    def __init__(
        self,
        make: Callable[[float], Any],
        watch: Callable[[Any, Iterable[Hashable]], object],
        check: Callable[[Hashable], object],
        purges: Callable[[], int],
    ) -> None:
        self.make = make
        self.watch = watch
        self.check = check
        self.purges = purges

    def turn(self, unused: Iterator[int]) -> None:
        """Hand over twenty short operations, and complete them."""
        make, watch, check = self.make, self.watch, self.check
        checked = [make(SHORT) for _ in CHECKED]
        forced = [make(SHORT) for _ in CHECKED]
        for operation, key in zip(checked, CHECKED, strict=True):
            watch(operation, (key,))
        for operation in forced:
            watch(operation, (next(unused),))
        for operation, key in zip(checked, CHECKED, strict=True):
            operation.ready = True
            check(key)
        for operation in forced:
            operation.force_complete()


def ours() -> Implementation:
    purgatory = DelayedOperationPurgatory()
    watch, check = purgatory.try_complete_else_watch, purgatory.check_and_complete
    return Implementation(Ours, watch, check, lambda: purgatory.statistics().purges)


def _rival(purgatory: HeapPurgatory | CallLaterPurgatory) -> Implementation:
    watch, check = purgatory.try_complete_else_watch, purgatory.check_and_complete
    return Implementation(Rival, watch, check, lambda: purgatory.purges)


IMPLEMENTATIONS: "Final[dict[str, Callable[[], Implementation]]]" = {
    OURS: ours,
    "old design (heap)": lambda: _rival(HeapPurgatory(asyncio.get_running_loop())),
    "call_later": lambda: _rival(CallLaterPurgatory(asyncio.get_running_loop())),
}


async def cost(implementation: Implementation, idle: int, seconds: float) -> tuple[float, float]:
    """CPU of a short operation, and the longest iteration, both in seconds, over at least `seconds` of CPU."""
    unused = count()
    for number in range(idle):
        implementation.watch(implementation.make(LONG), (next(unused),))
        if number % 1000 == 0:
            await asyncio.sleep(0)
    gc.collect()
    gc.freeze()  # collections of the objects that exist already are not measured
    purges = implementation.purges()
    began: float | None = None
    turns = since_purge = 0
    longest = 0.0
    last = time.perf_counter()
    while since_purge < 50_000 + idle // 2:  # several times the iterations until more entries are dead than living
        implementation.turn(unused)
        await asyncio.sleep(0)
        turns += 1
        since_purge += 1
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
        if implementation.purges() != purges:
            purges = implementation.purges()
            since_purge = 0
            used = time.process_time()
            if began is None:
                began, turns, longest = used, 0, 0.0
            elif used - began >= seconds:
                return (used - began) / (turns * A_TURN), longest
    raise RuntimeError(f"no purge in {since_purge * A_TURN:,} operations")


async def run(case: Case) -> Figures:
    """Measure without idle operations, then with them."""
    idle, seconds = case.parameters["idle"], case.parameters["seconds"]
    make = IMPLEMENTATIONS[case.implementation]
    alone, _ = await cost(make(), 0, seconds)
    beside, longest = await cost(make(), idle, seconds)
    return {"us": 1e6 * beside, "times": beside / alone, "turn_ms": 1e3 * longest}


def measure(case: Case) -> Figures:
    return machine.run(case.loop, run(case))


def cases(quick: bool) -> list[Case]:
    return [
        Case("idle", implementation, "asyncio", {"idle": idle, "seconds": 0.1 if quick else 1})
        for idle in ((0, 10_000) if quick else (0, 10_000, 1_000_000))
        for implementation in IMPLEMENTATIONS
    ]


SCENARIO = Scenario(
    name="idle",
    title="A short operation beside idle ones",
    cases=cases,
    measure=measure,
    metrics=(
        Metric("us", "CPU of a short operation, purging included", "µs", compared=True),
        Metric("times", "times that without idle ones", ""),
        Metric("turn_ms", "longest turn of the loop", "ms"),
    ),
    plots=(Plot("cost", metric="us", panel="idle"),),
)
