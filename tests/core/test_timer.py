"""The timing wheels and the timer that drives them."""

import asyncio
import logging
import math
from contextlib import suppress
from dataclasses import FrozenInstanceError

import pytest

from purgatory import Clock, DelayedOperationPurgatory, TimerStatistics, VirtualClock, WheelTimer
from tests.support.cores import in_python
from tests.support.invariants import check_timer
from tests.support.operations import FaultLog, Flag, Note, RefusingClock, raising, turn


@pytest.fixture
def timer(clock: VirtualClock) -> WheelTimer:
    """A timer on the virtual clock."""
    return WheelTimer(clock)


@pytest.fixture
def note(clock: VirtualClock) -> Note:
    """A task that is in no timer yet."""
    return Note(clock)


def places(timer: WheelTimer) -> dict[int, dict[int, int]]:
    """How many tasks are in each bucket of each level that are in use."""
    levels = {wheel.level: {slot: tasks for slot, tasks in enumerate(wheel.counts) if tasks} for wheel in timer.wheels}
    return {level: buckets for level, buckets in levels.items() if buckets}


class TestWorkedExample:
    """Tick 1, wheel size 10, tasks due at 9, 88, 222, 520, 521 and 522."""

    def test_each_task_is_in_its_bucket_at_each_step(self) -> None:
        clock = VirtualClock()
        timer = WheelTimer(clock, tick=1.0, wheel_size=10)
        notes = {when: Note(clock) for when in (9, 88, 222, 520, 521, 522)}
        for when, note in notes.items():
            timer.add(note, when)
        for now, wake_ups, expected in [
            (0, 0, {1: {9: 1}, 2: {8: 1}, 3: {2: 1, 5: 3}}),
            (8, 0, {1: {9: 1}, 2: {8: 1}, 3: {2: 1, 5: 3}}),
            (9, 1, {2: {8: 1}, 3: {2: 1, 5: 3}}),
            (80, 2, {1: {8: 1}, 3: {2: 1, 5: 3}}),
            (88, 3, {3: {2: 1, 5: 3}}),
            (199, 3, {3: {2: 1, 5: 3}}),
            (200, 4, {2: {2: 1}, 3: {5: 3}}),
            (220, 5, {1: {2: 1}, 3: {5: 3}}),
            (222, 6, {3: {5: 3}}),
            (500, 7, {2: {2: 3}}),
            (519, 7, {2: {2: 3}}),
            (520, 8, {1: {1: 1, 2: 1}}),
            (521, 9, {1: {2: 1}}),
            (522, 10, {}),
        ]:
            clock.advance_to(now)
            assert (now, places(timer)) == (now, expected)
            assert (now, timer.statistics().wake_ups) == (now, wake_ups)
        assert {when: note.ran for when, note in notes.items()} == {when: [float(when)] for when in notes}
        clock.advance_to(1000)
        # At 520 it was for buckets of levels 2 and 1.
        assert timer.statistics() == TimerStatistics(0, (0, 0, 0), wake_ups=10, buckets=11, cascaded=9)


def test_wheels_and_statistics_are_snapshots(clock: VirtualClock, timer: WheelTimer) -> None:
    statistics, (wheel,) = timer.statistics(), timer.wheels
    timer.add(Note(clock), 0.007)
    assert (statistics.tasks, timer.statistics().tasks) == (0, 1)
    assert (wheel.counts, wheel.size, wheel.count(7), timer.wheels[0].count(7)) == ((0,) * 20, 20, 0, 1)
    assert (wheel.slot(7), wheel.slot(27)) == (7, 7)
    for frozen, name in ((statistics, "tasks"), (wheel, "counts")):
        with pytest.raises(FrozenInstanceError):
            setattr(frozen, name, 1)
    assert repr(timer) == "<WheelTimer tick=0.001 tasks=1 levels=1>"
    assert (timer.tick, timer.clock) == (0.001, clock)


