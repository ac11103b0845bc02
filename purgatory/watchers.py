"""Watcher lists: for each key, the operations that wait on it, in watch order.

An operation that completes is usually watched by several lists. Deleting it from all of them at once would make every
completion pay for every key, so, as in Kafka, its entries stay as *dead* ones until somebody walks the list anyway or a
purge removes them. Three things differ from Kafka's:

An *entry* is a list of one, the operation, shared by all lists that watch it. Completion empties it. So an entry
that is still in some list holds nothing of the operation or its payload, and `if entry` asks whether it is alive.
(Kafka keeps the whole operation until the purge and has run out of memory on it: KAFKA-19389, KAFKA-19763.) A list is
the smallest container that is made and emptied in C; per-key dicts that delete at once cost three times as much.

The purge runs in slices, so that it never holds up the loop. A list too long for one slice is compacted into a new
list beside it, which takes its place at the end.

When to purge is decided as in Kafka, by an estimate, without looking at any list: there, a total counts the operations
watched, and is set to the number of those pending when a purge starts. What the total is too high by since then is how
many have finished and may have left dead entries. That is what is counted here, as `finished`.
"""

from asyncio import AbstractEventLoop, _get_running_loop
from collections import deque
from collections.abc import Collection, Hashable, Iterator
from threading import get_ident
from time import perf_counter
from typing import Generic, TypeVar

from purgatory.clock import Handle, report
from purgatory.errors import PurgatoryError
from purgatory.listeners import Listeners
from purgatory.timer import WheelTimer
from purgatory.timer.timer import SLICE

__all__ = ["WatcherLists"]

W = TypeVar("W")


