"""The journal of a service as Spark reads it, and rolls it up into its cube, a day at a time.

A journal has a row for each finished operation, in directories by day and instance.
"""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.pipeline.cube import days_of, files, refused, save
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


def refuse_empty(path: str) -> None:
    """Raise `PipelineError` if `path`, on this machine, is missing or has no Parquet. It needs no Spark."""
    if "://" in path:
        return
    if not Path(path).is_dir():
        raise PipelineError(f"{path} does not exist")
    if next(Path(path).rglob("*.parquet"), None) is None:
        raise PipelineError(
            f"there are no Parquet files in {path}: a server writes its first file after five minutes, or when it ends"
        )


def read(spark: SparkSession, path: str) -> DataFrame:
    """The rows of the journal in the directory `path`, each with the name of its `file`.

    Numbers, decimals and timestamps that other writers make are cast. Raises `PipelineError`.
    """
    try:
        files = _files(spark, path, "instance string").inputFiles()  # with a schema, none is opened
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise PipelineError(f"{path} does not exist") from None
    if not files:
        raise PipelineError(f"{path} has no Parquet files")
    # The newest file tells the columns: all others that lack one have null there.
    newest = literal(unquote(max(files)))
    kinds = dict(spark.read.option("basePath", path).parquet(newest).dtypes)
    for column in COLUMNS:
        if column not in kinds and column not in _ADDED:
            where = ": files lie in directories named date=DAY/instance=NAME" if column in ("date", "instance") else ""
            raise PipelineError(f"missing column {column} in {path}{where}")
    columns = ", ".join(f"{column} {kinds.get(column, kind)}" for column, kind in COLUMNS.items())
    return _files(spark, path, columns).select(
        *[F.col(column).cast(kind).alias(column) for column, kind in COLUMNS.items()],
        F.expr("_metadata.file_path AS file"),
    )


def _files(spark: SparkSession, path: str, columns: str) -> DataFrame:
    found = spark.read.schema(columns).option("basePath", path).option("pathGlobFilter", "*.parquet")
    return found.parquet(literal(path))


def days_in(rows: DataFrame) -> list[date]:
    """The days of which a journal has files, none of which is opened."""
    found = {match[1] for file in rows.inputFiles() if (match := re.search(r"/date=(\d{4}-\d\d-\d\d)/", file))}
    return sorted(map(date.fromisoformat, found))


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
    if any(file.startswith("batch=") for file in files(path)):
        raise PipelineError(f"{path} is the cube of a stream: name another directory")
    rows = read(spark, journal)
    requested = list(days)
    settled = [] if requested else days_of(path)[:-_AGAIN]
    # Of the other days no file is read: one of them may be damaged, and there are many.
    slots = span(rows, requested or [day for day in days_in(rows) if day not in settled])
    for day in requested:
        if day not in slots:
            raise PipelineError(f"{journal} has no operations that arrived on {day}")
    requested = requested or list(slots)
    for day in requested:
        table = _day(rows, day, slots[day])
        save(table, path, day)
        operations = table.filter(pa.compute.is_valid(table["outcome"]))["operations"]
        line = f"{day}: {count(pa.compute.sum(operations).as_py() or 0)} operations in {count(len(table))} rows"
        for instance, number in refused(table).items():
            line += f"; {count(number)} of {name(instance)} are left out, as they end later than now"
        say(line)
    return requested


def of_days(spark: SparkSession, journal: str, is_requested: Callable[[date], bool]) -> pa.Table:
    """The cube of the requested days of a journal, which is written nowhere. Raises `PipelineError`."""
    rows = read(spark, journal)
    slots = span(rows, filter(is_requested, days_in(rows)))
    if not slots:
        raise PipelineError(f"{journal} has none of these days")
    return pa.concat_tables([_day(rows, day, slot) for day, slot in slots.items()])


def _day(rows: DataFrame, day: date, slot: int) -> pa.Table:
    table = cube(rows.where(f"date = '{day}'"), slot).toArrow()
    refused(table)  # raises
    return table


def literal(path: str) -> str:
    """`path` with escapes for the characters that are patterns to Hadoop."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)
