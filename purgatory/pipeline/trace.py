"""The journal of a service as Spark reads it, and rolls it up into its cube, a day at a time.

A journal has a row for each finished operation, in directories by day and instance.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import partial
from importlib import resources
from typing import Any, Final, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.pipeline.casting import Days, is_failed_read, kinds_of, refuse_unreadable
from purgatory.pipeline.cube import days_of, files, joined, only_steps, refused, save
from purgatory.pipeline.places import literal, local, needs_spark
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
_STEP, _INSTANCE_STEP = 10_000_000, 60_000_000
"""The longest steps in which a cube counts what is pending, of all instances and of each: microseconds."""
KEPT: Final = 1000
"""The most keys that a cube has for each of their counts."""
SAMPLED: Final = 20_000
"""Operations whose moments a cube has, about."""

_AGAIN: Final = 2
"""The newest days of a cube are written again, because rows of their last operations may have come since."""


class Missing(PipelineError):
    """There is no journal at a path."""


def refuse_empty(path: str) -> None:
    """Raise `PipelineError` if `path`, on this machine, is missing or has no Parquet. It needs no Spark."""
    if needs_spark(path):
        return
    directory = local(path)
    if not directory.is_dir():
        raise PipelineError(f"{path} does not exist")
    if next(directory.rglob("*.parquet"), None) is None:
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


Slots: TypeAlias = dict[tuple[str, str], int]
"""The slot, in seconds, of each kind of operation."""


def span(rows: DataFrame, days: Iterable[date]) -> dict[date, Slots]:
    """The shortest slots that give the operations of each kind at most sixty, on those of the days that have any.

    Each kind has its own, because it may have been there for an hour of the day only.
    """
    seconds = F.unix_seconds("arrived_at")
    some = rows.where(F.col("date").isin([str(day) for day in days]))
    looked = some.groupBy("date", "purgatory", "operation").agg(
        F.min(seconds).alias("first"), F.max(seconds).alias("last")
    )
    found: dict[date, Slots] = {}
    for day, purgatory, operation, first, last in looked.where("first IS NOT NULL").orderBy("date").collect():
        found.setdefault(date.fromisoformat(day), {})[purgatory, operation] = _slot(first, last)
    return found


def _slot(first: int, last: int) -> int:
    return next(slot for slot in _SLOTS if (last - first) // slot < _MOST_SLOTS)


Maker: TypeAlias = Callable[[SparkSession, DataFrame, Mapping[str, Any], DataFrame | None], pa.Table]


def maker() -> Maker:
    """Return a function that makes a cube with Spark, from rows, the numbers in the SQL text, and slots.

    It is made here, and needs nothing of this library, because a Connect server calls it where this library is missing.
    """
    common, *rest = re.split(r"^-- part: (\w+)$", SQL, flags=re.MULTILINE)
    queries = dict(zip(rest[::2], rest[1::2], strict=True))
    measures = ("operations", "num_expired", "num_missed")

    def make(spark: SparkSession, rows: DataFrame, numbers: Mapping[str, Any], slots: DataFrame | None) -> pa.Table:
        if slots is None:
            slots = spark.sql("SELECT '' AS purgatory, '' AS operation, 0L AS slot WHERE false")

        def query(part: str, **tables: Any) -> DataFrame:
            return spark.sql(common + queries[part], journal=rows, **tables, **numbers)

        def local(part: str, rows: list[tuple[Any, ...]], *longs: str) -> pa.Table:
            fields = [("purgatory", pa.string()), *((name, pa.int64()) for name in longs)]
            columns = [pa.array([row[number] for row in rows], kind) for number, (_, kind) in enumerate(fields)]
            return pa.table(columns, schema=pa.schema(fields)).append_column("part", pa.repeat(part, len(rows)))

        # Counted once. SQL could not use it twice, because `sql` forgets what was persisted of tables that it is given.
        per_key = query("per_key").persist()
        named = per_key.where("key IS NOT NULL")
        # How many keys have each count, and how many operations the keys of each bucket of hashes have.
        numbered = "stack(4, 'operations', operations, 'num_expired', num_expired, 'num_missed', num_missed,"
        numbered += " 'bucket', pmod(xxhash64(key), 4096)) AS (what, number)"
        counts = named.selectExpr("purgatory", "day", "1L AS keys", "operations", numbered)
        counts = counts.where("number > 0 OR what = 'bucket'")
        counts = counts.groupBy("purgatory", "day", "what", "number").sum("keys", "operations")
        counts = counts.toDF("purgatory", "day", "what", "number", "keys", "operations")
        cuts: dict[tuple[str, int], dict[str, int]] = {}
        keys: dict[tuple[Any, ...], int] = {}
        buckets: dict[str, dict[int, int]] = {}
        for row in sorted(counts.collect(), key=lambda row: -row.number):
            if row.what == "bucket":
                bucket = buckets.setdefault(row.purgatory, {})
                bucket[row.number] = bucket.get(row.number, 0) + row.operations
                continue
            # A count has its cut where it has more keys, with those that have more, than are kept.
            cut = cuts.setdefault((row.purgatory, row.day), dict.fromkeys(measures, 0))
            place = (row.purgatory, row.day, row.what)
            keys[place] = keys.get(place, 0) + row["keys"]
            if keys[place] > numbers["kept"]:
                cut[row.what] = max(cut[row.what], row.number)
        cut_table = local("cuts", [(*place, *cut.values()) for place, cut in cuts.items()], "arrived", *measures)
        above = spark.createDataFrame(cut_table).toDF("purgatory", "day", *(f"{name}_cut" for name in measures), "part")
        hot = named.join(above.hint("broadcast"), ["purgatory", "day"])
        hot = hot.where(" OR ".join(f"{name} > {name}_cut" for name in measures))
        tables = [hot.selectExpr("'hot_keys' AS part", "purgatory", "key", "day AS arrived", *measures).toArrow()]
        per_key.unpersist()
        samples = []
        for purgatory, bucket in buckets.items():
            # Whole keys, up to a bucket of their hashes; at least the first one.
            left, last = numbers["sampled"], 4095
            if sum(bucket.values()) > left:
                last = min(bucket)
                for number in sorted(bucket):
                    left -= bucket[number]
                    last = number if left >= 0 else last
            samples.append((purgatory, last))
        sample_table = local("samples", samples, "hash")
        # One by one, since Spark plans a union of them again for each of its stages.
        moments = query("moments", samples=spark.createDataFrame(sample_table))
        tables += [part.toArrow() for part in (query("operations", slots=slots), query("steps"), moments)]
        # A column that other parts lack has nulls, which Spark says that it has not.
        tables = [pa.Table.from_arrays(each.columns, names=each.column_names) for each in tables]
        return pa.concat_tables([*tables, cut_table, sample_table], promote_options="permissive")

    return make


def numbers(slot: int, now: int, sampled: int) -> dict[str, Any]:
    """The numbers in the SQL text, for slots of so many microseconds and samples of so many operations."""
    step = min(slot, _STEP)
    instance_step = _INSTANCE_STEP if slot % _INSTANCE_STEP == 0 else step
    return {"slot": slot, "now": now, "step": step, "instance_step": instance_step, "kept": KEPT, "sampled": sampled}


def cube(rows: DataFrame, slot: int, now: datetime | None = None, slots: Slots | None = None) -> pa.Table:
    """The cube of these rows, with slots of so many seconds, or others for some kinds of operation.

    Rows later than `now` are refused.
    """
    clock = datetime.now(UTC) if now is None else now
    spark = rows.sparkSession
    of_kinds = [
        {"purgatory": kind[0], "operation": kind[1], "slot": 1_000_000 * each}
        for kind, each in (slots or {}).items()
        if each != slot
    ]
    of_kind = spark.createDataFrame(pa.Table.from_pylist(of_kinds)) if of_kinds else None
    return maker()(spark, rows, numbers(1_000_000 * slot, round(clock.timestamp() * 1e6), SAMPLED), of_kind)


def rollup(
    spark: SparkSession, journal: str, path: str, say: Callable[[str], object], days: Iterable[date] = ()
) -> list[date]:
    """Write the cube of these days of the journal to `path`, in place of those that there are. Returns the days.

    Without `days` these are all that the cube does not have, and the newest two that it has. Calls `say` with a line
    for each. Raises `PipelineError`.
    """
    cubes = spark if needs_spark(path) else None
    if any(file.startswith("batch") for file in files(path, cubes)):
        raise PipelineError(f"{path} is the cube of a stream: name another directory")
    found = _days(spark, journal)
    requested = list(days)
    settled = [] if requested else days_of(path, cubes)[:-_AGAIN]
    # Of the other days no file is read: one of them may be damaged, and there are many.
    spans = _spans(found, requested or [day for day in found.files if day not in settled])
    for day in requested:
        if day not in spans:
            raise PipelineError(f"{journal} has no operations that arrived on {day}")
    requested = requested or list(spans)
    now = datetime.now(UTC)
    for day in requested:
        table = _day(found, day, spans[day], now)
        save(table, path, day, cubes)
        operations = table.filter(pa.compute.equal(table["part"], "operations"))["operations"]
        line = f"{day}: {count(pa.compute.sum(operations).as_py() or 0)} operations in {count(len(table))} rows"
        for instance, number in refused(table).items():
            line += f"; {count(number)} of {name(instance)} are left out, as they end later than now"
        say(line)
    return requested


def of_days(spark: SparkSession, journal: str, is_requested: Callable[[date], bool]) -> pa.Table:
    """The cube of the requested days of a journal, which is written nowhere. Raises `PipelineError`."""
    found = _days(spark, journal)
    spans = _spans(found, filter(is_requested, found.files))
    if not spans:
        raise PipelineError(f"{journal} has none of these days")
    now = datetime.now(UTC)
    tables = [_day(found, day, each, now) for day, each in spans.items()]
    for day in spans:
        before = day - timedelta(days=1)
        if before in found.files and not is_requested(before):
            tables.append(only_steps(_day(found, before, spans[day], now, day)))
    return joined(tables)


def _days(spark: SparkSession, journal: str) -> Days:
    rows = read(spark, journal)
    return Days(rows, journal, COLUMNS, files_by_day(rows))


def _spans(journal: Days, days: Iterable[date]) -> dict[date, Slots]:
    """`span`, but a day at a time if a file of one of them has times of another type."""
    asked = list(days)
    try:
        return span(journal.rows, asked)
    except (PySparkException, Py4JError) as error:
        if not is_failed_read(error):
            raise
    spans: dict[date, Slots] = {}
    for day in asked:
        spans |= journal.run(day, partial(span, days=[day]))
    return spans


def _day(journal: Days, day: date, slots: Slots, now: datetime, pending_on: date | None = None) -> pa.Table:
    """The cube of a day, or of those of its operations that were pending when the day `pending_on` began.

    All days have the same `now`, because Spark compiles its work again for each number.
    """

    def made(rows: DataFrame) -> pa.Table:
        if pending_on is not None:
            midnight = datetime(pending_on.year, pending_on.month, pending_on.day, tzinfo=UTC).timestamp()
            rows = rows.where(F.unix_micros("arrived_at") / 1e6 + F.col("waited_s") >= midnight)
        return cube(rows, max(slots.values()), now, slots)

    table: pa.Table = journal.run(day, made)
    refused(table)  # raises
    return table
