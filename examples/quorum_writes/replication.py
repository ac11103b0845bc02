"""A log whose writes wait until replicas have acknowledged them."""

from dataclasses import dataclass, field

from purgatory import DelayedOperation, DelayedOperationPurgatory


@dataclass
class Log:
    """Records, and the end up to which each replica has them."""

    records: list[bytes] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)

    def acknowledged(self, offset: int) -> int:
        """Count the replicas that have the record at `offset`."""
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
    """Takes writes, and acknowledgements of replicas."""

    def __init__(self, quorum: int, timeout: float) -> None:
        """Complete a write when `quorum` replicas have it, or after `timeout` seconds without that."""
        self.log = Log()
        self.quorum = quorum
        self.timeout = timeout
        self.purgatory = DelayedOperationPurgatory("write")

    async def write(self, record: bytes) -> bool:
        """Append a record. Return whether enough replicas have acknowledged it in time."""
        self.log.records.append(record)
        write = DelayedWrite(self.log, len(self.log.records) - 1, self.quorum, self.timeout)
        return await self.purgatory.try_complete_else_watch(write, ["log"])

    def acknowledge(self, replica: str, end: int) -> None:
        """Note that a replica has all records before `end`."""
        self.log.ends[replica] = max(end, self.log.ends.get(replica, 0))
        # One log has one key, so this tries every pending write. Give each partition a key of its own.
        self.purgatory.check_and_complete("log")
