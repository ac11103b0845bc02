"""SQLite in a folder, for one process, which knows everything that it has stored."""

import os
import sqlite3
import sys
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from purgatory.streams.core.state import Link, Piece, Row, Stream, Subscription
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.storage import schema
from purgatory.streams.storage.database import (
    FROM_DATA,
    Database,
    StorageConflict,
    StorageError,
    StorageFull,
    StorageUnavailable,
    of_piece,
)

_DIALECT: Final = schema.Dialect(
    blob="BLOB",
    columns="SELECT found.name, columns.name FROM sqlite_schema AS found, pragma_table_info(found.name) AS columns",
    own=(
        "CREATE TABLE IF NOT EXISTS last_id (one INTEGER PRIMARY KEY, id INTEGER NOT NULL)",
        "INSERT OR IGNORE INTO last_id VALUES (0, 0)",
    ),
    own_columns=frozenset({("last_id", "one"), ("last_id", "id")}),
)

RESERVED: Final = 16 * 1024 * 1024
"""Bytes of a `Reserve`."""
_CACHED: Final = 10_000
"""Streams that are remembered, and paths whose links are."""
_LONG: Final = 1_000
"""Characters of a stream's texts from which on it is not remembered, so that the memory for all is bounded."""
_FEW: Final = 10
"""Links to a path that are remembered. Of one that has more, they are looked up: there may be a thousand."""
_INCREMENTAL: Final = 2
"""The `auto_vacuum` of a database that gives pages back when it is asked to."""
_LOG: Final = 32 * 1024 * 1024
"""Bytes of the write-ahead log that are kept for the next changes: one that a large change has left is cut off."""
_SHRUNK: Final = 256
"""Pages that are given back to the disk at once: two MiB, which takes some milliseconds."""
_SPARE: Final = 128
"""Free pages that are kept for new rows, at least, and an eighth of the file."""
_MARGIN: Final = 4 * 1024 * 1024
"""Bytes that are free on the disk when something is appended, at least."""
_PRIMARY: Final = 0xFF
"""The bits of an error code that say what has failed; others say how."""
_ERRORS: Final = {sqlite3.SQLITE_FULL: StorageFull, sqlite3.SQLITE_IOERR: StorageUnavailable}
"""The classes of errors. A connection with an I/O error is closed, because the state of the disk is unknown."""


class Reserve:
    """A file that takes room on the disk, so that streams can be deleted when it is full.

    SQLite writes a deletion to its log before it frees anything, and what the log has to its file, which may grow by
    that. On a full disk neither is possible, so nothing could be deleted. Hence a file takes room beforehand: as much
    as the log may need until it is in the database, and as much again for deletions. When the disk is full, the file is
    emptied, and only what frees room is stored, until there is enough to fill it again.
    """

    def __init__(self, path: Path) -> None:
        """Look whether the file has the room."""
        self._path = path
        self._folder = str(path.parent)
        self.is_made = path.exists() and path.stat().st_size == RESERVED

    def free(self) -> int:
        """Return bytes that are free on the disk. A file system that does not say has no bound."""
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize if disk.f_blocks else sys.maxsize

    def make(self) -> bool:
        """Take the room, if it is not taken. Return whether it is."""
        if not self.is_made:
            try:
                with self._path.open("wb") as file:
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(file.fileno(), 0, RESERVED)
                    else:  # macOS
                        file.write(bytes(RESERVED))
                self.is_made = True
            except OSError:  # there is less room than it seems, or a quota
                with suppress(OSError):
                    os.truncate(self._path, 0)
        return self.is_made

    def release(self) -> bool:
        """Let the database have the room. Return whether there was some."""
        was_made = self.is_made
        if was_made:
            os.truncate(self._path, 0)
            self.is_made = False
        return was_made


