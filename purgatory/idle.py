"""Finding out who has been silent for too long.

Of all that is tracked, each has one task in a timer. A touch notes the time and leaves the task where it is; when that
runs, it looks at when it was last touched, and goes on waiting for what is left. So however often somebody is heard of,
there is timer work once in a timeout.
"""

import asyncio
import sys
from asyncio import _get_running_loop
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

from purgatory.clock import Clock, check_callback, report
from purgatory.errors import PurgatoryClosed, PurgatoryError
from purgatory.timer import TimerTask, WheelTimer

__all__ = ["IdleTracker"]

_LONGEST: Final = sys.float_info.max

K = TypeVar("K", bound=Hashable)


class _Tracked(TimerTask, Generic[K]):
    """One that is tracked."""

    __slots__ = ("_tracker", "key", "seen")

    def __init__(self, tracker: "IdleTracker[K]", key: K, seen: float) -> None:
        self._bucket = None  # as super().__init__() does
        self._deadline = 0.0
        self._tracker = tracker
        self.key = key
        self.seen = seen

    def run(self) -> None:
        self._tracker._look(self)


class IdleTracker(Generic[K]):
    """Tells who has not been touched for `timeout` seconds: connections, sessions, leases.

        tracker = IdleTracker(30.0, on_idle=close_it)
        tracker.touch(connection)      # begins to track it, and each time that it is heard of
        tracker.discard(connection)    # it has left by itself

    Without `on_idle`, ask by `async for key in tracker`, which ends when the tracker is closed. Whoever is told of is
    not tracked any more. Never early, and late by less than a tick plus the loop's own lag. Belongs to one event loop
    and its thread.
    """

    __slots__ = ("_closed", "_idle", "_on_idle", "_time", "_timeout", "_told", "_tracked", "timer")

    def __init__(
        self,
        timeout: float,
        on_idle: Callable[[K], object] | None = None,
        *,
        tick: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Tell who is silent for `timeout` seconds.

        `on_idle(key)` is called for each; what it raises goes to the loop's exception handler. `tick` is how late it
        may be, in seconds: a hundredth of the timeout if not given. Without a `clock` the tracker belongs to the event
        loop that runs at the first touch. Raises `ValueError` unless `timeout` is positive and finite, `TypeError` for
        wrong types, and as `WheelTimer` for the tick.
        """
        try:
            valid = 0 < timeout < _LONGEST
        except TypeError:
            raise TypeError(f"timeout must be a number of seconds, not {timeout!r}") from None
        if not valid:
            raise ValueError(f"timeout must be positive and finite, not {timeout!r}")
        if on_idle is not None:
            check_callback("on_idle", on_idle)
        self._timeout = timeout
        # With a tick of a hundredth one wheel reaches as far as the timeout, so that nothing cascades.
        self.timer = WheelTimer(clock, tick=max(timeout / 100, 1e-6) if tick is None else tick, wheel_size=128)
        """The timer: for its statistics."""
        self._on_idle = on_idle
        self._time = self.timer.time
        self._tracked: dict[K, _Tracked[K]] = {}
        self._idle: OrderedDict[K, None] = OrderedDict()
        """Who is idle and has not been asked for yet, the first one first."""
        self._told = asyncio.Event()
        self._closed = False

    def __repr__(self) -> str:
        closed = " closed" if self._closed else ""
        return f"<{type(self).__qualname__} timeout={self._timeout!r} tracked={len(self)}{closed}>"

    def __len__(self) -> int:
        """How many are tracked."""
        return len(self._tracked)

    @property
    def timeout(self) -> float:
        """Seconds of silence after which somebody is idle."""
        return self._timeout

    def __iter__(self) -> Iterator[K]:
        """Those that are tracked, the longest one first."""
        return iter(self._tracked)

    def __contains__(self, key: object) -> bool:
        return key in self._tracked

    def touch(self, key: K) -> None:
        """`key` was heard of now.

        Raises `TypeError` if it is not hashable, `PurgatoryClosed` after `close`, and `PurgatoryError` if somebody new
        is heard of on another event loop.
        """
        try:
            self._tracked[key].seen = self._time()
        except KeyError:
            self._track(key)

    def discard(self, key: K) -> bool:
        """Track `key` no more. Returns whether it was tracked, or idle and not asked for yet."""
        tracked = self._tracked.pop(key, None)
        if tracked is not None:
            self.timer.cancel(tracked)
            return True
        idle = key in self._idle
        self._idle.pop(key, None)
        return idle

    def __aiter__(self) -> "IdleTracker[K]":
        return self

    async def __anext__(self) -> K:
        if self._on_idle is not None:
            raise RuntimeError("who is idle is told to on_idle: make a tracker without it to iterate")
        while not self._idle:
            if self._closed:
                raise StopAsyncIteration
            self._told.clear()
            await self._told.wait()
        key, _ = self._idle.popitem(last=False)
        return key

    def close(self) -> None:
        """Track nobody any more, and end the iteration after those who are idle already. Harmless when repeated."""
        self._closed = True
        self.timer.close()
        self._tracked.clear()
        self._told.set()

    def _track(self, key: K) -> None:
        if self._closed:
            raise PurgatoryClosed(f"{self!r} tracks nobody any more")
        clock = self.timer.clock
        running = _get_running_loop()
        if clock is not running and isinstance(clock, asyncio.AbstractEventLoop):
            if running is not None:
                raise PurgatoryError(f"{self!r} belongs to another event loop than the running one")
            if clock.is_running():
                raise PurgatoryError(
                    f"{self!r} is not for other threads: use loop.call_soon_threadsafe(tracker.touch, key)"
                )
        self._time = clock.time
        now = clock.time()
        self._idle.pop(key, None)  # heard of after all, before anybody asked
        tracked = _Tracked(self, key, now)
        self.timer.add(tracked, now + self._timeout)
        self._tracked[key] = tracked

    def _look(self, tracked: _Tracked[K]) -> None:
        """Its time would be over, had it not been touched."""
        due = tracked.seen + self._timeout
        if due > self._time():
            self.timer.add(tracked, due)
            return
        key = tracked.key
        del self._tracked[key]
        if self._on_idle is None:
            self._idle[key] = None
            self._told.set()
            return
        try:
            self._on_idle(key)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exception:
            report(self.timer.clock, "on_idle failed", exception, key=key, tracker=self)
