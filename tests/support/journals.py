"""Rows for journals, and the files of journals, read with two independent readers."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory import FinishedOperation
from purgatory.journal import SCHEMA, Journal

TIMES = [field.name for field in SCHEMA if pa.types.is_timestamp(field.type)]
COLUMNS = ", ".join(f"epoch_us({name})" if name in TIMES else name for name in SCHEMA.names)


NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()


def row(number: int = 0, **changes: Any) -> FinishedOperation:
    """A row that its key distinguishes from others."""
    finished = FinishedOperation("fetch", "DelayedFetch", (number,), 0.0, 30.0, 0.5, "satisfied", None, 30.0)
    return finished._replace(**changes)


def fill(journal: Journal, *range_: int) -> None:
    """Write the rows with the numbers of a range."""
    for number in range(*range_):
        journal.write(row(number))


def until(condition: Callable[[], bool]) -> None:
    """Return when `condition()` holds: the time-out of the test is the bound."""
    never = threading.Event()
    while not condition():
        never.wait(0.0001)


def files(directory: Path) -> list[Path]:
    """All files below `directory`, of any name."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def read(directory: Path) -> list[dict[str, Any]]:
    """All rows, as both readers find them, in the order of arrival."""
    rows: list[dict[str, Any]] = []
    for path in directory.rglob("*.parquet"):
        parquet = pq.ParquetFile(path)
        assert parquet.schema_arrow.equals(SCHEMA)
        rows += parquet.read().to_pylist()
    with duckdb.connect() as connection:
        source = f"read_parquet('{directory}/**/*.parquet', hive_partitioning = false)"
        found = connection.execute(f"SELECT {COLUMNS} FROM {source}").fetchall() if rows else []
    assert sorted(found, key=repr) == sorted(map(_plain, rows), key=repr)
    return sorted(rows, key=lambda row: (row["arrived_at"], row["keys"]))


def _plain(row: dict[str, Any]) -> tuple[Any, ...]:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = {name: (row[name] - epoch) // timedelta(microseconds=1) for name in TIMES}
    return tuple((row | times).values())


def partitions(directory: Path) -> list[tuple[Any, ...]]:
    """The partitions with their rows, as DuckDB finds them by itself."""
    with duckdb.connect() as connection:
        return connection.execute(
            f"SELECT date::VARCHAR, instance, count(*) FROM '{directory}/**/*.parquet' GROUP BY ALL ORDER BY ALL"
        ).fetchall()


def numbers(directory: Path) -> list[int]:
    """The numbers of all rows, in order."""
    return sorted(int(found["keys"][0]) for found in read(directory))
