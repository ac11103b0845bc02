"""A server that closes silent connections."""

import asyncio
from types import TracebackType
from typing import cast

from purgatory import IdleTracker


class Connection(asyncio.Protocol):
    """Echoes all data."""

    def __init__(self, server: "EchoServer") -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.idle.touch(self)

    def data_received(self, data: bytes) -> None:
        self._server.idle.touch(self)
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.transport.pause_reading()  # a client that doesn't read its echo isn't read either, so it falls silent

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def connection_lost(self, exception: Exception | None) -> None:
        self._server.idle.discard(self)

    def close(self) -> None:
        """Close the connection."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # the client doesn't read its echo, so waiting for that may never end
        else:
            self.transport.close()


class EchoServer:
    """Listens, and closes connections that have been silent for `timeout` seconds."""

    def __init__(self, timeout: float, host: str, port: int) -> None:
        self.address = (host, port)
        """The address of the server. It replaces port 0 by the real one when it listens."""
        self.idle: IdleTracker[Connection] = IdleTracker(timeout, self._close)
        self.closed = 0
        """The number of connections closed because they were silent."""

    async def __aenter__(self) -> "EchoServer":
        """Listen. Raises `OSError` if it cannot."""
        create_server = asyncio.get_running_loop().create_server
        self._server = await create_server(lambda: Connection(self), *self.address, backlog=4096)
        self.address = self._server.sockets[0].getsockname()[:2]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the server and all connections."""
        self._server.close()
        for connection in self.idle:
            connection.close()
        self.idle.close()

    def _close(self, connection: Connection) -> None:
        self.closed += 1
        connection.close()
