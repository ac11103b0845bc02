"""The server's interface to a log, of which there are two: SQLite in this process, and PostgreSQL for several."""

from collections.abc import Iterable
from typing import Protocol

MAX_REPLICAS = 100
"""Of a topic."""
PAGE_BYTES = 64 * 1024
"""About as much as is read at a time: what uvicorn takes of an answer before it lets its client read."""


class TooManyReplicas(Exception):
    """The topic has as many as it may."""


class StoreUnavailable(Exception):
    """The database cannot be reached. Nothing has been stored."""


class StoreUncertain(StoreUnavailable):
    """The connection was lost before the database had answered. The messages may have been stored, or not."""


class StoreFailed(Exception):
    """The database has refused. Nothing has been stored."""


class StoreFull(StoreFailed):
    """The database has no room on its disk."""


class Store(Protocol):
    """Topics of messages numbered 0, 1, 2, … without gaps, and up to where each replica of each topic has fetched.

    `end` and `count` tell what is known in this process, as operations have to be told at once. Where other processes
    write too, that may be behind, never ahead, until `refresh` returns. Every other method may raise
    `StoreUnavailable`, `StoreUncertain` or `StoreFailed`, or what its own database raises.
    """

    incarnation: str
    """Names this log and its messages, over restarts. Another one, with other messages, is named otherwise."""

    @property
    def topics(self) -> int:
        """How many topics have messages, as far as is known here."""

    async def start(self) -> None:
        """To be called first, on the loop."""

    async def close(self) -> None:
        """Store what has been given to `append`, and let go of everything."""

    def end(self, topic: str) -> int:
        """The offset that the next message of `topic` will have, as far as is known here. It never goes backwards."""

    def count(self, topic: str, offset: int) -> int:
        """How many replicas have acknowledged the message at `offset`, as far as is known here."""

    async def refresh(self, topics: Iterable[str]) -> None:
        """Get to know what was stored in `topics`, and acknowledged, before this was called."""

    async def append(self, topic: str, value: str) -> int:
        """Store `value`, which is JSON. Returns its offset when it is stored for good."""

    async def read(self, topic: str, offset: int, end: int, limit: int) -> tuple[str, int]:
        """A page of up to `limit` messages from `offset` to before `end`, as a JSON array, and the offset after it.

        `end` is one that was known here. A page of more than 64 KiB ends with the message that makes it so.
        """

    async def acknowledge(self, topic: str, replica: str, offset: int) -> None:
        """`replica` fetches at `offset`: it has everything below. Raises `TooManyReplicas` if it is one too many."""


def as_json(rows: Iterable[tuple[int, str]], offset: int) -> tuple[str, int]:
    """A page of messages (offset, value) from `offset` on, as a JSON array, and the offset after it."""
    messages = []
    size = 0
    for number, value in rows:
        messages.append(f'{{"offset":{number},"value":{value}}}')
        size += len(messages[-1])
        if size > PAGE_BYTES:
            break
    return f"[{','.join(messages)}]", offset + len(messages)
