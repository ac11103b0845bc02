"""The statistics of a purgatory."""

from dataclasses import dataclass, field

__all__ = ["PurgatoryStatistics"]


@dataclass(frozen=True, slots=True)
class PurgatoryStatistics:
    """The contents of a purgatory now, and its counts since it was made."""

    name: str
    num_delayed: int
    """Operations pending now."""
    watched: int
    """Entries in the watcher lists now, the dead ones of finished operations included."""
    completed_at_once: int
    """Operations whose condition held on arrival, so that they never waited."""
    satisfied: int
    """Operations that waited and were completed before their deadline, or by a last try at it: by their condition or by
    `force_complete`."""
    missed: int
    """Of these, the operations whose condition was found to hold only by the last try at the deadline. For each
    one a check is missing, had a limit, or was still queued."""
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
    """The most operations pending at a time."""
    peak_watched: int
    """The most entries in the watcher lists at a time."""
    longest_slice: float = field(compare=False)
    """Seconds of the longest slice of work so far (expiry, cascade, purge, `check_and_complete_soon`, `aclose`): the
    longest time for which the purgatory has held up the loop on its own."""
