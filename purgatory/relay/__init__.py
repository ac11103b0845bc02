"""Key notifications between processes: a condition may become true in another process than the one that waits.

The processes may also be threads of one process, each with an event loop: "process" stands for both (`ThreadBroker`).

    relay = Relay(purgatory, broker=RedisBroker("redis://127.0.0.1"))    # or PostgresBroker("postgresql://…")
    async with relay:
        relay.notify("topic-1")    # after the change: checks the key here and in every other process

The state itself is shared by other means: a database, a file system. Only the names of changed keys go between the
processes, over a broker that is there anyway: Redis or Valkey (`purgatory.relay.redis`), PostgreSQL
(`purgatory.relay.postgres`), or another one (`Broker`). Without a broker, a relay checks keys in its own process.

The promises:

- *No lost wake-up.* If the state has changed and `notify` has been called after it, every other process checks the key
  after that, once it is connected. While the broker is away, `notify` keeps the keys. A process that was without a
  connection, for however short a time, checks *every* watched key when it has subscribed again: so messages lost
  between a broker and its subscribers do no harm. One loss remains: keys that the broker has not taken when the process
  dies. Where that must not be, send `payloads` within the transaction that makes the change.
- *At least once.* A check may come more often than the state changes: keys are published again if it is not known
  whether the broker has taken them. Calls for the same key before they are published make one notification.
- *No order.* Two keys may be checked in another order than they were notified in. A key that is notified while it is
  brought up to date is checked again, so its last check sees its last change.
- *While the broker is away* a process learns of its own changes only, and deadlines go on. It connects again by itself,
  after random times of up to some seconds. A peer that has vanished without a word is noticed within two `heartbeat`s.
- *Bounded memory.* More than `max_keys` keys that wait collapse into one: "check everything".
- *Bounded iterations.* Keys are checked in slices of a thousand or a millisecond, all watched keys of a reconnect too.
- *A neutral context.* Checks from other processes run in an empty `contextvars.Context()`, and never in that of the
  request that opened the relay.
- *Idle is cheap.* With nothing to notify, there is one ping of the broker each `heartbeat`.

A message is JSON: `{"from": "…", "keys": ["topic-1"]}`. A process ignores its own messages. `"keys": null` is
"everything", and `"from"` may be missing: so a trigger of the database may notify, or a program in another language.
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
    """Import a broker's class when it is first used: the client of one alone need be there."""
    if name == "PostgresBroker":
        from purgatory.relay.postgres import PostgresBroker

        return PostgresBroker
    if name == "RedisBroker":
        from purgatory.relay.redis import RedisBroker

        return RedisBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
