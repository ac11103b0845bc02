"""PostgreSQL as the broker of a relay: LISTEN and NOTIFY, on one connection for both.

If the state is in PostgreSQL too, send `relay.payloads(keys)` within the transaction that changes it. Each database has
its own channels. LISTEN needs a direct connection, because a connection through PgBouncer in transaction mode gets
nothing. The server commits transactions that NOTIFY one after the other.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from purgatory._extras import missing
from purgatory.relay.broker import Connection

try:
    import asyncpg
except ModuleNotFoundError as _error:
    raise missing(_error, "relay") from None

__all__ = ["PostgresBroker"]

_CLOSING: Final = 1.0
"""The timeout for closing a connection, in seconds."""


class PostgresBroker:
    """Uses a channel of a PostgreSQL database as the broker of a relay.

    For example:

        relay = Relay(purgatory, broker=PostgresBroker("postgresql://user:password@host/database"))
    """

    def __init__(self, dsn: str, channel: str = "purgatory") -> None:
        """Make a broker, without a connection yet.

        Args:
            dsn: asyncpg's DSN, `postgresql://user:password@host:port/database`. With "", the environment decides.
            channel: The name of the channel, of 1 to 63 bytes without NUL.

        Raises:
            ValueError: PostgreSQL does not accept `channel`.
            TypeError: An argument is not a `str`.
        """
        if not isinstance(dsn, str):
            raise TypeError(f"dsn must be a str, not {dsn!r}")
        if not isinstance(channel, str):
            raise TypeError(f"channel must be a str, not {channel!r}")
        if not channel or "\0" in channel or len(channel.encode(errors="replace")) > 63:
            raise ValueError(f"channel must be 1 to 63 bytes without NUL, not {channel!r}")
        self._dsn = dsn
        self.channel = channel
        """The channel, for `SELECT pg_notify(channel, payload)`."""

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} {self.channel!r}>"  # the DSN may have a password

    @asynccontextmanager
    async def connect(self, receive: Callable[[str | bytes], object]) -> AsyncIterator[Connection]:
        """Connect and LISTEN."""

        def hear(connection: object, process: int, channel: str, payload: object) -> None:
            receive(str(payload))

        connection = await asyncpg.connect(self._dsn or None)
        try:
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(self.channel, hear)
            yield _PostgresConnection(connection, self.channel, lost)
        finally:
            with suppress(Exception):  # this closes a lost connection, too
                await connection.close(timeout=_CLOSING)


class _PostgresConnection:
    def __init__(self, connection: Any, channel: str, lost: asyncio.Event) -> None:
        self._connection = connection
        self._channel = channel
        self._lost = lost

    async def publish(self, payloads: Sequence[str]) -> None:
        command = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload"
        await self._connection.execute(command, self._channel, payloads)

    async def ping(self) -> None:
        await self._connection.execute("SELECT 1")

    async def listen(self) -> None:
        await self._lost.wait()
