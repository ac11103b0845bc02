"""The store: a thread that writes, some that read, and the event loop that waits for them.

Commands that come while a transaction is being written form the next transaction together, so the more there are, the
less each one costs. Clients take turns, and a slow transaction is stored before it is full. So a client with many or
slow commands delays another client's by one short transaction. Clients' reads take turns, too.
"""

import asyncio
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from purgatory.streams.admission import current_client
from purgatory.streams.core.commands import Command
from purgatory.streams.core.errors import StreamsError
from purgatory.streams.core.state import Row, Stream
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.storage.database import Database, StorageConflict, StorageError, StorageUnavailable
from purgatory.streams.storage.opener import Opener

T = TypeVar("T")

_BATCH: Final = 256
"""The most commands in a transaction."""
_LARGE: Final = 8 * 1024 * 1024
"""Bytes of appends after which a transaction accepts no further command."""
_LONG: Final = 0.05
"""Seconds after which a transaction accepts no further command."""
_READERS: Final = 2
_READING: Final = 2 * _READERS
"""Reads that have their turn, so that each thread has another read when it has finished."""
PATIENCE: Final = 20.0
"""The timeout of a shared database's answer, in seconds."""
_ATTEMPTS: Final = 10
"""The most attempts of a command that conflicts with other processes."""
_PAUSE: Final = 5.0
"""Seconds until rows of deleted streams are deleted again, after that has failed."""

logger: Final = logging.getLogger("purgatory.streams")


@dataclass(frozen=True, slots=True)
class Change:
    """A stream that a transaction has changed."""

    path: str
    stream: Stream | None
    """Its present state, or `None` if it is deleted."""
    rows: list[Row]
    """The rows that were appended."""


