"""The streams of a server, on the side of the event loop: what was committed, and those that wait for more."""

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryFull
from purgatory.streams.admission import Clients
from purgatory.streams.core import messages
from purgatory.streams.core.commands import Command, Expire, Secrets, Touch
from purgatory.streams.core.errors import Gone, NotFound
from purgatory.streams.core.state import Part, Row, Stream
from purgatory.streams.core.subscriptions import Lapse
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.engine.chunk import Chunk
from purgatory.streams.engine.store import Change, Store
from purgatory.streams.storage.database import PARTS, StorageError
from purgatory.streams.storage.opener import Opener

__all__ = ["Read", "Streams"]

T = TypeVar("T")

CHUNK: Final = 1024 * 1024
"""Bytes from which on a chunk gets no further append."""
_RECENT: Final = 64 * 1024 * 1024
"""Bytes of recent appends that are kept in memory, of all streams."""
_ROW: Final = 200
"""Bytes of an append in memory, beside its data."""
_KNOWN: Final = 10_000
"""Streams that are kept in memory."""
_LATE: Final = 0.02
"""By how much of its time-to-live a stream that was read may expire late."""
_SOON: Final = 0.05
"""Shortest interval between two looks for due streams and subscriptions, in seconds."""
_LOOK: Final = 5.0
"""Longest time between two looks for due expiries and leases, in seconds, if other processes use the database."""

logger: Final = logging.getLogger("purgatory.streams")


@dataclass(slots=True)
class Known:
    """A stream as it was committed, and its last appends."""

    stream: Stream
    recent: deque[Row] = field(default_factory=deque)
    size: int = 0
    """Bytes of `recent`."""
    touching: bool = False
    gone: bool = False
    """Whether it is deleted, and kept for no forks."""
    chunk: Chunk | None = None
    """The last one that was made: many readers are at the same position."""

    def drop_recent(self) -> int:
        """Forget the appends, and return how many bytes they had."""
        size, self.size = self.size, 0
        self.recent.clear()
        self.chunk = None
        return size


class Read(DelayedOperation["Chunk | Exception"]):
    """Waits for data after a position, for the end of the stream, or for the deadline.

    Yields a chunk, which is empty at the deadline. If the data cannot be read, or the stream is deleted, it yields the
    exception.
    """

    __slots__ = ("address", "chunk", "now", "path", "position", "stream", "streams")

    def __init__(
        self, streams: "Streams", stream: Stream, position: int, timeout: float, address: str, now: bool
    ) -> None:
        """With `now`, do not wait if there is nothing: yield an empty chunk."""
        super().__init__(timeout)
        self.address: str = address
        self.streams: Streams = streams
        self.path: str = stream.path
        self.stream: Stream = stream
        self.position: int = position
        self.now: bool = now
        self.chunk: Chunk | Exception | None = None

    def try_complete(self) -> bool:
        known = self.streams.known.get(self.path)
        if known is None:
            self.streams.look(self.path)
            return False
        stream = known.stream
        if stream.id != self.stream.id or stream.deleted or known.gone:
            self.chunk = NotFound("the stream is deleted")
            return self.force_complete()
        if self.position < stream.tail:
            chunk = self.streams.recent(known, self.position)
            if chunk is None:
                self.streams.load(self)
                return False
            self.chunk = chunk
            return self.force_complete()
        self.stream = stream
        return (stream.closed or self.now) and self.force_complete()

    def on_complete(self) -> "Chunk | Exception":
        return Chunk(self.stream, self.position, self.position) if self.chunk is None else self.chunk

    def on_done(self) -> None:
        self.streams.clients.leave(self.address)


