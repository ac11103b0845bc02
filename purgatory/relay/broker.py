"""The protocol between a relay and a broker."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Connection(Protocol):
    """A subscribed connection to a broker. The relay calls `publish` and `ping` one after the other.

    For example:

        async with broker.connect(receive) as connection:
            await connection.publish(['{"keys": ["topic-1"]}'])
    """

    async def publish(self, payloads: Sequence[str]) -> None:
        """Publish each payload. Return when the broker has taken all of them, or raise if that is not known."""

    async def ping(self) -> None:
        """Return when the broker has answered on every underlying connection, or raise if one of them is lost."""

    async def listen(self) -> None:
        """Hand over incoming payloads until the connection is lost. Raise or return then, and not earlier."""


class Broker(Protocol):
    """Takes payloads and hands each to all present subscribers, including the publisher.

    A payload is at most 7,999 ASCII characters long. A broker may lose payloads only together with the connections of
    the subscribers that miss them. It needs no timeouts, because the relay cancels its calls.

        broker: Broker = ThreadBroker()
    """

    def connect(self, receive: Callable[[str | bytes], object]) -> AbstractAsyncContextManager[Connection]:
        """Connect and subscribe. The context is entered when the broker has confirmed both.

        `receive` is called with each payload. Entering raises if the broker cannot be reached. The exit closes, and
        does not wait long for a dead peer.
        """