class FileDatabase(Database):
    """A connection that reads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        with _errors():
            self.connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=60)
            try:
                self._prepare()
            except BaseException:
                self.connection.close()
                raise

    def _prepare(self) -> None:
        self.connection.execute("PRAGMA query_only = 1")

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with _errors():
            return self.connection.execute(sql, parameters).fetchall()

    def execute_many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        with _errors():
            self.connection.executemany(sql, parameters)

    def rows(self, piece: Piece, limit: int) -> Iterator[Row]:
        with _errors():
            # A window would copy all rows, to know their sizes.
            for first, last, data in self.connection.execute(f"SELECT first, last, data {FROM_DATA}", of_piece(piece)):
                yield Row(first, last, data)

    @contextmanager
    def transaction(self, paths: Collection[str], alone: bool = False) -> Iterator[None]:
        is_committing = False
        try:
            self.execute("BEGIN IMMEDIATE")  # it may have begun even if it fails
            yield
            is_committing = True
            self.execute("COMMIT")
        except BaseException as error:
            if isinstance(error, StorageUnavailable):
                # All of it may be written, and only the fsync have failed: opened again, the database may have it.
                error.may_be_stored = is_committing
            if self.connection.in_transaction:
                with suppress(StorageError):
                    self.execute("ROLLBACK")
            if self.connection.in_transaction:
                lost = StorageUnavailable(f"the rollback failed, so the database is opened again: {error}")
                lost.may_be_stored = isinstance(error, StorageError) and error.may_be_stored
                raise lost from error
            raise

    def new_id(self) -> int:
        return self.number("UPDATE last_id SET id = id + 1 RETURNING id")

    def close(self) -> None:
        self.connection.close()


class WritingDatabase(FileDatabase):
    """The connection that writes. It remembers what it has stored, because nothing else changes the database."""

    def __init__(self, file: Path) -> None:
        self._reserve = Reserve(file.with_name("reserve"))
        self._is_full = False
        """Whether the disk has just turned out to be full."""
        try:
            super().__init__(file)
        except (StorageFull, StorageUnavailable):
            if not self._reserve.release():
                raise
            super().__init__(file)  # for its files there may be too little room without

    def _prepare(self) -> None:
        # A large append needs fewer pages then, of a new database: an old one keeps its own.
        self.connection.execute("PRAGMA page_size = 8192")
        # Only of a new database, too: an old one needs a VACUUM to get it.
        self.connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # A commit returns when it is on the disk.
        self.connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        self.connection.execute(f"PRAGMA journal_size_limit = {_LOG}")
        schema.prepare(self, _DIALECT)
        self._streams: OrderedDict[str, Stream | None] = OrderedDict()
        self._subscriptions = {name: FileDatabase.subscription(self, name) for name, _ in FileDatabase.patterns(self)}
        self._compiled.replace(FileDatabase.patterns(self))
        self._links: OrderedDict[str, dict[str, Link]] = OrderedDict()
        counts = self.execute("SELECT subscription, count(*) FROM links GROUP BY subscription")
        self._link_counts: Counter[str] = Counter(dict(counts))
        self._count = super().count()

    def check(self) -> None:
        """Read the whole database. Raises `StorageError` if it is damaged: the first finding."""
        ((finding,),) = self.execute("PRAGMA integrity_check(1)")
        if finding != "ok":
            raise StorageError(f"the database is damaged: {' '.join(finding.split())}")

    def stream(self, path: str) -> Stream | None:
        try:
            stream = self._streams[path]
        except KeyError:
            stream = super().stream(path)
            self._remember(path, stream)
        else:
            self._streams.move_to_end(path)
        return stream

    def _remember(self, path: str, stream: Stream | None) -> None:
        if len(path) > _LONG or (stream is not None and stream.text_size > _LONG):
            self._streams.pop(path, None)
            return
        self._streams[path] = stream
        if len(self._streams) > _CACHED:
            self._streams.popitem(last=False)

    def count(self) -> int:
        return self._count

    def subscription(self, name: str) -> Subscription | None:
        return self._subscriptions.get(name)

    def matching(self, path: str) -> Collection[str]:
        return self._compiled.matching(path)

    def subscription_count(self) -> int:
        return len(self._subscriptions)

    def links_at(self, path: str) -> Mapping[str, Link]:
        if not self._link_counts:
            return {}
        links = self._links.get(path)
        if links is None:
            links = dict(super().links_at(path))
            self._remember_links(path, links)
        else:
            self._links.move_to_end(path)
        return links

    def _remember_links(self, path: str, links: dict[str, Link]) -> None:
        if len(links) > _FEW or len(path) > _LONG:
            self._links.pop(path, None)
            return
        self._links[path] = links
        if len(self._links) > _CACHED:
            self._links.popitem(last=False)

    def link_count(self, subscription: str) -> int:
        return self._link_counts[subscription]

    @contextmanager
    def transaction(self, paths: Collection[str], alone: bool = False) -> Iterator[None]:
        with self._releasing(), super().transaction(paths, alone):
            yield

    @contextmanager
    def _releasing(self) -> Iterator[None]:
        """Release the reserve if the disk is full, so that the commands are tried again."""
        try:
            yield
        except StorageFull as error:
            if isinstance(error.__cause__, sqlite3.Error) and self._reserve.release():
                self._is_full = True
                raise StorageConflict(str(error)) from error
            raise

    def store(self, transaction: Transaction) -> None:
        is_new = any(name not in self._subscriptions for name in transaction.subscriptions)
        if transaction.rows or transaction.added or is_new:
            self._check_room(sum(len(row.data) for rows in transaction.rows.values() for row in rows))
        super().store(transaction)

    def _check_room(self, size: int) -> None:
        """Raise `StorageFull` if there is no room to append so many bytes, and to delete them afterwards."""
        is_full, self._is_full = self._is_full, False
        # They are written to the log, and then to the file.
        needed = 2 * size + _MARGIN + (0 if self._reserve.is_made else RESERVED)
        free = self._reserve.free()
        if free < needed:
            free += self.number("PRAGMA freelist_count") * self.number("PRAGMA page_size")
        if is_full or free < needed or not self._reserve.make():
            raise StorageFull("the disk is full: nothing is appended until there is room, but streams can be deleted")

    def shrink(self) -> bool:
        spare = max(_SPARE, self.number("PRAGMA page_count") // 8)
        free = self.number("PRAGMA freelist_count")
        if free <= spare or self.number("PRAGMA auto_vacuum") != _INCREMENTAL:
            return False
        with self._releasing(), _errors():
            # Not by `execute`, which takes one step of a statement without columns: that is a page.
            self.connection.executescript(f"PRAGMA incremental_vacuum({_SHRUNK})")
        if free - _SHRUNK > spare:
            return True
        self.execute("PRAGMA wal_checkpoint")  # it cuts off the file
        return False

    def stored(self, transaction: Transaction) -> None:
        """Remember the changes of a committed transaction."""
        for path, stream in transaction.paths.items():
            self._remember(path, stream)
        if transaction.subscriptions or transaction.links:
            self._remember_subscriptions(transaction)
        self._count += len(transaction.added) - len(transaction.removed)

    def _remember_subscriptions(self, transaction: Transaction) -> None:
        is_new = any(name not in self._subscriptions for name in transaction.subscriptions)
        for name, subscription in transaction.subscriptions.items():
            if subscription is None:
                self._subscriptions.pop(name, None)
            else:
                self._subscriptions[name] = subscription
        if is_new or transaction.unlinked:
            self._compiled.replace((name, each.pattern) for name, each in self._subscriptions.items() if each)
        if transaction.unlinked:
            self._links.clear()
            for name in transaction.unlinked:
                del self._link_counts[name]
        for (name, path), link in transaction.links.items():
            links = self._links.get(path)
            if links is not None and link is not None:
                links[name] = link
                self._remember_links(path, links)
            elif links is not None:
                links.pop(name, None)
        self._link_counts.update(transaction.added_links)
        for name in [name for name in transaction.added_links if not self._link_counts[name]]:
            del self._link_counts[name]


@contextmanager
def _errors() -> Iterator[None]:
    """Raise `StorageError` for errors of SQLite."""
    try:
        yield
    except sqlite3.Error as error:
        kind = _ERRORS.get(getattr(error, "sqlite_errorcode", 0) & _PRIMARY, StorageError)
        raise kind(f"the database failed: {error}") from error
