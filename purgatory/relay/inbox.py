"""What has come from other processes: keys that are brought up to date here, and then checked."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Iterable
from typing import Final

from purgatory.clock import report
from purgatory.purgatory import DelayedOperationPurgatory
from purgatory.relay.backlog import Backlog
from purgatory.relay.retries import is_cancelled, retrying
from purgatory.timer.timer import SLICE

__all__ = ["Inbox"]

_GIVE_UP: Final = 16
"""Failures in a row after which no single key is to blame. It takes fewer to find one that is."""

Refresh = Callable[[Collection[str]], Awaitable[None]]


class Inbox:
    """Looks at the keys that are added to it, a slice in a turn; again at those that fail, which hold up no others."""

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
        self._new = Backlog(max_keys)
        self._failed = Backlog(max_keys)
        """What could not be looked at, and is tried again, apart from what is new."""
        self._one_at_a_time = asyncio.Lock()
        self.failures = 0

    @property
    def pending(self) -> int:
        """Keys that wait to be looked at."""
        return len(self._new) + len(self._failed)

    def add(self, keys: Iterable[str] | None) -> None:
        """Look at `keys`, soon; `None` is every watched key."""
        self._new.add(keys)

    async def run(self) -> None:
        """Look at keys whenever there are any. Never ends."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_new())
            tasks.create_task(self._run_failed())

    async def _run_new(self) -> None:
        while True:
            await self._new.waiting.wait()
            try:
                # What is to be tried again anyway would hold up what comes along with it.
                await self._look(self._new, without=self._failed)
            except (Exception, asyncio.CancelledError) as exception:
                if is_cancelled():
                    raise
                self._report(exception, 0.0)

    async def _run_failed(self) -> None:
        while True:
            await self._failed.waiting.wait()
            async for attempt in retrying(self._report):
                with attempt:
                    await self._look(self._failed)

    async def _look(self, backlog: Backlog, without: Container[str] = ()) -> None:
        """Look at what is in `backlog`. Raises what is raised meanwhile; what is left to do has been put off then."""
        taken = backlog.take()
        # Who watches a key from now on finds nothing that has been remembered from before.
        if taken is None and self._invalidate is not None:
            async with self._one_at_a_time:
                try:
                    self._invalidate()
                except BaseException:
                    self.failures += 1
                    self._failed.add(None)
                    raise
        keys = [key for key in (self._watched() if taken is None else taken) if key not in without]
        failed = []
        error: BaseException | None = None
        in_a_row = 0
        begin = 0
        size = SLICE
        # Halves of what fails are tried, down to the keys that are to blame: the others are not held up by them.
        while begin < len(keys) and in_a_row < _GIVE_UP:
            part = keys[begin : begin + size]
            try:
                await self._bring_up_to_date(part)
            except (Exception, asyncio.CancelledError) as exception:
                if is_cancelled():
                    raise
                error = exception
                in_a_row += 1
                self.failures += 1
                size = max(1, len(part) // 2)
                if len(part) == 1:
                    failed += part
                    begin += 1
                continue
            in_a_row = 0
            begin += len(part)
            size = min(2 * size, SLICE)
            # One that has come again meanwhile is in the backlog again, and has its turn after this.
            for key in part:
                self._check(key)
            await asyncio.sleep(0)
        if error is not None:
            # First those that may be all right.
            self._failed.add([*keys[begin:], *failed])
            raise error

    async def _bring_up_to_date(self, keys: list[str]) -> None:
        if self._refresh is not None:
            async with self._one_at_a_time:
                # A task of its own, see `retrying`.
                await asyncio.ensure_future(self._refresh(keys))

    def _watched(self) -> list[str]:
        watched = (key for purgatory in self._purgatories for key in purgatory.watched_keys())
        return list(dict.fromkeys(key for key in watched if isinstance(key, str)))

    def _report(self, exception: BaseException, seconds: float) -> None:
        message = "keys that have changed in another process cannot be brought up to date, and are tried again"
        report(asyncio.get_running_loop(), message, exception)
