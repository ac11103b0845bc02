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

WAITED = ("satisfied", "expired", "closed", "cancelled", "failed")
"""The outcomes of operations that did not complete at once."""


class Failing(Flag):
    def on_complete(self) -> str:
        raise LookupError


def _samples(registry: CollectorRegistry, **labels: str) -> dict[str, float]:
    """The samples with these labels, as `NAME VALUE…` with the values of their other labels, by Prometheus' parser."""
    return {
        " ".join(
            (
                sample.name.removeprefix("purgatory_"),
                *(sample.labels[each] for each in sorted(sample.labels.keys() - labels)),
            )
        ): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.labels.items() >= labels.items()
    }


def _metrics(reader: InMemoryMetricReader) -> dict[str, Any]:
    """The metrics that OpenTelemetry's reader finds, by name."""
    data = reader.get_metrics_data()
    assert data is not None
    return {each.name: each for each in data.resource_metrics[0].scope_metrics[0].metrics}


@pytest.fixture
def registry(purgatory: DelayedOperationPurgatory) -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    collector = PurgatoryCollector(purgatory)
    registry.register(collector)
    yield registry
    collector.close()


def _one_of_each(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    """An operation for each outcome, and one that is missed.

    Those that wait do so for two seconds, and the one that expires is 0.5 late.
    """
    closing = purgatory.try_complete_else_watch(Flag(), ["closed"])
    flags = {name: purgatory.try_complete_else_watch(Flag(), [name, "all"]) for name in ("satisfied", "cancelled")}
    failing = purgatory.try_complete_else_watch(Failing(), ["failed"])
    purgatory.try_complete_else_watch(Flag(ready=True), ["at once"])
    purgatory.try_complete_else_watch(Flag(1.5), ["expired"])
    purgatory.try_complete_else_watch(Flag(1.5), ["missed"]).ready = True  # its key is not checked
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
        samples = _samples(registry, purgatory="test")
        assert purgatory.statistics().longest_slice > 0
        expected = dict.fromkeys((f"operations_total {outcome}" for outcome in ("completed_at_once", *WAITED)), 1.0)
        expected |= {
            "operations_total satisfied": 2,
            "missed_operations_total": 1,
            "missed_by_operation_total Flag": 1,
            "delayed_operations": 1,
            "watched_entries": 9,
            "longest_slice_seconds": purgatory.statistics().longest_slice,
            "purges_total": 0,
            "purged_entries_total": 0,
            "timer_wake_ups_total": 1,
            "timer_buckets_total": 1,
            "timer_cascaded_tasks_total": 0,
            "timer_tasks 1": 0,
            "timer_tasks 2": 1,
        }
        histograms = ("wait_seconds", "lateness_seconds")
        assert {name: value for name, value in samples.items() if not name.startswith(histograms)} == expected

    def test_waits_and_lateness_are_exported_as_histograms(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, registry: CollectorRegistry
    ) -> None:
        _one_of_each(purgatory, clock)
        samples = _samples(registry, purgatory="test")
        for outcome in WAITED:
            count = 2 if outcome == "satisfied" else 1
            assert samples[f"wait_seconds_count {outcome}"] == count
            assert samples[f"wait_seconds_sum {outcome}"] == 2.0 * count
        assert "wait_seconds_count completed_at_once" not in samples
        assert (samples["lateness_seconds_count"], samples["lateness_seconds_sum"]) == (1, 0.5)
        assert samples["lateness_seconds_bucket 0.25"] == 0
        assert samples["lateness_seconds_bucket 0.5"] == 1, "a bound belongs to its bucket"

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
        samples = _samples(registry, purgatory="test")
        for bound in (*WAIT_BOUNDS, math.inf):
            name = "+Inf" if bound == math.inf else str(bound)
            count = sum(each <= bound for each in waited)
            assert samples[f"wait_seconds_bucket {name} satisfied"] == count

    def test_purgatories_can_be_added_and_removed_and_all_at_a_close(self, clock: FaultLog) -> None:
        fetches, produces = (DelayedOperationPurgatory(name, clock=clock) for name in ("fetch", "produce"))
        registry = CollectorRegistry()
        collector = PurgatoryCollector(fetches)
        registry.register(collector)
        collector.add(produces)
        collector.remove(fetches)
        assert _samples(registry, purgatory="fetch") == {}
        assert _samples(registry, purgatory="produce")["delayed_operations"] == 0
        with pytest.raises(KeyError):
            collector.remove(fetches)
        for _ in range(2):
            collector.close()
            assert produces._owner.listeners is None
            assert _samples(registry, purgatory="produce") == {}


def test_journals_count_the_rows_written_and_lost(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    journals = [Journal(tmp_path, instance) for instance in ("web-1", "web-2")]
    registry.register(JournalCollector(*journals))
    finished = FinishedOperation("fetch", "Fetch", ("a",), 0.0, None, 0.0, "satisfied", None, None)
    journals[0].write(finished)
    queued = [_samples(registry, instance=journal.instance)["journal_queued_rows"] for journal in journals]
    for journal in journals:
        journal.close()
    journals[0].write(finished)
    assert queued == [1, 0]
    assert _samples(registry, instance="web-1") == {
        "journal_rows_total": 1,
        "journal_files_total": 1,
        "journal_queued_rows": 0,
        "journal_dropped_rows_total": 1,
        "journal_failures_total": 0,
    }


class TestOpenTelemetry:
    def test_exported_metrics_agree_with_statistics(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        reader = InMemoryMetricReader()
        PurgatoryInstruments(purgatory, meter_provider=MeterProvider([reader]))
        _one_of_each(purgatory, clock)
        metrics = _metrics(reader)
        histograms = {"purgatory.wait", "purgatory.lateness"}
        assert metrics.keys() == {
            *histograms,
            "purgatory.missed_by_operation",
            *(f"purgatory.{each.name}" for each in MEASURES),
        }
        statistics, timer = purgatory.statistics(), purgatory.timer.statistics()
        for measure in MEASURES:
            metric = metrics[f"purgatory.{measure.name}"]
            assert metric.unit == ("s" if measure.seconds else "1")
            assert isinstance(metric.data, Sum) == (measure.kind == "counter")
            assert [(dict(point.attributes), point.value) for point in metric.data.data_points] == [
                ({"purgatory": "test"} | ({measure.label: label} if measure.label else {}), value)
                for label, value in measure.read(statistics, timer).items()
            ]
        waits = metrics["purgatory.wait"].data.data_points
        assert {tuple(point.explicit_bounds) for point in waits} == {WAIT_BOUNDS}
        found = {point.attributes["outcome"]: (point.count, point.sum) for point in waits}
        assert found == dict.fromkeys(WAITED, (1, 2.0)) | {"satisfied": (2, 4.0)}
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
        delayed = _metrics(reader)["purgatory.delayed_operations"]
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
    with pytest.raises(TypeError, match=r"each purgatory must be a DelayedOperationPurgatory, not <ThresholdPurgatory"):
        PurgatoryCollector(threshold)


def _prometheus(purgatory: DelayedOperationPurgatory) -> Callable[[], int]:
    registry = CollectorRegistry()
    registry.register(PurgatoryCollector(purgatory))
    return lambda: len(_samples(registry))


def _opentelemetry(purgatory: DelayedOperationPurgatory) -> Callable[[], int]:
    reader = InMemoryMetricReader()
    PurgatoryInstruments(purgatory, meter_provider=MeterProvider([reader]))
    return lambda: sum(len(each.data.data_points) for each in _metrics(reader).values())


@pytest.mark.parametrize("export", [_prometheus, _opentelemetry])
def test_operations_on_many_keys_export_no_more_series_than_on_one(
    purgatory: DelayedOperationPurgatory,
    clock: FaultLog,
    export: Callable[[DelayedOperationPurgatory], Callable[[], int]],
) -> None:
    """KAFKA-20204: there was a meter of expirations for each partition, and it was never removed."""
    series = export(purgatory)
    counts = []
    for keys in (1, 100):
        for key in range(keys):
            purgatory.try_complete_else_watch(Flag(1.5), [f"partition {key}"])
            purgatory.try_complete_else_watch(Flag(1.5), [f"partition {key}"]).ready = True  # and is not checked
        clock.advance(2.0)
        counts.append(series())
    assert (purgatory.statistics().expired, purgatory.statistics().missed) == (101, 101)
    assert counts[0] == counts[1] > 0


def test_requests_that_wait_are_counted_by_how_they_are_handled() -> None:
    registry = CollectorRegistry()
    registry.register(ParkingCollector())
    reader = InMemoryMetricReader()
    observe_parking(MeterProvider([reader]))
    expected = asdict(parking_statistics())
    found = {way: registry.get_sample_value("purgatory_requests_total", {"handled": way}) for way in expected}
    assert found == expected
    points = _metrics(reader)["purgatory.requests"].data.data_points
    assert {point.attributes["handled"]: point.value for point in points} == expected
