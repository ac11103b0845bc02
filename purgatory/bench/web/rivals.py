"""The same applications without a purgatory. Each function makes one, and imports the library that it is about."""

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory.bench.web.delayed import now

_counts: Counter[str] = Counter()


def _routes(publish: Callable[[str], Awaitable[object]], waiting: Callable[[], int]) -> list[Route]:
    """The routes but for `/wait`. `publish` tells those who wait for a topic of its new count."""

    async def count(request: Request) -> Response:
        topic = request.query_params["topic"]
        _counts[topic] += 1
        await publish(topic)
        return JSONResponse(_counts[topic])

    async def number(request: Request) -> Response:
        return JSONResponse(waiting())

    return [Route("/publish", count, methods=["POST"]), Route("/waiting", number), Route("/now", now)]


def event_and_timeout() -> Starlette:
    """A task waits for an `asyncio.Event` under `asyncio.timeout`.

    All requests for a topic share an event, which is replaced when the topic grows.
    """
    changed: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
    tasks: set[asyncio.Task[object] | None] = set()

    async def wait(request: Request) -> Response:
        query = request.query_params
        topic, after = query["topic"], int(query["after"])
        task = asyncio.current_task()
        tasks.add(task)
        watching = asyncio.create_task(_cancel_when_gone(request, task))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(float(query.get("timeout", "300"))):
                    while _counts[topic] <= after:
                        await changed[topic].wait()
        finally:
            tasks.remove(task)
            watching.cancel()
        return JSONResponse(_counts[topic])

    async def publish(topic: str) -> None:
        changed.pop(topic, asyncio.Event()).set()

    return Starlette(routes=[Route("/wait", wait), *_routes(publish, tasks.__len__)])


async def _cancel_when_gone(request: Request, waiting: "asyncio.Task[object] | None") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    assert waiting is not None
    waiting.cancel()


_queues: defaultdict[str, set[asyncio.Queue[int]]] = defaultdict(set)
"""Those of each topic's clients, into which a publish puts the number of the event."""


def _join(topic: str) -> asyncio.Queue[int]:
    queue: asyncio.Queue[int] = asyncio.Queue()
    _queues[topic].add(queue)
    return queue


async def _put(topic: str) -> None:
    for queue in _queues[topic]:
        queue.put_nowait(_counts[topic])


def _clients() -> int:
    return sum(map(len, _queues.values()))


def sse_starlette() -> Starlette:
    """Event streams with `sse-starlette`, and a queue for each client as in its examples."""
    from sse_starlette import EventSourceResponse, ServerSentEvent

    async def events(topic: str) -> AsyncIterator[ServerSentEvent]:
        queue = _join(topic)
        try:
            while True:
                number = await queue.get()
                yield ServerSentEvent(str(number), id=str(number))
        finally:
            _queues[topic].discard(queue)

    async def wait(request: Request) -> Response:
        return EventSourceResponse(events(request.query_params["topic"]))

    return Starlette(routes=[Route("/wait", wait), *_routes(_put, _clients)])


def fastapi_sse() -> Starlette:
    """Event streams with `fastapi.sse`, and a queue for each client."""
    from fastapi import FastAPI
    from fastapi.sse import EventSourceResponse, ServerSentEvent

    app = FastAPI(routes=[*_routes(_put, _clients)])

    @app.get("/wait", response_class=EventSourceResponse)
    async def wait(topic: str) -> AsyncIterable[ServerSentEvent]:
        queue = _join(topic)
        try:
            while True:
                number = await queue.get()
                yield ServerSentEvent(data=number, id=str(number))
        finally:
            _queues[topic].discard(queue)

    return app


def mcp_sdk() -> Starlette:
    """The same events by `subscriptions/listen` of the MCP Python SDK: a topic is a resource that is updated."""
    from mcp.server.lowlevel import Server
    from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ServerEvent

    class Bus(InMemorySubscriptionBus):
        listeners = 0

        def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
            self.listeners += 1
            return super().subscribe(listener)

    bus = Bus()

    async def publish(topic: str) -> None:
        await bus.publish(ResourceUpdated(uri=f"topic://{topic}"))

    server: Server[Any] = Server("bench", on_subscriptions_listen=ListenHandler(bus, max_subscriptions=sys.maxsize))
    return server.streamable_http_app(custom_starlette_routes=_routes(publish, lambda: bus.listeners))