class TestDeadlines:
    def test_a_time_just_before_a_tick_is_not_that_tick(self) -> None:
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

    @pytest.mark.parametrize("overdue", [0.0, 1e9, math.inf, 10**400])
    def test_an_overdue_task_runs_on_the_next_iteration_and_not_inside_add(self, overdue: float) -> None:
        clock = FaultLog(1e5)
        timer = WheelTimer(clock, tick=1.0)
        note = Note(clock)
        timer.add(note, -overdue if overdue > 1e9 else clock.time() - overdue)
        assert note.ran == []
        clock.advance(0)
        assert note.ran == [1e5]
        check_timer(timer)

    @pytest.mark.parametrize("deadline", [math.inf, 1e300, 2.0**52 / 1000, 10**400])
    def test_a_task_beyond_all_ticks_never_comes(
        self, clock: FaultLog, timer: WheelTimer, note: Note, deadline: float
    ) -> None:
        timer.add(note, deadline)
        assert (len(timer), len(timer.wheels), clock.armed) == (0, 1, [])
        assert not timer.cancel(note)
        timer.add(note, (2**52 - 1) / 1000)
        timer.reschedule(note, deadline)
        clock.advance_to(1.7e308)
        assert (len(timer), note.ran) == (0, [])

    def test_the_last_tick_is_met(self, clock: VirtualClock, timer: WheelTimer, note: Note) -> None:
        timer.add(note, (2**52 - 1) / 1000)
        clock.advance_to((2**52 - 2) / 1000)
        assert note.ran == []
        clock.advance_to(1.7e308)
        assert note.ran == [(2**52 - 1) / 1000]

    @pytest.mark.parametrize("now", [4.5e15, 4.7e15, 8e15])
    def test_a_clock_far_ahead_runs_overdue_tasks_or_is_refused(self, now: float) -> None:
        clock = VirtualClock(now)
        with suppress(OverflowError):
            timer = WheelTimer(clock)
            timer.add(Note(clock), 0.0)
            clock.advance(1.0)
            assert len(timer) == 0


@pytest.mark.parametrize("call", ["add", "add_later", "reschedule", "reschedule_later", "cancel"])
def test_an_object_that_is_no_task_is_refused(
    timer: WheelTimer, purgatory: DelayedOperationPurgatory, call: str
) -> None:
    for thing in (5, None, Note, timer):
        with pytest.raises(TypeError, match="task must be a TimerTask"):
            getattr(timer, call)(*(thing, 1.0)[: 1 if call == "cancel" else 2])
    pending = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
    for operation in (Flag(), pending):
        message = r"task must be a TimerTask, not the operation <Flag .*>: call its own reschedule\(\) or cancel\(\)"
        with pytest.raises(TypeError, match=message):
            getattr(purgatory.timer, call)(*(operation, 2.0)[: 1 if call == "cancel" else 2])
    assert (len(timer), len(purgatory.timer), pending.deadline) == (0, 1, 1.0)


@in_python
def test_a_task_whose_constructor_was_not_called_is_refused(clock: VirtualClock) -> None:
    class Lazy(Note):
        def __init__(self) -> None:
            """Forget that of the base class."""

    with pytest.raises(TypeError, match=r"Lazy.__init__ must call super\(\).__init__\(\)"):
        WheelTimer(clock).add(Lazy(), 1.0)


class TestSlices:
    def test_many_tasks_of_one_bucket_run_in_order_except_for_cancelled_ones(
        self, clock: VirtualClock, timer: WheelTimer
    ) -> None:
        order: list[int] = []
        handles = [timer.call_at(10.0, order.append, n) for n in range(5000)]
        for n in (0, 2500, 4999):
            handles[n].cancel()
        for n in (3, 3500):
            clock.call_at(10.0, handles[n].cancel)
        clock.advance(20)
        assert order == sorted(set(range(5000)) - {0, 3, 2500, 3500, 4999})

    def test_hands_stay_while_a_bucket_cascades_in_slices(self) -> None:
        clock = RefusingClock()
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

    def test_all_levels_are_counted_while_a_bucket_moves_down_in_slices(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock, tick=1.0)
        for _ in range(2500):
            timer.add(Note(clock), 29.0)
        seen: list[tuple[int, ...]] = []

        def look() -> None:
            seen.append(timer.statistics().levels)
            if len(seen) < 4:
                clock.call_at(20.0, look)

        clock.call_at(20.0, look)
        clock.advance_to(20.0)
        assert [sum(levels) for levels in seen] == [2500] * 4
        assert seen[0][0] in range(900, 1100)
        assert seen[-1] == (2500, 0)


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

    def test_a_wake_up_that_comes_early_runs_nothing_and_is_armed_again(self, clock: FaultLog, note: Note) -> None:
        timer = WheelTimer(clock, tick=0.0001)
        timer.add(note, 0.0015)
        clock.advance_to(0.0012)
        timer._wake()
        assert note.ran == []
        assert clock.armed == [0.0015, pytest.approx(0.0022)], "a millisecond later: it may be a coarse clock"
        clock.advance(1.0)
        assert note.ran == [0.0015]

    def test_the_hands_catch_up_after_idle_hours(self, clock: FaultLog, timer: WheelTimer, note: Note) -> None:
        timer.add(Note(clock), 0.5)
        timer.add(Note(clock), 86_400.0)
        clock.advance(36_000)
        wake_ups = timer.statistics().wake_ups
        timer.add(note, 36_000.005)
        assert timer.statistics().levels[0] == 1, "no need to cascade: it is due within the lowest wheel's reach"
        clock.advance(1)
        assert note.ran == [pytest.approx(36_000.005)]
        assert timer.statistics().wake_ups == wake_ups + 1


