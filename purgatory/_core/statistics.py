"""The statistics of a purgatory."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PurgatoryStatistics:
    """The contents of a purgatory now, and its counts since it was made.

    For example:

        statistics = purgatory.statistics()
        assert statistics.missed == 0, "a call of check_and_complete is missing"
    """

    name: str
    num_delayed: int
    """Operations pending now."""
    watched: int
    """Entries in the watcher lists now, including the dead entries of finished operations."""
    completed_at_once: int
    """Operations whose condition held on arrival, so that they never waited."""
    satisfied: int
    """Operations that waited and were completed before their deadline or by the last try at it, because their condition
    held or by `force_complete`."""
    missed: int
    """Satisfied operations whose condition was found to hold only by the last try at the deadline. For each of them a
    check is missing, had a limit, or was still queued."""
    expired: int
    """Operations completed by their deadline."""
    closed: int
    """Operations completed by `complete_all`, `close` or `aclose`."""
    cancelled: int
    """Operations cancelled."""
    failed: int
    """Operations that failed: by `fail` or `fail_all`, or because `try_complete` or `on_complete` raised."""
    purges: int
    """Purges started."""
    purged: int
    """Dead entries removed from the watcher lists, by purges or by checks."""
    scanned: int
    """Entries of the watcher lists that purges have looked at."""
    peak_delayed: int
    """The largest number of operations that were pending at a time."""
    peak_watched: int
    """The largest number of entries that the watcher lists had at a time."""
    longest_slice: float = field(compare=False)
    """Seconds of the longest slice of work so far (expiry, cascade, purge, `check_and_complete_soon`, `aclose`). It is
    the longest time for which the purgatory has held up the loop on its own."""
