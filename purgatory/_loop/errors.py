"""The errors of the purgatory.

Wrong values raise `ValueError` and wrong types `TypeError`, as everywhere in Python. If a purgatory or an operation is
in the wrong state for a call, one of these is raised. Tracebacks and logs show the module that users import them from.
"""

import sys

# Each module imports this one, and the other distribution has no such module.
if getattr(sys.modules["purgatory"], "__distribution__", None) != "asyncio-purgatory":
    raise ImportError(
        "another distribution that also imports as `purgatory`, a circuit breaker, has overwritten a part of "
        "asyncio-purgatory: install each in an environment of its own"
    )


class PurgatoryError(RuntimeError):
    """Base of all errors of this package.

    For example:

        with suppress(PurgatoryError):  # closed, full, cancelled, or a misuse
            result = await purgatory.try_complete_else_watch(operation, keys)
    """

    __module__ = "purgatory"


class PurgatoryMisuse(PurgatoryError):
    """The caller has a bug: it uses an operation twice, or calls from the wrong event loop or thread.

    The message names the right call, so don't catch it.

        purgatory.try_complete_else_watch(operation, ["topic"])
        purgatory.try_complete_else_watch(operation, ["topic"])  # PurgatoryMisuse: was already handed to a purgatory
    """

    __module__ = "purgatory"


class PurgatoryClosed(PurgatoryError):
    """The purgatory was closed and accepts no more operations.

    For example:

        with suppress(PurgatoryClosed):  # the server shuts down
            await purgatory.wait_for(is_ready, "job 7")
    """

    __module__ = "purgatory"


class PurgatoryFull(PurgatoryError):
    """The purgatory refuses an operation because `max_pending` operations are pending.

    The refused operation is cancelled. Hand over a new one later.

        try:
            operation = purgatory.wait_for(is_ready, "job 7", timeout=30.0)
        except PurgatoryFull:
            return Response(status_code=503)
    """

    __module__ = "purgatory"


class OperationCancelled(PurgatoryError):
    """The operation was cancelled, and not by the task that awaits it.

    It is an ordinary exception, because `asyncio.CancelledError` means that the awaiting task itself is cancelled.

        with suppress(OperationCancelled):  # other code called operation.cancel()
            result = await operation
    """

    __module__ = "purgatory"
