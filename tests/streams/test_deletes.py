"""Deleted and expired streams, and long chains of forks, are gone at once, and go in steps of a bounded size."""

import asyncio
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from purgatory.streams.core import commands
from purgatory.streams.core.commands import Append, Create, Delete, Fork, Identity
from purgatory.streams.core.errors import Forbidden, NotFound
from purgatory.streams.core.messages import ROW
from purgatory.streams.core.state import Stream
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.engine.store import Store
from purgatory.streams.engine.streams import Streams
from purgatory.streams.settings import Settings
from purgatory.streams.storage import database as storage
from purgatory.streams.storage.database import Database, Extent, StorageError
from purgatory.streams.storage.opener import opener
from purgatory.streams.storage.sqlite import FileDatabase, WritingDatabase
from tests.streams.serving import applied, opened

BINARY = "application/octet-stream"
LEFT = "SELECT (SELECT count(*) FROM data) + (SELECT count(*) FROM producers)"
ALL_LEFT = f"{LEFT} + (SELECT count(*) FROM dropped) + (SELECT count(*) FROM streams)"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that were dropped at once."""
    steps: list[int] = []
    drop_rows = Database.drop_rows

    def counted(self: Database) -> bool:
        ((before,),) = self.execute(LEFT)
        has_more = drop_rows(self)
        ((after,),) = self.execute(LEFT)
        if before != after:
            steps.append(before - after)
        return has_more

    monkeypatch.setattr(Database, "drop_rows", counted)
    return steps


async def left(streams: Streams, sql: str = LEFT) -> int:
    """How many rows and producers there are."""
    ((count,),) = await streams.store.read(lambda database: database.execute(sql))
    return int(count)


async def until_left(streams: Streams, count: int) -> None:
    """Return when there are no more, with the streams themselves: the time-out of the test is the bound."""
    while await left(streams, ALL_LEFT) > count:  # noqa: ASYNC110 - another thread's
        await asyncio.sleep(0.01)


async def test_a_deleted_stream_goes_in_steps_between_commands(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    monkeypatch.setattr(storage, "_DROPPED", 5)
    drop_rows = Store._drop_rows
    done = threading.Event()

    def drop_rows_between_commands(self: Store) -> None:
        while self._queue.empty() and not done.is_set():
            time.sleep(0.001)
        drop_rows(self)

    async with opened(settings) as streams:
        for path, rows in (("large", 125), ("small", 3)):
            await streams.run(Create(path, BINARY))
            appends = [Append(path, BINARY, b"x", None, Identity(f"{number}", 0, 0)) for number in range(rows)]
            await asyncio.gather(*map(streams.run, appends))
        assert await left(streams) == 256
        monkeypatch.setattr(Store, "_drop_rows", drop_rows_between_commands)
        await streams.run(Delete("large"))
        with pytest.raises(NotFound):
            await streams.find("large")
        await streams.run(Create("large", BINARY))
        await streams.run(Append("large", BINARY, b"y"))
        assert await left(streams) > 200  # the others have waited for a step each
        done.set()
        await until_left(streams, 9)
        cached = await streams.find("large")
        for _ in range(2):
            assert (await streams.chunk(cached, 0)).body() == b"y"
            cached.drop_recent()
    assert (max(steps), sum(steps)) == (5, 250)


async def test_a_deleted_stream_gives_its_room_back_to_the_disk(tmp_path: Path, streams: Streams) -> None:
    freed: list[int] = []
    file = tmp_path / "streams.sqlite"
    writing: Any = streams.store._writing
    shrink = writing.shrink

    def observed() -> bool:
        before = writing.number("PRAGMA page_count")
        has_more: bool = shrink()
        freed.append(before - writing.number("PRAGMA page_count"))
        return has_more

    writing.shrink = observed
    await streams.run(Create("small", BINARY, body=b"x" * 10_000))
    await streams.run(Create("large", BINARY))
    for _ in range(20):
        await streams.run(Append("large", BINARY, bytes(1024 * 1024)))
        await streams.run(Append("small", BINARY, b"y"))  # among the pages of the large one
    await streams.run(Append("large", BINARY, bytes(40 * 1024 * 1024)))
    assert file.stat().st_size > 50 * 1024 * 1024
    await streams.run(Delete("large"))
    while file.stat().st_size > 3 * 1024 * 1024:  # noqa: ASYNC110 - another thread's
        await asyncio.sleep(0.01)
    assert len(freed) > 20
    assert max(freed) <= 257  # with a page of pointers
    await streams.run(Append("small", BINARY, b"z"))  # the first one of a new write-ahead log
    assert file.with_name("streams.sqlite-wal").stat().st_size <= 32 * 1024 * 1024
    cached = await streams.find("small")
    cached.drop_recent()
    assert (await streams.chunk(cached, 0)).body() == b"x" * 10_000 + b"y" * 20 + b"z"
    assert writing.execute("PRAGMA integrity_check") == [("ok",)]


def test_a_failure_to_shrink_is_told(writer: WritingDatabase) -> None:
    writer.execute("INSERT INTO data VALUES (1, 0, 1, NULL, zeroblob(2000000))")
    writer.execute("DELETE FROM data")
    writer.execute("PRAGMA query_only = 1")
    with pytest.raises(StorageError, match="readonly"):
        writer.shrink()


async def test_a_database_that_cannot_shrink_keeps_its_room(tmp_path: Path) -> None:
    """One that an earlier release has made."""
    file = tmp_path / "streams.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("PRAGMA auto_vacuum = NONE; CREATE TABLE any_table (name TEXT)")
    async with opened(Settings(data=str(tmp_path))) as streams:
        await streams.run(Create("large", BINARY, body=bytes(10 * 1024 * 1024)))
        await streams.run(Delete("large"))
        while await left(streams) or streams.store._until_drop() is not None:  # noqa: ASYNC110 - another thread's
            await asyncio.sleep(0.01)
    assert file.stat().st_size > 10 * 1024 * 1024


async def test_large_rows_go_in_steps_of_fewer(streams: Streams, steps: list[int]) -> None:
    await streams.run(Create("a", BINARY, body=bytes(150 * ROW)))
    await streams.run(Delete("a"))
    await until_left(streams, 0)
    assert steps == [64, 64, 22]


async def test_streams_that_expire_at_once_go_in_steps(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    monkeypatch.setattr(storage, "_DROPPED", 20)
    monkeypatch.setattr(storage, "_DUE", 30)
    now = 1000.0
    monkeypatch.setattr(streams._opener, "now", lambda: now)
    for number in range(100):
        await streams.run(Create(f"{number}", BINARY, expires_at=("soon", 1060.0), body=bytes(3 * ROW)))
    now += 61
    streams.look_for_due()
    await until_left(streams, 0)
    assert (max(steps), sum(steps)) == (20, 300)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StorageError("no"), "changes are not stored: no"),
        (ValueError("no"), "the rows of deleted streams cannot be deleted"),
    ],
)
async def test_a_step_that_fails_is_tried_again_and_harms_no_command(
    streams: Streams,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    message: str,
) -> None:
    monkeypatch.setattr("purgatory.streams.engine.store._PAUSE", 0.05)
    failures = 0

    def fail(self: Database) -> bool:
        nonlocal failures
        failures += 1
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Database, "drop_rows", fail)
        await streams.run(Create("a", BINARY, body=b"x"))
        await streams.run(Delete("a"))
        await streams.run(Create("a", BINARY))
        while failures < 3:  # noqa: ASYNC110 - another thread's
            await asyncio.sleep(0.01)
        assert await left(streams) == 1
    await until_left(streams, 1)
    assert message in caplog.text


async def test_a_read_meets_no_gap_where_rows_are_dropped(streams: Streams) -> None:
    stream = (await streams.run(Create("a", BINARY, body=bytes(3 * ROW)))).stream
    writing: Any = streams.store._writing
    writing.execute("DELETE FROM data WHERE first = 0")
    for position in (0, ROW - 1):
        with pytest.raises(NotFound):
            await streams.readers.stored(stream, position, Extent(2 * ROW, 9))
    assert len((await streams.readers.stored(stream, ROW, Extent(2 * ROW, 9))).body()) == 2 * ROW


def test_processes_do_not_wait_for_each_other(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_DROPPED", 4)
    monkeypatch.setattr(storage, "_DROPPED_STREAMS", 2)
    found = opener(Settings(database=database))
    with closing(found.writer()) as one, closing(found.writer()) as other:
        for stream in range(3):
            one.execute("INSERT INTO dropped VALUES (?)", [stream])
            for first in range(3):
                one.execute("INSERT INTO data VALUES (?, ?, ?, NULL, ?)", [stream, first, first + 1, b"x"])
        with one.transaction(()):
            assert one.drop_rows()
            with other.transaction(()):
                assert not other.drop_rows()
        sql = "SELECT stream, count(*) FROM data GROUP BY stream"
        assert one.execute(sql) == [(1, 2)]
        with other.transaction(()):
            assert not other.drop_rows()
        assert one.execute(sql) == one.execute("SELECT * FROM dropped") == []


def creations(length: int) -> list[Create]:
    """A stream, a fork of it, a fork of that and so on, each with a byte more."""
    forks = [Create(f"{number}", None, body=b"x", fork=Fork(f"{number - 1}")) for number in range(1, length)]
    return [Create("0", BINARY, body=b"x"), *forks]


def test_the_depth_of_forks_is_bounded(writer: WritingDatabase) -> None:
    transaction = Transaction(writer, 0.0)
    streams = [creation.apply(transaction).stream for creation in creations(65)]
    assert [len(stream.lineage) for stream in streams] == list(range(65))
    with pytest.raises(Forbidden, match="more than 64 streams: copy the data to a stream of its own"):
        Create("65", None, body=b"x", fork=Fork("64")).apply(transaction)
    assert "65" not in [stream.path for stream in transaction.added.values()]
    assert transaction.stream("64") == streams[64]
    # A fork that branches off before has fewer.
    assert len(Create("65", None, fork=Fork("64", 64)).apply(transaction).stream.lineage) == 64


def test_forks_share_their_lineage(writer: WritingDatabase) -> None:
    streams = [applied(writer, creation).stream for creation in creations(60)]
    for stream, fork in pairwise(streams[1:]):
        assert all(map(lambda one, other: one is other, stream.lineage, fork.lineage))
    applied(writer, Create("other", None, fork=Fork("58")))
    first, second = (FileDatabase.stream(writer, path) for path in ("59", "other"))  # not the remembered ones
    assert first is not None
    assert second is not None
    assert first.lineage is second.lineage
    assert len(first.lineage) == 59


async def test_a_long_chain_is_dropped_in_steps(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_DROPPED", 10)
    removed: Counter[Transaction] = Counter()
    remove = Transaction.remove

    def counted(self: Transaction, stream: Stream) -> None:
        removed[self] += 1
        remove(self, stream)

    monkeypatch.setattr(Transaction, "remove", counted)
    async with opened(settings) as streams:
        for creation in creations(35):
            await streams.run(creation)
        cached = await streams.find("34")
        cached.drop_recent()
        assert (await streams.chunk(cached, 0)).body() == 35 * b"x"
        for number in range(34):
            await streams.run(Delete(f"{number}"))
        assert not removed  # all are kept for the last one
        await streams.run(Delete("34"))
        with pytest.raises(NotFound):
            await streams.find("34")
        # The path of one that is still to be dropped can be used at once.
        await streams.run(Create("24", BINARY))
        await until_left(streams, 1)
        assert (max(removed.values()), sum(removed.values())) == (10, 35)


async def test_what_a_killed_process_has_left_goes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_DROPPED", 2)
    with closing(WritingDatabase(tmp_path / "streams.sqlite")) as database:
        applied(database, *creations(7))
        applied(database, *(Delete(f"{number}") for number in range(7)))
        assert database.execute("SELECT path, deadline FROM streams WHERE refs = 0") == [("4", 0.0)]
        assert database.execute(LEFT) == [(7,)]
    async with opened(Settings(data=str(tmp_path))) as streams:
        assert await left(streams) == 5  # those of streams that were dropped are deleted
        with pytest.raises(NotFound):
            await streams.run(Append("4", BINARY, b"x"))
        streams.look_for_due()
        await until_left(streams, 0)
