"""Event streams that are made of an async iterator, parked and not."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from purgatory.asgi import Event, EventStream
from purgatory.uvicorn import ParkingProtocol
from tests.support.operations import raising
from tests.uvicorn.serving import Client, Server, connected, serving

USER: ContextVar[str] = ContextVar("USER")


class Feed:
    """An application with an event stream of what is put into a queue."""

    def __init__(
        self, *, render: Callable[[Any], list[Event]] | None = None, heartbeat: float = 60.0, last: Any = None
    ) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.events: list[str] = []
        self.render = render
        self.heartbeat = heartbeat
        self.last = last
        self.app = Starlette(routes=[Route("/feed", self.feed)])

    async def feed(self, request: Any) -> EventStream[Any]:
        USER.set("somebody")
        return EventStream(self.items(), self.render, heartbeat=self.heartbeat)

    async def items(self) -> AsyncGenerator[Any, None]:
        self.events.append("begun")
        try:
            while (item := await self.queue.get()) is not None:
                yield item
                self.events.append("asked for more")
        except asyncio.CancelledError:
            self.events.append("cancelled")
            if self.last is None:
                raise
            yield self.last
        finally:
            self.events.append(f"ended for {USER.get('nobody')}")

    async def until(self, event: str) -> None:
        while event not in self.events:
            await asyncio.sleep(0.005)


@asynccontextmanager
async def reading(feed: Feed, http: Any) -> AsyncGenerator[tuple[Server, Client], None]:
    async with serving(feed.app, http) as server, connected(server) as client:
        await client.send("GET", "/feed")
        await client.until(b"\r\n\r\n")
        await feed.until("begun")
        yield server, client


async def test_items_come_as_they_are_yielded(http: Any) -> None:
    feed = Feed()
    async with reading(feed, http) as (server, client):
        if http is ParkingProtocol:
            await server.until("QuietConnection")
        feed.queue.put_nowait("one")
        assert await client.until(b"\r\ndata:one\n\n\r\n")
        feed.queue.put_nowait(Event("two", id="2"))
        assert await client.until(b"id: 2\ndata:two\n\n\r\n")
        feed.queue.put_nowait(None)
        await client.until(b"0\r\n\r\n")
        assert feed.events[-1] == "ended for somebody"
        await client.send("GET", "/feed")  # the connection goes on
        assert b"200 OK" in await client.until(b"\r\n\r\n")


async def test_render_makes_the_events_of_an_item(http: Any) -> None:
    feed = Feed(render=lambda number: [Event(str(number)), Event(str(number + 1))])
    async with reading(feed, http) as (_, client):
        feed.queue.put_nowait(1)
        assert await client.until(b"data:1\n\ndata:2\n\n")


@pytest.mark.parametrize("last", [None, "kept its cancellation to itself"])
async def test_iterator_is_closed_when_the_client_disconnects(http: Any, last: str | None) -> None:
    feed = Feed(last=last)
    async with reading(feed, http) as (_, client):
        client.writer.close()
        await feed.until("ended for somebody")
        assert "cancelled" in feed.events


@pytest.mark.parametrize(("last", "text"), [(None, b""), ("goodbye", b"data:goodbye\n\n\r\n")])
async def test_stream_ends_at_shutdown_with_its_last_event(last: str | None, text: bytes) -> None:
    feed = Feed(last=last)
    async with reading(feed, ParkingProtocol) as (server, client):
        feed.queue.put_nowait("one")
        await client.until(b"data:one\n\n\r\n")
        server.should_exit = True
        assert text in await client.until(b"0\r\n\r\n")
        assert feed.events[-1] == "ended for somebody"


@pytest.mark.parametrize(
    ("render", "item", "text"),
    [
        (None, 5, "must yield events or strings, not a int: pass a render function"),
        (None, {"a": 1}, "must yield events or strings, not a dict: pass a render function"),
        (raising(ValueError("a bad item")), 1, "a bad item"),
    ],
)
async def test_iterator_that_fails_closes_the_connection(
    render: Any, item: object, text: str, http: Any, caplog: pytest.LogCaptureFixture
) -> None:
    feed = Feed(render=render)
    async with reading(feed, http) as (_, client):
        feed.queue.put_nowait(item)
        assert await client.ended()
        assert text in caplog.text
        await feed.until("ended for somebody")


async def test_iterator_that_is_no_generator_is_enough(http: Any) -> None:
    class Counts:
        async def __aiter__(self) -> AsyncGenerator[str, None]:
            yield "1"
            yield "2"

    async def counts(request: Any) -> EventStream[str]:
        return EventStream(Counts())

    async with serving(Starlette(routes=[Route("/", counts)]), http) as server, connected(server) as client:
        response = await client.request("GET", "/")
        assert response.body == b"data:1\n\ndata:2\n\n"


@pytest.mark.parametrize("follow", [lambda: Feed().items(), lambda: lambda last_event_id: None])
async def test_wrong_headers_are_logged_and_close_the_connection(follow: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def wrong(request: Any) -> EventStream[str]:
        return EventStream(follow(), list, headers=[(b"a b", b"c")])

    async with serving(Starlette(routes=[Route("/", wrong)])) as server, connected(server) as client:
        await client.send("GET", "/")
        assert await client.ended()
        assert "Invalid HTTP header name" in caplog.text


async def test_task_that_others_cancel_is_cancelled() -> None:
    """As at the end of a graceful shutdown's time."""
    feed = Feed()
    async with reading(feed, ParkingProtocol) as (server, client):
        (task,) = server.server_state.tasks
        task.cancel()
        await server.until_no_task()
        assert feed.events[-1] == "ended for somebody"
        client.writer.close()


async def test_wake_of_a_stream_that_does_not_wait_changes_nothing() -> None:
    feed = Feed()
    async with reading(feed, ParkingProtocol) as (server, client):
        (connection,) = server.server_state.connections
        listener: Any = connection.listener  # type: ignore[union-attr]
        listener.pause_writing()
        listener.resume_writing()
        feed.queue.put_nowait("one")
        assert await client.until(b"data:one\n\n")


async def test_silence_is_filled_with_comments(http: Any) -> None:
    feed = Feed(heartbeat=0.02)
    async with reading(feed, http) as (_, client):
        for _ in range(3):
            assert await client.until(b":\n\n\r\n")


async def test_reader_that_takes_nothing_is_asked_for_nothing() -> None:
    feed = Feed()
    async with reading(feed, ParkingProtocol) as (_, client):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            feed.queue.put_nowait("x" * 100_000)
        size = feed.queue.qsize()
        while True:
            await asyncio.sleep(0.05)
            if feed.queue.qsize() == size:
                break
            size = feed.queue.qsize()
        assert size > 0
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        feed.queue.put_nowait(None)
        data = await client.until(b"0\r\n\r\n")
        assert data.count(b"data:") == 200
