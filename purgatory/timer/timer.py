"""The hierarchy of wheels and the one `call_at` that drives it."""

import asyncio
import math
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from heapq import heappop, heappush
from time import perf_counter
from typing import Any, Final, TypeVarTuple, Unpack

from purgatory.clock import Clock, Handle, report
from purgatory.timer.task import Bucket, TimerTask
from purgatory.timer.wheel import TimingWheel

__all__ = ["SLICE", "TimerHandle", "TimerStatistics", "WheelTimer"]

Ts = TypeVarTuple("Ts")

SLICE: Final = 1000
"""How many entries are worked on before the loop gets its turn: about a millisecond of work."""

_LONG: Final = 20 * SLICE
"""How many tasks a dict takes. One of this size grows within half a millisecond."""

_LAST: Final = 2**52
"""Ticks are counted up to this one. Beyond it, times as `float` are no longer finer than ticks of any length."""

_COARSE: Final = 0.001
"""The coarsest clock in use: uvloop's counts whole milliseconds."""

_NOT_ARMED: Final = math.inf
_AWAKE: Final = -math.inf


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """What a `WheelTimer` holds and what it has done since it was made."""

    tasks: int
    """Tasks waiting now."""
    levels: tuple[int, ...]
    """Tasks waiting now on each level, the lowest first."""
    wake_ups: int
    """How often the clock called back."""
    buckets: int
    """Buckets emptied because their time had come."""
    cascaded: int
    """Tasks moved down from a higher level, once for each move."""


