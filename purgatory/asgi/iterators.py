"""The events of an async iterator, which runs in the task of the request while the request is parked."""

import asyncio
import math
from asyncio import Future, Task, TimerHandle
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

from purgatory.asgi.disconnects import until_disconnected
from purgatory.asgi.event import COMMENT, Event, chunk, encoded, end
from purgatory.asgi.interface import Message, Receive, Scope, Send, logger
from purgatory.asgi.parking import Answering, park


async def chunks(
    items: AsyncIterable[Any], render: Callable[[Any], Iterable[Event]] | None
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes for each item of `items`, which is closed at the end."""
    try:
        async for item in items:
            yield encoded(_events(item) if render is None else render(item))[0]
    finally:
        close: Callable[[], Awaitable[None]] | None = getattr(items, "aclose", None)
        if close is not None:
            await close()


def _events(item: object) -> list[Event]:
    if isinstance(item, str):
        return [Event(item)]
    if isinstance(item, Event):
        return [item]
    raise TypeError(f"the iterator must yield events or strings, not a {type(item).__name__}: pass a render function")


class IteratedStream(Answering):
    """A parked request that gets the events of an async iterator."""

    __slots__ = ("_cancelled", "_chunks", "_heartbeat", "_next_beat", "_paused", "_pauses", "_sent", "_task")

    def __init__(self, chunks: AsyncGenerator[bytes, None], heartbeat: float) -> None:
        """Send `chunks`, and a comment when none has been sent for `heartbeat` seconds."""
        super().__init__()
        self._chunks = chunks
        self._heartbeat = heartbeat
        self._cancelled = False
        self._pauses = 0
        self._paused: Future[None] | None = None
        """Done when the task may go on."""
        self._sent = True
        """Whether a chunk has been sent since the last beat."""
        self._next_beat: TimerHandle | None = None
        self._task: Task[None] | None = None

    async def send(self, scope: Scope, send: Send, start: Message) -> bool:
        """Park the request and send all events. Return whether the server could park it.

        It runs in the request's own task, so that FastAPI's dependencies stay open until the end.
        """
        self.parked = park(scope, send, self)
        if self.parked is None:
            return False
        task = self._task = asyncio.current_task()
        assert task is not None
        try:
            self._send(start, chunk(b""))
            self._beat()
            async with aclosing(self._chunks):
                await self._forward()
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
        except Exception:
            logger.exception("an event stream fails")
            self.fail()
        finally:
            self._task = None
            if self._cancelled:
                task.uncancel()
            if self._next_beat is not None:
                self._next_beat.cancel()
        parked, self.parked = self.parked, None
        if parked is not None:
            parked.send(end())
        return True

    async def _forward(self) -> None:
        # The event that comes after a cancellation is the last one.
        while not self._cancelled and (data := await anext(self._chunks, None)) is not None:
            self._send(chunk(data))
            self._sent = True
            while self._pauses and not self._cancelled:
                self._paused = asyncio.get_running_loop().create_future()
                await self._paused

    def _send(self, *messages: Message) -> None:
        if self.parked is not None:  # a generator may keep its cancellation to itself
            self.parked.send(*messages)

    def _beat(self) -> None:
        try:
            if not self._sent and not self._pauses:
                self._send(chunk(COMMENT))
        except Exception:
            logger.exception("an event stream fails")
            self.fail()
            self.shutdown()
            return
        self._sent = False
        self._next_beat = asyncio.get_running_loop().call_later(self._heartbeat, self._beat)

    def disconnected(self) -> None:
        self.parked = None
        self.shutdown()

    def shutdown(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def pause_writing(self) -> None:
        self._pauses += 1

    def resume_writing(self) -> None:
        self._pauses -= 1
        if not self._pauses and self._paused is not None and not self._paused.done():
            self._paused.set_result(None)


async def send_chunks(
    chunks: AsyncGenerator[bytes, None], receive: Receive, send: Send, heartbeat: float = math.inf
) -> bool:
    """Send `chunks` in a task that waits. Return whether all were sent before the client disconnected."""

    async def forward() -> None:
        async with aclosing(chunks):
            async for data in chunks:
                await send(chunk(data))

    async def beat() -> None:
        while True:
            await asyncio.sleep(heartbeat)
            await send(chunk(COMMENT))

    forwarding = asyncio.create_task(forward())
    tasks = [forwarding, asyncio.create_task(until_disconnected(receive))]
    if heartbeat < math.inf:
        tasks.append(asyncio.create_task(beat()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        sent = forwarding.done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
    return sent
