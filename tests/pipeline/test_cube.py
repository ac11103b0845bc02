"""The cube: its numbers against a naive count, what is refused, and its files."""

import math
import re
import threading
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.journal import SCHEMA
from purgatory.pipeline import answers, cube, trace
from purgatory.pipeline.trace import of_days, rollup
from purgatory.spark.errors import PipelineError
from tests.pipeline.traces import DAY, START, row, write
from tests.support.paths import ROOT

OUTCOMES = ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed")


def made_up(count: int = 500) -> list[dict[str, Any]]:
    """Operations of all kinds."""
    random = np.random.default_rng(5)
    rows = []
    for number in range(count):
        outcome = str(random.choice(OUTCOMES))
        waited = 0.0 if outcome == "completed_at_once" else float(random.lognormal(-1.0, 1.0))
        timeout = None if outcome == "satisfied" and number % 5 == 0 else waited if outcome == "expired" else 10.0
        rows.append(
            row(
                float(random.uniform(0.0, 50.0)),
                purgatory=("fetch", "produce")[number % 2],
                operation=f"Delayed{number % 3}",
                keys=[f"key-{each}" for each in set(random.zipf(1.5, 3) % 40)],
                timeout_s=timeout,
                waited_s=waited + (0.004 if outcome == "expired" else 0.0),
                outcome=outcome,
                missed=number % 50 == 0,
            )
        )
    return rows


