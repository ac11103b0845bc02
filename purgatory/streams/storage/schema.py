"""The tables of the database, their version, and the steps from an older version to this one."""

import logging
from dataclasses import dataclass
from typing import Final

from purgatory.streams.core import messages
from purgatory.streams.storage.database import Database, StorageError

VERSION: Final = 2

_TABLES: Final = {
    "streams": """
        id BIGINT PRIMARY KEY, path TEXT{collation} NOT NULL UNIQUE, content_type TEXT NOT NULL,
        media_type TEXT NOT NULL, config TEXT NOT NULL, ttl BIGINT, expires_at TEXT, deadline DOUBLE PRECISION,
        tail BIGINT NOT NULL, closed INTEGER NOT NULL, closed_by TEXT, seq TEXT, source BIGINT, fork BIGINT NOT NULL,
        lineage TEXT NOT NULL, refs BIGINT NOT NULL, deleted INTEGER NOT NULL, created DOUBLE PRECISION NOT NULL,
        version BIGINT NOT NULL""",
    # `append_end` is NULL in a row of version 1, which is a whole append.
    "data": """
        stream BIGINT NOT NULL, first BIGINT NOT NULL, last BIGINT NOT NULL, append_end BIGINT, data {blob} NOT NULL,
        PRIMARY KEY (stream, first)""",
    "producers": """
        stream BIGINT NOT NULL, name TEXT NOT NULL, epoch BIGINT NOT NULL, seq BIGINT NOT NULL,
        PRIMARY KEY (stream, name)""",
    "subscriptions": """
        id TEXT PRIMARY KEY, config TEXT NOT NULL, type TEXT NOT NULL, pattern TEXT, url TEXT, wake_stream TEXT,
        lease DOUBLE PRECISION NOT NULL, description TEXT, created DOUBLE PRECISION NOT NULL,
        generation BIGINT NOT NULL, wake TEXT, holder TEXT, lease_until DOUBLE PRECISION, attempts BIGINT NOT NULL,
        attempt_at DOUBLE PRECISION, incarnation BIGINT NOT NULL""",
    "links": """
        subscription TEXT NOT NULL, path TEXT NOT NULL, explicit INTEGER NOT NULL, glob INTEGER NOT NULL,
        acked BIGINT NOT NULL, woken BIGINT, PRIMARY KEY (subscription, path)""",
    # Streams that are deleted, of which there may still be rows.
    "dropped": "stream BIGINT PRIMARY KEY",
    "secrets": "name TEXT PRIMARY KEY, value TEXT NOT NULL",
    "schema_version": "version INTEGER PRIMARY KEY",
}
_INDEXES: Final = (
    "CREATE INDEX streams_deadline ON streams (deadline) WHERE deadline IS NOT NULL",
    "CREATE INDEX links_path ON links (path)",
)
_NEW: Final = {2: {("data", "append_end"), ("dropped", "stream"), ("schema_version", "version")}}
"""The columns of each version that earlier ones have not."""
_SCANNED: Final = 10_000
"""Rows that a transaction of a migration looks at."""
_REWRITTEN: Final = 16 * 1024 * 1024
"""Bytes after which it rewrites no more."""
_LOGGED: Final = 1_000_000
"""Rows after which the log has a line."""

