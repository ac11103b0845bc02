"""The reads that wait for data."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryFull, TimerTask
from purgatory.streams.admission import Clients
from purgatory.streams.core import messages
from purgatory.streams.core.errors import NotFound
from purgatory.streams.core.state import Part, Row, Stream
from purgatory.streams.engine.background import Background
from purgatory.streams.engine.cache import LIVE, Cache, CachedStream, Chunk
from purgatory.streams.engine.store import PATIENCE, Store
from purgatory.streams.storage.database import Extent, StorageError

_LOOKING: Final = PATIENCE + 5.0
"""Seconds after its deadline in which a read ends, because the last look at the database takes so long at most."""
_FRESH: Final = 1.0
"""Seconds for which a look at the database counts for other reads of the same stream."""


class Read(DelayedOperation["Chunk | Exception"]):
    """Waits for data after a position, for the end of the stream, or for the deadline.

    The result is a chunk, which is empty at the deadline. If the data cannot be read or the stream is deleted, the
    result is the exception.
    """

    __slots__ = ("address", "chunk", "last_look", "now", "path", "position", "readers", "stream")

    def __init__(
        self, readers: "Readers", stream: Stream, position: int, timeout: float, address: str, now: bool
    ) -> None:
        """Make a read. With `now`, it does not wait, and without data its result is an empty chunk."""
        super().__init__(timeout)
        self.address: str = address
        self.readers: Readers = readers
        self.path: str = stream.path
        self.stream: Stream = stream
        self.position: int = position
        self.now: bool = now
        self.chunk: Chunk | Exception | None = None
        self.last_look: LastLook | None = None

    def try_complete(self) -> bool:
        cached = self.readers.cache.get(self.path)
        if cached is None:
            self.readers.look(self.path)
            return False
        stream = cached.stream
        if stream.id != self.stream.id or stream.deleted or cached.gone:
            self.chunk = NotFound("the stream is deleted")
            return self.force_complete()
        if self.position < stream.tail:
            chunk = cached.recent_chunk(self.position, LIVE)
            if chunk is None:
                self.readers.load(self)
                return False
            self.chunk = chunk
            return self.force_complete()
        self.stream = stream
        return (stream.closed or self.now) and self.force_complete()

    def on_complete(self) -> "Chunk | Exception":
        return Chunk(self.stream, self.position, self.position) if self.chunk is None else self.chunk

    def on_done(self) -> None:
        self.readers.clients.leave(self.address)
        if self.last_look is not None:
            self.readers.purgatory.timer.cancel(self.last_look)


class LastLook(TimerTask):
    """The deadline of a read if other processes use the database, which is read once more then."""

    __slots__ = ("read",)

    def __init__(self, read: Read) -> None:
        super().__init__()
        self.read: Read = read

    def run(self) -> None:
        """Look at the database for the last time."""
        self.read.readers.look_last(self.read)


class Readers:
    """The reads that wait, and the data that is fetched for them. It belongs to one event loop."""

    def __init__(
        self,
        cache: Cache,
        store: Store,
        background: Background,
        look_up: Callable[[str], Awaitable[Stream | None]],
        publish: Callable[[str, Stream | None], None],
        *,
        max_pending: int,
        max_pending_client: int,
    ) -> None:
        """Let `max_pending` reads wait at most, and `max_pending_client` of one address."""
        self._ending: dict[str, list[Read]] = {}
        """The reads whose deadline has come, by path, until the database is read."""
        self.cache = cache
        self.purgatory = DelayedOperationPurgatory("read", max_pending=max_pending)
        """The purgatory in which they wait, with the paths of their streams as keys."""
        self.clients = Clients(max_pending_client, "waiting reads")
        self._store = store
        self._background = background
        self._look_up = look_up
        self._publish = publish
        self._max_pending = max_pending
        self._loading: dict[tuple[int, int], list[Read]] = {}
        self._looked_at: set[str] = set()
        self._loop = asyncio.get_running_loop()

    def check_room(self, address: str) -> None:
        """Raise `TooManyRequests` or `PurgatoryFull` if no more reads of a client, or of all, may wait.

        This comes before the database is asked.
        """
        self.clients.check(address)
        if self.purgatory.num_delayed >= self._max_pending:
            raise PurgatoryFull(f"the limit of waiting reads is reached: max_pending is {self._max_pending}")

    async def stored(self, stream: Stream, position: int, extent: Extent) -> Chunk:
        """Return the data behind `position`, up to the extent `extent`, from the database.

        Raises `NotFound` or `StorageError`.
        """
        media = stream.media_type
        parts = await self._store.read(
            lambda database: [_split(media, part) for part in database.read(stream.pieces(position), extent)]
        )
        if not parts:
            raise NotFound("the stream is deleted")
        return Chunk(stream, position, parts[-1].end, parts)

    def wait(
        self, cached: CachedStream, position: int, timeout: float, address: str = "", *, now: bool = False
    ) -> Read:
        """Return an operation that waits for data behind `position`, for the client with `address`.

        Raises `TooManyRequests`, `PurgatoryFull` or `PurgatoryClosed`.
        """
        self.clients.check(address)  # again, because others may have come since `check_room`
        # Notifications of what other processes store may be late.
        patience = _LOOKING if self._store.shared else 0.0
        operation = Read(self, cached.stream, position, timeout + patience, address, now)
        self.clients.enter(address)
        try:
            self.purgatory.try_complete_else_watch(operation, cached.keys)
            if self._store.shared and not operation.done():
                operation.last_look = LastLook(operation)
                timer = self.purgatory.timer
                timer.reschedule(operation.last_look, timer.time() + timeout)
            return operation
        except BaseException:
            if operation.outcome is None:  # otherwise its on_done() was called
                self.clients.leave(address)
            raise

    def load(self, operation: Read) -> None:
        """Read the data for an operation from the database, and complete it."""
        key = _key(operation)
        waiting = self._loading.get(key)
        if waiting is None:
            self._loading[key] = [operation]
            self._background.spawn(self._load(key, operation.path))
        elif operation not in waiting:
            waiting.append(operation)

    async def _load(self, key: tuple[int, int], path: str) -> None:
        try:
            cached = self.cache.get(path)
            mine = self._loading[key][0].stream
            stream = mine if cached is None or cached.stream.id != mine.id else cached.stream
            loaded: Chunk | Exception = await self.stored(stream, key[1], LIVE)
        except Exception as error:
            loaded = error
        finally:
            waiting = self._loading.pop(key)
        for operation in waiting:
            operation.chunk = loaded
            operation.force_complete()

    def look_last(self, read: Read) -> None:
        """End a read after its deadline, when the database was read once more."""
        cached = self.cache.get(read.path)
        if cached is not None and self._loop.time() < cached.looked_at + _FRESH:
            self._end(read)
        elif read.path in self._ending:
            self._ending[read.path].append(read)
        else:
            self._ending[read.path] = [read]
            self._background.spawn(self._look_last(read.path))

    async def _look_last(self, path: str) -> None:
        failure: StorageError | None = None
        now = self._loop.time()
        try:
            self._publish(path, await self._look_up(path))
        except StorageError as error:
            failure = error
        finally:
            ending = self._ending.pop(path)
        if failure is None and (cached := self.cache.get(path)) is not None:
            cached.looked_at = now
        for read in ending:
            if failure is not None:
                read.chunk = failure
                read.force_complete()
            else:
                self._end(read)

    def _end(self, read: Read) -> None:
        """End a read with the data that exists now, or with none."""
        if not read.done() and not read.try_complete() and read not in self._loading.get(_key(read), ()):
            read.reschedule(0.0)

    def look(self, path: str) -> None:
        """Look up a stream that is not in memory, and check the reads that wait for it."""
        if path not in self._looked_at:
            self._looked_at.add(path)
            self._background.spawn(self._look_at_path(path))

    async def _look_at_path(self, path: str) -> None:
        try:
            stream: Stream | Exception | None = await self._look_up(path)
        except StorageError as error:
            stream = error
        finally:
            self._looked_at.discard(path)
        if isinstance(stream, Stream):
            self._publish(path, stream)
            return
        if path in self.cache:  # it was committed here meanwhile
            return
        for operation in self.purgatory.watching(path):
            assert isinstance(operation, Read)
            operation.chunk = stream or NotFound("the stream is deleted")
            operation.force_complete()


def _key(read: Read) -> tuple[int, int]:
    """Return the key of the read's data, which reads of the same data share."""
    return read.stream.id, read.position


def _split(media: str, part: Part) -> Part:
    """Return the part with only its own data."""
    begin, end, row = part
    if (begin, end) == (row.begin, row.end):
        return part
    return Part(begin, end, Row(begin, end, messages.part(media, row.data, begin - row.begin, end - row.begin)))
