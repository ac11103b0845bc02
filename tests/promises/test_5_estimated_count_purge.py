"""Promise 5: dead entries are purged when `estimated_total - num_delayed > purge_interval`, and by no other scan."""

import pytest

from purgatory import DelayedOperationPurgatory, VirtualClock
from tests.support.operations import FaultLog, Flag, turn


def _finish(purgatory: DelayedOperationPurgatory, count: int, keys: list[str]) -> None:
    for _ in range(count):
        purgatory.try_complete_else_watch(Flag(), keys).force_complete()


def test_nothing_is_purged_until_the_estimate_is_off_by_more_than_the_interval(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    _finish(purgatory, 10, ["a", "b"])
    clock.advance(1.0)
    assert (purgatory.statistics().purges, purgatory.watched) == (0, 20)
    assert clock.armed == []
    _finish(purgatory, 1, ["a", "b"])
    assert purgatory.watched == 22, "not inside the completion, but on the next turn"
    clock.advance(0)
    assert (purgatory.statistics().purges, purgatory.statistics().purged, purgatory.watched) == (1, 22, 0)


def test_what_a_purge_looks_at_is_counted_and_what_a_check_looks_at_is_not(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    pending = [purgatory.try_complete_else_watch(Flag(), ["a"]) for _ in range(1500)]
    _finish(purgatory, 5, ["a"])
    assert purgatory.check_and_complete("a") == purgatory.statistics().scanned == 0
    _finish(purgatory, 6, ["a", "b"])
    clock.advance(0)
    assert purgatory.statistics().scanned == len(pending) + 2 * 6


def test_before_it_starts_the_estimate_is_set_to_the_pending_ones(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    pending = [purgatory.try_complete_else_watch(Flag(), ["a"]) for _ in range(7)]
    _finish(purgatory, 11, ["a"])
    assert purgatory.statistics().estimated_total == purgatory.num_delayed == 7
    clock.advance(0)
    assert purgatory.watched == 7
    assert purgatory.check_and_complete("a") == 0
    assert not any(operation.done() for operation in pending)


def test_live_lists_stay_in_watch_order(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    calls: list[str] = []
    for n in range(3000):
        operation = purgatory.try_complete_else_watch(Flag(None, str(n), calls=calls), ["a"])
        if n % 3 == 1:
            operation.cancel()
    late = [purgatory.try_complete_else_watch(Flag(None, f"late {n}", calls=calls), ["a"]) for n in range(2)]
    clock.call_at(0.0, lambda: purgatory.try_complete_else_watch(Flag(None, "between", calls=calls), ["a"]))
    clock.advance(0)
    assert purgatory.watched == purgatory.num_delayed == 2000 + len(late) + 1
    purgatory.complete_all()
    expected = [str(n) for n in range(3000) if n % 3 != 1] + ["late 0", "late 1", "between"]
    assert calls == [f"{name} completes" for name in expected]


def test_a_check_that_compacts_the_list_meanwhile_is_no_trouble(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    keep = [purgatory.try_complete_else_watch(Flag(), ["a"]) for _ in range(1500)]
    _finish(purgatory, 1500, ["a"])
    clock.call_at(0.0, lambda: purgatory.check_and_complete("a"))
    clock.advance(0)
    assert purgatory.watched == purgatory.num_delayed == len(keep)


def test_dead_entries_stay_bounded_by_the_interval_whatever_the_traffic(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=100, clock=clock)
    for n in range(20_000):
        purgatory.try_complete_else_watch(Flag(), [f"key {n % 50}", "all"]).force_complete()
        if n % 10 == 0:
            clock.advance(0.001)
    assert purgatory.statistics().peak_watched <= 2 * (100 + 2 * 10 + 1)


async def test_a_purge_keeps_up_with_turns_that_add_more_than_a_slice() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        for _ in range(60):
            _finish(purgatory, 3000, ["a", "b", "c"])
            await turn()
        assert purgatory.statistics().peak_watched < 100_000, "of 540,000 watched"


def test_an_interval_of_zero_purges_after_each(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=0, clock=clock)
    _finish(purgatory, 1, ["a"])
    clock.advance(0)
    assert purgatory.watched == 0


@pytest.mark.parametrize("key_count", [1, 5000])
def test_a_purge_takes_the_dead_of_all_keys(clock: VirtualClock, key_count: int) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=9999, clock=clock)
    for n in range(10_000):
        purgatory.try_complete_else_watch(Flag(), [n % key_count]).force_complete()
    clock.advance(0)
    assert (purgatory.statistics().purges, purgatory.watched) == (1, 0)
