"""Every object that a program may keep has weak references, and is not copied or pickled, as futures are not."""

import asyncio
import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import (
    Delay,
    DelayedFutures,
    DelayedOperationPurgatory,
    IdleTracker,
    ThresholdPurgatory,
    VersionedValues,
    VirtualClock,
    WheelTimer,
)
from tests.support.operations import Flag, Note

COPIES: list[Callable[[Any], object]] = [copy.copy, copy.deepcopy, pickle.dumps]

_LOOP = asyncio.new_event_loop()
_LOOP.close()

Make = Callable[[DelayedOperationPurgatory], object]
OBJECTS: dict[str, Make] = {
    "operation that is new": lambda purgatory: Delay(1.0),
    "operation that waits": lambda purgatory: purgatory.try_complete_else_watch(Delay(1.0), ["key"]),
    "operation that is done": lambda purgatory: purgatory.try_complete_else_watch(Flag(1.0, ready=True), ["key"]),
    "operation on futures": lambda purgatory: DelayedFutures([asyncio.Future(loop=_LOOP)], 1.0),
    "operation of a threshold": lambda purgatory: ThresholdPurgatory(0, purgatory).reach(-1, None),
    "purgatory": lambda purgatory: purgatory,
    "thresholds": lambda purgatory: ThresholdPurgatory(0, purgatory),
    "versions": lambda purgatory: VersionedValues(0, purgatory),
    "idle tracker": lambda purgatory: IdleTracker(1.0, clock=purgatory.timer),
    "timer": lambda purgatory: purgatory.timer,
    "timer's call": lambda purgatory: purgatory.timer.call_later(1.0, int),
    "timer's task": lambda purgatory: Note(VirtualClock()),
    "clock": lambda purgatory: VirtualClock(),
    "clock's call": lambda purgatory: VirtualClock().call_at(1.0, int),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_can_be_referred_to_weakly(purgatory: DelayedOperationPurgatory, kind: str) -> None:
    made = OBJECTS[kind](purgatory)
    assert weakref.ref(made)() is made


@pytest.mark.parametrize("kind", [kind for kind in OBJECTS if kind != "clock's call"])
def test_a_copy_is_refused_and_harms_nothing(purgatory: DelayedOperationPurgatory, kind: str) -> None:
    made = OBJECTS[kind](purgatory)
    for how in COPIES:
        with pytest.raises(TypeError, match=f"cannot copy or pickle a {type(made).__qualname__}"):
            how(made)
    if isinstance(made, Delay) and purgatory.num_delayed:
        assert made.force_complete()
        assert purgatory.num_delayed == 0


class Limit(int):
    """A limit that refers to its purgatory."""

    purgatory: DelayedOperationPurgatory


def test_a_purgatory_in_a_cycle_is_collected() -> None:
    limit = Limit(5)
    limit.purgatory = DelayedOperationPurgatory(clock=VirtualClock(), max_pending=limit)
    limit.purgatory.try_complete_else_watch(Flag(None), [limit])
    left = weakref.ref(limit.purgatory)
    del limit
    gc.collect()
    assert left() is None


def test_a_timer_in_a_cycle_is_collected() -> None:
    clock = VirtualClock()
    timer = WheelTimer(clock)
    timer.call_later(1e6, print, timer)
    left = weakref.ref(timer)
    del timer, clock
    gc.collect()
    assert left() is None
