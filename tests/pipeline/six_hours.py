"""What it costs to load the cube of a stream of six hours: `python -m tests.pipeline.six_hours [--rate 1000]`.

Spark makes the cubes of a minute, in six batches of ten seconds, and the 2,160 batches are these at later times. Prints
the CPU of the process for loading them as they were written, for merging them as they come, and for loading them then.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from purgatory.pipeline import answers, cube, trace
from purgatory.pipeline.compact import compact
from purgatory.pipeline.generate import Traffic, generate
from purgatory.spark.session import session

_MINUTES: Final = 360
_START: Final = 1_750_032_000
"""Midnight."""
_INSTANCES: Final = 4


def minute(rate: float, keys: int) -> list[pa.Table]:
    """The cubes of the six batches of a minute."""
    traffic = Traffic(
        rate=rate / _INSTANCES, instances=_INSTANCES, keys=keys, zipf=1.0, start=_START, median=0.3, upper_quartile=0.7
    )
    tables = []
    with session("local[2]", {"spark.sql.shuffle.partitions": "1"}) as spark:
        rows = generate(spark, traffic).withColumn("file", F.lit("a")).persist()
        for batch in range(6):
            part = rows.where(F.floor(F.unix_seconds("arrived_at") / 10) == _START // 10 + batch)
            numbers = trace.numbers(60_000_000, 2**60, 2000)
            tables.append(trace.maker()(spark, part, numbers, None))
    return tables


def later(table: pa.Table, minutes: int) -> pa.Table:
    """The cube of a batch so many minutes later: counts of keys are of the day."""
    is_day = pc.is_in(table["part"], pa.array(["hot_keys", "cuts"]))
    for column in ("arrived", "finished"):
        moved = pc.if_else(is_day, table[column], pc.add(table[column], 60_000_000 * minutes))
        table = table.set_column(table.column_names.index(column), column, moved)
    return table


@contextmanager
def _measured(title: str, found: Callable[[], str]) -> Iterator[None]:
    start = time.process_time()
    yield
    sys.stdout.write(f"{title}: {time.process_time() - start:.2f} s of CPU; {found()}\n")


def _load(path: str) -> None:
    def about() -> str:
        return f"{len(cube.files(path))} files, {len(table):,} rows, {rows['operations'].sum():,} operations"

    with _measured("load", about):
        table = cube.load(path, lambda day: True)
        rows = answers.rows_of(table)
        answers.keys(table)
        answers.pending(table)
    keys = answers.keys(table)
    width = (keys["operations_most"] / keys["operations"] - 1).iloc[:8].max()
    sys.stdout.write(f"  the eight hottest keys are known within {100 * width:.2f} %\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--keys", type=int, default=5000)
    parser.add_argument("--minutes", type=int, default=_MINUTES)
    options = parser.parse_args()
    tables = minute(options.rate, options.keys)
    sys.stdout.write(f"batches of {len(tables[0]):,} rows and {pc.sum(tables[0]['operations'])} counts\n")
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "written"
        for number in range(6 * options.minutes):
            path = written / f"batch={number}"
            path.mkdir(parents=True)
            pq.write_table(later(tables[number % 6], number // 6), path / "part.parquet", compression="zstd")
        _load(str(written))
        merged = Path(directory) / "merged"
        merged.mkdir()
        slowest = 0.0
        with _measured("merge", lambda: f"{slowest:.2f} s for the slowest"):
            for number in range(6 * options.minutes):
                (written / f"batch={number}").rename(merged / f"batch={number}")
                start = time.process_time()
                while compact(str(merged)):
                    slowest, start = max(slowest, time.process_time() - start), time.process_time()
        _load(str(merged))
