"""The protocol between a relay and a broker."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

__all__ = ["Broker", "Connection"]


class Connection(Protocol):
    """A connection to a broker that is subscribed. Only `publish` and `ping` wait for each other."""

    async def publish(self, payloads: Sequence[str]) -> None:
        """Publish each of `payloads`. Returns when the broker has taken all of them; raises if that is not known."""

    async def ping(self) -> None:
        """Return when the broker has answered, on all connections that this one is made of; raise if one is lost."""

    async def listen(self) -> None:
        """Hand over incoming payloads until the connection is lost: raise or return then, and never before."""


class Broker(Protocol):
    """Takes payloads and hands each to all subscribers at that time, the publisher included.

    A payload is at most `purgatory.relay.payload.MAX_PAYLOAD` characters of ASCII. A broker may lose payloads only
    together with the connections of the subscribers that miss them. It needs no time limits: the relay cancels.
    """

    def connect(self, receive: Callable[[str | bytes], object]) -> AbstractAsyncContextManager[Connection]:
        """Connect and subscribe; entered when the broker has confirmed both. `receive` gets each payload.

        Entering raises if the broker cannot be reached. Leaving closes, and does not wait long for a dead peer.
        """