class TestCancelAndReschedule:
    def test_tasks_that_compare_equal_are_still_two_tasks(self, clock: VirtualClock, timer: WheelTimer) -> None:
        class Same(Note):
            def __eq__(self, other: object) -> bool:
                return True

            def __hash__(self) -> int:
                return 1

        notes = [Same(clock), Same(clock)]
        for note in notes:
            timer.add(note, 1.0)
        clock.advance(1)
        assert [note.ran for note in notes] == [[1.0], [1.0]]

    def test_a_reschedule_within_its_bucket_moves_nothing(self, clock: FaultLog, timer: WheelTimer, note: Note) -> None:
        timer.add(note, 10_000.0)
        clock.armed.clear()
        before = timer.statistics(), timer.wheels
        for n in range(1000):
            timer.reschedule(note, 10_000.0 + n / 10)
        assert (timer.statistics(), timer.wheels, clock.armed) == (*before, [])
        clock.advance(20_000.0)
        assert note.ran == [pytest.approx(10_099.9)]


class TestClocks:
    """What a clock may do: refuse, get lost, raise, call anything."""

    async def test_a_task_that_is_added_does_not_postpone_one_that_is_due(self) -> None:
        loop = asyncio.get_running_loop()
        timer = WheelTimer()
        ran: list[int] = []
        late = 0

        def slow_iteration() -> None:
            nonlocal late
            end = loop.time() + 0.003 if type(loop).__module__.startswith("asyncio") else 0.0
            while loop.time() < end:
                pass
            late += loop.time() > due + 0.001
            timer.call_later(1.0 + late, list).cancel()  # which needs a bucket of its own
            if not ran and late < 20:
                loop.call_soon(slow_iteration)

        due = loop.time() + 0.005
        timer.call_later(0.005, lambda: ran.append(late))
        loop.call_soon(slow_iteration)
        while not ran and late < 20:
            await turn()
        assert ran, "it ran in the iteration after its deadline"
        assert ran[0] <= 2
        timer.close()

    def test_call_of_the_clock_that_is_lost_is_made_up_for(self, clock: FaultLog, timer: WheelTimer) -> None:
        """As by a KeyboardInterrupt where the call began: with the one call of the clock, all timers would stop."""
        first, second = Note(clock), Note(clock)
        timer.add(first, 1.0)
        clock._heap.clear()
        clock.advance(2.0)
        assert not first.ran
        timer.add(second, 2.5)
        clock.advance(1.0)
        assert (first.ran, second.ran) == ([2.0], [2.5])
        check_timer(timer)

    @pytest.mark.parametrize("kind", ["task", "operation"])
    @pytest.mark.parametrize("deadline", [0.5, 50.0])
    def test_a_clock_that_refuses_to_be_armed_leaves_a_task_where_it_was(self, kind: str, deadline: float) -> None:
        clock = RefusingClock()
        purgatory = DelayedOperationPurgatory(clock=clock)
        operation, task = purgatory.try_complete_else_watch(Flag(deadline), ["key"]), Note(clock)
        purgatory.timer.add(task, deadline)
        clock.refuses = True
        with pytest.raises(RuntimeError, match="refused"):
            if kind == "task":
                purgatory.timer.reschedule(task, 0.1)
            else:
                operation.reschedule(0.1)
        clock.refuses = False
        check_timer(purgatory.timer)
        assert operation.deadline == deadline
        clock.advance(100.0)
        assert (task.ran, operation.outcome) == ([deadline], "expired")

    @pytest.mark.parametrize("ahead", [0.0, 10.0])
    @pytest.mark.parametrize("delay", [0.0, 0.5, 30.0])
    def test_a_clock_that_goes_back_takes_the_hands_with_it(self, delay: float, ahead: float) -> None:
        clock = FaultLog()
        timer, before, after = WheelTimer(clock), Note(clock), Note(clock)
        clock.ahead = 1000.0  # as while a test replaces its time
        timer.add_later(before, ahead)
        clock.ahead = 0.0
        timer.add_later(after, delay)
        check_timer(timer)
        clock.advance(delay)
        assert (after.ran, before.ran) == ([delay], [])
        clock.advance_to(2000.0)
        assert before.ran == [1000.0 + ahead]


