"""The timing wheels and the timer that drives them."""

import asyncio
import math
from functools import partial
from typing import Any

import pytest

from purgatory import TimerStatistics, TimingWheel, VirtualClock, WheelTimer
from tests.support.cores import looks_inside
from tests.support.injection import each_step
from tests.support.invariants import check_timer
from tests.support.operations import FaultLog, Note


def places(timer: WheelTimer) -> dict[str, tuple[int, int]]:
    """The level and the bucket of each task."""
    return {
        repr(task)[1:-1]: (wheel.level, slot)
        for wheel in timer.wheels
        for slot, bucket in enumerate(wheel.buckets)
        for part in bucket or ()
        for task in part.values()
    }


class TestWorkedExample:
    """Tick 1, wheel size 10, tasks due at 9, 88, 222, 520, 521 and 522."""

    def test_each_task_is_in_its_bucket_at_each_step(self) -> None:
        clock = VirtualClock()
        timer = WheelTimer(clock, tick=1.0, wheel_size=10)
        notes = {when: Note(clock, str(when)) for when in (9, 88, 222, 520, 521, 522)}
        for when, note in notes.items():
            timer.add(note, when)

        last = {"520": (3, 5), "521": (3, 5), "522": (3, 5)}
        for now, wake_ups, expected in [
            (0, 0, {"9": (1, 9), "88": (2, 8), "222": (3, 2), **last}),
            (8, 0, {"9": (1, 9), "88": (2, 8), "222": (3, 2), **last}),
            (9, 1, {"88": (2, 8), "222": (3, 2), **last}),
            (79, 1, {"88": (2, 8), "222": (3, 2), **last}),
            (80, 2, {"88": (1, 8), "222": (3, 2), **last}),
            (88, 3, {"222": (3, 2), **last}),
            (199, 3, {"222": (3, 2), **last}),
            (200, 4, {"222": (2, 2), **last}),
            (220, 5, {"222": (1, 2), **last}),
            (222, 6, last),
            (499, 6, last),
            (500, 7, {"520": (2, 2), "521": (2, 2), "522": (2, 2)}),
            (519, 7, {"520": (2, 2), "521": (2, 2), "522": (2, 2)}),
            (520, 8, {"521": (1, 1), "522": (1, 2)}),
            (521, 9, {"522": (1, 2)}),
            (522, 10, {}),
        ]:
            clock.advance_to(now)
            assert (now, places(timer)) == (now, expected)
            assert (now, timer.statistics().wake_ups) == (now, wake_ups)
        assert {when: note.ran for when, note in notes.items()} == {when: [float(when)] for when in notes}

    def test_six_tasks_take_ten_wake_ups_and_none_in_between(self) -> None:
        clock = VirtualClock()
        timer = WheelTimer(clock, tick=1.0, wheel_size=10)
        for when in (9, 88, 222, 520, 521, 522):
            timer.add(Note(clock), when)
        clock.advance_to(1000)
        # The wake-ups are at 9, 80, 88, 200, 220, 222, 500, 520, 521 and 522; at 520 for buckets of levels 2 and 1.
        assert timer.statistics() == TimerStatistics(0, (0, 0, 0), wake_ups=10, buckets=11, cascaded=9)


def test_a_wheel_reaches_its_size_times_its_unit_ahead() -> None:
    wheel = TimingWheel(2, 20, 20, 0)
    assert wheel.limit == 400
    wheel.advance_to(39)
    assert wheel.limit == 420
    assert (wheel.slot(39), wheel.start(39)) == (1, 20)
    assert (wheel.slot(419), wheel.start(419)) == (0, 400)
    assert repr(wheel) == "<TimingWheel level=2 unit=20 size=20 limit=420 used={}>"


def test_an_overflow_wheel_is_made_when_first_needed(clock: VirtualClock) -> None:
    timer = WheelTimer(clock)
    timer.add(Note(clock), 0.019)
    assert len(timer.wheels) == 1
    timer.add(Note(clock), 0.020)
    assert [wheel.unit for wheel in timer.wheels] == [1, 20]
    timer.add(Note(clock), 3600.0)
    assert [wheel.unit for wheel in timer.wheels] == [1, 20, 400, 8_000, 160_000, 3_200_000]


