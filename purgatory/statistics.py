"""What a purgatory says of itself."""

from dataclasses import dataclass, field

__all__ = ["PurgatoryStatistics"]


@dataclass(frozen=True, slots=True)
class PurgatoryStatistics:
    """What a purgatory holds, and what it has done since it was made."""

    name: str
    num_delayed: int
    """Operations pending now."""
    watched: int
    """Entries in the watcher lists now, those of finished operations included."""
    estimated_total: int
    """Operations watched and not purged yet, by the estimate that decides when to purge."""
    completed_at_once: int
    """Operations whose condition held when they came, so that they never waited."""
    satisfied: int
    """Operations that waited and were completed before their deadline: by their condition, by force or by a close."""
    expired: int
    """Operations completed by their deadline."""
    cancelled: int
    """Operations cancelled."""
    failed: int
    """Operations one of whose methods raised."""
    purges: int
    """Purges started."""
    purged: int
    """Dead entries removed from the watcher lists, by purges or by checks that came by."""
    scanned: int
    """Entries of the watcher lists that purges have looked at."""
    peak_delayed: int
    """The most operations pending at a time."""
    peak_watched: int
    """The most entries in the watcher lists at a time."""
    longest_slice: float = field(compare=False)
    """Seconds of the longest slice of work so far (expiry, cascade, purge, `check_and_complete_soon`): the longest time
    for which the purgatory by itself has held up the loop."""
