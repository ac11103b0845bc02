"""Traces: the lives of operations, one row each, as a journal or the generator has written them.

A trace is a directory of Parquet files with a journal's columns (`purgatory.journal.SCHEMA`), below directories that
name the instance. Generated ones also have `completes_s`, the true time to complete, which a journal does not have for
operations that have expired.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyarrow import fs
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.journal import SCHEMA
from purgatory.spark.errors import PipelineError

__all__ = [
    "COLUMNS",
    "DEADLINE",
    "IMPOSSIBLE",
    "OUTCOMES",
    "Part",
    "Trace",
    "literal",
    "parts",
    "read",
    "refuse_existing",
    "schema",
]

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
    "completes_s": "double",
    "date": "string",
    "instance": "string",
}
"""The columns of a trace that has been read, by Spark's types. `completes_s` is null where it is unknown.

In a journal of version 0.2 or older `deadline_s` and `opened_at` are null.
"""

OUTCOMES: Final = ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed")

_IN_FILES: Final = (*SCHEMA.names, "completes_s")
_OPTIONAL: Final = {"deadline_s", "opened_at", "completes_s"}
_CHECKED: Final = pa.schema(
    [*((name, pa.string()) for name in ("path", "corrupt", "wrong", "kinds", "digest")), ("older", pa.bool_())]
)
_KINDS: Final = {"double": "a number", "timestamp": "a timestamp", "string": "a string"}

IMPOSSIBLE: Final = {
    "purgatory": "purgatory is null",
    "operation": "operation is null",
    "keys": "keys is null or size(keys) = 0 or exists(keys, key -> key is null)",
    "arrived_at": "arrived_at is null",
    "timeout_s": "timeout_s < 0 or timeout_s = double('inf') or isnan(timeout_s)"
    " or timeout_s is null and outcome = 'expired'",
    "deadline_s": "deadline_s < 0 or deadline_s = double('inf') or isnan(deadline_s)",
    "waited_s": "waited_s is null or waited_s < 0 or waited_s = double('inf') or isnan(waited_s)",
    "outcome": f"outcome is null or outcome not in {OUTCOMES}",
    "late_s": "late_s < 0 or late_s = double('inf') or isnan(late_s) or (late_s is null) = (outcome = 'expired')",
    "completes_s": "completes_s < 0 or isnan(completes_s) or completes_s = double('inf') and outcome = 'satisfied'",
}
"""The impossible values of each column. A condition that is null does not match."""

DEADLINE: Final = """
    CASE WHEN deadline_s IS NOT NULL THEN deadline_s
         WHEN outcome = 'expired' AND abs(waited_s - late_s - timeout_s) > 1e-6 THEN greatest(waited_s - late_s, 0.0)
         WHEN outcome <> 'expired' AND waited_s > timeout_s THEN NULL
         ELSE timeout_s END
"""
"""Seconds from the arrival to the last deadline; null is for ever.

Older journals do not have it, and their `timeout_s` counts from the last reschedule. It follows from the lateness of an
expired operation. Another operation that ended later than its timeout was rescheduled, or the loop was busy: its
deadline is unknown, and null too.
"""

UNKNOWN_DEADLINE: Final = "deadline_s IS NULL AND outcome <> 'expired' AND waited_s > timeout_s"
"""The condition for an unknown deadline."""


def schema() -> str:
    """The columns of a trace, in Spark's words."""
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


@dataclass(frozen=True, slots=True)
class Trace:
    """An opened trace with valid columns."""

    rows: DataFrame
    files: int
    skipped: tuple[str, ...]
    """Files that cannot be read, each with the reason; empty unless they are to be skipped."""
    older: int = 0
    """Files without `deadline_s`."""

    def warnings(self) -> list[str]:
        """Warnings of answers that the trace does not give exactly. Looks at all rows, if there are older files."""
        unknown = self.rows.where(UNKNOWN_DEADLINE).count() if self.older else 0
        if not unknown:
            return []
        return [
            f"{self.older} files have no column deadline_s, as journals of version 0.2 and older: {unknown} operations "
            "in them ended later than their timeout without expiring, and count as rescheduled, without a deadline"
        ]


@dataclass(frozen=True, slots=True)
class Part:
    """One purgatory of one instance in a trace."""

    instance: str
    purgatory: str
    operations: int
    first: int
    last: int
    """The arrivals of its first and its last operation, in microseconds since 1970."""


