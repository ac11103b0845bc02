"""Building blocks for libraries on top of purgatories, such as responses, servers and relays.

A `Waiter` is notified that an operation is done, without a task that awaits it:

    if not add_waiter(operation, waiter):  # it is done already
        waiter.set_result(None)
    ...
    result = take_result(operation)        # in a later iteration, after waiter.set_result() was called
    remove_waiter(operation, waiter)       # or earlier, if the client has left
"""

from asyncio import AbstractEventLoop
from functools import partial
from typing import Any, TypeVar

from purgatory._core.listeners import Listener, Outcome
from purgatory._core.operation import DelayedOperation, Waiter
from purgatory._core.purgatory import DelayedOperationPurgatory
from purgatory._loop.arguments import check_callback, check_count, seconds
from purgatory._loop.clock import report
from purgatory._loop.errors import PurgatoryMisuse
from purgatory._loop.slices import SLICE, SLICE_SECONDS, ExitRequests, Slice, SlicedWork, call_next
from purgatory._loop.threads import Mailbox, check_loop

__all__ = [
    "SLICE",
    "SLICE_SECONDS",
    "ExitRequests",
    "Listener",
    "Mailbox",
    "Outcome",
    "Slice",
    "SlicedWork",
    "Waiter",
    "abandon",
    "add_waiter",
    "call_next",
    "check_callback",
    "check_count",
    "check_loop",
    "close_operation",
    "loop_for_threads",
    "remove_waiter",
    "report",
    "seconds",
    "take_result",
]

T = TypeVar("T")


def add_waiter(operation: DelayedOperation[Any], waiter: Waiter) -> bool:
    """Notify a waiter when an operation is done, as the future of an awaiting task is.

    Args:
        operation: An operation that was handed to a purgatory.
        waiter: A future, or an object with the methods of `Waiter`.

    Returns:
        Whether it waits. `False` means that the operation is done already, and that no notification follows.

    Raises:
        PurgatoryMisuse: The operation was not handed to a purgatory, or belongs to another event loop or thread.
    """
    if operation.done():
        return False
    if operation._purgatory_owner is None:
        raise PurgatoryMisuse(f"{operation!r} would never complete: hand it to try_complete_else_watch() first")
    _check(operation, "add_waiter(operation, waiter)")
    return operation._purgatory_add_waiter(waiter)


def remove_waiter(operation: DelayedOperation[Any], waiter: Waiter) -> None:
    """Remove a waiter, as when its task is cancelled. If it is the last one, the operation is cancelled.

    If the operation is done already, its result goes to `on_undelivered`, unless another waiter has taken it.

    Raises:
        PurgatoryMisuse: The operation belongs to another event loop or thread.
        ValueError: `waiter` does not wait for the operation.
    """
    _check(operation, "remove_waiter(operation, waiter)")
    operation._purgatory_remove_waiter(waiter)


def abandon(operation: DelayedOperation[Any]) -> None:
    """Cancel `operation` on the next iteration of its loop if nobody awaits it then.

    You can call it in any thread and in a finalizer, because it only asks the loop.
    """
    owner: Any = operation._purgatory_owner
    if owner is not None and not operation.done():
        owner.call_soon_from_anywhere(partial(_abandon, operation))


def _abandon(operation: DelayedOperation[Any]) -> None:
    waiter: Any = object()
    if not operation.done() and operation._purgatory_add_waiter(waiter):
        operation._purgatory_remove_waiter(waiter)  # which cancels it, if this was the only one


def take_result(operation: DelayedOperation[T]) -> T:
    """Return the result of `operation`, which counts as received now. Raises as `DelayedOperation.result`."""
    return operation.result()


def close_operation(operation: DelayedOperation[Any]) -> bool:
    """Complete `operation` as a close of its purgatory would. Return whether this call completed it.

    Raises:
        PurgatoryMisuse: The operation belongs to another event loop or thread.
    """
    _check(operation, "close_operation(operation)")
    return operation._purgatory_close()


def loop_for_threads(purgatory: DelayedOperationPurgatory) -> AbstractEventLoop | None:
    """Return the event loop that another thread may call, or `None` if there is none yet, or after a close.

    Raises:
        PurgatoryMisuse: `purgatory` runs on a clock that is not an event loop.
    """
    return purgatory._owner.loop_for_threads(purgatory)


def _check(operation: DelayedOperation[Any], call: str) -> None:
    owner = operation._purgatory_owner
    if owner is not None:
        check_loop(operation, owner.loop, call)
