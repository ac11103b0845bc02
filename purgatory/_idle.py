"""Finding keys that have been idle for too long: connections, sessions, members.

Each tracked key has one task in a timer. A touch notes the time and leaves the task where it is. When the task runs,
it reads the time of the last touch, and waits for the rest of the timeout. So the timer works once per timeout, and not
at each touch.
"""

import asyncio
import math
from asyncio import AbstractEventLoop
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from purgatory._loop.arguments import check_callback, seconds
from purgatory._loop.clock import Clock, report
from purgatory._loop.closing import Unique
from purgatory._loop.errors import PurgatoryClosed
from purgatory._loop.threads import check_loop
from purgatory._timer import TimerTask, WheelTimer

K = TypeVar("K", bound=Hashable)


class _Tracked(TimerTask, Generic[K]):
    """A tracked key."""

    __slots__ = ("_tracker", "due", "key", "seen", "timeout")

    def __init__(self, tracker: "IdleTracker[K]", key: K, seen: float, timeout: float) -> None:
        super().__init__()
        self.due = -math.inf
        """The time at which the task runs, once it is in the timer."""
        self._tracker = tracker
        self.key = key
        self.seen = seen
        """The time of the last touch."""
        self.timeout = timeout

    def run(self) -> None:
        self._tracker._look(self)


