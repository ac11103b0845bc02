"""The snapshots of the processes that share a PostgreSQL. They outlive no crash, and need not.

All times are the database's own: the clocks of machines differ.
"""

from typing import Final

from purgatory.streams.storage.database import Database

TABLE: Final = """
CREATE UNLOGGED TABLE IF NOT EXISTS snapshots (
    process TEXT PRIMARY KEY, at TIMESTAMPTZ NOT NULL, snapshot TEXT NOT NULL
)
"""
_PUT: Final = (
    "INSERT INTO snapshots (process, at, snapshot) VALUES (?, clock_timestamp(), ?)"
    " ON CONFLICT (process) DO UPDATE SET at = excluded.at, snapshot = excluded.snapshot"
)
_FRESH: Final = (
    "SELECT snapshot FROM snapshots WHERE process <> ? AND at > clock_timestamp() - make_interval(secs => ?)"
)
_DELETE: Final = "DELETE FROM snapshots WHERE at < clock_timestamp() - make_interval(secs => ?)"
_KEPT: Final = 60.0
"""Seconds after which the row of a process that has ended is deleted."""


def exchange(database: Database, process: str, snapshot: str, fresh: float | None) -> list[str]:
    """Put the snapshot of `process` in place of its last one.

    Returns those of the other processes that are at most `fresh` seconds old; none if that is `None`. Raises
    `StorageError`.
    """
    database.execute(_PUT, [process, snapshot])
    if fresh is None:
        return []
    database.execute(_DELETE, [_KEPT])
    return [found for (found,) in database.execute(_FRESH, [process, fresh])]