def read(spark: SparkSession, path: str, *, skip_corrupt: bool = False) -> Trace:
    """Open the trace in the directory `path`. Looks at the footer of every file, on the executors.

    Columns have the types of a journal's, or other numbers, timestamps and strings of Parquet's, which are cast. With
    `skip_corrupt` reads every file whole, to leave out those that cannot be read. Raises `PipelineError`, which names
    the file and the column, for a directory that is no trace, and if an instance has a file twice.
    """
    options = {"recursiveFileLookup": "true", "pathGlobFilter": "*.parquet"}
    try:
        found = spark.read.format("binaryFile").options(**options).load(literal(path))
        files = sorted(map(unquote, found.inputFiles()))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise PipelineError(f"there is no {path}") from None
    if not files:
        raise PipelineError(f"there are no Parquet files in {path}")

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for file in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist([{"path": file, **_checked(file, whole=skip_corrupt)}], _CHECKED)

    # The files are few and the work on each is not: a task must not get many of them by chance.
    tasks = min(len(files), 4 * spark.sparkContext.defaultParallelism)
    listed = spark.createDataFrame([(file,) for file in files], "path string").repartition(tasks)
    checked = sorted(listed.mapInArrow(check, from_arrow_schema(_CHECKED)).collect())
    for row in checked:
        if row.wrong is not None:
            raise PipelineError(f"{row.path}: {row.wrong}")
    skipped = [f"{row.path}: {row.corrupt}" for row in checked if row.corrupt is not None]
    if skipped and not skip_corrupt:
        more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        raise PipelineError(f"{skipped[0]}{more}; --skip-corrupt leaves such files out")
    if len(skipped) == len(files):
        raise PipelineError(f"{skipped[0]}: there is no other file in {path}")
    good = [row for row in checked if row.corrupt is None]
    _refuse_copies(good)
    by_kinds: dict[str, list[str]] = {}
    for row in good:
        by_kinds.setdefault(row.kinds, []).append(literal(row.path))
    if len(by_kinds) == 1 and not skipped:
        by_kinds = {kinds: [literal(path)] for kinds in by_kinds}
    frames = [_read(spark, path, json.loads(kinds), each) for kinds, each in by_kinds.items()]
    rows = reduce(DataFrame.unionByName, frames)
    if rows.where("instance is null").limit(1).count():
        raise PipelineError(f"missing column instance in {path}: files lie in directories named instance=NAME")
    return Trace(rows, len(good), tuple(skipped), sum(row.older for row in good))


def refuse_existing(spark: SparkSession, path: str) -> None:
    """Raise `PipelineError` if `path` exists already."""
    try:
        spark.read.format("binaryFile").load(literal(path)).schema  # noqa: B018
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return
    raise PipelineError(f"{path} exists already: name another directory")


def parts(trace: Trace) -> list[Part]:
    """The parts of a trace, in order of instances and purgatories. Raises `PipelineError` for impossible values."""
    wrong = [F.count_if(F.expr(condition)).alias(column) for column, condition in IMPOSSIBLE.items()]
    counted = trace.rows.groupBy("instance", F.col("purgatory").alias("name")).agg(
        F.count("*").alias("operations"),
        F.unix_micros(F.min("arrived_at")).alias("first"),
        F.unix_micros(F.max("arrived_at")).alias("last"),
        *wrong,
    )
    try:
        found = counted.orderBy("instance", "name").collect()
    except (Py4JJavaError, PySparkException) as error:
        unreadable = re.search(r"\[FAILED_READ_FILE.*?\] (.*?)\s*SQLSTATE", str(error))
        if unreadable is None:
            raise
        raise PipelineError(f"{unreadable[1]} --skip-corrupt leaves such files out") from error
    for column in IMPOSSIBLE:
        count = sum(row[column] for row in found)
        if count:
            example = trace.rows.where(IMPOSSIBLE[column]).select(column, F.input_file_name()).first()
            assert example is not None, "it was counted"
            raise PipelineError(f"{count} rows have an impossible {column}, {example[0]!r} in {example[1]} for one")
    return [Part(row.instance, row.name, row.operations, row.first, row.last) for row in found]


def _read(spark: SparkSession, path: str, kinds: Mapping[str, str], files: Sequence[str]) -> DataFrame:
    """The rows of files in the trace `path` that are read with these types of Spark's, cast to those of `COLUMNS`."""
    columns = ", ".join(f"{name} {kinds.get(name, kind)}" for name, kind in COLUMNS.items())
    reader = spark.read.schema(columns).option("basePath", path).option("pathGlobFilter", "*.parquet")
    return reader.parquet(*files).select(*[_cast(name, kinds.get(name, kind)) for name, kind in COLUMNS.items()])


