"""What waits in the two purgatories: a fetch for messages, a produce for its replicas."""

from collections import defaultdict
from typing import Protocol

from purgatory import DelayedOperation

MAX_REPLICAS = 100


class Replicas:
    """Up to where each replica of each topic has fetched. Kept in memory: after a restart replicas fetch again."""

    def __init__(self) -> None:
        self._positions: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def is_room_for(self, topic: str, replica: str) -> bool:
        """Whether `replica` is known to `topic` or may become so."""
        known = self._positions.get(topic, {})
        return replica in known or len(known) < MAX_REPLICAS

    def acknowledge(self, topic: str, replica: str, offset: int) -> None:
        """`replica` fetches at `offset`: it has everything below."""
        positions = self._positions[topic]
        positions[replica] = max(offset, positions.get(replica, 0))

    def count(self, topic: str, offset: int) -> int:
        """How many replicas have acknowledged the message at `offset`."""
        return sum(position > offset for position in self._positions.get(topic, {}).values())


class Log(Protocol):
    """What a fetch looks at."""

    def end(self, topic: str) -> int:
        """The offset that the next message of `topic` will have."""


class DelayedFetch(DelayedOperation[int]):
    """Completes when `min_messages` follow `offset`, with the end of the topic; at the deadline with whatever it is."""

    def __init__(self, log: Log, topic: str, offset: int, min_messages: int, wait: float) -> None:
        super().__init__(wait)
        self.log = log
        self.topic = topic
        self.offset = offset
        self.min_messages = min_messages

    def try_complete(self) -> bool:
        return self.log.end(self.topic) - self.offset >= self.min_messages and self.force_complete()

    def on_complete(self) -> int:
        return self.log.end(self.topic)


class DelayedProduce(DelayedOperation[bool]):
    """Completes when `acks` replicas have the message, with `True`; at the deadline with `False`.

    It is registered before the message is stored, so that a full purgatory refuses it with nothing stored.
    """

    def __init__(self, replicas: Replicas, topic: str, acks: int, timeout: float) -> None:
        super().__init__(timeout)
        self.replicas = replicas
        self.topic = topic
        self.acks = acks
        self.offset: int | None = None

    def _acknowledged(self) -> bool:
        return self.offset is not None and self.replicas.count(self.topic, self.offset) >= self.acks

    def try_complete(self) -> bool:
        return self._acknowledged() and self.force_complete()

    def on_complete(self) -> bool:
        return self._acknowledged()
