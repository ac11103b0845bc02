"""The work on watcher lists that is done in slices. The lists themselves are in `_base`.

An operation that completes is usually in several lists. If it were deleted from all of them at once, every completion
would pay for every key. So its entries stay as *dead* entries, as in Kafka, until a check compacts the list or a purge
removes them. There are two differences from Kafka:

An *entry* is a small object with the operation, shared by all lists that watch it. Completion empties it, so an entry
that is still in some list holds nothing of the operation or its payload. (Kafka keeps the whole operation until the
purge, and has run out of memory because of it: KAFKA-19389, KAFKA-19763.)

The dead entries are counted without looking at any list: an operation that completes leaves as many as it has keys, and
a compaction removes as many as it finds. So the count is exact. (Kafka estimates. It counts operations, so an operation
with a thousand keys leaves a thousand entries and counts as one.)

A list never gets shorter. It grows at its end and is replaced as a whole, so a walk over it misses nothing, however
long it is suspended.
"""

from collections.abc import Iterator
from typing import Final

from purgatory._core._base import Entry, OwnerBase, WatcherLists, Watchers
from purgatory._loop.slices import SLICE

_CHUNK: Final = 50
"""Entries of short lists that are compacted between two looks at the time."""


def each_list(lists: WatcherLists) -> Iterator[Watchers]:
    """Yield all lists, one at a time. A suspended iteration may miss lists that are added meanwhile, but no others."""
    index = len(lists)
    while index > 0:
        # The last list takes the place of a dropped one. It was yielded before, or it is new.
        index = min(index, len(lists)) - 1
        if index >= 0:
            yield lists.at(index)


def compact_in_slices(owner: OwnerBase, watchers: Watchers) -> Iterator[int]:
    """Remove the dead entries of one list. After each slice, yield how many entries it had."""
    entries = watchers.entries
    length = len(entries)
    if length <= SLICE:
        owner.compact(watchers)
        yield length
        return
    alive: list[Entry] = []
    for start in range(0, length, SLICE):
        part = entries[start : min(start + SLICE, length)]
        living = [entry for entry in part if entry.operation is not None]
        alive += living
        if len(living) < len(part):
            # The old list drops the dead ones now, because freeing a million of them at the end would hold up the
            # loop. The others move towards its end, so that a suspended walk over it misses none.
            dead = next(entry for entry in part if entry.operation is None)
            entries[start : start + len(part)] = [dead] * (len(part) - len(living)) + living
        yield len(part)
    if watchers.entries is entries:  # else another compaction has replaced it meanwhile
        alive += entries[length:]
        try:
            owner.lists.replace(watchers, alive)
        except Exception as exception:
            owner.report_key(exception)


def compact_all(owner: OwnerBase) -> Iterator[int]:
    """Remove the dead entries of all lists. After each slice, yield how many entries it had."""
    done = 0
    for watchers in each_list(owner.lists):
        length = len(watchers.entries)
        if length > SLICE:
            yield from compact_in_slices(owner, watchers)
            continue
        owner.compact(watchers)
        # Not after each short list: there may be a million of them.
        done += max(length, 1)
        if done >= _CHUNK:
            yield done
            done = 0
    if done:
        yield done


def skip_dead(watchers: Watchers, entries: list[Entry], head: int) -> bool:
    """Note that the first `head` of `entries` are dead. Return whether the list must be compacted now.

    It must be if they are half of a list that is compacted in one go. A longer list is left to the purge.
    """
    if watchers.entries is not entries:
        return False
    if head > watchers.head:
        watchers.head = head
    return len(entries) <= SLICE and 2 * head >= len(entries)
