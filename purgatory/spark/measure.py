"""The time that a replay takes on Spark and in a plain loop: `python -m purgatory.spark.measure`.

The same trace is replayed by a plain loop in this process, and on Spark: with one core and with two, with ten
configurations, and with ten thousand timeouts and no costs. They alternate, in several rounds: the result is the ratio
of two times of one round. The start of Spark, some seconds, is measured apart. CPU time is that of all processes. It
needs the extras `spark` and `bench`, and Linux.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from purgatory.spark import generate, replay, trace
from purgatory.spark.lives import Lives, lives, opened, read
from purgatory.spark.session import session
from purgatory.spark.simulate import Configuration, Simulation
from purgatory.spark.traffic import PRESETS

INSTANCES: Final = 4

PLAIN: Final = "a plain Python loop"
TWO: Final = "Spark, two cores"


class Taken(NamedTuple):
    """The resources that a replay took."""

    seconds: float
    cpu: float
    """Seconds."""
    start: float = 0.0
    """Seconds until Spark was there."""
    memory: float = 0.0
    """The most of a Python worker, in MB."""


def plain(path: Path) -> Taken:
    """Replay the trace in `path` without Spark, one instance after the other."""
    began, cpu = time.perf_counter(), time.process_time()
    for instance in sorted(path.glob("date=*/instance=*")):
        some = []
        for file in sorted(instance.glob("*.parquet")):
            with opened(f"file:{file}") as parquet:
                some += [lives(table) for group in range(parquet.num_row_groups) for table in read(parquet, group)]
        together = Lives.together(some)
        simulation = Simulation(Configuration())
        for rows in together.rows(int(together.arrived.min()), 10_000, references=False):
            simulation.play(rows)
        simulation.finish()
    return Taken(time.perf_counter() - began, time.process_time() - cpu)


def on_spark(path: Path, cores: int, configurations: Sequence[Configuration], *, costs: bool = True) -> Taken:
    """Replay the trace in `path` on Spark."""
    began = time.perf_counter()
    with session(f"local[{cores}]") as spark:
        spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()  # the first Python worker, too
        started, cpu = time.perf_counter(), _cpu()
        replay.replay(spark, trace.read(spark, str(path)), configurations, costs=costs).summary.collect()
        return Taken(time.perf_counter() - started, _cpu() - cpu, started - began, _memory())


def _cpu() -> float:
    """The CPU time of this process and of Spark's so far, in seconds."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _memory() -> float:
    """The most memory that a Python worker of Spark's has had, in MB."""
    workers = [each for each in psutil.Process().children(recursive=True) if "python" in each.name()]
    peaks = [re.findall(r"VmHWM:\s*(\d+)", Path(f"/proc/{each.pid}/status").read_text()) for each in workers]
    return max(int(peak) for (peak,) in peaks) * 1024 / 1e6


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser("purgatory.spark.measure", description=__doc__)
    parser.add_argument(
        "--operations", type=int, default=1_000_000, help="number of operations of the trace (default: 1000000)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("generating", total=None)
        path = Path(directory, "trace")
        seconds = options.operations / INSTANCES / PRESETS["low"].rate
        with session() as spark:
            generate.write(
                generate.generate(spark, PRESETS["low"].with_changes(instances=INSTANCES, seconds=seconds)), str(path)
            )
        ten = replay.sweep(ticks=[0.001, 0.002, 0.005, 0.01, 0.02], wheel_sizes=[20, 64])
        timeouts = replay.sweep(timeouts=[number / 50_000 for number in range(10_000)])
        measured: dict[str, Callable[[], Taken]] = {
            PLAIN: partial(plain, path),
            "Spark, one core": partial(on_spark, path, 1, replay.sweep()),
            TWO: partial(on_spark, path, 2, replay.sweep()),
            "Spark, two cores, ten configurations": partial(on_spark, path, 2, ten),
            "Spark, two cores, 10,000 timeouts without costs": partial(on_spark, path, 2, timeouts, costs=False),
        }
        progress.update(bar, total=options.rounds * len(measured), description="measuring")
        taken: dict[str, list[Taken]] = {name: [] for name in measured}
        for _ in range(options.rounds):
            for name, measure in measured.items():
                taken[name].append(measure())
                progress.advance(bar)
    table = Table(title=f"a replay of about {options.operations:,} operations of {INSTANCES} instances")
    columns = ("replay", "seconds", "CPU seconds", "times a plain loop", "times Spark, two cores", "MB of a worker")
    for column in columns:
        table.add_column(column, justify="left" if column == "replay" else "right")
    for name, some in taken.items():
        ratios = [
            median(map(truediv, (one.seconds for one in some), (one.seconds for one in taken[other])))
            for other in (PLAIN, TWO)
        ]
        memory = f"{max(one.memory for one in some):.0f}" if some[0].memory else ""
        times = (median(one.seconds for one in some), median(one.cpu for one in some))
        table.add_row(name, *(f"{each:.1f}" for each in times), *(f"{ratio:.2f}" for ratio in ratios), memory)
    starts = [one.start for some in taken.values() for one in some if one.start]
    table.add_row("until Spark has started", f"{median(starts):.1f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
