"""A number of seconds may be of any real type: a `Decimal` works as a `float` does; anything else is refused first."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, IdleTracker, ThresholdPurgatory, WheelTimer
from tests.support.operations import FaultLog, Flag

EXACT: list[Any] = [Decimal("1.5"), Fraction(3, 2), 1.5]


@pytest.mark.parametrize("seconds", EXACT, ids=repr)
def test_a_timeout_may_be_of_any_real_type(purgatory: DelayedOperationPurgatory, clock: FaultLog, seconds: Any) -> None:
    operation = purgatory.try_complete_else_watch(Flag(seconds), ["key"])
    clock.advance(1.499)
    assert not operation.done()
    clock.advance(0.001)
    assert operation.expired()
    assert purgatory.statistics().expired == 1


@pytest.mark.parametrize("seconds", EXACT, ids=repr)
def test_a_reschedule_takes_any_real_type(purgatory: DelayedOperationPurgatory, clock: FaultLog, seconds: Any) -> None:
    operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
    operation.reschedule(seconds)
    clock.advance(1.499)
    assert not operation.done()
    clock.advance(0.001)
    assert operation.expired()


@pytest.mark.parametrize("seconds", EXACT, ids=repr)
def test_thresholds_and_idle_trackers_take_any_real_type(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, seconds: Any
) -> None:
    wait = ThresholdPurgatory(0, purgatory).reach(1, seconds)
    idle: list[str] = []
    IdleTracker(seconds, idle.append, clock=clock).touch("key")
    clock.advance(1.499)
    assert (wait.done(), idle) == (False, [])
    clock.advance(0.1)
    assert (wait.expired(), idle) == (True, ["key"])


def test_a_timer_takes_any_number_that_can_be_added_to_the_time(clock: FaultLog) -> None:
    timer = WheelTimer(clock)
    called: list[float] = []
    later: list[Any] = [Fraction(3, 2), Decimal("1.5")]
    timer.call_later(later[0], lambda: called.append(clock.time()))
    with pytest.raises(TypeError):  # as loop.call_later() does
        timer.call_later(later[1], print)
    assert len(timer) == 1
    clock.advance(2.0)
    assert called == [1.5]


@pytest.mark.parametrize(
    "seconds",
    [Decimal("NaN"), Decimal("sNaN"), Decimal(-1), Decimal("Infinity"), Fraction(-1, 2)],
    ids=repr,
)
def test_a_number_out_of_range_is_refused(purgatory: DelayedOperationPurgatory, seconds: Any) -> None:
    with pytest.raises(ValueError, match="timeout"):
        Flag(seconds)
    operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
    with pytest.raises(ValueError, match="timeout"):
        operation.reschedule(seconds)
    assert len(purgatory.timer) == 1


@pytest.mark.parametrize("seconds", ["1.5", b"1", [], 1j, object()], ids=["str", "bytes", "list", "complex", "object"])
def test_a_value_that_is_no_number_is_refused(seconds: Any) -> None:
    with pytest.raises(TypeError, match="timeout"):
        Flag(seconds)
