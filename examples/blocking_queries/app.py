"""The application: one value with an index."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import PurgatoryClosed, ThresholdPurgatory
from purgatory.asgi import DelayedResponse, closing_on_shutdown


@dataclass
class Configuration:
    """The value that clients follow."""

    value: str = ""


class State(TypedDict):
    """The objects that the lifespan makes, for `request.state` of each request."""

    configuration: Configuration
    index: ThresholdPurgatory[int]


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[State]:
    """Make the index on the loop that uses it."""
    index = ThresholdPurgatory(0)
    async with closing_on_shutdown(index):
        yield {"configuration": Configuration(), "index": index}


def answer(configuration: Configuration, index: int) -> Response:
    """The value and its index."""
    return JSONResponse({"index": index, "value": configuration.value})


async def read(request: Request) -> Response:
    """Answer at once, or when the index exceeds `index`, or after `wait` seconds with the index as it is."""
    try:
        seen = int(request.query_params.get("index", "-1"))
        change = request.state.index.reach(seen, timeout=float(request.query_params.get("wait", "60")))
    except ValueError as error:
        return JSONResponse({"error": str(error)}, 400)
    configuration = request.state.configuration
    return DelayedResponse(change, lambda index: answer(configuration, index))


async def write(request: Request) -> Response:
    """Change the value first, then advance the index: a reader never sees a new index with an old value."""
    request.state.configuration.value = (await request.body()).decode(errors="replace")
    request.state.index.advance(request.state.index.value + 1)
    return answer(request.state.configuration, request.state.index.value)


async def unavailable(request: Request, error: Exception) -> Response:
    """The server is shutting down."""
    return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})


app = Starlette(
    routes=[Route("/", read), Route("/", write, methods=["PUT"])],
    exception_handlers={PurgatoryClosed: unavailable},
    lifespan=lifespan,
)