def test_a_deadline_rounds_up_to_a_tick(clock: VirtualClock) -> None:
    timer = WheelTimer(clock, tick=0.5)
    note = Note(clock)
    timer.add(note, 1.25)
    clock.advance(10)
    assert note.ran == [1.5]


def test_an_overdue_task_runs_on_the_next_iteration_and_not_inside_add(clock: VirtualClock) -> None:
    clock.advance(100)
    timer = WheelTimer(clock)
    notes = [Note(clock), Note(clock), Note(clock), Note(clock)]
    for note, deadline in zip(notes, (100.0, 3.0, -math.inf, -(10**400)), strict=True):
        timer.add(note, deadline)
        assert not note.ran
    clock.advance(0)
    assert [note.ran for note in notes] == [[100.0]] * 4


def test_a_clock_may_start_below_zero() -> None:
    clock = VirtualClock(-5.0)
    timer = WheelTimer(clock)
    note = Note(clock)
    timer.add(note, -4.0)
    clock.advance(5.0)
    assert note.ran == [-4.0]


def test_deadlines_years_ahead_are_met_within_a_tick(clock: VirtualClock) -> None:
    timer = WheelTimer(clock)
    year = 365.25 * 86_400
    notes = {years: Note(clock) for years in (1, 3, 10, 10_000)}
    for years, note in notes.items():
        timer.add(note, years * year)
    clock.advance(20_000 * year)
    for years, note in notes.items():
        assert note.ran == [pytest.approx(years * year, rel=0, abs=0.001)]
        assert note.ran[0] >= years * year
    assert timer.statistics().wake_ups < 100


def test_a_deadline_beyond_all_ticks_never_comes(clock: VirtualClock) -> None:
    timer = WheelTimer(clock)
    note = Note(clock)
    timer.add(note, 2**52 / 1000)
    timer.add(note, 1.7e308)
    timer.add(note, math.inf)
    assert len(timer) == 0
    timer.add(note, (2**52 - 1) / 1000)
    clock.advance_to((2**52 - 2) / 1000)
    assert note.ran == []
    clock.advance_to(1.7e308)
    assert note.ran == [(2**52 - 1) / 1000]


def test_a_deadline_on_a_tick_runs_on_that_tick(clock: VirtualClock) -> None:
    timer = WheelTimer(clock)
    for n in range(1, 3000):
        note = Note(clock)
        timer.add(note, n / 1000)
        clock.advance_to(n / 1000)
        assert note.ran == [n / 1000]


def test_tasks_run_in_the_order_of_their_ticks_and_not_of_their_adding(clock: VirtualClock) -> None:
    timer = WheelTimer(clock)
    order: list[float] = []
    deadlines = [(7 * n) % 1000 / 1000 for n in range(1000)]
    for deadline in deadlines:
        timer.call_at(deadline, order.append, deadline)
    clock.advance(5)
    assert order == sorted(deadlines)


