"""Watcher lists: for each key, the operations that wait on it, in watch order.

An operation that completes is usually watched by several lists. Deleting it from all of them at once would make every
completion pay for every key, so, as in Kafka, its entries stay as *dead* ones until a check compacts the list or a
purge removes them. Two things differ from Kafka's:

An *entry* is a list of one, the operation, shared by all lists that watch it. Completion empties it. So an entry
that is still in some list holds nothing of the operation or its payload, and `if entry` asks whether it is alive.
(Kafka keeps the whole operation until the purge and has run out of memory on it: KAFKA-19389, KAFKA-19763.) A list is
the smallest container that is made and emptied in C; per-key dicts that delete at once cost three times as much.

The entries that are dead and still in the lists are counted without looking at a list: an operation that completes
leaves as many as it has keys, a compaction takes out as many as it finds. (Kafka counts operations, so that one with a
thousand keys leaves a thousand entries and counts as one.)

The lists know no clock, no timer and no listener, and of an operation nothing at all.

Any method may be called at any point of another one: by a key's own `__hash__` or `__eq__`, and by finalizers, which
CPython runs after any call of a C function. So each change happens in a block without a call, marked *No call from
here*, and everything that it relies on is looked at in the same block. A list never gets shorter. It grows at its end
and is replaced as a whole, so that a walk over it, however long it is suspended, misses nothing.
"""

from collections.abc import Hashable, Iterator
from contextlib import suppress
from operator import length_hint
from typing import Final, Generic, TypeAlias, TypeVar

from purgatory._speedups import compiled, provide

__all__ = ["Entry", "WatcherLists", "Watchers"]

W = TypeVar("W")

Entry: TypeAlias = list[W]
"""A list of one, shared by all lists that watch it; empty when it is dead."""

_DROPPED: Final = -2

_SHORT: Final = 1000
"""A list of at most so many entries is compacted in one go."""


@compiled("Watchers")
class Watchers(Generic[W]):
    """The watcher list of one key."""

    __slots__ = ("entries", "head", "index", "key")

    def __init__(self, key: Hashable, entry: Entry[W]) -> None:
        self.key: Hashable = key
        self.entries: list[Entry[W]] = [entry]
        """In watch order. Replaced as a whole, and never shortened."""
        self.head: int = 0
        """So many entries at the front are dead: a check with a limit begins behind them."""
        self.index: int = -1
        """The place in the register of all lists; -1 outside of it, and `_DROPPED` for good."""


provide(Watchers=Watchers)


