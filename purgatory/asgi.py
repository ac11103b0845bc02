"""Long polls on any ASGI server and framework.

`unless_disconnected` awaits an operation, and leaves it when the client disconnects.
`closing_on_shutdown` closes purgatories when shutdown begins: a server notifies its application only when all
connections have closed, and the application's own long polls keep them open.
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
"""ASGI's `receive`, which is `request.receive` in Starlette and FastAPI."""

Handler: TypeAlias = Callable[[int, FrameType | None], Any]

SIGNALS = [number for number in signal.Signals if number.name in {"SIGINT", "SIGTERM", "SIGBREAK"}]
"""The signals at which servers shut down. The last one is Windows'."""


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
            await _until_disconnected(receive, lambda: left or operation.done())
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


async def _until_disconnected(receive: Receive, is_over: Callable[[], bool]) -> None:
    """Return when the client has disconnected, or after a message if `is_over()` is true then."""
    ended = False
    while (message := await receive())["type"] != "http.disconnect":
        if message["type"] == "http.request" and not message.get("more_body", False):
            if ended:
                raise RuntimeError("receive() yields the end of the body once more, and so no disconnect")
            ended = True
        if is_over():
            return  # `watch` was cancelled, perhaps, and `receive` has suppressed that


class Closeable(Protocol):
    """An object with `aclose()`, such as a purgatory."""

    def aclose(self) -> Awaitable[object]: ...


@asynccontextmanager
async def closing_on_shutdown(*purgatories: Closeable) -> AsyncIterator[None]:
    """Call `aclose()` of each of `purgatories` when shutdown begins, or else when the context ends.

    It is for the lifespan of the application. Shutdown begins with SIGTERM or SIGINT: their handlers are wrapped,
    and called as ever, until the context ends. The end of the context closes them where a signal has no handler,
    outside the main thread, and where a server stops without a signal: on uvicorn's `--limit-max-requests`, and in
    hypercorn's worker processes (with `--workers 0` it has none).

    All are closed at once, and a failure of one does not stop the others. Operations completed by that have the outcome
    *closed*. Raises `TypeError` if an argument has no `aclose`, before anything is done, and when the context ends an
    `ExceptionGroup` of all exceptions of the closing.
    """
    for purgatory in purgatories:
        if not callable(getattr(purgatory, "aclose", None)):
            raise TypeError(f"an object with aclose() is needed, not {purgatory!r}")
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
    """Call `callback` when one of the signals comes, before its present handler."""
    if threading.current_thread() is not threading.main_thread():  # the main thread alone may set handlers
        yield
        return

    wrapped = []
    for number in SIGNALS:
        # The default action cannot be called, and an ignored signal shuts nothing down.
        if callable(handler := signal.getsignal(number)):
            wrapper = partial(_handle, callback, handler)
            signal.signal(number, wrapper)
            wrapped.append((number, wrapper, handler))
    try:
        yield
    finally:
        for number, wrapper, handler in wrapped:
            if signal.getsignal(number) is wrapper:  # and not a handler that was set meanwhile
                signal.signal(number, handler)


def _handle(callback: Callable[[], object], handler: Handler, number: int, frame: FrameType | None) -> None:
    with suppress(RuntimeError):  # the loop is closed: a handler that has wrapped this one still calls it
        callback()
    handler(number, frame)
