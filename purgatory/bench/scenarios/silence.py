"""The search for the silent members among many with regular signs of life: idle connections, heartbeats, sessions.

A member is silent after three seconds without a touch. Connections are touched thirty times in that time, members that
send heartbeats three times, all of them together a hundred thousand times a second. The figure is the CPU time of the
process over eight seconds, the timer's or the scan's part included, divided by the number of touches.

Ours are a tracker, which notes the time of a touch, and an operation that is rescheduled at each touch. The usual
alternative cancels a `loop.call_later` at each touch and sets a new one; the cancelled ones stay in the loop's heap
until there are enough of them. The other one notes the time and looks at all members now and then; it finds the silent
ones late by a thirtieth of the timeout, or a third, and ours by a hundredth.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from purgatory import DelayedOperationPurgatory, IdleTracker
from purgatory.bench import machine
from purgatory.bench.case import ALONE, LOOPS, OURS, Case, Figures, Metric, Plot, Scenario
from purgatory.bench.scenarios.paths import KEYS, Operation

TIMEOUT: Final = 3.0
PAUSE: Final = 0.01

Touch = Callable[[int], object]


def _nothing(_: int) -> None:
    pass


def ours(members: int, pause: float) -> Touch:
    return IdleTracker(TIMEOUT, _nothing).touch


def reschedule(members: int, pause: float) -> Touch:
    watch = DelayedOperationPurgatory().try_complete_else_watch
    operations = [watch(Operation(TIMEOUT), KEYS) for _ in range(members)]
    return lambda member: operations[member].reschedule(TIMEOUT)


def call_later(members: int, pause: float) -> Touch:
    set_timer = asyncio.get_running_loop().call_later
    handles = [set_timer(TIMEOUT, _nothing, member) for member in range(members)]

    def touch(member: int) -> None:
        handles[member].cancel()
        handles[member] = set_timer(TIMEOUT, _nothing, member)

    return touch


def scan(members: int, pause: float) -> Touch:
    """Look at all members as often as one is touched: for 100,000 connections and 30 seconds, every second."""
    loop = asyncio.get_running_loop()
    now = loop.time
    seen: dict[int, float] = {}

    def look() -> None:
        silent_since = now() - TIMEOUT
        for member in [member for member, when in seen.items() if when <= silent_since]:
            del seen[member]
        loop.call_later(pause, look)

    look()

    def touch(member: int) -> None:
        seen[member] = now()

    return touch


IMPLEMENTATIONS: Final[dict[str, Callable[[int, float], Touch]]] = {
    OURS: ours,
    f"{OURS}, reschedule": reschedule,
    "call_later": call_later,
    "scan": scan,
    ALONE: lambda *_: _nothing,
}


async def run(case: Case) -> Figures:
    """Touch all members, one after the other, again and again."""
    members, beats, seconds = (case.parameters[name] for name in ("members", "beats", "seconds"))
    touch = IMPLEMENTATIONS[case.implementation](members, TIMEOUT / beats)
    rate = members * beats / TIMEOUT
    for member in range(members):
        touch(member)
    loop = asyncio.get_running_loop()
    touched = 0
    late = 0.0
    cpu = time.process_time()
    began = back = loop.time()
    while (passed := back - began) < seconds:
        due = int(passed * rate)
        for number in range(touched, due):
            touch(number % members)
        touched = due
        left = loop.time()
        await asyncio.sleep(PAUSE)
        back = loop.time()
        late = max(late, back - left - PAUSE)
    return {"ns": 1e9 * (time.process_time() - cpu) / touched, "late_ms": 1e3 * late}


def measure(case: Case) -> Figures:
    return machine.run(case.loop, run(case))


def cases(quick: bool) -> list[Case]:
    return [
        Case("silence", implementation, loop, {"members": members, "beats": beats, "seconds": 1 if quick else 8})
        for loop in LOOPS[: 1 if quick else 2]
        for members, beats in (((10_000, 30),) if quick else ((10_000, 30), (100_000, 3)))
        for implementation in IMPLEMENTATIONS
    ]


SCENARIO = Scenario(
    name="silence",
    title="Find out which keys are silent",
    cases=cases,
    measure=measure,
    metrics=(
        Metric("ns", "CPU each time that one is heard of", "ns", compared=True),
        Metric("late_ms", "longest time for which the loop is held up", "ms"),
    ),
    plots=(Plot("cpu", metric="ns", panel="members"),),
)
