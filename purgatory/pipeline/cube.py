"""The cube of a journal: small Parquet files with the counts that all answers are made of.

`rollup` writes one file for each day, `CUBE/date=2026-11-26/cube.parquet`, which replaces the one before. `stream`
writes one for each of its batches, `CUBE/batch=7/….parquet`: the rows of several files just add up.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.spark.errors import PipelineError

AHEAD: Final = "ahead of the clock"
"""What is refused because it has ended later than now. All else that is refused is impossible."""

_NAME: Final = re.compile(r"date=[0-9-]{10}/cube\.parquet|batch=\d+/[^._][^/]*\.parquet")
_STEPS: Final = ("steps", "instance_steps")
_EPOCH: Final = date(1970, 1, 1)
_DAY: Final = 86_400_000_000
"""Microseconds."""


def _open(path: str) -> tuple[fs.FileSystem, str]:
    try:
        system, below = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
    except (ValueError, OSError) as error:
        raise PipelineError(f"{path} cannot be used: {error}") from None
    return system, below.rstrip("/")


def files(path: str) -> list[str]:
    """The files of the cube in the directory `path`, below it; none if that is no cube."""
    system, below = _open(path)
    found = system.get_file_info(fs.FileSelector(below, allow_not_found=True, recursive=True))
    names = sorted(info.path.removeprefix(f"{below}/") for info in found if info.type == fs.FileType.File)
    return [name for name in names if _NAME.fullmatch(name)]


def days_of(path: str) -> list[date]:
    """The days that `rollup` has written to the cube."""
    return [date.fromisoformat(name[5:15]) for name in files(path) if name.startswith("date=")]


def save(table: pa.Table, path: str, day: date) -> None:
    """Write the cube of a day, in place of the one that there is. Readers find the one or the other."""
    system, below = _open(path)
    place = f"{below}/date={day}"
    system.create_dir(place)
    hidden = f"{place}/.cube.parquet"
    with system.open_output_stream(hidden) as file:
        pq.write_table(table, file, compression="zstd")
    system.move(hidden, f"{place}/cube.parquet")


def load(path: str, is_requested: Callable[[date], bool]) -> pa.Table:
    """Read the cube of the requested days. Raises `PipelineError` if it has none of them."""
    system, below = _open(path)
    tables = []
    for name in files(path):
        day = date.fromisoformat(name[5:15]) if name.startswith("date=") else None
        # Some operations of the day before may be pending at midnight.
        if day is None or is_requested(day) or is_requested(day + timedelta(days=1)):
            with system.open_input_file(f"{below}/{name}") as file:
                table = pq.read_table(file)
            tables.append(table if day is None or is_requested(day) else only_steps(_parted(table)))
    if not any(len(table) for table in tables):
        raise PipelineError(f"{path} has none of these days")
    table = joined(tables)
    days = pc.divide(table["arrived"], _DAY)
    unwanted = [
        each for each in pc.unique(days).to_pylist() if each is not None and not is_requested(_EPOCH + timedelta(each))
    ]
    is_unwanted = pc.is_in(days, pa.array(unwanted, pa.int64()))
    return table.filter(pc.or_(pc.invert(is_unwanted), _is_part(table, *_STEPS)))


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
    numbered = [
        _parted(table).append_column("file", pa.repeat(number, len(table))) for number, table in enumerate(tables)
    ]
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


def refused(table: pa.Table) -> dict[str, int]:
    """How many operations of each instance are ahead of the clock. Raises `PipelineError` for impossible rows."""
    ahead: Counter[str] = Counter()
    for row in table.filter(_is_part(table, "refused")).select(["refused", "instance", "operations"]).to_pylist():
        if row["refused"] != AHEAD:
            column, _, file = row["refused"].partition(" in ")
            raise PipelineError(f"{row['operations']:,} rows have an impossible {column}, in {file}")
        ahead[row["instance"]] += row["operations"]
    return dict(ahead)
