"""Traces: the lives of operations, one row each, as a journal or the generator has written them.

A trace is a directory of Parquet files with a journal's columns (`purgatory.journal.SCHEMA`), below directories that
name the instance. Generated ones also have `completes_s`, the true time to complete, which a journal does not have for
operations that have expired.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyarrow import fs
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.journal import SCHEMA
from purgatory.journal.compact import DATA, MANIFESTS, Entry, counting
from purgatory.spark.errors import PipelineError
from purgatory.spark.session import parallelism

__all__ = [
    "COLUMNS",
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
    "waited_s": "double",
    "outcome": "string",
    "late_s": "double",
    "completes_s": "double",
    "date": "string",
    "instance": "string",
}
"""The columns of a trace that has been read, by Spark's types. `completes_s` is null where it is unknown."""

OUTCOMES: Final = ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed")

_TYPES: Final = {**{field.name: field.type for field in SCHEMA}, "completes_s": pa.float64()}
_OPTIONAL: Final = {"completes_s"}
_CHECKED: Final = pa.schema([("path", pa.string()), ("corrupt", pa.string()), ("wrong", pa.string())])

IMPOSSIBLE: Final = {
    "purgatory": "purgatory is null",
    "operation": "operation is null",
    "keys": "keys is null or size(keys) = 0 or exists(keys, key -> key is null)",
    "arrived_at": "arrived_at is null",
    "timeout_s": "timeout_s < 0 or timeout_s = double('inf') or isnan(timeout_s)"
    " or timeout_s is null and outcome = 'expired'",
    "waited_s": "waited_s is null or waited_s < 0 or waited_s = double('inf') or isnan(waited_s)",
    "outcome": f"outcome is null or outcome not in {OUTCOMES}",
    "late_s": "late_s < 0 or late_s = double('inf') or isnan(late_s) or (late_s is null) = (outcome = 'expired')",
    "completes_s": "completes_s < 0 or isnan(completes_s) or completes_s = double('inf') and outcome = 'satisfied'",
}
"""The impossible values of each column. A condition that is null does not match."""


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

    With `skip_corrupt` reads every file whole, to leave out those that cannot be read. Raises `PipelineError`, which
    names the file and the column, for a directory that is no trace.
    """
    places = _places(spark, path)
    files = sorted(file for place in places for file in place.wanted)
    if not files:
        raise PipelineError(f"there are no Parquet files in {path}")

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for file in batch.column(0).to_pylist():
                corrupt, wrong = _problem(file, whole=skip_corrupt)
                yield pa.RecordBatch.from_pylist([{"path": file, "corrupt": corrupt, "wrong": wrong}], _CHECKED)

    # The files are few and the work on each is not: a task must not get many of them by chance.
    tasks = min(len(files), 4 * parallelism(spark))
    listed = spark.createDataFrame([(file,) for file in files], "path string").repartition(tasks)
    checked = listed.mapInArrow(check, "path string, corrupt string, wrong string")
    bad = sorted(checked.where("corrupt is not null or wrong is not null").collect())
    for file, _, wrong in bad:
        if wrong is not None:
            raise PipelineError(f"{file}: {wrong}")
    skipped = [f"{file}: {corrupt}" for file, corrupt, _ in bad]
    if skipped and not skip_corrupt:
        more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        raise PipelineError(f"{skipped[0]}{more}; --skip-corrupt leaves such files out")
    if len(skipped) == len(files):
        raise PipelineError(f"{skipped[0]}: there is no other file in {path}")
    unreadable = {file for file, _, _ in bad}
    parts = [place.rows(spark, unreadable) for place in places if not unreadable.issuperset(place.wanted)]
    rows = reduce(DataFrame.unionByName, parts)
    if rows.where("instance is null").limit(1).count():
        raise PipelineError(f"missing column instance in {path}: files lie in directories named instance=NAME")
    return Trace(rows, len(files) - len(skipped), tuple(skipped))


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory with files of a trace."""

    path: str
    files: tuple[str, ...]
    wanted: tuple[str, ...]
    """The files with rows of the trace. The others have the same rows."""

    def rows(self, spark: SparkSession, unreadable: set[str]) -> DataFrame:
        """The rows of the wanted files."""
        left = set(self.wanted) - unreadable
        if len(left) == len(self.files):
            paths = [self.path]
        else:  # whole directories, where that is possible: Spark looks at each path that it is given
            directories = {file.rpartition("/")[0] for file in self.files}
            partial = {file.rpartition("/")[0] for file in self.files if file not in left}
            paths = [*(directories - partial), *(file for file in left if file.rpartition("/")[0] in partial)]
        reader = spark.read.schema(schema()).option("basePath", self.path).option("pathGlobFilter", "*.parquet")
        return reader.parquet(*map(literal, paths))


