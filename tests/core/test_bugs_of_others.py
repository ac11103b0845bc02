"""Bugs of other purgatories, timers, event loops and servers, which must not be here."""

import asyncio
from collections.abc import Callable

import pytest

from purgatory import DelayedOperationPurgatory, WheelTimer
from tests.support.invariants import check_purgatory, check_timer
from tests.support.operations import FaultLog, Flag, Note, turn


class TestASharedTimer:
    """SystemTimerReaperTest.testSharedTimerBetweenConsumers: when one of them stops, the others' deadlines come."""

    @pytest.mark.parametrize("way", [DelayedOperationPurgatory.close, DelayedOperationPurgatory.cancel_all])
    @pytest.mark.parametrize("when", [0.5, 2.0], ids=["before they are due", "as they are due"])
    def test_closing_a_purgatory_leaves_the_deadlines_of_others(
        self, clock: FaultLog, way: Callable[[DelayedOperationPurgatory], object], when: float
    ) -> None:
        shared = WheelTimer(clock)
        closing, lasting = (DelayedOperationPurgatory(clock=shared) for _ in range(2))
        note = Note(clock)
        shared.call_at(when, way, closing)
        ended, others = (
            [purgatory.try_complete_else_watch(Flag(timeout), ["key"]) for timeout in (2.0, 2.0, 50.0)]
            for purgatory in (closing, lasting)
        )
        shared.add(note, 2.0)
        clock.advance(2.0)
        assert {each.outcome for each in ended} <= {"closed", "cancelled"}
        assert [each.outcome for each in others] == ["expired", "expired", None]
        assert note.ran == [2.0]
        late = lasting.try_complete_else_watch(Flag(5.0), ["key"])
        clock.advance(5.0)
        assert late.expired()
        clock.advance(43.0)
        assert others[2].expired()
        assert len(shared) == 0
        check_timer(shared)
        check_purgatory(lasting)


def test_cancelled_tasks_do_not_hold_up_one_that_is_due(clock: FaultLog) -> None:
    """netty #15760: a tick began with all cancellations since the last one, and what was due waited for them."""
    timer = WheelTimer(clock)
    due = Note(clock)
    cancelled = [Note(clock) for _ in range(20_000)]
    timer.add(due, 1.0)
    for n, note in enumerate(cancelled):  # in its bucket, in those before and behind it, and on all levels
        timer.add(note, (1.0, 1.0005, 0.0001 * n, 0.001 * n, 9.0 * n)[n % 5])
    for note in cancelled:
        timer.cancel(note)
    clock.advance(1.0)
    assert due.ran == [1.0]
    statistics = timer.statistics()
    # A slice has a thousand entries: those that were cancelled would take ten more of them.
    assert statistics.wake_ups <= 5
    assert statistics.cascaded <= 3, "`due` alone, by a level at a time"
    assert statistics.tasks == 0


class TestTheLoopsOwnHeap:
    """aiohttp #8608: cancelled timers piled up in the event loop's heap until their time came."""

    @pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop's timers leave when they are cancelled
    async def test_heap_stays_small_while_each_operation_arms_earlier_and_is_cancelled(self) -> None:
        loop = asyncio.get_running_loop()
        async with DelayedOperationPurgatory() as purgatory:
            largest = 0
            for n in range(5_000):
                # Each operation is due before all others, so the wake-up moves every time; it is cancelled at once.
                operation = Flag(3600.0 - n / 10)
                purgatory.try_complete_else_watch(operation, ["key"])
                operation.cancel()
                largest = max(largest, len(vars(loop)["_scheduled"]))
                if n % 100 == 0:
                    await turn()
            # The loop removes cancelled handles when they are more than half, and more than a hundred.
            assert largest <= 300


@pytest.mark.parametrize("days", [0, 194, 200, 4000, 36_500])
@pytest.mark.parametrize("ticks", [1000, 1_000_000])
def test_what_is_due_at_the_very_time_runs_after_months_of_uptime(days: int, ticks: int) -> None:
    """CPython #145703: after 194 days the time plus its resolution was the time, and what was due then did not run."""
    clock = FaultLog(days * 86_400.0 + 0.123)
    timer = WheelTimer(clock, tick=1 / ticks)
    now = int(clock.time() * ticks)
    for n in range(1, 100):
        note = Note(clock)
        when = (now + n * n) / ticks
        timer.add(note, when)
        clock.advance_to(when)
        assert note.ran == [when]
    assert timer.statistics().tasks == 0
    check_timer(timer)
