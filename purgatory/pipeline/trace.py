"""The journal of a service as Spark reads it, and rolls it up into its cube, a day at a time.

A journal has a row for each finished operation, in directories by day and instance.
"""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.pipeline.casting import Days, is_failed_read, kinds_of, refuse_unreadable
from purgatory.pipeline.cube import days_of, files, refused, save
from purgatory.pipeline.places import literal, needs_spark
from purgatory.pipeline.words import count, name
from purgatory.spark.errors import PipelineError

COLUMNS: Final = {
    "purgatory": "string",
    "operation": "string",
    "keys": "array<string>",
    "arrived_at": "timestamp",
    "timeout_s": "double",
    "deadline_s": "double",
    "waited_s": "double",
    "outcome": "string",
    "late_s": "double",
    "opened_at": "timestamp",
    "missed": "boolean",
    "date": "string",
    "instance": "string",
}
"""The columns of a journal by Spark's types. The last two are names of directories."""

_ADDED: Final = ("deadline_s", "opened_at", "missed")
"""Columns that journals of older versions do not have."""

SQL: Final = (
    resources.files("purgatory.pipeline").joinpath("cube.sql").read_text("utf-8")
)  # executors have this in a zip

_SLOTS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
"""Lengths of a slot of time, in seconds."""
_MOST_SLOTS: Final = 60

_AGAIN: Final = 2
"""The newest days of a cube are written again, because rows of their last operations may have come since."""


class Missing(PipelineError):
    """There is no journal at a path."""


def refuse_empty(path: str) -> None:
    """Raise `PipelineError` if `path`, on this machine, is missing or has no Parquet. It needs no Spark."""
    if needs_spark(path):
        return
    path = path.removeprefix("file://")
    if not Path(path).is_dir():
        raise PipelineError(f"{path} does not exist")
    if next(Path(path).rglob("*.parquet"), None) is None:
        raise PipelineError(
            f"there are no Parquet files in {path}: a server writes its first file after five minutes, or when it ends"
        )


def read(spark: SparkSession, path: str) -> DataFrame:
    """The rows of the journal in the directory `path`, each with the name of its `file`.

    A file whose columns have other types fails when it is read, unless `casting` does it. Raises `PipelineError`.
    """
    try:
        files = _files(spark, path, "instance string").inputFiles()  # with a schema, none is opened
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise Missing(f"{path} does not exist") from None
    if not files:
        raise PipelineError(f"{path} has no Parquet files")
    # The newest file tells the columns: all others that lack one have null there.
    kinds = kinds_of(spark, path, [max(files)])
    if kinds is None:
        refuse_unreadable(spark, max(files), COLUMNS)
    for column in COLUMNS:
        if column not in kinds and column not in _ADDED:
            where = ": files lie in directories named date=DAY/instance=NAME" if column in ("date", "instance") else ""
            raise PipelineError(f"missing column {column} in {path}{where}")
    columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
    return _files(spark, path, columns).select("*", F.expr("_metadata.file_path AS file"))


def _files(spark: SparkSession, path: str, columns: str) -> DataFrame:
    found = spark.read.schema(columns).option("basePath", path).option("pathGlobFilter", "*.parquet")
    return found.parquet(literal(path))


def files_by_day(rows: DataFrame) -> dict[date, list[str]]:
    """The files of a journal by day, in order. None of them is opened."""
    found: dict[date, list[str]] = {}
    for file in sorted(rows.inputFiles()):
        if match := re.search(r"/date=(\d{4}-\d\d-\d\d)/", file):
            found.setdefault(date.fromisoformat(match[1]), []).append(file)
    return dict(sorted(found.items()))


def span(rows: DataFrame, days: Iterable[date]) -> dict[date, int]:
    """Those of the days that have rows, each with the shortest slot, in seconds, that gives it at most sixty slots."""
    seconds = F.unix_seconds("arrived_at")
    some = rows.where(F.col("date").isin([str(day) for day in days]))
    looked = some.groupBy("date").agg(F.min(seconds).alias("first"), F.max(seconds).alias("last"))
    return {
        date.fromisoformat(day): next(slot for slot in _SLOTS if (last - first) // slot < _MOST_SLOTS)
        for day, first, last in looked.where("first IS NOT NULL").orderBy("date").collect()
    }


def cube(rows: DataFrame, slot: int, now: datetime | None = None) -> DataFrame:
    """The cube of these rows, with slots of so many seconds. Rows later than `now` are refused."""
    clock = datetime.now(UTC) if now is None else now
    return rows.sparkSession.sql(SQL, slot=slot * 1_000_000, now=round(clock.timestamp() * 1e6), journal=rows)


def rollup(
    spark: SparkSession, journal: str, path: str, say: Callable[[str], object], days: Iterable[date] = ()
) -> list[date]:
    """Write the cube of these days of the journal to `path`, in place of those that there are. Returns the days.

    Without `days` these are all that the cube does not have, and the newest two that it has. Calls `say` with a line
    for each. Raises `PipelineError`.
    """
    cubes = spark if needs_spark(path) else None
    if any(file.startswith("batch=") for file in files(path, cubes)):
        raise PipelineError(f"{path} is the cube of a stream: name another directory")
    found = _days(spark, journal)
    requested = list(days)
    settled = [] if requested else days_of(path, cubes)[:-_AGAIN]
    # Of the other days no file is read: one of them may be damaged, and there are many.
    slots = _spans(found, requested or [day for day in found.files if day not in settled])
    for day in requested:
        if day not in slots:
            raise PipelineError(f"{journal} has no operations that arrived on {day}")
    requested = requested or list(slots)
    for day in requested:
        table = _day(found, day, slots[day])
        save(table, path, day, cubes)
        operations = table.filter(pa.compute.is_valid(table["outcome"]))["operations"]
        line = f"{day}: {count(pa.compute.sum(operations).as_py() or 0)} operations in {count(len(table))} rows"
        for instance, number in refused(table).items():
            line += f"; {count(number)} of {name(instance)} are left out, as they end later than now"
        say(line)
    return requested


def of_days(spark: SparkSession, journal: str, is_requested: Callable[[date], bool]) -> pa.Table:
    """The cube of the requested days of a journal, which is written nowhere. Raises `PipelineError`."""
    found = _days(spark, journal)
    slots = _spans(found, filter(is_requested, found.files))
    if not slots:
        raise PipelineError(f"{journal} has none of these days")
    return pa.concat_tables([_day(found, day, slot) for day, slot in slots.items()])


def _days(spark: SparkSession, journal: str) -> Days:
    rows = read(spark, journal)
    return Days(rows, journal, COLUMNS, files_by_day(rows))


def _spans(journal: Days, days: Iterable[date]) -> dict[date, int]:
    """`span`, but a day at a time if a file of one of them has times of another type."""
    asked = list(days)
    try:
        return span(journal.rows, asked)
    except (PySparkException, Py4JError) as error:
        if not is_failed_read(error):
            raise
    slots: dict[date, int] = {}
    for day in asked:
        slots |= journal.run(day, partial(span, days=[day]))
    return slots


def _day(journal: Days, day: date, slot: int) -> pa.Table:
    table: pa.Table = journal.run(day, lambda rows: cube(rows, slot).toArrow())
    refused(table)  # raises
    return table