@compiled("WatcherLists")
class WatcherLists(Generic[W]):
    """The watcher lists of one purgatory, and the counts of their entries."""

    __slots__ = ("_by_key", "_register", "_size", "clears", "dead", "peak", "purged", "revived", "watched")

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Watchers[W]] = {}
        self._register: list[Watchers[W]] = []
        """The same lists, for walks in slices: a dict cannot be walked while it changes."""
        self._size = 0
        """The length of the register."""
        self.watched: int = 0
        """Entries in all lists, dead ones included."""
        self.dead: int = 0
        """Entries of operations that have finished."""
        self.clears: int = 0
        """How often all lists have been dropped."""
        self.peak: int = 0
        """The most entries at a time, as of the last removal."""
        self.purged: int = 0
        """Dead entries removed so far."""
        self.revived: list[Entry[W]] = []
        """Entries that were watched while their list was being dropped, by the key's own `__hash__`. A check of the key
        may have missed them: the caller of compact() has to try them, and to clear this."""

    def __len__(self) -> int:
        """How many keys have a list."""
        return self._size

    @property
    def living(self) -> int:
        """Entries of operations that are pending."""
        return self.watched - self.dead

    def watch(self, entry: Entry[W], keys: tuple[Hashable, ...]) -> tuple[BaseException, int] | None:
        """Put `entry` at the end of the list of each of `keys`, which have been counted before, in `watched`.

        Returns the exception that a key's own `__hash__` or `__eq__` has raised, and how many lists have no entry for
        it.
        """
        by_key = self._by_key
        left = iter(keys)
        try:
            for key in left:
                while True:
                    if key in by_key:
                        try:
                            # No call from the look-up to append().
                            by_key[key].entries.append(entry)
                        except KeyError:  # dropped meanwhile, by something that the key's own methods have called
                            continue
                        break
                    watchers = Watchers(key, entry)
                    if by_key.setdefault(key, watchers) is watchers:
                        # As _add_to_register(), without its call: 3 % of an operation on a new key.
                        last = [watchers]
                        # No call from here.
                        watchers.index = self._size
                        self._size += 1
                        self._register += last
                        # To here.
                        if not watchers.entries:  # finished and compacted already
                            with suppress(Exception):  # the key cannot be looked up: the next purge tries again
                                self._drop(watchers)
                        break
        except BaseException as exception:
            return exception, 1 + length_hint(left)
        return None

    def find(self, key: Hashable) -> Watchers[W] | None:
        """The list of `key`, if it has one."""
        return self._by_key.get(key)

    def __contains__(self, key: Hashable) -> bool:
        """Whether anything has been watching `key` since its list was last compacted."""
        return key in self._by_key

    def keys(self) -> list[Hashable]:
        """The keys that have a list."""
        return list(self._by_key)

    def all(self) -> list[Watchers[W]]:
        """All lists as of now, those of the oldest keys first."""
        return list(self._by_key.values())

    def forwards(self) -> Iterator[Watchers[W]]:
        """All lists, one at a time. Suspended, it may miss some when lists are dropped meanwhile."""
        at = 0
        while at < self._size:
            yield self._register[at]
            at += 1

    def backwards(self) -> Iterator[Watchers[W]]:
        """All lists, one at a time. Suspended, it misses none; those added meanwhile may come or not."""
        at = self._size
        while at > 0:
            # A list that is dropped has its place taken by the last one, which has come before, or is new.
            at -= 1
            if at < self._size:
                yield self._register[at]
            else:
                at = self._size

    def skip(self, watchers: Watchers[W], entries: list[Entry[W]], head: int) -> bool:
        """Note that the first `head` of `entries` are dead. Returns whether the list is to be compacted for that.

        It is, when these are half of a list that is compacted in one go; a longer list is left to the purge.
        """
        if watchers.entries is not entries:
            return False
        if head > watchers.head:
            watchers.head = head
        length = len(entries)
        return length <= _SHORT and 2 * head >= length > 0

    def compact(self, watchers: Watchers[W]) -> None:
        """Remove the dead entries of one list, in one go."""
        while entries := watchers.entries:
            last = entries[-1]
            alive = list(filter(None, entries)) if any(entries) else []
            removed = len(entries) - len(alive)
            if not removed:
                return
            # No call from here: the list is as it was.
            if watchers.entries is entries and entries[-1] is last:
                if self.watched > self.peak:
                    self.peak = self.watched
                watchers.entries = alive
                watchers.head = 0
                self.watched -= removed
                self.dead -= removed
                self.purged += removed
                break
        if not watchers.entries:
            self._drop(watchers)

    def compact_in_slices(self, watchers: Watchers[W]) -> Iterator[int]:
        """Remove the dead entries of one list; after each slice, yield how many entries it had."""
        entries = watchers.entries
        length = len(entries)
        if length <= _SHORT:
            self.compact(watchers)
            yield length
            return
        alive: list[Entry[W]] = []
        none: Entry[W] = []
        for start in range(0, length, _SHORT):
            part = entries[start : min(start + _SHORT, length)]
            alive += filter(None, part)
            # The old list lets go of the dead now, for to free a million of them at the end would hold up the loop.
            entries[start : start + len(part)] = [entry or none for entry in part]
            yield len(part)
        # Meanwhile it may have grown at its end, or another compaction may have replaced it.
        while watchers.entries is entries:
            last = entries[-1]
            more = entries[length:]
            alive += more
            length += len(more)
            removed = length - len(alive)
            # No call from here.
            if watchers.entries is entries and entries[-1] is last:
                if self.watched > self.peak:
                    self.peak = self.watched
                watchers.entries = alive
                watchers.head = 0
                self.watched -= removed
                self.dead -= removed
                self.purged += removed
        if not watchers.entries:
            self._drop(watchers)

    def clear(self) -> None:
        """Drop all lists, unless an entry is alive."""
        by_key: dict[Hashable, Watchers[W]] = {}
        register: list[Watchers[W]] = []
        # No call from here.
        if self.watched > self.dead:
            return
        by_key, self._by_key = self._by_key, by_key
        self._register, self._size = register, 0
        self.clears += 1
        if self.watched > self.peak:
            self.peak = self.watched
        self.watched = self.dead = 0
        # To here.
        for watchers in by_key.values():
            watchers.entries = []  # a compaction that is suspended has nothing to do any more

    def _add_to_register(self, watchers: Watchers[W]) -> None:
        last = [watchers]
        # No call from here.
        watchers.index = self._size
        self._size += 1
        self._register += last

    def _drop(self, watchers: Watchers[W]) -> None:
        """Remove an empty list and its key."""
        by_key = self._by_key
        key = watchers.key
        register = self._register
        # No call from here, but for a __hash__ or __eq__ of the key's own: it may watch the key again, and the list is
        # still found then. Nothing else removes it, for it has left the register.
        index = watchers.index
        if watchers.entries or not 0 <= index < self._size or register[index] is not watchers:
            return
        last = register[-1]
        register[index] = last
        last.index = index
        watchers.index = -1
        del register[-1]
        self._size -= 1
        try:
            by_key.pop(key, None)
        except BaseException:
            self._add_to_register(watchers)  # empty, but still found: the next purge tries again
            raise
        if watchers.entries:
            self._revive(by_key, watchers)
        else:
            watchers.index = _DROPPED

    def _revive(self, by_key: dict[Hashable, Watchers[W]], watchers: Watchers[W]) -> None:
        """Find a list again that was watched while it was dropped, or join it with the one that took its place."""
        key = watchers.key
        while watchers.entries:
            there = by_key.setdefault(key, watchers)
            if there is watchers:
                self.revived += watchers.entries
                self._add_to_register(watchers)
                return
            mine, theirs = watchers.entries, there.entries
            none: list[Entry[W]] = []
            merged = mine + theirs
            tail = mine[-1]
            # No call from here: neither list has changed meanwhile, and the other one is not dropped.
            if (
                watchers.entries is mine
                and mine[-1] is tail
                and there.entries is theirs
                and (theirs or mine)[-1] is merged[-1]
                and there.index != _DROPPED
            ):
                there.entries = merged
                there.head = 0
                watchers.entries = none
                self.revived += merged
        watchers.index = _DROPPED
