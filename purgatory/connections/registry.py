"""The quiet connections of an event loop."""

import asyncio
from contextvars import Context

from purgatory.connections.transport import QuietTransport
from purgatory.connections.watch import Watch
from purgatory.lowlevel import check_loop


class QuietConnections:
    """The connections of an event loop that can rest. Create it while the loop runs, once for each server.

    A connection that rests has no transport: it takes a descriptor, which is one of many in one epoll, and its
    `QuietTransport`. `asyncio.Server` forgets such a connection, so this object has the calls of a server that are
    about clients.
    """

    __slots__ = ("_watch",)

    def __init__(self, *, rest_after: float = 3.0) -> None:
        """Make a registry without connections.

        Args:
            rest_after: The longest time, in seconds, after which connections usually rest. It decides how late one may
                be: by a hundredth of this time.

        Raises:
            ValueError: `rest_after` is not positive and finite.
            RuntimeError: No event loop is running.
        """
        self._watch = Watch(rest_after)

    def __repr__(self) -> str:
        return f"<QuietConnections warm={self.num_warm} cold={self.num_cold}>"

    def __len__(self) -> int:
        """Return the number of connections."""
        return self._watch.num_members

    @property
    def num_warm(self) -> int:
        """The number of connections that have a transport of the event loop, or wait for one."""
        return self._watch.num_members - self._watch.num_cold

    @property
    def num_cold(self) -> int:
        """The number of connections that rest."""
        return self._watch.num_cold

    @property
    def num_resting_soon(self) -> int:
        """The number of connections that have a transport, and for which `rest` was called."""
        return len(self._watch.idle)

    def add(self, transport: asyncio.Transport, *, context: Context | None = None) -> QuietTransport:
        """Return a transport for a protocol to use instead of the one that the event loop has given it.

        Call this in the protocol's `connection_made`, and use nothing else afterwards. Data then comes to the protocol
        by way of the `QuietTransport`.

        Args:
            transport: The transport of the event loop, whose protocol is set, and which reads.
            context: The context of the protocol's callbacks after the connection has been cold. By default, a copy of
                the current one. Connections that share one take 64 bytes less.

        Raises:
            PurgatoryMisuse: This is another event loop than the registry's.
        """
        check_loop(self, self._watch.loop, "connections.add(transport)")
        return QuietTransport(self._watch, transport, context)

    def close_clients(self) -> None:
        """Close all connections, each when everything is sent, as `asyncio.Server.close_clients` of CPython 3.13."""
        for member in self._watch.members():
            member.close()

    def abort_clients(self) -> None:
        """Close all connections at once, as `asyncio.Server.abort_clients` of CPython 3.13."""
        for member in self._watch.members():
            member.abort()

    async def wait_closed(self) -> None:
        """Wait until there is no connection, as `asyncio.Server.wait_closed` does for those that have a transport."""
        await self._watch.wait_closed()
