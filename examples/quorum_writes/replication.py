"""A log whose writes are acknowledged by replicas."""

from dataclasses import dataclass, field

from purgatory import DelayedOperation, DelayedOperationPurgatory


@dataclass
class Log:
    """Records, and how far each replica has got."""

    records: list[bytes] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)

    def acknowledged(self, offset: int) -> int:
        """How many replicas have the record at `offset`."""
        return sum(end > offset for end in self.ends.values())


class DelayedWrite(DelayedOperation[bool]):
    """Waits until enough replicas have a record. Yields whether they have."""

    def __init__(self, log: Log, offset: int, quorum: int, timeout: float) -> None:
        super().__init__(timeout)
        self.log = log
        self.offset = offset
        self.quorum = quorum

    def try_complete(self) -> bool:
        return self.log.acknowledged(self.offset) >= self.quorum and self.force_complete()

    def on_complete(self) -> bool:
        return self.log.acknowledged(self.offset) >= self.quorum


class Leader:
    """Takes writes, and the acknowledgements of replicas."""

    def __init__(self, quorum: int, timeout: float) -> None:
        """A write is done when `quorum` replicas have it, or not after `timeout` seconds."""
        self.log = Log()
        self.quorum = quorum
        self.timeout = timeout
        self.purgatory = DelayedOperationPurgatory("write")

    async def write(self, record: bytes) -> bool:
        """Append a record. Returns whether enough replicas have it in time."""
        self.log.records.append(record)
        write = DelayedWrite(self.log, len(self.log.records) - 1, self.quorum, self.timeout)
        return await self.purgatory.try_complete_else_watch(write, ["log"])

    def acknowledge(self, replica: str, end: int) -> None:
        """A replica has all records before `end`."""
        self.log.ends[replica] = max(end, self.log.ends.get(replica, 0))
        self.purgatory.check_and_complete("log")
