"""The wheels of a timer, and the heap of their buckets: the code that runs for every task and every bucket.

The order of steps is always the same. A change reads the clock first, then it changes the structure without a call to
the outside, and it arms the clock last. So the clock and the tasks find the structure whole, whatever they call.

A handler of a signal may raise at any call of a function. So a task enters its new bucket, gets its deadline and its
bucket, and leaves the old bucket in this order, in stores without a call. For a moment it is in two buckets, and its
own `_timer_bucket` says which of them counts.
"""

import math
from asyncio import AbstractEventLoop
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from purgatory._loop.arguments import check_time, refuse_task
from purgatory._loop.clock import Clock
from purgatory._loop.slices import Slice
from purgatory._loop.threads import LOST, check_loop, running_loop
from purgatory._timer.entry import TimerEntry

__all__ = ["AWAKE", "NOT_ARMED", "TimerBase", "TimingWheel"]

NOT_ARMED: Final = math.inf
AWAKE: Final = -math.inf
"""The timer is running tasks. It arms the clock when it has finished."""

LAST: Final = 2**52
"""The last tick that is counted. Beyond it, a `float` can no longer tell two ticks of any length apart."""


class Bucket(dict[int, TimerEntry]):
    """The entries of one bucket by `id`, in the order of arrival. A task may define any equality."""

    __slots__ = ("loop",)

    def __init__(self, loop: AbstractEventLoop | None) -> None:
        super().__init__()
        self.loop: AbstractEventLoop | None = loop
        """The loop of its timer, in whose thread a task must be taken out."""


