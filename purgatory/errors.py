"""The errors of the purgatory.

Wrong values raise `ValueError` and wrong types `TypeError`, as everywhere in Python; a wrong state of a purgatory or an
operation raises one of these.
"""

__all__ = ["OperationCancelled", "PurgatoryClosed", "PurgatoryError", "PurgatoryFull"]


class PurgatoryError(RuntimeError):
    """Base of all errors of this package. Misuse raises it: an operation used twice, the wrong event loop."""


class PurgatoryClosed(PurgatoryError):
    """The purgatory has been closed and takes no new operations."""


class PurgatoryFull(PurgatoryError):
    """`max_pending` operations are pending already; the refused one was not registered and may be tried again."""


class OperationCancelled(PurgatoryError):
    """The operation was cancelled by another party than the task that awaits it.

    An ordinary exception on purpose: `asyncio.CancelledError` is only ever the awaiting task's own.
    """
