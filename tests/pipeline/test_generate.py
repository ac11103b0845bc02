"""Generated traffic: its distributions. The seed alone determines the rows."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scipy import stats

from purgatory.journal import SCHEMA
from purgatory.pipeline import trace
from purgatory.pipeline.generate import Traffic, generate, write
from purgatory.spark.errors import PipelineError

LIKELY = 1e-4
"""The seeds are fixed, so no test fails by chance; if the code draws otherwise, a right one fails once in 10,000."""

SMALL = Traffic(rate=2000.0, seconds=60.0, instances=2, timeout=1e6, seed=11)
"""All have time to complete."""


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`SMALL`, written as a trace: three slices of each of two instances."""
    path = tmp_path_factory.mktemp("generated") / "trace"
    write(generate(spark, SMALL), str(path))
    return path


@pytest.fixture(scope="module")
def columns(spark: SparkSession, written: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The first instance's rows, in order of arrival."""
    rows = trace.read(spark, str(written)).where("instance = 'instance-0'").orderBy("arrived_at")
    table = rows.selectExpr("unix_micros(arrived_at) / 1e6 AS arrived", "waited_s").toArrow()
    return {name: table[name].to_numpy() for name in table.column_names}


def _digest(rows: DataFrame) -> Any:
    """A digest of the rows that does not depend on their order."""
    hashes = rows.select(F.xxhash64(*rows.columns).alias("row"))
    return hashes.agg(F.count("row"), F.sum(F.col("row").cast("decimal(20, 0)")), F.bit_xor("row")).first()


def test_the_same_seed_gives_the_same_rows_in_any_number_of_partitions(spark: SparkSession) -> None:
    traffic = replace(SMALL, zipf=1.0)
    one = _digest(generate(spark, traffic, partitions=1))
    assert one == _digest(generate(spark, traffic, partitions=5))
    assert one != _digest(generate(spark, replace(traffic, seed=12)))


def test_operations_arrive_at_exponential_intervals(columns: dict[str, np.ndarray[Any, Any]]) -> None:
    arrived = columns["arrived"] - SMALL.start
    assert stats.kstest(np.diff(arrived), "expon", args=(0, 1 / SMALL.rate)).pvalue > LIKELY
    assert abs(len(arrived) - SMALL.rate * SMALL.seconds) < 4 * math.sqrt(SMALL.rate * SMALL.seconds)
    assert 0 <= arrived[0] < 0.1
    assert SMALL.seconds - 0.1 < arrived[-1] < SMALL.seconds
    counts = np.bincount((arrived * 10).astype(int))  # Poisson: its variance is its mean
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.25)


def test_the_time_to_complete_is_log_normal_by_its_percentiles(columns: dict[str, np.ndarray[Any, Any]]) -> None:
    completes = columns["waited_s"]
    mu = math.log(SMALL.median)
    sigma = (math.log(SMALL.upper_quartile) - mu) / stats.norm.ppf(0.75)
    assert stats.kstest(np.log(completes), "norm", args=(mu, sigma)).pvalue > LIKELY
    assert np.percentile(completes, [50, 75]) == pytest.approx([SMALL.median, SMALL.upper_quartile], rel=0.03)


def test_instances_have_traffic_of_their_own(spark: SparkSession, written: Path) -> None:
    rows = trace.read(spark, str(written))
    counted = rows.groupBy("instance").agg(F.count("*").alias("operations")).orderBy("instance").collect()
    assert [row.instance for row in counted] == ["instance-0", "instance-1"]
    assert rows.select("waited_s").distinct().count() == sum(row.operations for row in counted)


def test_the_timeout_cuts_off_what_takes_longer(spark: SparkSession, written: Path) -> None:
    cut = generate(spark, replace(SMALL, timeout=0.2)).orderBy("instance", "arrived_at").toArrow()
    whole = trace.read(spark, str(written)).orderBy("instance", "arrived_at").toArrow()
    takes = whole["waited_s"].to_numpy()
    assert (cut["waited_s"].to_numpy() == np.minimum(takes, 0.2)).all()
    assert (np.array(cut["outcome"].to_pylist()) == np.where(takes > 0.2, "expired", "satisfied")).all()
    assert (np.array(cut["late_s"].is_valid().to_pylist()) == (takes > 0.2)).all()
    assert 0 < (takes > 0.2).sum() < len(takes)


