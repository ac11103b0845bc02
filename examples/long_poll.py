"""A long-poll server in one file, to be copied: a fetch waits for messages, a produce waits for replicas.

`POST /topics/NAME?acks=0&timeout=5` stores its body, and answers 201 with the message's offset as soon as `acks`
replicas have fetched beyond it. At the deadline it answers 504: the message is stored all the same.
`GET /topics/NAME?offset=0&wait=30` answers with the messages from `offset` on as soon as there is one, at the deadline
with none. With `replica=NAME` it acknowledges the messages before `offset`. `examples/README.md` has a guide.

Its simplifications: it is one process; messages are texts, are in memory too, and have a transaction each; a POST that
is repeated is stored twice; clients are trusted and have no limits of their own; replicas fetch again after a restart.
"""

import os
import sqlite3
from asyncio import get_running_loop
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryClosed, PurgatoryFull
from purgatory.asgi import DelayedResponse, closing_on_shutdown
from purgatory.uvicorn import ParkingProtocol

MAX_PENDING, MAX_WAIT, MAX_ACKS, MAX_BODY, PAGE = 100_000, 300.0, 100, 65_536, 100  # seconds, bytes
DISK = ""  # the place where each message is first; the others are replicas, by their names


class Copied(DelayedOperation[None]):
    """Waits until a message is in so many places. A fetch waits for the first one, a produce for replicas too."""

    def __init__(self, ends: Counter[str], offset: float, places: float, timeout: float) -> None:
        super().__init__(timeout)
        self.ends, self.offset, self.places = ends, offset, places

    def holds(self) -> bool:
        """Whether the message is in so many places."""
        return sum(end > self.offset for end in self.ends.values()) >= self.places

    def try_complete(self) -> bool:
        return self.holds() and self.force_complete()

    def on_complete(self) -> None:
        """It yields nothing: at its end, whatever that is, the answer is made of the state of the topic."""


class Log:
    """Topics, and requests that wait for them. The database has a thread: the loop never waits for the disk."""

    def __init__(self) -> None:
        self.fetches = DelayedOperationPurgatory("fetch", max_pending=MAX_PENDING)
        self.produces = DelayedOperationPurgatory("produce", max_pending=MAX_PENDING)
        self.messages: defaultdict[str, list[str]] = defaultdict(list)
        self.ends: defaultdict[str, Counter[str]] = defaultdict(Counter)  # how many messages of a topic a place has
        self.loop, self.thread = get_running_loop(), ThreadPoolExecutor(1)
        self.database = sqlite3.connect(os.environ.get("LONG_POLL_DB", "long_poll.sqlite3"), check_same_thread=False)
        self.database.executescript("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
        self.database.execute("CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, topic TEXT, message TEXT)")
        for name, message in self.database.execute("SELECT topic, message FROM messages ORDER BY id"):
            self.append(name, message)

    def append(self, name: str, message: str, produce: Copied | None = None) -> None:
        """Show a message that is on the disk."""
        self.messages[name].append(message)
        self.ends[name][DISK] += 1
        self.fetches.check_and_complete_soon(name)
        if produce is not None:
            produce.offset = self.ends[name][DISK] - 1
            produce.try_complete()

    def store(self, name: str, message: str, produce: Copied) -> None:
        """Called in the thread. It tells the loop itself: the task of the request may have been cancelled meanwhile."""
        with self.database:  # a transaction
            self.database.execute("INSERT INTO messages (topic, message) VALUES (?, ?)", (name, message))
        self.loop.call_soon_threadsafe(self.append, name, message, produce)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Log]]:
    log = Log()  # made here and not in the module, as a purgatory belongs to the loop that it is used on
    async with closing_on_shutdown(log.fetches, log.produces):  # when shutdown begins, all that wait are answered
        yield {"log": log}
    log.thread.shutdown()
    log.database.close()


async def fetch(request: Request) -> Response:
    log, name = request.state.log, request.path_params["topic"]
    messages, ends = log.messages[name], log.ends[name]
    offset, wait = int(number(request, "offset", 0, len(messages))), number(request, "wait", 30.0, MAX_WAIT)
    if replica := request.query_params.get("replica"):
        ends[replica] = max(offset, ends[replica])
        log.produces.check_and_complete_soon(name)

    def answer(_: None) -> Response:
        page = messages[offset : offset + PAGE]
        return JSONResponse({"messages": page, "next_offset": offset + len(page)})

    operation = log.fetches.try_complete_else_watch(Copied(ends, offset, 1, wait), [name])
    return DelayedResponse(operation, answer, key=lambda _: (name, offset))  # equal answers are rendered once


async def produce(request: Request) -> Response:
    log, name = request.state.log, request.path_params["topic"]
    acks, timeout = number(request, "acks", 0, MAX_ACKS), number(request, "timeout", 5.0, MAX_WAIT)
    if int(request.headers.get("content-length", MAX_BODY + 1)) > MAX_BODY:
        raise HTTPException(413, f"a message needs a Content-Length, which must be at most {MAX_BODY}")
    operation = Copied(log.ends[name], float("inf"), 1 + acks, timeout)  # it gets its offset when it is stored
    log.produces.try_complete_else_watch(operation, [name])  # a full purgatory refuses it before it is stored
    try:
        await log.loop.run_in_executor(log.thread, log.store, name, (await request.body()).decode(), operation)
    except BaseException:
        operation.cancel()
        raise

    def answer(_: None) -> Response:
        if operation.holds():
            return JSONResponse({"offset": operation.offset}, 201)
        return JSONResponse({"error": "stored, but too few replicas have it", "offset": operation.offset}, 504)

    return DelayedResponse(operation, answer)


def number(request: Request, name: str, default: float, most: float) -> float:
    given = request.query_params.get(name, default)
    with suppress(ValueError):
        if 0 <= (value := type(default)(given)) <= most:
            return value
    raise HTTPException(400, f"{name} must be of type {type(default).__name__} and from 0 to {most}, not {given!r}")


async def refuse(request: Request, error: Exception) -> Response:
    """The purgatory is full or closed, or a message is not UTF-8. A client that has disconnected does not read this."""
    status, headers = (400, None) if isinstance(error, UnicodeDecodeError) else (503, {"Retry-After": "1"})
    return JSONResponse({"error": str(error)}, status, headers)


app = Starlette(
    routes=[Route("/topics/{topic}", fetch), Route("/topics/{topic}", produce, methods=["POST"])],
    exception_handlers=dict.fromkeys((PurgatoryFull, PurgatoryClosed, ClientDisconnect, UnicodeDecodeError), refuse),
    lifespan=lifespan,
)
if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")), http=ParkingProtocol, timeout_graceful_shutdown=5)
