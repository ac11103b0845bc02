"""Two small applications, of a `DelayedResponse` and of an `EventStream`: parked or not, as the server does."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse, Event, EventStream, closing_on_shutdown

HEARTBEATS = 15.0
"""Seconds between the heartbeats of an idle stream, as by default in the libraries beside it."""


class Follow(DelayedOperation[range]):
    """Waits until a topic has more than `after` messages; yields the numbers of those that follow."""

    __slots__ = ("after", "counts", "topic")

    def __init__(self, counts: Counter[str], topic: str, after: int, timeout: float) -> None:
        super().__init__(timeout)
        self.counts: Counter[str] = counts
        self.topic: str = topic
        self.after: int = after

    def try_complete(self) -> bool:
        return self.counts[self.topic] > self.after and self.force_complete()

    def on_complete(self) -> range:
        return range(self.after + 1, self.counts[self.topic] + 1)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Make what the handlers share on the loop that uses it."""
    purgatory = DelayedOperationPurgatory("poll")
    async with closing_on_shutdown(purgatory):
        yield {"purgatory": purgatory, "counts": Counter()}


def count(numbers: range) -> Response:
    """Return an answer with the number of the last message."""
    return JSONResponse(numbers.stop - 1)


async def wait(request: Request) -> Response:
    query = request.query_params
    topic = query["topic"]
    poll = Follow(request.state.counts, topic, int(query["after"]), float(query.get("timeout", "300")))
    request.state.purgatory.try_complete_else_watch(poll, [topic])
    return DelayedResponse(poll, count)


def follow(
    purgatory: DelayedOperationPurgatory, counts: Counter[str], topic: str, last_event_id: str | None
) -> DelayedOperation[range]:
    """Wait for what comes after the last event."""
    operation = Follow(counts, topic, int(last_event_id or 0), HEARTBEATS)
    return purgatory.try_complete_else_watch(operation, [topic])


def render(numbers: range) -> list[Event]:
    """Return the events of those numbers."""
    return [Event(str(number), id=str(number)) for number in numbers]


def same(numbers: range) -> range:
    """Return the key of the events of those numbers: streams that get the same ones are rendered once."""
    return numbers


async def stream(request: Request) -> Response:
    state, topic = request.state, request.query_params["topic"]
    return EventStream(partial(follow, state.purgatory, state.counts, topic), render, key=same)


async def publish(request: Request) -> Response:
    topic = request.query_params["topic"]
    request.state.counts[topic] += 1
    request.state.purgatory.check_and_complete_soon(topic)
    return JSONResponse(request.state.counts[topic])


async def waiting(request: Request) -> Response:
    return JSONResponse(request.state.purgatory.num_delayed)


async def now(request: Request) -> Response:
    return JSONResponse("now")


def cors() -> Starlette:
    """Make the same with FastAPI and its CORS, as most applications are."""
    from fastapi import FastAPI
    from fastapi.middleware.cors import CORSMiddleware

    app = FastAPI(lifespan=lifespan, routes=[*_ROUTES])
    app.add_middleware(CORSMiddleware, allow_origins=["*"])

    @app.get("/wait", response_model=None)
    async def poll(request: Request, topic: str, after: int, timeout: float = 300.0) -> Response:
        follow = Follow(request.state.counts, topic, after, timeout)
        request.state.purgatory.try_complete_else_watch(follow, [topic])
        return DelayedResponse(follow, count)

    return app


_ROUTES = [Route("/publish", publish, methods=["POST"]), Route("/waiting", waiting), Route("/now", now)]
app: Starlette = Starlette(routes=[Route("/wait", wait), *_ROUTES], lifespan=lifespan)
events: Starlette = Starlette(routes=[Route("/wait", stream), *_ROUTES], lifespan=lifespan)
