"""The rate of timeouts as a function of the timeout: against scipy's estimator, and against the truth."""

import importlib
import math
import warnings
from datetime import timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from purgatory.journal import SCHEMA
from purgatory.spark.survival import UNKNOWN, TimeoutChoice, by_operation, choose, curve, rate_at, settled
from tests.pipeline import traces

stats: Any = importlib.import_module("scipy.stats")  # it has no types

Floats = npt.NDArray[np.float64]
Curves = dict[tuple[str, str], dict[str, Floats]]

TIMEOUT: Final = 0.2


def _sample(operation: str, waited: Any, completed: Any, timeout: float | None = None) -> list[dict[str, Any]]:
    """Operations with these waits; `completed` tells whether each wait ended with a completion."""
    return [
        {
            "purgatory": "test",
            "operation": operation,
            "waited_s": float(time),
            "timeout_s": timeout,
            "deadline_s": timeout,
            "late_s": None,
            "outcome": "satisfied" if done else "cancelled",
        }
        for time, done in zip(waited, completed, strict=True)
    ]


def _table(spark: SparkSession, rows: list[dict[str, Any]]) -> pa.Table:
    kinds = dict.fromkeys(("purgatory", "operation", "outcome"), pa.string())
    kinds |= dict.fromkeys(("waited_s", "timeout_s", "deadline_s", "late_s"), pa.float64())
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, pa.schema(list(kinds.items()))))
    return curve(frame).orderBy("purgatory", "operation", "time").toArrow()


