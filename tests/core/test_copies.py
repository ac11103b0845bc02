"""Operations, purgatories and timers cannot be copied or pickled, as futures cannot."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Delay, DelayedOperationPurgatory, IdleTracker, ThresholdPurgatory, VirtualClock, WheelTimer
from tests.support.operations import Flag

COPIES: list[Callable[[Any], object]] = [copy.copy, copy.deepcopy, pickle.dumps]


def made(clock: VirtualClock, kind: str) -> object:
    purgatory = DelayedOperationPurgatory(clock=clock)
    match kind:
        case "operation that is new":
            return Delay(1.0)
        case "operation that waits":
            return purgatory.try_complete_else_watch(Delay(1.0), ["key"])
        case "operation that is done":
            return purgatory.try_complete_else_watch(Flag(1.0, ready=True), ["key"])
        case "purgatory":
            return purgatory
        case "timer":
            return WheelTimer(clock)
        case "timer's call":
            return WheelTimer(clock).call_later(1.0, print)
        case "thresholds":
            return ThresholdPurgatory(0, purgatory)
        case "clock":
            return clock
    return IdleTracker(1.0, clock=clock)


@pytest.mark.parametrize("how", COPIES, ids=lambda how: how.__name__)
@pytest.mark.parametrize(
    "kind",
    [
        "operation that is new",
        "operation that waits",
        "operation that is done",
        "purgatory",
        "timer",
        "timer's call",
        "thresholds",
        "clock",
        "idle tracker",
    ],
)
def test_a_copy_is_refused(clock: VirtualClock, kind: str, how: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError):
        how(made(clock, kind))


def test_operation_is_unharmed_by_a_refused_copy(purgatory: DelayedOperationPurgatory) -> None:
    operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
    for how in COPIES:
        with pytest.raises(TypeError):
            how(operation)
    operation.ready = True
    assert purgatory.check_and_complete("key") == 1
    assert purgatory.num_delayed == 0
