"""The errors of the purgatory.

Wrong values raise `ValueError` and wrong types `TypeError`, as everywhere in Python; what depends on the state
of a purgatory or an operation raises one of these.
"""

__all__ = ["OperationCancelled", "PurgatoryClosed", "PurgatoryError", "PurgatoryFull"]


class PurgatoryError(RuntimeError):
    """Base of all errors of this package, and what misuse raises: an operation used twice, the wrong event loop."""


class PurgatoryClosed(PurgatoryError):
    """The purgatory has been closed and takes no new operations."""


class PurgatoryFull(PurgatoryError):
    """`max_pending` operations are waiting already; the refused one was not registered and may be tried again."""


class OperationCancelled(PurgatoryError):
    """The operation was cancelled by somebody else than the task awaiting it.

    An ordinary exception on purpose: `asyncio.CancelledError` is only ever the awaiting task's own.
    """
