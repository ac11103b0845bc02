"""Keys from other processes, which are refreshed here and then checked."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Hashable, Iterable, Iterator
from typing import Final

from purgatory import DelayedOperationPurgatory
from purgatory.lowlevel import SLICE, Slice, report
from purgatory.relay.backlog import Backlog
from purgatory.relay.retries import is_cancelled, retrying

_GIVE_UP: Final = 16
"""After this many consecutive failures, stop bisecting, because the fault is not one key's."""

Refresh = Callable[[Collection[str]], Awaitable[None]]


class _Pace:
    """The slices of a piece of work. The loop gets an iteration between two slices."""

    __slots__ = ("slice",)

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a slice."""
        self.slice = Slice(bounded=True)

    async def next_iteration(self) -> None:
        """Begin a slice on the next iteration of the loop."""
        await asyncio.sleep(0)
        self.begin()


class Inbox:
    """Refreshes added keys and checks them, in slices. Keys that fail are tried again, and don't delay others."""

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
        """Keys whose refresh has failed. They are tried again, apart from new ones."""
        self._one_at_a_time = asyncio.Lock()
        self.failures: int = 0

    @property
    def pending(self) -> int:
        """The number of keys that wait to be checked."""
        return len(self._new) + len(self._failed)

    def add(self, keys: Iterable[str] | None) -> None:
        """Check `keys` soon. `None` means every watched key."""
        self._new.add(keys)

    async def run(self) -> None:
        """Check keys whenever there are any. Never ends."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_new())
            tasks.create_task(self._run_failed())

    async def _run_new(self) -> None:
        while True:
            await self._new.waiting.wait()
            try:
                # A key that will be tried again anyway would delay the others of its batch.
                await self._process(self._new, without=self._failed)
            except (Exception, asyncio.CancelledError) as exception:
                if is_cancelled():
                    raise
                self._report(exception, 0.0)

    async def _run_failed(self) -> None:
        while True:
            await self._failed.waiting.wait()
            async for attempt in retrying(self._report):
                with attempt:
                    await self._process(self._failed)

    async def _process(self, backlog: Backlog, without: Container[str] = ()) -> None:
        """Refresh the keys of `backlog`, and check them.

        On failure, the batch is bisected until the failing keys are isolated, so that they don't delay the others.
        They, and all remaining keys after too many failures, go into the backlog of failed keys, and the exception is
        raised.
        """
        taken = backlog.take()
        # Invalidate first, so that an operation that is handed over from now on does not find an outdated state.
        if taken is None and self._invalidate is not None:
            async with self._one_at_a_time:
                try:
                    self._invalidate()
                except BaseException:
                    self.failures += 1
                    self._failed.add(None)
                    raise
        source = self._watched() if taken is None else iter(taken)
        pace = _Pace()
        keys: list[str] = []
        failed: list[str] = []
        error: BaseException | None = None
        in_a_row = 0
        size = SLICE
        while in_a_row < _GIVE_UP:
            keys += await self._next(source, size - len(keys), without, pace)
            if not keys:
                break
            batch = keys[:size]
            try:
                await self._bring_up_to_date(batch, pace)
            except (Exception, asyncio.CancelledError) as exception:
                if is_cancelled():
                    raise
                error = exception
                in_a_row += 1
                self.failures += 1
                size = max(1, len(batch) // 2)
                if len(batch) == 1:
                    failed += batch
                    del keys[:1]
                continue
            in_a_row = 0
            del keys[: len(batch)]
            size = min(2 * size, SLICE)
            # A key that was added again meanwhile is in the backlog again, and is checked again after this.
            for key in batch:
                self._check(key)
                if pace.slice.is_over():
                    await pace.next_iteration()
            await pace.next_iteration()
        if error is not None:
            # First the keys that may be all right.
            self._failed.add(keys)
            while not self._failed.everything and (keys := await self._next(source, SLICE, without, pace)):
                self._failed.add(keys)
            self._failed.add(failed)
            raise error

    async def _next(self, source: Iterator[Hashable], count: int, without: Container[str], pace: _Pace) -> list[str]:
        """Take `count` keys from `source`, in slices, or fewer at its end."""
        keys: dict[str, None] = {}
        if count > 0:
            for key in source:
                if isinstance(key, str) and key not in without:
                    keys[key] = None
                is_over = pace.slice.is_over()
                if len(keys) == count:
                    break
                if is_over:
                    await pace.next_iteration()
        return list(keys)

    async def _bring_up_to_date(self, keys: list[str], pace: _Pace) -> None:
        if self._refresh is not None:
            async with self._one_at_a_time:
                # A task of its own, as `retrying` explains.
                await asyncio.ensure_future(self._refresh(keys))
            pace.begin()

    def _watched(self) -> Iterator[Hashable]:
        """Yield the watched keys. A key of several purgatories comes once for each."""
        for purgatory in self._purgatories:
            yield from purgatory.each_watched_key()

    def _report(self, exception: BaseException, seconds: float) -> None:
        message = "keys that have changed in another process cannot be brought up to date, and are tried again"
        report(asyncio.get_running_loop(), message, exception)
