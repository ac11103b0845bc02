"""The streams of a server, on the side of the event loop: their committed state, and the reads that wait for more."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Final, TypeVar

from purgatory.streams.core.commands import Command, Expire, Touch
from purgatory.streams.core.errors import Gone, NotFound
from purgatory.streams.core.state import Row, Stream
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.core.wakes import MAX_LINKS
from purgatory.streams.engine.background import SOON, Alarm, Background
from purgatory.streams.engine.cache import CHUNK, Cache, CachedStream, Chunk
from purgatory.streams.engine.readers import Read, Readers
from purgatory.streams.engine.store import Change, Store
from purgatory.streams.storage.database import Database, Extent, StorageUnavailable
from purgatory.streams.storage.opener import Opener

T = TypeVar("T")

_AGAIN: Final = 1.0
"""Seconds until the next attempt if the database is away."""
_LATE: Final = 0.02
"""The share of its time-to-live by which a stream that was read may expire late."""

logger: Final = logging.getLogger("purgatory.streams")


class Streams:
    """The streams of a server. It belongs to one event loop."""

    def __init__(self, opener: Opener, *, max_pending: int = 100_000, max_pending_client: int = 10_000) -> None:
        """Keep streams in the database of `opener`."""
        self.store = Store(opener, self._committed)
        self.cache = Cache()
        self.on_due: Callable[[Collection[str]], None] = lambda names: None
        """Called with the ids of subscriptions that have work due."""
        self._opener = opener
        self._finding: Counter[str] = Counter()
        """Paths that are being looked up."""
        self._overtaken: Counter[str] = Counter()
        """How often each of them has changed meanwhile."""
        self._loop = asyncio.get_running_loop()
        self._kept: dict[str, asyncio.TimerHandle] = {}
        """The paths of streams that are prolonged while reads wait for them."""
        self._full: set[str] = set()
        """The subscriptions that were logged as full."""
        self._background = Background()
        self._alarm = Alarm(self.store, self._background, self.now, lambda names: self.on_due(names))
        self.readers = Readers(
            self.cache,
            self.store,
            self._background,
            self._look_up,
            self.publish,
            max_pending=max_pending,
            max_pending_client=max_pending_client,
        )
        self.reads = self.readers.purgatory

    async def start(self) -> None:
        """Open the database. Raises `StorageError`."""
        await self.store.start()

    def look_for_due(self) -> None:
        """Check for due expiries, leases and deliveries, now and at each later deadline."""
        self._alarm.after(0.0)

    async def close(self) -> None:
        """Close the database when everything that was begun is stored."""
        self._alarm.close()
        for handle in self._kept.values():
            handle.cancel()
        await self._background.join()
        await self.store.close()

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return self._opener.now()

    def run(self, command: Command[T]) -> Coroutine[Any, Any, T]:
        """Apply a command, and return its result when it is stored."""
        return self.store.run(command)

    # Reads.

    async def find(self, path: str) -> CachedStream:
        """Return the stream at `path`. Raises `NotFound`, `Gone` or `StorageError`."""
        cached = self.cache.get(path)
        if cached is None or self.store.shared:
            stream = await self._look_up(path)
            if stream is None:
                self.publish(path, None)
                raise NotFound("there is no such stream")
            cached = self._remember(stream)
        else:
            self.cache.used(path)
        if cached.gone:
            raise NotFound("there is no such stream")
        if cached.stream.deleted:
            raise Gone("the stream is deleted")
        if cached.stream.deadline is not None and cached.stream.deadline <= self.now():
            await self.run(Expire(path))
            raise NotFound("there is no such stream")
        return cached

    async def _look_up(self, path: str) -> Stream | None:
        """Return the stream in the database, not older than the last notification of the path, unless it is cached."""
        self._finding[path] += 1
        try:
            while True:
                # A count and not a flag, because another look-up of the path must not reset it.
                changes, stream = await self.store.read(lambda database: (self._overtaken[path], database.stream(path)))
                cached = self.cache.get(path)
                # A cached one is newer, or hears of the change. Otherwise a stream with many appends is read forever.
                is_cached = cached is not None and stream is not None and cached.stream.id == stream.id
                if is_cached or changes == self._overtaken[path]:
                    return stream
        finally:
            self._finding[path] -= 1
            if not self._finding[path]:
                del self._finding[path]
                del self._overtaken[path]

    def touch(self, cached: CachedStream) -> None:
        """Restart the time-to-live of the stream, because it is read."""
        stream = cached.stream
        if stream.ttl is None or stream.deadline is None:
            return
        deadline = self.now() + stream.ttl
        if deadline > stream.deadline and not cached.touching:
            # A little more, so that not every read must be stored.
            cached.touching = True
            self._background.spawn(self._touch(cached, deadline + max(_LATE * stream.ttl, SOON)))

    async def _touch(self, cached: CachedStream, deadline: float) -> None:
        try:
            await self.run(Touch(cached.stream.path, deadline))
        finally:
            cached.touching = False

    async def chunk(self, cached: CachedStream, position: int, extent: Extent = CHUNK) -> Chunk:
        """Return the data behind `position`, up to the extent `extent`. Raises `NotFound` or `StorageError`."""
        stream = cached.stream
        if cached.gone:
            raise NotFound("the stream is deleted")  # there may still be some of its data
        if position >= stream.tail:
            return Chunk(stream, position, position)
        chunk = cached.recent_chunk(position, extent)
        return await self.readers.stored(stream, position, extent) if chunk is None else chunk

    def wait(
        self, cached: CachedStream, position: int, timeout: float, address: str = "", *, now: bool = False
    ) -> Read:
        """Return an operation that waits for data behind `position`, as `Readers.wait`, and prolong the stream."""
        self._keep(cached)
        return self.readers.wait(cached, position, timeout, address, now=now)

    def _keep(self, cached: CachedStream) -> None:
        """Prolong a stream from time to time while reads wait for it, once for all of them."""
        path, ttl = cached.stream.path, cached.stream.ttl
        if ttl is not None and path not in self._kept:
            self._kept[path] = self._loop.call_later(ttl / 2, self._keep_on, cached)

    def _keep_on(self, cached: CachedStream) -> None:
        path = cached.stream.path
        del self._kept[path]
        if self.reads.is_watched(path):
            cached = self.cache.get(path) or cached
            self.touch(cached)
            self._keep(cached)

    # What was committed.

    def _committed(self, changes: list[Change], transaction: Transaction) -> None:
        for change in changes:
            self.publish(change.path, change.stream, change.rows)
        if transaction.full or transaction.unlinked:
            self._full -= transaction.unlinked
            for name in transaction.full - self._full:
                logger.warning("the subscription %a has %d streams, and gets no others", name, MAX_LINKS)
            self._full |= transaction.full
        if transaction.subscriptions:
            now = self.now()
            due = [each for each in transaction.subscriptions.values() if each is not None and each.due is not None]
            self.on_due([each.id for each in due if each.due is not None and each.due <= now])
            for each in due:
                self._alarm.at(each.due)

    def publish(self, path: str, stream: Stream | None, rows: Iterable[Row] = ()) -> None:
        """Remember the new state of a stream, and check the reads that wait for it."""
        if path in self._finding:
            self._overtaken[path] += 1
        if stream is None:
            cached = self.cache.get(path)
            if cached is not None:
                cached.gone = True
                self.cache.drop_recent(cached)
        else:
            self._remember(stream, rows)
        self.reads.check_and_complete_soon(path)

    async def refresh(self, paths: Collection[str]) -> None:
        """Look up the streams with waiting reads that other processes have changed. Raises `StorageError`."""
        self._overtaken.update(path for path in paths if path in self._finding)
        waiting: dict[str, Stream | None] = {}
        for path in paths:
            if self.reads.is_watched(path):
                cached = self.cache.get(path)
                waiting[path] = None if cached is None else cached.stream
            else:
                self.cache.forget(path)  # because it may be outdated
        if waiting:
            found = await self._patiently(lambda database: database.streams(list(waiting)))
            for path, before in waiting.items():
                cached = self.cache.get(path)
                # A stream that this process has committed meanwhile is newer than one that is not found.
                if path in found or cached is None or cached.stream is before:
                    self.publish(path, found.get(path))

    async def _patiently(self, read: Callable[[Database], T]) -> T:
        """Read from the database, and repeat that while it is away, with one line in the log and not one per stream."""
        attempts = 0
        while True:
            try:
                return await self.store.read(read)
            except StorageUnavailable as error:
                attempts += 1
                if attempts == 1:
                    logger.warning("streams that others have changed cannot be read yet: %s", error)
                await asyncio.sleep(_AGAIN)

    def invalidate(self) -> None:
        """Forget the streams, because any of them may have changed in another process."""
        self._overtaken.update(self._finding)
        self.cache.clear()

    def _remember(self, stream: Stream, rows: Iterable[Row] = ()) -> CachedStream:
        cached = self.cache.remember(stream, rows)
        self._alarm.at(cached.stream.deadline)
        return cached
