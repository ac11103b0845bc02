"""What has come from other processes: keys that are brought up to date here, and then checked."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from purgatory.clock import report
from purgatory.purgatory import DelayedOperationPurgatory
from purgatory.relay.backlog import Backlog
from purgatory.relay.retries import retrying
from purgatory.timer.timer import SLICE

__all__ = ["Inbox"]

Refresh = Callable[[Collection[str]], Awaitable[None]]


class Inbox:
    """Looks at the keys that are added to it, a slice in a turn."""

    def __init__(
        self,
        purgatories: Collection[DelayedOperationPurgatory],
        max_keys: int,
        check: Callable[[str], object],
        refresh: Refresh | None,
        invalidate: Callable[[], object] | None,
    ) -> None:
        self._purgatories: Final = purgatories
        self._check = check
        self._refresh = refresh
        self._invalidate = invalidate
        self._backlog = Backlog(max_keys)
        self.failures = 0

    @property
    def pending(self) -> int:
        """Keys that wait to be looked at."""
        return len(self._backlog)

    def add(self, keys: Iterable[str] | None) -> None:
        """Look at `keys`, soon; `None` is every watched key."""
        self._backlog.add(keys)

    async def run(self) -> None:
        """Look at keys whenever there are any. Never ends."""
        while True:
            await self._backlog.waiting.wait()
            async for attempt in retrying(self._report):
                with attempt:
                    await self._look()

    async def _look(self) -> None:
        taken = self._backlog.take()
        # Who watches a key from now on finds nothing that has been remembered from before.
        if taken is None and self._invalidate is not None:
            try:
                self._invalidate()
            except BaseException:
                self._backlog.add(None)
                raise
        keys = self._watched() if taken is None else taken
        for start in range(0, len(keys), SLICE):
            part = keys[start : start + SLICE]
            if self._refresh is not None:
                try:
                    # A task of its own, see `retrying`.
                    await asyncio.ensure_future(self._refresh(part))
                except BaseException:
                    # At the end, so that what cannot be brought up to date does not hold up the others.
                    self._backlog.add(keys[start + SLICE :])
                    self._backlog.add(part)
                    raise
            # One that has come again meanwhile is in the backlog again, and has its turn after this.
            for key in part:
                self._check(key)
            await asyncio.sleep(0)

    def _watched(self) -> list[str]:
        watched = (key for purgatory in self._purgatories for key in purgatory.watched_keys())
        return list(dict.fromkeys(key for key in watched if isinstance(key, str)))

    def _report(self, exception: BaseException, seconds: float) -> None:
        self.failures += 1
        message = "keys that have changed in another process cannot be brought up to date, and are tried again"
        report(asyncio.get_running_loop(), message, exception)
