"""The errors of a journal."""

from purgatory import PurgatoryError


class JournalError(PurgatoryError):
    """Rows could not be written, or the journal is closed.

    For example:

        with suppress(JournalError):  # with when_full="raise"
            journal.close()
    """


class JournalFull(JournalError):
    """The queue has `max_queued` rows, because the disk is slow or full.

    For example:

        with suppress(JournalFull):  # with when_full="raise"
            journal.write(finished)
    """
