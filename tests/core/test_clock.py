"""The virtual clock, and clocks of users' own: they jump far ahead, stand still, call early or late."""

import heapq
import logging
import math
import random
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVarTuple

import pytest

from purgatory import DelayedOperationPurgatory, Handle, VirtualClock, WheelTimer
from tests.support.invariants import check_timer
from tests.support.operations import FaultLog, Flag, Note, raising

Ts = TypeVarTuple("Ts")
YEAR = 365.25 * 86_400


def test_callbacks_run_in_order_of_time_then_of_coming_each_at_its_own_time(clock: VirtualClock) -> None:
    ran: list[tuple[str, float]] = []

    def note(name: str) -> None:
        ran.append((name, clock.time()))

    clock.call_at(2.0, note, "second")
    clock.call_at(1.0, note, "first")
    cancelled = clock.call_at(2.0, note, "cancelled")
    clock.call_at(2.0, note, "third")
    clock.call_at(1.0, clock.call_at, 2.0, note, "asked for in the same move")
    clock.call_at(9.0, note, "later")
    for _ in range(2):
        cancelled.cancel()
    clock.advance(5.0)
    assert ran == [("first", 1.0), ("second", 2.0), ("third", 2.0), ("asked for in the same move", 2.0)]
    clock.call_at(1.0, note, "past")
    assert len(ran) == 4
    clock.advance_to(5.0)
    assert ran[4:] == [("past", 5.0)], "at the next move, and not before"


def test_an_exception_is_raised_by_advance_and_the_rest_stays_scheduled(clock: VirtualClock) -> None:
    ran: list[float] = []

    clock.call_at(1.0, raising())
    clock.call_at(2.0, lambda: ran.append(clock.time()))
    with pytest.raises(LookupError):
        clock.advance(5.0)
    assert clock.time() == 1.0
    clock.advance(1.0)
    assert ran == [2.0]


def test_a_callback_cannot_move_the_time(clock: VirtualClock) -> None:
    clock.call_at(1.0, clock.advance, 1.0)
    with pytest.raises(RuntimeError, match="being advanced already"):
        clock.advance(1.0)


@pytest.mark.parametrize(
    ("when", "message"),
    [(math.nan, "finite"), (math.inf, "finite"), (0.5, "when must be at least 1.0, not 0.5: time does not")],
)
def test_a_move_backwards_or_to_no_finite_time_is_refused(when: float, message: str) -> None:
    clock = VirtualClock(1.0)
    with pytest.raises(ValueError, match=re.escape(message)):
        clock.advance_to(when)
    assert clock.time() == 1.0


def test_uncaught_exceptions_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    error = LookupError("lost")
    VirtualClock().call_exception_handler({"message": "something raised", "exception": error})
    assert caplog.record_tuples == [("purgatory", logging.ERROR, "something raised")]
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[1] is error


@pytest.mark.parametrize("live", [0, 10, 1000])
def test_cancelled_calls_are_dropped_seldom_but_in_time(live: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuilt: list[int] = []

    def heapify(heap: list[Any]) -> None:
        rebuilt.append(len(heap))
        heapq.heapify(heap)

    monkeypatch.setattr("purgatory._virtual.heapify", heapify)
    clock = VirtualClock()
    ran: list[int] = []
    for n in range(live):
        clock.call_at(2.0 + n, ran.append, n)
    for _ in range(10_000):
        clock.call_at(1.0, ran.append, -1).cancel()
        assert len(clock._heap) <= max(2 * live, live + 64) + 1
    assert set(rebuilt) == {live}
    assert len(rebuilt) == 10_000 // (max(live, 64) + 1)
    assert repr(clock) == f"<VirtualClock time=0.0 scheduled={live}>"
    clock.advance(2000.0)
    assert ran == list(range(live))


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
