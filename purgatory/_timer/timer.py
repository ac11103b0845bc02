"""The hierarchy of wheels and the one `call_at` that drives it.

Any public call may come at any point, as with `loop.call_later`: a finalizer may call the timer after any C function
that the timer itself calls. So the steps are ordered such that everything that matters happens in blocks without a call
or a loop, marked *No call from here*; what was looked at before such a block is looked at again in it. `_epoch` counts
the changes that make a place in the rings stale, so that one comparison is enough.
"""

import asyncio
import math
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from heapq import heappop, heappush
from time import perf_counter
from typing import Any, Final, NoReturn, TypeVarTuple, Unpack

from purgatory._core.arguments import check_count, refuse_copy, seconds
from purgatory._core.clock import Clock, Handle, report
from purgatory._core.slices import SLICE_SECONDS, Slice, call_neutral
from purgatory._core.threads import check_loop
from purgatory._speedups import compiled, provide
from purgatory._timer.entry import Bucket, TimerEntry
from purgatory._timer.handle import TimerHandle
from purgatory._timer.wheel import TimingWheel

__all__ = ["TimerStatistics", "WheelTimer"]

Ts = TypeVarTuple("Ts")

_LONG: Final = 20_000
"""How many tasks a dict takes. One of this size grows within half a millisecond."""

_LAST: Final = 2**52
"""Ticks are counted up to this one. Beyond it, times as `float` are no longer finer than ticks of any length."""

_COARSE: Final = 0.001
"""The coarsest clock in use: uvloop's counts whole milliseconds."""

_RENEWAL: Final = 0.0001
"""Seconds at least between two times that the clock is armed anew."""

_NOT_ARMED: Final = math.inf
_AWAKE: Final = -math.inf


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """The contents of a `WheelTimer`, and its counts since it was made."""

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


provide(check_loop=check_loop, get_running_loop=asyncio.get_running_loop, slice_seconds=SLICE_SECONDS)


