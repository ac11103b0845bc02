"""Deadlines and wake-ups at the edges: overdue, below zero, beyond all ticks, late calls, and counts in between."""

import math
from contextlib import suppress
from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import pytest

import purgatory._timer.timer
from purgatory import TimingWheel, WheelTimer
from purgatory._core.slices import Slice
from tests.support.cores import looks_inside
from tests.support.invariants import check_timer
from tests.support.operations import FaultLog, Note, RefusingClock


@pytest.mark.parametrize("overdue", [1.0, 15.0, 20.0, 100.0, 400.0, 1e9])
def test_an_overdue_task_does_not_wait_in_the_bucket_of_a_later_round(overdue: float) -> None:
    clock = FaultLog(1e5)
    timer = WheelTimer(clock, tick=1.0)
    for ahead in range(25):  # all slots of the lowest level are in use
        timer.add(Note(clock), clock.time() + ahead)
    note = Note(clock)
    timer.add(note, clock.time() - overdue)
    clock.advance(0)
    assert note.ran == [1e5]
    check_timer(timer)


@pytest.mark.parametrize("tick", [0.001, 0.3, 1.0])
def test_deadline_below_zero_rounds_up_to_its_tick_and_no_further(tick: float) -> None:
    clock = FaultLog(-1000.5)
    timer = WheelTimer(clock, tick=tick)
    notes = {-1000.25 + n * 0.37: Note(clock) for n in range(3000)}
    for deadline, note in notes.items():
        timer.add(note, deadline)
    clock.advance_to(200.0)
    for deadline, note in notes.items():
        assert deadline <= note.ran[0] < deadline + tick + 1e-12


@pytest.mark.parametrize("deadline", [float("inf"), 1e300, 2.0**53 / 1000, 10**400, Fraction(10**400, 3)])
def test_task_beyond_all_ticks_does_not_wait(clock: FaultLog, deadline: Any) -> None:
    timer = WheelTimer(clock)
    note = Note(clock)
    timer.add(note, deadline)
    assert (len(timer), len(timer.wheels), clock.armed) == (0, 1, [])
    assert not timer.cancel(note)
    timer.add(note, 1.0)
    timer.reschedule(note, deadline)
    assert len(timer) == 0
    clock.advance(2.0)
    assert note.ran == []


@pytest.mark.parametrize("late", [0.0, 0.00005, 0.0002])
def test_a_late_call_does_not_postpone_the_next_one(late: float) -> None:
    class Clock(FaultLog):
        ahead = 0.0

        def time(self) -> float:
            return super().time() + self.ahead

    clock = Clock()
    timer = WheelTimer(clock, tick=0.0001)
    for deadline in (0.001, 0.0014):
        timer.add(Note(clock), deadline)
    clock.ahead = 0.001 + late
    timer._wake()
    assert clock.armed[-1] == 0.0014


def test_all_levels_are_counted_while_a_bucket_moves_down_in_slices(clock: FaultLog) -> None:
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
    assert seen[0][1] == 2500 - seen[0][0]
    assert seen[-1] == (2500, 0)
    assert len(timer) == 2500


def test_the_finest_tick_is_a_microsecond(clock: FaultLog) -> None:
    timer = WheelTimer(clock, tick=1e-6)
    note = Note(clock)
    timer.add(note, 0.0000025)
    clock.advance(1.0)
    assert note.ran == [pytest.approx(0.000003)]
    with pytest.raises(ValueError, match="a microsecond or more"):
        WheelTimer(clock, tick=9.99e-7)


def test_statistics_are_a_snapshot(clock: FaultLog) -> None:
    timer = WheelTimer(clock)
    statistics = timer.statistics()
    for name in ("tasks", "wake_ups"):
        with pytest.raises(FrozenInstanceError):
            setattr(statistics, name, 1)
    timer.add(Note(clock), 1.0)
    assert (statistics.tasks, timer.statistics().tasks) == (0, 1)


