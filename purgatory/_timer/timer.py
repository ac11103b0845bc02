"""The timer that users see, and the single `call_at` that drives it."""

import math
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, TypeVarTuple, Unpack, cast

from purgatory._loop.arguments import check_callable, check_count, check_time, seconds
from purgatory._loop.clock import Clock, Handle, report
from purgatory._loop.closing import Unique
from purgatory._loop.errors import PurgatoryMisuse
from purgatory._loop.slices import Slice, call_neutral
from purgatory._loop.threads import check_loop, running_loop
from purgatory._timer.entry import TimerEntry, TimerHandle
from purgatory._timer.wheels import AWAKE, NOT_ARMED, TimerBase, TimingWheel

Ts = TypeVarTuple("Ts")

_AT_ONCE: Final = -math.inf
_COARSE: Final = 0.001
"""The coarsest clock in use: uvloop's counts whole milliseconds."""


def is_of_a_loop(clock: Clock | None) -> bool:
    """Return whether `clock` is an event loop, or will be, or a timer on one."""
    while isinstance(clock, WheelTimer):
        clock = clock._clock
    return clock is None or isinstance(clock, AbstractEventLoop)


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """The contents of a `WheelTimer` now, and its counts since it was made.

    For example:

        statistics = purgatory.timer.statistics()
        print(statistics.tasks, statistics.wake_ups)
    """

    tasks: int
    """Tasks waiting now."""
    levels: tuple[int, ...]
    """Tasks waiting now on each level, from the lowest up."""
    wake_ups: int
    """How often the clock has called back."""
    buckets: int
    """Buckets emptied at their time."""
    cascaded: int
    """Tasks moved down from a higher level, once for each move."""


