"""One level of a timer, as users see it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimingWheel:
    """One level of a `WheelTimer` at one moment: a ring of `size` buckets of `unit` ticks each.

    For example:

        for wheel in timer.wheels:
            print(wheel.level, sum(wheel.counts))
    """

    level: int
    """The number of the level, from 1, the lowest."""
    unit: int
    """The span of a bucket, in ticks."""
    counts: tuple[int, ...]
    """Tasks in each bucket of the ring."""

    @property
    def size(self) -> int:
        """The number of buckets."""
        return len(self.counts)

    def slot(self, tick: int) -> int:
        """Return the index in the ring of the bucket for `tick`."""
        return tick // self.unit % self.size

    def count(self, slot: int) -> int:
        """Return how many tasks are in the bucket at the index `slot`."""
        return self.counts[slot]
