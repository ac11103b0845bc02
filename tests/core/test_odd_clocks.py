"""Clocks of users' own: they jump far ahead, stand still, call early or late, go backwards."""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVarTuple

import pytest

from purgatory import DelayedOperationPurgatory, Handle, WheelTimer
from tests.support.invariants import check_timer
from tests.support.operations import FaultLog, Flag, Note

Ts = TypeVarTuple("Ts")
YEAR = 365.25 * 86_400


class Jumping(FaultLog):
    """Shows a later time all at once, and calls back only then: a machine that was suspended."""

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> Handle:
        return super().call_at(when - self.ahead, callback, *args)


class Shifted(FaultLog):
    """Calls back `shift` seconds too late, or too early if that is negative."""

    def __init__(self, shift: Callable[[], float]) -> None:
        super().__init__()
        self.shift = shift

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> Handle:
        return super().call_at(max(when + self.shift(), self.time()), callback, *args)


@pytest.mark.parametrize("jump", [1.0, 3600.0, 1000 * YEAR])
def test_all_tasks_run_in_order_after_a_clock_has_jumped_far_ahead(jump: float) -> None:
    clock = Jumping()
    timer = WheelTimer(clock)
    order: list[float] = []
    deadlines = [jump * 2 ** -(n / 100) for n in range(2000)]
    random.Random(1).shuffle(deadlines)
    for deadline in deadlines:
        timer.call_at(deadline, order.append, deadline)
    later, soon = Note(clock), Note(clock)
    timer.add(later, jump * 1.5)
    clock.ahead = jump
    timer.add(soon, jump + 0.02)
    wake_ups = 0
    while len(order) < 2000:
        timer._wake()
        wake_ups += 1
    assert all(first < second + 0.001 for first, second in pairwise(order))
    # The wake-ups are as many as the slices of buckets, cascades and tasks, however many years have passed.
    assert wake_ups <= 2 * (2000 + timer.statistics().buckets + timer.statistics().cascaded) // 1000 + 1
    assert (later.ran, soon.ran) == ([], [])
    clock.advance(0.03)
    assert soon.ran == [pytest.approx(jump + 0.02)]
    clock.ahead *= 2
    while not later.ran:
        timer._wake()
    check_timer(timer)


@pytest.mark.parametrize("seconds", [-0.001, -0.0005, 0.0005, 0.4, 90.0])
def test_operations_expire_once_when_the_clock_calls_early_or_late(seconds: float) -> None:
    randomly = random.Random(seconds)
    clock = Shifted(lambda: seconds * randomly.random())
    purgatory = DelayedOperationPurgatory(clock=clock)
    expired: list[tuple[float, float]] = []

    class Timed(Flag):
        def __init__(self, timeout: float) -> None:
            super().__init__(timeout)
            self.seconds = timeout

        def on_expiration(self) -> None:
            expired.append((self.seconds, clock.time()))

    timeouts = [randomly.random() * 10 ** randomly.randrange(4) for _ in range(500)]
    for timeout in timeouts:
        purgatory.try_complete_else_watch(Timed(timeout), ["key"])
    clock.advance(2000.0)
    assert sorted(timeout for timeout, _ in expired) == sorted(timeouts)
    allowed = 0.0021 + max(seconds, 0.0) * 8  # a task that cascades depends on several calls, each of which may be late
    assert [(timeout, when) for timeout, when in expired if not timeout <= when <= timeout + allowed] == []
    assert len(clock.armed) <= 20 * len(timeouts)
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
