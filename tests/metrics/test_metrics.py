"""The exported metrics are those of the purgatory, and Prometheus and OpenTelemetry can read them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from purgatory import DelayedOperationPurgatory, FinishedOperation, ThresholdPurgatory, VirtualClock
from purgatory.asgi import parking_statistics
from purgatory.journal import Journal
from purgatory.metrics.measures import MEASURES, WAIT_BOUNDS
from purgatory.metrics.opentelemetry import PurgatoryInstruments, observe_parking
from purgatory.metrics.prometheus import JournalCollector, ParkingCollector, PurgatoryCollector
from tests.support.operations import FaultLog, Flag

Samples = dict[tuple[str, str], float]


class Failing(Flag):
    def on_complete(self) -> str:
        raise LookupError


def _samples(registry: CollectorRegistry, purgatory: str = "test") -> Samples:
    """The samples of a purgatory, by name and the values of the other labels, a bucket's bound last."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (
            sample.name,
            ",".join(sample.labels[each] for each in ("outcome", "level", "operation", "le") if each in sample.labels),
        ): (sample.value)
        for family in families
        for sample in family.samples
        if sample.labels["purgatory"] == purgatory
    }


@pytest.fixture
def registry(purgatory: DelayedOperationPurgatory) -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    collector = PurgatoryCollector(purgatory)
    registry.register(collector)
    yield registry
    collector.close()


