"""The message log: SQLite in a thread of its own, one transaction for all who publish at the same time."""

import asyncio
import fcntl
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MAX_RESPONSE_BYTES = 8 * 1024 * 1024

SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    topic TEXT NOT NULL, offset INTEGER NOT NULL, value TEXT NOT NULL, PRIMARY KEY (topic, offset)
) WITHOUT ROWID
"""


class MessageLog:
    """Topics of messages numbered 0, 1, 2, … without gaps. A message counts once it is on disk.

    SQLite blocks, so it works in two threads, one that writes and one that reads. While a transaction is on its way to
    the disk, new messages gather for the next: an fsync serves all who published meanwhile.
    """

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
        self._write_connection.execute(SCHEMA)
        self._read_connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._read_connection.execute("PRAGMA query_only = ON")
        self._ends = self._load_ends()
        self._writer = ThreadPoolExecutor(1, "writer")
        self._reader = ThreadPoolExecutor(1, "reader")
        self._batch: list[tuple[str, str, asyncio.Future[int]]] = []
        self._flushing: asyncio.Task[None] | None = None

    def end(self, topic: str) -> int:
        """The offset that the next message of `topic` will have."""
        return self._ends.get(topic, 0)

    async def append(self, topic: str, value: str) -> int:
        """Store `value`, which is JSON. Returns its offset when it is on disk; raises `sqlite3.Error` if it is not."""
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._batch.append((topic, value, stored))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return await stored

    async def read(self, topic: str, offset: int, end: int, limit: int) -> tuple[str, int]:
        """Up to `limit` messages from `offset` to before `end`, as a JSON array, and the offset after them.

        An answer of more than 8 MiB is cut short after the message that makes it so.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._select, topic, offset, min(end, offset + limit))

    async def close(self) -> None:
        """Store what has been given to `append`, and close the files."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        self._writer.shutdown()
        self._reader.shutdown()
        self._read_connection.close()
        self._write_connection.close()
        self._lock.close()

    async def _flush(self) -> None:
        try:
            while self._batch:
                batch, self._batch = self._batch, []
                await self._store(batch)
        finally:
            self._flushing = None

    async def _store(self, batch: list[tuple[str, str, "asyncio.Future[int]"]]) -> None:
        ends: dict[str, int] = {}
        rows = []
        for topic, value, _ in batch:
            offset = ends.get(topic, self.end(topic))
            ends[topic] = offset + 1
            rows.append((topic, offset, value))
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._insert, rows)
        except Exception as error:
            for _, _, stored in batch:
                if not stored.done():
                    stored.set_exception(error)
            return
        # Only now: an offset that was not stored is given to the next message, so there are no gaps.
        self._ends.update(ends)
        for (_, _, stored), (_, offset, _) in zip(batch, rows, strict=True):
            if not stored.done():
                stored.set_result(offset)
        for topic in ends:
            self._on_append(topic)

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
        messages = []
        size = 0
        found = self._read_connection.execute(
            "SELECT offset, value FROM messages WHERE topic = ? AND offset >= ? AND offset < ? ORDER BY offset",
            (topic, offset, end),
        )
        for number, value in found:
            messages.append(f'{{"offset":{number},"value":{value}}}')
            size += len(messages[-1])
            if size > MAX_RESPONSE_BYTES:
                break
        found.close()
        return f"[{','.join(messages)}]", offset + len(messages)

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