def journal(directory: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> str:
    """A journal with these rows, of two instances."""
    for instance in ("web-1", "web-2"):
        write(directory, rows[instance == "web-2" :: 2], instance, schema)
    return str(directory)


def test_a_cube_has_all_that_a_plain_count_finds(spark: SparkSession, tmp_path: Path) -> None:
    rows = made_up()
    table = of_days(spark, journal(tmp_path / "journal", rows), lambda day: True)
    assert 0 < pc.sum(pc.equal(table["part"], "operations")).as_py() < len(rows)
    counted = answers.rows_of(table)
    assert counted["operations"].sum() == len(rows)
    for column in ("purgatory", "operation", "outcome"):
        assert counted.groupby(column)["operations"].sum().to_dict() == Counter(each[column] for each in rows)
    assert counted[counted["missed"]]["operations"].sum() == sum(each["missed"] for each in rows)
    assert counted["wait_sum"].sum() == pytest.approx(sum(each["waited_s"] for each in rows))
    assert counted["wait_max"].max() == max(each["waited_s"] for each in rows)
    assert counted["late_sum"].sum() == pytest.approx(0.004 * sum(each["outcome"] == "expired" for each in rows))
    # Nobody has left who was closed, who expired, or who was completed after the deadline.
    gone = sum(
        each["outcome"] not in ("expired", "closed") and each["waited_s"] <= (each["deadline_s"] or 1e9)
        for each in rows
    )
    assert counted[counted["is_gone"].astype(bool)]["operations"].sum() == gone
    # Slots: the first is that of the first arrival, and each operation comes before it goes.
    slots = answers.load(table, counted)
    assert slots["arrivals"].sum() == slots["finishes"].sum() == len(rows)
    assert (slots["pending"] >= slots["pending_mean"]).all()
    assert (slots["pending_mean"] >= 0).all()
    by_key = Counter((each["purgatory"], key) for each in rows for key in each["keys"])
    found = {(each["purgatory"], each["key"]): each["operations"] for each in answers.keys(table).to_dict("records")}
    assert found == by_key


def test_the_greatest_keys_of_each_purgatory_are_kept_by_each_count(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "KEPT", 100)
    rows = [row(1.0, keys=[f"often-{key}"]) for key in range(150) for _ in range(2 + (key < 90))]
    rows += [row(1.0, keys=[f"missed-{number}"], missed=True) for number in range(99)]
    rows += [row(1.0, keys=[f"late-{number}"], outcome="expired", waited_s=1.001) for number in range(130)]
    write(tmp_path, rows)
    found = answers.keys(of_days(spark, str(tmp_path), lambda day: True))
    kinds = Counter(key.partition("-")[0] for key in found["key"])
    # Of 130 keys with one expiry each, none is greater than the others.
    assert kinds == {"often": 90, "missed": 99}
    assert found[found["missed"] > 0]["missed"].sum() == 99
    assert (found["operations_most"] == found["operations"]).all(), "a single file has them, whole"


class Steps:
    """Operations whose pending numbers are known at each time."""

    def __init__(self, arrived: np.ndarray[Any, Any], waited: np.ndarray[Any, Any]) -> None:
        self.arrived, self.ended = np.round(arrived, 6), np.round(arrived, 6) + np.round(waited, 6)
        times = np.concatenate((self.arrived, self.ended))
        changes = np.concatenate((np.ones(len(arrived)), -np.ones(len(arrived))))
        self.peak = changes[np.lexsort((changes, times))].cumsum().max()

    def mean(self, first: float, last: float) -> float:
        return float((self.ended.clip(first, last) - self.arrived.clip(first, last)).sum() / (last - first))

    def rows(self) -> list[dict[str, Any]]:
        """As rows of 2026-11-21, from 12 o'clock on."""
        ends = zip(self.arrived.tolist(), (self.ended - self.arrived).tolist(), strict=True)
        return [row(begin, waited_s=waited, timeout_s=1e6) for begin, waited in ends]


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_of_what_is_pending_is_exact_and_its_peak_is_not_above_the_truth(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    random = np.random.default_rng(seed)
    # Few all the time, and a crowd that comes and goes within one slot of the cube.
    crowd = 700.0 + random.uniform(0, 5, 300)
    steps = Steps(
        np.concatenate((random.uniform(0, 3000, 400), crowd)),
        np.concatenate((random.exponential(20, 400), 722.0 - crowd)),
    )
    write(tmp_path, steps.rows())
    found = answers.pending(of_days(spark, str(tmp_path), lambda day: True), ("fetch", "DelayedFetch"))
    assert found is not None
    begin = START.timestamp()
    for first, last in ((0.0, 4000.0), (700.0, 730.0), (1000.0, 1010.0)):
        mean = found.mean(1e6 * (begin + first), 1e6 * (begin + last))
        assert mean == pytest.approx(steps.mean(first, last), rel=1e-4, abs=1e-6)
        assert mean <= found.peak(1e6 * (begin + first), 1e6 * (begin + last)) <= steps.peak
    assert found.peak(1e6 * begin, 1e6 * (begin + 4000)) >= 0.97 * steps.peak


def test_what_was_pending_at_midnight_counts_for_the_next_day(spark: SparkSession, tmp_path: Path) -> None:
    midnight = 43_200.0  # twelve hours after the first of these rows
    write(tmp_path / "journal", [row(midnight - 60, waited_s=600.0, timeout_s=900.0) for _ in range(50)])
    next_day = DAY + timedelta(days=1)
    write(tmp_path / "journal", [row(midnight + 300, waited_s=1.0)], day=next_day)
    rollup(spark, str(tmp_path / "journal"), str(tmp_path / "cube"), print)
    for table in (
        of_days(spark, str(tmp_path / "journal"), lambda day: day == next_day),
        cube.load(str(tmp_path / "cube"), lambda day: day == next_day),
    ):
        assert answers.rows_of(table)["operations"].sum() == 1
        found = answers.pending(table)
        assert found is not None
        begin = 1e6 * (START.timestamp() + midnight)
        assert found.peak(begin + 300e6, begin + 301e6) == pytest.approx(51, abs=1)
        assert found.mean(begin, begin + 540e6) == pytest.approx(50, abs=0.01)


def test_journals_of_older_versions_are_read_with_what_follows(spark: SparkSession, tmp_path: Path) -> None:
    older = pa.schema([field for field in SCHEMA if field.name not in ("deadline_s", "opened_at", "missed")])
    rows = [
        row(0.0, timeout_s=1.0, waited_s=0.5),
        # Rescheduled: the timeout counts from then on.
        row(0.0, timeout_s=1.0, waited_s=3.25, outcome="expired", late_s=0.25),
        row(0.0, timeout_s=1.0, waited_s=2.0),
    ]
    write(tmp_path, rows, schema=older)
    counted = answers.rows_of(of_days(spark, str(tmp_path), lambda day: True))
    bins = {(each["outcome"], each["wait_bin"], bool(each["is_gone"])) for each in counted.to_dict("records")}
    assert bins == {("satisfied", -30, True), ("expired", 48, False), ("satisfied", 31, True)}
    assert not counted["missed"].any()
    # Beside newer files.
    write(tmp_path, [row(1.0)], "web-2")
    assert answers.rows_of(of_days(spark, str(tmp_path), lambda day: True))["operations"].sum() == 4


def test_numbers_and_times_of_other_writers_are_cast(spark: SparkSession, tmp_path: Path) -> None:
    types = {
        "timeout_s": pa.int32(),
        "deadline_s": pa.decimal128(10, 3),
        "waited_s": pa.float32(),
        "arrived_at": pa.timestamp("ms"),
        "purgatory": pa.large_string(),
    }
    other = pa.schema([pa.field(field.name, types.get(field.name, field.type)) for field in SCHEMA])
    path = write(tmp_path, [row(0.5, waited_s=0.5), row(1.0, waited_s=0.25)])
    plain = pq.read_table(path)
    columns = [pc.cast(plain[name], other.field(name).type, safe=False) for name in plain.column_names]
    pq.write_table(pa.table(columns, schema=other), path)
    counted = answers.rows_of(of_days(spark, str(tmp_path), lambda day: True))
    assert counted["operations"].sum() == 2
    assert counted["wait_sum"].sum() == pytest.approx(0.75)
    assert counted["timeout_max"].max() == 1.0


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"purgatory": None}, "purgatory"),
    ({"operation": None}, "operation"),
    ({"keys": None}, "keys"),
    ({"keys": []}, "keys"),
    ({"arrived_at": None}, "arrived_at"),
    ({"waited_s": None}, "waited_s"),
    ({"waited_s": -1.0}, "waited_s"),
    ({"waited_s": float("nan")}, "waited_s"),
    ({"waited_s": float("inf")}, "waited_s"),
    ({"waited_s": 1e8}, "waited_s"),
    ({"outcome": None}, "outcome"),
    ({"outcome": "lost"}, "outcome"),
    ({"timeout_s": -1.0}, "timeout_s"),
    ({"timeout_s": float("inf")}, "timeout_s"),
    ({"timeout_s": None, "outcome": "expired", "late_s": 0.0}, "timeout_s"),
    ({"deadline_s": -1.0}, "deadline_s"),
    ({"late_s": 1.0}, "late_s"),
    ({"waited_s": -math.inf}, "waited_s"),
    ({"outcome": "expired", "late_s": None}, "late_s"),
    ({"outcome": "expired", "late_s": -1.0}, "late_s"),
]


