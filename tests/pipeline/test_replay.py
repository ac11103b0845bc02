"""Replays on Spark: their results are those of a plain loop, however the work is divided."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from purgatory import Delay, DelayedOperationPurgatory, VirtualClock
from purgatory.journal import SCHEMA, Journal
from purgatory.spark import trace
from purgatory.spark.errors import PipelineError
from purgatory.spark.generate import generate, write
from purgatory.spark.replay import replay, sweep
from purgatory.spark.replay import write as write_replay
from purgatory.spark.simulate import COUNTS, OUTCOMES, Configuration, Ended, Simulation, simulate
from purgatory.spark.traffic import PRESETS, Traffic
from tests.pipeline import traces
from tests.pipeline.arrivals import Arrival, columns
from tests.support.paths import ROOT

TRAFFIC = Traffic(rate=500.0, seconds=12.0, instances=2, median=0.2, upper_quartile=0.4, seed=2)
SWEEP = [Configuration(purge_interval=50), Configuration(tick=0.01, wheel_size=4, purge_interval=50, timeout=0.5)]


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> trace.Trace:
    path = tmp_path_factory.mktemp("replay") / "trace"
    write(generate(spark, TRAFFIC), str(path))
    return trace.read(spark, str(path))


@pytest.fixture(scope="module")
def replayed(
    spark: SparkSession, recorded: trace.Trace, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Any], list[Any]]:
    """The rows of a replay: of its simulations, and of its operations."""
    path = tmp_path_factory.mktemp("replay") / "replayed"
    summary = write_replay(replay(spark, recorded, SWEEP, operations=True), str(path))
    return _rows(summary), _rows(spark.read.parquet(f"{path}/operations"))


def _rows(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=repr)


def _plain(recorded: trace.Trace, instance: str, configuration: Configuration) -> tuple[Simulation, list[Ended]]:
    """The replay without Spark: a loop over the rows."""
    rows = recorded.rows.where(f"instance = '{instance}'").orderBy("arrived_at").collect()
    base = math.floor(rows[0].arrived_at.timestamp())
    ended: list[Ended] = []
    arrivals = [
        Arrival(
            (row.arrived_at.timestamp() * 1_000_000 - base * 1_000_000) / 1_000_000,
            tuple(row["keys"]),
            row.timeout_s,
            row.completes_s,
            "satisfied",
            row.arrived_at,
        )
        for row in rows
    ]
    return simulate(configuration, columns(arrivals), record=ended.append), ended


@pytest.mark.parametrize("instance", ["instance-0", "instance-1"])
@pytest.mark.parametrize("configuration", SWEEP)
def test_each_simulation_equals_that_of_a_plain_loop(
    recorded: trace.Trace, replayed: tuple[list[Any], list[Any]], instance: str, configuration: Configuration
) -> None:
    def is_it(row: Any) -> bool:
        return (row.instance, row.tick, row.timeout) == (instance, configuration.tick, configuration.timeout)

    simulation, ended = _plain(recorded, instance, configuration)
    (summary,) = filter(is_it, replayed[0])
    assert {name: summary[name] for name in COUNTS} == simulation.counts
    assert (summary.peak_delayed, summary.peak_dead) == (simulation.peak_delayed, simulation.peak_dead)
    assert (summary.late_max, summary.segments) == (simulation.late_max, 1)
    assert 0 < summary.late_p50 < summary.late_p99 <= summary.late_max < configuration.tick
    rows = {
        (row.arrived_at, row.outcome, row.timeout_s, row.waited_s, row.late_s) for row in filter(is_it, replayed[1])
    }
    assert rows == set(ended)


def test_operations_keep_their_recorded_values(recorded: trace.Trace, replayed: tuple[list[Any], list[Any]]) -> None:
    known = {(row.instance, row.arrived_at, tuple(row["keys"]), row.operation) for row in recorded.rows.collect()}
    for configuration in SWEEP:
        some = [row for row in replayed[1] if (row.tick, row.timeout) == (configuration.tick, configuration.timeout)]
        assert {(row.instance, row.arrived_at, tuple(row["keys"]), row.operation) for row in some} == known
        assert len(some) == len(known)


def test_replay_does_not_depend_on_files_and_their_order(
    spark: SparkSession, recorded: trace.Trace, replayed: tuple[list[Any], list[Any]], tmp_path: Path
) -> None:
    shuffled = recorded.rows.repartition(7, "waited_s").sortWithinPartitions("waited_s")
    shuffled.write.partitionBy("date", "instance").option("parquet.block.size", 20_000).parquet(str(tmp_path / "other"))
    again = replay(spark, trace.read(spark, str(tmp_path / "other")), SWEEP, operations=True)
    assert again.operations is not None
    again.results.persist()
    assert _rows(again.operations) == replayed[1]
    assert _rows(again.summary) == replayed[0]
    again.results.unpersist()


def test_an_instance_that_is_cut_in_time_has_the_same_outcomes(
    spark: SparkSession, recorded: trace.Trace, replayed: tuple[list[Any], list[Any]]
) -> None:
    cut = replay(spark, recorded, SWEEP, operations=True, split=2000)
    assert cut.operations is not None
    cut.results.persist()
    assert _rows(cut.operations) == replayed[1]
    for row, whole in zip(_rows(cut.summary), replayed[0], strict=True):
        assert 3 <= row.segments <= 5
        for name in ("operations", "unknown", "inserts", "pending", "peak_delayed", "late_max", *OUTCOMES):
            assert row[name] == whole[name], name
        for name in ("wake_ups", "buckets", "cascaded", "purges", "scanned", "peak_dead"):
            assert row[name] == pytest.approx(whole[name], rel=0.1), name
    assert cut.simulations == sum(row.segments for row in _rows(cut.summary))
    cut.results.unpersist()


def test_the_journal_of_a_server_is_replayed_as_its_operations_ended(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        traces.row(0.0, outcome="completed_at_once", waited_s=0.0),
        traces.row(0.1, outcome="satisfied", waited_s=0.3),
        traces.row(0.2, outcome="expired", waited_s=1.0004, late_s=0.0004),
        traces.row(0.3, outcome="cancelled", waited_s=0.5),
        traces.row(0.4, outcome="failed", waited_s=0.7),
        traces.row(0.5, outcome="satisfied", waited_s=2.5, timeout_s=None),
        traces.row(0.6, outcome="expired", waited_s=9.0, timeout_s=9.0, purgatory="produce"),
        traces.row(0.7, outcome="closed", waited_s=0.01, timeout_s=60.0, purgatory="produce"),
        traces.row(0.8, outcome="closed", waited_s=0.5, timeout_s=None, purgatory="produce"),
    ]
    traces.write(tmp_path, rows)
    configurations = sweep(timeouts=[None, 0.4, 5.0])
    summary = _rows(replay(spark, trace.read(spark, str(tmp_path)), configurations).summary)
    found = {(row.purgatory, row.timeout): [row[name] for name in ("unknown", *OUTCOMES)] for row in summary}
    assert found == {
        ("fetch", None): [0, 1, 2, 1, 0, 1, 1],
        ("fetch", 0.4): [0, 1, 1, 4, 0, 0, 0],
        ("fetch", 5.0): [1, 1, 2, 1, 0, 1, 1],
        ("produce", None): [2, 0, 0, 1, 2, 0, 0],
        ("produce", 0.4): [1, 0, 0, 2, 1, 0, 0],
        ("produce", 5.0): [2, 0, 0, 1, 2, 0, 0],
    }
    only = replay(spark, trace.read(spark, str(tmp_path)), sweep(), purgatory="produce")
    assert [row.purgatory for row in only.summary.collect()] == ["produce"]


async def test_a_rescheduled_operation_ends_as_it_did(spark: SparkSession, tmp_path: Path) -> None:
    clock = VirtualClock(1_790_000_000.0)
    with Journal(tmp_path, "web-1", now=clock.time) as journal:
        purgatory = DelayedOperationPurgatory("session", clock=clock)
        purgatory.add_listener(journal.write)
        silent, served, overdue = (purgatory.try_complete_else_watch(Delay(2.0), ["a"]) for _ in range(3))
        for _ in range(5):
            clock.advance(1.0)
            silent.reschedule(2.0)
            served.reschedule(2.0)
        clock.advance(1.5)
        served.force_complete()
        clock.advance(2.0)
    assert (silent.expired(), served.expired(), overdue.expired()) == (True, False, True)
    replayed = replay(spark, trace.read(spark, str(tmp_path)), sweep(timeouts=[None, 6.8]), operations=True)
    assert replayed.operations is not None
    found = {(row.timeout, row.outcome, round(row.waited_s, 2)) for row in replayed.operations.collect()}
    assert found == {
        (None, "expired", 7.0),
        (None, "satisfied", 6.5),
        (None, "expired", 2.0),
        (6.8, "expired", 6.8),
        (6.8, "satisfied", 6.5),
    }
    unknown = {row.timeout: row.unknown for row in replayed.summary.collect()}
    assert unknown == {None: 0, 6.8: 1}


def test_older_journals_are_replayed_as_their_operations_ended(spark: SparkSession, tmp_path: Path) -> None:
    """They have no column for the deadline, and count the timeout from the last reschedule."""
    older = pa.schema([field for field in SCHEMA if field.name not in ("deadline_s", "opened_at", "missed")])
    rows = [
        traces.row(0.0, waited_s=6.5, timeout_s=2.0),
        traces.row(0.1, waited_s=7.0, timeout_s=2.0, outcome="expired", late_s=0.0),
        traces.row(0.2, waited_s=2.0, timeout_s=2.0, outcome="expired", late_s=0.0),
    ]
    traces.write(tmp_path, rows, schema=older)
    replayed = replay(spark, trace.read(spark, str(tmp_path)), sweep(), operations=True)
    assert replayed.operations is not None
    found = {(row.outcome, round(row.waited_s, 2)) for row in replayed.operations.collect()}
    assert found == {("satisfied", 6.5), ("expired", 7.0), ("expired", 2.0)}


@pytest.mark.parametrize(("place", "timeout"), [(0, 0.05), (1, 0.2), (2, 1.0)])
def test_coarse_tick_reduces_expiries_by_the_shares_in_the_readme(place: int, timeout: float) -> None:
    page = (ROOT / "purgatory" / "spark" / "README.md").read_text("utf-8")
    table = re.findall(r"^  \| (?:a tick of )?(\d+) ms \|(.*)\|$", page, re.MULTILINE)
    assert len(table) == 4
    traffic = PRESETS["low"]
    random = np.random.default_rng(1)
    arrived = np.cumsum(random.exponential(0.001, 40_000)).tolist()
    completes = random.lognormal(traffic.mu, traffic.sigma, len(arrived)).tolist()
    slow = sum(takes > timeout for takes in completes)
    for tick, cells in table:
        arrivals = [Arrival(at, ("a",), 9.0, takes, "satisfied") for at, takes in zip(arrived, completes, strict=True)]
        configuration = Configuration(tick=int(tick) / 1000, timeout=timeout)
        expired = simulate(configuration, columns(arrivals)).counts["expired"]
        said = float(cells.split("|")[place].strip(" %")) / 100
        assert abs(1 - expired / slow - said) < 4 * math.sqrt((said + 0.001) / slow), f"{tick} ms"


def test_keys_that_are_the_same_as_text_are_one(spark: SparkSession, tmp_path: Path) -> None:
    traces.write(tmp_path, [traces.row(n, keys=["1", "1", "2"], waited_s=0.1) for n in range(20)])
    (summary,) = replay(spark, trace.read(spark, str(tmp_path)), sweep()).summary.collect()
    assert summary.peak_dead == 40


def test_a_row_from_long_ago_does_not_keep_an_instance_in_one_piece(spark: SparkSession, tmp_path: Path) -> None:
    rows = [traces.row(n / 100, waited_s=0.01) for n in range(2000)]
    traces.write(tmp_path, [traces.row(-300_000_000.0), *rows])
    (summary,) = replay(spark, trace.read(spark, str(tmp_path)), sweep(), split=300).summary.collect()
    assert 7 <= summary.segments <= 12
    assert summary.operations == summary.satisfied == 2001


def test_operations_that_stay_long_make_segments_longer(spark: SparkSession, tmp_path: Path) -> None:
    """The operations pending at a cut go to both sides: with 200 pending, a cut after each 100 would be all work."""
    traces.write(tmp_path, [traces.row(n / 100, waited_s=2.0, timeout_s=3.0) for n in range(6000)])
    recorded = trace.read(spark, str(tmp_path))
    (summary,) = replay(spark, recorded, sweep(), split=100).summary.collect()
    assert 200 <= summary.peak_delayed <= 201
    assert 2 <= summary.segments <= 4
    # With a timeout that ends them early, few are pending.
    (summary,) = replay(spark, recorded, sweep(timeouts=[0.02]), split=100).summary.collect()
    assert summary.segments > 30


def test_operations_that_never_expire_are_carried_over_every_cut(spark: SparkSession, tmp_path: Path) -> None:
    rows = [traces.row(n / 10, waited_s=0.01) for n in range(100)]
    rows.append(traces.row(0.05, waited_s=8.0, timeout_s=None))
    traces.write(tmp_path, rows)
    cut = replay(spark, trace.read(spark, str(tmp_path)), sweep(), operations=True, split=20)
    assert cut.operations is not None
    cut.results.persist()
    ended = cut.operations.collect()
    assert len(ended) == 101
    assert [row.waited_s for row in ended if row.timeout_s is None] == [pytest.approx(8.0)]
    (summary,) = cut.summary.collect()
    assert (summary.satisfied, summary.peak_delayed, summary.pending) == (101, 2, 0)
    assert summary.segments >= 5
    cut.results.unpersist()


def test_options_that_cannot_be_replayed_are_refused_before_anything_is_done(
    spark: SparkSession, recorded: trace.Trace, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=r"no purgatory 'fetch'.*generated"):
        replay(spark, recorded, sweep(), purgatory="fetch")
    with pytest.raises(PipelineError, match="split"):
        replay(spark, recorded, sweep(), split=0)
    with pytest.raises(PipelineError, match="at least one value"):
        sweep(ticks=[])
    with pytest.raises(PipelineError, match="tick"):
        sweep(ticks=[0.001, -1.0])
    traces.write(tmp_path, [])
    with pytest.raises(PipelineError, match="the trace is empty"):
        replay(spark, trace.read(spark, str(tmp_path)), sweep())
    with pytest.raises(PipelineError, match="exists"):
        write_replay(replay(spark, recorded, sweep()), str(tmp_path))
