"""A message that a client was promised must survive a crash, and a client may want it on other machines too.

Here a message is on the disk before it is acknowledged, and a POST waits until as many replicas as
it asks for have the message. Fetches wait as in `long_poll.py`. `durable_log.md` is the guide.

    python -m purgatory.uvicorn --timeout-graceful-shutdown 5 examples.durable_log:app
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypedDict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryClosed, PurgatoryFull
from purgatory.asgi import DelayedResponse, closing_on_shutdown

MAX_PENDING = 100_000  # fetches that wait, and as many produces
MAX_WAIT = 300.0  # seconds
MAX_BODY = 65_536  # bytes
MAX_REPLICAS = 100  # of a topic
PAGE = 100  # messages in an answer


@dataclass
class Topic:
    """The messages that are on the disk, and how far each replica has got."""

    messages: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)  # by replica

    def copies(self, offset: int) -> int:
        """Count the replicas that have the message at `offset`."""
        return sum(end > offset for end in self.ends.values())


class Log:
    """Topics, and the requests that wait for them. The disk has a thread, so the loop never waits for it."""

    def __init__(self, path: str) -> None:
        self.topics: dict[str, Topic] = {}
        # A message never completes a produce, and an acknowledgement never completes a fetch.
        self.fetches = DelayedOperationPurgatory("fetch", max_pending=MAX_PENDING)
        self.produces = DelayedOperationPurgatory("produce", max_pending=MAX_PENDING)
        self.loop = asyncio.get_running_loop()
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.database = sqlite3.connect(path, check_same_thread=False)
        self.database.execute("PRAGMA locking_mode = EXCLUSIVE")  # a second process is refused
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.execute("CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, topic TEXT, message TEXT)")
        for name, message in self.database.execute("SELECT topic, message FROM messages ORDER BY id"):
            self.append(name, message)

    def end(self, name: str) -> int:
        """Return the offset behind the last message of a topic, 0 if there is no such topic."""
        return len(self.topics[name].messages) if name in self.topics else 0

    def read(self, name: str, offset: int) -> list[str]:
        """Return up to a page of messages."""
        return self.topics[name].messages[offset : offset + PAGE] if name in self.topics else []

    async def store(self, name: str, message: str, produce: "Produce") -> None:
        """Store a message, and show it. If this task is cancelled meanwhile, that happens anyway."""
        await self.loop.run_in_executor(self.thread, self._store, name, message, produce)

    def _store(self, name: str, message: str, produce: "Produce") -> None:
        with self.database:  # a transaction
            self.database.execute("INSERT INTO messages (topic, message) VALUES (?, ?)", (name, message))
        self.loop.call_soon_threadsafe(self.append, name, message, produce)

    def append(self, name: str, message: str, produce: "Produce | None" = None) -> None:
        """Show a message that is on the disk."""
        messages = self.topics.setdefault(name, Topic()).messages
        messages.append(message)
        self.fetches.check_and_complete_soon(name)
        if produce is not None:
            produce.offset = len(messages) - 1
            produce.try_complete()  # an acknowledgement cannot come between these lines

    def acknowledge(self, name: str, replica: str, end: int) -> None:
        """Note that a replica has all messages before `end`."""
        ends = self.topics[name].ends
        ends[replica] = max(end, ends.get(replica, 0))
        self.produces.check_and_complete_soon(name)

    def close(self) -> None:
        self.thread.shutdown()
        self.database.close()


class Produce(DelayedOperation[None]):
    """Waits until a message is on the disk and `acks` replicas have it."""

    def __init__(self, log: Log, name: str, acks: int, timeout: float) -> None:
        super().__init__(timeout)
        self.log = log
        self.name = name
        self.acks = acks
        self.offset: int | None = None  # until the message is on the disk

    def holds(self) -> bool:
        return self.offset is not None and self.log.topics[self.name].copies(self.offset) >= self.acks

    def try_complete(self) -> bool:
        return self.holds() and self.force_complete()

    def on_complete(self) -> None:
        """Yield nothing: the answer is made from the log, because the deadline may come before the disk is done."""


class State(TypedDict):
    log: Log


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[State]:
    log = Log(os.environ.get("DURABLE_LOG", "durable_log.sqlite3"))
    try:
        async with closing_on_shutdown(log.fetches, log.produces):
            yield {"log": log}
    finally:
        log.close()


def parameter(request: Request, name: str, default: int, maximum: int) -> int:
    """Return a whole number from the query."""
    text = request.query_params.get(name, str(default))
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= maximum:
        raise HTTPException(400, f"{name} must be a whole number from 0 to {maximum}, not {text!r}")
    return value


def seconds(request: Request, name: str, default: float) -> float:
    """Return a duration from the query."""
    text = request.query_params.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_WAIT:
        raise HTTPException(400, f"{name} must be a number of seconds from 0 to {MAX_WAIT:g}, not {text!r}")
    return value


async def read_message(request: Request) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"a message must not exceed {MAX_BODY} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "a message must be UTF-8") from None


async def fetch(request: Request) -> Response:
    log: Log = request.state.log
    name = request.path_params["topic"]
    offset = parameter(request, "offset", 0, maximum=log.end(name))
    wait = seconds(request, "wait", 30.0)
    operation = log.fetches.wait_for(lambda: log.read(name, offset), name, timeout=wait)

    def render(messages: list[str]) -> Response:
        return JSONResponse({"messages": messages, "next_offset": offset + len(messages)})

    # Of many fetches that one message completes, the first one's answer is rendered for all.
    return DelayedResponse(operation, render, key=lambda messages: (name, offset, len(messages)))


async def produce(request: Request) -> Response:
    log: Log = request.state.log
    name = request.path_params["topic"]
    acks = parameter(request, "acks", 0, maximum=MAX_REPLICAS)
    operation = Produce(log, name, acks, seconds(request, "timeout", 5.0))
    log.produces.try_complete_else_watch(operation, [name])  # if it is full, nothing is stored
    try:
        await log.store(name, await read_message(request), operation)
    except BaseException:
        operation.cancel()
        raise

    def render(_: None) -> Response:
        if operation.holds():
            return JSONResponse({"offset": operation.offset}, 201)
        error = f"stored, but fewer than {acks} replicas have it"
        return JSONResponse({"error": error, "offset": operation.offset}, 504)

    return DelayedResponse(operation, render)


async def acknowledge(request: Request) -> Response:
    log: Log = request.state.log
    name, replica = request.path_params["topic"], request.path_params["replica"]
    end = parameter(request, "end", 0, maximum=log.end(name))
    if name not in log.topics:
        raise HTTPException(404, f"there is no topic {name!r}")
    ends = log.topics[name].ends
    if replica not in ends and len(ends) >= MAX_REPLICAS:
        raise HTTPException(409, f"a topic must not have more than {MAX_REPLICAS} replicas")
    log.acknowledge(name, replica, end)
    return Response(status_code=204)


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


async def full(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "too many requests wait"}, 503, {"Retry-After": "1"})


async def closed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server is shutting down"}, 503, {"Retry-After": "1"})


async def disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


app = Starlette(
    routes=[
        Route("/topics/{topic}", fetch),
        Route("/topics/{topic}", produce, methods=["POST"]),
        Route("/topics/{topic}/replicas/{replica}", acknowledge, methods=["POST"]),
    ],
    exception_handlers={
        HTTPException: refused,
        PurgatoryFull: full,
        PurgatoryClosed: closed,
        ClientDisconnect: disconnected,
    },
    lifespan=lifespan,
)
