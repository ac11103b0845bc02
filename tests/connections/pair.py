"""A connection with a protocol that notes what happens to it, and with a peer that is a plain socket."""

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Any

from purgatory.connections import QuietConnections, QuietTransport


def pattern(size: int) -> bytes:
    """Bytes whose values tell their places."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


class Noting(asyncio.Protocol):
    """Notes what its transport calls."""

    def __init__(self, keeps_open: bool, connections: QuietConnections | None) -> None:
        self.keeps_open = keeps_open
        self.connections = connections
        self.transport: Any = None
        self.received = bytearray()
        self.ends = 0
        self.is_full = False
        self.lost: list[BaseException | None] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        assert self.transport is None
        self.transport = transport if self.connections is None else self.connections.add(transport)

    def data_received(self, data: bytes) -> None:
        assert not self.ends
        assert not self.lost
        assert self.connections is None or self.transport.is_reading()
        self.received += data

    def eof_received(self) -> bool:
        assert self.connections is None or not self.ends  # asyncio's own tells it again after pause and resume
        self.ends += 1
        return self.keeps_open

    def pause_writing(self) -> None:
        assert not self.is_full
        self.is_full = True

    def resume_writing(self) -> None:
        assert self.is_full
        self.is_full = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class NotingBuffered(asyncio.BufferedProtocol):
    """The same, into a buffer of its own."""

    def __init__(self, keeps_open: bool, connections: QuietConnections | None) -> None:
        self.notes = Noting(keeps_open, connections)
        self.buffer = bytearray(1000)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.notes.connection_made(transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.notes.data_received(bytes(self.buffer[:nbytes]))

    def eof_received(self) -> bool:
        return self.notes.eof_received()

    def pause_writing(self) -> None:
        self.notes.pause_writing()

    def resume_writing(self) -> None:
        self.notes.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.notes.connection_lost(exc)


def sockets(listener: socket.socket | None) -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection: of TCP if there is a listener, or else of Unix."""
    if listener is None:
        own, peer = socket.socketpair()
    else:
        peer = socket.create_connection(listener.getsockname())
        own, _ = listener.accept()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for each in (own, peer):
        each.setblocking(False)
    return own, peer


class Pair:
    """The connection."""

    def __init__(self, notes: Noting, peer: socket.socket) -> None:
        self.notes = notes
        self.peer = peer
        self.sent = 0
        self.read = bytearray()
        self.is_open = True
        """Whether the peer's socket is open."""
        self.ending = ""
        """How the connection has ended for the peer."""

    @classmethod
    async def open(
        cls, listener: socket.socket | None, connections: QuietConnections | None, keeps_open: bool, buffered: bool
    ) -> "Pair":
        own, peer = sockets(listener)
        protocol = (NotingBuffered if buffered else Noting)(keeps_open, connections)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, own)
        return cls(protocol.notes if isinstance(protocol, NotingBuffered) else protocol, peer)

    @property
    def quiet(self) -> QuietTransport:
        assert isinstance(self.notes.transport, QuietTransport)
        return self.notes.transport

    def send(self, size: int) -> None:
        """Let the peer send bytes, whose values tell their places."""
        if self.is_open:
            with suppress(OSError):
                self.sent += self.peer.send(pattern(self.sent + size)[self.sent :])

    def half_close(self) -> None:
        if self.is_open:
            with suppress(OSError):
                self.peer.shutdown(socket.SHUT_WR)

    def close(self, reset: bool) -> None:
        if self.is_open:
            if reset:
                self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.is_open = False
            self.peer.close()

    def take(self) -> None:
        """Let the peer read all that is there."""
        while self.is_open and not self.ending:
            try:
                data = self.peer.recv(65536)
            except BlockingIOError:
                return
            except ConnectionResetError:
                self.ending = "reset"
            else:
                self.read += data
                self.ending = "" if data else "end"