_Item = tuple[Command[Any], "asyncio.Future[Any]", str]
"""A command, for its result, and its client."""
_Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Turns(Generic[T]):
    """Items of clients, which take turns. The items of each are in order."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, client: str, item: T) -> None:
        """Add an item of a client."""
        items = self._items.get(client)
        if items is None:
            self._items[client] = deque((item,))
        else:
            items.append(item)

    def put_back(self, items: Sequence[tuple[str, T]]) -> None:
        """Put back the items that were taken last, so that they come next again, in their order."""
        for client, item in reversed(items):
            self._items.setdefault(client, deque()).appendleft(item)
            # Otherwise a client with many slow items would be first in each turn, and other clients would wait.
            self._items.move_to_end(client, last=False)

    def take(self, limit: int) -> list[T]:
        """Take at most `limit` of the next items, one of each client in turn."""
        taken: list[T] = []
        while self._items and len(taken) < limit:
            client, items = next(iter(self._items.items()))
            # A single client takes all turns.
            count = min(limit - len(taken), len(items)) if len(self._items) == 1 else 1
            taken += [items.popleft() for _ in range(count)]
            if items:
                self._items.move_to_end(client)
            else:
                del self._items[client]
        return taken


class Store:
    """Runs commands, and reads. It belongs to one event loop."""

    def __init__(self, opener: Opener, committed: Callable[[list[Change], Transaction], None]) -> None:
        """Call `committed` in the loop after each transaction, before its commands' callers go on."""
        self.shared = opener.shared
        """Whether other processes use the database too."""
        self._opener = opener
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._commands: Turns[_Item] = Turns()
        """The commands that were taken from the queue, in the writer's thread."""
        self._reads: Turns[asyncio.Future[None]] = Turns()
        self._reading = 0
        self._local = threading.local()
        self._opened: list[Database] = []
        self._readers = ThreadPoolExecutor(_READERS, "streams-reader")
        self._writer = threading.Thread(target=self._write, name="streams-writer", daemon=True)
        self._writing: Database | None = None
        self._closing = False
        self._has_failed = False
        self._unsure: Transaction | None = None
        """The transaction that is being committed. If that fails, it is unknown whether it is stored."""
        self._drop_at = math.inf
        """When to delete rows of deleted streams, by the monotonic clock."""

    async def start(self) -> None:
        """Open the database. Raises `StorageError`."""
        await asyncio.to_thread(self._open)
        self._writer.start()

    def _open(self) -> None:
        self._writing = self._opener.writer()
        self._drop_rows()  # a process that has ended may have left some

    async def close(self) -> None:
        """Close the database after the queued commands. A shared database that does not answer is abandoned."""
        self._closing = True
        closing = threading.Thread(target=self._close, name="streams-closing", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, PATIENCE if self.shared else None)
        if closing.is_alive():
            logger.warning("the database does not answer; its connections are abandoned")

    def _close(self) -> None:
        if self._writer.is_alive():
            self._queue.put(None)
            self._writer.join()
        self._readers.shutdown()
        for database in (self._writing, *self._opened):
            if database is not None:
                database.close()

    async def run(self, command: Command[T]) -> T:
        """Apply a command, and return its result when it is stored.

        Raises what it is refused for, or `StorageError`. A caller that is cancelled leaves it running.
        """
        if self._closing:
            raise StorageUnavailable("the server is shutting down")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((command, future, current_client.get()))
        try:
            if not self.shared:
                return await future
            return await self._patiently(future, may_be_stored=True)
        finally:
            # Otherwise an exception's traceback holds this frame, and so the future and the exception again. In that
            # cycle, the command and its body would wait for the garbage collector.
            del future

    async def read(self, read: Callable[[Database], T]) -> T:
        """Call `read` in a thread, with a connection. Raises `StorageError`."""
        reading = self._read_in_turn(read)
        return await (self._patiently(reading, may_be_stored=False) if self.shared else reading)

    async def _read_in_turn(self, read: Callable[[Database], T]) -> T:
        if self._reading < _READING:
            self._reading += 1
        else:
            turn = self._loop.create_future()
            self._reads.add(current_client.get(), turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._pass_turn()
                raise
        try:
            return await self._loop.run_in_executor(self._readers, self._read, read)
        finally:
            self._pass_turn()

    def _pass_turn(self) -> None:
        """Let the next read begin."""
        while self._reads:
            (turn,) = self._reads.take(1)
            if not turn.done():
                turn.set_result(None)
                return
        self._reading -= 1

    async def _patiently(self, future: Awaitable[T], *, may_be_stored: bool) -> T:
        try:
            async with asyncio.timeout(PATIENCE):
                return await future
        except TimeoutError:
            late = StorageUnavailable("the database does not answer")
            late.may_be_stored = may_be_stored
            raise late from None
        finally:
            del future  # as in `run`

    def _read(self, read: Callable[[Database], T]) -> T:
        database: Database | None = getattr(self._local, "database", None)
        if database is not None and database.is_lost():
            self._drop(database)
            database = None
        if database is None:
            database = self._local.database = self._opener.reader()
            self._opened.append(database)
        try:
            return read(database)
        except StorageUnavailable:
            self._drop(database)
            raise

    def _drop(self, database: Database) -> None:
        # Its connection is lost, and the next read opens another.
        self._local.database = None
        self._opened.remove(database)
        with suppress(Exception):
            database.close()

    # The writer's thread.

    def _write(self) -> None:
        closing = False
        while not closing or self._commands:
            closing = closing or self._take_in()
            if batch := self._commands.take(_BATCH):
                self._write_batch(batch)
            if not closing and self._until_drop() == 0:
                self._drop_rows()  # some of them, so that commands don't wait long

    def _until_drop(self) -> float | None:
        """Return the seconds until rows must be deleted, or `None` if there are none."""
        return None if self._drop_at == math.inf else max(0.0, self._drop_at - time.monotonic())

    def _drop_rows(self) -> None:
        """Delete some of the rows of deleted streams, or give some of their room back to the disk."""
        try:
            with self._writing_to() as database:
                with database.transaction(()):
                    has_more = database.drop_rows()
                has_more = has_more or database.shrink()
        except Exception as error:
            if isinstance(error, StorageError):
                self._failing(error)
            else:
                logger.exception("the rows of deleted streams cannot be deleted")
            self._drop_at = time.monotonic() + _PAUSE
        else:
            self._drop_at = 0.0 if has_more else math.inf

    def _take_in(self) -> bool:
        """Take commands from the queue, and wait for one if there is none. Return whether that was the last."""
        with suppress(Empty):
            item = self._queue.get(timeout=0 if self._commands else self._until_drop())
            while item is not None:
                self._commands.add(item[2], item)
                item = self._queue.get_nowait()
            return True
        return False

    def _write_batch(self, batch: list[_Item], attempts: int = 1) -> None:
        is_single = len(batch) == 1
        try:
            transaction, outcomes = self._transact(batch)
        except Exception as error:
            is_final = is_single
            if isinstance(error, StorageConflict):
                is_final = is_single and attempts == _ATTEMPTS
            elif isinstance(error, StorageError):
                self._failing(error)
                is_final = is_single or error.may_be_stored or isinstance(error, StorageUnavailable)
            elif is_single:
                logger.exception("a command has failed")
            if is_final:
                self._settle_soon([], None, [(future, None, error) for _, future, _ in batch])
                return
        else:
            if transaction.is_changed:
                self._failing(None)
            self._commands.put_back([(item[2], item) for item in batch[len(outcomes) :]])
            self._settle_soon(_changes(transaction), transaction, outcomes)
            return
        for item in batch:  # the database may refuse one of them
            self._write_batch([item], attempts + 1 if is_single else 1)

    def _failing(self, error: StorageError | None) -> None:
        """Log once that the database fails, and once that it works again."""
        if error is not None and not self._has_failed:
            logger.error("changes are not stored: %s", error)
        elif error is None and self._has_failed:
            logger.warning("changes are stored again")
        self._has_failed = error is not None

    @contextmanager
    def _writing_to(self) -> Iterator[Database]:
        """Yield the connection that writes. If it is lost, it is closed now and opened again next time."""
        if self._writing is not None and self._writing.is_lost():
            self._writing.close()
            self._writing = None
        if self._writing is None:
            self._writing = self._opener.writer()
        database = self._writing
        try:
            self._make_sure(database)
            yield database
        except StorageUnavailable:
            self._writing = None
            with suppress(Exception):
                database.close()
            raise

    def _make_sure(self, database: Database) -> None:
        """Tell the loop the present state of the streams that an uncertain transaction may have changed."""
        unsure = self._unsure
        if unsure is not None:
            self._settle_soon([Change(path, database.stream(path), []) for path in unsure.paths], unsure, [])
            self._unsure = None

    def _transact(self, batch: list[_Item]) -> tuple[Transaction, list[_Outcome]]:
        outcomes: list[_Outcome] = []
        with self._writing_to() as database:
            paths = {path for command, _, _ in batch for path in command.paths}
            with database.transaction(paths, any(command.alone for command, _, _ in batch)):
                transaction = Transaction(database, self._opener.now())
                end = time.perf_counter() + _LONG
                for command, future, _ in batch:
                    try:
                        outcomes.append((future, command.apply(transaction), None))
                    except StreamsError as error:
                        # Its frames hold the whole batch.
                        outcomes.append((future, None, error.with_traceback(None)))
                    if transaction.size >= _LARGE or time.perf_counter() > end:
                        break
                if transaction.is_changed:
                    database.store(transaction)
                    if not self.shared:  # otherwise a notification tells what is stored
                        self._unsure = transaction
            self._unsure = None
            database.stored(transaction)
        if transaction.removed:
            self._drop_at = 0.0
        return transaction, outcomes

    def _settle_soon(self, changes: list[Change], transaction: Transaction | None, outcomes: list[_Outcome]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._settle, changes, transaction, outcomes)

    def _settle(self, changes: list[Change], transaction: Transaction | None, outcomes: list[_Outcome]) -> None:
        try:
            if transaction is not None:
                self._committed(changes, transaction)
        finally:
            for future, result, error in outcomes:
                if not future.done():  # otherwise its caller is cancelled
                    if error is None:
                        future.set_result(result)
                    else:
                        future.set_exception(error)


def _changes(transaction: Transaction) -> list[Change]:
    changes = {stream.path: Change(stream.path, None, []) for stream in transaction.removed.values()}
    for stream in (*transaction.changed.values(), *transaction.added.values()):
        changes[stream.path] = Change(stream.path, stream, transaction.rows.get(stream.id, []))
    return list(changes.values())
