"""The broker of relays on several event loops of one process, each loop in a thread of its own.

A payload goes into the mailbox of each connection. No lock is held, so a loop that hangs doesn't hold up the others.
The mailbox is bounded. When it is full, the connection is lost, and its relay reconnects and checks every watched key.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from purgatory.lowlevel import Mailbox, Slice
from purgatory.relay.broker import Connection

_WAITING: Final = 4096
"""The most payloads that may wait for a loop. They take up to 32 MB, as much as Redis keeps for a subscriber."""


class ThreadBroker:
    """Connects the relays that it is passed to, in all threads of this process.

    For example:

        broker = ThreadBroker()
        relay = Relay(purgatory, broker=broker)  # in each thread, with a purgatory of its own
    """

    def __init__(self) -> None:
        self._connections: dict[_ThreadConnection, None] = {}
        """The subscribed connections, in the order of arrival."""

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} connections={len(self._connections)}>"

    @asynccontextmanager
    async def connect(self, receive: Callable[[str | bytes], object]) -> AsyncIterator[Connection]:
        """Subscribe."""
        connection = _ThreadConnection(self._connections, receive)
        self._connections[connection] = None
        try:
            yield connection
        finally:
            self._connections.pop(connection, None)


class _ThreadConnection:
    def __init__(self, connections: "dict[_ThreadConnection, None]", receive: Callable[[str | bytes], object]) -> None:
        self._connections = connections
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._waiting = asyncio.Event()
        """Set when payloads have arrived, or the connection is lost."""
        self._arrived: deque[str] = deque()
        self._bell: Mailbox[str] = Mailbox(self._waiting.set)
        """It stays empty, and wakes the loop."""
        self._is_lost = False

    async def publish(self, payloads: Sequence[str]) -> None:
        self._check()
        for connection in list(self._connections):
            connection.arrive(payloads)
        await asyncio.sleep(0)  # with another broker the loop has an iteration until it answers

    async def ping(self) -> None:
        self._check()

    async def listen(self) -> None:
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            slice_ = Slice(bounded=True)
            while self._arrived and not self._is_lost:
                self._receive(self._arrived.popleft())
                if slice_.is_over():
                    await asyncio.sleep(0)
                    slice_ = Slice(bounded=True)
            self._check()

    def arrive(self, payloads: Sequence[str]) -> None:
        """Take `payloads` from any thread, or lose the connection if the queue is full."""
        if len(self._arrived) + len(payloads) > _WAITING:
            self._is_lost = True
            self._connections.pop(self, None)
        else:
            self._arrived.extend(payloads)
        try:
            self._bell.wake(self._loop)
        except RuntimeError:  # the loop was closed, and the connection was not
            self._connections.pop(self, None)

    def _check(self) -> None:
        if self._is_lost:
            raise ConnectionError(f"the event loop has more than {_WAITING} unread messages")
