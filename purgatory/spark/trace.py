"""Traces: the lives of operations, one row each, as a journal or the generator has written them.

A trace is a directory of Parquet files with a journal's columns (`purgatory.journal.SCHEMA`), below directories that
name the instance. Generated ones also have `completes_s`, the true time to complete, which a journal does not have for
operations that have expired.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import ceil, inf
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.journal.compact import DATA, MANIFESTS, Entry, counting
from purgatory.spark.errors import PipelineError
from purgatory.spark.lives import OPTIONAL, TYPES, Lives, check, deadlines, lives, opened
from purgatory.spark.lives import read as read_group
from purgatory.spark.simulate import OUTCOMES

__all__ = [
    "COLUMNS",
    "DEADLINE",
    "IMPOSSIBLE",
    "UNKNOWN_DEADLINE",
    "Part",
    "Piece",
    "Trace",
    "literal",
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

_POINTS: Final = 64
"""The most points of a piece."""

_FOUND: Final = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("file", "corrupt", "wrong", "impossible", "example", "purgatory")),
        *(pa.field(name, pa.string()) for name in ("kinds", "digest")),
        *(pa.field(name, pa.int64()) for name in ("rows", "group", "operations", "unknown", "last")),
        pa.field("points", pa.list_(pa.int64())),
        *(pa.field(name, pa.float64()) for name in ("ended", "stayed", "longest_end", "longest_timeout")),
        pa.field("unended", pa.int64()),
    ]
)
"""Of each file: the fault that it has, or its odd types, the digest of its footer, and its pieces."""

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
"""Seconds from the arrival to the last deadline, as `lives.deadlines`; null is for ever.

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
class Piece:
    """The operations of a part that are in one row group of a file."""

    file: str
    group: int
    operations: int
    last: int
    """The last arrival, in microseconds since 1970."""
    points: tuple[int, ...]
    """Arrivals with about as many operations between each two of them, the first one of all to begin with."""
    ended: float
    """Seconds until their ends all together, where these are known."""
    unended: int
    """Operations whose end is not known."""
    stayed: float
    """Seconds until their ends or their timeouts, all together, where one of them is known."""
    longest_end: float
    longest_timeout: float
    """The longest of all, in seconds; infinite if there is one that is not known."""


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
    places = _places(spark, path)
    files = sorted(file for place in places for file in place.wanted)
    if not files:
        raise PipelineError(f"there are no Parquet files in {path}")
    if any(_instance(file) is None for file in files):
        raise PipelineError(f"missing column instance in {path}: files lie in directories named instance=NAME")
    tasks = min(len(files), max(_POINTS, len(files) // 100))

    def survey(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for file in files[task::tasks]:
                    yield pa.RecordBatch.from_pylist(_survey(file), _FOUND)

    found = spark.range(0, tasks, 1, tasks).mapInArrow(survey, from_arrow_schema(_FOUND)).toArrow().to_pylist()
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
    rows = reduce(DataFrame.unionByName, (rows for place in places for rows in place.rows(spark, kinds)))
    return Trace(rows, len(good), skipped, _parts(found), _warnings(found))


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory with files of a trace."""

    path: str
    files: tuple[str, ...]
    wanted: tuple[str, ...]
    """The files with rows of the trace. The others have the same rows."""

    def rows(self, spark: SparkSession, kinds: Mapping[str, str]) -> Iterator[DataFrame]:
        """The rows of the wanted files that can be read, those of the same odd types together."""
        by_kinds: dict[str, set[str]] = {}
        for file in self.wanted:
            if file in kinds:
                by_kinds.setdefault(kinds[file], set()).add(file)
        for each, some in by_kinds.items():
            if len(some) == len(self.files):
                paths = [self.path]
            else:  # whole directories, where that is possible: Spark looks at each path that it is given
                directories = {file.rpartition("/")[0] for file in some}
                partial = {file.rpartition("/")[0] for file in self.files if file not in some}
                paths = [*(directories - partial), *(file for file in some if file.rpartition("/")[0] in partial)]
            yield _read(spark, self.path, json.loads(each), [literal(path) for path in paths])


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


def literal(path: str) -> str:
    """`path` with escapes for the characters that are patterns to Hadoop."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)


def _instance(file: str) -> str | None:
    """The instance that the directories of a file name."""
    for directory in reversed(file.split("/")[:-1]):
        if directory.startswith("instance="):
            return unquote(directory.removeprefix("instance="))
    return None


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


def _survey(file: str) -> list[dict[str, Any]]:
    """Rows of `_FOUND`."""
    try:
        with opened(file) as parquet:
            columns = _columns(parquet.schema)
            kinds = {}
            for name in TYPES:
                if name not in columns:
                    if name not in OPTIONAL:
                        return [{"file": file, "wrong": f"missing column {name}"}]
                    continue
                kind = _kind(columns[name], COLUMNS[name])
                if kind is None:
                    leaves = ", ".join(f"{leaf.physical_type} {leaf.logical_type}" for leaf in columns[name])
                    expected = _KINDS.get(COLUMNS[name], "strings")
                    return [{"file": file, "wrong": f"column {name} is {leaves} in Parquet, and not {expected}"}]
                if kind != COLUMNS[name]:
                    kinds[name] = kind
            footer = pa.BufferOutputStream()
            parquet.metadata.write_metadata_file(footer)
            digest = hashlib.sha256(footer.getvalue()).hexdigest() if parquet.metadata.num_rows else None
            rows: list[dict[str, Any]] = [{"file": file, "kinds": json.dumps(kinds), "digest": digest}]
            for group in range(parquet.num_row_groups):
                rows += [{"file": file, "group": group, **piece} for piece in _pieces(read_group(parquet, group))]
    except (pa.ArrowException, OSError) as error:
        return [{"file": file, "corrupt": f"cannot be read: {str(error).splitlines()[0]}"}]
    return rows


def _pieces(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The pieces in the rows of a row group, or the impossible value that these have."""
    impossible = check(table)
    if impossible is not None:
        column, rows, example = impossible
        yield {"impossible": column, "rows": rows, "example": example}
        return
    names = pc.unique(table["purgatory"])
    for name in names:
        some = table if len(names) == 1 else table.filter(pc.equal(table["purgatory"], name))
        yield {"purgatory": name.as_py(), **_piece(lives(some)), "unknown": int(np.isnan(deadlines(some)).sum())}


def _piece(some: Lives) -> dict[str, Any]:
    arrived = np.sort(some.arrived)
    known = some.end < inf
    stays = np.minimum(some.end, some.timeout)
    return {
        "operations": len(arrived),
        "last": int(arrived[-1]),
        "points": arrived[:: ceil(len(arrived) / _POINTS)].tolist(),
        "ended": float(some.end[known].sum()),
        "unended": int(np.count_nonzero(~known)),
        "stayed": float(stays[stays < inf].sum()),
        "longest_end": float(some.end.max()),
        "longest_timeout": float(some.timeout.max()),
    }


def _refuse_impossible(found: list[dict[str, Any]]) -> None:
    for column in TYPES:
        rows = [row for row in found if row["impossible"] == column]
        if rows:
            count = sum(row["rows"] for row in rows)
            raise PipelineError(
                f"{count} rows have an impossible {column}, {rows[0]['example']} in {rows[0]['file']} for one"
            )


def _parts(found: list[dict[str, Any]]) -> tuple[Part, ...]:
    pieces: dict[tuple[str, str], list[Piece]] = {}
    for row in found:
        if row["purgatory"] is not None:
            instance = _instance(row["file"])
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
            first = seen.setdefault((_instance(file), row["digest"]), file)
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
