"""Outcomes without a simulation are those of a simulation, with any number of timeouts."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from purgatory._core.listeners import Outcome
from purgatory.spark import trace
from purgatory.spark.generate import generate, write
from purgatory.spark.outcomes import Counted, Outcomes, Recorded, ends, percentiles
from purgatory.spark.replay import replay, sweep
from purgatory.spark.simulate import OUTCOMES, Configuration, Ended, Rows, simulate
from purgatory.spark.traffic import Traffic
from tests.pipeline import traces
from tests.pipeline.arrivals import Arrival, columns

_TIMES = st.integers(0, 200).map(lambda quarters: quarters * 0.00025)
_TICKS = st.sampled_from([0.00025, 0.001, 0.003, 0.0101])


@st.composite
def _operations(draw: st.DrawFn) -> Rows:
    arrivals: list[Arrival] = []
    arrived = 0.0
    for number in range(draw(st.integers(1, 40))):
        arrived += draw(_TIMES)
        ending: Outcome = draw(st.sampled_from(OUTCOMES))
        timeout = draw(_TIMES if ending == "expired" else st.none() | _TIMES)
        end = {"completed_at_once": 0.0, "expired": math.inf}.get(ending, draw(_TIMES))
        if ending == "satisfied" and draw(st.integers(0, 9)) == 0:
            end = math.inf
        arrivals.append(Arrival(arrived, ("a",), timeout, end, ending, number))
    return columns(arrivals)


@given(_operations(), _TICKS, st.none() | _TIMES)
def test_each_operation_ends_as_in_a_simulation(rows: Rows, tick: float, timeout: float | None) -> None:
    ended: list[Ended] = []
    simulate(Configuration(tick=tick, timeout=timeout), rows, record=ended.append)
    timeouts = rows.timeout if timeout is None else np.full(len(rows.end), timeout)
    outcome, waited, late = ends(tick, rows.arrived, timeouts, rows.end, rows.ending)
    simulated = {each.reference: each for each in ended}
    for number in range(len(rows.end)):
        if outcome[number] < 0:
            assert number not in simulated
            continue
        other = simulated[number]
        assert OUTCOMES[outcome[number]] == other.outcome
        assert waited[number] == pytest.approx(other.waited, abs=1e-9)
        if other.late is not None:
            assert late[number] == pytest.approx(other.late, abs=1e-9)


@given(_operations(), _TICKS, st.lists(_TIMES, min_size=1, max_size=20, unique=True), st.integers(1, 40), st.booleans())
def test_counts_are_those_of_a_simulation(
    rows: Rows, tick: float, timeouts: list[float], size: int, between_ticks: bool
) -> None:
    if between_ticks:
        rows = rows._replace(arrived=rows.arrived + 0.0000371)
    outcomes, recorded = Outcomes(tick, sorted(timeouts)), Recorded(tick)
    for start in range(0, len(rows.end), size):
        some = rows.part(start, start + size)
        outcomes.add(some.arrived, some.timeout, some.end, some.ending)
        recorded.add(some.arrived, some.timeout, some.end, some.ending)
    counted: dict[float | None, Counted] = dict(zip(sorted(timeouts), outcomes.counted(), strict=True))
    counted[None] = recorded.counted()
    for timeout, found in counted.items():
        ended: list[Ended] = []
        simulation = simulate(Configuration(tick=tick, timeout=timeout), rows, record=ended.append)
        late = [each.late for each in ended if each.late is not None]
        assert found.outcomes == {name: simulation.counts[name] for name in OUTCOMES}
        assert found.unknown == simulation.counts["unknown"]
        assert found.operations - sum(found.outcomes.values()) == simulation.counts["pending"]
        # A deadline on a tick has a lateness of nothing or of a tick, as a float's last bit has it.
        if between_ticks or timeout is None:
            assert found.waited == pytest.approx(simulation.waited, abs=len(rows.end) * tick / 1000 + 1e-9)
            exact = np.quantile(late, [0.5, 0.99, 1.0], method="inverted_cdf") if late else [None] * 3
            assert list(found.late) == pytest.approx(list(exact), abs=tick / 900)


def test_percentiles_of_lateness_are_those_of_many_operations() -> None:
    draw = np.random.default_rng(5)
    arrived = np.sort(draw.random(20_000) * 10)
    end = np.exp(draw.normal(-3, 1, 20_000))
    satisfied = np.full(20_000, OUTCOMES.index("satisfied"), np.int8)
    rows = Rows(arrived, [("a",)] * 20_000, np.full(20_000, 1.0), end, satisfied, [None] * 20_000)
    outcomes = Outcomes(0.02, [0.0, 0.05, 0.0707])
    outcomes.add(rows.arrived, rows.timeout, rows.end, rows.ending)
    for timeout, counted in zip((0.0, 0.05, 0.0707), outcomes.counted(), strict=True):
        ended: list[Ended] = []
        simulate(Configuration(tick=0.02, timeout=timeout), rows, record=ended.append)
        late = [each.late for each in ended if each.late is not None]
        assert counted.outcomes["expired"] == len(late) > 1000
        exact = np.quantile(late, [0.5, 0.99, 1.0], method="inverted_cdf")
        assert np.array(counted.late) == pytest.approx(exact, abs=0.02 / 1000)


def test_percentiles_are_values_of_the_first_rank_that_is_enough() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0])
    assert percentiles(np.array([0, 0, 0, 0]), values) == (None, None, None)
    assert percentiles(np.array([0, 98, 1, 1]), values) == (2.0, 3.0, 4.0)
    assert percentiles(np.array([5, 5, 0, 0]), values) == (1.0, 2.0, 2.0)


COUNTS = ("operations", "unknown", "pending", *OUTCOMES)


def _by_settings(frame: Any) -> dict[Any, Any]:
    return {(row.instance, row.purgatory, row.tick, row.timeout): row for row in frame.collect()}


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> trace.Trace:
    path = tmp_path_factory.mktemp("outcomes") / "trace"
    write(generate(spark, Traffic(rate=300.0, seconds=10.0, instances=2, median=0.2, upper_quartile=0.4)), str(path))
    return trace.read(spark, str(path))


def test_a_replay_without_costs_has_the_same_counts(spark: SparkSession, recorded: trace.Trace) -> None:
    configurations = sweep(ticks=[0.001, 0.02], timeouts=[None, 0.05, 0.2, 1.0])
    counted = replay(spark, recorded, configurations, costs=False)
    assert counted.simulations == 0
    found, simulated = _by_settings(counted.summary), _by_settings(replay(spark, recorded, configurations).summary)
    assert found.keys() == simulated.keys()
    assert len(found) == 2 * len(configurations)
    for settings, row in found.items():
        other = simulated[settings]
        assert [row[name] for name in COUNTS] == [other[name] for name in COUNTS]
        assert row.waited == pytest.approx(other.waited, abs=settings[2] / 500 * row.operations)
        for name in ("late_p50", "late_p99", "late_max"):
            assert row[name] == pytest.approx(other[name], abs=settings[2] / 20)
        assert (row.wake_ups, row.purges, row.peak_delayed, row.segments) == (None, None, None, None)
        assert other.wake_ups > 0


def test_operations_without_costs_are_those_of_a_simulation(spark: SparkSession, recorded: trace.Trace) -> None:
    configurations = sweep(timeouts=[None, 0.1])

    def rows(costs: bool) -> list[Any]:
        operations = replay(spark, recorded, configurations, operations=True, costs=costs).operations
        assert operations is not None
        return sorted(
            tuple(round(value, 9) if isinstance(value, float) else value for value in row)
            for row in operations.select(
                "instance", "arrived_at", "keys", "timeout", "operation", "outcome", "timeout_s", "waited_s"
            )
            .na.fill(-1.0)
            .collect()
        )

    assert rows(costs=False) == rows(costs=True)


def test_operations_that_never_end_are_pending(spark: SparkSession, tmp_path: Path) -> None:
    traces.write(tmp_path, [traces.row(1, completes_s=math.inf, outcome="closed", timeout_s=None)], schema=traces.WIDE)
    opened = trace.read(spark, str(tmp_path))
    (row,) = replay(spark, opened, sweep(), costs=False, operations=True).summary.collect()
    assert (row.operations, row.closed, row.unknown, row.pending) == (1, 1, 1, 0)


def test_many_timeouts_are_counted_in_groups(spark: SparkSession, tmp_path: Path) -> None:
    traces.write(tmp_path, [traces.row(n / 10, waited_s=0.1 + n / 100) for n in range(50)])
    configurations = [replace(Configuration(), timeout=n / 5000) for n in range(5000)]
    summary = replay(spark, trace.read(spark, str(tmp_path)), configurations, costs=False).summary
    rows = sorted(summary.collect(), key=lambda row: row.timeout)
    assert [row.timeout for row in rows] == [each.timeout for each in configurations]
    expired = [row.expired for row in rows]
    assert expired == sorted(expired, reverse=True)
    assert (expired[0], expired[-1]) == (50, 0)
