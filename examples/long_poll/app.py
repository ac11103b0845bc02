"""The application: topics in memory, with long polling and server-sent events."""

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryClosed, PurgatoryFull
from purgatory.asgi import DelayedResponse, Event, EventStream, closing_on_shutdown

MAX_PENDING = 100_000
HEARTBEAT = 15.0
"""Seconds without a message after which an event stream gets a comment."""


class Batch(NamedTuple):
    """Messages of a topic, from an offset on."""

    offset: int
    messages: list[str]


class Fetch(DelayedOperation[Batch]):
    """Waits until a topic has messages after an offset; yields them, or an empty batch at the deadline."""

    def __init__(self, messages: list[str], offset: int, timeout: float) -> None:
        super().__init__(timeout)
        self.messages = messages
        self.offset = offset

    def try_complete(self) -> bool:
        return len(self.messages) > self.offset and self.force_complete()

    def on_complete(self) -> Batch:
        return Batch(self.offset, self.messages[self.offset :])


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
    return DelayedResponse(operation, answer)


def answer(batch: Batch) -> Response:
    """The response for a batch."""
    return JSONResponse({"messages": batch.messages, "next_offset": batch.offset + len(batch.messages)})


async def events(request: Request) -> Response:
    """All messages of the topic as server-sent events, after `Last-Event-ID`, as they come."""
    topic, topics, purgatory = request.path_params["topic"], request.state.topics, request.state.purgatory

    def follow(last_event_id: str | None) -> Fetch:
        operation = Fetch(topics[topic], int(last_event_id or 0), HEARTBEAT)
        purgatory.try_complete_else_watch(operation, [topic])
        return operation

    last_event_id = request.headers.get("last-event-id")
    if last_event_id is not None and not last_event_id.isdecimal():
        return JSONResponse({"error": "Last-Event-ID is not one of this topic"}, 400)
    return EventStream(follow, to_events, last_event_id)


def to_events(batch: Batch) -> list[Event]:
    """The events for a batch. The id of an event is the offset of the next message."""
    return [Event(message, id=str(number)) for number, message in enumerate(batch.messages, batch.offset + 1)]


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


app = Starlette(
    routes=[
        Route("/topics/{topic}", fetch),
        Route("/topics/{topic}", publish, methods=["POST"]),
        Route("/topics/{topic}/events", events),
    ],
    exception_handlers={PurgatoryClosed: unavailable, PurgatoryFull: unavailable},
    lifespan=lifespan,
)
