"""The watcher lists, against lists that delete at once."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory import WheelTimer
from purgatory.watchers import WatcherLists
from tests.support.operations import FaultLog

KEYS = st.integers(0, 4)


def test_entries_come_in_watch_order_with_the_dead_among_them() -> None:
    lists: WatcherLists[str] = WatcherLists(WheelTimer(FaultLog()), 1000)
    first, second, third = (lists.watch(name, ["key"]) for name in ("first", "second", "third"))
    second.clear()
    assert lists.entries("key") == [first, [], third]
    lists.compact("key")
    assert lists.entries("key") == [first, third]
    assert lists.watched == 2


def test_a_list_without_entries_is_dropped() -> None:
    lists: WatcherLists[str] = WatcherLists(WheelTimer(FaultLog()), 1000)
    lists.watch("only", ["key"]).clear()
    assert lists.has("key")
    lists.compact("key")
    assert not lists.has("key")
    assert lists.entries("key") == []


def test_compacting_in_slices_keeps_what_is_added_meanwhile() -> None:
    lists: WatcherLists[int] = WatcherLists(WheelTimer(FaultLog()), 1000)
    entries = [lists.watch(n, ["key"]) for n in range(2500)]
    for entry in entries[::2]:
        entry.clear()
    slices = lists.compact_in_slices("key")
    assert [next(slices), next(slices)] == [1000, 1000]
    lists.watch(2500, ["key"])
    assert list(slices) == [500]
    assert [operation for entry in lists.entries("key") for operation in entry] == [*range(1, 2500, 2), 2500]
    assert lists.watched == 1251


def test_compacting_in_slices_gives_way_to_who_was_faster() -> None:
    lists: WatcherLists[int] = WatcherLists(WheelTimer(FaultLog()), 1000)
    entries = [lists.watch(n, ["key", "gone"]) for n in range(1500)]
    slices = lists.compact_in_slices("key")
    next(slices)
    entries[0].clear()
    lists.compact("key")
    entries[1].clear()
    assert list(slices) == [500]
    assert len(lists.entries("key")) == 1499
    assert list(lists.compact_in_slices("nobody's")) == []


class AgainstListsThatDeleteAtOnce(RuleBasedStateMachine):
    """Watch, finish, compact and purge; the model deletes finished operations from all lists at once."""

    @initialize(purge_interval=st.sampled_from([0, 1, 5, 1000]))
    def start(self, purge_interval: int) -> None:
        self.clock = FaultLog()
        self.lists: WatcherLists[int] = WatcherLists(WheelTimer(self.clock), purge_interval)
        self.alive: dict[int, tuple[list[int], list[int]]] = {}
        self.count = 0
        self.peak = 0

    @rule(keys=st.lists(KEYS, min_size=1, unique=True), times=st.sampled_from([1, 3, 1200]))
    def watch(self, keys: list[int], times: int) -> None:
        for _ in range(times):
            self.alive[self.count] = (keys, self.lists.watch(self.count, keys))
            self.count += 1
        self.peak = max(self.peak, self.lists.watched)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), many=st.booleans())
    def finish(self, data: st.DataObject, many: bool) -> None:
        operations = list(self.alive)
        first = data.draw(st.integers(0, len(operations) - 1))
        for operation in operations[first:] if many else operations[first : first + 1]:
            self.alive.pop(operation)[1].clear()
            self.lists.num_delayed -= 1
            self.lists.finished += 1
            self.lists.purge_if_due()

    @rule(key=KEYS)
    def compact(self, key: int) -> None:
        self.lists.compact(key)

    @rule()
    def turn(self) -> None:
        self.clock.advance(0)

    @invariant()
    def the_live_are_in_watch_order(self) -> None:
        for key in range(5):
            live = [operation for entry in self.lists.entries(key) for operation in entry]
            assert live == [operation for operation, (keys, _) in self.alive.items() if key in keys]

    @invariant()
    def the_keys_are_those_that_have_entries(self) -> None:
        assert set(self.lists.keys()) == {key for key in range(5) if self.lists.entries(key)}

    @invariant()
    def the_counts_are_exact(self) -> None:
        assert self.lists.num_delayed == len(self.alive)
        assert self.lists.watched == sum(len(self.lists.entries(key)) for key in range(5))
        assert self.lists.watched == len(list(self.lists.all_entries()))
        assert max(self.lists.peak_watched, self.lists.watched) == self.peak

    @invariant()
    def a_purge_is_under_way_when_due(self) -> None:
        lists = self.lists
        if lists.finished > lists.purge_interval:
            assert lists._handle is not None


TestAgainstListsThatDeleteAtOnce = AgainstListsThatDeleteAtOnce.TestCase
TestAgainstListsThatDeleteAtOnce.settings = settings(stateful_step_count=25)
