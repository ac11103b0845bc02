"""The version of the schema: an older database is migrated, a newer or damaged one refused with a sentence."""

import itertools
import lzma
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from purgatory.streams.core import messages
from purgatory.streams.core.commands import Create, Fork
from purgatory.streams.core.errors import Invalid
from purgatory.streams.engine.cache import Chunk
from purgatory.streams.storage import schema
from purgatory.streams.storage.database import SELECT_STREAM, Database, Extent, StorageError, stream_of_row
from purgatory.streams.storage.opener import PostgresOpener
from purgatory.streams.storage.sqlite import FileDatabase, WritingDatabase
from tests.streams import version_1
from tests.streams.serving import applied
from tests.support.servers import PostgresServer


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The file of a database of version 1."""
    file = tmp_path / "streams.sqlite"
    file.write_bytes(lzma.decompress(version_1.FILE.read_bytes()))
    return file


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All that a database of this version has after the same commands."""
    with closing(WritingDatabase(tmp_path_factory.mktemp("new") / "streams.sqlite")) as database:
        version_1.fill(database)
        return everything(database)


def change(file: Path, statement: str) -> None:
    """Change a database behind the server's back."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def everything(database: Database) -> Any:
    """All that a database has, but what was drawn by lot."""
    streams = [stream_of_row(row) for row in database.execute(f"{SELECT_STREAM} ORDER BY id")]
    rows = database.execute("SELECT stream, first, last, COALESCE(append_end, last), data FROM data ORDER BY 1, 2")
    subscriptions = [database.subscription(name) for name in ("hook", "pull")]
    return {
        "streams": streams,
        "rows": [(*row, bytes(data)) for *row, data in rows],
        "bodies": [body(database, stream) for stream in streams],
        "producers": database.execute("SELECT * FROM producers ORDER BY stream, name"),
        "secrets": database.execute("SELECT * FROM secrets"),
        "subscriptions": [replace(each, wake=None, incarnation=0) for each in subscriptions if each is not None],
        # `woken` says something only where it is more than what is acknowledged.
        "links": [
            (each.path, each.link._replace(woken=each.link.woken if each.is_woken else None), each.tail)
            for name in ("hook", "pull")
            for each in database.linked(name, "", 100)
        ],
    }


def body(database: Database, stream: Any) -> bytes:
    parts = database.read(stream.pieces(0), Extent(2**40, 2**40))
    return Chunk(stream, 0, stream.tail, parts).body()


def check(database: Database, expected: Any) -> None:
    assert everything(database) == expected
    assert database.execute("SELECT version FROM schema_version") == [(schema.VERSION,)]
    assert max(len(row[-1]) for row in expected["rows"] if row[2] - row[1] > 1) <= messages.ROW
    with pytest.raises(Invalid, match="beyond the append"):
        applied(database, Create("new", None, fork=Fork("large/0", 1, 3001)))
    assert applied(database, Create("new", None, fork=Fork("large/0", 1, 3000))).stream.tail == 3001


def test_a_database_of_version_1_is_migrated(old: Path, expected: Any, caplog: pytest.LogCaptureFixture) -> None:
    with closing(WritingDatabase(old)) as database:
        check(database, expected)
    assert caplog.messages == [
        "the database has schema version 1 and is migrated to 2, which may take a while",
        "the database has schema version 2 now: of 32 rows, 5 were divided",
    ]
    with closing(WritingDatabase(old)):
        assert len(caplog.messages) == 2


class Killed(BaseException):
    """The process is."""


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of a migration that look at three rows, or rewrite one."""
    monkeypatch.setattr(schema, "_SCANNED", 3)
    monkeypatch.setattr(schema, "_REWRITTEN", 1)
    monkeypatch.setattr(schema, "_LOGGED", 10)


@pytest.mark.usefixtures("small_steps")
def test_a_migration_that_is_killed_is_finished_later(
    old: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = FileDatabase.transaction
    left = 0

    @contextmanager
    def transaction(self: FileDatabase, *arguments: Any) -> Iterator[None]:
        nonlocal left
        left -= 1
        with begin(self, *arguments):
            yield
            if left < 0:
                raise Killed

    monkeypatch.setattr(FileDatabase, "transaction", transaction)
    for killed in itertools.count():
        left = killed
        try:
            WritingDatabase(old).close()
            break
        except Killed:
            with closing(sqlite3.connect(old)) as read:
                ((units,),) = read.execute("SELECT sum(last - first) FROM data")
            assert units == sum(last - first for _, first, last, *_ in expected["rows"])
    assert killed > 15
    monkeypatch.setattr(FileDatabase, "transaction", begin)
    with closing(WritingDatabase(old)) as database:
        check(database, expected)


@pytest.mark.usefixtures("small_steps")
def test_a_migration_is_logged_now_and_then(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    WritingDatabase(old).close()
    assert [line.startswith("migrated ") for line in caplog.messages] == [False, *[True] * 4, False]


@pytest.mark.parametrize("damage", ["29]9", "{{{{"])
def test_a_row_that_cannot_be_read_stays_whole(old: Path, damage: str) -> None:
    """A migration must not fail for ever."""
    change(old, f"UPDATE data SET data = CAST(replace(data, '2998', '{damage}') AS BLOB) WHERE last = 3001")
    with closing(WritingDatabase(old)) as database:
        sql = "SELECT last, append_end FROM data WHERE stream = 1 AND first = 1"
        assert database.execute(sql) == [(3001, None)]


@pytest.mark.parametrize(
    ("version", "statement", "refusal"),
    [
        (1, "DROP TABLE links", "damaged, as it has no table links, which schema version 1 has"),
        (1, "ALTER TABLE data RENAME TO lost", "damaged, as it has no table data, which schema version 1 has"),
        (2, "DROP TABLE dropped", "damaged, as it has no table dropped, which schema version 2 has"),
        (2, "ALTER TABLE producers RENAME COLUMN epoch TO era", "damaged, as it has no column producers.epoch"),
        (2, "ALTER TABLE last_id RENAME TO lost", "damaged, as it has no table last_id"),
        (2, "DELETE FROM schema_version", "damaged, as its table schema_version has 0 rows, not 1"),
        (2, "UPDATE schema_version SET version = 3", "has schema version 3, which a later release has made"),
    ],
)
def test_a_damaged_or_newer_schema_is_refused_by_name(old: Path, version: int, statement: str, refusal: str) -> None:
    if version == 2:
        WritingDatabase(old).close()
    change(old, statement)
    with pytest.raises(StorageError, match=f"^the database (is )?{refusal}"):
        WritingDatabase(old)


def test_a_postgresql_of_version_1_is_migrated(
    postgres: PostgresServer, old: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_SCANNED", 10)
    dsn = postgres.create_database()
    with closing(sqlite3.connect(old)) as source, psycopg.connect(dsn) as target:
        target.execute((Path(__file__).parent / "version_1.sql").read_bytes())
        for table in ("streams", "data", "producers", "subscriptions", "links", "secrets"):
            rows = source.execute(f"SELECT * FROM {table}").fetchall()
            holders = ", ".join(["%s"] * len(rows[0]))
            target.cursor().executemany(f"INSERT INTO {table} VALUES ({holders})".encode(), rows)
        target.execute("SELECT setval('stream_ids', (SELECT max(id) FROM streams))")
    opener = PostgresOpener(dsn)
    with closing(opener.writer()) as database:
        check(database, expected)
        database.execute("DROP SEQUENCE stream_ids")
        with pytest.raises(StorageError, match="it has no table stream_ids, which schema version 2 has"):
            PostgresOpener(dsn)
