"""uvicorn in the test's own process, on real sockets, and a client of raw bytes."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from purgatory.uvicorn import ParkingProtocol

PROTOCOLS = {"parked": ParkingProtocol, "as without": HttpToolsProtocol}


class Server(uvicorn.Server):
    """uvicorn without handlers of signals, which are the test's."""

    def __init__(self, app: Any, http: type[asyncio.Protocol] = ParkingProtocol, **options: Any) -> None:
        options = {"port": 0, "log_config": None, "timeout_keep_alive": 60, **options}
        super().__init__(uvicorn.Config(app, http=http, **options))

    serve_task: asyncio.Task[None]
    """Ends when the server has shut down."""

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> list[str]:
        """The classes of the protocols of its connections."""
        return sorted(type(connection).__name__ for connection in self.server_state.connections)

    async def main_loop(self) -> None:
        """See the end sooner than uvicorn, which looks ten times a second."""
        await self.on_tick(0)
        while not await self.on_tick(1):
            await asyncio.sleep(0.005)

    async def until(self, *connections: str) -> None:
        """Return when these are the connections."""
        while self.connections != sorted(connections):
            await asyncio.sleep(0.005)

    async def until_no_task(self) -> None:
        """Return when no task handles a request: those that wait are parked."""
        while self.server_state.tasks:
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(app: Any, http: type[asyncio.Protocol] = ParkingProtocol, **options: Any) -> AsyncIterator[Server]:
    """A server that has started. It shuts down at the end, or when `should_exit` is set."""
    server = Server(app, http, **options)
    server.serve_task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.005)
        if server.serve_task.done():
            await server.serve_task
    try:
        yield server
    except BaseException:
        server.force_exit = True
        raise
    finally:
        server.should_exit = True
        await server.serve_task


@dataclass
class Response:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """A connection of raw bytes. Responses are parsed by h11."""

    host = "localhost"

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.left = b""

    async def send(self, method: str, target: str, *headers: str, body: bytes = b"", version: str = "1.1") -> None:
        """Send a request."""
        lines = [f"{method} {target} HTTP/{version}", f"Host: {self.host}", *headers]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        await self.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, method: str = "GET") -> Response:
        """Receive the response for a request of that method."""
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("Host", "localhost")]))
        parser.send(h11.EndOfMessage())
        if self.left:
            parser.receive_data(self.left)
        head: h11.Response | None = None
        body = bytearray()
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(await self.reader.read(65536))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError
        self.left = parser.trailing_data[0]
        assert head is not None
        headers = {name.decode(): value.decode() for name, value in head.headers}
        return Response(head.status_code, headers, bytes(body))

    async def request(self, method: str, target: str, *headers: str, body: bytes = b"") -> Response:
        """Send a request and receive its response."""
        await self.send(method, target, *headers, body=body)
        return await self.receive(method)

    async def until(self, part: bytes) -> bytes:
        """Read until the bytes have come."""
        received = bytearray(self.left)
        begin = 0
        while (found := received.find(part, begin)) < 0:
            begin = max(0, len(received) - len(part))
            data = await self.reader.read(65536)
            received += data
            if not data:
                self.left = bytes(received)
                raise ConnectionResetError(self.left)
        self.left = bytes(received[found + len(part) :])
        return bytes(received[: found + len(part)])

    async def ended(self) -> bool:
        """Read to the end. Returns whether the connection was closed without more data."""
        with suppress(ConnectionResetError):
            self.left += await self.reader.read()
        return not self.left

    def reset(self) -> None:
        """Close the connection with a reset."""
        transport_socket = self.writer.get_extra_info("socket")
        with suppress(OSError):
            transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
