"""The same application without a purgatory: a task waits for an `asyncio.Event` under `asyncio.timeout`.

All requests for a topic share an event, which is replaced when the topic grows.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from purgatory.asgi import closing_on_shutdown
from purgatory.bench.web.delayed import routes


@dataclass
class Topics:
    """The state that the handlers share."""

    counts: Counter[str] = field(default_factory=Counter)
    changed: dict[str, asyncio.Event] = field(default_factory=dict)
    waiting: int = 0
    closing: bool = False

    async def aclose(self) -> None:
        """Let all requests be answered."""
        self.closing = True
        for topic in list(self.changed):
            self.changed.pop(topic).set()


class State(TypedDict):
    """`request.state`."""

    topics: Topics


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[State]:
    """Make what the handlers share on the loop that uses it."""
    topics = Topics()
    async with closing_on_shutdown(topics):
        yield {"topics": topics}


async def wait(request: Request) -> Response:
    """`GET /wait`."""
    topics: Topics = request.state.topics
    query = request.query_params
    topic, after = query["topic"], int(query["after"])
    waiting = asyncio.current_task()
    assert waiting is not None
    watching = asyncio.create_task(_cancel_when_gone(request, waiting))
    topics.waiting += 1
    try:
        async with asyncio.timeout(float(query.get("timeout", "300"))):
            while topics.counts[topic] <= after and not topics.closing:
                await topics.changed.setdefault(topic, asyncio.Event()).wait()
    except TimeoutError:
        pass
    except asyncio.CancelledError:
        if not watching.done():
            raise
    finally:
        topics.waiting -= 1
        watching.cancel()
    return JSONResponse(topics.counts[topic])


async def _cancel_when_gone(request: Request, waiting: "asyncio.Task[object]") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    waiting.cancel()


async def publish(request: Request) -> Response:
    """`POST /publish`."""
    topics: Topics = request.state.topics
    topic = request.query_params["topic"]
    topics.counts[topic] += 1
    changed = topics.changed.pop(topic, None)
    if changed is not None:
        changed.set()
    return JSONResponse(topics.counts[topic])


async def waiting(request: Request) -> Response:
    """`GET /waiting`."""
    return JSONResponse(request.state.topics.waiting)


app: Starlette = Starlette(routes=routes(wait, publish, waiting), lifespan=lifespan)
