"""Clients of servers, very many in a process, on uvloop and httptools."""

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, TypeVar, cast

import httptools

from purgatory.bench.case import Metric
from purgatory.bench.machine import Running

C = TypeVar("C", bound="Client")

LOAD: Final = Metric("load", "the clients' share of a core", "")
"""Near 1, the clients are the bottleneck."""

_ADDRESSES: Final = [f"127.0.0.{number}" for number in range(1, 65 if sys.platform == "linux" else 2)]
"""Clients come from several, as a server may limit each. Other systems have one on loopback."""
_AT_ONCE: Final = 10
"""Connections that are opened at a time."""
_PACE: Final = 500
"""Connections that are opened a second, at most: those that wait become small meanwhile, where they do."""
SETTLED: Final = 4.0
"""Seconds after which the last of them has become small."""


class WrongAnswer(Exception):
    """The server has given an answer that it must not give."""


def request(method: str, target: str) -> bytes:
    """A request without a body."""
    return f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode()


class Client(asyncio.Protocol):
    """A connection, with one request at a time."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """The body of the answer to the last request."""
        self.answer.set_result(b"")
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """Those of the last answer that begin with `stream-`, in lower case."""
        self.body: bytes = b""
        self.parts: list[bytes] = []
        self.parser: Any = httptools.HttpResponseParser(self)
        self._hangs_up = False

    def ask(self, method: str, target: str) -> "asyncio.Future[bytes]":
        """Send a request without a body. Returns `answer`."""
        return self.send(request(method, target))

    def send(self, data: bytes) -> "asyncio.Future[bytes]":
        """Send a request. Returns `answer`. Raises `ConnectionResetError` if the server has hung up."""
        if self.transport.is_closing():
            raise ConnectionResetError("the server has hung up")
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self.answer

    def close(self) -> None:
        """Hang up, and leave what waits for an answer alone."""
        self._hangs_up = True
        self.transport.abort()

    def failed(self, exception: Exception) -> None:
        """The connection is lost, or an answer is wrong."""
        if not self.answer.done() and not self._hangs_up:
            self.answer.set_exception(exception)

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
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if name[:7].lower() == b"stream-":
            self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.body = b"".join(self.parts)
        if not self.answer.done():
            self.answer.set_result(self.body)


async def connect(port: int, count: int, make: Callable[[], C], pace: bool = True) -> AsyncIterator[C]:
    """Open connections, at a steady pace unless they are to come at once."""
    loop = asyncio.get_running_loop()
    while count:
        some = min(_AT_ONCE, count) if pace else count
        own = [(_ADDRESSES[(count - number) % len(_ADDRESSES)], 0) for number in range(some)]
        opening = (loop.create_connection(make, "127.0.0.1", port, local_addr=each) for each in own)
        for _, connection in await asyncio.gather(*opening):
            yield connection
        count -= some
        await asyncio.sleep(_AT_ONCE / _PACE if pace else 0)


async def connected(port: int, count: int, request: bytes = b"") -> list[Client]:
    """So many connections, on each of which the request is sent, if there is one."""
    clients = []
    async for client in connect(port, count, Client):
        if request:
            client.send(request)
        clients.append(client)
    return clients


async def dial(server: Running) -> Client:
    """One connection."""
    return await anext(connect(server.port, 1, Client))


def abort(clients: Iterable[Client]) -> None:
    """Hang up."""
    for client in clients:
        client.close()


class Meter:
    """Measures a server from now on, and the clients, which are this process."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._memory = server.memory()
        self._cpu = server.cpu()
        self._own = time.process_time()
        self._began = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def cpu(self) -> float:
        """The server's CPU time, in seconds."""
        return self._server.cpu() - self._cpu

    def load(self) -> float:
        """The clients' share of a core."""
        return (time.process_time() - self._own) / self.seconds()

    def kib(self) -> float:
        """The memory that the server takes more than before."""
        return self._server.memory() - self._memory


def percentile(times: list[float], share: float) -> float:
    """The time that `share` of them are not longer than, in milliseconds."""
    return 1e3 * sorted(times)[math.ceil(share * len(times)) - 1]
