"""For servers of long polls, on any ASGI server and framework.

`unless_disconnected` awaits an operation, and cancels it when the client that waits for it disconnects.
`closing_on_shutdown` closes purgatories when shutdown begins: a server tells its application only when all connections
have closed, and the application's own long polls keep them open.
"""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Protocol, TypeAlias, TypeVar

from purgatory.errors import OperationCancelled
from purgatory.operation import DelayedOperation

__all__ = ["ClientDisconnected", "closing_on_shutdown", "unless_disconnected"]

T = TypeVar("T")

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's, which is `request.receive` in Starlette and FastAPI."""

Handler: TypeAlias = Callable[[int, FrameType | None], Any]

SIGNALS = [number for number in signal.Signals if number.name in {"SIGINT", "SIGTERM", "SIGBREAK"}]
"""Those at which servers shut down. The last one is Windows'."""


class ClientDisconnected(OperationCancelled):
    """The operation was cancelled because the client that waited for it has disconnected."""


async def unless_disconnected(receive: Receive, operation: DelayedOperation[T]) -> T:
    """Await `operation`, but cancel it as soon as the client disconnects.

    To be called when the request's body has been read: what `receive` yields, other than `http.disconnect`, is skipped.
    When this returns or raises, `receive` is not running any more; unless the task is cancelled a second time while
    `receive` still cleans up: nobody waits for that then.

    Raises what awaiting the operation raises; `ClientDisconnected` if the client has disconnected before the operation
    was done; what `receive` raises, with the operation cancelled; and so `RuntimeError` if `receive` yields the end of
    the body once more, as it does behind a middleware that replays bodies: a disconnect could not be seen.
    """
    if operation.done():
        return operation.result()
    watching = asyncio.create_task(_cancel_on_disconnect(receive, operation))
    try:
        return await operation
    except OperationCancelled:
        if watching.done() and not watching.cancelled() and watching.result():
            raise ClientDisconnected("the client has disconnected") from None
        raise
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _cancel_on_disconnect(receive: Receive, operation: DelayedOperation[Any]) -> bool:
    """Return whether the client has disconnected; otherwise the operation is done."""
    ended = False
    try:
        while (message := await receive())["type"] != "http.disconnect":
            if message["type"] == "http.request" and not message.get("more_body", False):
                if ended:
                    raise RuntimeError("receive() yields the end of the body once more, and so no disconnect")
                ended = True
            if operation.done():
                return False  # cancelled, perhaps, and `receive` has kept that to itself
        return True
    finally:
        operation.cancel()


class Closeable(Protocol):
    """A purgatory, for example."""

    def aclose(self) -> Awaitable[object]: ...


@asynccontextmanager
async def closing_on_shutdown(*purgatories: Closeable) -> AsyncIterator[None]:
    """Call `aclose()` of each of `purgatories` when shutdown begins, or else when the context ends.

    For the application's lifespan. Shutdown begins with SIGTERM or SIGINT: the present handlers of these are wrapped,
    and called as ever, until the context ends. It is the end of the context that closes where a signal has no handler,
    outside the main thread, and where a server stops without a signal: on uvicorn's `--limit-max-requests`, and in
    hypercorn's worker processes (with `--workers 0` it has none).

    All are closed at once, and one that fails does not keep the others from it. Raises `TypeError` if something has no
    `aclose`, before anything is done, and when the context ends an `ExceptionGroup` of all that the closing raised.
    """
    for purgatory in purgatories:
        if not callable(getattr(purgatory, "aclose", None)):
            raise TypeError(f"something with aclose() is needed, not {purgatory!r}")
    loop = asyncio.get_running_loop()
    closing: asyncio.Task[None] | None = None

    def close() -> asyncio.Task[None]:
        nonlocal closing
        if closing is None:
            closing = loop.create_task(_close(purgatories))
        return closing

    with _before_handlers(lambda: loop.call_soon_threadsafe(close)):
        try:
            yield
        finally:
            await close()


async def _close(purgatories: tuple[Closeable, ...]) -> None:
    async def close(purgatory: Closeable) -> None:
        await purgatory.aclose()

    outcomes = await asyncio.gather(*map(close, purgatories), return_exceptions=True)
    if faults := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
        raise BaseExceptionGroup("closing at shutdown", faults)


@contextmanager
def _before_handlers(callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` when one of the signals comes, before the handler that it has now."""
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return

    wrapped = []
    for number in SIGNALS:
        # The default action is not ours to take, and an ignored signal shuts nothing down.
        if callable(handler := signal.getsignal(number)):
            wrapper = partial(_handle, callback, handler)
            signal.signal(number, wrapper)
            wrapped.append((number, wrapper, handler))
    try:
        yield
    finally:
        for number, wrapper, handler in wrapped:
            if signal.getsignal(number) is wrapper:  # not what somebody has set meanwhile
                signal.signal(number, handler)


def _handle(callback: Callable[[], object], handler: Handler, number: int, frame: FrameType | None) -> None:
    with suppress(RuntimeError):  # the loop is closed: whoever has wrapped this one in turn still calls it
        callback()
    handler(number, frame)
