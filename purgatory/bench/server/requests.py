"""What is asked of the servers, and what they have to answer."""

import asyncio
import time
from typing import Final
from urllib.parse import quote

from purgatory.bench.client import Client, WrongAnswer
from purgatory.bench.machine import Running

OFFSET: Final = b"stream-next-offset"

_IDLE: Final = 0.1
"""The share of a core that a server takes while it has nothing to do."""
_PATIENCE: Final = 120.0
"""Seconds after which a server ought to have nothing to do any more."""


def get(stream: str, **parameters: str) -> bytes:
    """A read."""
    query = "&".join(f"{name}={quote(value)}" for name, value in parameters.items())
    return f"GET /v1/stream/{stream}?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def head_of_post(stream: str, size: int, method: str = "POST") -> bytes:
    """An append of that many bytes, without them."""
    lines = [f"{method} /v1/stream/{stream} HTTP/1.1", "Host: localhost", "Content-Type: text/plain"]
    return "\r\n".join([*lines, f"Content-Length: {size}", "", ""]).encode()


async def ask(connection: Client, data: bytes, *expected: int) -> None:
    """Send a request, and wait for its answer. Raises `WrongAnswer` if its status is none of those expected."""
    await connection.send(data)
    check(connection, *expected)


def check(connection: Client, *expected: int) -> None:
    """Raise `WrongAnswer` if the status of the answer is none of those expected."""
    if connection.status not in expected:
        raise WrongAnswer(f"{connection.status} {connection.body[:200]!r}, and not {expected}")


async def create(connection: Client, stream: str) -> None:
    """Create a stream of text."""
    await ask(connection, head_of_post(stream, 0, "PUT"), 201)


async def read(connection: Client, stream: str) -> bytes:
    """All that is in a stream."""
    parts = []
    offset = "-1"
    while True:
        await ask(connection, get(stream, offset=offset), 200)
        parts.append(connection.body)
        offset = connection.headers[OFFSET].decode()
        if connection.headers.get(b"stream-up-to-date") == b"true":
            return b"".join(parts)


async def quiet(server: Running) -> None:
    """Wait until the server has done what there is to do: it takes no more CPU. Raises `WrongAnswer`."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        before, began = server.cpu(), time.monotonic()
        await asyncio.sleep(0.3)
        if server.cpu() - before < _IDLE * (time.monotonic() - began):
            return
    raise WrongAnswer(f"the server is still busy after {_PATIENCE:.0f} seconds")
