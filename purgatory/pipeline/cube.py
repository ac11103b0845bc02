"""The cube of a journal: small Parquet files with the counts that all answers are made of.

`rollup` writes one file for each day, which replaces the one before: `CUBE/date=2026-11-26/cube.parquet`, or through
Spark `CUBE/date=2026-11-26/version=N-…/….parquet`, of which the newest counts. `stream` writes one for each of its
batches, `CUBE/batch=7/….parquet`, and merges them, so that `CUBE/batches=0-9/cube.parquet` stands for ten: the rows of
several files just add up.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import PurePosixPath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from purgatory.pipeline.places import place
from purgatory.spark.errors import PipelineError

AHEAD: Final = "ahead of the clock"
"""What is refused because it has ended later than now. All else that is refused is impossible."""

_LISTINGS: Final = 5
"""How often a directory of batches is listed: once more than merged files have sizes."""
_NAME: Final = re.compile(
    r"date=[0-9-]{10}/(?:cube|version=\d+-[^/]*/[^._][^/]*)\.parquet|batch=(\d+)/[^._][^/]*\.parquet"
)
_SPAN: Final = re.compile(r"batches=(\d+)-(\d+)/cube\.parquet")
_PREFIX: Final = len("date=2026-11-26")
_ATTEMPTS: Final = 5
"""How often a cube is listed and read before a reader gives up on its writers."""
_STEPS: Final = ("steps", "instance_steps")
_EPOCH: Final = date(1970, 1, 1)
_DAY: Final = 86_400_000_000
"""Microseconds."""


def files(path: str, spark: SparkSession | None = None, *, listings: int = _LISTINGS) -> list[str]:
    """The files of the cube in the directory `path`, below it; none if that is no cube.

    With `spark`, here and below, the path is Spark's: of any file system of Hadoop's, or of a Connect server's machine.
    A file may vanish when a stream has merged it. Then the files are others, with the same rows.
    """
    where = place(path, spark)
    names = set(where.names())
    if any(name.startswith("batch") for name in names):
        # A directory is not listed at once. So if a file comes late and those that it stands for go early, none of them
        # is seen. The next listing has that file, or misses it in the same way, and then its rows are in a larger one.
        for _ in range(1, listings):
            names.update(where.names())
    spans = {name: (int(match[1]), int(match[2])) for name in names if (match := _SPAN.fullmatch(name))}
    known = sorted(name for name in names if name in spans or _NAME.fullmatch(name))
    newest = {name[:_PREFIX]: PurePosixPath(name).parent for name in known if name.startswith("date=")}
    known = [name for name in known if newest.get(name[:_PREFIX]) in (None, PurePosixPath(name).parent)]
    return [name for name in known if not _is_in(name, spans)]


def _is_in(name: str, spans: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a file of batches is a part of another one."""
    match = _SPAN.fullmatch(name) or _NAME.fullmatch(name)
    if match is None or match[1] is None:
        return False
    first, last = int(match[1]), int(match[match.lastindex or 1])
    return any(other != name and begin <= first and last <= end for other, (begin, end) in spans.items())


def days_of(path: str, spark: SparkSession | None = None) -> list[date]:
    """The days that `rollup` has written to the cube."""
    return sorted({_day(name) for name in files(path, spark) if name.startswith("date=")})


def save(table: pa.Table, path: str, day: date, spark: SparkSession | None = None) -> None:
    """Write the cube of a day, in place of the one that there is. Readers find the one or the other."""
    place(path, spark).replace(table, f"date={day}")


def load(path: str, is_requested: Callable[[date], bool], spark: SparkSession | None = None) -> pa.Table:
    """Read the cube of the requested days. Raises `PipelineError` if it has none of them."""
    table = _read(path, is_requested, spark)
    days = pc.divide(table["arrived"], _DAY)
    unwanted = [
        each for each in pc.unique(days).to_pylist() if each is not None and not is_requested(_EPOCH + timedelta(each))
    ]
    is_unwanted = pc.is_in(days, pa.array(unwanted, pa.int64()))
    return table.filter(pc.or_(pc.invert(is_unwanted), _is_part(table, *_STEPS)))


def between(table: pa.Table, first: datetime, last: datetime, also: date | None) -> pa.Table:
    """The rows of what arrived in the slots that are between `first` and `last`, or partly so, and on the day `also`.

    Counts of keys are of whole days.
    """
    begin, end = (round(time.timestamp() * 1e6) for time in (first, last))
    arrived = table["arrived"]
    ended = pc.add(arrived, pc.coalesce(table["slot"], 1))
    is_inside = pc.and_(pc.greater(ended, begin), pc.less(arrived, end))
    if also is not None:
        is_inside = pc.or_(is_inside, pc.equal(pc.divide(arrived, _DAY), (also - _EPOCH).days))
    return table.filter(pc.or_(pc.invert(_is_part(table, "operations", "moments")), is_inside))


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The cube of several files. Its column `file` tells which rows are of one, for keys that a file may lack."""
    numbered = []
    for number, table in enumerate(tables):
        if "part" not in table.column_names:
            raise PipelineError("the cube is of an earlier version: delete it, and roll up the journal again")
        columns = [name for name in table.column_names if name != "file"]
        numbered.append(table.select(columns).append_column("file", pa.repeat(number, len(table))))
    return pa.concat_tables(numbered, promote_options="permissive")


def only_steps(table: pa.Table) -> pa.Table:
    """The rows that count what is pending."""
    return table.filter(_is_part(table, *_STEPS))


def _is_part(table: pa.Table, *parts: str) -> pa.ChunkedArray:
    return pc.is_in(table["part"], pa.array(parts))


def _read(path: str, is_requested: Callable[[date], bool], spark: SparkSession | None) -> pa.Table:
    """The rows of the files that may have requested days, and what was pending when these began."""
    for attempt in range(_ATTEMPTS):
        found = {name: _day(name) if name.startswith("date=") else None for name in files(path, spark)}
        whole = [name for name, day in found.items() if day is None or is_requested(day)]
        before = [
            name
            for name, day in found.items()
            if day is not None and not is_requested(day) and is_requested(day + timedelta(days=1))
        ]
        if not whole:
            raise PipelineError(f"{path} has none of these days")
        try:
            tables = place(path, spark).read([*whole, *before])
        except FileNotFoundError:  # a writer has replaced it meanwhile
            if attempt == _ATTEMPTS - 1:
                raise PipelineError(f"{path} changes while it is read: try again") from None
            continue
        return joined([*tables[: len(whole)], *(only_steps(table) for table in tables[len(whole) :])])
    raise AssertionError


def _day(name: str) -> date:
    return date.fromisoformat(name[5:_PREFIX])


def refused(table: pa.Table) -> dict[str, int]:
    """How many operations of each instance are ahead of the clock. Raises `PipelineError` for impossible rows."""
    ahead: Counter[str] = Counter()
    impossible: Counter[str] = Counter()
    for row in table.filter(_is_part(table, "refused")).select(["refused", "instance", "operations"]).to_pylist():
        which, what = (ahead, "instance") if row["refused"] == AHEAD else (impossible, "refused")
        which[row[what]] += row["operations"]
    for reason, number in impossible.items():
        column, _, file = reason.partition(" in ")
        raise PipelineError(f"{number:,} rows have an impossible {column}, in {file}")
    return dict(ahead)
