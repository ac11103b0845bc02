"""One level of the hierarchy."""

from purgatory.timer.task import Bucket

__all__ = ["TimingWheel"]


class TimingWheel:
    """A ring of `size` buckets of `unit` ticks each, reaching `size` buckets ahead of the current one.

    It knows nothing of clocks, nor of what its tasks mean. A bucket that is `None` is in nobody's heap; whoever puts a
    dict there must see to it that the bucket's time is not missed.
    """

    __slots__ = ("buckets", "level", "limit", "overflow", "size", "unit")

    def __init__(self, level: int, unit: int, size: int, current: int) -> None:
        """Make the wheel of `level` (1 is the lowest) that stands at tick `current`."""
        self.level = level
        self.unit = unit
        self.size = size
        self.buckets: list[Bucket | None] = [None] * size
        self.limit = 0
        """The first tick that is too far ahead for this wheel."""
        self.overflow: TimingWheel | None = None
        self.turn_to(current)

    def __repr__(self) -> str:
        used = {slot: len(bucket) for slot, bucket in enumerate(self.buckets) if bucket}
        return f"<TimingWheel level={self.level} unit={self.unit} size={self.size} limit={self.limit} used={used}>"

    def turn_to(self, current: int) -> None:
        """Let the hand point at the bucket of tick `current`. What it passes by must have been emptied before."""
        self.limit = (current // self.unit + self.size) * self.unit

    def slot(self, tick: int) -> int:
        """The index of the bucket for `tick`, which must lie between the hand and `limit`."""
        return tick // self.unit % self.size

    def start(self, tick: int) -> int:
        """The first tick of the bucket that `tick` falls into."""
        return tick - tick % self.unit

    def take(self, tick: int) -> Bucket:
        """Take the bucket for `tick` out of the ring, so that its slot is free for the next round."""
        slot = self.slot(tick)
        bucket = self.buckets[slot]
        assert bucket is not None, "only a bucket that is in the ring is taken out"
        self.buckets[slot] = None
        return bucket

    def make_overflow(self, current: int) -> "TimingWheel":
        """Make the next level, which stands at tick `current` too."""
        self.overflow = TimingWheel(self.level + 1, self.unit * self.size, self.size, current)
        return self.overflow
