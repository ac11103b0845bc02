"""How many appends a second each client may make: the answers to more are delayed."""

import asyncio
import math
from typing import Final

from starlette.responses import Response

from purgatory import Delay, DelayedOperationPurgatory, IdleTracker, PurgatoryClosed, PurgatoryFull
from purgatory.asgi import DelayedResponse
from purgatory.streams.http.replies import Refusal, Reply

__all__ = ["Quotas"]

_DELAY: Final = 30.0
"""Seconds. A client that would have to wait longer is told to come again."""
_DAY: Final = 86_400.0


class Quotas:
    """Delays the answers to a client, so that it does not append more than `rate` times a second.

    An append of a client that owes none is free. Each is due `1 / rate` seconds after the one before; a client may be
    ahead of that by a second. (The generic cell rate algorithm of ITU-T I.371, as virtual scheduling.) As in Kafka,
    the append is taken, and its answer waits. It belongs to one event loop.
    """

    def __init__(self, rate: float, max_pending: int) -> None:
        """Delay `max_pending` answers at most."""
        self.purgatory = DelayedOperationPurgatory("throttle", max_pending=max_pending)
        self._rate = rate
        self._loop = asyncio.get_running_loop()
        self._due: dict[str, float] = {}
        # A client that is silent for so long has no delay any more: none is longer.
        self._clients = IdleTracker(2 * _DELAY + min(1 / rate, _DAY), self._due.pop)

    def __len__(self) -> int:
        """The number of clients that are remembered."""
        return len(self._due)

    def take(self, client: str) -> float:
        """Count an append. Returns the time of the loop at which it may be answered.

        Raises `Refusal` if the client is too far ahead.
        """
        now = self._loop.time()
        next_due = max(now, self._due.get(client, 0.0)) + 1 / self._rate
        delay = max(0.0, next_due - now - 1.0) if self._due.get(client, 0.0) > now else 0.0
        if delay > _DELAY:
            after = (b"retry-after", b"%d" % math.ceil(delay - _DELAY))
            raise Refusal(429, f"the client appends more than {self._rate:g} times a second", [after])
        self._due[client] = next_due
        self._clients.touch(client)
        return now + delay

    def delayed(self, reply: Reply, due: float) -> Response:
        """The response that is sent when it is due. The append is stored: if no more may wait, it is sent at once."""
        delay = due - self._loop.time()
        if delay <= 0:
            return reply
        try:
            operation = self.purgatory.try_complete_else_watch(Delay(delay), ["append"])
        except (PurgatoryFull, PurgatoryClosed):
            return reply
        return DelayedResponse(operation, lambda _: reply)

    def close(self) -> None:
        """Forget all clients."""
        self._clients.close()
