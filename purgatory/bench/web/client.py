"""Clients of the servers, many in a process: each is a connection with one request at a time."""

import asyncio
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import httptools
import psutil

from purgatory.bench.case import OURS

__all__ = [
    "SERVERS",
    "Client",
    "abort",
    "allow_open_files",
    "arriving",
    "connect",
    "cpu_seconds",
    "missing",
    "running",
]

AT_ONCE: Final = 10
"""Clients that come at a time."""

PACE: Final = 2_000
"""Clients a second, at most."""

_UVICORN: Final = ["--loop", "uvloop", "--no-access-log", "--port", "0", "--host", "0.0.0.0", "--backlog", "8192"]
_OPTIONS: Final = [*_UVICORN, "--timeout-keep-alive", "600"]

SERVERS: Final = {
    OURS: [sys.executable, "-m", "purgatory.uvicorn", "purgatory.bench.web.delayed:app", *_OPTIONS],
    "not parked": [
        *(sys.executable, "-m", "uvicorn", "purgatory.bench.web.delayed:app", "--http", "httptools"),
        *_OPTIONS,
    ],
    "Event + timeout": [
        *(sys.executable, "-m", "uvicorn", "purgatory.bench.web.events:app", "--http", "httptools"),
        *_OPTIONS,
    ],
    "Node": ["node", __file__.replace("client.py", "server.js")],
}
"""The command of each server."""


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


async def connect(count: int, port: int, first: int = 0, addresses: int = 1) -> list[Client]:
    """Open `count` connections at once, spread over addresses of loopback: each address has so many ports only."""
    loop = asyncio.get_running_loop()
    hosts = [f"127.0.0.{1 + number % addresses}" for number in range(first, first + count)]
    return [
        client for _, client in await asyncio.gather(*(loop.create_connection(Client, host, port) for host in hosts))
    ]


async def arriving(count: int, port: int, target: str = "/now", addresses: int = 1) -> AsyncIterator[Client]:
    """Clients that come at a steady pace, each with a request."""
    while count:
        some = min(AT_ONCE, count)
        for client in await connect(some, port, count, addresses):
            client.ask("GET", target)
            yield client
        count -= some
        await asyncio.sleep(AT_ONCE / PACE)


def abort(clients: list[Client]) -> None:
    """Hang up."""
    for client in clients:
        client.answered.cancel()
        client.transport.abort()


@contextmanager
def running(name: str) -> Iterator[tuple[psutil.Process, int]]:
    """The server of that name in a process of its own, and its port."""
    with subprocess.Popen(SERVERS[name], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        try:
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"running on http://[0-9.]+:(\d+)", line):
                    yield psutil.Process(process.pid), int(found[1])
                    break
            else:
                raise RuntimeError(f"{name} did not start: {''.join(said)}")
        finally:
            process.kill()


def missing(name: str) -> str | None:
    """The reason if the server of that name cannot run here."""
    if SERVERS[name][0] == "node" and shutil.which("node") is None:
        return "node is not installed"
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
