"""A purgatory to which the program has no reference: its deadlines are kept, and nothing else is."""

import gc
import weakref
from collections.abc import Callable

import pytest

from purgatory import DelayedOperationPurgatory, VirtualClock
from tests.support.operations import FaultLog, Flag


class _Slotted(Flag):
    """An operation with state of its own, which a collection must not take from it."""

    __slots__ = ("state",)

    def __init__(self, timeout: float | None, state: list[str]) -> None:
        super().__init__(timeout)
        self.state = state

    def on_complete(self) -> str:
        self.state.append("completed")
        return super().on_complete()


@pytest.mark.parametrize("forever", [0, 3])
def test_operations_of_a_dropped_purgatory_complete_at_their_deadline(clock: FaultLog, forever: int) -> None:
    state: list[str] = []
    purgatory = DelayedOperationPurgatory(clock=clock)
    dropped = weakref.ref(purgatory)
    for timeout in [1.0] * 5 + [7200.0] * 5 + [None] * forever:
        purgatory.try_complete_else_watch(_Slotted(timeout, state), ["key"])
    del purgatory
    gc.collect()
    assert dropped() is None
    clock.advance(1.0)
    assert state == ["completed"] * 5
    gc.collect()
    clock.advance(7200.0)
    assert state == ["completed"] * 10
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