class TimerHandle(TimerTask):
    """A callback asked for by `WheelTimer.call_at` or `call_later`, with the methods of `asyncio.TimerHandle`."""

    __slots__ = ("args", "callback", "context", "timer")

    def __init__(self, timer: "WheelTimer", callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._bucket = None  # as super().__init__() does
        self._deadline = 0.0
        self.timer = timer
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = copy_context()

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else f"when={self._deadline!r}"
        return f"<TimerHandle {state}>"

    def when(self) -> float:
        """The time asked for, in seconds of the clock."""
        return self._deadline

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.callback is None

    def cancel(self) -> None:
        """Forget the callback, at once. Harmless when it has run or has been cancelled before."""
        self.timer.cancel(self)
        self.callback = None
        self.args = ()

    def run(self) -> None:
        assert self.callback is not None, "a cancelled call has left the timer"
        self.context.run(self.callback, *self.args)


class WheelTimer:
    """Runs `TimerTask`s at their deadlines: hierarchical timing wheels on a `Clock`, and a `Clock` itself.

    Tick `n` comes when the clock says `n / (1 / tick)`, exactly as these floats come out: for a tick of 0.001, tick 9
    comes at 0.009, where the product would be 0.009000000000000001. A deadline is a time of the clock in seconds and
    rounds up to a tick: a task never runs early, and late by less than a tick plus what the clock's own calls lag.

    Tasks run in order of their tick, those of one tick mostly in the order in which they came. At most about a thousand
    run before the loop gets a turn. `add`, `cancel` and `reschedule` cost the same however many tasks wait.

    Not thread-safe, like everything on an event loop.
    """

    __slots__ = (
        "_armed",
        "_buckets",
        "_cascaded",
        "_clock",
        "_context",
        "_current",
        "_dicts",
        "_drained",
        "_drained_level",
        "_handle",
        "_heap",
        "_keys",
        "_lowest",
        "_rate",
        "_tick",
        "_wake_ups",
        "_wheels",
        "longest_slice",
    )

    def __init__(self, clock: Clock | None = None, *, tick: float = 0.001, wheel_size: int = 20) -> None:
        """Make a timer of `tick` seconds with `wheel_size` buckets on each level.

        Without a `clock` it is the event loop that runs when the first task is added. Raises `ValueError` unless
        `tick` is finite and at least 1e-6 and `wheel_size` at least 2, `TypeError` if they are no numbers.
        """
        try:
            valid = 1e-6 <= tick < math.inf
        except TypeError:
            raise TypeError(f"tick must be a number of seconds, not {tick!r}") from None
        if not valid:
            raise ValueError(f"tick must be a microsecond or more, in seconds, not {tick!r}")
        if not isinstance(wheel_size, int):
            raise TypeError(f"wheel_size must be an int, not {type(wheel_size).__qualname__}")
        if wheel_size < 2:
            raise ValueError(f"wheel_size must be at least 2, not {wheel_size!r}")
        if clock is not None and not (hasattr(clock, "time") and hasattr(clock, "call_at")):
            raise TypeError(f"clock must have time() and call_at(), as an event loop has, which {clock!r} has not")
        self._clock = clock
        self._tick = float(tick)
        self._rate = 1 / self._tick
        # The clock copies the context of whoever arms it. That must not be the context of the request that happens to
        # be the earliest: its variables would be kept alive, and seen by the callbacks of all others.
        self._context: Context = copy_context()
        self._current = 0 if clock is None else self._now()
        self._lowest = TimingWheel(1, 1, wheel_size, self._current)
        self._wheels = [self._lowest]
        # (first tick of a bucket, minus its level, its wheel): of two that start together the higher cascades first.
        self._heap: list[tuple[int, int, TimingWheel]] = []
        self._handle: Handle | None = None
        self._armed: float = _NOT_ARMED
        # The bucket that is being drained: its dicts, the next one last, the one at hand, and the keys of that which
        # are still to be looked at, the next one last.
        self._dicts: list[Bucket] = []
        self._drained: Bucket = {}
        self._keys: list[int] = []
        self._drained_level = 1
        self._wake_ups = 0
        self._buckets = 0
        self._cascaded = 0
        self.longest_slice = 0.0
        """Seconds of the longest slice of work so far."""

    def __repr__(self) -> str:
        return f"<WheelTimer tick={self._tick!r} tasks={len(self)} levels={len(self._wheels)}>"

    def __len__(self) -> int:
        """How many tasks wait."""
        return sum(self._levels())

    @property
    def tick(self) -> float:
        """Seconds of a tick."""
        return self._tick

    @property
    def clock(self) -> Clock:
        """The clock; the running event loop, for good, if none was given. `RuntimeError` if there is none."""
        if self._clock is None:
            self._clock = asyncio.get_running_loop()
        return self._clock

    @property
    def wheels(self) -> tuple[TimingWheel, ...]:
        """The levels, the lowest first."""
        return tuple(self._wheels)

    def statistics(self) -> TimerStatistics:
        """What the timer holds and what it has done so far."""
        levels = self._levels()
        return TimerStatistics(sum(levels), tuple(levels), self._wake_ups, self._buckets, self._cascaded)

    def add(self, task: TimerTask, deadline: float) -> None:
        """Run `task` at `deadline`, on the clock's next turn if that has passed.

        A deadline of 2**52 ticks or more (140,000 years at 1 ms) never comes, and the task does not wait for it.
        Raises `ValueError` if `deadline` is NaN or the task waits in a timer already.
        """
        if task._bucket is not None:
            raise ValueError(f"{task!r} waits in a timer already")
        # The first tick whose time is not before the deadline.
        try:
            tick = int(deadline * self._rate)
            if tick / self._rate < deadline:
                tick += 1
        except ValueError:
            raise ValueError(f"deadline must be a number of seconds, not {deadline!r}") from None
        except OverflowError:
            tick = _LAST if deadline > 0 else self._current
        if tick >= _LAST:
            task._deadline = deadline
            return
        if tick < self._current:
            tick = self._current
        wheel = self._lowest
        while tick >= wheel.limit:
            wheel = wheel.overflow or self._grow(wheel)
        slot = tick // wheel.unit % wheel.size
        bucket = wheel.buckets[slot]
        if bucket is None:
            bucket = self._open(tick)
        elif len(bucket) >= _LONG:
            bucket = wheel.go_on(slot)
        task._deadline = deadline
        task._bucket = bucket
        bucket[id(task)] = task

    def cancel(self, task: TimerTask) -> bool:
        """Take `task` out, at once. Returns whether it was waiting."""
        bucket = task._bucket
        if bucket is None:
            return False
        del bucket[id(task)]
        task._bucket = None
        return True

    def reschedule(self, task: TimerTask, deadline: float) -> None:
        """Move `task` to `deadline`, earlier or later than before, whether it was waiting or not. Raises as `add`."""
        bucket = task._bucket
        task._bucket = None
        try:
            self.add(task, deadline)
        except BaseException:
            task._bucket = bucket
            raise
        if bucket is not None and bucket is not task._bucket:
            del bucket[id(task)]

    def time(self) -> float:
        """The clock's time, in seconds."""
        return self.clock.time()

    def call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> TimerHandle:
        """Call `callback(*args)` at `when`, as `loop.call_at` does but never early. Returns a handle to cancel it."""
        call = TimerHandle(self, callback, args)
        self.add(call, when)
        return call

    def call_later(self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> TimerHandle:
        """Call `callback(*args)` in `delay` seconds, as `loop.call_later` does but never early."""
        # Not by way of call_at() and `clock`: their calls are saved.
        call = TimerHandle(self, callback, args)
        self.add(call, (self.clock if self._clock is None else self._clock).time() + delay)
        return call

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Pass what nobody caught on to the clock's exception handler."""
        report(self._clock, **context)

    def note_slice(self, began: float) -> None:
        """A slice of work that began at `began`, of `time.perf_counter`, is over."""
        took = perf_counter() - began
        if took > self.longest_slice:
            self.longest_slice = took

    def close(self) -> None:
        """Forget all tasks and leave the clock alone. The timer can be used again."""
        for wheel in self._wheels:
            for slot in range(wheel.size):
                self._forget(wheel.take(slot))
        self._forget([*self._dicts, self._drained])
        self._dicts.clear()
        self._keys.clear()
        self._heap.clear()
        if self._armed != _AWAKE:
            self._disarm()

    def _levels(self) -> list[int]:
        levels = [sum(map(wheel.count, range(wheel.size))) for wheel in self._wheels]
        levels[self._drained_level - 1] += len(self._drained) + sum(map(len, self._dicts))
        return levels

    @staticmethod
    def _forget(buckets: list[Bucket]) -> None:
        for bucket in buckets:
            for task in bucket.values():
                task._bucket = None
            bucket.clear()

    def _find(self, tick: int) -> TimingWheel:
        wheel = self._lowest
        while tick >= wheel.limit:
            wheel = wheel.overflow or self._grow(wheel)
        return wheel

    def _grow(self, wheel: TimingWheel) -> TimingWheel:
        overflow = wheel.make_overflow(self._current)
        self._wheels.append(overflow)
        return overflow

    def _now(self) -> int:
        """The last tick whose time has come."""
        now = self.clock.time()
        tick = int(now * self._rate) + 1
        if tick / self._rate > now:
            tick -= 1
        if tick / self._rate > now:
            tick -= 1
        return tick

    def _turn_to(self, tick: int) -> None:
        if tick > self._current:
            self._current = tick
            for wheel in self._wheels:
                wheel.turn_to(tick)

    def _open(self, tick: int) -> Bucket:
        """Put an empty bucket where `tick` belongs, and see to it that the clock wakes us in time for it."""
        if self._armed != _AWAKE and not self._keys and not self._dicts:
            # The hands may be far behind, because nothing has been due for a while.
            now = self._now()
            if not self._heap or self._heap[0][0] > now:
                self._turn_to(now)
                tick = max(tick, now)
        wheel = self._find(tick)
        slot = wheel.slot(tick)
        assert wheel.buckets[slot] is None, "a bucket that the hands reach now was within reach before they moved"
        start = wheel.start(tick)
        if start < self._armed:
            self._arm(start)
        bucket: Bucket = {}
        wheel.buckets[slot] = bucket
        heappush(self._heap, (start, -wheel.level, wheel))
        return bucket

    def _arm(self, tick: int, not_before: float = -math.inf) -> None:
        when = max(tick / self._rate, not_before)
        handle = self._context.run(self.clock.call_at, when, self._wake)
        self._disarm()
        self._handle = handle
        self._armed = tick

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None
        self._armed = _NOT_ARMED

    def _wake(self) -> None:
        began = perf_counter()
        now = self._now()
        # A clock that calls early is not as fine as we asked it to be: asked again for the rest, uvloop would call back
        # at once, hundreds of times.
        not_before = self.clock.time() + _COARSE if now < self._armed else -math.inf
        self._handle = None
        self._armed = _AWAKE
        self._wake_ups += 1
        try:
            self._run_until(now)
        finally:
            self._armed = _NOT_ARMED
            self._arm_next(not_before)
            self.note_slice(began)

    def _arm_next(self, not_before: float) -> None:
        if self._keys or self._dicts:
            self._arm(self._current)
            return
        heap = self._heap
        while heap:
            start, _, wheel = heap[0]
            slot = wheel.slot(start)
            if wheel.count(slot):
                self._arm(start, not_before)
                return
            # All of its tasks have been cancelled: not worth a wake-up.
            wheel.take(slot)
            heappop(heap)

    def _run_until(self, now: int) -> None:
        """Drain buckets in the order of their starts, up to tick `now` or a slice."""
        budget = self._drain(SLICE)
        heap = self._heap
        while budget > 0:
            if self._dicts:
                self._drained = self._dicts.pop()
                self._keys = list(self._drained)
                self._keys.reverse()
            elif heap and heap[0][0] <= now:
                start, _, wheel = heappop(heap)
                self._turn_to(start)
                self._buckets += 1
                self._drained_level = wheel.level
                self._dicts = wheel.take(wheel.slot(start))
                self._dicts.reverse()
            else:
                self._turn_to(now)
                return
            budget = self._drain(budget - 1)

    def _drain(self, budget: int) -> int:
        """Run the tasks of the dict at hand, or put them into lower levels. Returns what is left of the budget."""
        keys = self._keys
        bucket = self._drained
        runs = self._drained_level == 1
        while keys and budget > 0:
            budget -= 1
            task = bucket.pop(keys.pop(), None)
            if task is None:
                continue  # cancelled or moved since the snapshot was taken
            task._bucket = None
            if runs:
                try:
                    task.run()
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as exception:
                    report(self._clock, f"{type(task).__qualname__}.run() raised", exception, task=task)
            else:
                self._cascaded += 1
                self.add(task, task._deadline)
            # A traceback that somebody keeps would keep this frame, and with it the task.
            del task
        return budget