def _cast(name: str, kind: str) -> Column:
    if kind == COLUMNS[name]:
        return F.col(name)
    if COLUMNS[name] == "timestamp":  # nanoseconds, which Spark reads as numbers
        return F.expr(f"timestamp_micros({name} div 1000)").alias(name)
    return F.col(name).cast(COLUMNS[name]).alias(name)


def _refuse_copies(files: Iterable[Row]) -> None:
    """Raise `PipelineError` if an instance has two files with the same footer, so the same rows."""
    seen: dict[tuple[str, str], str] = {}
    for row in files:
        if row.digest is not None:
            instance = re.search("/instance=([^/]*)/", row.path)
            first = seen.setdefault((instance[1] if instance else "", row.digest), row.path)
            if first != row.path:
                raise PipelineError(f"{row.path} is a copy of {first}: remove one of them, or its rows count twice")


def _checked(file: str, *, whole: bool) -> dict[str, Any]:
    """The reason if `file` cannot be read, or the fault of its columns, or their odd types and the footer's digest."""
    try:
        system, path = _place(file)
    except (pa.ArrowException, OSError):
        return {"kinds": "{}", "older": False}  # not a file system of pyarrow's: a fault is found when Spark reads it
    try:
        with system.open_input_file(path) as opened, pq.ParquetFile(opened) as parquet:
            columns = _columns(parquet.schema)
            footer = pa.BufferOutputStream()
            parquet.metadata.write_metadata_file(footer)
            digest = hashlib.sha256(footer.getvalue()).hexdigest() if parquet.metadata.num_rows else None
            if whole:
                for _ in parquet.iter_batches():
                    pass
    except (pa.ArrowException, OSError) as error:
        return {"corrupt": f"cannot be read: {str(error).splitlines()[0]}"}
    kinds = {}
    for name in _IN_FILES:
        if name not in columns:
            if name not in _OPTIONAL:
                return {"wrong": f"missing column {name}"}
            continue
        kind = _kind(columns[name], COLUMNS[name])
        if kind is None:
            found = ", ".join(f"{leaf.physical_type} {leaf.logical_type}" for leaf in columns[name])
            return {"wrong": f"column {name} is {found} in Parquet, and not {_KINDS.get(COLUMNS[name], 'strings')}"}
        if kind != COLUMNS[name]:
            kinds[name] = kind
    return {"kinds": json.dumps(kinds), "digest": digest, "older": "deadline_s" not in columns}


def _columns(schema: pq.ParquetSchema) -> dict[str, list[pq.ColumnSchema]]:
    """The columns of Parquet that make up each column of a table."""
    columns: dict[str, list[pq.ColumnSchema]] = {}
    for number in range(len(schema)):
        leaf = schema.column(number)
        columns.setdefault(leaf.path.partition(".")[0], []).append(leaf)
    return columns


def _kind(leaves: list[pq.ColumnSchema], expected: str) -> str | None:
    """The type with which Spark reads a column of Parquet that is to be `expected`; `None` if it is of another kind.

    Parquet's own types decide, and not those that Arrow has written down: a large or dictionary-encoded string is a
    string. Spark's reader casts some of them to the expected type by itself, and refuses others.
    """
    leaf = leaves[0]
    logical = json.loads(leaf.logical_type.to_json())
    repeated = leaf.max_repetition_level
    if len(leaves) > 1 or repeated != expected.startswith("array"):
        return None
    if expected == "timestamp":
        if leaf.physical_type == "INT96":
            return expected
        if logical["Type"] == "Timestamp":
            return "bigint" if logical["timeUnit"] == "nanoseconds" else expected
    elif expected == "double":
        if logical["Type"] == "Decimal":
            return f"decimal({logical['precision']}, {logical['scale']})"
        if logical["Type"] == "Int" and not logical["isSigned"]:
            return "decimal(20, 0)" if logical["bitWidth"] == 64 else "bigint"
        if logical["Type"] in ("None", "Int", "Null"):
            return {"DOUBLE": expected, "FLOAT": expected, "INT32": expected, "INT64": "bigint"}.get(leaf.physical_type)
    elif logical["Type"] == "String":
        return expected
    return None


def _place(file: str) -> tuple[fs.FileSystem, str]:
    if file.startswith("file:"):
        return fs.LocalFileSystem(), re.sub("^file:/+", "/", file)
    system, path = fs.FileSystem.from_uri(quote(re.sub("^s3[an]:", "s3:", file), safe=":/@"))
    return system, path


def literal(path: str) -> str:
    """`path` with escapes for the characters that are patterns to Hadoop."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)
