"""The watcher lists alone, without a clock: step by step, and against lists that delete at once."""

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import chain

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from purgatory._core.watchers import Entry, WatcherLists
from tests.support.injection import each_step

KEYS = st.integers(0, 4)


class Lists(WatcherLists[int]):
    """Watcher lists of numbers, which are counted as an owner counts its operations."""

    __slots__ = ()

    def add(self, number: int, *keys: Hashable) -> Entry[int]:
        """Watch `number` on each of `keys`."""
        entry = [number]
        self.watched += len(keys)
        failed = self.watch(entry, keys)
        if failed is not None:
            raise failed[0]
        return entry

    def finish(self, entry: Entry[int], keys: int = 1) -> None:
        """Let an entry die that is in the lists of `keys` keys."""
        if entry:
            entry.clear()
            self.dead += keys

    def numbers(self, key: Hashable) -> list[int]:
        """The living entries of `key`, in watch order."""
        watchers = self.find(key)
        return [] if watchers is None else list(chain.from_iterable(watchers.entries))

    def length(self, key: Hashable) -> int:
        """The number of entries of `key`, living and dead."""
        watchers = self.find(key)
        return 0 if watchers is None else len(watchers.entries)

    def compact_key(self, key: Hashable) -> None:
        """Compact the list of `key`, if it has one."""
        watchers = self.find(key)
        if watchers is not None:
            self.compact(watchers)


@pytest.fixture
def lists() -> Lists:
    return Lists()


class Calling:
    """A key whose `__hash__` calls `call` once."""

    def __init__(self) -> None:
        self.call: Callable[[], object] | None = None
        self.after = 0
        """Calls of `__hash__` that come before."""

    def __hash__(self) -> int:
        if self.call is not None:
            if self.after:
                self.after -= 1
            else:
                call, self.call = self.call, None
                call()
        return 7

    def __eq__(self, other: object) -> bool:
        return self is other


class TestWatch:
    def test_entries_are_in_watch_order(self, lists: Lists) -> None:
        for n in (3, 1, 2):
            lists.add(n, "key")
        assert lists.numbers("key") == [3, 1, 2]
        assert (lists.living, lists.dead) == (3, 0)

    def test_an_entry_is_shared_by_all_lists_that_watch_it(self, lists: Lists) -> None:
        entry = lists.add(1, "a", "b")
        for key in "ab":
            watchers = lists.find(key)
            assert watchers is not None
            assert watchers.entries[0] is entry
        lists.finish(entry, 2)
        assert (lists.numbers("a"), lists.numbers("b")) == ([], [])
        assert (lists.living, lists.dead) == (0, 2)

    def test_keys_are_those_that_have_a_list(self, lists: Lists) -> None:
        lists.add(1, "a", "b")
        lists.add(2, "b", "c")
        assert lists.keys() == ["a", "b", "c"]
        assert [watchers.key for watchers in lists.all()] == ["a", "b", "c"]
        assert len(lists) == 3
        assert "a" in lists
        assert "z" not in lists
        assert lists.find("z") is None

    def test_equal_keys_have_one_list(self, lists: Lists) -> None:
        lists.add(1, 1)
        lists.add(2, 1.0)
        assert lists.numbers(True) == [1, 2]

    def test_a_list_that_is_dropped_by_the_hash_of_its_key_is_made_anew(self, lists: Lists) -> None:
        key = Calling()
        first = lists.add(1, key)

        def drop() -> None:
            lists.finish(first)
            lists.compact_key(key)

        key.call, key.after = drop, 1  # after `key in` and before the look-up
        lists.add(2, key)
        assert lists.numbers(key) == [2]
        assert (lists.living, lists.dead, lists.purged) == (1, 0, 1)