class TestAsAClock:
    """`WheelTimer` stands where `loop.call_at` and `loop.call_later` stand."""

    def test_callbacks_run_in_the_order_of_their_times(
        self, clock: VirtualClock, timer: WheelTimer, note: Note
    ) -> None:
        as_clock: Clock = timer
        clock.advance(10)
        assert as_clock.time() == 10.0
        ran: list[str] = []
        timer.call_later(2.0, ran.append, "later")
        timer.add_later(note, 1.5)
        timer.call_at(11.0, ran.append, "at")
        timer.call_at(11.5, ran.append, "cancelled").cancel()
        clock.advance(2)
        assert (ran, note.ran) == (["at", "later"], [11.5])

    def test_the_handle_is_like_a_handle_of_the_loop(self, timer: WheelTimer) -> None:
        handle = timer.call_later(2.0, print)
        assert (handle.when(), handle.cancelled()) == (2.0, False)
        assert repr(handle) == "<TimerHandle when=2.0>"
        handle.cancel()
        handle.cancel()
        assert handle.cancelled()
        assert repr(handle) == "<TimerHandle cancelled>"

    def test_a_call_that_is_cancelled_as_its_time_has_come_does_not_run(self, timer: WheelTimer) -> None:
        ran: list[str] = []
        later = timer.call_at(1.0, ran.append, "later")
        later.cancel()
        later._timer_expire()
        assert ran == []

    async def test_a_timer_drives_a_timer_and_a_timer_finds_its_loop(self) -> None:
        timer = WheelTimer(WheelTimer())
        done = asyncio.Event()
        asked = timer.time()
        timer.call_later(0.01, done.set)
        await asyncio.wait_for(done.wait(), 30)
        assert timer.time() >= asked + 0.01

    def test_timer_without_a_clock_needs_a_running_loop(self, clock: VirtualClock) -> None:
        timer = WheelTimer()
        for call in (timer.time, lambda: timer.add(Note(clock), 1.0)):
            with pytest.raises(RuntimeError, match="no running asyncio event loop"):
                call()


class TestFaults:
    def test_a_task_that_raises_harms_no_other(self, clock: FaultLog, note: Note) -> None:
        timer = WheelTimer(WheelTimer(clock))
        error = LookupError()
        timer.call_at(1.0, raising(error))
        timer.add(note, 1.0)
        clock.advance(1)
        assert note.ran == [1.0]
        assert clock.exceptions == [error]
        assert clock.faults[0]["message"] == "TimerHandle raised at its deadline"

    def test_faults_go_to_the_log_without_an_exception_handler(
        self, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        virtual = VirtualClock()

        class Bare:
            time = virtual.time
            call_at = virtual.call_at

        class Broken(Bare):
            def call_exception_handler(self, context: object) -> None:
                raise asyncio.CancelledError

        def fail() -> None:
            for clock in (Bare(), Broken()):
                WheelTimer(clock).call_at(virtual.time(), "abc".index, "missing")
            virtual.advance(0)

        fail()
        messages = [record.getMessage() for record in caplog.records]
        assert messages.count("TimerHandle raised at its deadline") == 2
        assert len(messages) == 3
        assert "the exception handler of" in messages[1]
        monkeypatch.setattr(logging.getLogger("purgatory"), "filters", [raising(ZeroDivisionError)])
        fail()
        assert "ZeroDivisionError" in capsys.readouterr().err

    def test_a_request_to_exit_leaves_the_other_tasks_to_the_next_wake_up(
        self, clock: FaultLog, timer: WheelTimer
    ) -> None:
        note, later = Note(clock), Note(clock)
        timer.call_at(1.0, raising(SystemExit))
        timer.add(note, 1.0)
        timer.add(later, 2.0)
        with pytest.raises(SystemExit):
            clock.advance(1)
        assert (note.ran, len(timer), clock.exceptions) == ([], 2, [])
        clock.advance(0)
        assert note.ran == [1.0]
        clock.advance(1)
        assert later.ran == [2.0]