def test_troubles_are_as_frequent_as_asked(spark: SparkSession) -> None:
    traffic = Traffic(
        rate=5000.0, seconds=4.0, instances=3, timeout=5.0, slowest=4.0, together=5, cancelled=0.1, missed=0.02, seed=2
    )
    rows = generate(spark, traffic).toArrow().to_pandas()
    assert (rows["outcome"] == "cancelled").mean() == pytest.approx(0.1, abs=0.01)
    assert rows["missed"].mean() == pytest.approx(0.02, abs=0.005)
    assert rows.loc[rows["missed"], "waited_s"].between(5.0, 5.001).all()
    assert set(rows.loc[rows["missed"], "outcome"]) == {"satisfied"}
    medians = rows[rows["outcome"] != "cancelled"].groupby("instance")["waited_s"].median()
    assert medians["instance-2"] / medians["instance-0"] == pytest.approx(4.0, rel=0.2)
    # Five, one after the other, have the same keys and end at the same moment, unless their client has left.
    alone = rows[(rows["instance"] == "instance-0") & (rows["outcome"] == "satisfied") & ~rows["missed"]]
    ends = (alone["arrived_at"].astype("int64") / 1e6 + alone["waited_s"]).round(4)
    sizes = alone.groupby([ends, alone["keys"].map(tuple)]).size()
    assert sizes.max() == 5
    assert sizes.mean() > 3.5


@pytest.mark.parametrize("zipf", [0.0, 1.0])
def test_keys_are_drawn_by_their_rank(spark: SparkSession, zipf: float) -> None:
    traffic = Traffic(rate=10_000.0, seconds=3.0, keys=50, keys_per_operation=1, zipf=zipf, seed=5)
    drawn = Counter(row.keys[0] for row in generate(spark, traffic).select("keys").collect())
    shares = np.arange(1, 51, dtype=float) ** -zipf
    found = np.array([drawn[f"key-{rank}"] for rank in range(1, 51)])
    expected = shares / shares.sum() * found.sum()
    large = expected >= 5
    assert stats.chisquare(found[large], expected[large] * found[large].sum() / expected[large].sum()).pvalue > LIKELY
    assert sum(drawn.values()) == found.sum()


def test_a_key_that_is_drawn_twice_is_waited_on_once(spark: SparkSession) -> None:
    traffic = Traffic(rate=1000.0, seconds=5.0, keys=4, keys_per_operation=3, seed=1)
    lengths: Counter[int] = Counter()
    for row in generate(spark, traffic).select("keys").collect():
        assert len(set(row.keys)) == len(row.keys)
        lengths[len(row.keys)] += 1
    total = sum(lengths.values())
    # The probabilities of three draws from four: all equal 1 / 16, all different 4 * 3 * 2 / 64.
    assert lengths[1] / total == pytest.approx(1 / 16, abs=0.02)
    assert lengths[3] / total == pytest.approx(24 / 64, abs=0.03)


def test_the_files_have_a_journals_columns_for_every_reader(written: Path, spark: SparkSession) -> None:
    file = next(written.glob("date=*/instance=instance-1/*.parquet"))
    found = pq.read_schema(file)
    for field in SCHEMA:
        if field.name == "keys":
            assert found.field("keys").type.value_type == field.type.value_type
        else:
            assert found.field(field.name).type == field.type, field.name
    counted = duckdb.connect().execute(f"SELECT count(*) FROM '{written}/**/*.parquet'").fetchall()
    assert counted == [(trace.read(spark, str(written)).count(),)]


def test_a_trace_across_midnight_lies_in_the_directories_of_both_days(spark: SparkSession, tmp_path: Path) -> None:
    traffic = Traffic(rate=100.0, seconds=10.0, start=86_400.0 * 20_000 - 5)
    write(generate(spark, traffic), str(tmp_path / "trace"))
    assert sorted(path.name for path in (tmp_path / "trace").glob("date=*")) == ["date=2024-10-03", "date=2024-10-04"]
    rows = trace.read(spark, str(tmp_path / "trace"))
    assert rows.where("date <> date_format(arrived_at, 'yyyy-MM-dd')").count() == 0


def test_a_directory_that_is_there_is_not_written_to(spark: SparkSession, written: Path) -> None:
    with pytest.raises(PipelineError, match="exists"):
        write(generate(spark, SMALL), str(written))


@pytest.mark.parametrize(
    "changes",
    [
        {"rate": 0.0},
        {"rate": math.nan},
        {"rate": "fast"},
        {"rate": True},
        {"seconds": math.inf},
        {"instances": 0},
        {"instances": 1.5},
        {"upper_quartile": 0.001},
        {"timeout": -1.0},
        {"keys": 0},
        {"keys_per_operation": 0},
        {"zipf": -1.0},
        {"slowest": 0.5},
        {"together": 0},
        {"cancelled": 1.5},
        {"missed": -0.1},
        {"seed": -1},
        {"rate": 1e9, "seconds": 1e6, "instances": 100_000},
        {"operation": ""},
    ],
)
def test_impossible_traffic_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=next(iter(changes))):
        Traffic(**changes)
