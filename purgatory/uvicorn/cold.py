"""Connections without a transport: each has only a descriptor, and the loop watches one epoll for all of them.

A transport takes a kibibyte, for reading and writing, and a client that waits does neither.
"""

import asyncio
import logging
import os
import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from purgatory.uvicorn.framing import COMING

if TYPE_CHECKING:
    from purgatory.uvicorn.parked import QuietConnection

logger: Final = logging.getLogger("uvicorn.error")

_AT_ONCE: Final = 16
"""The most clients that are handled in one iteration of the loop."""

_RETRY: Final = 1.0
"""Seconds after which a connection that found no free descriptor tries again."""

_NOBODY: Final = asyncio.Protocol()
"""The protocol of a transport that is dropped."""


class _Epoll:
    """Descriptors, and the ones that can be read or have hung up."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.fileno = self._epoll.fileno
        self.remove = self._epoll.unregister
        self.close = self._epoll.close

    def add(self, descriptor: int) -> None:
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)

    def ready(self) -> list[int]:
        return [descriptor for descriptor, _ in self._epoll.poll(0, _AT_ONCE)]


class _Kqueue:
    """The same, on macOS and the BSDs."""

    def __init__(self) -> None:
        self._select: Any = select  # mypy knows the types of its own platform
        self._kqueue = self._select.kqueue()
        self.fileno = self._kqueue.fileno
        self.close = self._kqueue.close

    def add(self, descriptor: int) -> None:
        self._change(descriptor, self._select.KQ_EV_ADD)

    def remove(self, descriptor: int) -> None:
        self._change(descriptor, self._select.KQ_EV_DELETE)

    def ready(self) -> list[int]:
        return [event.ident for event in self._kqueue.control(None, _AT_ONCE, 0)]

    def _change(self, descriptor: int, how: int) -> None:
        self._kqueue.control([self._select.kevent(descriptor, self._select.KQ_FILTER_READ, how)], 0)


class Watch:
    """Sees when the clients of cold connections send something or hang up."""

    __slots__ = ("_cold", "_count", "_poll", "_warming", "_was_short", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._poll: _Epoll | _Kqueue | None = None
        """Closed with the last cold connection, so that a server leaves no descriptor behind."""
        self._cold: list[ColdTransport | None] = []
        """The transports by descriptor, which is a small number, so that a list takes less memory than a dict."""
        self._count = 0
        self._was_short = False
        """Whether no descriptor was left for a connection, which is logged once."""
        self._warming: set[asyncio.Task[Any]] = set()
        """The event loop keeps only weak references."""

    def __len__(self) -> int:
        """Return the number of cold connections."""
        return self._count

    def cool(self, connection: "QuietConnection") -> None:
        """Drop the transport of a connection that has nothing to read or to write. Its client notices nothing.

        The connection keeps the transport if its socket is neither plain TCP nor Unix, or if no descriptor is left.
        """
        transport = connection.warm
        own = transport.get_extra_info("socket")
        if own is None or own.type != socket.SOCK_STREAM or transport.get_extra_info("sslcontext") is not None:
            return
        try:
            descriptor = os.dup(own.fileno())
            try:
                cold = self._add(connection, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except NotImplementedError:  # of a loop that cannot watch descriptors
            return
        except OSError as error:
            if not self._was_short:
                logger.warning("connections keep their transports, and take a kibibyte more: %s", error)
            self._was_short = True
            self.loop.call_later(_RETRY, connection.rest)
            return
        connection.transport = cold
        transport.set_protocol(_NOBODY)
        transport.abort()  # it closes its own descriptor

    def warm(self, cold: "ColdTransport", connection: socket.socket) -> None:
        """Give a connection a transport again, which calls its `connection_made`."""
        quiet = cold.connection

        def done(task: asyncio.Task[Any]) -> None:
            self._warming.discard(task)
            if task.cancelled():  # by an application that cancels all tasks
                connection.close()
                quiet.connection_lost(None)

        making = self.loop.connect_accepted_socket(lambda: quiet, connection)
        task = self.loop.create_task(making, context=quiet.shared.context)
        self._warming.add(task)
        task.add_done_callback(done)

    def _add(self, connection: "QuietConnection", descriptor: int) -> "ColdTransport":
        if self._poll is None:
            poll = _Epoll() if hasattr(select, "epoll") else _Kqueue()
            self.loop.add_reader(poll.fileno(), self._look)
            self._poll = poll
        try:
            self._poll.add(descriptor)
        except OSError:
            self._close_if_empty()
            raise
        self._cold += [None] * (descriptor + 1 - len(self._cold))
        cold = self._cold[descriptor] = ColdTransport(connection, descriptor)
        self._count += 1
        return cold

    def remove(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        assert self._poll is not None
        self._poll.remove(descriptor)
        self._cold[descriptor] = None
        self._count -= 1
        self._close_if_empty()

    def _close_if_empty(self) -> None:
        if self._poll is not None and not self._count:
            self.loop.remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None

    def _look(self) -> None:
        for descriptor in [] if self._poll is None else self._poll.ready():
            cold = self._cold[descriptor]
            if cold is not None:  # otherwise the one before has ended it
                cold.look()


class ColdTransport:
    """The transport of a quiet connection while it is cold, and until it has another transport.

    It is cold while it has a descriptor. Without one, it is lost or waits for another transport, for which it keeps
    data and the request to close.
    """

    __slots__ = ("_descriptor", "_is_closing", "_unsent", "connection")

    def __init__(self, connection: "QuietConnection", descriptor: int) -> None:
        self.connection: QuietConnection = connection
        self._descriptor: int = descriptor
        self._unsent: tuple[memoryview, ...] = ()
        self._is_closing: bool = False

    def __del__(self) -> None:
        if self._descriptor >= 0:  # the loop has ended before its connections
            os.close(self._descriptor)

    def look(self) -> None:
        """Look whether the client has sent something or hung up."""
        if self._descriptor < 0:
            return
        connection: socket.socket | None = None
        try:
            connection = socket.socket(fileno=self._descriptor)
            has_hung_up = not connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            has_hung_up = False
        except OSError:  # on macOS, the first line may raise it too
            has_hung_up = True
        else:
            if not has_hung_up:
                self.connection.keep_alive_for(None)  # it isn't idle any more
                self.connection.flags |= COMING
                self._warm(connection)
                return
        if connection is not None:
            connection.detach()
        if has_hung_up:
            self.abort()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data. The data that the socket does not take is left to a transport."""
        sent = 0
        if self._descriptor >= 0:
            try:
                with suppress(BlockingIOError):
                    sent = os.write(self._descriptor, data)
                if sent == len(data):
                    return
                self._warm(socket.socket(fileno=self._descriptor))
            except OSError:
                self.abort()
                return
        if not self._is_closing:
            # Not copied if it cannot change, because very many connections may get the same data.
            rest = memoryview(data if isinstance(data, bytes) else bytes(data))[sent:]
            self._unsent = (*self._unsent, rest)
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._unsent))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close the connection when everything was sent."""
        self._is_closing = True
        if self._descriptor >= 0:
            os.close(self._forget())
            shared = self.connection.shared
            shared.watch.loop.call_soon(self._lost, context=shared.context)

    def abort(self) -> None:
        """Close the connection."""
        self._unsent = ()
        self.close()

    def hand_over(self, transport: asyncio.Transport) -> None:
        """Leave the remaining data to a transport."""
        for part in self._unsent:
            transport.write(part)
        if self._is_closing:
            transport.close()
        del self.connection

    def _lost(self) -> None:
        connection = self.connection
        del self.connection
        connection.connection_lost(None)

    def _warm(self, connection: socket.socket) -> None:
        self._forget()
        self.connection.shared.watch.warm(self, connection)

    def _forget(self) -> int:
        """Stop watching the descriptor, and return it to another owner."""
        descriptor, self._descriptor = self._descriptor, -1
        self.connection.shared.watch.remove(descriptor)
        return descriptor
