"""What the pipeline answers is right as often as it says, in worlds whose truth is known."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from scipy import stats

from purgatory import DelayedOperationPurgatory, FinishedOperation, VirtualClock
from purgatory.journal.files import columns_by_day
from purgatory.pipeline.estimate import Estimate
from tests.pipeline.worlds import LOOPS, RUNGS, START, WORLDS, LoopScore, Score, found, loop_scores, scored, scores
from tests.support.operations import Waiting

SEEDS: Final = 20
LIKELY: Final = 0.0001
"""The seeds are fixed, so no test fails by chance; other ones would let a right estimate fail once in 10,000."""


def assert_right(score: Score) -> None:
    """See that there is always an answer, and that bands and advice are right as often as the pipeline says."""
    assert set(score.refusals) <= {"alike"}, score.refusals
    if not score.advised:
        return
    assert stats.binom.cdf(score.covered, len(score.advised), 0.95) > LIKELY
    assert stats.binom.cdf(score.kept, len(score.advised), 0.9) > LIKELY


@pytest.fixture(scope="module")
def of_worlds(spark: SparkSession) -> dict[str, Score]:
    return scores(spark, SEEDS, 0.1)


@pytest.mark.parametrize("world", WORLDS)
def test_bands_have_the_truth_and_advice_keeps_the_rate(of_worlds: dict[str, Score], world: str) -> None:
    assert_right(of_worlds[world])


def test_worlds_without_long_waves_are_answered(of_worlds: dict[str, Score]) -> None:
    refused = {world: sum(score.refusals.values()) for world, score in of_worlds.items()}
    assert refused.pop("long waves") > SEEDS / 2, "most of these journals are too short for their waves"
    for incident in ("an incident", "a slow hour of a day"):
        assert refused.pop(incident) < SEEDS, "it is a single one, so it is right to refuse"
    assert max(refused.values()) <= SEEDS / 4, refused


@pytest.fixture(scope="module")
def of_loops(spark: SparkSession) -> dict[str, LoopScore]:
    return loop_scores(spark, 5, RUNGS)


@pytest.mark.parametrize("loop", LOOPS)
def test_clients_that_ask_again_are_seen_and_their_requests_are_bounded(
    of_loops: dict[str, LoopScore], loop: str
) -> None:
    score = of_loops[loop]
    assert score.recognised == 5
    assert score.covered >= 0.9 * score.rungs > 0


@dataclass(frozen=True)
class Service:
    """A server with the library and its journal, in virtual time. It is started `processes` times."""

    median: float = 1.0
    timeout: float = 5.0
    rate: float = 4.0
    """Arrivals a second."""
    seconds: float = 500.0
    processes: int = 1
    is_killed: Callable[[int], bool] = lambda process: False
    """Whether the process of this number ends by a kill. Otherwise its purgatory is closed."""
    closes: int = 0
    """How many times a process completes all before its end."""
    moved_at: float | None = None
    """The age at which a pending operation is rescheduled, so that it has the timeout once more."""
    steps: float = 0.0
    """Seconds by which the wall clock is set, forth and back, every minute."""

    def timeout_for(self, rate: float) -> float:
        """The timeout with which so many expire in truth."""
        return self.median * math.exp(float(stats.norm.isf(rate)))

    def journal(self, name: str, seed: int) -> pa.Table:
        """Its rows."""
        random = np.random.default_rng(seed)
        clock = VirtualClock(START)
        batches = []
        for process in range(self.processes):
            heard: list[FinishedOperation] = []
            opened = clock.time()
            purgatory = DelayedOperationPurgatory(clock=clock)
            purgatory.add_listener(heard.append)
            count = int(random.poisson(self.rate * self.seconds))
            arrivals = (opened + np.sort(random.uniform(0.0, self.seconds, count))).tolist()
            for arrival, takes in zip(arrivals, random.lognormal(math.log(self.median), 1.0, count), strict=True):
                clock.call_at(arrival, self._arrive, purgatory, float(takes))
            for number in range(self.closes):
                clock.call_at(opened + self.seconds * (number + 1) / (self.closes + 1), purgatory.complete_all)
            clock.advance(self.seconds)
            if self.is_killed(process):
                purgatory.remove_listener(heard.append)
            purgatory.close()
            clock.advance(1.0)
            rows = [(each.arrived + self._step(each.arrived), each._replace(operation=str(seed))) for each in heard]
            batches += [columns for _, columns in columns_by_day(rows, opened)]
        table = pa.Table.from_batches(batches)
        named = table.set_column(0, table.schema.field(0), pa.repeat(name, len(table)))
        return named.append_column("instance", pa.repeat(f"{name} {seed}", len(table)))

    def _step(self, arrived: float) -> float:
        return self.steps * (int(arrived // 60) % 2)

    def _arrive(self, purgatory: DelayedOperationPurgatory, takes: float) -> None:
        operation = purgatory.try_complete_else_watch(Waiting(self.timeout), ["key"])
        clock = purgatory.timer.clock
        clock.call_at(clock.time() + takes, operation.force_complete)
        if self.moved_at is not None and self.moved_at < takes:
            clock.call_at(clock.time() + self.moved_at, partial(_move, operation, self.timeout))


def _move(operation: Waiting, timeout: float) -> None:
    if not operation.done():
        operation.reschedule(timeout)


SERVICES: Final = {
    "as it is": Service(),
    "rescheduled": Service(timeout=3.0, moved_at=2.0),
    "closed every minute": Service(closes=9),
    "killed": Service(is_killed=lambda process: True),
    "killed and closed, again and again": Service(
        seconds=100.0, processes=5, is_killed=lambda process: process % 2 == 0
    ),
    "its clock is set": Service(steps=3600.0),
    "its clock is set back": Service(steps=-3600.0),
}


@pytest.fixture(scope="module")
def of_services(spark: SparkSession) -> dict[str, list[Estimate]]:
    return found(
        spark, [service.journal(name, seed) for name, service in SERVICES.items() for seed in range(SEEDS)], 0.1
    )


@pytest.mark.parametrize("name", SERVICES)
def test_journals_of_the_library_are_understood(of_services: dict[str, list[Estimate]], name: str) -> None:
    assert_right(scored(SERVICES[name].timeout_for(0.1), of_services[name]))
    # The share that expires with a timeout of a second is known beforehand, too.
    half = sum(low <= 0.5 <= high for _, low, high in (each.at(1.0) for each in of_services[name]))
    assert stats.binom.cdf(half, SEEDS, 0.95) > LIKELY
