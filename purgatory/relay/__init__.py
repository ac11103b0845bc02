"""Key notifications between processes, because a condition may become true in a process that doesn't wait for it.

The processes may also be threads of one process, each with an event loop (`ThreadBroker`).

    relay = Relay(purgatory, broker=RedisBroker("redis://127.0.0.1"))    # or PostgresBroker("postgresql://…")
    async with relay:
        relay.notify("topic-1")    # after the change: checks the key here and in every other process

The state itself is shared by other means, such as a database or a file system. Only the names of changed keys travel
between the processes, over a broker that you have anyway: Redis or Valkey (`RedisBroker`), PostgreSQL
(`PostgresBroker`), or your own (`Broker`). Without a broker, a relay checks keys in its own process.

The promises:

- *No lost wake-up.* If you call `notify` after a change, every other process checks the key after the change, once it
  is connected. While the broker is away, `notify` keeps the keys. A process that was disconnected, however briefly,
  checks *every* watched key when it has subscribed again, so messages lost between a broker and its subscribers do no
  harm. One loss remains: keys that the broker has not taken when the process dies. If that must not happen, send
  `payloads` within the transaction that makes the change.
- *At least once.* A check may come more often than the state changes, because keys are published again if it is not
  known whether the broker has taken them. Several calls for a key before it is published make one notification.
- *No order.* Two keys may be checked in an order different from that of their notifications. A key that is notified
  during its refresh is checked again, so its last check sees its last change.
- *While the broker is away*, a process learns only of its own changes, and deadlines go on. It reconnects on its own
  after random times of up to some seconds. A peer that has silently vanished is noticed within two `heartbeat`s.
- *Bounded memory.* If more than `max_keys` keys wait, they collapse into one: "check everything".
- *Bounded iterations.* Keys are checked in slices of a thousand or a millisecond, even all keys after a reconnect.
- *A neutral context.* Checks from other processes run in an empty `contextvars.Context()`, and never in the context of
  the request that opened the relay.
- *Idle is cheap.* If there is nothing to notify, the broker gets one ping per `heartbeat`.

A message is JSON: `{"from": "…", "keys": ["topic-1"]}`. A process ignores its own messages. `"keys": null` means
"everything", and `"from"` may be missing, so a trigger of the database or a program in another language may notify too.
A publisher on the channel can make processes check keys, and nothing else. It needs the extra `relay`.
"""

from typing import TYPE_CHECKING, Any

import purgatory.lowlevel  # noqa: F401 - it says so if another distribution has overwritten a part of this one
from purgatory.relay.broker import Broker, Connection
from purgatory.relay.relay import Relay, RelayError, RelayStatistics
from purgatory.relay.threads import ThreadBroker

if TYPE_CHECKING:
    from purgatory.relay.postgres import PostgresBroker
    from purgatory.relay.redis import RedisBroker

__all__ = [
    "Broker",
    "Connection",
    "PostgresBroker",
    "RedisBroker",
    "Relay",
    "RelayError",
    "RelayStatistics",
    "ThreadBroker",
]


def __getattr__(name: str) -> Any:
    """Import a broker's class when it is first used, because only its own client needs to be installed."""
    if name == "PostgresBroker":
        from purgatory.relay.postgres import PostgresBroker

        return PostgresBroker
    if name == "RedisBroker":
        from purgatory.relay.redis import RedisBroker

        return RedisBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