class TestCompact:
    def test_dead_entries_are_removed_and_counted(self, lists: Lists) -> None:
        first, second, third = (lists.add(n, "key", "other") for n in range(3))
        lists.finish(second, 2)
        watchers = lists.find("key")
        assert watchers is not None
        assert watchers.entries == [first, [], third]
        lists.compact(watchers)
        assert watchers.entries == [first, third]
        assert (lists.living, lists.dead, lists.purged) == (4, 1, 1)
        assert lists.length("other") == 3, "only the list of this key"

    def test_a_list_without_entries_is_dropped(self, lists: Lists) -> None:
        lists.add(1, "stays")
        lists.finish(lists.add(2, "key"))
        assert "key" in lists
        lists.compact_key("key")
        assert "key" not in lists
        assert lists.keys() == ["stays"]
        assert len(lists) == 1

    def test_a_list_that_a_walk_holds_is_replaced_and_not_shortened(self, lists: Lists) -> None:
        entries = [lists.add(n, "key") for n in range(3)]
        watchers = lists.find("key")
        assert watchers is not None
        held = watchers.entries
        lists.finish(entries[0])
        lists.compact(watchers)
        assert held == [[], [1], [2]]
        assert watchers.entries is not held

    def test_the_peak_is_noted_before_entries_are_removed(self, lists: Lists) -> None:
        for entry in [lists.add(n, "key") for n in range(5)]:
            lists.finish(entry)
        assert lists.peak == 0
        lists.compact_key("key")
        lists.add(5, "key")
        assert lists.peak == 5

    def test_a_second_compaction_changes_nothing(self, lists: Lists) -> None:
        lists.finish(lists.add(1, "key"))
        watchers = lists.find("key")
        assert watchers is not None
        lists.compact(watchers)
        lists.compact(watchers)
        assert (lists.dead, lists.purged, len(lists)) == (0, 1, 0)

    def test_compacting_a_dropped_list_leaves_its_successor_alone(self, lists: Lists) -> None:
        lists.finish(lists.add(1, "key"))
        dropped = lists.find("key")
        assert dropped is not None
        lists.compact(dropped)
        lists.add(2, "key")
        lists.compact(dropped)
        assert lists.numbers("key") == [2]
        assert len(lists) == 1


class TestCompactInSlices:
    def test_each_slice_is_at_most_a_thousand_entries(self, lists: Lists) -> None:
        entries = [lists.add(n, "key") for n in range(2500)]
        for entry in entries[::2]:
            lists.finish(entry)
        watchers = lists.find("key")
        assert watchers is not None
        assert list(lists.compact_in_slices(watchers)) == [1000, 1000, 500]
        assert lists.numbers("key") == list(range(1, 2500, 2))
        assert (lists.length("key"), lists.living, lists.dead, lists.purged) == (1250, 1250, 0, 1250)

    def test_a_short_list_is_one_slice(self, lists: Lists) -> None:
        lists.finish(lists.add(1, "key"))
        lists.add(2, "key")
        watchers = lists.find("key")
        assert watchers is not None
        assert list(lists.compact_in_slices(watchers)) == [2]
        assert lists.length("key") == 1

    def test_entries_added_between_slices_are_kept(self, lists: Lists) -> None:
        entries = [lists.add(n, "key") for n in range(2500)]
        for entry in entries[::2]:
            lists.finish(entry)
        watchers = lists.find("key")
        assert watchers is not None
        slices = lists.compact_in_slices(watchers)
        assert [next(slices), next(slices)] == [1000, 1000]
        lists.add(2500, "key")
        assert list(slices) == [500]
        assert lists.numbers("key") == [*range(1, 2500, 2), 2500]
        assert (lists.living, lists.dead) == (1251, 0)

    def test_entries_added_at_any_step_of_the_end_are_kept(self) -> None:
        for injector in each_step():
            lists = Lists()
            lists.finish(lists.add(0, "key"))
            for n in range(1, 1001):
                lists.add(n, "key")
            watchers = lists.find("key")
            assert watchers is not None
            slices = lists.compact_in_slices(watchers)
            assert [next(slices), next(slices)] == [1000, 1]
            injector.inject = partial(lists.add, 1001, "key")
            with injector:
                assert list(slices) == []
            assert lists.numbers("key") == list(range(1, 1001 + (injector.where != "nowhere")))
            assert lists.dead == 0

    def test_entries_that_die_between_slices_are_removed_now_or_next_time(self, lists: Lists) -> None:
        entries = [lists.add(n, "key") for n in range(2500)]
        watchers = lists.find("key")
        assert watchers is not None
        slices = lists.compact_in_slices(watchers)
        next(slices)
        lists.finish(entries[0])
        lists.finish(entries[2000])
        assert list(slices) == [1000, 500]
        assert (lists.length("key"), lists.living, lists.dead, lists.purged) == (2499, 2498, 1, 1)
        lists.compact(watchers)
        assert (lists.length("key"), lists.dead) == (2498, 0)

    def test_another_compaction_in_between_prevails(self, lists: Lists) -> None:
        entries = [lists.add(n, "key") for n in range(1500)]
        watchers = lists.find("key")
        assert watchers is not None
        slices = lists.compact_in_slices(watchers)
        next(slices)
        lists.finish(entries[0])
        lists.compact(watchers)
        lists.finish(entries[1])
        assert list(slices) == [500]
        assert (lists.length("key"), lists.living, lists.dead, lists.purged) == (1499, 1498, 1, 1)

    def test_the_old_list_lets_go_of_its_dead_entries(self, lists: Lists) -> None:
        entries = [lists.add(n, "key") for n in range(2500)]
        watchers = lists.find("key")
        assert watchers is not None
        old = watchers.entries
        for entry in entries:
            lists.finish(entry)
        slices = lists.compact_in_slices(watchers)
        next(slices)
        assert len({id(entry) for entry in old[:1000]}) == 1
        assert list(slices) == [1000, 500]
        assert "key" not in lists


