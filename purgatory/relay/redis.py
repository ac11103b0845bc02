"""Redis or Valkey as the broker of a relay: pub/sub, on one connection to publish and one that is subscribed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from purgatory._extras import missing
from purgatory.relay.broker import Connection

try:
    from redis.asyncio import ConnectionPool, Redis
    from redis.asyncio.client import PubSub
    from redis.asyncio.connection import parse_url
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ModuleNotFoundError as _error:
    raise missing(_error, "relay") from None

__all__ = ["RedisBroker"]

_CONNECTING: Final = 5.0
"""The timeout for connecting and for closing, in seconds."""


class RedisBroker:
    """Uses a channel of Redis or Valkey as the broker of a relay. All databases of a server share channels.

    For example:

        relay = Relay(purgatory, broker=RedisBroker("redis://127.0.0.1"))
    """

    def __init__(self, url: str, channel: str = "purgatory") -> None:
        """Make a broker, without a connection yet.

        Args:
            url: redis-py's URL: `redis://user:password@host:6379`, `rediss://…` for TLS, or `unix:///path`.
            channel: The name of the channel.

        Raises:
            ValueError: `url` is not such a URL, or `channel` is empty.
            TypeError: An argument is not a `str`.
        """
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, not {url!r}")
        if not isinstance(channel, str):
            raise TypeError(f"channel must be a str, not {channel!r}")
        if not channel:
            raise ValueError("channel must not be empty: pass a name, or leave it out")
        self._url = url
        self.channel = channel
        """The channel, for `PUBLISH`, in UTF-8."""
        self._name = channel.encode()
        self._client()

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} {self.channel!r}>"  # the URL may have a password

    def _client(self) -> "Redis":
        # These win over options in the URL. Above all, it must not reconnect on its own, unnoticed by the relay.
        options: dict[str, Any] = {
            "protocol": 2,
            "decode_responses": False,
            "health_check_interval": 0,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": None,
            "socket_connect_timeout": _CONNECTING,
        }
        return Redis.from_pool(ConnectionPool(**{**parse_url(self._url), **options}))

    @asynccontextmanager
    async def connect(self, receive: Callable[[str | bytes], object]) -> AsyncIterator[Connection]:
        """Connect and SUBSCRIBE."""
        async with self._client() as client, client.pubsub() as subscription:
            await client.ping()
            await subscription.subscribe(self._name)
            await subscription.get_message(timeout=None)  # the server confirms it
            yield _RedisConnection(client, subscription, self._name, receive)


class _RedisConnection:
    def __init__(
        self, client: "Redis", subscription: PubSub, channel: bytes, receive: Callable[[str | bytes], object]
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._channel = channel
        self._receive = receive
        self._pong = asyncio.Event()

    async def publish(self, payloads: Sequence[str]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for payload in payloads:
                pipeline.publish(self._channel, payload.encode())
            await pipeline.execute()

    async def ping(self) -> None:
        await self._client.ping()
        self._pong.clear()
        await self._subscription.ping()
        await self._pong.wait()

    async def listen(self) -> None:
        while True:
            message = await self._subscription.get_message(timeout=None)
            if message["type"] == "message":
                self._receive(message["data"])
            else:
                self._pong.set()
