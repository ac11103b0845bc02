"""The cube of a journal: small Parquet files with the counts that all answers are made of.

<<<<<<< HEAD
`rollup` writes one file for each day, which replaces the one before: `CUBE/date=2026-11-26/cube.parquet`, or through
Spark `CUBE/date=2026-11-26/version=N-…/….parquet`, of which the newest counts. `stream` writes one for each of its
batches, `CUBE/batch=7/….parquet`: the rows of several files just add up.
=======
`rollup` writes one file for each day, `CUBE/date=2026-11-26/cube.parquet`, which replaces the one before. `stream`
writes one for each of its batches, `CUBE/batch=7/….parquet`, and merges them, so that `CUBE/batches=0-9/cube.parquet`
stands for ten: the rows of several files just add up.
>>>>>>> 130f9d3 (Merge the batches of a stream's cube)
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import PurePosixPath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from purgatory.pipeline.places import local, place
from purgatory.spark.errors import PipelineError

AHEAD: Final = "ahead of the clock"
"""What is refused because it has ended later than now. All else that is refused is impossible."""

<<<<<<< HEAD
_NAME: Final = re.compile(
    r"date=[0-9-]{10}/cube\.parquet|date=[0-9-]{10}/version=\d+-[^/]*/[^._][^/]*\.parquet|batch=\d+/[^._][^/]*\.parquet"
)
_PREFIX: Final = len("date=2026-11-26")
_ATTEMPTS: Final = 5
"""How often a cube is listed and read before a reader gives up on its writers."""
=======
COMPACTED: Final = "_compacted"
"""The list of the merged files of a cube."""

_NAME: Final = re.compile(r"date=[0-9-]{10}/cube\.parquet|batch=(\d+)/[^._][^/]*\.parquet")
_SPAN: Final = re.compile(r"batches=(\d+)-(\d+)/cube\.parquet")
>>>>>>> 130f9d3 (Merge the batches of a stream's cube)
_STEPS: Final = ("steps", "instance_steps")
_EPOCH: Final = date(1970, 1, 1)
_DAY: Final = 86_400_000_000
"""Microseconds."""


def files(path: str, spark: SparkSession | None = None) -> list[str]:
    """The files of the cube in the directory `path`, below it; none if that is no cube.

    With `spark`, here and below, the path is Spark's: of any file system of Hadoop's, or of a Connect server's machine.
    """
    names = [name for name in place(path, spark).names() if _NAME.fullmatch(name)]
    newest = {name[:_PREFIX]: PurePosixPath(name).parent for name in names if name.startswith("date=")}
    return [name for name in names if newest.get(name[:_PREFIX]) in (None, PurePosixPath(name).parent)]


<<<<<<< HEAD
def days_of(path: str, spark: SparkSession | None = None) -> list[date]:
=======
def files(path: str) -> list[str]:
    """The files of the cube in the directory `path`, below it; none if that is no cube.

    A file may vanish when a stream has merged it. Then the files are others, with the same rows.
    """
    system, below = _open(path)
    while True:
        merged = merged_files(path)
        found = system.get_file_info(fs.FileSelector(below, allow_not_found=True, recursive=True))
        if merged == merged_files(path):  # nothing has been deleted meanwhile
            break
    spans = [(int(match[1]), int(match[2])) for name in merged if (match := _SPAN.fullmatch(name))]
    names = sorted(info.path.removeprefix(f"{below}/") for info in found if info.type == fs.FileType.File)
    return [name for name in names if name in merged or ((match := _NAME.fullmatch(name)) and not _is_in(match, spans))]


def merged_files(path: str) -> list[str]:
    """The files, each of several batches, that stand for these batches, whether or not those are still there."""
    system, below = _open(path)
    try:
        with system.open_input_stream(f"{below}/{COMPACTED}") as file:
            return bytes(file.read()).decode().split()
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_in(match: re.Match[str], spans: Sequence[tuple[int, int]]) -> bool:
    return match[1] is not None and any(first <= int(match[1]) <= last for first, last in spans)


def days_of(path: str) -> list[date]:
>>>>>>> 130f9d3 (Merge the batches of a stream's cube)
    """The days that `rollup` has written to the cube."""
    return sorted({_day(name) for name in files(path, spark) if name.startswith("date=")})


def save(table: pa.Table, path: str, day: date, spark: SparkSession | None = None) -> None:
    """Write the cube of a day, in place of the one that there is. Readers find the one or the other."""
    place(path, spark).replace(table, f"date={day}")


def load(path: str, is_requested: Callable[[date], bool], spark: SparkSession | None = None) -> pa.Table:
    """Read the cube of the requested days. Raises `PipelineError` if it has none of them."""
<<<<<<< HEAD
    table = _read(path, is_requested, spark)
=======
    while True:
        with suppress(FileNotFoundError):  # it was merged since it was listed
            tables = _tables(path, is_requested)
            break
    if not any(len(table) for table in tables):
        raise PipelineError(f"{path} has none of these days")
    table = joined(tables)
>>>>>>> 130f9d3 (Merge the batches of a stream's cube)
    days = pc.divide(table["arrived"], _DAY)
    unwanted = [
        each for each in pc.unique(days).to_pylist() if each is not None and not is_requested(_EPOCH + timedelta(each))
    ]
    is_unwanted = pc.is_in(days, pa.array(unwanted, pa.int64()))
    return table.filter(pc.or_(pc.invert(is_unwanted), _is_part(table, *_STEPS)))


def _tables(path: str, is_requested: Callable[[date], bool]) -> list[pa.Table]:
    """The tables of the files that may have rows of the requested days."""
    system, below = _open(path)
    tables = []
    for name in files(path):
        day = date.fromisoformat(name[5:15]) if name.startswith("date=") else None
        # Some operations of the day before may be pending at midnight.
        if day is None or is_requested(day) or is_requested(day + timedelta(days=1)):
            with system.open_input_file(f"{below}/{name}") as file:
                table = pq.read_table(file)
            tables.append(table if day is None or is_requested(day) else only_steps(_parted(table)))
    return tables


def between(table: pa.Table, first: datetime, last: datetime, also: date | None) -> pa.Table:
    """The rows of what arrived from `first` until `last`, and on the day `also`; counts of keys are of whole days."""
    begin, end = (round(time.timestamp() * 1e6) for time in (first, last))
    arrived = table["arrived"]
    is_inside = pc.and_(pc.greater_equal(arrived, begin), pc.less(arrived, end))
    if also is not None:
        is_inside = pc.or_(is_inside, pc.equal(pc.divide(arrived, _DAY), (also - _EPOCH).days))
    return table.filter(pc.or_(pc.invert(_is_part(table, "operations", "moments")), is_inside))


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The cube of several files. Its column `file` tells which rows are of one, for keys that a file may lack."""
    numbered = []
    for number, table in enumerate(tables):
        columns = [name for name in table.column_names if name != "file"]
        numbered.append(_parted(table.select(columns)).append_column("file", pa.repeat(number, len(table))))
    return pa.concat_tables(numbered, promote_options="permissive")