class Streams:
    """The streams of a server. It belongs to one event loop."""

    def __init__(self, opener: Opener, *, max_pending: int = 100_000, max_pending_client: int = 10_000) -> None:
        """Keep streams in the database of `opener`."""
        self.clients = Clients(max_pending_client, "waiting reads")
        self.store = Store(opener, self._committed)
        self.reads = DelayedOperationPurgatory("read", max_pending=max_pending)
        self._max_pending = max_pending
        self.known: OrderedDict[str, Known] = OrderedDict()
        self.on_due: Callable[[Collection[str]], None] = _nothing_due
        """Called with the ids of subscriptions of which something is due."""
        self._opener = opener
        self._shared = opener.shared
        self._size = 0
        self._finding: Counter[str] = Counter()
        """Paths that are being looked up."""
        self._overtaken: Counter[str] = Counter()
        """How often each of them has changed meanwhile."""
        self._loading: dict[tuple[int, int], list[Read]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._wanted: float | None = None
        """When to look again, as was said while it was looked."""
        self._looked_at: set[str] = set()
        self._looking = False
        self._closing = False

    async def start(self) -> None:
        """Open the database. Raises `StorageError`."""
        await self.store.start()

    def look_for_due(self) -> None:
        """Look for due expiries, leases and deliveries: now, and at each later deadline."""
        self._look_soon(0.0)

    async def close(self) -> None:
        """Close the database, when all that was begun is stored."""
        self._closing = True
        if self._alarm is not None:
            self._alarm.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.store.close()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._opener.now()

    async def run(self, command: Command[T]) -> T:
        """Apply a command, and return its result when it is stored."""
        return await self.store.run(command)

    async def secrets(self, new: dict[str, str]) -> dict[str, str]:
        """The secrets with these names, which are made if there are none."""
        return await self.run(Secrets(new))

    # Reads.

    def check_room(self, address: str) -> None:
        """Raise `TooManyRequests` or `PurgatoryFull` if no more reads of a client, or of all, may wait.

        This comes before the database is asked.
        """
        self.clients.check(address)
        if self.reads.num_delayed >= self._max_pending:
            raise PurgatoryFull(f"the limit of waiting reads is reached: max_pending is {self._max_pending}")

    async def find(self, path: str) -> Known:
        """The stream at `path`. Raises `NotFound`, `Gone` or `StorageError`."""
        known = self.known.get(path)
        if known is None or self._shared:
            stream = await self._look_up(path)
            if stream is None:
                self.publish(path, None)
                raise NotFound("there is no such stream")
            known = self._remember(stream)
        else:
            self.known.move_to_end(path)
        if known.gone:
            raise NotFound("there is no such stream")
        if known.stream.deleted:
            raise Gone("the stream is deleted")
        if known.stream.deadline is not None and known.stream.deadline <= self.now():
            await self.run(Expire(path))
            raise NotFound("there is no such stream")
        return known

    async def _look_up(self, path: str) -> Stream | None:
        """The stream in the database, not older than the last notification of the path, unless it is known."""
        self._finding[path] += 1
        try:
            while True:
                # Counted, and not marked: another look-up of the path must not take the mark away.
                changes, stream = await self.store.read(lambda database: (self._overtaken[path], database.stream(path)))
                known = self.known.get(path)
                # A known one is newer, or is told of the change. Else a stream with many appends is read for ever.
                is_known = known is not None and stream is not None and known.stream.id == stream.id
                if is_known or changes == self._overtaken[path]:
                    return stream
        finally:
            self._finding[path] -= 1
            if not self._finding[path]:
                del self._finding[path]
                del self._overtaken[path]

    def touch(self, known: Known) -> None:
        """The stream is read: its time-to-live begins anew."""
        stream = known.stream
        if stream.ttl is None or stream.deadline is None:
            return
        deadline = self.now() + stream.ttl
        if deadline > stream.deadline and not known.touching:
            # A little more, so that not each read has to be stored.
            known.touching = True
            self._spawn(self._touch(known, deadline + max(_LATE * stream.ttl, _SOON)))

    async def _touch(self, known: Known, deadline: float) -> None:
        try:
            await self.run(Touch(known.stream.path, deadline))
        finally:
            known.touching = False

    async def chunk(self, known: Known, position: int) -> Chunk:
        """The data behind `position`. Raises `StorageError`."""
        stream = known.stream
        if position >= stream.tail:
            return Chunk(stream, position, position)
        chunk = self.recent(known, position)
        return await self._stored(stream, position) if chunk is None else chunk

    def recent(self, known: Known, position: int) -> Chunk | None:
        """The data behind `position`, if that is in memory."""
        stream = known.stream
        chunk = known.chunk
        if chunk is not None and chunk.begin == position and chunk.stream is stream:
            return chunk
        rows = known.recent
        if not rows or position < rows[0].begin:
            return None
        parts: list[Part] = []
        size = 0
        for row in reversed(rows):
            if row.end <= position:
                break
            parts.append(Part(max(row.begin, position), row.end, row))
        parts.reverse()
        if stream.media_type == messages.JSON and parts[0].begin > parts[0].row.begin:
            return None  # to split so many messages takes too long for the loop
        for count, part in enumerate(parts, 1):
            size += len(part.row.data)
            if size >= CHUNK or count == PARTS:
                del parts[count:]
                break
        chunk = known.chunk = Chunk(stream, position, parts[-1].end, parts)
        return chunk

    async def _stored(self, stream: Stream, position: int) -> Chunk:
        media = stream.media_type
        parts = await self.store.read(
            lambda database: [_split(media, part) for part in database.read(stream.pieces(position), CHUNK)]
        )
        if not parts:
            raise NotFound("the stream is deleted")
        return Chunk(stream, position, parts[-1].end, parts)

    def wait(self, known: Known, position: int, timeout: float, address: str = "", *, now: bool = False) -> Read:
        """An operation that waits for what follows `position`, for the client with `address`.

        Raises `TooManyRequests`, `PurgatoryFull` or `PurgatoryClosed`.
        """
        self.clients.check(address)  # once more: since `check_room`, others may have come
        operation = Read(self, known.stream, position, timeout, address, now)
        self.clients.enter(address)
        try:
            return self.reads.try_complete_else_watch(operation, [known.stream.path])
        except BaseException:
            if operation.outcome is None:  # else its on_done() was called
                self.clients.leave(address)
            raise

    def load(self, operation: Read) -> None:
        """Read what the operation waits for from the database, and complete it."""
        key = operation.stream.id, operation.position
        waiting = self._loading.get(key)
        if waiting is None:
            self._loading[key] = [operation]
            self._spawn(self._load(key, operation.path))
        elif operation not in waiting:
            waiting.append(operation)

    async def _load(self, key: tuple[int, int], path: str) -> None:
        try:
            known = self.known.get(path)
            mine = self._loading[key][0].stream
            stream = mine if known is None or known.stream.id != mine.id else known.stream
            loaded: Chunk | Exception = await self._stored(stream, key[1])
        except Exception as error:
            loaded = error
        finally:
            waiting = self._loading.pop(key)
        for operation in waiting:
            operation.chunk = loaded
            operation.force_complete()

    # What was committed.

    def _committed(self, changes: list[Change], transaction: Transaction) -> None:
        for change in changes:
            self.publish(change.path, change.stream, change.rows)
        if transaction.subscriptions:
            now = self.now()
            due = [each for each in transaction.subscriptions.values() if each is not None and each.due is not None]
            self.on_due([each.id for each in due if each.due is not None and each.due <= now])
            for each in due:
                self._look_at(each.due)

    def publish(self, path: str, stream: Stream | None, rows: Iterable[Row] = ()) -> None:
        """Remember what a stream is now, and check those that wait for it."""
        if path in self._finding:
            self._overtaken[path] += 1
        if stream is None:
            known = self.known.get(path)
            if known is not None:
                known.gone = True
                self._size -= known.drop_recent()
        else:
            self._remember(stream, rows)
        self.reads.check_and_complete_soon(path)

    async def refresh(self, paths: Collection[str]) -> None:
        """Other processes have changed these streams: look at those that are waited for. Raises `StorageError`."""
        self._overtaken.update(path for path in paths if path in self._finding)
        waiting: dict[str, Stream | None] = {}
        for path in paths:
            if self.reads.is_watched(path):
                known = self.known.get(path)
                waiting[path] = None if known is None else known.stream
            else:
                self._forget(path)  # as it is outdated, or may be
        if waiting:
            found = await self.store.read(lambda database: database.streams(list(waiting)))
            for path, before in waiting.items():
                known = self.known.get(path)
                # What this process has committed meanwhile is newer than a stream that is not found.
                if path in found or known is None or known.stream is before:
                    self.publish(path, found.get(path))

    def look(self, path: str) -> None:
        """Look at a stream that is not in memory, and tell those that wait for it."""
        if path not in self._looked_at:
            self._looked_at.add(path)
            self._spawn(self._look_at_path(path))

    async def _look_at_path(self, path: str) -> None:
        try:
            stream: Stream | Exception | None = await self._look_up(path)
        except StorageError as error:
            stream = error
        finally:
            self._looked_at.discard(path)
        if isinstance(stream, Stream):
            self.publish(path, stream)
            return
        if path in self.known:  # it was committed here meanwhile
            return
        for operation in self.reads.watching(path):
            assert isinstance(operation, Read)
            operation.chunk = stream or NotFound("the stream is deleted")
            operation.force_complete()

    def invalidate(self) -> None:
        """Any stream may have changed in another process."""
        self._overtaken.update(self._finding)
        for path in list(self.known):
            self._forget(path)

    def _remember(self, stream: Stream, rows: Iterable[Row] = ()) -> Known:
        known = self.known.get(stream.path)
        if known is None or known.stream.id != stream.id:
            self._forget(stream.path)
            known = self.known[stream.path] = Known(stream)
        elif known.stream.version > stream.version:
            return known  # overtaken by a later one
        for row in rows:
            if known.recent and known.recent[-1].end != row.begin:
                self._size -= known.drop_recent()  # another process has appended meanwhile
            known.recent.append(row)
            known.size += len(row.data) + _ROW
            self._size += len(row.data) + _ROW
        if known.recent and known.recent[-1].end != stream.tail:
            self._size -= known.drop_recent()
        known.stream = stream
        self.known.move_to_end(stream.path)
        self._look_at(stream.deadline)
        while self._size > _RECENT or len(self.known) > _KNOWN:
            path, oldest = next(iter(self.known.items()))
            if len(self.known) == 1:  # too large alone
                while self._size > _RECENT and len(oldest.recent) > 1:
                    size = len(oldest.recent.popleft().data) + _ROW
                    oldest.size -= size
                    self._size -= size
                break
            self._forget(path)
        return known

    def _forget(self, path: str) -> None:
        known = self.known.pop(path, None)
        if known is not None:
            self._size -= known.size

    # What is due.

    def _look_at(self, time: float | None) -> None:
        """Schedule a look for due streams and subscriptions at `time`, in seconds since 1970."""
        if time is not None:
            self._look_soon(max(_SOON, time - self.now()))

    def _look_soon(self, delay: float) -> None:
        if self._closing:
            return
        when = self._loop.time() + delay
        if self._looking:
            self._wanted = when if self._wanted is None else min(when, self._wanted)
            return
        if self._alarm is not None:
            if self._alarm_at <= when:
                return
            self._alarm.cancel()
        self._alarm_at = when  # not every handle of uvloop's tells
        self._alarm = self._loop.call_at(when, self._begin_to_look)

    def _begin_to_look(self) -> None:
        self._alarm = None
        self._looking = True
        self._spawn(self._look())

    async def _look(self) -> None:
        next_time: float | None = self.now() + _LOOK
        try:
            now = self.now()
            paths, names, next_time = await self.store.read(lambda database: database.due(now))
            if self._shared:
                next_time = min(now + _LOOK, next_time or now + _LOOK)
            await asyncio.gather(*(self.run(Expire(path)) for path in paths))
            await asyncio.gather(*(self.run(Lapse(name)) for name in names))
            self.on_due(names)
        except BaseException:
            next_time = self.now() + _LOOK
            raise
        finally:
            self._looking = False
            wanted, self._wanted = self._wanted, None
            if wanted is not None:
                self._look_soon(wanted - self._loop.time())
            self._look_at(next_time)

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("a background task (expiry, lease or time-to-live) failed: %s", error)


def _split(media: str, part: Part) -> Part:
    """The part with its own data alone."""
    begin, end, row = part
    if (begin, end) == (row.begin, row.end):
        return part
    return Part(begin, end, Row(begin, end, messages.part(media, row.data, begin - row.begin, end - row.begin)))


def _nothing_due(names: Collection[str]) -> None:
    """There are no subscriptions."""
