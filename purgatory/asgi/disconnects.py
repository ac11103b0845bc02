"""Leaving an operation when the client disconnects."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from purgatory import DelayedOperation, OperationCancelled
from purgatory.asgi.interface import Receive

__all__ = ["ClientDisconnected", "unless_disconnected", "until_disconnected"]

T = TypeVar("T")


class ClientDisconnected(OperationCancelled):
    """The operation was cancelled because its client has disconnected."""


async def unless_disconnected(receive: Receive, operation: DelayedOperation[T]) -> T:
    """Await `operation`, but leave it as soon as the client disconnects.

    The last task that leaves cancels the operation: of several requests that share one, the others get their answers.

    To be called when the request's body has been read: all messages of `receive` but `http.disconnect` are skipped.
    When this returns or raises, `receive` is not running any more, unless the task is cancelled a second time while
    `receive` still cleans up.

    Raises the exceptions of awaiting the operation; `ClientDisconnected` if the client has disconnected before the
    operation was done; the exceptions of `receive`, and so `RuntimeError` if `receive` yields the end of the body once
    more, as it does behind a middleware that replays bodies: a disconnect could not be seen.
    """
    if operation.done():
        return operation.result()
    task = asyncio.current_task()
    assert task is not None, "asyncio runs coroutines in tasks"
    cancelling = task.cancelling()
    left = interrupted = False

    async def watch() -> None:
        nonlocal interrupted
        try:
            await until_disconnected(receive, lambda: left or operation.done())
        finally:
            if not left and not operation.done():
                interrupted = True
                task.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await operation
    except asyncio.CancelledError:
        # As `asyncio.timeout` does: if all other cancellations were there before, this one is that of `watch`.
        if not interrupted or task.uncancel() > cancelling:
            raise
        if watching.cancelled():
            raise OperationCancelled("receive() was cancelled") from None
        watching.result()
        raise ClientDisconnected("the client has disconnected") from None
    finally:
        left = True
        watching.cancel()
        await asyncio.wait([watching])


async def until_disconnected(receive: Receive, is_over: Callable[[], bool] = lambda: False) -> None:
    """Return when the client has disconnected, or after a message if `is_over()` is true then."""
    ended = False
    while (message := await receive())["type"] != "http.disconnect":
        if message["type"] == "http.request" and not message.get("more_body", False):
            if ended:
                raise RuntimeError("receive() repeats the end of the body, so a disconnect cannot be detected")
            ended = True
        if is_over():
            return  # `watch` was cancelled, perhaps, and `receive` has suppressed that