def _one_of_each(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    """An operation for each outcome; those that wait do so for two seconds, and the one that expires is 0.5 late."""
    closing = purgatory.try_complete_else_watch(Flag(), ["closed"])
    flags = {name: purgatory.try_complete_else_watch(Flag(), [name, "all"]) for name in ("satisfied", "cancelled")}
    failing = purgatory.try_complete_else_watch(Failing(), ["failed"])
    purgatory.try_complete_else_watch(Flag(ready=True), ["at once"])
    purgatory.try_complete_else_watch(Flag(1.5), ["expired"])
    clock.advance(2.0)
    flags["satisfied"].force_complete()
    flags["cancelled"].cancel()
    failing.force_complete()
    assert isinstance(failing.exception(), LookupError)
    assert purgatory.complete_all() == 1
    assert closing.outcome == "closed"
    purgatory.try_complete_else_watch(Flag(60.0), ["pending"])


@pytest.fixture
def purgatory(clock: FaultLog) -> DelayedOperationPurgatory:
    return DelayedOperationPurgatory("test", tick=2.0, clock=clock)


class TestPrometheus:
    def test_every_metric_agrees_with_the_statistics(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, registry: CollectorRegistry
    ) -> None:
        _one_of_each(purgatory, clock)
        samples = _samples(registry)
        outcomes = ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed")
        for outcome in outcomes:
            assert samples["purgatory_operations_total", outcome] == 1
        assert samples["purgatory_missed_operations_total", ""] == 0
        assert samples["purgatory_delayed_operations", ""] == 1
        assert samples["purgatory_watched_entries", ""] == purgatory.watched == 8
        assert samples["purgatory_longest_slice_seconds", ""] == purgatory.statistics().longest_slice > 0
        assert samples["purgatory_purges_total", ""] == samples["purgatory_purged_entries_total", ""] == 0
        assert samples["purgatory_timer_wake_ups_total", ""] == samples["purgatory_timer_buckets_total", ""] == 1
        assert samples["purgatory_timer_cascaded_tasks_total", ""] == 0
        assert (samples["purgatory_timer_tasks", "1"], samples["purgatory_timer_tasks", "2"]) == (0, 1)

    def test_waits_and_lateness_are_exported_as_histograms(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, registry: CollectorRegistry
    ) -> None:
        _one_of_each(purgatory, clock)
        samples = _samples(registry)
        for outcome in ("satisfied", "expired", "closed", "cancelled", "failed"):
            assert samples["purgatory_wait_seconds_sum", outcome] == 2.0
            assert samples["purgatory_wait_seconds_count", outcome] == 1
            assert samples["purgatory_wait_seconds_bucket", f"{outcome},1.0"] == 0
            assert samples["purgatory_wait_seconds_bucket", f"{outcome},2.5"] == 1
        assert ("purgatory_wait_seconds_count", "completed_at_once") not in samples
        assert samples["purgatory_lateness_seconds_sum", ""] == 0.5
        assert samples["purgatory_lateness_seconds_bucket", "0.25"] == 0
        assert samples["purgatory_lateness_seconds_bucket", "0.5"] == 1, "a bound belongs to its bucket"

    def test_a_condition_that_held_unnoticed_until_the_deadline_is_counted_as_missed(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, registry: CollectorRegistry
    ) -> None:
        flags = [purgatory.try_complete_else_watch(Flag(1.5), ["a"]) for _ in range(3)]
        for flag in flags[:2]:
            flag.ready = True  # its key is not checked
        clock.advance(2.0)
        samples = _samples(registry)
        assert samples["purgatory_missed_operations_total", ""] == 2
        assert samples["purgatory_missed_by_operation_total", "Flag"] == 2
        assert samples["purgatory_operations_total", "satisfied"] == 2
        assert samples["purgatory_operations_total", "expired"] == 1
        assert samples["purgatory_lateness_seconds_count", ""] == 1

    @given(waits=st.lists(st.one_of(st.sampled_from(WAIT_BOUNDS), st.floats(0, 1000)), max_size=20))
    def test_each_bucket_has_what_waited_no_longer_than_its_bound(self, waits: list[float]) -> None:
        clock = VirtualClock()
        purgatory = DelayedOperationPurgatory("test", clock=clock)
        waited: list[float] = []
        purgatory.add_listener(lambda finished: waited.append(finished.waited))
        registry = CollectorRegistry()
        registry.register(PurgatoryCollector(purgatory))
        for wait in waits:
            operation = purgatory.try_complete_else_watch(Flag(), ["a"])
            clock.advance(wait)
            operation.force_complete()
        samples = _samples(registry)
        for bound in (*WAIT_BOUNDS, math.inf):
            name = "+Inf" if bound == math.inf else str(bound)
            assert samples["purgatory_wait_seconds_bucket", f"satisfied,{name}"] == sum(
                each <= bound for each in waited
            )

    def test_purgatories_can_be_added_and_removed_and_all_at_a_close(self, clock: FaultLog) -> None:
        fetches, produces = (DelayedOperationPurgatory(name, clock=clock) for name in ("fetch", "produce"))
        registry = CollectorRegistry()
        collector = PurgatoryCollector(fetches)
        registry.register(collector)
        collector.add(produces)
        with pytest.raises(ValueError, match="two purgatories are called 'fetch'"):
            collector.add(DelayedOperationPurgatory("another"), fetches)
        collector.remove(fetches)
        assert _samples(registry, "fetch") == _samples(registry, "another") == {}
        assert _samples(registry, "produce")["purgatory_delayed_operations", ""] == 0
        with pytest.raises(KeyError):
            collector.remove(fetches)
        for _ in range(2):
            collector.close()
            assert produces._owner.listeners is None
            assert _samples(registry, "produce") == {}


def test_journals_count_the_rows_written_and_lost(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    journals = [Journal(tmp_path, instance) for instance in ("web-1", "web-2")]
    registry.register(JournalCollector(*journals))
    finished = FinishedOperation("fetch", "Fetch", ("a",), 0.0, None, 0.0, "satisfied", None, None)
    journals[0].write(finished)
    before, waiting = _journal(registry, "web-1"), _journal(registry, "web-2")
    for journal in journals:
        journal.close()
    journals[0].write(finished)
    assert (before["queued_rows"], waiting["queued_rows"]) == (1, 0)
    assert _journal(registry, "web-1") == {
        "rows_total": 1,
        "files_total": 1,
        "queued_rows": 0,
        "dropped_rows_total": 1,
        "failures_total": 0,
    }


def _journal(registry: CollectorRegistry, instance: str) -> dict[str, float]:
    return {
        sample.name.removeprefix("purgatory_journal_"): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.labels["instance"] == instance
    }


def _exported(reader: InMemoryMetricReader) -> dict[str, Any]:
    """The metrics that a reader finds, by name."""
    data = reader.get_metrics_data()
    assert data is not None
    return {each.name: each for each in data.resource_metrics[0].scope_metrics[0].metrics}


class TestOpenTelemetry:
    def test_exported_metrics_agree_with_statistics(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        reader = InMemoryMetricReader()
        PurgatoryInstruments(purgatory, meter_provider=MeterProvider([reader]))
        _one_of_each(purgatory, clock)
        purgatory.try_complete_else_watch(Flag(1.5), ["missed"]).ready = True  # its key is not checked
        clock.advance(2.0)
        metrics = _exported(reader)
        assert metrics.keys() == {f"purgatory.{each.name}" for each in MEASURES} | {
            "purgatory.wait",
            "purgatory.lateness",
            "purgatory.missed_by_operation",
        }
        statistics, timer = purgatory.statistics(), purgatory.timer.statistics()
        for measure in MEASURES:
            metric = metrics[f"purgatory.{measure.name}"]
            assert metric.unit == ("s" if measure.seconds else "1")
            assert isinstance(metric.data, Sum) == (measure.kind == "counter")
            found = {}
            for point in metric.data.data_points:
                attributes = dict(point.attributes)
                assert attributes.pop("purgatory") == "test"
                found[attributes.pop(measure.label) if measure.label else ""] = point.value
                assert attributes == {}
            assert found == measure.read(statistics, timer)
        waits = {}
        for point in metrics["purgatory.wait"].data.data_points:
            assert tuple(point.explicit_bounds) == WAIT_BOUNDS
            waits[point.attributes["outcome"]] = (point.count, point.sum)
        once = dict.fromkeys(("expired", "closed", "cancelled", "failed"), (1, 2.0))
        assert waits == once | {"satisfied": (2, 4.0)}
        (lateness,) = metrics["purgatory.lateness"].data.data_points
        assert (lateness.count, lateness.sum) == (1, 0.5)
        (missed,) = metrics["purgatory.missed_by_operation"].data.data_points
        assert (missed.attributes, missed.value) == ({"purgatory": "test", "operation": "Flag"}, 1)

    def test_meter_provider_has_single_set_of_instruments(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        reader = InMemoryMetricReader()
        provider = MeterProvider([reader])
        instruments = PurgatoryInstruments(purgatory, meter_provider=provider)
        with pytest.raises(ValueError, match="has PurgatoryInstruments already"):
            PurgatoryInstruments(meter_provider=provider)
        instruments.add(DelayedOperationPurgatory("another", clock=clock))
        delayed = _exported(reader)["purgatory.delayed_operations"]
        assert {point.attributes["purgatory"] for point in delayed.data.data_points} == {"test", "another"}
        instruments.close()
        assert purgatory._owner.listeners is None


@pytest.mark.parametrize("export", [PurgatoryCollector, PurgatoryInstruments])
def test_two_purgatories_of_the_same_name_are_refused(purgatory: DelayedOperationPurgatory, export: Any) -> None:
    with pytest.raises(ValueError, match="two purgatories are called 'test'"):
        export(purgatory, DelayedOperationPurgatory("test"))
    assert purgatory._owner.listeners is None


def test_an_object_that_is_no_purgatory_is_refused() -> None:
    threshold: Any = ThresholdPurgatory(0)
    with pytest.raises(TypeError, match=r"a DelayedOperationPurgatory is needed .*, not <ThresholdPurgatory"):
        PurgatoryCollector(threshold)


def _prometheus_lines(purgatory: DelayedOperationPurgatory) -> Callable[[], int]:
    registry = CollectorRegistry()
    registry.register(PurgatoryCollector(purgatory))
    return lambda: len(generate_latest(registry).splitlines())


def _opentelemetry_points(purgatory: DelayedOperationPurgatory) -> Callable[[], int]:
    reader = InMemoryMetricReader()
    PurgatoryInstruments(purgatory, meter_provider=MeterProvider([reader]))

    return lambda: sum(len(each.data.data_points) for each in _exported(reader).values())


@pytest.mark.parametrize("export", [_prometheus_lines, _opentelemetry_points])
def test_operations_on_many_keys_export_no_more_series_than_on_one(
    purgatory: DelayedOperationPurgatory,
    clock: FaultLog,
    export: Callable[[DelayedOperationPurgatory], Callable[[], int]],
) -> None:
    """KAFKA-20204: there was a meter of expirations for each partition, and it was never removed."""
    count = export(purgatory)
    counts = []
    for keys in (1, 1000):
        for key in range(keys):
            purgatory.try_complete_else_watch(Flag(1.5), [f"partition {key}"])
            purgatory.try_complete_else_watch(Flag(1.5), [f"partition {key}"]).ready = True  # and is not checked
        clock.advance(2.0)
        counts.append(count())
    assert (purgatory.statistics().expired, purgatory.statistics().missed) == (1001, 1001)
    assert counts[0] == counts[1] > 0


def test_requests_that_wait_are_counted_by_how_they_are_handled() -> None:
    registry = CollectorRegistry()
    registry.register(ParkingCollector())
    reader = InMemoryMetricReader()
    observe_parking(MeterProvider([reader]))
    expected = asdict(parking_statistics())
    found = {way: registry.get_sample_value("purgatory_requests_total", {"handled": way}) for way in expected}
    assert found == expected
    points = _exported(reader)["purgatory.requests"].data.data_points
    assert {point.attributes["handled"]: point.value for point in points} == expected
