"""Promise 7: with nothing due there are no wake-ups, no polling reaper and no background task."""

import asyncio
import gc
import selectors

import pytest
import uvloop

from purgatory import DelayedOperationPurgatory
from tests.support.operations import FaultLog, Flag, turn


def test_operations_an_hour_away_arm_one_call_and_nothing_runs_till_then(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    for _ in range(10_000):
        purgatory.try_complete_else_watch(Flag(3600.0), ["key"])
    assert len(clock.armed) == 1
    clock.advance_to(clock.armed[0] - 0.001)
    assert purgatory.timer.statistics().wake_ups == 0
    assert len(clock.armed) == 1
    clock.advance(3600.0)
    assert purgatory.num_delayed == 0
    # A wake-up is for a level on the way down or for a slice of a thousand, not for each of 3.6 million ticks.
    assert purgatory.timer.statistics().wake_ups <= 6 + 6 * 11


def test_operations_without_deadlines_arm_no_call(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    for _ in range(100):
        purgatory.try_complete_else_watch(Flag(None), ["key"])
    clock.advance(1e6)
    assert clock.armed == []


def test_completed_operations_leave_the_clock_alone(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    for n in range(100):
        purgatory.try_complete_else_watch(Flag(1.0 + n), ["key"]).force_complete()
    clock.advance(1000.0)
    assert purgatory.timer.statistics().wake_ups <= 1
    assert "scheduled=0" in repr(clock)


class CountingSelector(selectors.DefaultSelector):
    """Counts how often the loop wakes up."""

    selects = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.selects += 1
        return super().select(timeout)


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_distant_deadlines_wake_nothing_for_a_second(kind: str) -> None:
    selector = CountingSelector()

    def new_loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selector) if kind == "asyncio" else uvloop.new_event_loop()

    async def idle() -> None:
        loop = asyncio.get_running_loop()
        async with DelayedOperationPurgatory() as purgatory:
            for n in range(10_000):
                purgatory.try_complete_else_watch(Flag(3600.0), [n % 1000])
            gc.collect()
            await turn()
            selects = selector.selects
            await asyncio.wait({loop.create_future()}, timeout=1.0)
            selects = selector.selects - selects
            assert purgatory.timer.statistics().wake_ups == 0
            assert asyncio.all_tasks() == {asyncio.current_task()}
            # Only the end of this second wakes the loop; it may wake once more, for the rest.
            assert selects <= 3

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(idle())
