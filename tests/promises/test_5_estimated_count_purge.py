"""Promise 5: a purge starts when dead entries exceed `max(purge_interval, living entries)`. No other scan is made."""

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support.operations import FaultLog, Flag


def _finish(purgatory: DelayedOperationPurgatory, count: int, keys: list[str]) -> None:
    for _ in range(count):
        purgatory.try_complete_else_watch(Flag(), keys).force_complete()


def test_nothing_is_purged_until_the_dead_entries_are_more_than_the_interval(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    _finish(purgatory, 5, ["a", "b"])
    clock.advance(1.0)
    assert (purgatory.statistics().purges, purgatory.watched) == (0, 10)
    assert clock.armed == []
    _finish(purgatory, 1, ["a", "b"])
    assert purgatory.watched == 12, "not inside the completion, but on the next iteration"
    clock.advance(0)
    assert (purgatory.statistics().purges, purgatory.statistics().purged, purgatory.watched) == (1, 12, 0)


def test_nothing_is_purged_until_the_dead_entries_are_more_than_the_living_ones(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    for n in range(300):
        purgatory.try_complete_else_watch(Flag(), [n, "all"])
    _finish(purgatory, 600, ["a"])
    clock.advance(1.0)
    assert (purgatory.statistics().purges, purgatory.watched, clock.armed) == (0, 1200, [])
    _finish(purgatory, 1, ["a"])
    clock.advance(0)
    assert (purgatory.statistics().purges, purgatory.statistics().purged, purgatory.watched) == (1, 601, 600)


@pytest.mark.parametrize("keys", [1, 1000])
def test_entries_are_counted_and_not_operations(clock: FaultLog, keys: int) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=keys - 1, clock=clock)
    purgatory.try_complete_else_watch(Flag(), range(keys)).force_complete()
    clock.advance(0)
    assert (purgatory.statistics().purges, purgatory.watched, purgatory.watched_keys()) == (1, 0, [])


def test_entries_that_a_purge_looks_at_are_counted_and_those_of_a_check_are_not(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    pending = [purgatory.try_complete_else_watch(Flag(), ["a"]) for _ in range(1500)]
    _finish(purgatory, 5, ["a"])
    assert purgatory.check_and_complete("a") == purgatory.statistics().scanned == 0
    _finish(purgatory, 800, ["a", "b"])
    clock.advance(0)
    assert purgatory.statistics().scanned == len(pending) + 2 * 800


def test_purged_lists_stay_in_watch_order(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    calls: list[str] = []
    for n in range(3000):
        operation = purgatory.try_complete_else_watch(Flag(None, str(n), calls=calls), ["a"])
        if n % 3 != 1:
            operation.cancel()
    late = [purgatory.try_complete_else_watch(Flag(None, f"late {n}", calls=calls), ["a"]) for n in range(2)]
    clock.call_at(0.0, lambda: purgatory.try_complete_else_watch(Flag(None, "between", calls=calls), ["a"]))
    clock.advance(0)
    assert purgatory.watched == purgatory.num_delayed == 1000 + len(late) + 1
    purgatory.complete_all()
    expected = [str(n) for n in range(3000) if n % 3 == 1] + ["late 0", "late 1", "between"]
    assert calls == [f"{name} completes" for name in expected]


def test_a_check_may_compact_the_list_during_a_purge(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    keep = [purgatory.try_complete_else_watch(Flag(), ["a"]) for _ in range(1500)]
    _finish(purgatory, 1501, ["a"])
    clock.call_at(0.0, lambda: purgatory.check_and_complete("a"))
    clock.advance(0)
    assert purgatory.watched == purgatory.num_delayed == len(keep)


def test_a_purge_keeps_up_with_iterations_that_add_more_than_a_slice(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(clock=clock)

    def add(iterations: int) -> None:
        _finish(purgatory, 3000, ["a", "b", "c"])
        if iterations > 1:
            clock.call_at(clock.time(), add, iterations - 1)

    clock.call_at(clock.time(), add, 20)
    clock.advance(0)
    assert purgatory.statistics().peak_watched < 45_000, "of 180,000 watched"