class TestLongBuckets:
    """A bucket of very many tasks goes on in further dicts, none of which takes long to grow."""

    @looks_inside
    def test_tasks_of_long_buckets_run_in_order_except_for_cancelled_ones(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        order: list[int] = []
        handles = [timer.call_at(10.0, order.append, n) for n in range(50_000)]
        (bucket,) = filter(None, timer.wheels[3].buckets)
        assert [len(part) for part in bucket] == [10_000, 20_000, 20_000]
        for n in (0, 25_000, 49_999):
            handles[n].cancel()
        clock.call_at(10.0, handles[3].cancel)
        clock.call_at(10.0, handles[45_000].cancel)
        assert len(timer) == 49_997
        clock.advance(20)
        assert set(range(50_000)) - set(order) == {0, 3, 25_000, 45_000, 49_999}
        assert order == sorted(order)

    def test_a_bucket_whose_last_dict_is_empty_is_not_forgotten(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.add(note, 10.0)
        handles = [timer.call_at(10.0, print, "cancelled") for _ in range(20_000)]
        timer.call_at(0.5, lambda: None)
        for handle in handles:
            handle.cancel()
        clock.advance(20)
        assert note.ran == [10.0]

    def test_a_bucket_whose_first_dicts_are_empty_is_not_forgotten(
        self, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
    ) -> None:
        monkeypatch.setattr("purgatory._timer.timer._LONG", 4)
        timer = WheelTimer(clock)
        handles = [timer.call_at(10.0, print, "cancelled") for _ in range(12)]
        note = Note(clock)
        timer.add(note, 10.0)
        timer.call_at(0.5, lambda: None)
        for handle in handles:
            handle.cancel()
        clock.advance(1)
        (bucket,) = filter(None, timer.wheels[3].buckets)
        assert len(bucket) == 1
        clock.advance(20)
        assert note.ran == [10.0]

    def test_close_forgets_all_tasks_of_long_buckets(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.add(note, 10.0)
        for _ in range(40_000):
            timer.call_at(10.0, print, "closed")
        clock.call_at(10.0, timer.close)
        timer.reschedule(note, 11.0)
        clock.advance_to(9.9)
        assert repr(timer.wheels[3]).endswith("used={}>")
        clock.advance(20)
        assert len(timer) == 0
        assert note.ran == []

    def test_close_forgets_tasks_of_bucket_that_is_being_drained(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        timer.call_at(10.0, timer.close)
        notes = [Note(clock) for _ in range(30_000)]
        for note in notes:
            timer.add(note, 10.0)
        clock.advance(10.0)
        for note in notes:
            timer.add(note, 20.0)  # a task that still waits would be refused
        assert len(timer) == 30_000
        assert notes[0].ran == notes[-1].ran == []

    def test_bucket_left_by_tasks_at_any_step_of_its_growth_loses_no_task(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("purgatory._timer.timer._LONG", 4)
        for injector in each_step():
            clock = VirtualClock()
            timer = WheelTimer(clock)
            leaving, staying = ([Note(clock) for _ in range(4)] for _ in range(2))
            later = Note(clock)
            for note in (*leaving, *staying[:3]):
                timer.add(note, 1.0)

            def move(timer: WheelTimer = timer, leaving: list[Note] = leaving, later: Note = later) -> None:
                for note in leaving:
                    timer.cancel(note)
                timer.add(later, 1.0)

            injector.inject = move
            with injector:
                timer.add(staying[3], 1.0)
            check_timer(timer)
            clock.advance(1.0)
            assert [note.ran for note in staying] == [[1.0]] * 4
            assert [later.ran, *(note.ran for note in leaving)] == (
                [[]] + [[1.0]] * 4 if injector.where == "nowhere" else [[1.0]] + [[]] * 4
            )

    @pytest.mark.parametrize("tasks", [4, 8, 12])
    def test_bucket_drained_at_any_step_of_its_growth_loses_no_task(
        self, monkeypatch: pytest.MonkeyPatch, tasks: int
    ) -> None:
        monkeypatch.setattr("purgatory._timer.timer._LONG", 4)
        for injector in each_step():
            clock = VirtualClock()
            timer = WheelTimer(clock)
            notes = [Note(clock) for _ in range(tasks)]
            for note in notes[1:]:
                timer.add(note, 1.0)
            injector.inject = partial(clock.advance, 1.0)
            with injector:
                timer.add(notes[0], 1.0)
            check_timer(timer)
            clock.advance(1.0)
            assert {note.ran[0] for note in notes} <= {1.0, 2.0}
            assert [len(note.ran) for note in notes] == [1] * tasks

    def test_bucket_drained_at_any_step_of_a_move_into_it_loses_no_task(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("purgatory._timer.timer._LONG", 2)
        for injector in each_step():
            clock = VirtualClock()
            timer = WheelTimer(clock)
            notes = [Note(clock) for _ in range(7)]
            moved = Note(clock)
            for note in notes:
                timer.add(note, 1.0)
            timer.add(moved, 5.0)
            injector.inject = partial(clock.advance, 1.0)
            with injector:
                timer.reschedule(moved, 1.0)
            check_timer(timer)
            clock.advance(1.0)
            assert [note.ran for note in notes] == [[1.0]] * 7
            assert moved.ran in ([1.0], [2.0])


def test_a_task_that_is_added_again_as_it_is_called_runs_at_its_new_deadline(clock: VirtualClock) -> None:
    for injector in each_step():
        clock = VirtualClock()
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.add(note, 1.0)
        injector.inject = partial(timer.reschedule, note, 3.0)
        with injector:
            clock.advance(1.0)
        check_timer(timer)
        clock.advance(4.0)
        assert note.ran in ([3.0], [1.0, 3.0]) or injector.where == "nowhere"


@pytest.mark.parametrize("delay", [0.01, 1.0, 1000.0])
def test_a_timer_that_is_closed_at_any_step_of_a_call_can_be_used_again(delay: float) -> None:
    for injector in each_step():
        clock = VirtualClock()
        timer = WheelTimer(clock)
        ran: list[float] = []
        injector.inject = timer.close
        with injector:
            timer.call_later(delay, ran.append, 1.0)
        check_timer(timer)
        for again in (delay, 2 * delay, 20 * delay):
            timer.call_later(again, ran.append, again)
        check_timer(timer)
        clock.advance(30 * delay)
        assert ran[-3:] == [delay, 2 * delay, 20 * delay]


class TestBehindTime:
    """Buckets that are due when the clock has run ahead of the wake-ups, as it does when the loop was blocked."""

    class Clock(FaultLog):
        ahead = 0.0

        def time(self) -> float:
            return super().time() + self.ahead

    def test_wake_up_runs_at_most_a_slice_over_all_due_buckets(self) -> None:
        clock = self.Clock()
        timer = WheelTimer(clock)
        ran: list[int] = []
        for n in range(10_000):
            timer.call_at((1 + n % 15) / 1000, ran.append, n % 15)
        clock.ahead = 1.0
        for _ in range(11):
            before = len(ran)
            timer._wake()
            assert len(ran) - before <= 1000
        assert ran == sorted(ran)
        assert len(ran) == 10_000

    def test_hands_stay_while_a_bucket_cascades_in_slices(self) -> None:
        clock = self.Clock()
        timer = WheelTimer(clock, tick=1.0, wheel_size=10)
        order: list[float] = []
        deadlines = [29.0] * 1500 + [23.0] * 100 + [21.0] * 100
        for deadline in deadlines:
            timer.call_at(deadline, order.append, deadline)

        def between_slices() -> None:
            assert 0 < timer.statistics().cascaded < 1500
            clock.ahead = 5.0
            timer.call_at(300.0, print, "a new bucket")

        clock.call_at(20.0, between_slices)
        clock.advance_to(30.0)
        assert order == sorted(deadlines)


async def test_due_tasks_run_in_order_with_few_wake_ups_after_a_blocked_loop() -> None:
    loop = asyncio.get_running_loop()
    timer = WheelTimer()
    order: list[float] = []
    done = asyncio.Event()
    start = loop.time() + 0.5  # all are added before the first is due, however busy the machine is
    delays = [(37 * n) % 500 / 500 for n in range(500)]
    for delay in delays:
        timer.call_at(start + delay, order.append, delay)
    timer.call_at(start + 1.0, done.set)
    while loop.time() < start + 1.1:
        pass  # the loop is blocked
    before = timer.statistics().wake_ups
    await asyncio.wait_for(done.wait(), 30)
    assert order == sorted(delays)
    # A slice is 1000 entries or a millisecond: the wake-ups are few, not one for each of the 550 buckets.
    assert timer.statistics().wake_ups - before < 200


class TestOneWakeUp:
    """The timer keeps one `call_at` armed, for the earliest bucket."""

    def test_earlier_bucket_alone_is_armed_again(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock, tick=1.0, wheel_size=10)
        for when in (50, 70, 59, 51, 9, 5):
            timer.add(Note(clock), when)
        assert clock.armed == [50, 9, 5]
        assert "scheduled=1" in repr(clock)
        clock.advance(60)
        assert clock.armed == [50, 9, 5, 9, 50, 51, 59, 70]
        assert "scheduled=1" in repr(clock)

    def test_a_bucket_whose_tasks_were_all_cancelled_is_not_worth_a_wake_up(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock, tick=1.0, wheel_size=10)
        notes = [Note(clock) for _ in range(4)]
        for note, when in zip(notes, (1, 4, 55, 60), strict=True):
            timer.add(note, when)
        for note in notes[1:3]:
            assert timer.cancel(note)
        clock.advance(100)
        assert clock.armed == [1, 60]
        assert notes[3].ran == [60.0]

    def test_a_wake_up_that_comes_early_runs_nothing_and_is_armed_again(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock, tick=1.0)
        note = Note(clock)
        timer.add(note, 5.0)
        clock.advance(4.5)
        timer._wake()
        assert note.ran == []
        assert clock.armed == [5.0, 5.0]
        clock.advance(0.5)
        assert note.ran == [5.0]

    def test_a_wake_up_just_before_its_time_is_armed_a_millisecond_later(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock, tick=0.0001)
        note = Note(clock)
        timer.add(note, 0.0015)
        clock.advance_to(0.0012)
        timer._wake()
        assert clock.armed == [0.0015, pytest.approx(0.0022)]

    async def test_a_loop_that_rounds_is_not_armed_again_and_again(self) -> None:
        timer = WheelTimer(tick=0.0013)
        for _ in range(50):
            done = asyncio.Event()
            timer.call_later(0.003, done.set)
            await asyncio.wait_for(done.wait(), 30)
        assert timer.statistics().wake_ups <= 150

    def test_the_time_of_a_wake_up_is_never_rounded_to_before_its_tick(self) -> None:
        # If the wake-up for a tick came before the tick by rounding, the virtual clock would stand still there.
        for tick in (0.1, 0.001, 0.0003, 1 / 3):
            for start in (0.0, 1e6, 3.15e9):
                clock = FaultLog(start)
                timer = WheelTimer(clock, tick=tick)
                notes = [Note(clock) for _ in range(300)]
                for n, note in enumerate(notes):
                    timer.add(note, start + n * tick)
                clock.advance(301 * tick)
                for n, note in enumerate(notes):
                    assert len(note.ran) == 1
                    assert note.ran[0] >= start + n * tick
                assert timer.statistics().wake_ups <= 320

    def test_the_hands_do_not_pass_by_a_bucket_that_is_due_and_not_drained_yet(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock, tick=1.0, wheel_size=10)
        early, late = Note(clock, "early"), Note(clock, "late")
        clock.call_at(15.0, lambda: timer.add(late, 26.0))
        timer.add(early, 15.0)
        clock.advance(30)
        assert (early.ran, late.ran) == ([15.0], [26.0])

    def test_the_hands_catch_up_after_idle_hours(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        timer.add(Note(clock), 0.5)
        timer.add(Note(clock), 86_400.0)
        clock.advance(36_000)
        wake_ups = timer.statistics().wake_ups
        note = Note(clock)
        timer.add(note, 36_000.005)
        assert timer.statistics().levels[0] == 1, "no need to cascade: it is due within the lowest wheel's reach"
        clock.advance(1)
        assert note.ran == [pytest.approx(36_000.005)]
        assert timer.statistics().wake_ups == wake_ups + 1


class TestCancel:
    def test_a_cancelled_task_does_not_run(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.add(note, 1.0)
        assert timer.cancel(note)
        assert not timer.cancel(note)
        assert len(timer) == 0
        clock.advance(2)
        assert note.ran == []

    def test_a_task_may_cancel_another_of_the_bucket_that_is_being_drained(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.call_at(1.0, lambda: timer.cancel(note))
        timer.add(note, 1.0)
        clock.advance(2)
        assert note.ran == []
        assert len(timer) == 0

    def test_a_task_may_be_added_again_after_it_ran_or_was_cancelled(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.add(note, 1.0)
        clock.advance(1)
        timer.add(note, 2.0)
        timer.cancel(note)
        timer.add(note, 3.0)
        clock.advance(2)
        assert note.ran == [1.0, 3.0]

    def test_a_task_waits_once_at_a_time(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.add(note, 1.0)
        with pytest.raises(ValueError, match="waits in a timer already"):
            timer.add(note, 2.0)
        clock.advance(5)
        assert note.ran == [1.0]

    def test_tasks_that_compare_equal_are_still_two_tasks(self, clock: VirtualClock) -> None:
        class Same(Note):
            def __eq__(self, other: object) -> bool:
                return True

            def __hash__(self) -> int:
                return 1

        timer = WheelTimer(clock)
        notes = [Same(clock), Same(clock)]
        for note in notes:
            timer.add(note, 1.0)
        clock.advance(1)
        assert [note.ran for note in notes] == [[1.0], [1.0]]


class TestReschedule:
    @pytest.mark.parametrize("deadline", [0.5, 2.0, 2.0004, 300.0])
    def test_a_task_moves_to_an_earlier_or_a_later_deadline(self, clock: VirtualClock, deadline: float) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.add(note, 2.0)
        timer.reschedule(note, deadline)
        clock.advance(1000)
        assert note.ran == [pytest.approx(deadline, abs=0.001)]
        assert note.ran[0] >= deadline

    def test_a_task_moved_to_a_past_deadline_runs_on_the_next_iteration(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.add(note, 20.0)
        clock.advance(10)
        timer.reschedule(note, 5.0)
        clock.advance(0)
        assert note.ran == [10.0]

    def test_a_task_that_no_longer_waits_is_added_again(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.reschedule(note, 1.0)
        clock.advance(1)
        timer.reschedule(note, 2.0)
        clock.advance(1)
        assert note.ran == [1.0, 2.0]

    def test_a_bad_deadline_leaves_the_task_where_it_was(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        note = Note(clock)
        timer.add(note, 1.0)
        with pytest.raises(ValueError, match="must be a number"):
            timer.reschedule(note, math.nan)
        clock.advance(1)
        assert note.ran == [1.0]


@pytest.mark.parametrize(
    ("tick", "wheel_size", "error", "message"),
    [
        (0, 20, ValueError, "tick must be finite and positive, not 0"),
        (-0.001, 20, ValueError, "tick must be finite and positive, not -0.001"),
        (math.nan, 20, ValueError, "tick must be finite and positive, not nan"),
        (math.inf, 20, ValueError, "tick must be finite and positive, not inf"),
        (0.001, 1, ValueError, "wheel_size must be at least 2, not 1"),
        ("1", 20, TypeError, "tick must be a number of seconds, not '1'"),
        (0.001, 20.0, TypeError, "wheel_size must be an int, not 20.0"),
    ],
)
def test_bad_parameters_are_refused(tick: Any, wheel_size: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        WheelTimer(VirtualClock(), tick=tick, wheel_size=wheel_size)


def test_a_time_just_before_a_tick_is_not_that_tick() -> None:
    # 378.07379999999995 / 0.0107 rounds to 35334.0, the tick that begins one float later.
    clock = VirtualClock(378.07379999999995)
    timer = WheelTimer(clock, tick=0.0107)
    note = Note(clock)
    timer.add(note, 378.0738)
    clock.advance(0)
    timer._wake()
    assert note.ran == []
    clock.advance_to(378.0738)
    assert note.ran == [378.0738]


def test_a_deadline_that_is_no_number_is_refused(clock: VirtualClock) -> None:
    timer = WheelTimer(clock)
    with pytest.raises(ValueError, match="deadline must be a number of seconds, not nan"):
        timer.add(Note(clock), math.nan)
    for call in (timer.call_at, timer.call_later):
        with pytest.raises(ValueError, match="deadline must be a number of seconds, not nan"):
            call(math.nan, print)
    assert len(timer) == 0


def test_timer_without_a_clock_needs_a_running_loop() -> None:
    timer = WheelTimer()
    with pytest.raises(RuntimeError, match="no running event loop"):
        timer.time()


def test_repr_of_timer_shows_number_of_tasks_and_levels(clock: VirtualClock) -> None:
    timer = WheelTimer(clock, tick=0.5)
    timer.add(Note(clock), 100.0)
    assert repr(timer) == "<WheelTimer tick=0.5 tasks=1 levels=2>"
    assert timer.tick == 0.5
    assert timer.clock is clock