logger: Final = logging.getLogger("purgatory.streams")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The differences between the databases."""

    blob: str
    """The type of bytes."""
    columns: str
    """A query for the names of all tables, each with those of its columns."""
    own: tuple[str, ...]
    """Statements that create what the other database has not."""
    own_columns: frozenset[tuple[str, str]]
    """The columns that these create."""
    collation: str = ""
    """The collation of paths."""


def prepare(database: Database, dialect: Dialect) -> None:
    """Create the tables, or migrate them to this version. No other process may use the database meanwhile.

    Raises `StorageError` if they cannot be used, with a sentence that says why.
    """
    found = {(table, column) for table, column in database.execute(dialect.columns)}
    if not any(table in _TABLES for table, _ in found):
        with database.transaction(()):
            for table in _TABLES:
                _create(database, dialect, table)
            for statement in (*_INDEXES, *dialect.own):
                database.execute(statement)
            database.execute("INSERT INTO schema_version VALUES (?)", [VERSION])
        return
    version = _version(database, found)
    if version > VERSION:
        raise StorageError(
            f"the database has schema version {version}, which a later release has made, and this one knows versions"
            f" up to {VERSION}: use the later release"
        )
    expected = {(table, column) for table in _TABLES for column in _names(_TABLES[table])} | dialect.own_columns
    for later in range(version + 1, VERSION + 1):
        expected -= _NEW[later]
    if missing := expected - found:
        raise StorageError(
            f"the database is damaged, as it has no {_described(missing, found)}, which schema version {version} has:"
            " restore it from a backup"
        )
    if version < 2:
        _migrate_to_2(database, dialect, found)


def _version(database: Database, found: set[tuple[str, str]]) -> int:
    if ("schema_version", "version") not in found:
        return 1  # the first one was not written down
    versions = database.execute("SELECT version FROM schema_version")
    if len(versions) != 1:
        raise StorageError(
            f"the database is damaged, as its table schema_version has {len(versions)} rows, not 1:"
            " restore it from a backup"
        )
    ((version,),) = versions
    return int(version)


def _create(database: Database, dialect: Dialect, table: str) -> None:
    columns = _TABLES[table].format(blob=dialect.blob, collation=dialect.collation)
    database.execute(f"CREATE TABLE {table} ({columns})")


def _names(columns: str) -> list[str]:
    """Return the names of the columns of a table."""
    # A key's own columns, "PRIMARY KEY (stream, first)", are none of these.
    words = [column.split()[0] for column in columns.split(",")]
    return [word for word in words if word.islower() and not word.endswith(")")]


def _described(missing: set[tuple[str, str]], found: set[tuple[str, str]]) -> str:
    tables = {table for table, _ in found}
    names = {f"table {table}" if table not in tables else f"column {table}.{column}" for table, column in missing}
    return ", ".join(sorted(names))


def _migrate_to_2(database: Database, dialect: Dialect, found: set[tuple[str, str]]) -> None:
    """Bound the size of rows, and store where their append ends. An interrupted migration begins again."""
    logger.warning("the database has schema version 1 and is migrated to 2, which may take a while")
    if ("data", "append_end") not in found:
        with database.transaction(()):
            database.execute("ALTER TABLE data ADD COLUMN append_end BIGINT")
            _create(database, dialect, "dropped")
    rows = divided = 0
    after: tuple[int, int] | None = -1, -1
    while after is not None:
        with database.transaction(()):
            after, looked_at, more = _divide_rows(database, after)
        if rows // _LOGGED < (rows + looked_at) // _LOGGED:
            logger.warning("migrated %d rows, of which %d were divided", rows + looked_at, divided + more)
        rows += looked_at
        divided += more
    with database.transaction(()):
        _create(database, dialect, "schema_version")
        database.execute("INSERT INTO schema_version VALUES (2)")
    logger.warning("the database has schema version 2 now: of %d rows, %d were divided", rows, divided)


def _divide_rows(database: Database, after: tuple[int, int]) -> tuple[tuple[int, int] | None, int, int]:
    """Divide the large ones of the rows that follow the one with the key `after`.

    Returns the key of the last one, or `None` at the end, and how many were looked at and divided.
    """
    sql = "SELECT stream, first, last, length(data) FROM data WHERE (stream, first) > (?, ?) ORDER BY stream, first"
    rows = database.execute(f"{sql} LIMIT {_SCANNED}", after)
    media_types: dict[int, str] = {}
    rewritten = divided = 0
    for count, (stream, first, last, size) in enumerate(rows, 1):
        if max(size, last - first) <= messages.ROW_MESSAGES:
            continue
        if stream not in media_types:
            ((media_types[stream],),) = database.execute("SELECT media_type FROM streams WHERE id = ?", [stream])
        if size > messages.ROW or (media_types[stream] == messages.JSON and last - first > messages.ROW_MESSAGES):
            divided += _divide(database, stream, first, last, media_types[stream])
            rewritten += size
            if rewritten >= _REWRITTEN:
                return (stream, first), count, divided
    return rows[-1][:2] if len(rows) == _SCANNED else None, len(rows), divided


def _divide(database: Database, stream: int, first: int, last: int, media: str) -> bool:
    """Divide a row, unless it is a single message, or cannot be parsed. Return whether it was divided."""
    if last - first == 1:
        return False
    ((data,),) = database.execute("SELECT data FROM data WHERE stream = ? AND first = ?", [stream, first])
    try:
        parts = messages.split(media, bytes(data))
    except (ValueError, RecursionError):
        return False  # it is still readable as a whole
    if sum(units for _, units in parts) != last - first:
        return False
    (begin, units), *others = parts
    sql = "UPDATE data SET last = ?, data = ?, append_end = ? WHERE stream = ? AND first = ?"
    database.execute(sql, [first + units, begin, last, stream, first])
    rows = []
    position = first + units
    for part, units in others:
        rows.append((stream, position, position + units, last, part))
        position += units
    sql = "INSERT INTO data (stream, first, last, append_end, data) VALUES (?, ?, ?, ?, ?)"
    database.execute_many(sql, rows)
    return True
