"""The same application without a purgatory: a task waits for an `asyncio.Event` under `asyncio.timeout`.

All requests for a topic share an event, which is replaced when the topic grows.
"""

import asyncio
from collections import Counter, defaultdict
from contextlib import suppress

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from purgatory.bench.web.delayed import routes

_counts: Counter[str] = Counter()
_changed: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
_waiting: set["asyncio.Task[object] | None"] = set()


async def wait(request: Request) -> Response:
    """`GET /wait`."""
    query = request.query_params
    topic, after = query["topic"], int(query["after"])
    task = asyncio.current_task()
    _waiting.add(task)
    watching = asyncio.create_task(_cancel_when_gone(request, task))
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(float(query.get("timeout", "300"))):
                while _counts[topic] <= after:
                    await _changed[topic].wait()
    finally:
        _waiting.remove(task)
        watching.cancel()
    return JSONResponse(_counts[topic])


async def _cancel_when_gone(request: Request, waiting: "asyncio.Task[object] | None") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    assert waiting is not None
    waiting.cancel()


async def publish(request: Request) -> Response:
    """`POST /publish`."""
    topic = request.query_params["topic"]
    _counts[topic] += 1
    _changed.pop(topic, asyncio.Event()).set()
    return JSONResponse(_counts[topic])


async def waiting(request: Request) -> Response:
    """`GET /waiting`."""
    return JSONResponse(len(_waiting))


app: Starlette = Starlette(routes=routes(wait, publish, waiting))
