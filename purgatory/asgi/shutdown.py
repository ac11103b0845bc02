"""Completing operations when a server begins to shut down, and not when it has shut down."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Protocol, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], Any]

SIGNALS = [number for number in signal.Signals if number.name in {"SIGINT", "SIGTERM", "SIGBREAK"}]
"""The signals at which servers shut down. The last one is Windows'."""


class Closeable(Protocol):
    """An object with `aclose()`, such as a purgatory."""

    def aclose(self) -> Awaitable[object]: ...


@asynccontextmanager
async def closing_on_shutdown(*purgatories: Closeable) -> AsyncIterator[None]:
    """Call `aclose()` of purgatories when shutdown begins, or else when the context ends.

    Use it in the lifespan of the application. Shutdown begins with SIGTERM or SIGINT, whose handlers are wrapped until
    the context ends. If a signal has no handler, or outside the main thread, only the end of the context closes the
    purgatories. The same is true if a server stops without a signal, as on uvicorn's `--limit-max-requests` and in
    hypercorn's worker processes (with `--workers 0` it has none).

    All are closed at once, and a failure of one does not stop the others. Their operations get the outcome *closed*.

    Args:
        purgatories: Purgatories, or other objects with `aclose()`.

    Raises:
        TypeError: An argument has no `aclose`. Nothing is done then.
        ExceptionGroup: Closing has failed, when the context ends.
    """
    for purgatory in purgatories:
        if not callable(getattr(purgatory, "aclose", None)):
            raise TypeError(f"each argument must be an object with aclose(), such as a purgatory, not {purgatory!r}")
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
        # The default action cannot be called, and an ignored signal doesn't shut anything down.
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
