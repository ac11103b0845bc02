"""The cube of a journal: small Parquet files with the counts that all answers are made of.

`rollup` writes one file for each day, `CUBE/date=2026-11-26/cube.parquet`, which replaces the one before. `stream`
writes one for each of its batches, `CUBE/batch=7/….parquet`: the rows of several files just add up.
"""

import re
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.spark.errors import PipelineError

AHEAD: Final = "ahead of the clock"
"""What is refused because it has ended later than now. All else that is refused is impossible."""

_NAME: Final = re.compile(r"date=[0-9-]{10}/cube\.parquet|batch=\d+/[^._][^/]*\.parquet")
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
        if not name.startswith("date=") or is_requested(date.fromisoformat(name[5:15])):
            with system.open_input_file(f"{below}/{name}") as file:
                tables.append(pq.read_table(file))
    if not tables:
        raise PipelineError(f"{path} has none of these days")
    table = pa.concat_tables(tables, promote_options="permissive")
    days = pc.divide(table["arrived"], _DAY)
    unwanted = [
        each for each in pc.unique(days).to_pylist() if each is not None and not is_requested(_EPOCH + timedelta(each))
    ]
    return table.filter(pc.invert(pc.is_in(days, pa.array(unwanted, pa.int64()))))


def refused(table: pa.Table) -> dict[str, int]:
    """How many operations of each instance are ahead of the clock. Raises `PipelineError` for impossible rows."""
    ahead: Counter[str] = Counter()
    for row in table.filter(pc.is_valid(table["refused"])).select(["refused", "instance", "operations"]).to_pylist():
        if row["refused"] != AHEAD:
            column, _, file = row["refused"].partition(" in ")
            raise PipelineError(f"{row['operations']:,} rows have an impossible {column}, in {file}")
        ahead[row["instance"]] += row["operations"]
    return dict(ahead)
