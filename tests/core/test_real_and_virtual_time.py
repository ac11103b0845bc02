"""The same traffic in virtual time and on a real loop: every operation ends alike."""

import asyncio
import math
import random
from typing import NamedTuple

from purgatory import Delay, DelayedOperationPurgatory, FinishedOperation, VirtualClock

TICK = 0.005
TIMEOUT = 0.15


class Plan(NamedTuple):
    """What becomes of an operation, unless its deadline comes first."""

    arrives: float
    ends: float
    """Seconds after its arrival."""
    is_cancelled: bool


def plans() -> list[Plan]:
    draw = random.Random(3)
    drawn = []
    for number in range(300):
        ends = draw.choice([0.02, 0.05, 0.3, 0.4, math.inf]) + draw.random() * 0.02
        drawn.append(Plan(number * 0.003, ends, draw.random() < 0.3))
    return drawn


def end(operation: Delay, plan: Plan) -> None:
    if plan.is_cancelled:
        operation.cancel()
    else:
        operation.force_complete()


def in_virtual_time(planned: list[Plan]) -> dict[object, FinishedOperation]:
    found: dict[object, FinishedOperation] = {}
    clock = VirtualClock()
    purgatory = DelayedOperationPurgatory(clock=clock, tick=TICK)
    purgatory.add_listener(lambda finished: found.__setitem__(finished.keys[0], finished))

    def arrive(number: int, plan: Plan) -> None:
        operation = purgatory.try_complete_else_watch(Delay(TIMEOUT), [number])
        if plan.ends < math.inf:
            clock.call_at(clock.time() + plan.ends, end, operation, plan)

    for number, plan in enumerate(planned):
        clock.call_at(plan.arrives, arrive, number, plan)
    clock.advance(10.0)
    return found


async def test_a_program_on_a_real_loop_has_the_outcomes_of_virtual_time() -> None:
    """Only the loop's lag may differ: no operation is planned to end within 80 ms of its deadline."""
    planned = plans()
    loop = asyncio.get_running_loop()
    began = loop.time()
    live: dict[object, FinishedOperation] = {}
    lag = 0.0

    async def until(when: float) -> None:
        nonlocal lag
        await asyncio.sleep(began + when - loop.time())
        lag = max(lag, loop.time() - began - when)

    async def end_later(operation: Delay, plan: Plan) -> None:
        await until(plan.arrives + plan.ends)
        end(operation, plan)

    async with DelayedOperationPurgatory(tick=TICK) as purgatory:
        purgatory.add_listener(lambda finished: live.__setitem__(finished.keys[0], finished))
        operations = []
        async with asyncio.TaskGroup() as tasks:
            for number, plan in enumerate(planned):
                await until(plan.arrives)
                operation = purgatory.try_complete_else_watch(Delay(TIMEOUT), [number])
                operations.append(operation)
                if plan.ends < math.inf:
                    tasks.create_task(end_later(operation, plan))
        await asyncio.gather(*operations, return_exceptions=True)
    virtual = in_virtual_time(planned)
    assert sum(each.outcome == "expired" for each in virtual.values()) > 50
    for number, plan in enumerate(planned):
        one, other = live[number], virtual[number]
        if abs(plan.ends - TIMEOUT) > lag + TICK:
            assert one.outcome == other.outcome
            if one.outcome == "expired":
                assert one.waited > TIMEOUT - 1e-6, "however late, but for what a float rounds"
            else:
                assert abs(one.waited - other.waited) <= 2 * lag
