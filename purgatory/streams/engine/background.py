"""What a server does on its own: tasks that nobody awaits, and the periodic check of the database."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from purgatory.streams.core.commands import Expire
from purgatory.streams.core.subscriptions import Lapse
from purgatory.streams.engine.store import Store

SOON: Final = 0.05
"""The shortest interval between two checks, in seconds."""
_LOOK: Final = 5.0
"""The longest interval between two checks, in seconds, if there is a deadline or the database is shared."""

logger: Final = logging.getLogger("purgatory.streams")


class Background:
    """The background tasks of a server. It belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        """Run a coroutine, and log its exception."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def join(self) -> None:
        """Wait until no task is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("a background task (expiry, lease or time-to-live) failed: %s", error)


class Alarm:
    """Checks the database at each deadline, and handles everything that is due. It belongs to one event loop."""

    def __init__(
        self, store: Store, background: Background, now: Callable[[], float], on_due: Callable[[list[str]], None]
    ) -> None:
        """Call `on_due` with the ids of subscriptions that have work due. `now` is in seconds since 1970."""
        self._store = store
        self._background = background
        self._now = now
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at = 0.0
        self._requested: float | None = None
        """The earliest re-check requested while a check was running."""
        self._looking = False
        self._closing = False

    def close(self) -> None:
        """Stop checking."""
        self._closing = True
        if self._handle is not None:
            self._handle.cancel()

    def at(self, time: float | None) -> None:
        """Check at `time`, in seconds since 1970, or earlier, because the clock may be set meanwhile."""
        if time is not None:
            self.after(min(max(SOON, time - self._now()), _LOOK))

    def after(self, delay: float) -> None:
        """Check in `delay` seconds, or earlier."""
        if self._closing:
            return
        when = self._loop.time() + delay
        if self._looking:
            self._requested = when if self._requested is None else min(when, self._requested)
            return
        if self._handle is not None:
            if self._handle_at <= when:
                return
            self._handle.cancel()
        self._handle_at = when  # not every handle of uvloop tells
        self._handle = self._loop.call_at(when, self._begin)

    def _begin(self) -> None:
        self._handle = None
        self._looking = True
        self._background.spawn(self._look())

    async def _look(self) -> None:
        next_time: float | None = self._now() + _LOOK
        try:
            now = self._now()
            paths, names, next_time = await self._store.read(lambda database: database.due(now))
            if self._store.shared and next_time is None:
                next_time = now + _LOOK
            await asyncio.gather(*(self._store.run(Expire(path)) for path in paths))
            await asyncio.gather(*(self._store.run(Lapse(name)) for name in names))
            self._on_due(names)
        except BaseException:
            next_time = self._now() + _LOOK
            raise
        finally:
            self._looking = False
            requested, self._requested = self._requested, None
            if requested is not None:
                self.after(requested - self._loop.time())
            self.at(next_time)