def _places(spark: SparkSession, path: str) -> list[_Place]:
    """The files of a trace: those that a journal has written, and joined ones (`purgatory.journal.compact`)."""
    small = _files(spark, path)  # listed before the manifests are read: see there
    if small is None:
        raise PipelineError(f"there is no {path}")
    manifests = _manifests(spark, path)
    if not manifests:
        return [_Place(path, small, small)]
    joined = _files(spark, f"{path}/{DATA}") or ()  # listed last: they were there before their manifests
    names, replaced = counting(manifests)
    counted = set(names)
    return [
        _Place(path, small, tuple(file for file in small if _name(file) not in replaced)),
        _Place(f"{path}/{DATA}", joined, tuple(file for file in joined if _name(file) in counted)),
    ]


def _manifests(spark: SparkSession, path: str) -> list[list[Entry]]:
    """The manifests of joined files, in order of their names."""
    reader = spark.read.schema("file string, replaces array<string>")
    try:
        found = reader.json(literal(f"{path}/{MANIFESTS}")).select("*", "_metadata.file_name").collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []
    by_name: dict[str, list[Entry]] = defaultdict(list)
    for file, replaces, name in found:
        by_name[name].append(Entry(file, tuple(replaces)))
    return [by_name[name] for name in sorted(by_name)]


def _name(file: str) -> str:
    """The file from the directory of its day on."""
    return "/".join(file.rsplit("/", 3)[1:])


def _files(spark: SparkSession, path: str) -> tuple[str, ...] | None:
    """The files below a directory; `None` if there is none."""
    options = {"recursiveFileLookup": "true", "pathGlobFilter": "*.parquet"}
    try:
        found = spark.read.format("binaryFile").options(**options).load(literal(path))
        return tuple(map(unquote, found.inputFiles()))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


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


def _problem(file: str, *, whole: bool) -> tuple[str | None, str | None]:
    """The reason if `file` cannot be read, and the fault of its columns if they have one."""
    try:
        system, path = _place(file)
    except (pa.ArrowException, OSError):
        return None, None  # not a file system of pyarrow's: a fault is found when Spark reads it
    try:
        with system.open_input_file(path) as opened, pq.ParquetFile(opened) as parquet:
            columns = parquet.schema_arrow
            if whole:
                for _ in parquet.iter_batches():
                    pass
    except (pa.ArrowException, OSError) as error:
        return f"cannot be read: {str(error).splitlines()[0]}", None
    for name, expected in _TYPES.items():
        if name not in columns.names:
            if name not in _OPTIONAL:
                return None, f"missing column {name}"
        elif not _fits(columns.field(name).type, expected):
            return None, f"column {name} is {columns.field(name).type}, and not {expected}"
    return None, None


def _place(file: str) -> tuple[fs.FileSystem, str]:
    if file.startswith("file:"):
        return fs.LocalFileSystem(), re.sub("^file:/+", "/", file)
    system, path = fs.FileSystem.from_uri(quote(re.sub("^s3[an]:", "s3:", file), safe=":/@"))
    return system, path


def literal(path: str) -> str:
    """`path` with escapes for the characters that are patterns to Hadoop."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)


def _fits(found: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(expected):
        return bool(pa.types.is_list(found) and found.value_type == expected.value_type)
    if pa.types.is_timestamp(expected):
        return bool(pa.types.is_timestamp(found))  # Spark by itself writes nanoseconds
    return bool(found == expected)
