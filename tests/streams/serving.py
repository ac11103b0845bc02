"""A server in a thread of the test's process, with a loop of its own."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import Mount

from purgatory.streams.core.commands import Command
from purgatory.streams.core.errors import StreamsError
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.engine.store import Store
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http.app import Application
from purgatory.streams.http.protocol import BoundedProtocol
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import Database
from purgatory.streams.storage.opener import opener


class Server(uvicorn.Server):
    """uvicorn without handlers of signals, which are the test's."""

    def __init__(self, settings: Settings, http: type[Any], timeout_keep_alive: int, prefix: str) -> None:
        self.application = Application(settings)
        mounted = Starlette(routes=[Mount(prefix, self.application)], lifespan=self.application.lifespan)
        options: dict[str, Any] = {"http": http, "ws": "none", "log_config": None, "loop": "none"}
        app: Any = mounted if prefix else self.application
        super().__init__(uvicorn.Config(app, timeout_keep_alive=timeout_keep_alive, **options))
        assert settings.url is not None
        self.url = settings.url
        self.port = int(settings.url.removesuffix(quote(prefix)).rpartition(":")[2])
        self.up = threading.Event()
        self.thread: threading.Thread

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


@contextmanager
def serving(
    *, http: type[Any] = BoundedProtocol, timeout_keep_alive: int = 75, prefix: str = "", **settings: Any
) -> Iterator[Server]:
    """Run a server with these settings until the end of the block. With `prefix`, it is mounted there."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}{quote(prefix)}"
    server = Server(Settings(url=url, **settings), http, timeout_keep_alive, prefix)

    def run() -> None:
        try:
            uvloop.run(server.serve([listening]))
        finally:
            server.up.set()

    thread = server.thread = threading.Thread(target=run, name="server")
    thread.start()
    try:
        assert server.up.wait(60)
        assert server.started
        yield server
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


@contextmanager
def served(**settings: Any) -> Iterator[tuple[Server, httpx.Client]]:
    with serving(**settings) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        yield server, http


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Streams]:
    found = await asyncio.to_thread(opener, settings)
    streams = Streams(found)
    await streams.start()
    try:
        yield streams
    finally:
        await streams.close()
        found.close()


def wait_until(condition: Callable[[], Any]) -> Any:
    """The result of `condition`, when that is true: the time-out of the test is the bound."""
    while not (found := condition()):
        time.sleep(0.02)
    return found


async def until(condition: Callable[[], object]) -> None:
    """Return when another thread has made it true: the time-out of the test is the bound."""
    while not condition():  # noqa: ASYNC110 - another thread's
        await asyncio.sleep(0.01)


def applied(database: Database, *commands: Command[Any], now: float = 0.0) -> Any:
    """The result of the last one of the commands: all are stored in one transaction, even if one is refused."""
    refusal: StreamsError | None = None
    results = []
    paths = {path for command in commands for path in command.paths}
    with database.transaction(paths, any(command.alone for command in commands)):
        transaction = Transaction(database, now)
        try:
            results = [command.apply(transaction) for command in commands]
        except StreamsError as error:
            refusal = error
        database.store(transaction)
    database.stored(transaction)
    if refusal is not None:
        raise refusal
    return results[-1]


@contextmanager
def answers_held(store: Store) -> Iterator["asyncio.Queue[asyncio.Event]"]:
    """The answers that the database gives in the block: each is kept back until its event, in the queue, is set."""
    read = store.read
    answers: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def read_late(wanted: Callable[[Database], Any]) -> Any:
        found = await read(wanted)
        answers.put_nowait(arrives := asyncio.Event())
        await arrives.wait()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "read", read_late)
        yield answers
