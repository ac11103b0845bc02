"""The application: topics in memory, with long polling."""

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryClosed, PurgatoryFull
from purgatory.asgi import ClientDisconnected, closing_on_shutdown, unless_disconnected

MAX_PENDING = 100_000


class Fetch(DelayedOperation[list[str]]):
    """Waits until a topic has messages after an offset; yields them, or an empty list at the deadline."""

    def __init__(self, messages: list[str], offset: int, timeout: float) -> None:
        super().__init__(timeout)
        self.messages = messages
        self.offset = offset

    def try_complete(self) -> bool:
        return len(self.messages) > self.offset and self.force_complete()

    def on_complete(self) -> list[str]:
        return self.messages[self.offset :]


class State(TypedDict):
    """The objects that the lifespan makes, for `request.state` of each request."""

    topics: defaultdict[str, list[str]]
    purgatory: DelayedOperationPurgatory


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[State]:
    """A purgatory belongs to the event loop that it is used on: it is made here, and not in the module."""
    purgatory = DelayedOperationPurgatory("fetch", max_pending=MAX_PENDING)
    async with closing_on_shutdown(purgatory):  # when shutdown begins, waiting requests are answered
        yield {"topics": defaultdict(list), "purgatory": purgatory}


async def fetch(request: Request) -> Response:
    """Wait for messages after `offset`, for `wait` seconds at most."""
    topic = request.path_params["topic"]
    try:
        offset = int(request.query_params.get("offset", "0"))
        operation = Fetch(request.state.topics[topic], max(offset, 0), float(request.query_params.get("wait", "30")))
    except ValueError as error:
        return JSONResponse({"error": str(error)}, 400)
    request.state.purgatory.try_complete_else_watch(operation, [topic])
    messages = await unless_disconnected(request.receive, operation)
    return JSONResponse({"messages": messages, "next_offset": max(offset, 0) + len(messages)})


async def publish(request: Request) -> Response:
    """Append the body to the topic, and tell the purgatory."""
    topic = request.path_params["topic"]
    messages = request.state.topics[topic]
    messages.append((await request.body()).decode(errors="replace"))
    request.state.purgatory.check_and_complete_soon(topic)
    return JSONResponse({"offset": len(messages) - 1}, 201)


async def unavailable(request: Request, error: Exception) -> Response:
    """The purgatory is closed or full: another attempt may find it otherwise."""
    return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})


async def gone(request: Request, error: Exception) -> Response:
    """The client has disconnected. No part of this response is sent."""
    return Response(status_code=499)


app = Starlette(
    routes=[Route("/topics/{topic}", fetch), Route("/topics/{topic}", publish, methods=["POST"])],
    exception_handlers={PurgatoryClosed: unavailable, PurgatoryFull: unavailable, ClientDisconnected: gone},
    lifespan=lifespan,
)
