"""The report: its tables against a plain computation, and a page that nothing in a trace breaks."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.journal import SCHEMA
from purgatory.spark import tables, trace
from purgatory.spark.configurations import COMPONENTS
from purgatory.spark.errors import PipelineError
from purgatory.spark.report import report
from purgatory.spark.simulate import COUNTS, OUTCOMES
from tests.pipeline.reports import (
    HOSTILE,
    NOON,
    REPLAYED,
    Made,
    Page,
    Row,
    made_up,
    operation,
    summary_row,
    write_replay,
    write_trace,
)
from tests.pipeline.reports import make as make_report
from tests.support.browser import browser

WAITS: Final = {"wait_p50": 0.5, "wait_p90": 0.9, "wait_p99": 0.99, "wait_max": 1.0}

Maker = Callable[..., Made]


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp("made")
    replay = write_replay(directory / "replay", REPLAYED)
    return make_report(spark, directory, made_up(), replay=replay, top=7, timeout_rate=0.3)


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Maker:
    return lambda rows, **options: make_report(spark, tmp_path, rows, **options)


def _expected(rows: list[Row]) -> Row:
    """The figures of a table for some operations, computed in the plainest way."""
    waits = sorted(row["waited_s"] for row in rows)
    counts: Row = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in OUTCOMES}
    return {
        "operations": len(rows),
        **counts,
        "expired_share": counts["expired"] / len(rows),
        **{name: waits[math.ceil(share * len(waits)) - 1] for name, share in WAITS.items()},
    }


def _grouped(rows: Iterable[Row], *names: str) -> list[Row]:
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return [dict(zip(names, key, strict=True)) | _expected(some) for key, some in groups.items()]


def _settled(rows: list[Row]) -> list[Row]:
    """The rows that arrived early enough, found in the plainest way."""

    def end(row: Row) -> Any:
        return row["arrived_at"] + timedelta(seconds=row["waited_s"])

    left = []
    for row in rows:
        beside = [each for each in rows if each["instance"] == row["instance"]]
        alike = [each for each in beside if each["purgatory"] == row["purgatory"]]
        same = [each for each in alike if each["operation"] == row["operation"]]
        longest = max(max(each["waited_s"], each["deadline_s"] or 0.0) for each in same)
        closes = [end(each) for each in alike if each["outcome"] == "closed"]
        is_closed = bool(closes) and max(closes) >= max(each["arrived_at"] for each in alike)
        is_evidence = row["outcome"] == "closed" and len(closes) == 1
        if row["arrived_at"] + timedelta(seconds=longest) < max(map(end, beside)) or (is_closed and not is_evidence):
            left.append(row)
    return left


class TestTables:
    def test_outcomes_and_waits_are_grouped_by_operation(self, made: Made) -> None:
        expected = _grouped(made.rows, "purgatory", "operation")
        assert made.table("outcomes") == sorted(
            expected, key=lambda row: (-row["operations"], row["purgatory"], row["operation"])
        )

    def test_outcomes_and_waits_are_grouped_by_hottest_key(self, made: Made) -> None:
        expected = _grouped(({**row, "key": key} for row in made.rows for key in set(row["keys"])), "purgatory", "key")
        expected.sort(key=lambda row: (-row["operations"], row["purgatory"], row["key"]))
        assert len(expected) > 7
        assert made.table("keys") == expected[:7]

    def test_outcomes_and_waits_are_grouped_by_window_of_arrival(self, made: Made) -> None:
        """Arrivals are spread over 90 seconds."""
        second = timedelta(seconds=1)
        windows = [
            {**row, "start": NOON + (row["arrived_at"] - NOON) // (2 * second) * 2 * second} for row in made.rows
        ]
        expected = _grouped(windows, "start", "purgatory", "operation")
        expected.sort(key=lambda row: (row["start"], row["purgatory"], row["operation"]))
        assert made.table("windows") == expected

    def test_recommended_timeouts_are_those_of_the_curves(self, made: Made) -> None:
        """The expected rate is the product over all times, one after the other."""
        curves = made.table("timeout_rates")
        for choice in made.recommended.timeouts:
            names = (choice.purgatory, choice.operation)
            ends = []
            for row in _settled(made.rows):
                if (row["purgatory"], row["operation"]) == names:
                    until = math.inf if row["deadline_s"] is None else row["deadline_s"]
                    done = row["outcome"] in ("completed_at_once", "satisfied") and row["waited_s"] <= until
                    ends.append((min(row["waited_s"], until), done))
            rate, reached = 1.0, None
            for time in sorted({time for time, _ in ends}):
                at_risk = sum(end >= time for end, _ in ends)
                rate *= 1 - sum(end == time and done for end, done in ends) / at_risk
                if reached is None and rate <= 0.3:
                    reached = time
            assert choice.timeout == pytest.approx(reached, rel=1e-3)
            ours = [row for row in curves if (row["purgatory"], row["operation"]) == names]
            assert ours[-1]["timeout_rate"] == pytest.approx(rate)
            assert sum(row["events"] + row["censored"] for row in ours) == len(ends)
        recommended = made.table("recommended_timeouts")
        assert [row["reason"] for row in recommended] == [choice.reason for choice in made.recommended.timeouts]

    def test_costs_of_a_replay_are_its_counts_times_what_each_costs(self, made: Made) -> None:
        expected = defaultdict(list)
        for row in REPLAYED:
            expected[row["tick"], row["timeout"]].append(row)
        table = made.table("costs")
        assert len(table) == len(expected) == 3
        for row in table:
            first, second = expected[row["tick"], row["timeout"]]
            for name in (*COUNTS, "peak_dead", "peak_delayed"):
                assert row[name] == first[name] + second[name]
            assert row["late_p99"] == first["late_p99"]
            parts = {name: 2 * first[name] * unit * 1e6 / 2000 for name, unit in COMPONENTS.items()}
            assert {name: row[f"cost_{name}"] for name in COMPONENTS} == pytest.approx(parts)
            assert row["cost"] == pytest.approx(sum(parts.values()))

    def test_each_step_is_told_before_it_begins(self, made: Made) -> None:
        assert made.said == [
            "outcomes by operation",
            "the hottest keys",
            "outcomes over time",
            "rates of timeouts",
            "costs of the configurations",
            "plots and page",
        ]

    def test_the_recommendation_can_be_printed(self, made: Made) -> None:
        recommended = made.recommended
        assert str(recommended).splitlines() == [
            *map(str, recommended.timeouts),
            *map(str, recommended.configurations),
            f"written to {made.directory / 'index.html'}",
        ]
        assert [choice.timeout for choice in recommended.configurations] == [None, 1.0]
        # The allowed lateness is a hundredth of the median timeout, 0.2 s, and of the timeout in the sweep, 1 s.
        assert [choice.max_lateness for choice in recommended.configurations] == [0.002, 0.01]
        assert [row["tick"] for row in made.table("recommended_configurations")] == [0.001, 0.001]


class TestWindows:
    @pytest.mark.parametrize(
        ("seconds", "width"),
        [(0, 0.001), (0.05, 0.001), (59, 1), (61, 2), (3599, 120), (86_399, 1800), (1e9, 19_353_600)],
    )
    def test_windows_are_round_and_at_most_sixty(self, seconds: float, width: float) -> None:
        first = 1_700_000_000_000_000
        last = first + round(seconds * 1e6)
        assert tables.usual_window(first, last) == width
        assert tables.num_windows(first, last, width) <= 60

    def test_length_of_windows_can_be_chosen(self, make: Maker) -> None:
        rows = [operation(arrived_at=NOON + timedelta(seconds=seconds)) for seconds in (0, 9, 10, 35)]
        made = make(rows, window=10)
        assert [(row["start"] - NOON, row["operations"]) for row in made.table("windows")] == [
            (timedelta(seconds=seconds), count) for seconds, count in ((0, 2), (10, 1), (30, 1))
        ]


class TestThePage:
    def test_page_loads_no_other_resource(self, made: Made) -> None:
        text = made.recommended.page.read_text("utf-8")
        page = made.page
        assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r'src="data:[^"]*"', "", text))
        assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "base"})
        assert "default-src 'none'" in text

    def test_page_has_every_plot_with_an_alternative_text(self, made: Made) -> None:
        images = [attributes for tag, attributes in made.page.tags if tag == "img"]
        plots = {path.stem for path in (made.directory / "plots").glob("*.png")}
        assert plots == {"timeout_rates", "outcomes_over_time", "waits_over_time", "hottest_keys", "configurations"}
        assert len(images) == len(plots)
        for attributes in images:
            assert (attributes["src"] or "").startswith("data:image/png;base64,iVBOR")
            assert len(attributes["alt"] or "") > 50

    def test_page_shows_recommendation_and_warns_of_percentiles(self, made: Made) -> None:
        text = " ".join(made.page.text.split())
        for choice in (*made.recommended.timeouts, *made.recommended.configurations):
            assert str(choice) in text
        assert "a timeout cuts waits off" in text
        settled = sum(row["events"] + row["censored"] for row in made.table("timeout_rates"))
        assert f"made from {settled} operations" in text

    def test_hostile_names_are_text_and_no_markup(self, make: Maker, tmp_path: Path) -> None:
        rows = [operation(keys=[key]) for key in HOSTILE]
        rows += [operation(purgatory=name or " ", operation=name) for name in HOSTILE]
        # These rows are enough to be drawn, with characters that matplotlib's font does not have.
        rows += [operation(purgatory=name, operation=name, keys=[name]) for name in ["😀漢字ع"] * 5]
        replay = write_replay(tmp_path / "replay", [summary_row(purgatory=name) for name in HOSTILE])
        page = make(rows, top=100, replay=replay).page
        assert {tag for tag, _ in page.tags}.isdisjoint({"script", "iframe"})
        assert all("onerror" not in attributes for _, attributes in page.tags)
        for attributes in (attributes for tag, attributes in page.tags if tag == "img"):
            assert (attributes["src"] or "").startswith("data:")
        for shown in ("<script>alert(1)</script>", "$x$", "😀漢字ع", "_hidden", "{{ 7 * 7 }}{% raw %}", "'\"&amp;"):
            assert shown in page.text
        assert r"line\x0abreak\x09tab\x00nul\x202egnirts" in page.text
        assert "k" * 60 not in page.text

    def test_page_warns_of_unknown_deadlines_in_older_journals(self, spark: SparkSession, tmp_path: Path) -> None:
        path = write_trace(tmp_path / "trace", [operation(waited_s=0.3)])
        [file] = (tmp_path / "trace").rglob("*.parquet")
        with pq.ParquetFile(file) as parquet:
            older = parquet.read().drop_columns(["deadline_s", "opened_at", "missed"])
        pq.write_table(older, file)
        said: list[str] = []
        made = report(spark, trace.read(spark, path), str(tmp_path / "report"), say=said.append)
        [warning] = [line for line in said if "have no deadline_s" in line]
        assert warning in Page(made.page.read_text("utf-8")).text

    def test_page_names_files_that_could_not_be_read(self, spark: SparkSession, tmp_path: Path) -> None:
        path = write_trace(tmp_path / "trace", [operation()])
        (tmp_path / "trace/date=2026-11-21/instance=web-1/bad<i>.parquet").write_bytes(b"PAR1")
        made = report(spark, trace.read(spark, path, skip_corrupt=True), str(tmp_path / "report"))
        page = Page(made.page.read_text("utf-8"))
        assert "1 files could not be read" in page.text
        assert "bad" in page.text
        assert "i" not in {tag for tag, _ in page.tags}

    def test_page_shows_the_first_operations_and_tables_have_all(self, make: Maker) -> None:
        made = make([operation(operation=f"Delayed{number}") for number in range(9)], top=2)
        assert "The first 2 of 9. All are in tables." in " ".join(made.page.text.split())
        assert len(made.table("outcomes")) == len(made.recommended.timeouts) == 9

    def test_tables_of_the_page_are_not_cut_off(self, make: Maker, tmp_path: Path) -> None:
        rows = [
            {**row, "purgatory": f"{row['purgatory']}-of-the-server", "keys": ["k" * 100, "b"]} for row in made_up()
        ]
        replay = write_replay(tmp_path / "replay", [{**row, "peak_dead": 123_456_789} for row in REPLAYED])
        made = make(rows, replay=replay)
        with browser(tmp_path / "profile", "--window-size=1200,900") as driver:
            for width in (400, 1200):
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                driver.get(made.recommended.page.as_uri())
                driver.execute_script("document.querySelector('details').open = true")
                widths = driver.execute_script(
                    "return [...document.querySelectorAll('.scroll')].map(each => [each.scrollWidth, each.clientWidth])"
                )
                assert len(widths) == 6
                assert all(needed <= given for needed, given in widths), (width, widths)


_LATER: Final = operation(outcome="expired", arrived_at=NOON + timedelta(seconds=1))
"""An operation that ends so late that those at noon are settled."""


class TestSmallTraces:
    def test_report_on_a_single_operation_recommends_no_timeout(self, make: Maker) -> None:
        """Slower ones that came with it may be missing."""
        made = make([operation()])
        [choice] = made.recommended.timeouts
        assert choice.timeout is None
        assert choice.reason in made.page.text
        assert "made from 0 operations" in " ".join(made.page.text.split())
        assert made.table("timeout_rates") == []
        assert made.recommended.configurations == ()
        assert not (made.directory / "tables" / "costs").exists()

    def test_report_on_expired_operations_alone_says_no_timeout_is_enough(self, make: Maker, tmp_path: Path) -> None:
        replay = write_replay(tmp_path / "replay", [summary_row(late_p99=0.1)])
        made = make([operation(outcome="expired")] * 5 + [_LATER], replay=replay)
        [choice] = made.recommended.timeouts
        assert choice.reason == ("not reachable from this trace: at 200 ms, the longest observed, still 100 % time out")
        few = "DelayedFetch: 6 operations are few for a rate of 1 %: record about 1,000, 167 times as much traffic"
        assert few in made.page.text
        assert made.recommended.configurations[0].configuration is None
        assert made.table("recommended_configurations")[0]["tick"] is None

    def test_report_on_short_timeouts_asks_for_longer_ones(self, make: Maker) -> None:
        rows = (
            [operation(waited_s=number / 100) for number in range(10)] + [operation(outcome="expired")] * 30 + [_LATER]
        )
        text = make(rows, timeout_rate=0.5).page.text
        assert "no operation was observed for longer than 200 ms: record some traffic with a longer timeout" in text

    def test_report_on_operations_completed_at_once_recommends_timeout_zero(self, make: Maker, tmp_path: Path) -> None:
        late = {"late_p50": None, "late_p99": None, "late_max": None}
        replay = write_replay(tmp_path / "replay", [summary_row(**late)])
        at_once = operation(outcome="completed_at_once", waited_s=0.0, timeout_s=None)
        made = make([at_once] * 5 + [at_once | {"arrived_at": NOON + timedelta(seconds=1)}], replay=replay)
        [choice] = made.recommended.timeouts
        assert choice.timeout == 0.0
        assert made.recommended.configurations[0].max_lateness is None

    def test_report_covers_several_days_and_many_configurations(self, make: Maker, tmp_path: Path) -> None:
        ticks, intervals = (0.001, 0.002, 0.005), (100, 200, 500, 1000, 2000)
        swept = itertools.product((None, 0.1, 0.2, 0.5, 1.0), ticks, intervals)
        replay = write_replay(
            tmp_path / "replay",
            [
                summary_row(timeout=timeout, tick=tick, purge_interval=interval, wake_ups=round(1 / tick) + interval)
                for timeout, tick, interval in swept
            ],
        )
        made = make([operation(arrived_at=NOON + timedelta(days=day)) for day in range(4)], replay=replay)
        assert len(made.recommended.configurations) == 5
        assert len(made.table("windows")) == 4


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"timeout_rate": 0.0}, "timeout_rate must be a number from 1e-06 to 0.999, not 0.0"),
            ({"timeout_rate": math.nan}, "timeout_rate must be a number"),
            ({"timeout_rate": "1 %"}, "timeout_rate must be a number"),
            ({"top": 0}, "top must be a whole number from 1 to 1000, not 0"),
            ({"top": 1.5}, "top must be a whole number"),
            ({"top": True}, "top must be a whole number"),
            ({"window": 0.0}, "window must be a number from 0.001 to 1e\\+09, not 0.0"),
            ({"window": 0.001}, "window must be longer: with 0.001 s there would be 60,001 windows, of at most 1,000"),
            ({"max_lateness": -1.0}, "max_lateness must be a number"),
            ({"replay": "/nowhere"}, "/nowhere/summary does not exist: /nowhere must be the output of `replay`"),
        ],
    )
    def test_options_out_of_range_are_refused(
        self, spark: SparkSession, tmp_path: Path, options: dict[str, Any], message: str
    ) -> None:
        rows = [operation(), operation(arrived_at=NOON + timedelta(seconds=60))]
        opened = trace.read(spark, write_trace(tmp_path / "trace", rows))
        with pytest.raises(PipelineError, match=message):
            report(spark, opened, str(tmp_path / "report"), **options)
        assert not (tmp_path / "report").exists()

    def test_report_is_not_written_to_another_machine(self, spark: SparkSession, tmp_path: Path) -> None:
        opened = trace.read(spark, write_trace(tmp_path / "trace", [operation()]))
        with pytest.raises(PipelineError, match="to a directory of this machine, and not to s3://bucket/report"):
            report(spark, opened, "s3://bucket/report")

    def test_trace_without_operations_is_refused(self, make: Maker, tmp_path: Path) -> None:
        directory = tmp_path / "trace" / "date=2026-11-21" / "instance=web-1"
        directory.mkdir(parents=True)
        pq.write_table(SCHEMA.empty_table(), directory / "rows.parquet")
        with pytest.raises(PipelineError, match="the trace has no operations"):
            make([])
        assert not (tmp_path / "report").exists()

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (["tick", "wheel_size"], "missing column purge_interval in .*summary: it is not a replay's summary"),
            (None, "summary has no rows"),
        ],
    )
    def test_a_directory_that_is_no_replay_is_refused(
        self, make: Maker, tmp_path: Path, columns: list[str] | None, message: str
    ) -> None:
        path = write_replay(tmp_path / "replay", [summary_row()])
        table = pq.read_table(tmp_path / "replay" / "summary" / "rows.parquet")
        table = table.slice(1) if columns is None else table.select(columns)
        pq.write_table(table, tmp_path / "replay" / "summary" / "rows.parquet")
        with pytest.raises(PipelineError, match=message):
            make([operation()], replay=path)

    def test_a_replay_without_costs_is_refused(self, make: Maker, tmp_path: Path) -> None:
        path = write_replay(tmp_path / "replay", [summary_row() | {"wake_ups": None}])
        with pytest.raises(PipelineError, match="summary has no costs: the replay was made with --no-costs"):
            make([operation()], replay=path)

    def test_directory_that_is_not_empty_is_refused_and_kept(self, make: Maker, tmp_path: Path) -> None:
        (tmp_path / "report").mkdir()
        (tmp_path / "report" / "index.html").write_text("mine")
        with pytest.raises(PipelineError, match="report exists already, and is not an empty directory"):
            make([operation()])
        assert (tmp_path / "report" / "index.html").read_text() == "mine"

    @pytest.mark.parametrize(
        ("below", "message"),
        [
            ("file", "file exists already, and is not an empty directory"),
            ("file/report", "report cannot be (used|written): Not a directory"),
            ("n" * 300, "n cannot be used: File name too long"),
        ],
    )
    def test_path_where_no_directory_can_be_made_is_refused(
        self, make: Maker, tmp_path: Path, below: str, message: str
    ) -> None:
        (tmp_path / "file").write_text("mine")
        with pytest.raises(PipelineError, match=message):
            make([operation()], output=below)
