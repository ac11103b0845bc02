"""Clients of the servers, many in a process: each is a connection with one request at a time."""

import asyncio
import re
import resource
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Thread
from typing import Any, Final, cast

import httptools
import psutil

from purgatory.bench.case import OURS

__all__ = [
    "EVENT_SERVERS",
    "SERVERS",
    "Client",
    "Listener",
    "abort",
    "allow_open_files",
    "arriving",
    "connect",
    "cpu_seconds",
    "missing",
    "running",
    "until_waiting",
]

AT_ONCE: Final = 10
"""Clients that come at a time."""

PACE: Final = 2_000
"""Clients a second, at most."""

_UVICORN: Final = ["--loop", "uvloop", "--no-access-log", "--port", "0", "--host", "0.0.0.0", "--backlog", "8192"]
_OPTIONS: Final = [*_UVICORN, "--timeout-keep-alive", "600"]

_PARKING: Final = [sys.executable, "-m", "purgatory.uvicorn", *_OPTIONS]
_OWN: Final = [sys.executable, "-m", "uvicorn", "--http", "httptools", *_OPTIONS]

SERVERS: Final = {
    OURS: [*_PARKING, "purgatory.bench.web.delayed:app"],
    "not parked": [*_OWN, "purgatory.bench.web.delayed:app"],
    "Event + timeout": [*_OWN, "purgatory.bench.web.event_and_timeout:app"],
    "Node": ["node", __file__.replace("client.py", "server.js")],
}
"""The command of each server."""

# Without it, a server whose application doesn't end its streams at shutdown would never stop.
_GRACE: Final = ["--timeout-graceful-shutdown", "5"]

EVENT_SERVERS: Final = {
    OURS: [*_PARKING, *_GRACE, "purgatory.bench.web.event_streams:app"],
    "not parked": [*_OWN, *_GRACE, "purgatory.bench.web.event_streams:app"],
    "sse-starlette": [*_OWN, *_GRACE, "purgatory.bench.web.sse_starlette:app"],
    "fastapi.sse": [*_OWN, *_GRACE, "purgatory.bench.web.fastapi_sse:app"],
}
"""The command of each server of event streams."""


class Client(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, exception: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(exception or ConnectionResetError("the server has hung up"))

    def on_body(self, body: bytes) -> None:
        """A callback of the parser."""
        self.body += body

    def on_message_complete(self) -> None:
        """A callback of the parser."""
        if not self.answered.done():
            self.answered.set_result(self.body)

    def ask(self, method: str, target: str) -> "asyncio.Future[bytes]":
        """Send a request. Returns a future for the body of its answer."""
        self.answered = asyncio.get_running_loop().create_future()
        self.body: bytes = b""
        self.parser: Any = httptools.HttpResponseParser(self)
        self.transport.write(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        return self.answered


class Listener(Client):
    """A client of an event stream. `ask` returns a future that is done when the stream has ended properly."""

    def __init__(self, heard: Callable[[], object]) -> None:
        super().__init__()
        self.heard = heard
        """Called at each event."""
        self.ids: list[int] = []
        """The ids of the events so far."""

    def on_body(self, body: bytes) -> None:
        *lines, self.body = (self.body + body).split(b"\n")
        for line in lines:
            if line.startswith(b"id:"):
                self.ids.append(int(line[3:]))
                self.heard()


async def connect(
    count: int, port: int, first: int = 0, addresses: int = 1, make: Callable[[], Client] = Client
) -> list[Client]:
    """Open `count` connections at once, spread over addresses of loopback: each address has so many ports only."""
    loop = asyncio.get_running_loop()
    hosts = [f"127.0.0.{1 + number % addresses}" for number in range(first, first + count)]
    return [client for _, client in await asyncio.gather(*(loop.create_connection(make, host, port) for host in hosts))]


async def arriving(
    count: int, port: int, target: str = "/now", addresses: int = 1, make: Callable[[], Client] = Client
) -> AsyncIterator[Client]:
    """Clients that come at a steady pace, each with a request."""
    while count:
        some = min(AT_ONCE, count)
        for client in await connect(some, port, count, addresses, make):
            client.ask("GET", target)
            yield client
        count -= some
        await asyncio.sleep(AT_ONCE / PACE)


async def until_waiting(control: Client, count: int) -> None:
    """Return when `count` clients wait at the server."""
    while int(await control.ask("GET", "/waiting")) < count:
        await asyncio.sleep(0.05)


def abort(clients: Sequence[Client]) -> None:
    """Hang up."""
    for client in clients:
        client.answered.cancel()
        client.transport.abort()


@contextmanager
def running(name: str, servers: Mapping[str, list[str]] = SERVERS) -> Iterator[tuple[psutil.Process, int]]:
    """The server of that name in a process of its own, and its port."""
    with subprocess.Popen(servers[name], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        try:
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"running on http://[0-9.]+:(\d+)", line):
                    # The lines of a shutdown, one for each broken stream, would fill the pipe and hold up the server.
                    drain = Thread(target=deque, args=(process.stderr, 0))
                    drain.start()
                    try:
                        yield psutil.Process(process.pid), int(found[1])
                    finally:
                        process.kill()
                        drain.join()
                    break
            else:
                raise RuntimeError(f"{name} did not start: {''.join(said)}")
        finally:
            process.kill()


def missing(name: str) -> str | None:
    """The reason if the server of that name cannot run here."""
    if name == "Node" and shutil.which("node") is None:
        return "node is not installed"
    if name == "sse-starlette" and find_spec("sse_starlette") is None:
        return "sse-starlette is not installed"
    if name == "fastapi.sse" and (find_spec("fastapi") is None or find_spec("fastapi.sse") is None):
        return "fastapi 0.135 or newer is not installed"
    return None


def cpu_seconds(process: psutil.Process) -> float:
    """The CPU time of `process` so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def allow_open_files(count: int) -> None:
    """Let this process, and those that it starts, have that many files open. Raises `ValueError` if it may not."""
    least = count + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < least:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, max(hard, least)))
