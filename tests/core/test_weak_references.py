"""Every object that a program may keep can be referred to weakly, so that caches and finalizers are possible."""

import asyncio
import weakref
from collections.abc import Callable

import pytest

from purgatory import (
    Delay,
    DelayedFutures,
    DelayedOperationPurgatory,
    IdleTracker,
    ThresholdPurgatory,
    VirtualClock,
    WheelTimer,
)
from tests.support.operations import Flag


@pytest.mark.parametrize(
    "kind",
    [
        "Delay",
        "operation",
        "purgatory",
        "ThresholdPurgatory",
        "operation of a threshold",
        "IdleTracker",
        "WheelTimer",
        "VirtualClock",
        "WheelTimer's handle",
        "VirtualClock's handle",
    ],
)
def test_an_object_can_be_referred_to_weakly(clock: VirtualClock, kind: str) -> None:
    purgatory = DelayedOperationPurgatory(clock=VirtualClock())
    thresholds = ThresholdPurgatory(0, purgatory)
    makers: dict[str, Callable[[], object]] = {
        "Delay": lambda: Delay(1.0),
        "operation": Flag,
        "purgatory": lambda: DelayedOperationPurgatory(clock=clock),
        "ThresholdPurgatory": lambda: ThresholdPurgatory(0),
        "operation of a threshold": lambda: thresholds.reach(-1, None),
        "IdleTracker": lambda: IdleTracker(1.0, clock=clock),
        "WheelTimer": WheelTimer,
        "VirtualClock": VirtualClock,
        "WheelTimer's handle": lambda: WheelTimer(VirtualClock()).call_later(1.0, int),
        "VirtualClock's handle": lambda: VirtualClock().call_at(1.0, int),
    }
    made = makers[kind]()
    reference = weakref.ref(made)
    assert reference() is made


async def test_an_operation_on_futures_can_be_referred_to_weakly() -> None:
    operation = DelayedFutures([asyncio.get_running_loop().create_future()], 1.0)
    reference = weakref.ref(operation)
    assert reference() is operation
