"""Traces: the lives of operations, one row each, as a journal or the generator has written them.

A trace is a directory of Parquet files with a journal's columns (`purgatory.journal.SCHEMA`), below directories that
name the instance. Generated ones also have `completes_s`, the true time to complete, which a journal does not have for
operations that have expired.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.spark.errors import PipelineError
from purgatory.spark.files import instance_of, places
from purgatory.spark.lives import TYPES
from purgatory.spark.survey import FOUND, TASKS, Piece, worker

__all__ = ["Part", "Trace", "read"]


@dataclass(frozen=True, slots=True)
class Part:
    """One purgatory of one instance in a trace."""

    instance: str
    purgatory: str
    operations: int
    first: int
    last: int
    """The arrivals of its first and its last operation, in microseconds since 1970."""
    pieces: tuple[Piece, ...] = field(default=(), compare=False, repr=False)
    """In order of their first arrivals."""


@dataclass(frozen=True, slots=True)
class Trace:
    """An opened trace with valid columns and possible values."""

    rows: DataFrame
    files: int
    skipped: tuple[str, ...]
    """Files that cannot be read, each with the reason; empty unless they are to be skipped."""
    parts: tuple[Part, ...]
    """In order of instances and purgatories."""
    warnings: tuple[str, ...] = ()
    """Warnings of answers that the trace does not give exactly."""


def read(spark: SparkSession, path: str, *, skip_corrupt: bool = False) -> Trace:
    """Open the trace in the directory `path`. Reads every file once, on the executors.

    Columns have the types of a journal's, or other numbers, timestamps and strings of Parquet's, which are cast. With
    `skip_corrupt` leaves out files that cannot be read. Raises `PipelineError`, which names the file and the column,
    for a directory that is no trace, for impossible values, and if an instance has a file twice.
    """
    directories = places(spark, path)
    files = sorted(file for place in directories for file in place.wanted)
    if not files:
        raise PipelineError(f"there are no Parquet files in {path}")
    if any(instance_of(file) is None for file in files):
        raise PipelineError(f"missing column instance in {path}: files lie in directories named instance=NAME")
    tasks = min(len(files), max(TASKS, len(files) // 100))
    look = spark.range(0, tasks, 1, tasks).mapInArrow(worker(files, tasks), from_arrow_schema(FOUND))
    found = look.toArrow().to_pylist()
    found.sort(key=lambda row: (row["file"], row["group"] or 0))
    for row in found:
        if row["wrong"] is not None:
            raise PipelineError(f"{row['file']}: {row['wrong']}")
    skipped = tuple(f"{row['file']}: {row['corrupt']}" for row in found if row["corrupt"] is not None)
    if skipped and not skip_corrupt:
        more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        raise PipelineError(f"{skipped[0]}{more}; --skip-corrupt leaves such files out")
    if len(skipped) == len(files):
        raise PipelineError(f"{skipped[0]}: there is no other file in {path}")
    _refuse_impossible(found)
    good = [row for row in found if row["kinds"] is not None]
    _refuse_copies(good)
    kinds = {row["file"]: row["kinds"] for row in good}
    rows = reduce(DataFrame.unionByName, (rows for place in directories for rows in place.rows(spark, kinds)))
    return Trace(rows, len(good), skipped, _parts(found), _warnings(found))


def _refuse_impossible(found: list[dict[str, Any]]) -> None:
    for column in TYPES:
        rows = [row for row in found if row["impossible"] == column]
        if rows:
            count = sum(row["rows"] for row in rows)
            raise PipelineError(
                f"{count} rows have an impossible {column}, for example {rows[0]['example']} in {rows[0]['file']}"
            )


def _parts(found: list[dict[str, Any]]) -> tuple[Part, ...]:
    pieces: dict[tuple[str, str], list[Piece]] = {}
    for row in found:
        if row["purgatory"] is not None:
            instance = instance_of(row["file"])
            assert instance is not None, "files without one have been refused"
            values = {name: row[name] for name in Piece.__slots__}
            values["points"] = tuple(row["points"])
            pieces.setdefault((instance, row["purgatory"]), []).append(Piece(**values))
    parts = []
    for (instance, purgatory), some in sorted(pieces.items()):
        operations = sum(piece.operations for piece in some)
        some.sort(key=lambda piece: (piece.points[0], piece.file, piece.group))
        last = max(piece.last for piece in some)
        parts.append(Part(instance, purgatory, operations, some[0].points[0], last, tuple(some)))
    return tuple(parts)


def _refuse_copies(files: Iterable[Mapping[str, Any]]) -> None:
    """Raise `PipelineError` if an instance has two files with the same footer, so the same rows."""
    seen: dict[tuple[str | None, str], str] = {}
    for row in files:
        if row["digest"] is not None:
            file = row["file"]
            first = seen.setdefault((instance_of(file), row["digest"]), file)
            if first != file:
                raise PipelineError(f"{file} is a copy of {first}: remove one of them, or its rows count twice")


def _warnings(found: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    unknown = sum(row["unknown"] or 0 for row in found)
    if not unknown:
        return ()
    return (
        f"{unknown} operations have no deadline_s, as in journals of version 0.2 and older, and ended later than their "
        "timeout without expiring: they count as rescheduled, without a deadline",
    )
