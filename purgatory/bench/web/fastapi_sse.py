"""The same event streams with `fastapi.sse`, and a queue for each client."""

from collections.abc import AsyncIterable

from fastapi import FastAPI
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.routing import Route

from purgatory.bench.web import queues

app = FastAPI(routes=[Route("/publish", queues.publish, methods=["POST"]), Route("/waiting", queues.waiting)])


@app.get("/wait", response_class=EventSourceResponse)
async def wait(topic: str) -> AsyncIterable[ServerSentEvent]:
    """`GET /wait`."""
    queue = queues.join(topic)
    try:
        while True:
            number = await queue.get()
            yield ServerSentEvent(data=number, id=str(number))
    finally:
        queues.leave(topic, queue)
