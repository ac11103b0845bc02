"""Random inserts, cancels, moves and advances: the timer runs the tasks of a sorted list, at their times."""

import random
from bisect import bisect_left, insort

import pytest

from purgatory import TimerTask, VirtualClock, WheelTimer
from tests.support.invariants import check_timer

STEPS = 30_000
TEN_YEARS = 3.2e8


class Numbered(TimerTask):
    """Notes its number and the time at which it runs."""

    __slots__ = ("clock", "number", "ran")

    def __init__(self, number: int, clock: VirtualClock, ran: "list[tuple[float, Numbered]]") -> None:
        super().__init__()
        self.number = number
        self.clock = clock
        self.ran = ran

    def run(self) -> None:
        self.ran.append((self.clock.time(), self))


@pytest.mark.parametrize("tick", [0.0001, 0.001, 0.01, 0.1, 1.0, 7.3, 60.0])
def test_tasks_run_in_order_never_early_and_late_by_less_than_a_tick(tick: float) -> None:
    randomly = random.Random(tick)
    clock = VirtualClock(randomly.choice([0.0, 1e3, 1.7e9]))
    timer = WheelTimer(clock, tick=tick, wheel_size=randomly.choice([2, 8, 20, 60]))
    ran: list[tuple[float, Numbered]] = []
    # The model: (deadline, number) in order, and the task of each number.
    expected: list[tuple[float, int]] = []
    tasks: dict[int, Numbered] = {}

    def seconds() -> float:
        """A delay from a fraction of a tick to ten years, on all scales alike; at times a whole number of ticks."""
        scale = min(tick * 10 ** randomly.uniform(-2, 12), TEN_YEARS)
        return randomly.choice([scale, scale, scale, round(scale / tick) * tick, 0.0])

    for step in range(STEPS):
        now = clock.time()
        action = randomly.random()
        if action < 0.5 or not expected:
            deadline = now + seconds()
            task = tasks[step] = Numbered(step, clock, ran)
            timer.add(task, deadline)
            insort(expected, (deadline, step))
        elif action < 0.85:
            deadline, number = expected[randomly.randrange(len(expected))]
            del expected[bisect_left(expected, (deadline, number))]
            if action < 0.75:
                assert timer.cancel(tasks.pop(number))
            else:
                deadline = now + seconds() - randomly.choice([0.0, 0.0, 10 * tick])
                timer.reschedule(tasks[number], deadline)
                insort(expected, (deadline, number))
        else:
            # Most advances end near the next deadline, some far beyond many deadlines.
            target = expected[min(int(randomly.expovariate(0.5)), len(expected) - 1)][0]
            clock.advance_to(max(now, target + randomly.choice([0.0, tick, -tick * randomly.random()])))
            slack = tick + (abs(clock.time()) + tick) * 1e-15
            tick_before = -float("inf")
            for when, task in ran:
                deadline = task._timer_deadline
                del expected[bisect_left(expected, (deadline, task.number))]
                del tasks[task.number]
                assert deadline <= when, "early"
                assert when < max(now, deadline) + slack, "late"
                assert tick_before <= when, "out of order"
                tick_before = when
            ran.clear()
            assert not expected or expected[0][0] > clock.time() - slack, "missed"
        if step % 5000 == 0:
            assert len(timer) == len(tasks)
            check_timer(timer)
    clock.advance(2 * TEN_YEARS)
    assert sorted(task.number for _, task in ran) == sorted(tasks)
    assert len(timer) == 0
