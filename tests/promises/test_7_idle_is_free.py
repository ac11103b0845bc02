"""Promise 7: with nothing due there are no wake-ups, no polling reaper and no background task."""

import asyncio

from purgatory import DelayedOperationPurgatory
from tests.operations import FaultLog, Flag, turn


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
    # One for each level on the way down and one for each slice of a thousand, not one for each of 3.6 million ticks.
    assert purgatory.timer.statistics().wake_ups <= 6 + 6 * 11


def test_without_deadlines_nothing_is_armed_at_all(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    for _ in range(100):
        purgatory.try_complete_else_watch(Flag(None), ["key"])
    clock.advance(1e6)
    assert clock.armed == []


def test_after_everything_has_completed_the_clock_is_left_alone(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    for n in range(100):
        purgatory.try_complete_else_watch(Flag(1.0 + n), ["key"]).force_complete()
    clock.advance(1000.0)
    assert purgatory.timer.statistics().wake_ups <= 1
    assert "scheduled=0" in repr(clock)


async def test_no_background_task() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        purgatory.try_complete_else_watch(Flag(3600.0), ["key"])
        await turn()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert purgatory.timer.statistics().wake_ups == 0
