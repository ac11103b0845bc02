"""The message log: SQLite in a thread of its own, one transaction for all simultaneous publishes."""

import asyncio
import fcntl
import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from examples.long_poll_server.batches import Batches
from examples.long_poll_server.store import MAX_REPLICAS, TooManyReplicas, as_json

BATCH = 1000
"""Messages in a transaction, at most."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    topic TEXT NOT NULL, offset INTEGER NOT NULL, value TEXT NOT NULL, PRIMARY KEY (topic, offset)
) WITHOUT ROWID
"""
INCARNATION = "CREATE TABLE IF NOT EXISTS incarnation (only INTEGER PRIMARY KEY CHECK (only = 0), id TEXT NOT NULL)"


class MessageLog:
    """The `Store` of a server that is one process. A message counts once it is on disk.

    SQLite blocks, so it works in two threads, one that writes and one that reads. While a transaction is on its way to
    the disk, new messages gather for the next: an fsync serves all publishes meanwhile. Where replicas are is kept
    in memory: after a restart they fetch again.
    """

    incarnation: str
    """Names this log, for as long as it has these messages."""

    def __init__(self, directory: Path, on_append: Callable[[str], object]) -> None:
        """Open the log in `directory`, which is made if need be. `on_append(topic)` is called when it has grown.

        Raises `OSError` if the directory cannot be used, `BlockingIOError` if another process uses it.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = (directory / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._on_append = on_append
        path = directory / "messages.sqlite3"
        self._write_connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._write_connection.execute("PRAGMA journal_mode = WAL")
        self._write_connection.execute("PRAGMA synchronous = FULL")
        for statement in (SCHEMA, INCARNATION):
            self._write_connection.execute(statement)
        self._write_connection.execute("INSERT OR IGNORE INTO incarnation VALUES (0, ?)", (secrets.token_hex(8),))
        (self.incarnation,) = self._write_connection.execute("SELECT id FROM incarnation").fetchone()
        self._read_connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._read_connection.execute("PRAGMA query_only = ON")
        self._ends = self._load_ends()
        self._writer = ThreadPoolExecutor(1, "writer")
        self._reader = ThreadPoolExecutor(1, "reader")
        self._batches = Batches(self._store, BATCH, size=lambda item: len(item[1]))
        self._positions: defaultdict[str, dict[str, int]] = defaultdict(dict)

    async def start(self) -> None:
        """It is ready."""

    @property
    def topics(self) -> int:
        """How many have messages."""
        return len(self._ends)

    def end(self, topic: str) -> int:
        """The offset that the next message of `topic` will have."""
        return self._ends.get(topic, 0)

    def count(self, topic: str, offset: int) -> int:
        """How many replicas have acknowledged the message at `offset`."""
        return sum(position > offset for position in self._positions.get(topic, {}).values())

    async def refresh(self, topics: Iterable[str]) -> None:
        """Everything is known."""

    async def append(self, topic: str, value: str) -> int:
        """Store `value`, which is JSON. Returns its offset when it is on disk; raises `sqlite3.Error` if it is not."""
        return await self._batches.do((topic, value))

    async def read(self, topic: str, offset: int, end: int, limit: int) -> tuple[str, int]:
        """A page of up to `limit` messages from `offset` to before `end`, as a JSON array, and the offset after it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._select, topic, offset, min(end, offset + limit))

    async def acknowledge(self, topic: str, replica: str, offset: int) -> None:
        """`replica` fetches at `offset`: it has everything below. Raises `TooManyReplicas` if it is one too many."""
        positions = self._positions[topic]
        if replica not in positions and len(positions) == MAX_REPLICAS:
            raise TooManyReplicas
        positions[replica] = max(offset, positions.get(replica, 0))

    async def close(self) -> None:
        """Store what has been given to `append`, and close the files."""
        await self._batches.finish()
        self._writer.shutdown()
        self._reader.shutdown()
        self._read_connection.close()
        self._write_connection.close()
        self._lock.close()

    async def _store(self, batch: list[tuple[str, str]]) -> list[int]:
        ends: dict[str, int] = {}
        rows = []
        for topic, value in batch:
            offset = ends.get(topic, self.end(topic))
            ends[topic] = offset + 1
            rows.append((topic, offset, value))
        await asyncio.get_running_loop().run_in_executor(self._writer, self._insert, rows)
        # Only now: an offset that was not stored is given to the next message, so there are no gaps.
        self._ends.update(ends)
        for topic in ends:
            self._on_append(topic)
        return [offset for _, offset, _ in rows]

    def _insert(self, rows: list[tuple[str, int, str]]) -> None:
        self._write_connection.execute("BEGIN")
        try:
            self._write_connection.executemany("INSERT INTO messages VALUES (?, ?, ?)", rows)
            self._write_connection.execute("COMMIT")
        except BaseException:
            if self._write_connection.in_transaction:
                self._write_connection.execute("ROLLBACK")
            raise

    def _select(self, topic: str, offset: int, end: int) -> tuple[str, int]:
        found = self._read_connection.execute(
            "SELECT offset, value FROM messages WHERE topic = ? AND offset >= ? AND offset < ? ORDER BY offset",
            (topic, offset, end),
        )
        try:
            return as_json(found, offset)
        finally:
            found.close()

    def _load_ends(self) -> dict[str, int]:
        # One look-up in the index for each topic, however many messages it has.
        ends: dict[str, int] = {}
        topic = ""
        while True:
            row = self._write_connection.execute(
                "SELECT topic, offset FROM messages WHERE topic = "
                "(SELECT topic FROM messages WHERE topic > ? ORDER BY topic LIMIT 1) ORDER BY offset DESC LIMIT 1",
                (topic,),
            ).fetchone()
            if row is None:
                return ends
            topic, last = row
            ends[topic] = last + 1
