"""Promise 6: long work is done in slices of about a thousand entries, each in an iteration of its own."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from purgatory import DelayedOperationPurgatory, VirtualClock
from tests.support.operations import Flag

MANY = 5_000


def most_in_an_iteration(clock: VirtualClock, measure: Callable[[], int], end: float) -> int:
    """Advance the clock to `end`. Returns the largest rise of `measure()` between two calls of a heartbeat."""
    steps = []
    last = measure()

    def beat() -> None:
        nonlocal last
        steps.append(measure() - last)
        last = measure()
        if sum(steps) < MANY:
            clock.call_at(end, beat)

    clock.call_at(end, beat)
    clock.advance_to(end)
    assert sum(steps) == MANY
    return max(steps)


def test_expiry_is_done_in_slices(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    for _ in range(MANY):
        purgatory.try_complete_else_watch(Flag(0.01), ["key"])
    assert most_in_an_iteration(clock, lambda: purgatory.statistics().expired, 0.01) <= 1000


def test_a_cascade_is_done_in_slices(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    for n in range(MANY):
        purgatory.try_complete_else_watch(Flag(1 + n / MANY / 10), ["key"])
    clock.advance(0.7)
    done = purgatory.timer.statistics().cascaded
    assert done == 0
    # The bucket of level 3 that covers 0.8 s to 1.2 s moves down.
    assert most_in_an_iteration(clock, lambda: purgatory.timer.statistics().cascaded, 0.8) <= 1000


@pytest.mark.parametrize("keys", [1, MANY])
def test_a_purge_is_done_in_slices(clock: VirtualClock, keys: int) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=MANY - 1, clock=clock)
    for n in range(MANY):
        purgatory.try_complete_else_watch(Flag(), [n % keys]).force_complete()
    iterations: list[int] = []

    def beat() -> None:
        iterations.append(purgatory.watched)
        if purgatory.watched:
            clock.call_at(0.0, beat)

    clock.call_at(0.0, beat)
    clock.advance(0)
    assert MANY / 1000 <= len(iterations) <= MANY / 1000 + 2, "a slice an iteration, neither more nor less"
    if keys == MANY:
        assert max(before - after for before, after in pairwise(iterations)) == 1000


@pytest.mark.parametrize("ready", ["none", "one", "all"])
def test_a_check_soon_is_done_in_slices(purgatory: DelayedOperationPurgatory, clock: VirtualClock, ready: str) -> None:
    operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(MANY)]
    for n, operation in enumerate(operations):
        operation.ready = ready == "all" or (ready == "one" and n == MANY // 2)
    purgatory.check_and_complete_soon("key")
    assert most_in_an_iteration(clock, lambda: sum(each.tries for each in operations), 0) <= 1000
    assert purgatory.num_delayed == purgatory.watched == {"none": MANY, "one": MANY - 1, "all": 0}[ready]


def test_a_check_soon_of_many_keys_is_done_in_slices(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    operations = [purgatory.try_complete_else_watch(Flag(), [n]) for n in range(MANY)]
    for n in range(MANY):
        purgatory.check_and_complete_soon(n)
    assert most_in_an_iteration(clock, lambda: sum(each.tries for each in operations), 0) <= 1000


def test_a_long_pass_does_not_hold_up_the_short_ones(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    long = [purgatory.try_complete_else_watch(Flag(), ["long"]) for _ in range(MANY)]
    short = purgatory.try_complete_else_watch(Flag(), ["short"])
    short.ready = True
    tried: list[int] = []
    short.then = lambda: tried.append(sum(each.tries == 3 for each in long))
    purgatory.check_and_complete_soon("long")
    purgatory.check_and_complete_soon("short")
    clock.advance(0)
    assert tried == [1000]


async def test_a_close_is_done_in_slices(purgatory: DelayedOperationPurgatory) -> None:
    operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(5000)]
    closing = purgatory.aclose().__await__()
    steps = [sum(operation.done() for operation in operations) for _ in closing]
    # Then the dead entries are removed, in slices too.
    assert steps == [1000, 2000, 3000, 4000, 5000, *[5000] * 5]
