"""The overhead of Spark in a replay, and the growth of its time: `python -m purgatory.spark.measure`.

The same trace is replayed by a plain loop in this process, and on Spark with one core and with two; then traces of
twice and four times as many instances on two cores. They alternate, in several rounds: the result is the ratio of two
times of one round. The start of Spark, some seconds, is measured apart.
"""

import argparse
import sys
import tempfile
import time
from itertools import repeat, starmap
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from purgatory.spark import generate, replay, trace
from purgatory.spark.session import session
from purgatory.spark.simulate import Arrival, Configuration, simulate
from purgatory.spark.traffic import PRESETS

INSTANCES: Final = 4


def plain(path: Path) -> int:
    """Replay the trace in `path` without Spark, one instance after the other. Returns the number of its operations."""
    operations = 0
    for instance in sorted(path.glob("date=*/instance=*")):
        rows = pq.read_table(instance, partitioning=None).sort_by("arrived_at")
        arrived = pc.divide(rows["arrived_at"].cast("int64").cast("float64"), 1e6)
        columns = (
            pc.subtract(arrived, pc.floor(arrived[0])).to_pylist(),
            map(tuple, rows["keys"].to_pylist()),
            rows["timeout_s"].to_pylist(),
            rows["completes_s"].to_pylist(),
            repeat("satisfied"),
        )
        operations += simulate(Configuration(), starmap(Arrival, zip(*columns, strict=False))).counts["operations"]
    return operations


def on_spark(path: Path, cores: int) -> tuple[float, float]:
    """Replay the trace in `path` on Spark. Returns the seconds of Spark's start and of the replay."""
    began = time.perf_counter()
    with session(f"local[{cores}]") as spark:
        spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()  # the first Python worker, too
        started = time.perf_counter()
        replay.replay(spark, trace.read(spark, str(path)), replay.sweep()).summary.collect()
        return started - began, time.perf_counter() - started


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser("purgatory.spark.measure", description=__doc__)
    parser.add_argument("--operations", type=int, default=2_000_000, help="in the smallest trace (default: 2000000)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    times: dict[str, list[float]] = {}
    starts: list[float] = []
    operations = 0
    with tempfile.TemporaryDirectory() as directory, Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("generating", total=None)
        traces = {}
        with session() as spark:
            for factor in (1, 2, 4):
                traces[factor] = Path(directory, f"x{factor}")
                instances = factor * INSTANCES
                seconds = options.operations / INSTANCES / PRESETS["low"].rate
                traffic = PRESETS["low"].with_changes(instances=instances, seconds=seconds)
                generate.write(generate.generate(spark, traffic), str(traces[factor]))
        progress.update(bar, total=options.rounds * 5, description="measuring")
        for _ in range(options.rounds):
            began = time.perf_counter()
            operations = plain(traces[1])
            times.setdefault("a plain Python loop", []).append(time.perf_counter() - began)
            progress.advance(bar)
            for name, factor, cores in (
                ("Spark, one core", 1, 1),
                ("Spark, two cores", 1, 2),
                ("Spark, two cores, twice the instances", 2, 2),
                ("Spark, two cores, four times the instances", 4, 2),
            ):
                start, seconds = on_spark(traces[factor], cores)
                times.setdefault(name, []).append(seconds)
                starts.append(start)
                progress.advance(bar)
    table = Table(title=f"a replay of {operations:,} operations of {INSTANCES} instances, and of more instances")
    for column in ("what", "seconds, median", "times a plain loop", "times Spark, two cores"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, taken in times.items():
        others = (times["a plain Python loop"], times["Spark, two cores"])
        table.add_row(name, f"{median(taken):.1f}", *(f"{median(map(truediv, taken, other)):.2f}" for other in others))
    table.add_row("until Spark has started", f"{median(starts):.1f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
