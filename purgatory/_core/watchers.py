"""The watcher lists: which operations wait on which key.

An operation that completes is usually in several lists. If it were deleted from all of them at once, every completion
would pay for every key. So its entries stay as *dead* entries, as in Kafka, until a check compacts the list or a purge
removes them. There are two differences from Kafka:

An *entry* is a small object with the operation, shared by all lists that watch it. Completion empties it, so an entry
that is still in some list holds nothing of the operation or its payload. (Kafka keeps the whole operation until the
purge, and has run out of memory because of it: KAFKA-19389, KAFKA-19763.)

Kafka *estimates* how many entries are dead: it counts operations, so an operation with a thousand keys leaves a
thousand entries and counts as one. Here they are *counted*, without looking at any list. An operation that completes
leaves as many as it has keys, and a compaction removes as many as it finds.

A list never gets shorter. It grows at its end and is replaced as a whole, so a walk over it misses nothing, however
long it is suspended.
"""

from collections.abc import Hashable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from purgatory._loop.slices import SLICE

if TYPE_CHECKING:
    from purgatory._core.operation import OperationBase


class Entry:
    """An operation in watcher lists, shared by all lists that watch it."""

    __slots__ = ("lists", "operation")

    def __init__(self, operation: "OperationBase | None", lists: int) -> None:
        self.operation: OperationBase | None = operation
        """`None` if the entry is dead, because the operation has finished."""
        self.lists: int = lists
        """How many lists it is in. An operation without keys is in none."""


class Watchers:
    """The watcher list of one key."""

    __slots__ = ("entries", "head", "index", "key")

    def __init__(self, key: Hashable, index: int) -> None:
        self.key: Hashable = key
        self.entries: list[Entry] = []
        """In watch order. It grows at its end, and is replaced as a whole."""
        self.head: int = 0
        """The number of dead entries at the front, which a check skips."""
        self.index: int = index
        """Its place among all lists."""


class WatcherLists:
    """The watcher lists of one purgatory by key, and the counts of their entries."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Watchers] = {}
        self._lists: list[Watchers] = []
        """The same lists in a row, for walks in slices, because a dict must not change during an iteration."""
        self.watched: int = 0
        """Entries in all lists, including dead ones."""
        self.dead: int = 0
        """Entries of operations that have finished."""
        self.peak: int = 0
        """The largest number of entries at a time, as of the last removal."""
        self.purged: int = 0
        """Dead entries removed so far."""

    def __len__(self) -> int:
        """Return how many keys have a list."""
        return len(self._lists)

    def at(self, index: int) -> Watchers:
        """Return the list at an index. Indexes change when lists are dropped."""
        return self._lists[index]

    def find(self, key: Hashable) -> Watchers | None:
        """Return the list of `key`, if it has one."""
        return self._by_key.get(key)

    def keys(self) -> list[Hashable]:
        """Return the keys that have a list."""
        return list(self._by_key)

    def watch(self, entry: Entry, keys: tuple[Hashable, ...]) -> None:
        """Append `entry` to the lists of `keys`. If a key raises, nothing has changed."""
        found: list[Watchers] = []
        try:
            for key in keys:
                watchers = self._by_key.get(key)
                if watchers is None:
                    watchers = Watchers(key, len(self._lists))
                    found.append(watchers)
                    self._by_key[key] = watchers
                    self._lists.append(watchers)
                else:
                    found.append(watchers)
            for watchers in found:
                watchers.entries.append(entry)
        except BaseException:
            for watchers in found:
                if watchers.entries and watchers.entries[-1] is entry:
                    watchers.entries.pop()
            for watchers in found:
                with suppress(Exception):  # of the key, whose list stays empty
                    self._drop_if_empty(watchers)
            raise
        self.watched += entry.lists

    def compact(self, watchers: Watchers) -> None:
        """Remove the dead entries of one list, in one go. A list without entries is dropped."""
        if not self.dead and watchers.entries:
            return
        alive = [entry for entry in watchers.entries if entry.operation is not None]
        if not alive or len(alive) < len(watchers.entries):
            self.replace(watchers, alive)

    def replace(self, watchers: Watchers, alive: list[Entry]) -> None:
        """Replace the entries of a list with those that are alive."""
        removed = len(watchers.entries) - len(alive)
        if self.watched > self.peak:
            self.peak = self.watched
        self.watched -= removed
        self.dead -= removed
        self.purged += removed
        watchers.entries = alive
        watchers.head = 0
        self._drop_if_empty(watchers)

    def _drop_if_empty(self, watchers: Watchers) -> None:
        if watchers.entries or self._by_key.get(watchers.key) is not watchers:
            return  # it is in use, or was dropped before: its key may have another list by now
        del self._by_key[watchers.key]
        last = self._lists[-1]
        del self._lists[-1]
        if last is not watchers:
            self._lists[watchers.index] = last
            last.index = watchers.index


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import Entry, WatcherLists, Watchers


def each_list(lists: WatcherLists) -> Iterator[Watchers]:
    """Yield all lists, one at a time. A suspended iteration may miss lists that are added meanwhile, but no others."""
    index = len(lists)
    while index > 0:
        # The last list takes the place of a dropped one. It was yielded before, or it is new.
        index = min(index, len(lists)) - 1
        if index >= 0:
            yield lists.at(index)


def skip_dead(watchers: Watchers, entries: list[Entry]) -> bool:
    """After a check that ended at its limit, note the dead at the front. Return whether to compact the list now.

    It is compacted if they are half of a short list. A longer one is left to the purge.
    """
    if watchers.entries is not entries:
        return False
    head = watchers.head
    while head < len(entries) and entries[head].operation is None:
        head += 1
    watchers.head = head
    return len(entries) <= SLICE and 2 * head >= len(entries)
