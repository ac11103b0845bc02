"""Bugs of other timers, event loops and servers, which must not be here."""

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest
import uvloop

from purgatory import DelayedOperationPurgatory, PurgatoryFull, PurgatoryMisuse, VirtualClock, WheelTimer
from tests.support.invariants import check_purgatory, check_timer
from tests.support.operations import FaultLog, Flag, Note, turn


class TestInsertedEarlierThanTheOneArmed:
    """tokio #854, #1700: a later insert postponed the wake-up for an earlier task, or an earlier one never got one."""

    def test_an_earlier_task_is_armed(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        notes = {deadline: Note(clock) for deadline in (3600.0, 60.0, 1.0, 0.5, 0.002, 0.001)}
        for deadline, note in notes.items():
            timer.add(note, deadline)
        clock.advance(4000.0)
        assert all(note.ran == [pytest.approx(deadline)] for deadline, note in notes.items())

    def test_later_task_does_not_postpone_an_earlier_one(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        early = Note(clock)
        timer.add(early, 0.1)
        for n in range(100):
            clock.advance(0.0009)
            timer.add(Note(clock), clock.time() + 10.0 + n)
        clock.advance_to(0.1)
        assert early.ran == [0.1]

    def test_a_running_task_may_add_an_earlier_one(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        early = Note(clock)
        timer.call_at(1.0, timer.add, Note(clock), 100.0)
        timer.call_at(1.0, timer.add, early, 1.5)
        timer.call_at(1.0, timer.add, Note(clock), 50.0)
        clock.advance(1.5)
        assert early.ran == [1.5]

    async def test_an_earlier_task_runs_first_on_a_loop(self) -> None:
        timer = WheelTimer()
        late, early = asyncio.Event(), asyncio.Event()
        timer.call_later(3600.0, late.set)
        timer.call_later(0.01, early.set)
        timer.call_later(1800.0, late.set)
        await asyncio.wait_for(early.wait(), 30)
        timer.close()


class TestRescheduled:
    """tokio #849, #8274: a task moved to an earlier deadline, or to one that has passed, came late or never."""

    @pytest.mark.parametrize("first", [0.005, 0.5, 100.0, 1e6])
    @pytest.mark.parametrize("second", [0.0, 0.001, 0.004, 0.4, 99.0])
    def test_a_task_moved_to_an_earlier_deadline_runs_then(self, clock: FaultLog, first: float, second: float) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.add(note, first)
        timer.reschedule(note, min(first, second))
        clock.advance_to(first)
        assert note.ran == [pytest.approx(min(first, second))]
        check_timer(timer)

    @pytest.mark.parametrize("behind", [0.0, 0.001, 5.0, 1e9])
    def test_a_task_moved_to_a_past_deadline_runs_on_the_next_iteration(self, clock: FaultLog, behind: float) -> None:
        purgatory = DelayedOperationPurgatory(clock=clock)
        clock.advance(10.0)
        timer = purgatory.timer
        note = Note(clock)
        timer.add(note, 3600.0)
        timer.reschedule(note, clock.time() - behind)
        assert note.ran == [], "not inside the call"
        clock.advance(0)
        assert note.ran == [10.0]

    def test_an_overdue_task_may_be_rescheduled_before_it_runs(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        clock.advance(100.0)
        later, sooner = Note(clock), Note(clock)
        for note in (later, sooner):
            timer.add(note, 3.0)
        timer.reschedule(later, 200.0)
        timer.reschedule(sooner, 1.0)
        clock.advance(0)
        assert (later.ran, sooner.ran) == ([], [100.0])
        clock.advance(100.0)
        assert later.ran == [200.0]
        check_timer(timer)

    def test_a_task_may_be_rescheduled_while_its_bucket_is_drained(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        moved = [Note(clock) for _ in range(3)]
        for note, deadline in zip(moved, (1.0, 0.5, 9.0), strict=True):
            timer.call_at(1.0, timer.reschedule, note, deadline)
        for note in moved:
            timer.add(note, 1.0)
        clock.advance(20.0)
        assert [note.ran for note in moved] == [[1.0], [1.0], [9.0]]
        check_timer(timer)


class TestCancelledWhenDueButNotYetDrained:
    """tokio #3270: cancelling such a task in slot 0 of a level left the occupied slots wrong: a panic."""

    @pytest.mark.parametrize("level", [1, 2, 3])
    @pytest.mark.parametrize("slot", [0, 19])
    @pytest.mark.parametrize("alone", [True, False])
    def test_each_slot_of_a_level_stays_consistent(self, level: int, slot: int, alone: bool) -> None:
        class Clock(FaultLog):
            ahead = 0.0

            def time(self) -> float:
                return super().time() + self.ahead

        unit = 20 ** (level - 1)
        clock = Clock(unit + 1.0)  # the hand of the level has gone past slot 0
        timer = WheelTimer(clock, tick=1.0)
        deadline = float((slot or 20) * unit + (level > 1))
        note, other, after = Note(clock), Note(clock), Note(clock)
        timer.add(note, deadline)
        if not alone:
            timer.add(other, deadline)
        # The task is due and still in its bucket: the clock has not called yet.
        clock.ahead = deadline - clock.time()
        assert timer.wheels[level - 1].count(slot) == (1 if alone else 2)
        assert timer.statistics().levels[level - 1] == (1 if alone else 2)
        assert timer.cancel(note)
        timer.add(after, clock.time() + 1)
        check_timer(timer)
        timer._wake()
        assert note.ran == []
        assert len(other.ran) == (0 if alone else 1)
        check_timer(timer)
        clock.ahead += 1
        timer._wake()
        assert len(after.ran) == 1
        assert len(timer) == 0
        check_timer(timer)

    @pytest.mark.parametrize("count", [2, 1500])
    @pytest.mark.parametrize("away", [1, 700])
    def test_a_task_cancelled_by_another_of_its_bucket_does_not_run(
        self, clock: FaultLog, count: int, away: int
    ) -> None:
        timer = WheelTimer(clock)
        notes = [Note(clock) for _ in range(count)]
        cancelled: set[Note] = set()

        def cancel(note: Note) -> None:
            if timer.cancel(note):
                cancelled.add(note)

        for n, note in enumerate(notes):
            if n % 2 == 0:
                timer.call_at(1.0, cancel, notes[(n + away) % count])
            timer.add(note, 1.0)
        timer.add(Note(clock), 1.001)
        clock.advance(1.0)
        assert len(timer) == 1
        assert len(cancelled) >= count // 4 or away > count
        assert [note.ran for note in notes] == [[] if note in cancelled else [1.0] for note in notes]
        check_timer(timer)


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
@pytest.mark.parametrize("way", ["by itself", "by its timer"])
def test_an_operation_rescheduled_on_another_loop_stays_on_its_own(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], way: str
) -> None:
    """tokio #8169: a timer that was reset in another runtime than its own went into the wheel of that one."""

    async def hand_over() -> Flag:
        return purgatory.try_complete_else_watch(Flag(3600.0), ["key"])

    async def reschedule() -> None:
        if way == "by itself":
            operation.reschedule(0.001)
        else:
            purgatory.timer.reschedule(operation, 0.0)

    async def wait(operation: Flag) -> str:
        return await operation

    purgatory = DelayedOperationPurgatory()
    with asyncio.Runner(loop_factory=loop_factory) as own, asyncio.Runner(loop_factory=loop_factory) as another:
        operation = own.run(hand_over())
        before = purgatory.timer.wheels
        with pytest.raises(PurgatoryMisuse, match="another event loop"):
            another.run(reschedule())
        assert purgatory.timer.wheels == before
        operation.reschedule(0.001)  # no loop runs
        another.run(asyncio.sleep(0.005))
        assert (operation.done(), len(purgatory.timer)) == (False, 1)
        own.run(wait(operation))
        assert (operation.outcome, len(purgatory.timer)) == ("expired", 0)


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


def test_an_operation_cancelled_while_its_tick_is_drained_is_counted_once(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    """netty #14959: the count was decremented twice, by the cancellation and by the tick that found it."""
    counts: list[int] = []
    operations: list[Flag] = []

    def cancel_others() -> None:
        for operation in operations[1:4]:
            operation.cancel()
            operation.cancel()
        counts.append(purgatory.num_delayed)

    operations += [Flag(1.0, then=cancel_others if n == 0 else int) for n in range(6)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["key"])
    clock.advance(1.0)
    assert counts == [2]
    assert purgatory.num_delayed == len(purgatory.timer) == 0
    assert (purgatory.statistics().expired, purgatory.statistics().cancelled) == (3, 3)
    check_purgatory(purgatory)


class TestUnbounded:
    """netty #5647: a timer had no bound and grew until the memory was used up."""

    def test_no_more_than_max_pending_operations_wait(self, clock: FaultLog) -> None:
        purgatory = DelayedOperationPurgatory(max_pending=100, clock=clock)
        refused = 0
        for n in range(1000):
            try:
                purgatory.try_complete_else_watch(Flag(3600.0), [n])
            except PurgatoryFull:
                refused += 1
        assert (refused, purgatory.num_delayed, purgatory.watched, len(purgatory.timer)) == (900, 100, 100, 100)

    def test_dead_entries_are_bounded_by_the_purge_interval(self, clock: FaultLog) -> None:
        purgatory = DelayedOperationPurgatory(purge_interval=100, clock=clock)
        for n in range(2_000):
            purgatory.try_complete_else_watch(Flag(3600.0), [n, "key"]).force_complete()
            clock.advance(0)
            assert purgatory.watched <= 2 * 101
        assert len(purgatory.watched_keys()) <= 102


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

    def test_the_heap_of_a_virtual_clock_stays_small_too(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        for n in range(5000):
            timer.add(Note(clock), 5000.0 - n)
        assert len(clock._heap) <= 200
        clock.advance(5000.0)
        assert len(timer) == 0


@pytest.mark.parametrize("days", [11, 12, 13, 400, 800])
def test_short_timers_run_after_weeks_beside_one_that_is_years_ahead(days: int) -> None:
    """tokio #8320, #8334: after 12 days of uptime, timers of a second waited for the timer that was years ahead."""
    clock = FaultLog()
    timer = WheelTimer(clock)
    for deadline in (2.0**31, 2.0**33):
        timer.add(Note(clock), deadline)
    clock.advance(days * 86_400.0 - 5.0)
    ran: list[float] = []
    for _ in range(20):
        timer.call_later(0.333, ran.append, clock.time() + 0.333)
        clock.advance(1.0)
    assert len(ran) == 20
    assert not clock.faults
    check_timer(timer)


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


def test_a_task_cancelled_while_it_is_inserted_leaves_the_wheel(clock: FaultLog) -> None:
    """tokio #8252: an entry that was cancelled before its registration stayed in the wheel until its deadline."""
    purgatory = DelayedOperationPurgatory(clock=clock)

    class Cancelling(Flag):
        """An operation that is cancelled in its second try, as the timer is about to take it."""

        tries = 0

        def try_complete(self) -> bool:
            self.tries += 1
            if self.tries == 2:
                self.cancel()
            return False

    for _ in range(100):
        purgatory.try_complete_else_watch(Cancelling(1e8), ["key"])
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
    check_purgatory(purgatory)


def test_a_cancelled_handle_keeps_nothing_until_its_time() -> None:
    """uvicorn #1604, codex-lb #2041: after a reset the keep-alive timer kept connection and request until the timeout.

    Since #1604 `connection_lost`, in uvicorn/protocols/http/httptools_impl.py and h11_impl.py, cancels it, but not when
    it gets an exception. A cancelled handle of the loop itself keeps its place in the heap, too.
    """

    class Connection:
        def close(self) -> None:
            raise AssertionError("cancelled")

    gc.disable()
    try:
        clock = VirtualClock()
        timer = WheelTimer(clock)
        connection = Connection()
        alive = weakref.ref(connection)
        handle = timer.call_later(7200.0, connection.close)
        del connection
        assert alive() is not None
        handle.cancel()
        assert alive() is None
        assert len(timer) == 0
    finally:
        gc.enable()


async def test_a_wait_for_that_times_out_loses_no_result() -> None:
    """CPython #86296: `wait_for` hid a cancellation that came with the result; bpo-37658: the result was lost."""
    undelivered = []

    class Job(Flag):
        def on_undelivered(self, result: str) -> None:
            undelivered.append(result)

    async with DelayedOperationPurgatory() as purgatory:
        for _ in range(100):
            operation = purgatory.try_complete_else_watch(Job(None), ["jobs"])
            worker = asyncio.create_task(asyncio.wait_for(operation, 60.0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            operation.ready = True
            assert purgatory.check_and_complete("jobs", limit=1) == 1
            worker.cancel()
            taken = (await asyncio.gather(worker, return_exceptions=True))[0]
            assert isinstance(taken, asyncio.CancelledError) == (len(undelivered) == 1), "taken or undelivered"
            undelivered.clear()
