"""Clients must hear of a message at once, and asking every second is slow for them and dear for you.

So a client's request waits on the server, here without a task. `long_poll.md` is the guide.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import DelayedOperationPurgatory, PurgatoryClosed, PurgatoryFull
from purgatory.asgi import DelayedResponse, closing_on_shutdown

MAX_PENDING = 100_000  # requests that wait
MAX_WAIT = 300.0  # seconds
MAX_BODY = 65_536  # bytes


class State(TypedDict):
    messages: dict[str, list[str]]  # by topic
    purgatory: DelayedOperationPurgatory


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[State]:
    purgatory = DelayedOperationPurgatory("fetch", max_pending=MAX_PENDING)
    async with closing_on_shutdown(purgatory):  # answers the waiting requests when shutdown begins
        yield {"messages": {}, "purgatory": purgatory}


async def fetch(request: Request) -> Response:
    topic: str = request.path_params["topic"]
    messages: dict[str, list[str]] = request.state.messages
    try:
        offset = int(request.query_params.get("offset", "0"))
        wait = float(request.query_params.get("wait", "30"))
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
    if not (0 <= offset <= len(messages.get(topic, [])) and 0 <= wait <= MAX_WAIT):
        raise HTTPException(400, f"offset must not exceed the topic's end, and wait {MAX_WAIT:g}")

    def render(found: list[str]) -> Response:  # at the deadline, `found` is empty
        return JSONResponse({"messages": found, "next_offset": offset + len(found)})

    purgatory: DelayedOperationPurgatory = request.state.purgatory
    operation = purgatory.wait_for(lambda: messages.get(topic, [])[offset:], topic, timeout=wait)
    return DelayedResponse(operation, render)  # cancels the operation if the client disconnects


async def publish(request: Request) -> Response:
    topic, messages = request.path_params["topic"], request.state.messages
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"a message must not exceed {MAX_BODY} bytes")
    messages.setdefault(topic, []).append(body.decode(errors="replace"))  # change the state first,
    request.state.purgatory.check_and_complete_soon(topic)  # then check its key
    return JSONResponse({"offset": len(messages[topic]) - 1}, 201)


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


async def unavailable(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "full, or shutting down"}, 503, {"Retry-After": "1"})


async def disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


app = Starlette(
    routes=[Route("/topics/{topic}", fetch), Route("/topics/{topic}", publish, methods=["POST"])],
    exception_handlers={
        HTTPException: refused,
        PurgatoryFull: unavailable,
        PurgatoryClosed: unavailable,
        ClientDisconnect: disconnected,
    },
    lifespan=lifespan,
)
