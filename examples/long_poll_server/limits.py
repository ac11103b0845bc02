"""Limits of time, number and size: larger values are cut or refused before anything has changed."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException

from examples.long_poll_server.store import Store

JITTER = 1 / 16
"""By how much of itself a wait is shortened, at the most."""

SHORT = 1.0
"""Seconds. Shorter waits are left as they are: clients that come back that often are not in step for long."""


def bounded(seconds: float, most: float) -> float:
    """How long to wait for what a client says are `seconds`."""
    return min(seconds, most)


def jittered(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """A little less, so that clients that began to wait at once do not come back at once.

    By up to a sixteenth, as Consul's blocking queries. Those wait longer than they were told to; here nothing that
    counts on an answer in time, a client's time-out or a proxy's, is disappointed.
    """
    return seconds if seconds < SHORT else seconds * (1 - JITTER * draw())


class PendingByClient:
    """How many requests of each client wait."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._pending: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many clients have some."""
        return len(self._pending)

    @contextmanager
    def one_more(self, client: str) -> Iterator[None]:
        """Counts one as long as the context lasts. Raises a 429 if the client has as many as it may."""
        if self._pending[client] >= self.most:
            raise HTTPException(429, f"the client has {self.most} waiting requests, as many as it may", RETRY)
        self._pending[client] += 1
        try:
            yield
        finally:
            self._pending[client] -= 1
            if not self._pending[client]:
                del self._pending[client]


RETRY = {"Retry-After": "1"}


class Held:
    """How many bytes all requests together hold in memory."""

    def __init__(self, most: int, error: str) -> None:
        """More than `most` are refused, with this error."""
        self.most = most
        self.error = error
        self.bytes = 0

    @contextmanager
    def some(self) -> Iterator[Callable[[int], None]]:
        """Yields `hold(size)`, which says how many bytes one request holds from now on, until the context ends.

        It raises a 503 if they are too many, and they are not counted then.
        """
        mine = 0

        def hold(size: int) -> None:
            nonlocal mine
            if self.bytes - mine + size > self.most:
                raise HTTPException(503, self.error, RETRY)
            self.bytes += size - mine
            mine = size

        try:
            yield hold
        finally:
            self.bytes -= mine


class Room:
    """Whether a log may take one more message. Messages on their way to the log count as if they were there."""

    def __init__(self, log: Store, max_topics: int, max_messages: int) -> None:
        self.log = log
        self.max_topics = max_topics
        self.max_messages = max_messages
        self._coming: Counter[str] = Counter()

    @contextmanager
    def one_more(self, topic: str) -> Iterator[None]:
        """To append a message of `topic` in. Raises a 403 if there is no room for it."""
        if self.log.end(topic) + self._coming[topic] >= self.max_messages:
            raise HTTPException(403, f"the topic has {self.max_messages} messages, as many as it may")
        if self._is_new(topic) and not self._is_room_for_a_topic():
            raise HTTPException(403, f"there are {self.max_topics} topics, as many as there may be")
        self._coming[topic] += 1
        try:
            yield
        finally:
            self._coming[topic] -= 1
            if not self._coming[topic]:
                del self._coming[topic]

    def _is_new(self, topic: str) -> bool:
        return self.log.end(topic) == 0 and topic not in self._coming

    def _is_room_for_a_topic(self) -> bool:
        # Some that are coming are there already, for others come too: look closely only if it may matter.
        if self.log.topics + len(self._coming) < self.max_topics:
            return True
        return self.log.topics + sum(self.log.end(topic) == 0 for topic in self._coming) < self.max_topics
