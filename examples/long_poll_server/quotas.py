"""How fast each client may publish."""

from purgatory import IdleTracker

FORGOTTEN = 120.0
DAY = 86_400.0


class Quotas:
    """Tells how long the answer to a client has to wait, so that it does not publish more than `rate` a second.

    A message of a client that owes none is free. Each is due `1 / rate` seconds after the one before; a client may be
    ahead of that by a second. (The generic cell rate algorithm of ITU-T I.371, as virtual scheduling.) As in Kafka the
    message is taken, and it is the answer that waits.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._due: dict[str, float] = {}
        # A client that is silent for so long has no delay any more: none is longer.
        self._clients = IdleTracker(FORGOTTEN + min(1 / rate, DAY), self._due.pop)

    def __len__(self) -> int:
        return len(self._due)

    def delay(self, client: str, now: float) -> float:
        """Seconds for which `client` would have to wait for an answer to what it publishes now."""
        if self._due.get(client, 0.0) <= now:
            return 0.0
        return max(0.0, self._next(client, now) - now - 1)

    def publish(self, client: str, now: float) -> None:
        """It does."""
        self._due[client] = self._next(client, now)
        self._clients.touch(client)

    def _next(self, client: str, now: float) -> float:
        return max(now, self._due.get(client, 0.0)) + 1 / self.rate

    def close(self) -> None:
        """Forget all clients."""
        self._clients.close()
