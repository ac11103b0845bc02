"""The operations of the two purgatories: a fetch waits for messages, a produce for its replicas."""

from typing import Protocol

from examples.long_poll_server.store import Store
from purgatory import DelayedOperation


class Log(Protocol):
    """The state that a fetch looks at."""

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
        return max(0, self.log.end(self.topic) - self.offset) >= self.min_messages and self.force_complete()

    def on_complete(self) -> int:
        return self.log.end(self.topic)


class DelayedProduce(DelayedOperation[bool]):
    """Completes when `acks` replicas have the message, with `True`; at the deadline with `False`.

    It is registered before the message is stored, so that a full purgatory refuses it with nothing stored.
    """

    def __init__(self, log: Store, topic: str, acks: int, timeout: float) -> None:
        super().__init__(timeout)
        self.log = log
        self.topic = topic
        self.acks = acks
        self.offset: int | None = None

    def _acknowledged(self) -> bool:
        return self.offset is not None and self.log.count(self.topic, self.offset) >= self.acks

    def try_complete(self) -> bool:
        return self._acknowledged() and self.force_complete()

    def on_complete(self) -> bool:
        return self._acknowledged()