class WatcherLists(Generic[W]):
    """The watcher lists of one purgatory, its timer, and the counts that its operations keep."""

    __slots__ = (
        "_handle",
        "_lists",
        "at_once",
        "cancelled",
        "deferred",
        "depth",
        "expired",
        "failed",
        "finished",
        "listeners",
        "loop",
        "num_delayed",
        "peak_delayed",
        "peak_watched",
        "purge_interval",
        "purged",
        "purges",
        "quiet",
        "satisfied",
        "scanned",
        "thread",
        "time",
        "timer",
        "watched",
    )

    def __init__(self, timer: WheelTimer, purge_interval: int) -> None:
        self.timer = timer
        self.time = timer.time
        """The clock's, which is asked in fewer steps once it is known."""
        self.purge_interval = purge_interval
        self.quiet = purge_interval
        """Up to so many `finished`, one more has nobody to tell and nothing to purge: -1 where somebody listens."""
        self.listeners: Listeners | None = None
        self._lists: dict[Hashable, list[list[W]]] = {}
        self._handle: Handle | None = None
        """Of the purge that is under way."""
        self.loop: AbstractEventLoop | None = None
        """The loop that the purgatory belongs to, if it belongs to one yet."""
        self.thread: int | None = None
        """The only thread that may use the purgatory; known in asyncio's debug mode, for others do not look."""
        self.depth = 0
        """How many completions are being made, each inside the one before."""
        self.deferred: deque[W] = deque()
        """What is to be completed by the outermost of these."""
        self.num_delayed = 0
        """Operations pending, exactly."""
        self.finished = 0
        """Operations that have finished since the last purge started, and may have left dead entries."""
        self.watched = 0
        """Entries in all lists, dead ones included, exactly."""
        self.peak_delayed = 0
        self.peak_watched = 0
        self.purges = 0
        self.purged = 0
        self.scanned = 0
        self.at_once = 0
        self.satisfied = 0
        self.expired = 0
        self.cancelled = 0
        self.failed = 0

    def watch(self, operation: W, keys: Collection[Hashable]) -> list[W]:
        """Put `operation` at the end of the list of each of `keys`, which are distinct. Returns its entry."""
        entry = [operation]
        lists = self._lists
        try:
            for key in keys:
                entries = lists.get(key)
                if entries is None:
                    # Not lists[key] = [entry]: the key's own __hash__ may have watched something on it meanwhile.
                    lists.setdefault(key, []).append(entry)
                else:
                    entries.append(entry)
        except BaseException:  # from the key's own __hash__ or __eq__
            self.watched = sum(map(len, lists.values()))
            entry.clear()
            self.finished += 1
            self.purge_if_due()
            raise
        self.watched += len(keys)
        self.num_delayed = num_delayed = self.num_delayed + 1
        if num_delayed > self.peak_delayed:
            self.peak_delayed = num_delayed
        return entry

    def purge_if_due(self) -> None:
        """Start a purge if enough operations have finished since the last one started, unless one is under way."""
        if self.finished > self.purge_interval and self._handle is None:
            self._purge_soon(self._purge())
            self.finished = 0
            self.purges += 1

    def listen(self, listeners: Listeners | None) -> None:
        """Have `listeners` told of who finishes; `None` is nobody."""
        self.listeners = listeners
        self.quiet = self.purge_interval if listeners is None else -1

    def check_thread(self, call: str, door: str) -> None:
        """Raise `PurgatoryError`, which names the right door, if this is not the thread of the event loop."""
        thread = get_ident()
        if self.thread is not None and self.thread != thread:
            if self.loop is not None and _get_running_loop() is self.loop:
                self.thread = thread  # the loop goes on here
                return
            raise PurgatoryError(f"{call}() is not for other threads than that of the event loop: use {door}")

    def has(self, key: Hashable) -> bool:
        """Whether anything has been watching `key` since its list was last compacted."""
        return key in self._lists

    def keys(self) -> list[Hashable]:
        """The keys that have lists."""
        return list(self._lists)

    def entries(self, key: Hashable) -> list[list[W]]:
        """A copy of the list of `key`: what watches it now, dead entries included, in watch order."""
        entries = self._lists.get(key)
        return [] if entries is None else entries.copy()

    def slices(self, key: Hashable) -> Iterator[list[list[W]]]:
        """The list of `key` as it is when this begins, slice by slice."""
        # It is not copied: a list grows at its end, and is replaced as a whole, but never shortened.
        entries = self._lists.get(key, [])
        length = len(entries)
        for start in range(0, length, SLICE):
            yield entries[start : min(start + SLICE, length)]

    def all_entries(self) -> Iterator[list[W]]:
        """The entries of all lists; an operation on several keys comes several times."""
        for entries in list(self._lists.values()):
            yield from entries.copy()

    def compact(self, key: Hashable) -> None:
        """Remove the dead entries of `key`, in one go."""
        entries = self._lists.get(key)
        if entries is not None:
            self._replace(key, entries, list(filter(None, entries)))

    def compact_in_slices(self, key: Hashable) -> Iterator[int]:
        """Remove the dead entries of `key`; after each slice, yield how many entries it had."""
        entries = self._lists.get(key)
        if entries is None:
            return
        length = len(entries)
        if length <= SLICE:
            self._replace(key, entries, list(filter(None, entries)))
            yield length
            return
        alive: list[list[W]] = []
        dead: list[W] = []
        for start in range(0, length, SLICE):
            part = entries[start : min(start + SLICE, length)]
            alive += filter(None, part)
            # The old list lets go of the dead now, for to free a million of them at the end would hold up the loop.
            entries[start : start + len(part)] = [entry or dead for entry in part]
            yield len(part)
        # Meanwhile more may have been added at its end, or somebody else may have compacted it.
        if self._lists.get(key) is entries:
            alive += entries[length:]
            self._replace(key, entries, alive)

    def close(self) -> None:
        """Drop all lists, whose entries must be dead, and stop purging."""
        self._lists.clear()
        self.peak_watched = max(self.peak_watched, self.watched)
        self.watched = 0
        self.finished = 0
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _replace(self, key: Hashable, entries: list[list[W]], alive: list[list[W]]) -> None:
        dead = len(entries) - len(alive)
        # Not at every watch: it is only before there are fewer that there can have been the most.
        self.peak_watched = max(self.peak_watched, self.watched)
        self.watched -= dead
        self.purged += dead
        if alive:
            self._lists[key] = alive
        else:
            del self._lists[key]

    def _purge(self) -> Iterator[None]:
        budget = SLICE
        added = self.watched + self.purged
        for key in list(self._lists):
            try:
                for entries in self.compact_in_slices(key):
                    self.scanned += entries
                    budget -= entries
                    if budget <= 0:
                        yield
                        # At least twice as fast as new entries come, or else the purge would never catch up.
                        before, added = added, self.watched + self.purged
                        budget = max(SLICE, 2 * (added - before))
            except Exception as exception:  # from the key's own __hash__ or __eq__
                report(self.timer.clock, "a watch key cannot be looked up", exception)

    def _purge_soon(self, purge: Iterator[None]) -> None:
        clock = self.timer.clock
        self._handle = clock.call_at(clock.time(), self._purge_slice, purge)

    def _purge_slice(self, purge: Iterator[None]) -> None:
        began = perf_counter()
        for _ in purge:
            self._purge_soon(purge)
            break
        else:
            self._handle = None
            self.purge_if_due()
        self.timer.note_slice(began)