@pytest.mark.parametrize("closes", range(8))
@looks_inside
def test_closes_while_wheels_are_made_do_not_lose_the_task(
    clock: FaultLog, monkeypatch: pytest.MonkeyPatch, closes: int
) -> None:
    """As by finalizers: the wheel that has just been made is none of the timer's any more."""
    timer = WheelTimer(clock)
    left = [timer.close] * closes

    class Closing(TimingWheel):
        __slots__ = ()

        def __init__(self, level: int, unit: int, size: int, current: int) -> None:
            super().__init__(level, unit, size, current)
            if left and level > 1:
                left.pop()()

    monkeypatch.setattr(purgatory._timer.timer, "TimingWheel", Closing)
    note = Note(clock)
    timer.add(note, 50.0)
    assert not left
    assert len(timer) == 1
    check_timer(timer)
    clock.advance(50.0)
    assert note.ran == [50.0]


def test_an_entry_in_the_heap_without_its_bucket_is_dropped() -> None:
    """The clock had refused to call back for it, after the entry came into the heap and before the bucket did."""
    clock = RefusingClock()
    timer = WheelTimer(clock, tick=1.0)
    late, refused, early = Note(clock), Note(clock), Note(clock)
    timer.add(late, 10.0)
    clock.refuses = True
    with pytest.raises(RuntimeError, match="refused"):
        timer.add(refused, 5.0)
    clock.refuses = False
    timer.add(early, 3.0)
    clock.advance_to(3.0)
    assert clock.armed == [10.0, 3.0, 10.0]
    clock.advance_to(20.0)
    assert (early.ran, refused.ran, late.ran) == ([3.0], [], [10.0])
    check_timer(timer)


def test_call_of_the_clock_that_is_lost_is_made_up_for(clock: FaultLog) -> None:
    """As by a KeyboardInterrupt where the call began: with the one call of the clock, all timers would stop."""
    timer = WheelTimer(clock)
    first, second = Note(clock), Note(clock)
    timer.add(first, 1.0)
    clock._heap.clear()
    clock.advance(2.0)
    assert not first.ran
    timer.add(second, 2.5)
    clock.advance(1.0)
    assert (first.ran, second.ran) == ([2.0], [2.5])
    check_timer(timer)


@looks_inside
@pytest.mark.parametrize("name", ["new_slice", "_arm_next"])
def test_interrupt_of_a_part_of_a_wake_up_does_not_stop_other_tasks(name: str, clock: FaultLog) -> None:
    class Interrupted(WheelTimer):
        interrupts = 0

        def _interrupt(self) -> None:
            if clock.time() >= 1.0 and not self.interrupts:
                self.interrupts += 1
                raise KeyboardInterrupt

        def new_slice(self) -> Slice:
            if name == "new_slice":
                self._interrupt()
            return super().new_slice()

        def _arm_next(self, not_before: float = -math.inf) -> None:
            if name == "_arm_next":
                self._interrupt()
            super()._arm_next(not_before)

    timer = Interrupted(clock)
    ran: list[int] = []
    for number in range(3):
        timer.call_at(1.0 + number, ran.append, number)
    with pytest.raises(KeyboardInterrupt):
        clock.advance(5.0)
    clock.advance(5.0)
    assert ran == [0, 1, 2]
    assert timer.interrupts == 1
    check_timer(timer)


@pytest.mark.parametrize("nth", range(1, 6))
def test_interrupt_of_a_wake_up_does_not_stop_other_tasks(nth: int) -> None:
    class Interrupted(FaultLog):
        left = 0

        def time(self) -> float:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().time()

    clock = Interrupted()
    timer = WheelTimer(clock)
    ran: list[int] = []
    for number in range(3):
        timer.call_at(1.0 + number, ran.append, number)
    clock.left = nth
    for _ in range(3):
        with suppress(KeyboardInterrupt):
            clock.advance(5.0)
    assert ran == [0, 1, 2]
    check_timer(timer)