class WheelTimer(TimerBase, Unique):
    """Runs tasks at their deadlines, on a single timer of a `Clock`. It is a `Clock` itself.

    It uses the hierarchical timing wheels of G. Varghese and A. Lauck (1987), so `add`, `cancel` and `reschedule` cost
    the same however many tasks wait.

        timer = WheelTimer()
        handle = timer.call_later(5.0, print, "five seconds later")
        handle.cancel()

    Tick `n` comes at the clock's time `n / (1 / tick)`, computed with floats. So for a tick of 0.001, tick 9 comes at
    0.009, while the product would be 0.009000000000000001. A deadline is a time of the clock in seconds, and rounds up
    to a tick. So a task never runs early, and it runs less than one tick late, plus the loop's lag.

    Tasks run in the order of their ticks, and mostly in the order of their arrival within a tick. They run in slices:
    after about a thousand tasks or a millisecond, the loop gets an iteration.

    A timer belongs to one event loop and its thread. Calls from another one raise `PurgatoryMisuse`.
    """

    def __init__(self, clock: Clock | None = None, *, tick: float = 0.001, wheel_size: int = 20) -> None:
        """Make a timer.

        Args:
            clock: The clock. By default, the event loop that runs when the first task is added.
            tick: The length of a tick in seconds, at least a microsecond.
            wheel_size: The number of buckets on each level, at least 2.

        Raises:
            ValueError: A value is out of range.
            TypeError: A value is of the wrong type.
        """
        self._tick_seconds = seconds("tick", tick, "positive")
        if self._tick_seconds < 1e-6:
            raise ValueError(f"tick must be at least 1e-06 seconds, not {tick!r}")
        check_count("wheel_size", wheel_size, 2)
        if clock is not None and not (hasattr(clock, "time") and hasattr(clock, "call_at")):
            raise TypeError(f"clock must be an object with time() and call_at(), such as an event loop, not {clock!r}")
        if isinstance(clock, type):
            raise TypeError(
                f"clock must be an instance, not the class {clock.__qualname__}: pass {clock.__qualname__}(...)"
            )
        self._handle: Handle | None = None
        self._wake_ups = 0
        self._is_owned = False
        """Whether it belongs to a purgatory, which alone may close it."""
        self.longest_slice: float = 0.0
        """The longest slice of work so far, in seconds."""
        super().__init__(clock, 1 / self._tick_seconds, wheel_size)

    def _purgatory_describe(self) -> str:
        return f"tick={self.tick!r} tasks={len(self)} levels={len(self._levels())}"

    def __len__(self) -> int:
        """Return how many tasks wait."""
        return sum(tasks for _, _, tasks in self._levels())

    @property
    def tick(self) -> float:
        """The length of a tick, in seconds."""
        return self._tick_seconds

    @property
    def clock(self) -> Clock:
        """The clock. Defaults to the running loop, fixed on first use. Raises `RuntimeError` if no loop runs."""
        if self._clock is None:
            self._clock = self._loop = running_loop(self, None, "")
        return self._clock

    @property
    def wheels(self) -> tuple[TimingWheel, ...]:
        """The levels as they are now, from the lowest up."""
        levels = enumerate(self._levels(), start=1)
        return tuple(TimingWheel(level, unit, tuple(counts)) for level, (unit, counts, _) in levels)

    def statistics(self) -> TimerStatistics:
        """Return the contents of the timer now, and its counts so far."""
        tasks = tuple(tasks for _, _, tasks in self._levels())
        return TimerStatistics(sum(tasks), tasks, self._wake_ups, self._drained_buckets, self._cascaded)

    def time(self) -> float:
        """Return the clock's time, in seconds."""
        return self.clock.time()

    def add_later(self, task: TimerEntry, delay: float) -> None:
        """Run `task` in `delay` seconds, as `add` does at a time of the clock.

        Raises:
            ValueError: `delay` is NaN, or the task waits in a timer already.
            TypeError: `task` is not a `TimerTask`, or `delay` is not a number.
            PurgatoryMisuse: The timer belongs to another event loop or thread.
        """
        check_loop(self, self._loop, "timer.add_later(task, delay)")
        check_time("delay", delay)
        self.add(task, self.time() + delay)

    def reschedule_later(self, task: TimerEntry, delay: float) -> None:
        """Move `task` to `delay` seconds from now, as `reschedule` does to a time of the clock.

        Raises:
            ValueError: `delay` is NaN.
            TypeError: `task` is not a `TimerTask`, or `delay` is not a number.
            PurgatoryMisuse: The timer belongs to another event loop or thread.
        """
        check_loop(self, self._loop, "timer.reschedule_later(task, delay)")
        check_time("delay", delay)
        self.reschedule(task, self.time() + delay)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        """Call `callback(*args)` at `when`, as `loop.call_at` does but never early.

        Args:
            when: A time of the clock, in seconds.
            callback: The function to call.
            args: Its arguments.
            context: The context to run it in. By default, a copy of the present one.

        Returns:
            A handle to cancel the call.

        Raises:
            ValueError: `when` is NaN.
            TypeError: `when` is not a number, or `callback` is not callable.
            PurgatoryMisuse: The timer belongs to another event loop or thread.
        """
        check_loop(self, self._loop, "timer.call_at(when, callback)")
        check_time("when", when)
        return self._call_at(when, callback, args, context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        """Call `callback(*args)` in `delay` seconds, as `loop.call_later` does but never early.

        The other arguments, the handle and the errors are those of `call_at`.
        """
        check_loop(self, self._loop, "timer.call_later(delay, callback)")
        check_time("delay", delay)
        return self._call_at(self.time() + delay, callback, args, context)

    def _call_at(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> TimerHandle:
        check_callable("callback", callback)
        handle = TimerHandle(self, callback, args, context)
        self.add(handle, when)
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Pass an exception that has no caller on to the clock's exception handler."""
        report(self._clock, **context)

    def new_slice(self) -> Slice:
        """Begin a slice of work. On an event loop, it ends after some time too."""
        return Slice(is_of_a_loop(self._clock))

    def note_slice(self, slice_: Slice) -> None:
        """Note the end of a slice of work, for `longest_slice`."""
        self.longest_slice = max(self.longest_slice, slice_.seconds())

    def close(self) -> None:
        """Forget all tasks and cancel the call of the clock. The timer can be used again.

        Raises:
            PurgatoryMisuse: The timer belongs to a purgatory, or to another event loop or thread.
        """
        check_loop(self, self._loop, "timer.close()")
        if self._is_owned:
            raise PurgatoryMisuse(f"{self!r} runs the deadlines of a purgatory: call purgatory.close() instead")
        self._close()

    def _close(self) -> None:
        handle = None
        if self._armed != AWAKE:
            handle, self._handle = self._handle, None
            self._armed = NOT_ARMED
        self._forget_all()
        if handle is not None:
            handle.cancel()

    def _report_task(self, task: TimerEntry, exception: BaseException) -> None:
        report(self._clock, f"{type(task).__qualname__} raised at its deadline", exception, task=task)

    def _arm(self, tick: int, not_before: float = _AT_ONCE) -> None:
        """Arm the clock for `tick`, unless it will call back earlier."""
        handle: Handle | None = call_neutral(self.clock, max(tick / self._rate, not_before), self._wake)
        # The clock may have called anything. If there are two handles, keep the earlier one.
        if tick < self._armed:
            handle, self._handle = self._handle, handle
            self._armed = tick
        if handle is not None:
            handle.cancel()

    def _arm_next(self, not_before: float = _AT_ONCE) -> None:
        tick = self._next_tick()
        if tick is not None:
            self._arm(tick, not_before)

    def _renew(self) -> None:
        """Arm the clock again, because its call is late or a `KeyboardInterrupt` has hit the call at its beginning."""
        handle, self._handle = cast(Handle, self._handle), None
        armed, self._armed = self._armed, NOT_ARMED
        try:
            self._arm_next()
        except BaseException:
            self._handle, self._armed = handle, armed
            raise
        handle.cancel()

    def _wake(self) -> None:
        """Run the tasks whose time has come. Called by the clock. A request to exit leaves the rest for later."""
        not_before = _AT_ONCE
        try:  # around everything: a KeyboardInterrupt may come at any point, and must not stop all timers
            armed, self._armed, self._handle = self._armed, AWAKE, None
            self._wake_ups += 1
            slice_ = self.new_slice()
            now = self._now()
            if now < armed:
                # A clock that calls early is coarser than the ticks. If uvloop were asked for the rest, it would call
                # back at once, hundreds of times.
                not_before = self.time() + _COARSE
            self._drain(now, slice_)
            self.note_slice(slice_)
        finally:
            self._armed = NOT_ARMED
            try:
                self._arm_next(not_before)
            except BaseException:  # perhaps of a signal's handler
                self._arm_next(not_before)
                raise
