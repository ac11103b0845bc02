"""A small application whose handler returns a `DelayedResponse`: parked or not, as the server does."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse, closing_on_shutdown

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class Poll(DelayedOperation[int]):
    """Waits until a topic has more than `after` messages; yields how many it has."""

    __slots__ = ("after", "counts", "topic")

    def __init__(self, counts: Counter[str], topic: str, after: int, timeout: float) -> None:
        super().__init__(timeout)
        self.counts: Counter[str] = counts
        self.topic: str = topic
        self.after: int = after

    def try_complete(self) -> bool:
        return self.counts[self.topic] > self.after and self.force_complete()

    def on_complete(self) -> int:
        return self.counts[self.topic]


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Make what the handlers share on the loop that uses it."""
    purgatory = DelayedOperationPurgatory("poll")
    async with closing_on_shutdown(purgatory):
        yield {"purgatory": purgatory, "counts": Counter()}


async def wait(request: Request) -> Response:
    """`GET /wait`."""
    query = request.query_params
    topic = query["topic"]
    poll = Poll(request.state.counts, topic, int(query["after"]), float(query.get("timeout", "300")))
    request.state.purgatory.try_complete_else_watch(poll, [topic])
    return DelayedResponse(poll, JSONResponse)


async def publish(request: Request) -> Response:
    """`POST /publish`."""
    topic = request.query_params["topic"]
    request.state.counts[topic] += 1
    request.state.purgatory.check_and_complete_soon(topic)
    return JSONResponse(request.state.counts[topic])


async def waiting(request: Request) -> Response:
    """`GET /waiting`."""
    return JSONResponse(request.state.purgatory.num_delayed)


async def now(request: Request) -> Response:
    """`GET /now`."""
    return JSONResponse("now")


def routes(wait: Handler, publish: Handler, waiting: Handler) -> list[Route]:
    """The routes of both applications."""
    return [
        Route("/wait", wait),
        Route("/publish", publish, methods=["POST"]),
        Route("/waiting", waiting),
        Route("/now", now),
    ]


app: Starlette = Starlette(routes=routes(wait, publish, waiting), lifespan=lifespan)
