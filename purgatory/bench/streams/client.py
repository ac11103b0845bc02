"""Connections to a server, very many in a process: callbacks on uvloop, httptools, and no tasks."""

import asyncio
import gc
import math
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

import httptools

from purgatory.bench import machine
from purgatory.bench.case import Figures, Metric
from purgatory.bench.streams.servers import Running

__all__ = [
    "LOAD",
    "Connection",
    "Meter",
    "WrongAnswer",
    "ask",
    "check",
    "connect",
    "create",
    "dial",
    "get",
    "head_of_post",
    "percentile",
    "quiet",
    "read",
    "run",
]

C = TypeVar("C", bound="Connection")

LOAD: Final = Metric("load", "the clients' share of a core", "")
"""Near 1, the clients are the bottleneck."""

_ADDRESSES: Final = [f"127.0.0.{number}" for number in range(1, 65 if sys.platform == "linux" else 2)]
"""Clients come from several, as a server may limit what each of them holds. Other systems have one on loopback."""
_AT_ONCE: Final = 10
"""Connections that are opened at a time."""
_PACE: Final = 2_000
"""Connections that are opened a second, at most."""
_IDLE: Final = 0.1
"""The share of a core that a server takes while it has nothing to do."""
_PATIENCE: Final = 120.0
"""Seconds after which a server ought to have nothing to do any more."""


class WrongAnswer(Exception):
    """The server has given an answer that it must not give."""


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.status = 0
        self.offset = b""
        """`Stream-Next-Offset` of the last answer."""
        self.cursor = b""
        """`Stream-Cursor` of the last answer."""
        self.up_to_date = False
        self.body: bytes = b""
        self.parts: list[bytes] = []
        self.parser: Any = httptools.HttpResponseParser(self)
        self.failed: Callable[[Exception], None] = _ignore
        """Called when the connection is lost, or an answer is wrong."""
        self.answered: Callable[[], None]
        """Called after each answer."""

    def request(self, data: bytes) -> None:
        """Send a request. Raises `ConnectionResetError` if the server has hung up."""
        if self.transport.is_closing():
            raise ConnectionResetError("the server has hung up")
        self.transport.write(data)

    def close(self) -> None:
        """Hang up."""
        self.failed = _ignore
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.failed(error.__context__ if isinstance(error.__context__, Exception) else error)

    def connection_lost(self, exception: Exception | None) -> None:
        self.failed(exception or ConnectionResetError("the server has hung up"))

    # As the parser sees it.

    def on_message_begin(self) -> None:
        self.parts = []
        self.up_to_date = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name[:7].lower() == b"stream-":
            name = name.lower()
            if name == b"stream-next-offset":
                self.offset = value
            elif name == b"stream-cursor":
                self.cursor = value
            elif name == b"stream-up-to-date":
                self.up_to_date = value == b"true"

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.body = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.status = self.parser.get_status_code()
        self.answered()


class Meter:
    """Measures a server from now on, and the clients, which are this process."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._began = time.perf_counter()
        self._cpu = server.cpu()
        self._own = time.process_time()

    def stop(self, count: int) -> Figures:
        """The time and the server's CPU for each of `count`, how many there were a second, and the clients' load."""
        took = time.perf_counter() - self._began
        own = time.process_time() - self._own
        return {
            "us": 1e6 * took / count,
            "rate": count / took,
            "cpu_us": 1e6 * (self._server.cpu() - self._cpu) / count,
            "load": own / took,
        }


def run(main: Coroutine[Any, Any, Figures]) -> Figures:
    """Run the clients of a case, which this process does nothing else for."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.disable()
    return machine.run("uvloop", main)


async def dial(server: Running) -> Connection:
    """One connection."""
    (connection,) = [each async for each in connect(server, 1, Connection)]
    return connection


async def connect(server: Running, count: int, kind: Callable[[], C]) -> AsyncIterator[C]:
    """Connections that are opened at a steady pace."""
    loop = asyncio.get_running_loop()
    while count:
        some = min(_AT_ONCE, count)
        own = [(_ADDRESSES[(count - number) % len(_ADDRESSES)], 0) for number in range(some)]
        opening = (loop.create_connection(kind, "127.0.0.1", server.port, local_addr=each) for each in own)
        for _, connection in await asyncio.gather(*opening):
            yield connection
        count -= some
        await asyncio.sleep(_AT_ONCE / _PACE)


async def ask(connection: Connection, data: bytes, *expected: int) -> None:
    """Send a request, and wait for its answer. Raises `WrongAnswer` if its status is none of those expected."""
    answered = asyncio.get_running_loop().create_future()
    connection.answered = lambda: answered.set_result(None)
    connection.failed = answered.set_exception
    connection.request(data)
    try:
        await answered
    finally:
        connection.failed = _ignore
    check(connection, *expected)


def check(connection: Connection, *expected: int) -> None:
    """Raise `WrongAnswer` if the status of the answer is none of those expected."""
    if connection.status not in expected:
        raise WrongAnswer(f"{connection.status} {connection.body[:200]!r}, and not {expected}")


def target(stream: str, **parameters: str) -> bytes:
    """The path of a stream, with parameters."""
    query = "&".join(f"{name}={quote(value)}" for name, value in parameters.items())
    return f"/v1/stream/{stream}{'?' if query else ''}{query}".encode()


def get(stream: str, **parameters: str) -> bytes:
    """A read."""
    return b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target(stream, **parameters)


def head_of_post(stream: str, size: int) -> bytes:
    """An append of that many bytes, without them."""
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"
    return head % (target(stream), size)


async def create(connection: Connection, stream: str) -> None:
    """Create a stream of text. The connection's offset is its tail then."""
    head = b"PUT %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"
    await ask(connection, head % target(stream), 201)


async def read(connection: Connection, stream: str) -> bytes:
    """All that is in a stream."""
    parts = []
    offset = "-1"
    while True:
        await ask(connection, get(stream, offset=offset), 200)
        parts.append(connection.body)
        offset = connection.offset.decode()
        if connection.up_to_date:
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


def percentile(times: list[float], share: float) -> float:
    """The time that `share` of them are not longer than, in milliseconds."""
    return 1e3 * sorted(times)[math.ceil(share * len(times)) - 1]


def _ignore(exception: Exception) -> None:
    """There is no request, or it was this end that has hung up."""