def cube_of(spark: SparkSession, rows: list[dict[str, Any]], files: list[str]) -> pa.Table:
    """The cube of rows of these files, which may have values that no journal has."""
    fields = [pa.field(field.name, field.type) for field in SCHEMA]
    fields[2] = pa.field("keys", pa.list_(pa.string()))
    table = pa.Table.from_pylist(rows, pa.schema(fields)).append_column("instance", pa.repeat("web-1", len(rows)))
    return trace.cube(spark.createDataFrame(table.append_column("file", pa.array(files))), 60)


@pytest.fixture(scope="module")
def impossible(spark: SparkSession) -> pa.Table:
    """The cube of two files for each case, the second of which has its impossible value."""
    rows = [row(0.0) | changes for changes, _ in IMPOSSIBLE for changes in ({}, changes)]
    return cube_of(spark, rows, [f"{number // 2}-{number % 2}.parquet" for number in range(len(rows))])


@pytest.mark.parametrize("number", range(len(IMPOSSIBLE)), ids=map(str, IMPOSSIBLE))
def test_an_impossible_value_is_refused_by_column_and_file(impossible: pa.Table, number: int) -> None:
    of_case = pc.match_substring_regex(impossible["refused"], f" in {number}-")
    with pytest.raises(
        PipelineError, match=rf"^1 rows have an impossible {IMPOSSIBLE[number][1]}, in {number}-1\.parquet$"
    ):
        cube.refused(impossible.filter(of_case))
    assert pc.sum(of_case).as_py() == 1


def test_null_keys_are_no_keys(spark: SparkSession) -> None:
    made = cube_of(spark, [row(0.0, keys=["a", None])], ["a.parquet"])
    assert [key for key in made["key"].to_pylist() if key is not None] == ["a"]


def test_rows_ahead_of_the_clock_are_left_out_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [row(number) for number in range(10)], "web-1")
    write(tmp_path, [row(7200.0 + number) for number in range(5)], "web-2")
    made = trace.cube(trace.read(spark, str(tmp_path)), 60, START + timedelta(seconds=600))
    assert cube.refused(made) == {"web-2": 5}
    assert answers.rows_of(made)["operations"].sum() == 10