def _points(spark: SparkSession, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = _table(spark, rows).to_pylist()
    return points


class TestTheEstimate:
    def test_estimate_and_band_equal_those_of_scipy(self, spark: SparkSession) -> None:
        random = np.random.default_rng(7)
        samples: dict[str, tuple[Any, Any]] = {
            "one event": ([0.5], [True]),
            "one censored": ([0.5], [False]),
            "only events": ([0.1, 0.2, 0.2, 0.3], [True] * 4),
            "only censored": ([0.1, 0.2, 0.2, 0.3], [False] * 4),
            "an event and a censored one at the same time": ([0.2, 0.2, 0.1], [True, False, True]),
            "the last is an event, after censored ones": ([0.1, 0.2, 0.3, 0.4], [False, True, False, True]),
            "the last is censored": ([0.1, 0.2, 0.3, 0.4], [True, False, True, False]),
            "at time 0": ([0.0, 0.0, 0.0, 1.0], [True, True, False, False]),
            "very long and very short": ([1e-9, 12_340.0, 9.999e6, 0.001, 1.0], [True, True, True, False, True]),
        }
        for number in range(12):
            size = int(random.integers(2, 400))
            times = np.array([float(f"{time:.4g}") for time in random.lognormal(-3.0, 1.5, size)])
            if number % 3 == 0:
                times = np.ceil(times * 50) / 50
            samples[f"random {number}"] = (times, random.random(size) < random.random())
        rows = [row for name, sample in samples.items() for row in _sample(name, *sample)]
        curves = by_operation(_table(spark, rows))
        assert len(curves) == len(samples)
        for name, (times, completed) in samples.items():
            waited, done = np.array(times), np.array(completed)
            with warnings.catch_warnings(action="ignore"):  # scipy warns where there is no band, and has NaN there
                estimate = stats.ecdf(stats.CensoredData(uncensored=waited[done], right=waited[~done])).sf
                band = estimate.confidence_interval(method="log-log")
            points = curves["test", name]
            same: dict[str, Any] = {"rtol": 0, "atol": 1e-9, "err_msg": name}
            np.testing.assert_allclose(points["time"], estimate.quantiles, **same)
            np.testing.assert_allclose(points["timeout_rate"], estimate.probabilities, **same)
            np.testing.assert_allclose(points["low"], band.low.probabilities, **same)
            np.testing.assert_allclose(points["high"], band.high.probabilities, **same)

    def test_the_band_has_the_truth_as_often_as_it_says(self, spark: SparkSession) -> None:
        random = np.random.default_rng(11)
        samples, size = 300, 200
        times = random.lognormal(math.log(0.02), 1.6, (samples, size))
        rows = []
        for number, sample in enumerate(times):
            rows += _sample(f"{number}", np.minimum(sample, TIMEOUT), sample <= TIMEOUT, TIMEOUT)
        curves = by_operation(_table(spark, rows))
        for share in (0.5, 0.75, 0.9):
            time = 0.02 * math.exp(1.6 * stats.norm.ppf(share))
            bands = [rate_at(points, time) for points in curves.values()]
            covered = sum(band is not None and band[1] <= 1 - share <= band[2] for band in bands)
            # 95 % of 300 are 285, with a standard deviation of 3.8.
            assert 270 <= covered <= 298, f"of {samples}, at the timeout that {share:.0%} do not exceed"


class TestEventsAndCensoring:
    def test_completed_is_an_event_and_everything_else_is_censored(self, spark: SparkSession) -> None:
        outcomes = {"completed_at_once": 0.0, "satisfied": 0.1, "expired": 0.2, "cancelled": 0.3, "failed": 0.4}
        outcomes["closed"] = 0.5
        [row] = _sample("a", [0.0], [True], 1.0)
        points = _points(spark, [row | {"outcome": name, "waited_s": waited} for name, waited in outcomes.items()])
        assert [(each["time"], each["at_risk"], each["events"], each["censored"]) for each in points] == [
            (0.0, 6, 1, 0),
            (0.1, 5, 1, 0),
            (0.2, 4, 0, 1),
            (0.3, 3, 0, 1),
            (0.4, 2, 0, 1),
            (0.5, 1, 0, 1),
        ]
        assert [each["timeout_rate"] for each in points] == pytest.approx([5 / 6, *[2 / 3] * 5])

    def test_waits_that_a_deployment_ends_do_not_shorten_the_advised_timeout(self, spark: SparkSession) -> None:
        """Ten operations take 20 s each. A close ends three more such waits after 10 ms."""
        rows = _sample("a", [20.0] * 10, [True] * 10, 60.0)
        closed = [row | {"outcome": "closed"} for row in _sample("a", [0.01] * 3, [False] * 3, 60.0)]
        [without] = choose(by_operation(_table(spark, rows)), 0.8)
        [choice] = choose(by_operation(_table(spark, rows + closed)), 0.8)
        assert choice.timeout == without.timeout == 20.0
        [as_success] = choose(
            by_operation(_table(spark, rows + [row | {"outcome": "satisfied"} for row in closed])), 0.8
        )
        assert as_success.timeout == 0.01, "the timeout if closed operations counted as satisfied"

    def test_a_condition_found_at_the_deadline_is_no_event_beyond_it(self, spark: SparkSession) -> None:
        """The condition came true before, at an unknown time: the last try finds it up to a tick later."""
        rows = _sample("a", [0.1, 0.2005], [True, True], 0.2)
        points = _points(spark, rows)
        assert [(each["time"], each["events"], each["censored"]) for each in points] == [(0.1, 1, 0), (0.2, 0, 1)]

    def test_no_operation_counts_for_longer_than_its_timeout(self, spark: SparkSession) -> None:
        """A late timer or a busy loop can make a wait longer than its timeout."""
        late = _sample("a", [0.2004, 0.25, 0.2001], [True, False, False], TIMEOUT)
        in_time = _sample("a", [0.1, 0.2], [True, True], TIMEOUT)
        for row in late[1:]:
            row["outcome"] = "expired"
        points = _points(spark, late + in_time)
        assert [(each["time"], each["events"], each["censored"]) for each in points] == [(0.1, 1, 0), (0.2, 1, 3)]
        assert points[-1]["timeout_rate"] == pytest.approx(0.6)

    def test_a_rescheduled_operation_counts_up_to_its_last_deadline(self, spark: SparkSession) -> None:
        """Two that live at 1 s have their deadline moved to 1.2 s. One of them completes before, one expires."""
        rows = _sample("a", [0.5, 0.7], [True, True], 5.0) + _sample("a", [1.1, 1.2003], [True, False], 0.2)
        rows[2] |= {"deadline_s": 1.2}
        rows[3] |= {"deadline_s": 1.2, "outcome": "expired", "late_s": 0.0003}
        points = [(each["time"], each["events"], each["censored"]) for each in _points(spark, rows)]
        assert points == [(0.5, 1, 0), (0.7, 1, 0), (1.1, 1, 0), (1.2, 0, 1)]

    def test_a_journal_without_the_deadline_gives_the_same_where_that_follows(self, spark: SparkSession) -> None:
        rows = _sample("a", [0.5, 0.7], [True, True], 5.0) + _sample("a", [1.1, 1.2003], [True, False], 0.2)
        rows[3] |= {"outcome": "expired", "late_s": 0.0003}
        points = _points(spark, [row | {"deadline_s": None} for row in rows])
        assert [(each["time"], each["events"], each["censored"]) for each in points] == [
            (0.5, 1, 0),
            (0.7, 1, 0),
            (1.1, 1, 0),
            (1.2, 0, 1),
        ]

    def test_a_curve_ends_where_only_operations_without_a_known_deadline_are_left(self, spark: SparkSession) -> None:
        """A busy loop found the third one late, or it was rescheduled: the trace does not say."""
        rows = _sample("a", [0.1, 0.2, 0.25], [True, False, True], 0.2)
        rows[1] |= {"outcome": "expired", "late_s": 0.0}
        points = _points(spark, [row | {"deadline_s": None} for row in rows])
        assert [(each["time"], each["at_risk"], each["events"], each["censored"]) for each in points] == [
            (0.1, 3, 1, 0),
            (0.2, 2, 0, 1),
        ]

    def test_operations_with_longer_timeouts_extend_the_curve(self, spark: SparkSession) -> None:
        rows = _sample("a", [0.1] * 8, [False] * 8, 0.1) + _sample("a", [0.15, 0.5], [True, False], 0.5)
        assert [each["timeout_rate"] for each in _points(spark, rows)] == pytest.approx([1.0, 0.5, 0.5])

    def test_operations_are_told_apart_by_purgatory_and_type(self, spark: SparkSession) -> None:
        rows = _sample("a", [0.1, 0.2], [True, True]) + _sample("b", [0.3], [False])
        rows += [row | {"purgatory": "other"} for row in _sample("a", [0.4], [True])]
        curves = by_operation(_table(spark, rows))
        assert {key: points["time"].tolist() for key, points in curves.items()} == {
            ("other", "a"): [0.4],
            ("test", "a"): [0.1, 0.2],
            ("test", "b"): [0.3],
        }

    def test_times_are_rounded_up_to_four_digits(self, spark: SparkSession) -> None:
        rounded = {0.123412: 0.1235, 12_341.0: 12_350.0, 1e-13: 1e-9, 99.999: 100.0, 7.0001: 7.001, 1e6 + 1: 1.001e6}
        points = _points(spark, _sample("a", rounded, [True] * len(rounded)))
        assert [each["time"] for each in points] == sorted(rounded.values())

    def test_a_time_of_four_digits_stays_as_it_is(self, spark: SparkSession) -> None:
        random = np.random.default_rng(3)
        digits, powers = random.integers(1, 10_000, 3000), random.integers(-9, 4, 3000)
        times = sorted({float(f"{digit}e{power}") for digit, power in zip(digits, powers, strict=True)})
        assert [each["time"] for each in _points(spark, _sample("a", times, [True] * len(times)))] == times


class TestSettledOperations:
    """A purgatory with timeouts of 10 s, of which the last one has finished 100 s after the start."""

    def _left(self, spark: SparkSession, *rows: dict[str, Any]) -> list[float]:
        """The arrivals of the rows that are settled."""
        made = [{"instance": "web-1", "completes_s": None, **row} for row in rows]
        schema = [*SCHEMA, pa.field("instance", pa.string()), pa.field("completes_s", pa.float64())]
        frame = spark.createDataFrame(pa.Table.from_pylist(made, pa.schema(schema)))
        found = settled(frame).orderBy("arrived_at").selectExpr("unix_micros(arrived_at) AS at").collect()
        return [round(row.at / 1e6 - traces.START.timestamp(), 3) for row in found]

    def _row(self, second: float, waited: float = 1.0, **columns: Any) -> dict[str, Any]:
        return traces.row(second, **{"waited_s": waited, "timeout_s": 10.0} | columns)

    def test_operations_that_arrived_shortly_before_the_last_finish_are_left_out(self, spark: SparkSession) -> None:
        """Others that have arrived since 90 s may be pending, and without a row."""
        rows = [self._row(second) for second in (0.0, 89.9, 90.0, 90.1, 99.0)]
        assert self._left(spark, *rows) == [0.0, 89.9]

    def test_the_longest_wait_or_deadline_of_the_operation_counts(self, spark: SparkSession) -> None:
        rows = [self._row(second) for second in (10.0, 79.0, 81.0, 99.0)]
        moved = self._row(1.0, deadline_s=20.0)
        other = self._row(2.0, operation="Other", timeout_s=99.0)
        assert self._left(spark, *rows, moved, other) == [1.0, 10.0, 79.0]
        waiting = self._row(3.0, 30.0, timeout_s=None)
        assert self._left(spark, *rows, waiting) == [3.0, 10.0]

    def test_an_instance_that_is_killed_again_and_again_has_an_end_for_each_process(self, spark: SparkSession) -> None:
        rows = [
            self._row(process + second, opened_at=traces.START + timedelta(seconds=process))
            for process in (0, 1000)
            for second in (50.0, 95.0, 99.0)
        ]
        assert self._left(spark, *rows) == [50.0, 1050.0]
        unknown = [row | {"instance": "older", "opened_at": traces.START} for row in rows]
        assert self._left(spark, *unknown) == [50.0, 95.0, 99.0, 1050.0]

    def test_operations_of_a_purgatory_that_was_closed_at_the_end_stay(self, spark: SparkSession) -> None:
        """A close gives each pending operation a row."""
        closed = [self._row(second, 98.0 - second, outcome="closed") for second in (92.0, 95.0)]
        rows = [self._row(second) for second in (50.0, 91.0)]
        others = [self._row(second, purgatory="other") for second in (93.0, 99.0)]
        assert self._left(spark, *rows, *closed, *others) == [50.0, 91.0, 92.0, 95.0]
        on = self._row(98.5)
        assert self._left(spark, *rows, *closed, *others, on) == [50.0], "one of the same name was not closed"

    def test_a_closed_operation_is_not_the_only_evidence_of_its_close(self, spark: SparkSession) -> None:
        """Alone it would be kept because it is long, and a quick one in its place would be left out."""
        closed = self._row(92.0, 6.0, outcome="closed")
        other = self._row(99.0, purgatory="other")
        assert self._left(spark, self._row(50.0), self._row(91.0), closed, other) == [50.0, 91.0]

    def test_generated_operations_all_stay(self, spark: SparkSession) -> None:
        assert self._left(spark, self._row(99.0, completes_s=1.0)) == [99.0]


def _curve(**columns: list[float]) -> Curves:
    return {("test", "a"): {name: np.array(values) for name, values in columns.items()}}


CURVE: Final = _curve(
    time=[0.1, 0.2, 0.3, 0.4, 0.5],
    timeout_rate=[0.5, 0.3, 0.1, 0.05, 0.05],
    low=[0.4, 0.1, 0.05, 0.01, 0.01],
    high=[0.6, 0.4, 0.2, 0.1, 0.1],
)


class TestTheChoice:
    def test_choice_is_shortest_timeout_with_wanted_rate_and_its_range(self) -> None:
        [choice] = choose(CURVE, 0.1)
        assert choice == TimeoutChoice("test", "a", 0.1, 0.3, 0.2, 0.4, 0.5, 0.05)
        assert str(choice) == ("test / a: 300 ms so that at most 10 % time out; 200 ms to 400 ms by the 95 % band")

    def test_rate_that_equals_the_target_meets_it(self, spark: SparkSession) -> None:
        """The rate is a product of many factors, and rounding does not matter."""
        times = [number / 1000 for number in range(1, 101)]
        for wanted in (0.01, 0.29, 0.57):
            [choice] = choose(by_operation(_table(spark, _sample("a", times, [True] * 100))), wanted)
            assert choice.timeout == round(100 * (1 - wanted)) / 1000

    def test_band_that_does_not_reach_the_target_is_open(self) -> None:
        [choice] = choose(CURVE, 0.05)
        assert (choice.timeout, choice.earliest, choice.latest) == (0.4, 0.3, None)
        assert choice.reason.endswith("; 300 ms to more than 500 ms by the 95 % band")

    def test_a_target_that_no_observed_timeout_reaches_is_reported(self) -> None:
        [choice] = choose(CURVE, 0.02)
        assert (choice.timeout, choice.longest, choice.rate_at_longest) == (None, 0.5, 0.05)
        assert choice.reason == ("not reachable from this trace: at 500 ms, the longest observed, still 5 % time out")

    def test_choice_without_settled_operations_gives_no_answer_and_a_reason(self) -> None:
        [choice] = choose({("test", "a"): UNKNOWN}, 0.01)
        assert (choice.timeout, choice.longest, choice.rate_at_longest) == (None, 0.0, 1.0)
        assert choice.reason.startswith("no answer: the trace ends too soon after the arrivals")

    def test_band_is_undefined_where_all_completed_at_once(self) -> None:
        [choice] = choose(_curve(time=[0.0], timeout_rate=[0.0], low=[math.nan], high=[math.nan]), 0.01)
        assert (choice.timeout, choice.earliest, choice.latest) == (0.0, None, None)
        assert choice.reason == "0 s so that at most 1 % time out; the band is not defined there"

    def test_band_is_undefined_where_only_the_last_step_reaches_the_target(self) -> None:
        [choice] = choose(
            _curve(time=[0.1, 0.2], timeout_rate=[0.5, 0.0], low=[0.3, math.nan], high=[0.7, math.nan]), 0.1
        )
        assert choice.reason == "200 ms so that at most 10 % time out; the band is not defined there"


class TestTheRateWithATimeout:
    @pytest.mark.parametrize(
        ("timeout", "rate"),
        [
            (0.2, (0.3, 0.1, 0.4)),
            (0.2999, (0.3, 0.1, 0.4)),
            (0.5, (0.05, 0.01, 0.1)),
            (0.5001, None),
            (0.05, (1.0, math.nan, math.nan)),
        ],
    )
    def test_rate_is_known_up_to_longest_observed_timeout(
        self, timeout: float, rate: tuple[float, float, float] | None
    ) -> None:
        assert rate_at(CURVE["test", "a"], timeout) == pytest.approx(rate, nan_ok=True)
