"""The connections and who looks after them."""

import asyncio
from types import TracebackType
from typing import cast

from purgatory import IdleTracker


class Connection(asyncio.Protocol):
    """Echoes what arrives."""

    def __init__(self, server: "EchoServer") -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.idle.touch(self)

    def data_received(self, data: bytes) -> None:
        self._server.idle.touch(self)
        self.transport.write(data)

    def connection_lost(self, exception: Exception | None) -> None:
        self._server.idle.discard(self)

    def close(self) -> None:
        """Hang up."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # it does not read what it is sent: to wait for that could take for ever
        else:
            self.transport.close()


class EchoServer:
    """Listens, and closes connections that have been silent for `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self.idle: IdleTracker[Connection] = IdleTracker(timeout, self._close)
        self.closed = 0
        """Connections closed because they were silent."""

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen. Returns the address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=4096)
        address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return address

    async def __aenter__(self) -> "EchoServer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Hang up on everybody."""
        self._server.close()
        for connection in self.idle:
            connection.close()
        self.idle.close()

    def _close(self, connection: Connection) -> None:
        self.closed += 1
        connection.close()
