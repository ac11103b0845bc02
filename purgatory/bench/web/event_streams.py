"""A small application whose handler returns an `EventStream`: parked or not, as the server does."""

from collections import Counter
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.asgi import Event, EventStream
from purgatory.bench.web.delayed import lifespan, publish, routes, waiting

HEARTBEATS = 15.0
"""Seconds between the heartbeats of an idle stream, as by default in the libraries beside it."""


class Follow(DelayedOperation[range]):
    """Waits until a topic has more than `after` events; yields the numbers of those that follow."""

    __slots__ = ("after", "counts", "topic")

    def __init__(self, counts: Counter[str], topic: str, after: int) -> None:
        super().__init__(HEARTBEATS)
        self.counts: Counter[str] = counts
        self.topic: str = topic
        self.after: int = after

    def try_complete(self) -> bool:
        return self.counts[self.topic] > self.after and self.force_complete()

    def on_complete(self) -> range:
        return range(self.after + 1, self.counts[self.topic] + 1)


def follow(
    purgatory: DelayedOperationPurgatory, counts: Counter[str], topic: str, last_event_id: str | None
) -> DelayedOperation[range]:
    """Wait for what comes after the last event."""
    operation = Follow(counts, topic, int(last_event_id or 0))
    return purgatory.try_complete_else_watch(operation, [topic])


def render(numbers: range) -> list[Event]:
    """Return the events of those numbers."""
    return [Event(str(number), id=str(number)) for number in numbers]


async def wait(request: Request) -> Response:
    """`GET /wait`."""
    state, topic = request.state, request.query_params["topic"]
    # The numbers are the key: streams that get the same events are rendered once.
    return EventStream(partial(follow, state.purgatory, state.counts, topic), render, key=lambda numbers: numbers)


app: Starlette = Starlette(routes=routes(wait, publish, waiting), lifespan=lifespan)
