"""What event streams without a purgatory share: a queue for each client, into which a publish puts the event."""

from asyncio import Queue
from collections import Counter, defaultdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

_counts: Counter[str] = Counter()
_queues: defaultdict[str, set[Queue[int]]] = defaultdict(set)


def join(topic: str) -> Queue[int]:
    """Return a new client's queue of the numbers of the topic's events."""
    queue: Queue[int] = Queue()
    _queues[topic].add(queue)
    return queue


def leave(topic: str, queue: Queue[int]) -> None:
    """Forget the queue of a client that is gone."""
    _queues[topic].discard(queue)


async def publish(request: Request) -> Response:
    """`POST /publish`."""
    topic = request.query_params["topic"]
    _counts[topic] += 1
    for queue in _queues[topic]:
        queue.put_nowait(_counts[topic])
    return JSONResponse(_counts[topic])


async def waiting(request: Request) -> Response:
    """`GET /waiting`."""
    return JSONResponse(sum(map(len, _queues.values())))
