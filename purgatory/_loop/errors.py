"""The errors of the purgatory.

Wrong values raise `ValueError` and wrong types `TypeError`, as everywhere in Python; a wrong state of a purgatory or an
operation raises one of these. Tracebacks and logs name them by the module that users import them from.
"""

import sys

__all__ = ["OperationCancelled", "PurgatoryClosed", "PurgatoryError", "PurgatoryFull", "PurgatoryMisuse"]

# Each module imports this one, and the other distribution has no such module.
if getattr(sys.modules["purgatory"], "__distribution__", None) != "asyncio-purgatory":
    raise ImportError(
        "another distribution that also imports as `purgatory`, a circuit breaker, has overwritten a part of "
        "asyncio-purgatory: install each in an environment of its own"
    )


class PurgatoryError(RuntimeError):
    """Base of all errors of this package."""

    __module__ = "purgatory"


class PurgatoryMisuse(PurgatoryError):
    """A bug of the caller: an operation is used twice, the wrong event loop or thread calls."""

    __module__ = "purgatory"


class PurgatoryClosed(PurgatoryError):
    """The purgatory has been closed and takes no new operations."""

    __module__ = "purgatory"


class PurgatoryFull(PurgatoryError):
    """`max_pending` operations are pending already. The refused one is cancelled: hand over a new one later."""

    __module__ = "purgatory"


class OperationCancelled(PurgatoryError):
    """The operation was cancelled by another party than the task that awaits it.

    An ordinary exception on purpose: `asyncio.CancelledError` is only ever the awaiting task's own.
    """

    __module__ = "purgatory"
