"""One level of the hierarchy."""

from collections.abc import Iterable

from purgatory._speedups import provide
from purgatory._timer.entry import Bucket, TimerEntry

__all__ = ["TimingWheel"]


class TimingWheel:
    """A ring of `size` buckets of `unit` ticks each, reaching `size` buckets ahead of the current one.

    A wheel knows no clock and no meaning of its tasks. A slot without a bucket is `None`, and in no heap; whatever puts
    a bucket there must see to it that the bucket's time is not missed.

    A bucket is a list of dicts, of which the first one takes new tasks: one dict for all would hold up the loop for a
    tenth of a second when it grows past 700,000 tasks.
    """

    __slots__ = ("buckets", "floor", "level", "limit", "overflow", "size", "unit")

    def __init__(self, level: int, unit: int, size: int, current: int) -> None:
        """Make the wheel of `level` (1 is the lowest) that stands at tick `current`."""
        self.level: int = level
        self.unit: int = unit
        self.size: int = size
        self.buckets: list[list[Bucket] | None] = [None] * size
        self.limit: int = (current // unit + size) * unit
        """The first tick that is too far ahead for this wheel."""
        self.floor: int = -(2**62)
        """The first tick that is too far ahead for the wheel below."""
        self.overflow: TimingWheel | None = None

    def __repr__(self) -> str:
        used = {slot: count for slot in range(self.size) if (count := self.count(slot))}
        return f"<TimingWheel level={self.level} unit={self.unit} size={self.size} limit={self.limit} used={used}>"

    def advance_to(self, current: int) -> None:
        """Let the hand point at the bucket of tick `current`. The buckets that it passes must have been emptied."""
        self.limit = (current // self.unit + self.size) * self.unit

    def slot(self, tick: int) -> int:
        """The index of the bucket for `tick`, which must lie between the hand and `limit`."""
        return tick // self.unit % self.size

    def start(self, tick: int) -> int:
        """The first tick of the bucket that `tick` falls into."""
        return tick - tick % self.unit

    def count(self, slot: int) -> int:
        """How many tasks are in the bucket at `slot`."""
        return sum(map(len, self.buckets[slot] or ()))


def _shown(  # pragma: no cover - where the core in C was built
    levels: Iterable[tuple[int, int, int, int, int, list[list[TimerEntry] | None]]],
) -> list[TimingWheel]:
    """The wheels of a timer in C, as of now."""
    wheels: list[TimingWheel] = []
    for level, unit, size, limit, floor, slots in levels:
        wheel = TimingWheel(level, unit, size, 0)
        wheel.limit, wheel.floor = limit, floor
        wheel.buckets = [None if tasks is None else [{id(task): task for task in tasks}] for tasks in slots]
        if wheels:
            wheels[-1].overflow = wheel
        wheels.append(wheel)
    return wheels


provide(shown_wheels=_shown)
