"""Every object that a program may keep has weak references, is not copied or pickled, and is collected when dropped.

Of a purgatory to which the program has no reference, the deadlines are kept, and nothing else is.
"""

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
from tests.support.operations import FaultLog, Flag, Note

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


@pytest.mark.parametrize("forever", [0, 3])
def test_operations_of_a_dropped_purgatory_complete_at_their_deadline(clock: FaultLog, forever: int) -> None:
    calls: list[str] = []
    purgatory = DelayedOperationPurgatory(clock=clock)
    dropped = weakref.ref(purgatory)
    for timeout in [1.0] * 5 + [7200.0] * 5 + [None] * forever:
        purgatory.try_complete_else_watch(Flag(timeout, calls=calls), ["key"])
    del purgatory
    gc.collect()
    assert dropped() is None
    clock.advance(1.0)
    assert calls == ["flag completes", "flag expires"] * 5
    gc.collect()
    clock.advance(7200.0)
    assert calls == ["flag completes", "flag expires"] * 10
    assert not clock.faults


LEAVE: dict[str, Callable[[Flag, VirtualClock], object]] = {
    "expires": lambda _, clock: clock.advance(60.0),
    "is cancelled": lambda operation, _: operation.cancel(),
    "is forced": lambda operation, _: operation.force_complete(),
    "gets no deadline": lambda operation, _: operation.reschedule(None),
}


@pytest.mark.parametrize("as_clock", [False, True])
@pytest.mark.parametrize("leave", LEAVE)
def test_operations_without_a_deadline_do_not_outlive_a_dropped_purgatory(
    clock: FaultLog, leave: str, as_clock: bool
) -> None:
    purgatory = DelayedOperationPurgatory(clock=clock)
    timer = purgatory.timer  # which a call that is armed keeps too
    if as_clock:
        DelayedOperationPurgatory(clock=timer).try_complete_else_watch(Flag(90.0), ["key"])
    operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
    dropped = weakref.ref(purgatory.try_complete_else_watch(Flag(), ["key"]))
    del purgatory
    gc.collect()
    assert dropped() is not None
    LEAVE[leave](operation, clock)
    del operation
    gc.collect()
    assert dropped() is None
    assert len(timer) == as_clock
    assert not clock.faults
