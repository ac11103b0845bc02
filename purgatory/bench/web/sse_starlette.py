"""The same event streams with `sse-starlette`, and a queue for each client as in its examples."""

from collections.abc import AsyncIterator

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from purgatory.bench.web import queues
from purgatory.bench.web.delayed import routes


async def events(topic: str) -> AsyncIterator[ServerSentEvent]:
    """Yield the topic's events from now on."""
    queue = queues.join(topic)
    try:
        while True:
            number = await queue.get()
            yield ServerSentEvent(str(number), id=str(number))
    finally:
        queues.leave(topic, queue)


async def wait(request: Request) -> Response:
    """`GET /wait`."""
    return EventSourceResponse(events(request.query_params["topic"]))


app: Starlette = Starlette(routes=routes(wait, queues.publish, queues.waiting))