def only_steps(table: pa.Table) -> pa.Table:
    """The rows that count what is pending."""
    return table.filter(_is_part(table, *_STEPS))


def _is_part(table: pa.Table, *parts: str) -> pa.ChunkedArray:
    return pc.is_in(table["part"], pa.array(parts))


def _parted(table: pa.Table) -> pa.Table:
    """A table of a cube of version 0.3 or older, which has no column `part`, with that column."""
    if "part" in table.column_names:
        return table
    is_key, is_refused = pc.is_valid(table["key"]), pc.is_valid(table["refused"])
    return table.append_column("part", pc.if_else(is_refused, "refused", pc.if_else(is_key, "hot_keys", "operations")))


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
        return joined([*tables[: len(whole)], *(only_steps(_parted(table)) for table in tables[len(whole) :])])
    raise AssertionError


def _day(name: str) -> date:
    return date.fromisoformat(name[5:_PREFIX])


def refused(table: pa.Table) -> dict[str, int]:
    """How many operations of each instance are ahead of the clock. Raises `PipelineError` for impossible rows."""
    ahead: Counter[str] = Counter()
    for row in table.filter(_is_part(table, "refused")).select(["refused", "instance", "operations"]).to_pylist():
        if row["refused"] != AHEAD:
            column, _, file = row["refused"].partition(" in ")
            raise PipelineError(f"{row['operations']:,} rows have an impossible {column}, in {file}")
        ahead[row["instance"]] += row["operations"]
    return dict(ahead)
