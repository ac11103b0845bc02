"""asyncio's own timers on the wheels of `purgatory.loops`, beside the heaps of asyncio's loop and of uvloop.

A number of timers is pending. Then tasks enter and leave `asyncio.timeout`, which starts a timer and cancels it, and
others sleep a few milliseconds, whose timers run out. asyncio keeps a cancelled timer in its heap until more than half
of all timers are cancelled. The last figure is what that many cancelled ones hold, without a clean-up of the loop.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from random import Random
from typing import Final

import uvloop

from purgatory import loops
from purgatory.bench import machine
from purgatory.bench.case import LOOPS, OURS, Case, Figures, Metric, Plot, Scenario

__all__ = ["SCENARIO"]

FAR: Final = 3600.0
IN_A_TURN: Final = 100
"""The timeouts that are entered and left in one iteration of the loop."""
SLEEPERS: Final = 1000
SLEEPS: Final = 20
"""The sleeps of each task."""
OWN: Final = "the loop's own"

FACTORIES: Final[dict[tuple[str, str], Callable[[], asyncio.AbstractEventLoop]]] = {
    ("asyncio", OURS): loops.new_event_loop,
    ("asyncio", OWN): asyncio.SelectorEventLoop,
    ("uvloop", OURS): loops.new_uvloop,
    ("uvloop", OWN): uvloop.new_event_loop,
}


async def enter_and_leave(times: int) -> None:
    for _ in range(times // IN_A_TURN):
        for _ in range(IN_A_TURN):
            async with asyncio.timeout(FAR):  # noqa: ASYNC100 - its own cost is measured
                pass
        await asyncio.sleep(0)


async def sleep_often(random: Random) -> None:
    for _ in range(SLEEPS):
        await asyncio.sleep(random.uniform(0.001, 0.02))


async def run(case: Case) -> Figures:
    """Fill the loop with timers, then cancel some, enter and leave timeouts, and sleep."""
    loop = asyncio.get_running_loop()
    pending = case.parameters["pending"]
    random = Random(1)
    handles = [loop.call_later(FAR + random.uniform(0, 3600), int) for _ in range(pending)]
    gc.collect()
    gc.freeze()  # collections of the objects that exist already are not measured

    before = machine.memory()
    await enter_and_leave(pending * 9 // 10)  # fewer than half of all timers: no clean-up
    held = machine.memory() - before

    times = max(2 * pending, 20_000)  # an asyncio loop cleans its heap up at least once
    began = time.process_time()
    await enter_and_leave(times)
    entered = time.process_time() - began

    began = time.process_time()
    await asyncio.gather(*(sleep_often(random) for _ in range(SLEEPERS)))
    slept = time.process_time() - began
    assert len(handles) == pending
    return {"timeout": 1e6 * entered / times, "sleep": 1e6 * slept / (SLEEPERS * SLEEPS), "held": max(held, 0.0)}


def measure(case: Case) -> Figures:
    return FACTORIES[case.loop, case.implementation]().run_until_complete(run(case))


def cases(quick: bool) -> list[Case]:
    return [
        Case("timeouts", implementation, loop, {"pending": pending})
        for loop in LOOPS[: 1 if quick else 2]
        for pending in ((1_000,) if quick else (1_000, 100_000, 1_000_000))
        for implementation in (OURS, OWN)
    ]


SCENARIO = Scenario(
    name="timeouts",
    title="asyncio's timeouts and sleeps, with others pending",
    cases=cases,
    measure=measure,
    metrics=(
        Metric("timeout", "CPU of an asyncio.timeout entered and left", "µs", compared=True),
        Metric("sleep", "CPU of an asyncio.sleep that runs out", "µs", compared=True),
        Metric("held", "memory that cancelled timers hold", "MiB"),
    ),
    plots=(Plot("cpu", metric="timeout", x="pending"), Plot("memory", metric="held", x="pending")),
)
