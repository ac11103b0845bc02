"""Awaiting an operation until the client disconnects."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from purgatory import DelayedOperation, OperationCancelled
from purgatory.asgi.interface import Receive

T = TypeVar("T")


class ClientDisconnected(OperationCancelled):
    """The wait ended because its client has disconnected.

    For example:

        with suppress(ClientDisconnected):
            result = await unless_disconnected(request.receive, operation)
    """


async def unless_disconnected(receive: Receive, operation: DelayedOperation[T]) -> T:
    """Await an operation, but stop waiting as soon as the client disconnects.

    If several requests share an operation, the others still get their answers. The last one that stops waiting cancels
    the operation. When this returns or raises, `receive` is no longer running, unless the task is cancelled a second
    time while `receive` still cleans up.

    Args:
        receive: ASGI's `receive`. Read the request's body first, because other messages are skipped.
        operation: The operation to await.

    Returns:
        The result of the operation.

    Raises:
        ClientDisconnected: The client has disconnected before the operation was done.
        RuntimeError: `receive` yields the end of the body again, as behind a middleware that replays bodies, so that a
            disconnect could not be detected. Other exceptions of `receive` come out too.
        Exception: The operation failed with this exception.
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
        # As `asyncio.timeout` does: if all other cancellations were there before, this one comes from `watch`.
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
    """Return when the client has disconnected, or after a message if `is_over()` is true by then."""
    ended = False
    while (message := await receive())["type"] != "http.disconnect":
        if message["type"] == "http.request" and not message.get("more_body", False):
            if ended:
                raise RuntimeError("receive() repeats the end of the body, so a disconnect cannot be detected")
            ended = True
        if is_over():
            return  # perhaps `watch` was cancelled, and `receive` has suppressed that
