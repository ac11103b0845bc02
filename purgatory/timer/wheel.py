"""One level of the hierarchy."""

from purgatory.timer.task import Bucket

__all__ = ["TimingWheel"]


class TimingWheel:
    """A ring of `size` buckets of `unit` ticks each, reaching `size` buckets ahead of the current one.

    It knows nothing of clocks, nor of what its tasks mean. A bucket that is `None` is in nobody's heap; whoever puts a
    dict there must see to it that the bucket's time is not missed.

    A bucket that gets long goes on in a further dict, and `full` keeps the earlier ones, in order: a single dict
    would hold up the loop for a tenth of a second when it grows past 700,000 tasks.
    """

    __slots__ = ("buckets", "full", "level", "limit", "overflow", "size", "unit")

    def __init__(self, level: int, unit: int, size: int, current: int) -> None:
        """Make the wheel of `level` (1 is the lowest) that stands at tick `current`."""
        self.level = level
        self.unit = unit
        self.size = size
        self.buckets: list[Bucket | None] = [None] * size
        self.full: dict[int, list[Bucket]] = {}
        self.limit = 0
        """The first tick that is too far ahead for this wheel."""
        self.overflow: TimingWheel | None = None
        self.turn_to(current)

    def __repr__(self) -> str:
        used = {slot: count for slot in range(self.size) if (count := self.count(slot))}
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

    def count(self, slot: int) -> int:
        """How many tasks are in the bucket at `slot`."""
        return len(self.buckets[slot] or ()) + sum(map(len, self.full.get(slot, ())))

    def go_on(self, slot: int) -> Bucket:
        """Go on in a further dict, as the one at `slot` is long enough."""
        bucket = self.buckets[slot]
        assert bucket is not None, "only a bucket that is in the ring gets long"
        self.full.setdefault(slot, []).append(bucket)
        fresh = self.buckets[slot] = {}
        return fresh

    def take(self, slot: int) -> list[Bucket]:
        """Take the bucket at `slot` out of the ring, which is free for the next round then. Returns its dicts."""
        bucket = self.buckets[slot]
        self.buckets[slot] = None
        dicts = self.full.pop(slot, [])
        if bucket is not None:
            dicts.append(bucket)
        return dicts

    def make_overflow(self, current: int) -> "TimingWheel":
        """Make the next level, which stands at tick `current` too."""
        self.overflow = TimingWheel(self.level + 1, self.unit * self.size, self.size, current)
        return self.overflow
