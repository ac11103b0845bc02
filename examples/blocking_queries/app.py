"""The application: one value with an index."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import DelayedOperationPurgatory, PurgatoryClosed, PurgatoryFull, ThresholdPurgatory
from purgatory.asgi import DelayedResponse, closing_on_shutdown

MAX_PENDING = 100_000  # queries that wait
MAX_WAIT = 600.0  # seconds


@dataclass
class Configuration:
    """The value that clients follow."""

    value: str = ""


class State(TypedDict):
    """The objects in `request.state` of each request."""

    configuration: Configuration
    index: ThresholdPurgatory[int]


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[State]:
    """Make the index on the loop that uses it."""
    index = ThresholdPurgatory(0, DelayedOperationPurgatory("queries", max_pending=MAX_PENDING))
    async with closing_on_shutdown(index):
        yield {"configuration": Configuration(), "index": index}


def answer(configuration: Configuration, index: int) -> Response:
    """Return the value and its index."""
    return JSONResponse({"index": index, "value": configuration.value})


async def read(request: Request) -> Response:
    """Answer when the index exceeds `index`, or after `wait` seconds with the value as it is."""
    try:
        seen = int(request.query_params.get("index", "-1"))
        wait = min(float(request.query_params.get("wait", "60")), MAX_WAIT)
        change = request.state.index.reach(seen, timeout=wait)
    except ValueError as error:
        return JSONResponse({"error": str(error)}, 400)
    configuration = request.state.configuration
    return DelayedResponse(change, lambda index: answer(configuration, index))


async def write(request: Request) -> Response:
    """Change the value first, then advance the index, so that nobody sees a new index with an old value."""
    request.state.configuration.value = (await request.body()).decode(errors="replace")
    request.state.index.advance(request.state.index.value + 1)
    return answer(request.state.configuration, request.state.index.value)


async def unavailable(request: Request, error: Exception) -> Response:
    text = "too many queries wait, or the server is shutting down"
    return JSONResponse({"error": text}, 503, {"Retry-After": "1"})


app = Starlette(
    routes=[Route("/", read), Route("/", write, methods=["PUT"])],
    exception_handlers={PurgatoryClosed: unavailable, PurgatoryFull: unavailable},
    lifespan=lifespan,
)
