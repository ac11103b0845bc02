"""The one look at each file before a replay: whether it can be read, and which operations it has.

It runs on the executors. A row group is read some rows at a time, so that its size does not count.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.spark.columns import COLUMNS
from purgatory.spark.lives import OPTIONAL, TYPES, Lives, check, deadlines, lean, lives, opened, read

__all__ = ["FOUND", "TASKS", "Piece", "worker"]

_POINTS: Final = 64
"""The most points of a piece."""

FOUND: Final = pa.schema(
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

TASKS: Final = 64
"""The most Spark tasks for so few files that each task has less than a hundred."""

_KINDS: Final = {"double": "a number", "timestamp": "a timestamp", "string": "a string"}


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


def worker(files: Sequence[str], tasks: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that runs on the executors: it surveys the files of the tasks whose numbers it is given."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lean()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for file in files[task::tasks]:
                    yield pa.RecordBatch.from_pylist(_survey(file), FOUND)

    return run


def _survey(file: str) -> list[dict[str, Any]]:
    """Rows of `FOUND`."""
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
                rows += [{"file": file, "group": group, **piece} for piece in _pieces(read(parquet, group))]
    except (pa.ArrowException, OSError) as error:
        return [{"file": file, "corrupt": f"cannot be read: {str(error).splitlines()[0]}"}]
    return rows


def _pieces(tables: Iterable[pa.Table]) -> Iterator[dict[str, Any]]:
    """The pieces in the rows of a row group, or the impossible values that these have."""
    found: dict[str, list[Lives]] = {}
    unknown: Counter[str] = Counter()
    for table in tables:
        impossible = check(table)
        if impossible is not None:
            column, rows, example = impossible
            yield {"impossible": column, "rows": rows, "example": example}
            continue
        names = pc.unique(table["purgatory"])
        table = table.drop_columns(["keys", "operation"])
        for name in names:
            some = table if len(names) == 1 else table.filter(pc.equal(table["purgatory"], name))
            found.setdefault(name.as_py(), []).append(lives(some))
            unknown[name.as_py()] += int(np.isnan(deadlines(some)).sum())
    for purgatory, lots in found.items():
        yield {"purgatory": purgatory, **_piece(Lives.together(lots)), "unknown": unknown[purgatory]}


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