@pytest.mark.parametrize(
    ("missing", "rest"),
    [
        ("waited_s", "missing column waited_s in "),
        ("instance", "missing column date in .*: files lie in directories named date=DAY/instance=NAME"),
    ],
)
def test_a_missing_column_is_named(spark: SparkSession, tmp_path: Path, missing: str, rest: str) -> None:
    schema = pa.schema([field for field in SCHEMA if field.name != missing])
    if missing == "instance":
        pq.write_table(pa.Table.from_pylist([row(0.0)], SCHEMA), tmp_path / "rows.parquet")
    else:
        write(tmp_path, [row(0.0)], schema=schema)
    with pytest.raises(PipelineError, match=rest):
        trace.read(spark, str(tmp_path))


@pytest.mark.parametrize(("name", "reason"), [("none", "does not exist"), ("", "has no Parquet files")])
def test_a_directory_that_is_missing_or_has_no_files_is_named(
    spark: SparkSession, tmp_path: Path, name: str, reason: str
) -> None:
    with pytest.raises(PipelineError, match=f"{tmp_path / name} {reason}"):
        trace.read(spark, str(tmp_path / name))


class TestRollup:
    @pytest.fixture
    def days(self, tmp_path: Path) -> str:
        """A journal of four days."""
        for day in range(4):
            rows = [row(86_400 * day + number) for number in range(day + 1)]
            write(tmp_path / "journal", rows, day=DAY + timedelta(days=day))
        return str(tmp_path / "journal")

    def test_the_days_that_are_missing_and_the_newest_two_are_written(
        self, spark: SparkSession, days: str, tmp_path: Path
    ) -> None:
        path = str(tmp_path / "cube")
        said: list[str] = []
        all_days = [DAY + timedelta(days=day) for day in range(4)]
        assert rollup(spark, days, path, said.append, all_days[:3]) == all_days[:3]
        assert said[0] == f"{DAY}: 1 operations in 8 rows"
        before = {name: (tmp_path / "cube" / name).read_bytes() for name in cube.files(path)}
        assert rollup(spark, days, path, said.append) == all_days[1:]
        assert all((tmp_path / "cube" / name).read_bytes() == content for name, content in before.items())
        assert cube.days_of(path) == all_days
        loaded = answers.rows_of(cube.load(path, lambda day: day >= all_days[2]))
        assert loaded["operations"].sum() == 3 + 4
        with pytest.raises(PipelineError, match="has none of these days"):
            cube.load(path, lambda day: False)
        with pytest.raises(PipelineError, match="has no operations that arrived on 2020-01-01"):
            rollup(spark, days, path, said.append, [date(2020, 1, 1)])
        # Other readers find it as it is.
        sql = f"SELECT sum(operations) FROM '{path}/**/*.parquet' WHERE part = 'operations'"
        assert duckdb.connect().execute(sql).fetchall() == [(10,)]

    def test_readers_find_one_cube_or_the_other(self, spark: SparkSession, days: str, tmp_path: Path) -> None:
        path = str(tmp_path / "cube")
        rollup(spark, days, path, print, [DAY])
        table = cube.load(path, lambda day: True)
        tables = [table, pa.concat_tables([table] * 3)]
        sizes = {len(each) for each in tables}
        is_over = threading.Event()

        def write_again() -> None:
            for number in range(50):
                cube.save(tables[number % 2], path, DAY)
            is_over.set()

        writer = threading.Thread(target=write_again)
        writer.start()
        while not is_over.is_set():
            assert len(cube.load(path, lambda day: True)) in sizes
        writer.join()
        # One that was killed leaves a hidden file, which is no cube.
        (tmp_path / "cube" / f"date={DAY}" / ".cube.parquet").write_bytes(b"half")
        assert len(cube.load(path, lambda day: True)) in sizes

    def test_a_day_is_read_from_its_own_directory_alone(
        self, spark: SparkSession, days: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kind = type(spark.range(1))
        to_arrow = kind.toArrow
        plans = []

        def recorded(frame: Any) -> pa.Table:
            found = to_arrow(frame)
            plans.append(frame._jdf.queryExecution().executedPlan().toString())
            return found

        monkeypatch.setattr(kind, "toArrow", recorded)
        trace.cube(trace.read(spark, days).where(f"date = '{DAY}'"), 60)
        assert len(plans) == 4, "hot keys, operations, steps and moments"
        assert "InMemoryTableScan" in plans[0], "the keys are counted once"
        for plan in plans:
            plan, _, _ = plan.partition("== Initial Plan ==")
            assert plan.count("FileScan") == 1
            assert plan.count("PartitionFilters: [isnotnull(date#") == plan.count(f"= {DAY})]") == 1
        assert not [plan for plan in plans if "Window" in plan or "SortMergeJoin" in plan]

    def test_the_cube_of_a_stream_is_left_alone(self, spark: SparkSession, days: str, tmp_path: Path) -> None:
        (tmp_path / "cube" / "batch=0").mkdir(parents=True)
        (tmp_path / "cube" / "batch=0" / "part.parquet").touch()
        with pytest.raises(PipelineError, match="is the cube of a stream: name another directory"):
            rollup(spark, days, str(tmp_path / "cube"), print)

    def test_no_file_of_another_day_is_read(self, spark: SparkSession, tmp_path: Path) -> None:
        all_days = [DAY + timedelta(days=number) for number in range(5)]
        for day in all_days:
            write(tmp_path / "days", [row(0.0)], day=day)
        journal, path = str(tmp_path / "days"), str(tmp_path / "cube")
        assert rollup(spark, journal, path, print) == all_days
        (damaged,) = (tmp_path / "days" / f"date={DAY}").rglob("*.parquet")
        damaged.write_bytes(damaged.read_bytes()[:-50])
        assert rollup(spark, journal, path, print) == all_days[3:]
        assert rollup(spark, journal, path, print, all_days[1:2]) == all_days[1:2]
        some = trace.of_days(spark, journal, lambda day: day == all_days[4])
        assert answers.rows_of(some)["operations"].sum() == 1

    def test_a_day_has_sixty_slots_at_the_most(self, spark: SparkSession, tmp_path: Path) -> None:
        slots = {0: 1, 59: 1, 61: 2, 1000: 20, 86_399: 1800}
        for number, seconds in enumerate(slots):
            begin = datetime(2026, 11, 21, tzinfo=UTC) + timedelta(days=number)
            rows = [row(0.0, arrived_at=begin + timedelta(seconds=second)) for second in (0, seconds)]
            write(tmp_path, rows, day=begin.date())
        journal = trace.read(spark, str(tmp_path))
        found = trace.span(journal, trace.files_by_day(journal))
        assert {day: max(each.values()) for day, each in found.items()} == {
            DAY + timedelta(days=number): slot for number, slot in enumerate(slots.values())
        }

    def test_a_kind_that_is_there_for_an_hour_has_slots_of_its_own(self, spark: SparkSession, tmp_path: Path) -> None:
        rare = {"purgatory": "rare", "operation": "Rare", "outcome": "expired", "late_s": 0.0}
        rows = [row(float(second), waited_s=1.0, **rare) for second in range(3600, 5400, 10)]
        rows += [row(float(second)) for second in range(0, 6 * 3600, 60)]
        write(tmp_path, rows)
        journal = trace.read(spark, str(tmp_path))
        (found,) = trace.span(journal, trace.files_by_day(journal)).values()
        assert found == {("rare", "Rare"): 30, ("fetch", "DelayedFetch"): 600}
        table = of_days(spark, str(tmp_path), lambda day: True)
        counted = answers.rows_of(table)
        assert counted[counted["purgatory"] == "rare"]["arrived"].nunique() == 60
        assert counted[counted["purgatory"] == "fetch"]["arrived"].nunique() == 36
        load = answers.load(table, counted)
        assert load["expired"].sum() == 180, "in slots of both lengths"
        # A part of the day is that of the slots that it touches.
        part = cube.between(table, START + timedelta(seconds=610), START + timedelta(seconds=1205), None)
        assert answers.rows_of(part)["operations"].sum() == 20


def test_the_questions_in_the_guide_are_answered_by_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(0.1 * number, waited_s=0.5, keys=["a"]) for number in range(100)]
    rows += [row(20.0, waited_s=3.0, outcome="cancelled", keys=["b"]), row(30.0, waited_s=1.001, outcome="expired")]
    write(tmp_path / "journal", rows)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```sql\n(.*?)```", (ROOT / "purgatory/pipeline/README.md").read_text("utf-8"), re.DOTALL)
    answered = [
        duckdb.connect().execute(question).fetchall() for question in block.strip().removesuffix(";").split(";\n")
    ]
    ended, keys, hours, left, pending = answered
    assert ended[0] == ("fetch", "DelayedFetch", "satisfied", 100, 0.5)
    assert keys == [("topic", 1)]
    assert [each[1:] for each in hours] == [("web-1", 0.5)]
    assert left == [("DelayedFetch", [3.0, 3.0, 3.0])]
    assert pending == [(5,)]


def test_a_cube_at_an_unknown_kind_of_place_is_refused() -> None:
    with pytest.raises(PipelineError, match="gopher://cube cannot be used"):
        cube.files("gopher://cube")
