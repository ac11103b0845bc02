"""Estimates from journals with a known truth: servers in virtual time that reschedule, close, and are killed.

A world is a server with a purgatory and its journal's rows. The times to complete are log-normal, so the true rate of
timeouts is known for any timeout. In each kind of world the 95 % band must have the truth as often as it says: in 40
worlds with a seed each, or in as many as the variable WORLDS says.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from scipy import stats

from purgatory import DelayedOperation, DelayedOperationPurgatory, FinishedOperation, VirtualClock
from purgatory.journal.columns import columns_by_day
from purgatory.spark.survival import Floats, by_operation, choose, curve, rate_at, settled
from tests.pipeline.traces import START

WORLDS: Final = int(os.environ.get("WORLDS", "20"))

WANTED: Final = 0.3
"""The rate of timeouts for which a timeout is asked."""

LIKELY: Final = 0.9999
"""The seeds are fixed, so no test fails by chance; other ones would let a right estimate fail once in 10,000."""

Curves = dict[str, dict[str, Floats]]


class Wait(DelayedOperation[None]):
    """An operation that something else completes."""

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        pass


def _never(process: int) -> bool:
    return False


def _always(process: int) -> bool:
    return True


def _every_other(process: int) -> bool:
    return process % 2 == 0


@dataclass(frozen=True)
class World:
    """A server that is started `processes` times, for `seconds` each."""

    median: float = 8.0
    timeout: float | None = 30.0
    rate: float = 1.0
    """Arrivals a second."""
    seconds: float = 600.0
    processes: int = 1
    is_killed: Callable[[int], bool] = _never
    """Whether the process of this number ends by a kill. Otherwise its purgatory is closed."""
    closes: int = 0
    """How many times a process completes all before its end."""
    moved_at: tuple[float, ...] = ()
    """The ages at which a pending operation is rescheduled to 0.2 s."""

    def times(self, random: np.random.Generator, count: int) -> list[float]:
        """The times to complete of so many operations."""
        times: list[float] = random.lognormal(math.log(self.median), 1.0, count).tolist()
        return times

    def timeout_for(self, rate: float) -> float:
        """The timeout with which so many time out in truth."""
        return self.median * math.exp(float(stats.norm.isf(rate)))

    def rows(self, seed: int) -> Iterator[pa.RecordBatch]:
        """The rows of each process, as a journal has them."""
        random = np.random.default_rng(seed)
        clock = VirtualClock(START.timestamp())
        for process in range(self.processes):
            heard: list[FinishedOperation] = []
            opened = clock.time()
            purgatory = DelayedOperationPurgatory(clock=clock)
            purgatory.add_listener(heard.append)
            count = int(random.poisson(self.rate * self.seconds))
            arrivals = (opened + np.sort(random.uniform(0.0, self.seconds, count))).tolist()
            for arrival, takes in zip(arrivals, self.times(random, count), strict=True):
                clock.call_at(arrival, self._arrive, purgatory, takes)
            for number in range(self.closes):
                clock.call_at(opened + self.seconds * (number + 1) / (self.closes + 1), purgatory.complete_all)
            clock.advance(self.seconds)
            if self.is_killed(process):
                purgatory.remove_listener(heard.append)
            purgatory.close()
            clock.advance(1.0)
            finished = [(each.arrived, each._replace(operation=str(seed))) for each in heard]
            yield from (columns for _, columns in columns_by_day(finished, opened))

    def _arrive(self, purgatory: DelayedOperationPurgatory, takes: float) -> None:
        operation = purgatory.try_complete_else_watch(Wait(self.timeout), ["key"])
        clock = purgatory.timer.clock
        clock.call_at(clock.time() + takes, operation.force_complete)
        for age in self.moved_at:
            if age < takes:
                clock.call_at(clock.time() + age, partial(_move, operation))


def _move(operation: Wait) -> None:
    if not operation.done():
        operation.reschedule(0.2)


_SESSION: Final = partial(World, median=1.0, timeout=5.0, rate=10.0, seconds=60.0)

KINDS: Final = {
    "rescheduled once": _SESSION(moved_at=(1.0,)),
    "rescheduled again and again": _SESSION(moved_at=tuple(1.0 + 0.15 * number for number in range(20))),
    "closed every minute": World(closes=9),
    "killed": World(rate=5.0, seconds=120.0, is_killed=_always),
    "killed every minute": World(rate=2.0, seconds=60.0, processes=10, is_killed=_always),
    "killed or closed every minute": World(rate=2.0, seconds=60.0, processes=10, is_killed=_every_other),
    "killed, with few operations": World(rate=0.1, seconds=120.0, processes=50, is_killed=_always),
    "closed, with few operations": World(rate=0.1, seconds=120.0, processes=50),
    "killed, without deadlines": World(timeout=None, seconds=400.0, processes=3, is_killed=_always),
}


@pytest.fixture(scope="module")
def curves(spark: SparkSession) -> dict[str, Curves]:
    """The curves of all worlds, by their kind and their seed."""
    tables = []
    for kind, world in KINDS.items():
        for seed in range(WORLDS):
            table = pa.Table.from_batches(list(world.rows(seed)))
            named = table.set_column(0, "purgatory", pa.repeat(kind, len(table)))
            tables.append(named.append_column("completes_s", pa.nulls(len(table), pa.float64())))
    rows = spark.createDataFrame(pa.concat_tables(tables)).withColumn("instance", F.concat("purgatory", "operation"))
    found: dict[str, Curves] = {kind: {} for kind in KINDS}
    points = curve(settled(rows)).orderBy("purgatory", "operation", "time").toArrow()
    for (kind, seed_as_text), columns in by_operation(points).items():
        found[kind][seed_as_text] = columns
    return found


def _check(kind: str, asked: str, covered: int) -> None:
    least, most = stats.binom.interval(LIKELY, WORLDS, 0.95)
    assert least <= covered <= most, f"{kind}, {asked}: in {covered} of {WORLDS} worlds"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.7, 0.5, 0.45])
def test_the_band_of_a_rate_has_the_truth_as_often_as_it_says(
    curves: dict[str, Curves], kind: str, rate: float
) -> None:
    timeout = KINDS[kind].timeout_for(rate)
    bands = [rate_at(points, timeout) for points in curves[kind].values()]
    assert len(bands) == WORLDS
    _check(kind, f"{timeout:.3g} s", sum(band is not None and band[1] <= rate <= band[2] for band in bands))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rescheduled once"])
def test_the_band_of_a_timeout_has_the_truth_as_often_as_it_says(curves: dict[str, Curves], kind: str) -> None:
    truth = KINDS[kind].timeout_for(WANTED)
    choices = choose({("world", seed): points for seed, points in curves[kind].items()}, WANTED)
    bands = [(choice.earliest or math.inf, choice.latest or math.inf) for choice in choices]
    _check(kind, f"the timeout for {WANTED}", sum(low <= truth <= high for low, high in bands))


def test_a_curve_ends_at_the_last_deadline(curves: dict[str, Curves]) -> None:
    """An operation that lives at 1 s has until 1.2 s. In truth 43 % live longer."""
    for points in curves["rescheduled once"].values():
        assert points["time"][-1] == pytest.approx(1.2, abs=0.002)
        assert points["timeout_rate"][-1] == pytest.approx(0.43, abs=0.1)