class Wheel:
    """One level: a ring of `size` buckets of `unit` ticks each. It reaches `size` buckets ahead of the current one."""

    __slots__ = ("buckets", "level", "limit", "overflow", "size", "unit")

    def __init__(self, level: int, unit: int, size: int, current: int) -> None:
        self.level = level
        self.unit = unit
        self.size = size
        self.buckets: list[Bucket | None] = [None] * size
        self.overflow: Wheel | None = None
        self.turn(current)

    def turn(self, current: int) -> None:
        """Move the hand to the bucket of tick `current`. The buckets that it passes must be empty."""
        self.limit = (current // self.unit + self.size) * self.unit

    def slot(self, tick: int) -> int:
        """Return the index of the bucket for `tick`, which must lie between the hand and `limit`."""
        return tick // self.unit % self.size


class TimerBase:
    """Hierarchical timing wheels, and a heap of their buckets.

    The timer that users see relies on the methods here and on these attributes:

        _clock, _loop                  the clock, and the same if it is an event loop; `None` until it is known
        _rate, _current                ticks per second, and the tick up to which everything has been run
        _armed                         the tick for which the clock will call back, `NOT_ARMED` or `AWAKE`
        _cascaded, _drained_buckets    counts of tasks and of buckets
        _now(), _place(task, deadline), _drain(now, slice_), _next_tick(), _levels(), _forget_all()

    It defines `_arm(tick)`, `_renew()` and `_report_task(task, exception)`, which are called here.
    """

    def __init__(self, clock: Clock | None, rate: float, wheel_size: int) -> None:
        if getattr(self, "_heap", None) or getattr(self, "_drained", None):
            raise RuntimeError("cannot initialize a timer again while tasks wait in it")
        self._clock = clock
        self._loop = clock if isinstance(clock, AbstractEventLoop) else None
        self._rate = rate
        self._armed: float = NOT_ARMED
        self._current = 0
        if clock is not None:
            self._current = self._now()
        self._lowest = Wheel(1, 1, wheel_size, self._current)
        # (first tick, minus the level, the wheel) of each bucket in a ring. If two start together, the bucket on the
        # higher level comes first, because its tasks cascade into the other one.
        self._heap: list[tuple[int, int, Wheel]] = []
        # The bucket that is being emptied, which is in no ring any more, and its remaining keys in reverse order.
        self._drained: Bucket = Bucket(None)
        self._keys: list[int] = []
        self._drained_level = 1
        self._drained_buckets = 0
        self._cascaded = 0

    def add(self, task: TimerEntry, deadline: float) -> None:
        """Run `task` at `deadline`, or on the clock's next iteration if that has passed.

        Args:
            task: A task that waits in no timer.
            deadline: A time of the clock, in seconds. A time of 2**52 ticks or more (140,000 years at 1 ms) never
                comes, and the task does not wait for it.

        Raises:
            ValueError: `deadline` is NaN, or the task waits in a timer already.
            TypeError: `task` is not a `TimerTask`, or its `__init__` did not call `super().__init__()`.
            PurgatoryMisuse: The timer belongs to another event loop or thread.
        """
        check_loop(self, self._loop, "timer.add(task, deadline)")
        _check_task(task)
        check_time("deadline", deadline)
        self._place(task, deadline, is_new=True)

    def cancel(self, task: TimerEntry) -> bool:
        """Take `task` out of the timer, at once. Return whether it was waiting.

        Raises:
            TypeError: `task` is not a `TimerTask`, or its `__init__` did not call `super().__init__()`.
            PurgatoryMisuse: The timer belongs to another event loop or thread.
        """
        check_loop(self, self._loop, "timer.cancel(task)")
        _check_task(task)
        self._check_leave(task, "timer.cancel(task)")
        return task._timer_leave()

    def reschedule(self, task: TimerEntry, deadline: float) -> None:
        """Move `task` to `deadline`, earlier or later than before, whether it waits or not. Raises as `add`.

        The deadline is a time of the clock, in seconds.
        """
        check_loop(self, self._loop, "timer.reschedule(task, deadline)")
        _check_task(task)
        self._check_leave(task, "timer.reschedule(task, deadline)")
        check_time("deadline", deadline)
        self._place(task, deadline)

    def _check_leave(self, task: TimerEntry, call: str) -> None:
        """Refuse the call if the task waits in a timer of another loop or thread."""
        bucket = task._timer_bucket
        if bucket is not None and bucket.loop is not self._loop:
            check_loop(self, bucket.loop, call)

    def _place(self, task: TimerEntry, deadline: float, is_new: bool = False) -> None:
        """Put `task` into the bucket of `deadline`. If the clock raises, the task is where it was before."""
        tick = self._tick(deadline)
        start, bucket = self._find(tick) if self._current <= tick < LAST else (tick, None)
        if bucket is None and tick < LAST:
            if self._armed != AWAKE:
                self._catch_up()
            start, bucket = self._find(tick, make=True)
        # The clock was the last call out, so nothing else changes until it is armed.
        old, before, key = task._timer_bucket, task._timer_deadline, id(task)
        if is_new and old is not None:
            raise ValueError(f"{task!r} waits in a timer already: call reschedule() to move it")
        if bucket is not None:
            bucket[key] = task
        task._timer_deadline, task._timer_bucket = deadline, bucket
        try:
            if old is not None and old is not bucket:
                old.pop(key, None)
            if bucket is not None and start < self._armed:
                self._arm(start)
        except BaseException:
            if task._timer_bucket is bucket:  # else the clock has moved it
                task._timer_leave()
                task._timer_deadline = before
                if old is not None:  # the clock is armed for that time already
                    self._enter(task)
            raise

    def _enter(self, task: TimerEntry) -> None:
        """Put a task that is in no bucket into that of its deadline, without arming the clock."""
        _, bucket = self._find(self._tick(task._timer_deadline), make=True)
        assert bucket is not None
        bucket[id(task)] = task
        task._timer_bucket = bucket

    def _tick(self, deadline: float) -> int:
        """Return the first tick whose time is not before `deadline`, or at least `LAST` if it never comes."""
        try:
            tick = int(deadline * self._rate)
        except OverflowError:
            return LAST if deadline > 0 else -LAST
        return tick + 1 if tick / self._rate < deadline else tick

    def _now(self) -> int:
        """Return the last tick whose time has come. The clock may call anything."""
        if self._clock is None:
            self._clock = self._loop = running_loop(self, None, "")
        now = self._clock.time()
        tick = int(now * self._rate) + 1
        while tick / self._rate > now:
            tick -= 1
        return tick

    def _reaching(self, tick: int) -> Wheel:
        """Return the lowest wheel that reaches `tick`."""
        wheel = self._lowest
        while tick >= wheel.limit:
            if wheel.overflow is None:
                wheel.overflow = Wheel(wheel.level + 1, wheel.unit * wheel.size, wheel.size, self._current)
            wheel = wheel.overflow
        return wheel

    def _find(self, tick: int, make: bool = False) -> tuple[int, Bucket | None]:
        """Return the first tick of the bucket for `tick`, and the bucket if it exists or is made now.

        The bucket for a tick that has passed is the present one.
        """
        if tick < self._current:
            tick = self._current
        wheel = self._reaching(tick)
        start = tick - tick % wheel.unit
        slot = wheel.slot(tick)
        bucket = wheel.buckets[slot]
        if bucket is None and make:
            bucket = wheel.buckets[slot] = Bucket(self._loop)
            heappush(self._heap, (start, -wheel.level, wheel))
        return start, bucket

    def _catch_up(self) -> None:
        """Move the hands to the clock's time: far behind if no task has run for a while, ahead if time went back."""
        now = self._now()
        is_ahead = now < self._current
        if is_ahead:
            self._turn_back(now)
        if self._armed != NOT_ARMED and (is_ahead or self._armed < now - LOST * self._rate):
            self._renew()
        if now > self._current and not self._drained and not (self._heap and self._heap[0][0] <= now):
            self._turn(now)

    def _turn_back(self, now: int) -> None:
        """Turn the hands back to `now`, as the clock did, and place each task again."""
        tasks = self._take_all(now)
        try:
            for task in tasks:
                self._enter(task)
        finally:
            for task in tasks:  # once more, because a signal's handler may have raised
                self._enter(task)

    def _turn(self, current: int) -> None:
        self._current = current
        wheel: Wheel | None = self._lowest
        while wheel is not None:
            wheel.turn(current)
            wheel = wheel.overflow

    def _drain(self, now: int, slice_: Slice) -> None:
        """Empty the buckets up to tick `now` in the order of their starts, until the slice ends.

        A task's request to exit ends it too. The bucket keeps what has not run.
        """
        if now < self._current:
            self._turn_back(now)
        is_over = False
        while not is_over:
            if self._keys:
                self._drain_next(self._keys[-1])
                is_over = slice_.is_over()
            elif self._heap and self._heap[0][0] <= now:
                self._begin_to_drain(*self._heap[0])
                is_over = slice_.is_over()
            else:
                self._turn(max(now, self._current))
                self._drained = Bucket(None)  # a dict that has been emptied keeps its memory
                is_over = True

    def _begin_to_drain(self, start: int, _: int, wheel: Wheel) -> None:
        """Take the first bucket out of its ring and of the heap."""
        self._turn(max(start, self._current))
        slot = wheel.slot(start)
        bucket = wheel.buckets[slot]
        assert bucket is not None
        # A snapshot, because taking the first one out of a dict again and again is quadratic.
        keys = list(reversed(bucket))
        # No call in these stores.
        self._drained, self._keys = bucket, keys
        self._drained_level = wheel.level
        self._drained_buckets += 1
        wheel.buckets[slot] = None
        heappop(self._heap)

    def _drain_next(self, key: int) -> None:
        """Run the task of `key`, the last one in `_keys`, or place it again if its bucket was on a higher level."""
        drained = self._drained
        task = drained.get(key)
        if task is None or task._timer_bucket is not drained:
            del self._keys[-1]  # it was cancelled, or moved
        elif self._drained_level > 1:
            self._place(task, task._timer_deadline)
            self._cascaded += 1
            del self._keys[-1]
        else:
            del self._keys[-1]
            try:
                task._timer_expire()
            except BaseException as exception:
                if task._timer_bucket is drained:  # it was interrupted before it had begun
                    self._keys.append(key)
                if isinstance(exception, (SystemExit, KeyboardInterrupt)):
                    raise
                self._report_task(task, exception)

    def _next_tick(self) -> int | None:
        """Return the tick for which to arm the clock, if there are tasks. Drop the empty buckets before it."""
        if self._drained:
            return self._current
        while self._heap:
            start, _, wheel = self._heap[0]
            slot = wheel.slot(start)
            if wheel.buckets[slot]:
                return start
            wheel.buckets[slot] = None  # all of its tasks have been cancelled: not worth a wake-up
            heappop(self._heap)
        return None

    def _levels(self) -> list[tuple[int, list[int], int]]:
        """Return the unit of each level, the tasks in each of its buckets, and all of its tasks."""
        levels: list[tuple[int, list[int], int]] = []
        wheel: Wheel | None = self._lowest
        while wheel is not None:
            counts = [0 if bucket is None else len(bucket) for bucket in wheel.buckets]
            drained = len(self._drained) if self._drained_level == wheel.level else 0
            levels.append((wheel.unit, counts, sum(counts) + drained))
            wheel = wheel.overflow
        return levels

    def _forget_all(self) -> None:
        """Forget all tasks, and return to the initial state."""
        for task in self._take_all(self._current):
            task._timer_leave()

    def _take_all(self, current: int) -> list[TimerEntry]:
        """Forget all buckets, and turn the hands to tick `current`. Return the tasks, which still refer to buckets."""
        buckets = [self._drained]
        buckets += [wheel.buckets[wheel.slot(start)] or Bucket(None) for start, _, wheel in self._heap]
        tasks = [task for bucket in buckets for task in bucket.values() if task._timer_bucket is bucket]
        lowest, drained = Wheel(1, 1, self._lowest.size, current), Bucket(None)
        # No call in these stores.
        self._current, self._lowest, self._heap = current, lowest, []
        self._drained, self._keys = drained, []
        return tasks

    if TYPE_CHECKING:  # what WheelTimer defines

        def _arm(self, tick: int) -> None: ...
        def _renew(self) -> None: ...
        def _report_task(self, task: TimerEntry, exception: BaseException) -> None: ...


def _check_task(task: object) -> None:
    if not isinstance(task, TimerEntry) or not hasattr(task, "_timer_bucket") or not task._timer_is_task:
        refuse_task(task)


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import TimerBase


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