class IdleTracker(Unique, Generic[K]):
    """Finds the keys that have not been touched for `timeout` seconds, such as connections, sessions and leases.

        tracker = IdleTracker(30.0, on_idle=close_it)
        tracker.touch(connection)      # on arrival, and at each sign of life
        tracker.discard(connection)    # it has left on its own

    Without `on_idle`, iterate with `async for key in tracker`, which ends when the tracker is closed. A key that has
    become idle is no longer tracked. It is never found early, and less than one tick late, plus the loop's lag. A
    tracker belongs to one event loop and its thread.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_closed",
        "_idle",
        "_loop",
        "_on_idle",
        "_timeout",
        "_tracked",
        "_waiters",
        "timer",
    )

    def __init__(
        self,
        timeout: float,
        on_idle: Callable[[K], object] | None = None,
        *,
        tick: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make a tracker without keys.

        Args:
            timeout: Seconds without a touch after which a key is idle.
            on_idle: Called with each idle key. Its exceptions go to the event loop's exception handler.
            tick: The bound of the lateness, in seconds. By default, a hundredth of the timeout, which is coarse for
                keys with much shorter timeouts of their own: at 300 s, a key of 6 s would be up to 3 s late.
            clock: The clock. By default, the tracker belongs to the event loop that runs at the first touch.

        Raises:
            ValueError: `timeout` is not positive and finite, or `tick` is less than a microsecond.
            TypeError: A value is of the wrong type, or `on_idle` is `async`.
        """
        self._timeout = seconds("timeout", timeout, "positive")
        if on_idle is not None:
            check_callback("on_idle", on_idle)
        # With a tick of a hundredth one wheel reaches as far as the timeout, so that nothing cascades.
        tick = max(self._timeout / 100, 1e-6) if tick is None else tick
        self.timer: WheelTimer = WheelTimer(clock, tick=tick, wheel_size=128)
        """The timer, for its statistics."""
        self._on_idle = on_idle
        self._clock: Clock = self.timer
        """The clock itself, once it is known."""
        self._loop = clock if isinstance(clock, AbstractEventLoop) else None
        self._tracked: dict[K, _Tracked[K]] = {}
        self._idle: OrderedDict[K, None] = OrderedDict()
        """Idle keys that the iteration has not yielded yet, in order."""
        self._waiters: list[asyncio.Future[None]] = []
        """The futures of the iterations that wait for an idle key, or for the end."""
        self._closed = False

    def _purgatory_describe(self) -> str:
        return f"timeout={self._timeout!r} tracked={len(self)}{' closed' * self._closed}"

    def __len__(self) -> int:
        """Return the number of tracked keys."""
        return len(self._tracked)

    @property
    def timeout(self) -> float:
        """Seconds without a touch after which a key is idle that has no timeout of its own."""
        return self._timeout

    def __iter__(self) -> Iterator[K]:
        """Iterate over the tracked keys, from the longest tracked on."""
        return iter(self._tracked)

    def __contains__(self, key: object) -> bool:
        return key in self._tracked

    def touch(self, key: K, timeout: float | None = None) -> None:
        """Note a sign of life of `key`, and track it if it is new.

        Args:
            key: A hashable object.
            timeout: Seconds without a touch after which this key is idle, from now on. `None` leaves the timeout that
                it has, which at first is the tracker's.

        Raises:
            ValueError: `timeout` is not positive and finite.
            TypeError: `key` is not hashable, or `timeout` is not a number.
            PurgatoryClosed: The tracker is closed.
            PurgatoryMisuse: The tracker belongs to another event loop or thread.
        """
        if timeout is not None:
            timeout = seconds("timeout", timeout, "positive")
        tracked = self._tracked.get(key)
        if tracked is None:
            self._track(key, timeout)
            return
        check_loop(self, self._loop, "tracker.touch(key)")
        self._note_touch(tracked, self._clock.time(), timeout)

    def discard(self, key: K) -> bool:
        """Stop tracking `key`. Return whether it was tracked, or idle and not yielded yet."""
        check_loop(self, self._loop, "tracker.discard(key)")
        tracked = self._tracked.get(key)
        if tracked is not None:
            self.timer.cancel(tracked)
            del self._tracked[key]
            return True
        try:
            del self._idle[key]
        except KeyError:
            return False
        return True

    def __aiter__(self) -> "IdleTracker[K]":
        return self

    async def __anext__(self) -> K:
        if self._on_idle is not None:
            raise RuntimeError("idle keys are passed to on_idle: make a tracker without on_idle to iterate over it")
        check_loop(self, self._loop, "tracker.__anext__()", "asyncio.run_coroutine_threadsafe()")
        loop = self._loop = asyncio.get_running_loop()
        while not self._idle:
            if self._closed:
                raise StopAsyncIteration
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        key, _ = self._idle.popitem(last=False)
        return key

    def close(self) -> None:
        """Stop tracking all keys, and end the iteration after the keys that are already idle."""
        check_loop(self, self._loop, "tracker.close()")
        self.timer.close()
        self._closed = True
        self._tracked.clear()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        while self._waiters:
            waiter = self._waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)

    def _note_touch(self, tracked: _Tracked[K], now: float, timeout: float | None) -> None:
        tracked.seen = now
        if timeout is not None and timeout != tracked.timeout:
            self._set_timeout(tracked, timeout)

    def _set_timeout(self, tracked: _Tracked[K], timeout: float) -> None:
        """Give a key a timeout of its own. A task that would run too late is moved. Others find it when they run."""
        due = tracked.seen + timeout
        if due < tracked.due and self._tracked.get(tracked.key) is tracked:
            self.timer.reschedule(tracked, due)
            tracked.due = due
        tracked.timeout = timeout

    def _track(self, key: K, timeout: float | None) -> None:
        clock = self.timer.clock
        if isinstance(clock, AbstractEventLoop):
            check_loop(self, clock, "tracker.touch(key)")
            self._loop = clock
        self._clock = clock
        now = clock.time()
        # The clock may have called anything.
        if self._closed:
            raise PurgatoryClosed(f"{self!r} is closed: make a new one")
        if key in self._tracked:
            self._note_touch(self._tracked[key], now, timeout)
            return
        self._idle.pop(key, None)  # alive after all, before it was yielded
        tracked = self._tracked[key] = _Tracked(self, key, now, timeout or self._timeout)
        try:
            due = now + tracked.timeout
            self.timer.add(tracked, due)
            tracked.due = due
            self._set_timeout(tracked, tracked.timeout)  # the clock may have touched it, with a shorter timeout
        except BaseException:
            self._tracked.pop(key, None)
            raise
        if self._tracked.get(key) is not tracked:
            self.timer.cancel(tracked)  # the clock has discarded it

    def _look(self, tracked: _Tracked[K]) -> None:
        """Report the key as idle, unless it was touched since the timer was set."""
        key = tracked.key
        now = self._clock.time()
        due = tracked.seen + tracked.timeout
        try:
            if self._tracked.get(key) is not tracked:
                return  # the clock has discarded it
            if due <= now:
                del self._tracked[key]
        except BaseException:  # of the key's own __hash__: try again after another timeout
            tracked.due = now + tracked.timeout
            self.timer.add(tracked, tracked.due)
            raise
        if due > now:
            self.timer.add(tracked, due)
            tracked.due = due
            return
        if self._on_idle is None:
            self._idle[key] = None
            self._wake_waiters()
            return
        try:
            self._on_idle(key)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exception:
            report(self.timer.clock, "on_idle raised", exception, key=key, tracker=self)
