"""Tasks that nobody awaits until the end."""

import asyncio
import logging
from typing import Final

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
