"""The memory of a bucket is bounded by the tasks in it, and not by those that have passed through it."""

from collections import deque

import pytest

from purgatory import DelayedOperationPurgatory, WheelTimer
from tests.support.cores import looks_inside
from tests.support.memory import own_bytes
from tests.support.operations import FaultLog, Waiting

HOURS = 3 * 3600.0
PENDING = 10_000
A_TASK = 200
"""Bytes that a timer may take for each task that waits in it: an entry of a `dict`, which may be sparsely filled."""


def watch(purgatory: DelayedOperationPurgatory, count: int, timeout: float = HOURS) -> list[Waiting]:
    return [purgatory.try_complete_else_watch(Waiting(timeout), (n & 1023,)) for n in range(count)]


def test_operations_that_pass_through_take_no_memory(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    pending = deque(watch(purgatory, PENDING))
    sizes = []
    for n in range(10 * PENDING):
        pending.append(purgatory.try_complete_else_watch(Waiting(HOURS), (n & 1023,)))
        pending.popleft().force_complete()
        if n % 100 == 0:
            clock.advance(0.001)
        if n % PENDING == 0:
            sizes.append(own_bytes(purgatory.timer))
    assert len(purgatory.timer) == PENDING
    assert max(sizes) <= A_TASK * PENDING


@pytest.mark.parametrize("step", [0.0, 1.0, 500.0])
def test_heartbeats_that_reschedule_take_no_memory(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, step: float
) -> None:
    members = watch(purgatory, PENDING)
    sizes = []
    for _ in range(15):
        clock.advance(step)
        for member in members:
            member.reschedule(HOURS)
        sizes.append(own_bytes(purgatory.timer))
    assert len(purgatory.timer) == PENDING
    assert max(sizes) <= A_TASK * PENDING


@looks_inside
def test_a_bucket_that_empties_and_fills_again_does_not_grow(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    operations = watch(purgatory, 3 * PENDING)
    most = own_bytes(purgatory.timer)
    for _ in range(5):
        for operation in operations:
            operation.cancel()
        operations = watch(purgatory, 3 * PENDING)
        assert own_bytes(purgatory.timer) < 1.3 * most


@looks_inside
def test_drained_buckets_free_their_memory(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    watch(purgatory, 5 * PENDING, 1.0)
    most = own_bytes(purgatory.timer)
    clock.advance(10.0)
    assert len(purgatory.timer) == 0
    assert own_bytes(purgatory.timer) < most / 4


def test_a_reschedule_within_its_bucket_moves_nothing(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    members = watch(purgatory, 100)
    clock.armed.clear()
    before = own_bytes(purgatory.timer), purgatory.timer.statistics(), repr(purgatory.timer.wheels)
    for n in range(1000):
        for member in members:
            member.reschedule(HOURS + n / 1000)
    after = own_bytes(purgatory.timer), purgatory.timer.statistics(), repr(purgatory.timer.wheels)
    assert before == after
    assert clock.armed == []


def test_an_operation_rescheduled_within_its_bucket_expires_at_its_new_deadline(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    members = watch(purgatory, 3)
    members[0].reschedule(HOURS + 1.0)
    members[2].reschedule(HOURS - 1.0)
    done: list[list[bool]] = []
    for _ in range(4):
        clock.advance_to(HOURS - 1.5 + len(done))
        done.append([member.done() for member in members])
    assert done == [[False] * 3, [False, False, True], [False, True, True], [True] * 3]


def test_cancelled_calls_of_a_timer_take_no_memory(clock: FaultLog) -> None:
    timer = WheelTimer(clock)
    calls = deque(timer.call_later(HOURS, int) for _ in range(PENDING))
    for _ in range(10 * PENDING):
        calls.append(timer.call_later(HOURS, int))
        calls.popleft().cancel()
    assert len(timer) == PENDING
    assert own_bytes(timer) <= A_TASK * PENDING
