"""The errors of a journal."""

from purgatory import PurgatoryError

__all__ = ["JournalError", "JournalFull"]


class JournalError(PurgatoryError):
    """Rows could not be written."""


class JournalFull(JournalError):
    """The queue has `max_queued` rows: the disk is slow or full."""
