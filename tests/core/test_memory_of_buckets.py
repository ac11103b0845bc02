"""The memory of a timer is bounded by the tasks that wait in it, and not by those that have passed through it."""

import tracemalloc
from collections import deque
from collections.abc import Iterator

import pytest

from purgatory import DelayedOperationPurgatory, WheelTimer
from tests.support.operations import FaultLog, Waiting

HOURS = 3 * 3600.0
PENDING = 2_000
A_TASK = 200
"""Bytes that a timer may take for each task that waits in it: an entry of a `dict`, which may be sparsely filled."""


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def allocated() -> int:
    return tracemalloc.get_traced_memory()[0]


def watch(purgatory: DelayedOperationPurgatory) -> list[Waiting]:
    return [purgatory.try_complete_else_watch(Waiting(HOURS), (n & 1023,)) for n in range(PENDING)]


def test_operations_that_pass_through_take_no_memory(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    pending = deque(watch(purgatory))
    before = allocated()
    for n in range(10 * PENDING):
        pending.append(purgatory.try_complete_else_watch(Waiting(HOURS), (n & 1023,)))
        pending.popleft().force_complete()
        if n % 100 == 0:
            clock.advance(0.001)
    assert len(purgatory.timer) == PENDING
    assert allocated() - before <= A_TASK * PENDING


@pytest.mark.parametrize("step", [0.0, 500.0])
def test_heartbeats_that_reschedule_take_no_memory(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, step: float
) -> None:
    members = watch(purgatory)
    before = allocated()
    for _ in range(15):
        clock.advance(step)
        for member in members:
            member.reschedule(HOURS)
        clock.armed.clear()
    assert len(purgatory.timer) == PENDING
    assert allocated() - before <= A_TASK * PENDING


def test_a_bucket_that_empties_and_fills_again_does_not_grow(clock: FaultLog) -> None:
    timer = WheelTimer(clock)
    sizes = []
    for _ in range(6):
        handles = [timer.call_later(HOURS, int) for _ in range(PENDING)]
        sizes.append(allocated())
        for handle in handles:
            handle.cancel()
    assert max(sizes[1:]) - sizes[0] <= A_TASK * PENDING


def test_drained_buckets_free_their_memory(clock: FaultLog) -> None:
    timer = WheelTimer(clock)
    before = allocated()
    for _ in range(5 * PENDING):
        timer.call_later(1.0, int)
    full = allocated() - before
    clock.advance(10.0)
    clock.armed.clear()
    assert len(timer) == 0
    assert allocated() - before < full / 10
