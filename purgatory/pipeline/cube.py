"""The cube of a journal: small Parquet files with the counts that all answers are made of.

`rollup` writes one file for each day, which replaces the one before: `CUBE/date=2026-11-26/cube.parquet`, or through
Spark `CUBE/date=2026-11-26/version=N-…/….parquet`, of which the newest counts. `stream` writes one for each of its
batches, `CUBE/batch=7/….parquet`: the rows of several files just add up.
"""

import re
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import PurePosixPath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from purgatory.pipeline.places import place
from purgatory.spark.errors import PipelineError

AHEAD: Final = "ahead of the clock"
"""What is refused because it has ended later than now. All else that is refused is impossible."""

_NAME: Final = re.compile(
    r"date=[0-9-]{10}/cube\.parquet|date=[0-9-]{10}/version=\d+-[^/]*/[^._][^/]*\.parquet|batch=\d+/[^._][^/]*\.parquet"
)
_PREFIX: Final = len("date=2026-11-26")
_ATTEMPTS: Final = 5
"""How often a cube is listed and read before a reader gives up on its writers."""
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
    return table.filter(pc.invert(pc.is_in(days, pa.array(unwanted, pa.int64()))))


def _read(path: str, is_requested: Callable[[date], bool], spark: SparkSession | None) -> pa.Table:
    """The rows of the files that may have requested days."""
    for attempt in range(_ATTEMPTS):
        found = files(path, spark)
        names = [name for name in found if not name.startswith("date=") or is_requested(_day(name))]
        if not names:
            raise PipelineError(f"{path} has none of these days")
        try:
            return place(path, spark).read(names)
        except FileNotFoundError:  # a writer has replaced it meanwhile
            if attempt == _ATTEMPTS - 1:
                raise PipelineError(f"{path} changes while it is read: try again") from None
    raise AssertionError


def _day(name: str) -> date:
    return date.fromisoformat(name[5:_PREFIX])


def refused(table: pa.Table) -> dict[str, int]:
    """How many operations of each instance are ahead of the clock. Raises `PipelineError` for impossible rows."""
    ahead: Counter[str] = Counter()
    for row in table.filter(pc.is_valid(table["refused"])).select(["refused", "instance", "operations"]).to_pylist():
        if row["refused"] != AHEAD:
            column, _, file = row["refused"].partition(" in ")
            raise PipelineError(f"{row['operations']:,} rows have an impossible {column}, in {file}")
        ahead[row["instance"]] += row["operations"]
    return dict(ahead)