class TestWalks:
    def test_walks_in_both_directions_meet_every_list_once(self, lists: Lists) -> None:
        for n in range(5):
            lists.add(n, n)
        assert [watchers.key for watchers in lists.forwards()] == [0, 1, 2, 3, 4]
        assert [watchers.key for watchers in lists.backwards()] == [4, 3, 2, 1, 0]

    def test_walk_forwards_meets_lists_that_are_added_meanwhile(self, lists: Lists) -> None:
        lists.add(0, 0)
        met = []
        for watchers in lists.forwards():
            met.append(watchers.key)
            if len(met) < 10:
                lists.add(len(met), len(met))
        assert met == list(range(10))

    @pytest.mark.parametrize("dropped", range(8))
    @pytest.mark.parametrize("at", range(8))
    def test_walk_backwards_misses_none_when_lists_are_dropped_meanwhile(
        self, lists: Lists, at: int, dropped: int
    ) -> None:
        entries = [lists.add(n, n) for n in range(8)]
        met = []
        for watchers in lists.backwards():
            met.append(watchers.key)
            if len(met) == at + 1:
                for n in range(dropped):
                    lists.finish(entries[n])
                    lists.compact_key(n)
        assert {*met, *range(dropped)} == set(range(8))

    def test_walk_backwards_ends_when_all_lists_are_dropped(self, lists: Lists) -> None:
        for n in range(3):
            lists.finish(lists.add(n, n))
        walk = lists.backwards()
        next(walk)
        lists.clear()
        assert list(walk) == []


class TestSkip:
    """A check with a limit begins behind the dead entries at the front, and need not look at them again."""

    def test_head_behind_dead_entries_is_noted_and_never_goes_back(self, lists: Lists) -> None:
        entries = [lists.add(n, "key") for n in range(10)]
        watchers = lists.find("key")
        assert watchers is not None
        for entry in entries[:3]:
            lists.finish(entry)
        assert not lists.skip(watchers, watchers.entries, 3)
        assert watchers.head == 3
        assert not lists.skip(watchers, watchers.entries, 2)
        assert watchers.head == 3, "the head never goes back"

    def test_a_short_list_is_to_be_compacted_when_half_of_it_is_dead(self, lists: Lists) -> None:
        for n in range(10):
            lists.add(n, "key")
        watchers = lists.find("key")
        assert watchers is not None
        assert [lists.skip(watchers, watchers.entries, head) for head in (4, 5, 10)] == [False, True, True]

    def test_a_long_list_is_left_to_the_purge(self, lists: Lists) -> None:
        for n in range(1001):
            lists.add(n, "key")
        watchers = lists.find("key")
        assert watchers is not None
        assert not lists.skip(watchers, watchers.entries, 1001)
        assert watchers.head == 1001

    def test_a_compaction_resets_the_head(self, lists: Lists) -> None:
        entries = [lists.add(n, "key") for n in range(3)]
        watchers = lists.find("key")
        assert watchers is not None
        old = watchers.entries
        lists.finish(entries[0])
        assert not lists.skip(watchers, old, 1)
        lists.compact(watchers)
        assert watchers.head == 0
        assert not lists.skip(watchers, old, 3), "the list has other entries now"
        assert watchers.head == 0


class TestClear:
    def test_all_lists_are_dropped_when_all_entries_are_dead(self, lists: Lists) -> None:
        for n in range(5):
            lists.finish(lists.add(n, n, "all"), 2)
        lists.clear()
        assert (lists.keys(), len(lists), lists.dead, lists.living) == ([], 0, 0, 0)
        assert lists.peak == 10
        lists.add(1, "all")
        assert lists.numbers("all") == [1]

    def test_a_living_entry_is_not_dropped(self, lists: Lists) -> None:
        lists.finish(lists.add(1, "key"))
        lists.add(2, "key")
        lists.clear()
        assert lists.numbers("key") == [2]
        assert (lists.living, lists.dead) == (1, 1)