@compiled("WheelTimer")
class WheelTimer:
    """Runs `TimerTask`s at their deadlines: hierarchical timing wheels on a `Clock`, and a `Clock` itself.

    Tick `n` comes when the clock says `n / (1 / tick)`, exactly as these floats come out: for a tick of 0.001, tick 9
    comes at 0.009, where the product would be 0.009000000000000001. A deadline is a time of the clock in seconds and
    rounds up to a tick: a task never runs early, and late by less than a tick plus what the clock's own calls lag.

    Tasks run in order of their tick, those of one tick mostly in the order in which they came, in slices: after about a
    thousand tasks or a millisecond the loop gets an iteration. `add`, `cancel` and `reschedule` cost the same however
    many tasks wait.

    Not thread-safe, like everything on an event loop.
    """

    __slots__ = (
        "__weakref__",
        "_armed",
        "_buckets",
        "_cascaded",
        "_clock",
        "_current",
        "_dicts",
        "_drained",
        "_drained_level",
        "_epoch",
        "_handle",
        "_heap",
        "_keys",
        "_loop",
        "_lowest",
        "_rate",
        "_recent",
        "_renewed",
        "_tick",
        "_wake_ups",
        "_wheels",
        "due",
        "longest_slice",
    )

    def __init__(self, clock: Clock | None = None, *, tick: float = 0.001, wheel_size: int = 20) -> None:
        """Make a timer of `tick` seconds with `wheel_size` buckets on each level.

        Without a `clock` it is the event loop that runs when the first task is added. Raises `ValueError` unless
        `tick` is finite and at least 1e-6 and `wheel_size` at least 2, `TypeError` if they are no numbers.
        """
        self._tick = seconds("tick", tick, "positive")
        if self._tick < 1e-6:
            raise ValueError(f"tick must be a microsecond or more, in seconds, not {tick!r}")
        check_count("wheel_size", wheel_size, 2)
        if clock is not None and not (hasattr(clock, "time") and hasattr(clock, "call_at")):
            raise TypeError(f"clock must have time() and call_at(), as an event loop has: {clock!r} does not")
        if isinstance(clock, type):
            raise TypeError(f"clock must be an instance of a clock, not the class {clock.__qualname__}")
        self._clock = clock
        self._loop: AbstractEventLoop | None = clock if isinstance(clock, AbstractEventLoop) else None
        """The clock, if it is an event loop."""
        self._rate = 1 / self._tick
        self._make_wheels(wheel_size)

    def _make_wheels(self, wheel_size: int) -> None:
        clock = self._clock
        self._current = 0 if clock is None else self._now()
        self.due: float = self._current / self._rate
        """Tasks with a deadline up to this time of the clock are due, while such are being run."""
        self._lowest = TimingWheel(1, 1, wheel_size, self._current)
        self._wheels = [self._lowest]
        self._recent = self._lowest
        """The wheel of the last insert: as most timeouts are alike, it is most often that of the next one too."""
        # (first tick of a bucket, minus its level, its wheel): of two that start together the higher cascades first.
        # Every bucket in a ring is in the heap; an entry of the heap may be stale, with no bucket in its slot.
        self._heap: list[tuple[int, int, TimingWheel]] = []
        self._epoch = 0
        """Changes so far of the hands, the heap's top and the rings other than by new buckets."""
        self._handle: Handle | None = None
        self._armed: float = _NOT_ARMED
        """The tick for which the clock will call back."""
        # State of the drain in progress: dicts left (reversed), the current dict, its keys left (reversed).
        self._dicts: list[Bucket] = []
        self._drained: Bucket = {}
        self._keys: list[int] = []
        self._drained_level = 1
        self._wake_ups = 0
        self._renewed: int = -(2**62)
        """The tick at which the clock was last armed anew."""
        self._buckets = 0
        self._cascaded = 0
        self.longest_slice: float = 0.0
        """Seconds of the longest slice of work so far."""

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} tick={self._tick!r} tasks={len(self)} levels={len(self._wheels)}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_copy(self)

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
            self._clock = self._loop = asyncio.get_running_loop()
        return self._clock

    @property
    def wheels(self) -> tuple[TimingWheel, ...]:
        """The levels, the lowest first."""
        return tuple(self._wheels)

    def statistics(self) -> TimerStatistics:
        """The contents of the timer, and its counts so far."""
        levels = self._levels()
        return TimerStatistics(sum(levels), tuple(levels), self._wake_ups, self._buckets, self._cascaded)

    def add(self, task: TimerEntry, deadline: float) -> None:
        """Run `task` at `deadline`, on the clock's next iteration if that has passed.

        A deadline of 2**52 ticks or more (140,000 years at 1 ms) never comes, and the task does not wait for it.
        Raises `ValueError` if `deadline` is NaN or the task waits in a timer already, `PurgatoryMisuse` on another
        event loop than the timer's.
        """
        if self._loop is not None and not self._loop.is_running():
            check_loop(self, self._loop, "timer.add(task, deadline)")
        if deadline != deadline:
            raise ValueError(f"deadline must be a number of seconds, not {deadline!r}")
        # No call from here.
        if task._timer_bucket is None:
            task._timer_deadline = deadline
        # To here.
        if not self._place(task, deadline, None):
            raise ValueError(f"{task!r} waits in a timer already")

    def cancel(self, task: TimerEntry) -> bool:
        """Take `task` out, at once. Returns whether it was waiting."""
        number = id(task)
        # No call from here: the task is in the timer, or it is not.
        bucket = task._timer_bucket
        if bucket is None:
            return False
        task._timer_bucket = None
        del bucket[number]
        return True

    def reschedule(self, task: TimerEntry, deadline: float) -> None:
        """Move `task` to `deadline`, earlier or later than before, whether it was waiting or not. Raises as `add`.

        Within its bucket nothing moves.
        """
        if self._loop is not None and not self._loop.is_running():
            check_loop(self, self._loop, "timer.reschedule(task, deadline)")
        if deadline != deadline:
            raise ValueError(f"deadline must be a number of seconds, not {deadline!r}")
        is_placed = False
        while not is_placed:  # something may come in between and move it
            bucket = task._timer_bucket
            if bucket is None:
                task._timer_deadline = deadline
            is_placed = self._place(task, deadline, bucket)

    def time(self) -> float:
        """The clock's time, in seconds."""
        return self.clock.time()

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        """Call `callback(*args)` at `when`, as `loop.call_at` does but never early. Returns a handle to cancel it.

        It runs in `context`, or else in a copy of the present context. Raises as `add`.
        """
        if self._loop is not None and not self._loop.is_running():
            check_loop(self, self._loop, "timer.call_at(when, callback)")
        call = TimerHandle(when, callback, args, context)
        self._place(call, when, None)
        return call

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        """Call `callback(*args)` in `delay` seconds, as `loop.call_later` does but never early. Else as `call_at`."""
        # Not by way of call_at() and `clock`: their calls are saved.
        if self._loop is not None and not self._loop.is_running():
            check_loop(self, self._loop, "timer.call_later(delay, callback)")
        when = (self.clock if self._clock is None else self._clock).time() + delay
        call = TimerHandle(when, callback, args, context)
        self._place(call, when, None)
        return call

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Pass an exception that has no caller on to the clock's exception handler."""
        report(self._clock, **context)

    def _report_task(self, task: TimerEntry, exception: BaseException) -> None:
        report(self._clock, f"{type(task).__qualname__} raised at its deadline", exception, task=task)

    def new_slice(self) -> Slice:
        """Begin a slice of work, which ends by time too on an event loop."""
        return Slice(isinstance(self._clock, AbstractEventLoop))

    def note_slice(self, done: Slice) -> None:
        """A slice of work has ended."""
        took = done.seconds()
        if took > self.longest_slice:
            self.longest_slice = took

    def close(self) -> None:
        """Forget all tasks and leave the clock alone. The timer can be used again."""
        lowest = TimingWheel(1, 1, self._lowest.size, self._current)
        wheels = [lowest]
        heap: list[tuple[int, int, TimingWheel]] = []
        dicts: list[Bucket] = []
        drained: Bucket = {}
        keys: list[int] = []
        # No call from here: what comes while the old tasks are forgotten finds an empty timer.
        wheels, self._wheels = self._wheels, wheels
        dicts, self._dicts = self._dicts, dicts
        drained, self._drained = self._drained, drained
        self._lowest = self._recent = lowest
        self._heap, self._keys, self._drained_level = heap, keys, 1
        self._epoch += 1
        handle = None
        if self._armed != _AWAKE:
            handle, self._handle = self._handle, None
            self._armed = _NOT_ARMED
        # To here.
        if handle is not None:
            handle.cancel()
        _forget(drained)
        for bucket in dicts:
            _forget(bucket)
        for wheel in wheels:
            for slot in range(wheel.size):
                some = wheel.buckets[slot]
                wheel.buckets[slot] = None
                for bucket in some or ():
                    _forget(bucket)

    def _levels(self) -> list[int]:
        levels = [sum(map(wheel.count, range(wheel.size))) for wheel in self._wheels]
        levels[self._drained_level - 1] += len(self._drained) + sum(map(len, self._dicts))
        return levels

    def _now(self) -> int:
        """The last tick whose time has come."""
        now = self.clock.time()
        tick = int(now * self._rate) + 1
        if tick / self._rate > now:
            tick -= 1
        if tick / self._rate > now:
            tick -= 1
        return tick

    def _place(self, task: TimerEntry, deadline: float, expected: Bucket | None) -> bool:
        """Put `task` where `deadline` belongs. Returns `False` if something has come in between, and nothing was done.

        That is so if the task has left the dict `expected` or, where that is `None`, if it is in a timer or has another
        deadline: its own must be set before.
        """
        # The first tick whose time is not before the deadline.
        rate = self._rate
        try:
            tick = int(deadline * rate)
            if tick / rate < deadline:
                tick += 1
        except ValueError:
            raise ValueError(f"deadline must be a number of seconds, not {deadline!r}") from None
        except OverflowError:
            tick = _LAST if deadline > 0 else self._current
        number = id(task)
        if tick >= _LAST:  # never
            if task._timer_bucket is not expected:
                return False
            if expected is not None:
                task._timer_deadline = deadline
                task._timer_bucket = None
                del expected[number]
            return True
        while True:
            wheel = self._recent
            if not wheel.floor <= tick < wheel.limit:
                epoch = self._epoch
                wheel = self._lowest
                while tick >= wheel.limit:
                    wheel = wheel.overflow or self._grow(wheel, epoch)
                if epoch == self._epoch:  # else the wheel may be one that close() has replaced
                    self._recent = wheel
            # No call from here: a bucket that is in a ring is in the heap, and the clock is armed for it.
            if tick < self._current:
                tick = self._current
                wheel = self._lowest
            dicts = wheel.buckets[tick // wheel.unit % wheel.size]
            if dicts is None:
                self._open(tick, expected)
                continue
            bucket = dicts[0]
            if expected is None:
                if task._timer_bucket is not None or task._timer_deadline != deadline:
                    return False
                task._timer_bucket = bucket
                bucket[number] = task
            else:
                # In a cascade the task is in a dict that has left its ring: no look through the others.
                if expected is not bucket and dicts[-1] is not bucket and expected is not self._drained:
                    if _holds(dicts, expected):
                        bucket = expected
                    # A call was made: everything is looked at again.
                    if wheel.buckets[tick // wheel.unit % wheel.size] is not dicts or tick < self._current:
                        continue
                if task._timer_bucket is not expected:
                    return False
                task._timer_deadline = deadline
                if bucket is expected:
                    return True
                task._timer_bucket = bucket
                bucket[number] = task
                del expected[number]
            # To here.
            if len(bucket) >= _LONG:
                self._extend(dicts)
            return True

    def _extend(self, dicts: list[Bucket]) -> None:
        """Let another dict of a bucket take new tasks: one that most tasks have left, or else a further one.

        So memory is bounded by what is in the bucket, however much passes through it: a dict that is used again makes
        its table fit its contents when it grows.
        """
        fresh: Bucket = {}
        for _ in range(len(dicts)):
            if not dicts:
                return  # drained meanwhile
            bucket = dicts[-1]
            has_room = len(bucket) < _LONG // 2
            # No call from here to insert(): each dict is in the list once.
            if dicts and dicts[-1] is bucket:
                del dicts[-1]
                self._epoch += 1
                dicts.insert(0, bucket)
            if has_room:
                return
        if dicts:
            self._epoch += 1
            dicts.insert(0, fresh)

    def _grow(self, wheel: TimingWheel, epoch: int) -> TimingWheel:
        """Make the overflow wheel of `wheel`, which was found at `epoch`."""
        overflow = TimingWheel(wheel.level + 1, wheel.unit * wheel.size, wheel.size, self._current)
        more = [overflow]
        # No call from here: there is one overflow wheel. A stale one is not found again.
        if wheel.overflow is None and epoch == self._epoch:
            overflow.floor = wheel.limit
            wheel.overflow = overflow
            self._wheels += more
        return wheel.overflow or overflow

    def _raise_limits(self) -> None:
        """Let all wheels follow `_current`.

        Until then their limits are too low, which is harmless: tasks get into higher levels than they need to.
        """
        floor = self._lowest.floor
        for wheel in self._wheels:
            wheel.floor = floor
            wheel.limit = floor = (self._current // wheel.unit + wheel.size) * wheel.unit

    def _open(self, tick: int, expected: Bucket | None) -> None:
        """Put an empty bucket where `tick` belongs, for `_place`, unless something comes in between.

        An entry in the heap and an armed clock come first: a bucket in a ring always has both.
        """
        if self._loop is not None:
            call = "timer.add(task, deadline)" if expected is None else "timer.reschedule(task, deadline)"
            check_loop(self, self._loop, call)
        self._recent = self._lowest  # the caller must look where this does
        now = self._now()
        if self._armed < now and self._armed != _AWAKE and now - self._renewed > _RENEWAL * self._rate:
            self._renewed = now
            self._renew()
        heap = self._heap
        # No call from here to the limits: the hands may be far behind, because nothing has been due for a while.
        if (
            now > self._current
            and self._armed != _AWAKE
            and not self._keys
            and not self._dicts
            and (not heap or heap[0][0] > now)
        ):
            self._current = now
            self.due = now / self._rate
            self._epoch += 1
            self._raise_limits()
        epoch = self._epoch
        if tick < self._current:
            tick = self._current
        wheel = self._lowest
        while tick >= wheel.limit:
            wheel = wheel.overflow or self._grow(wheel, epoch)
        start = tick - tick % wheel.unit
        slot = tick // wheel.unit % wheel.size
        item = (start, -wheel.level, wheel)
        # No call from here: the wheel is one of this timer's still.
        if epoch != self._epoch:
            return
        heappush(self._heap, item)
        if start < self._armed:
            self._arm(start)
        fresh: list[Bucket] = [{}]
        # No call from here: nothing has moved the hands, looked at the heap or closed the timer since.
        if epoch == self._epoch and wheel.buckets[slot] is None:
            wheel.buckets[slot] = fresh

    def _arm(self, tick: int, not_before: float = -math.inf) -> None:
        """Have the clock call back at `tick`, unless it will earlier."""
        handle: Handle | None = call_neutral(self.clock, max(tick / self._rate, not_before), self._wake)
        # No call from here: of two handles the earlier one is kept.
        if tick < self._armed:
            handle, self._handle = self._handle, handle
            self._armed = tick
        # To here.
        if handle is not None:
            handle.cancel()

    def _wake(self) -> None:
        not_before = -math.inf
        try:  # around everything: a KeyboardInterrupt may come at any point
            armed, self._armed, self._handle = self._armed, _AWAKE, None
            self._epoch += 1
            self._wake_ups += 1
            part = self.new_slice()
            now = self._now()
            if now < armed:
                # A clock that calls early is not as fine as we asked it to be: asked again for the rest, uvloop would
                # call back at once, hundreds of times.
                not_before = self.clock.time() + _COARSE
            leaving = self._run_until(now, part)
        finally:
            self._armed = _NOT_ARMED
            try:
                self._arm_next(not_before)
            except (SystemExit, KeyboardInterrupt):
                self._arm_next(not_before)  # an interrupt must not stop all timers
                raise
        self.note_slice(part)
        if leaving is not None:
            raise leaving

    def _renew(self) -> None:
        """Arm the clock anew: its call is late, or a KeyboardInterrupt has hit it where it began."""
        handle, self._handle = self._handle, None
        self._armed = _NOT_ARMED
        assert handle is not None  # it was armed
        handle.cancel()
        self._arm_next()

    def _arm_next(self, not_before: float = -math.inf) -> None:
        """Arm the clock for the drain in progress or for the earliest bucket that has tasks. Empty ones are dropped."""
        while True:
            if self._keys or self._dicts:
                self._arm(self._current)
                return
            # No call from here to heappop(): a task that is added meanwhile is in a bucket that stays.
            heap = self._heap
            if not heap:
                return
            start, _, wheel = heap[0]
            slot = start // wheel.unit % wheel.size
            dicts = wheel.buckets[slot]
            if dicts is not None:
                if dicts[-1]:
                    self._arm(start, not_before)
                    return
                if dicts[-1] is not dicts[0]:
                    del dicts[-1]
                    self._epoch += 1
                    continue
                wheel.buckets[slot] = None  # all of its tasks have been cancelled: not worth a wake-up
            self._epoch += 1
            heappop(heap)

    def _run_until(self, now: int, part: Slice) -> BaseException | None:
        """Drain buckets in the order of their starts, up to tick `now` or the end of the slice.

        Returns a request to exit that a task has raised: the others of the slice run first.
        """
        leaving: BaseException | None = None
        left = part.left
        bounded = part.bounded
        ends = part.began + SLICE_SECONDS
        while True:
            drained = self._drained
            keys = self._keys
            runs = self._drained_level == 1
            while keys:
                number = keys[-1]
                # No call from here: the task is in the timer, or it is being run.
                if number not in drained:
                    del keys[-1]
                    continue  # cancelled or moved since the snapshot of the keys was taken
                task = drained[number]
                if runs:
                    del keys[-1]
                    task._timer_bucket = None
                    del drained[number]
                    # To here.
                    try:
                        task._timer_expire()
                    except (SystemExit, KeyboardInterrupt) as exception:
                        leaving = leaving or exception
                    except BaseException as exception:
                        self._report_task(task, exception)
                    # A traceback that is kept would keep this frame, and with it the task.
                    del task
                    # As part.is_over(), without its call: a tenth of what a task costs.
                    left -= 1
                    if left <= 0 or (bounded and perf_counter() >= ends):
                        return leaving
                else:
                    self._cascaded += 1
                    self._place(task, task._timer_deadline, drained)
                    del keys[-1], task  # an interrupt before leaves the key to the next wake-up
                    # As part.is_over_cheaply(), in the same way.
                    left -= 1
                    if left <= 0 or (bounded and not left & 63 and perf_counter() >= ends):
                        return leaving
            if self._dicts:
                drained = self._dicts[-1]
                keys = list(drained)
                keys.reverse()
                # No call from here: the dict and its keys are taken over together, or neither.
                if self._dicts and self._dicts[-1] is drained:  # pragma: no branch - not closed by a finalizer
                    self._drained = drained
                    self._keys = keys
                    del self._dicts[-1]
                continue
            heap = self._heap
            # No call from here to the limits: the hands move before anything can be added behind them.
            if heap and heap[0][0] <= now:
                due, start = True, heap[0][0]
            else:
                due, start = False, now
            if start > self._current:
                self._current = start
                self.due = start / self._rate
                self._epoch += 1
                self._raise_limits()
            if not due:
                return leaving
            heap = self._heap
            # No call from here: the bucket is in the ring, or it is being drained.
            if heap and heap[0][0] <= self._current:
                start, _, wheel = heap[0]
                slot = start // wheel.unit % wheel.size
                dicts = wheel.buckets[slot]
                if dicts is not None:
                    wheel.buckets[slot] = None
                    self._dicts = dicts
                    self._drained_level = wheel.level
                    self._buckets += 1
                self._epoch += 1
                heappop(heap)
                left -= 1
                if left <= 0 or (bounded and perf_counter() >= ends):
                    return leaving


def _holds(dicts: list[Bucket], bucket: Bucket) -> bool:
    """Whether `bucket` is one of `dicts`. A function, as its generator would make the variables of its caller
    slower.
    """
    return any(each is bucket for each in dicts)


def _forget(bucket: Bucket) -> None:
    """Take out all tasks of a dict that is in no ring any more."""
    for number in list(bucket):
        task = bucket.get(number)
        # No call from here.
        if task is not None and task._timer_bucket is bucket:
            task._timer_bucket = None
            del bucket[number]
