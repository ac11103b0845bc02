"""Bugs of other purgatories, timers, event loops and servers, which must not be here."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from purgatory import DelayedOperationPurgatory, WheelTimer
from tests.support.invariants import check_purgatory, check_timer
from tests.support.operations import FaultLog, Flag, Note, turn


@pytest.mark.parametrize("end", ["expires", "is forced", "is cancelled", "is checked"])
def test_the_end_of_an_operation_tries_no_other_one(clock: FaultLog, end: str) -> None:
    """KAFKA-20425: each share fetch that completed had the others of its partitions tried, even when nothing was there.

    A program checks a key when something has come for those that watch it.
    """
    purgatory = DelayedOperationPurgatory(purge_interval=0, clock=clock)
    operations = [purgatory.try_complete_else_watch(Flag(60.0), ["partition"]) for _ in range(100)]
    ending = [purgatory.try_complete_else_watch(Flag(n / 10), ["partition", n]) for n in range(1, 101)]
    for n, operation in enumerate(ending, start=1):
        match end:
            case "expires":
                clock.advance_to(n / 10)
            case "is forced":
                operation.force_complete()
            case "is cancelled":
                operation.cancel()
            case "is checked":
                operation.ready = True
                purgatory.check_and_complete(n)
        clock.advance(0)
        assert operation.done()
    assert {operation.tries for operation in operations} == {2}, "of the hand-over"
    assert {operation.tries for operation in ending} == {3 if end in ("expires", "is checked") else 2}
    check_purgatory(purgatory)


@pytest.mark.parametrize("method", ["try_complete", "on_complete", "on_expiration"])
async def test_a_thread_with_a_lock_may_ask_for_a_check_while_an_operation_waits_for_that_lock(method: str) -> None:
    """KAFKA-20505: a thread completed a future under a partition's lock, and that checked the purgatory.

    It waited for the lock of an operation, whose thread waited for that of the partition.
    """
    lock = threading.Lock()
    is_held, waits = threading.Event(), threading.Event()

    def check_under_the_lock() -> None:
        with lock:
            is_held.set()
            assert waits.wait(30)
            purgatory.check_and_complete_threadsafe("key")

    class Fetch(Flag):
        def try_complete(self) -> bool:
            self.visit("try_complete")
            return super().try_complete()

        def on_complete(self) -> str:
            self.visit("on_complete")
            return super().on_complete()

        def on_expiration(self) -> None:
            self.visit("on_expiration")

        def visit(self, name: str) -> None:
            if name == method and is_held.is_set():
                waits.set()
                assert lock.acquire(timeout=30)
                lock.release()

    async with DelayedOperationPurgatory() as purgatory:
        with ThreadPoolExecutor(1) as thread:
            fetch = purgatory.try_complete_else_watch(Fetch(3600.0), ["key"])
            checked = thread.submit(check_under_the_lock)
            assert is_held.wait(30)
            fetch.ready = method != "on_expiration"
            purgatory.check_and_complete_soon("key")
            if method == "on_expiration":
                fetch.reschedule(0.0)
            assert await fetch == "result of flag"
            checked.result(30)
        assert fetch.outcome == ("expired" if method == "on_expiration" else "satisfied")


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


class TestCancelledWhenDueButNotYetDrained:
    """tokio #3270: cancelling such a task in slot 0 of a level left the occupied slots wrong: a panic."""

    @pytest.mark.parametrize("level", [1, 2, 3])
    @pytest.mark.parametrize("slot", [0, 19])
    def test_each_slot_of_a_level_stays_consistent(self, level: int, slot: int) -> None:
        unit = 20 ** (level - 1)
        clock = FaultLog(unit + 1.0)  # the hand of the level has gone past slot 0
        timer = WheelTimer(clock, tick=1.0)
        deadline = float((slot or 20) * unit + (level > 1))
        note, after = Note(clock), Note(clock)
        timer.add(note, deadline)
        # The task is due and still in its bucket: the clock has not called yet.
        clock.ahead = deadline - clock.time()
        assert timer.wheels[level - 1].count(slot) == 1
        assert timer.statistics().levels[level - 1] == 1
        assert timer.cancel(note)
        timer.add(after, clock.time() + 1)
        check_timer(timer)
        timer._wake()
        clock.ahead += 1
        timer._wake()
        assert (note.ran, len(after.ran), len(timer)) == ([], 1, 0)
        check_timer(timer)


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