class TestRevived:
    """The key's own `__hash__` watches the key while its list, which is empty, is being dropped."""

    def test_entry_added_while_its_list_is_dropped_is_found_and_tried(self, lists: Lists) -> None:
        key = Calling()
        lists.finish(lists.add(1, key))
        watchers = lists.find(key)
        assert watchers is not None
        key.call = lambda: lists.add(2, key)
        lists.compact(watchers)
        assert lists.numbers(key) == [2]
        assert lists.revived == [[2]]
        assert (len(lists), lists.living, lists.dead) == (1, 1, 0)

    def test_a_new_list_of_the_key_takes_the_entries_in_watch_order(self, lists: Lists) -> None:
        class Twice(Calling):
            """Its second `__hash__` in the drop comes when the list is not found any more."""

        key = Twice()
        lists.finish(lists.add(1, key))
        watchers = lists.find(key)
        assert watchers is not None

        def again() -> None:
            lists.add(2, key)
            key.call = lambda: lists.add(3, key)

        key.call = again
        lists.compact(watchers)
        assert lists.numbers(key) == [2, 3]
        assert {entry[0] for entry in lists.revived} >= {2}
        assert (len(lists), lists.living, lists.dead) == (1, 2, 0)

    def test_a_key_that_cannot_be_looked_up_keeps_its_list_until_later(self, lists: Lists) -> None:
        key = Calling()
        lists.finish(lists.add(1, key))
        watchers = lists.find(key)
        assert watchers is not None

        def fail() -> None:
            raise LookupError

        key.call = fail
        with pytest.raises(LookupError):
            lists.compact(watchers)
        assert lists.find(key) is watchers
        assert (len(lists), lists.dead, lists.revived) == (1, 0, [])
        lists.compact(watchers)
        assert lists.find(key) is None
        assert len(lists) == 0


class AgainstListsThatDeleteAtOnce(RuleBasedStateMachine):
    """Watch, finish, compact and walk; the model deletes finished entries from all lists at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = Lists()
        self.alive: dict[int, tuple[list[int], Entry[int]]] = {}
        self.count = 0
        self.peak = 0
        self.added = 0
        self.walks: list[Iterator[int]] = []

    @rule(keys=st.lists(KEYS, min_size=1, unique=True), times=st.sampled_from([1, 3, 1200]))
    def watch(self, keys: list[int], times: int) -> None:
        for _ in range(times):
            self.alive[self.count] = (keys, self.lists.add(self.count, *keys))
            self.count += 1
        self.added += len(keys) * times
        self.peak = max(self.peak, self.lists.living + self.lists.dead)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), many=st.booleans())
    def finish(self, data: st.DataObject, many: bool) -> None:
        numbers = list(self.alive)
        first = data.draw(st.integers(0, len(numbers) - 1))
        for number in numbers[first:] if many else numbers[first : first + 1]:
            keys, entry = self.alive.pop(number)
            self.lists.finish(entry, len(keys))

    @rule(key=KEYS)
    def compact(self, key: int) -> None:
        self.lists.compact_key(key)
        watchers = self.lists.find(key)
        assert watchers is None or all(watchers.entries)

    @rule(key=KEYS)
    def skip(self, key: int) -> None:
        watchers = self.lists.find(key)
        if watchers is not None:
            head = 0
            while head < len(watchers.entries) and not watchers.entries[head]:
                head += 1
            self.lists.skip(watchers, watchers.entries, head)

    @rule(key=KEYS)
    def begin_to_compact(self, key: int) -> None:
        watchers = self.lists.find(key)
        if watchers is not None:
            self.walks.append(self.lists.compact_in_slices(watchers))

    @rule()
    def begin_to_compact_all(self) -> None:
        self.walks.append(
            part for watchers in self.lists.backwards() for part in self.lists.compact_in_slices(watchers)
        )

    @precondition(lambda self: self.walks)
    @rule(data=st.data(), to_its_end=st.booleans())
    def go_on(self, data: st.DataObject, to_its_end: bool) -> None:
        walk = self.walks[data.draw(st.integers(0, len(self.walks) - 1))]
        while next(walk, None) is not None:
            if not to_its_end:
                return
        self.walks.remove(walk)

    @rule()
    def clear(self) -> None:
        self.lists.clear()
        assert self.alive or not len(self.lists)

    @invariant()
    def living_entries_are_in_watch_order(self) -> None:
        for key in range(5):
            expected = [number for number, (keys, _) in self.alive.items() if key in keys]
            assert self.lists.numbers(key) == expected

    @invariant()
    def the_keys_are_those_that_have_entries(self) -> None:
        keys = {key for key in range(5) if self.lists.length(key)}
        assert set(self.lists.keys()) == keys == {watchers.key for watchers in self.lists.forwards()}
        assert len(self.lists) == len(keys)

    @invariant()
    def the_counts_are_exact(self) -> None:
        lists = self.lists
        assert lists.living == sum(len(keys) for keys, _ in self.alive.values())
        assert lists.living + lists.dead == sum(map(lists.length, range(5)))
        assert max(lists.peak, lists.living + lists.dead) == self.peak

    @invariant()
    def only_dead_entries_are_skipped(self) -> None:
        for watchers in self.lists.all():
            assert not any(watchers.entries[: watchers.head])


TestAgainstListsThatDeleteAtOnce = AgainstListsThatDeleteAtOnce.TestCase
TestAgainstListsThatDeleteAtOnce.settings = settings(stateful_step_count=30)
