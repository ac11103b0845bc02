"""Watcher lists: compaction in one go and in slices, and walks while lists come and go."""

from collections.abc import Hashable
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory._core.watchers import compact_all, compact_in_slices, each_list, skip_dead
from tests.support.invariants import check_purgatory
from tests.support.operations import FaultLog, Flag


class Lists:
    """The lists of a purgatory that never purges, with operations by number."""

    def __init__(self) -> None:
        self.purgatory = DelayedOperationPurgatory(clock=FaultLog(), purge_interval=10**9)
        self.lists = self.purgatory._owner.lists

    def add(self, *keys: Hashable) -> Flag:
        return self.purgatory.try_complete_else_watch(Flag(), keys)

    def watchers(self, key: Hashable) -> Any:
        watchers = self.lists.find(key)
        assert watchers is not None
        return watchers


@pytest.fixture
def lists() -> Lists:
    return Lists()


def test_dead_entries_stay_until_a_compaction_and_are_counted(lists: Lists) -> None:
    first, second, third = (lists.add("key", "other") for _ in range(3))
    second.cancel()
    watchers = lists.watchers("key")
    assert [entry.operation for entry in watchers.entries] == [first, None, third]
    assert (lists.lists.watched, lists.lists.dead) == (6, 2)
    held = watchers.entries
    lists.lists.compact(watchers)
    assert [entry.operation for entry in watchers.entries] == [first, third]
    assert len(held) == 3, "a walk that holds the list misses nothing"
    assert (lists.lists.watched, lists.lists.dead, lists.lists.purged, lists.lists.peak) == (5, 1, 1, 6)
    lists.lists.compact(watchers)
    assert lists.lists.purged == 1
    check_purgatory(lists.purgatory)


def test_a_list_without_entries_is_dropped(lists: Lists) -> None:
    operations = {key: lists.add(key) for key in "abcd"}
    watchers = lists.watchers("d")
    for key in "bd":
        watchers = lists.watchers(key)
        operations[key].cancel()
        lists.lists.compact(watchers)
        lists.lists.compact(watchers)
        assert lists.lists.find(key) is None
    assert sorted(map(str, lists.lists.keys())) == ["a", "c"]
    lists.add("d")
    lists.lists.compact(watchers)
    assert lists.lists.find("d") is not None, "that of its successor is another one"
    check_purgatory(lists.purgatory)


def test_equal_keys_have_one_list(lists: Lists) -> None:
    one, two = lists.add(1), lists.add(1.0)
    assert lists.purgatory.watching(True) == [one, two]


def test_a_long_list_is_compacted_in_slices_of_a_thousand(lists: Lists) -> None:
    operations = [lists.add("key") for _ in range(2500)]
    for operation in operations[::2]:
        operation.cancel()
    watchers = lists.watchers("key")
    old = watchers.entries
    steps = compact_in_slices(lists.purgatory._owner, watchers)
    assert next(steps) == 1000
    assert len({id(entry) for entry in old[:1000] if entry.operation is None}) == 1, "the old list lets go of the dead"
    late = lists.add("key")
    operations[2001].cancel()
    assert list(steps) == [1000, 500]
    assert lists.purgatory.watching("key") == [*operations[1:2001:2], *operations[2003::2], late]
    assert lists.lists.dead == 0
    check_purgatory(lists.purgatory)


def test_an_entry_that_dies_behind_the_slices_is_left_to_the_next_compaction(lists: Lists) -> None:
    operations = [lists.add("key") for _ in range(1500)]
    operations[1].cancel()
    watchers = lists.watchers("key")
    steps = compact_in_slices(lists.purgatory._owner, watchers)
    next(steps)
    operations[0].cancel()
    assert list(steps) == [500]
    assert (len(watchers.entries), lists.lists.dead) == (1499, 1)
    assert list(compact_in_slices(lists.purgatory._owner, watchers)) == [1000, 499]
    assert (len(watchers.entries), lists.lists.dead) == (1498, 0)
    check_purgatory(lists.purgatory)


def test_another_compaction_between_slices_prevails(lists: Lists) -> None:
    operations = [lists.add("key") for _ in range(1500)]
    operations[1200].cancel()
    watchers = lists.watchers("key")
    steps = compact_in_slices(lists.purgatory._owner, watchers)
    next(steps)
    lists.lists.compact(watchers)
    operations[0].cancel()
    assert list(steps) == [500]
    assert (len(watchers.entries), lists.lists.dead) == (1499, 1)
    check_purgatory(lists.purgatory)


def test_all_lists_are_compacted_in_slices(lists: Lists) -> None:
    operations = [lists.add("long") for _ in range(1200)] + [lists.add(n, n + 1) for n in range(60)]
    for operation in operations:
        operation.cancel()
    assert sum(compact_all(lists.purgatory._owner)) == 1200 + 120
    assert (lists.lists.watched, len(lists.lists)) == (0, 0)
    check_purgatory(lists.purgatory)


@pytest.mark.parametrize("dropped", range(9))
@pytest.mark.parametrize("at", range(8))
def test_a_walk_misses_no_list_while_others_are_dropped_and_added(lists: Lists, at: int, dropped: int) -> None:
    operations = [lists.add(n) for n in range(8)]
    met: list[Hashable] = []
    for watchers in each_list(lists.lists):
        met.append(watchers.key)
        if len(met) == at + 1:
            for n in range(dropped):
                if n < 8:
                    operations[n].cancel()
                    lists.lists.compact(lists.watchers(n))
            lists.add("new")
    assert set(range(dropped, 8)) <= set(met)


def test_dead_entries_at_the_front_are_skipped(lists: Lists) -> None:
    for operation in [lists.add("key") for _ in range(4)][:1]:
        operation.cancel()
    watchers = lists.watchers("key")
    entries = watchers.entries
    assert not skip_dead(watchers, entries, 1)
    assert watchers.head == 1
    assert skip_dead(watchers, entries, 2), "half of them"
    assert not skip_dead(watchers, [], 1), "replaced meanwhile"
