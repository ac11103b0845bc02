"""Metrics for Prometheus."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from purgatory.listeners import FinishedOperation
from purgatory.metrics.measures import LATENESS, LATENESS_BOUNDS, MEASURES, WAIT, WAIT_BOUNDS, Measure, check_names
from purgatory.purgatory import DelayedOperationPurgatory

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'asyncio-purgatory[metrics]'", name=error.name) from None

if TYPE_CHECKING:
    from purgatory.journal import Journal

__all__ = ["JournalCollector", "PurgatoryCollector"]


class _Histogram:
    """Counts values by where they fall. An observation takes a fifth of what the client library's own takes."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        buckets = []
        total = 0
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(labels, buckets, self._sum)


class _Listener:
    """The histograms of one purgatory."""

    def __init__(self) -> None:
        self.waits = {outcome: _Histogram(WAIT_BOUNDS) for outcome in ("satisfied", "expired", "cancelled", "failed")}
        self.lateness = _Histogram(LATENESS_BOUNDS)

    def __call__(self, finished: FinishedOperation) -> None:
        wait = self.waits.get(finished.outcome)
        if wait is not None:
            wait.observe(finished.waited)
        if finished.late is not None:
            self.lateness.observe(finished.late)


class PurgatoryCollector(Collector):
    """Collects the figures of purgatories for a registry of `prometheus_client`.

        REGISTRY.register(PurgatoryCollector(fetches, produces))

    Every series has the label `purgatory`, the name. It may be collected from any thread.
    """

    def __init__(self, *purgatories: DelayedOperationPurgatory) -> None:
        """Listens to each of `purgatories`. Raises `ValueError` if two have the same name."""
        check_names(purgatories)
        self._listened = [(purgatory, _Listener()) for purgatory in purgatories]
        for purgatory, listener in self._listened:
            purgatory.add_listener(listener)

    def close(self) -> None:
        """Listen no more. Harmless when repeated."""
        for purgatory, listener in self._listened:
            purgatory.remove_listener(listener)
        self._listened.clear()

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now, called by the registry."""
        read = [
            (purgatory.name, purgatory.statistics(), purgatory.timer.statistics()) for purgatory, _ in self._listened
        ]
        for measure in MEASURES:
            family = _family(measure)
            for name, statistics, timer in read:
                for label, value in measure.read(statistics, timer).items():
                    family.add_metric([name, label] if measure.label else [name], value)
            yield family
        waits = HistogramMetricFamily(f"purgatory_{WAIT[0]}_seconds", WAIT[1], labels=["purgatory", "outcome"])
        lateness = HistogramMetricFamily(f"purgatory_{LATENESS[0]}_seconds", LATENESS[1], labels=["purgatory"])
        for purgatory, listener in self._listened:
            for outcome, wait in listener.waits.items():
                wait.add_to(waits, [purgatory.name, outcome])
            listener.lateness.add_to(lateness, [purgatory.name])
        yield waits
        yield lateness


class JournalCollector(Collector):
    """Collects the figures of a journal: what it has written, what waits to be, and what is lost."""

    def __init__(self, journal: "Journal") -> None:
        self._journal = journal

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now, called by the registry."""
        statistics = self._journal.statistics()
        for kind, name, explanation, value in (
            (CounterMetricFamily, "rows", "Rows on disk", statistics.rows),
            (CounterMetricFamily, "files", "Files on disk", statistics.files),
            (GaugeMetricFamily, "queued_rows", "Rows that are not on disk yet", statistics.queued),
            (CounterMetricFamily, "dropped_rows", "Rows lost", statistics.dropped),
            (CounterMetricFamily, "failures", "How often a file could not be written", statistics.failures),
        ):
            family = kind(f"purgatory_journal_{name}", explanation, labels=["instance"])
            family.add_metric([self._journal.instance], value)
            yield family


def _family(measure: Measure) -> CounterMetricFamily | GaugeMetricFamily:
    name = f"purgatory_{measure.name}" + ("_seconds" if measure.seconds else "")
    kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    return kind(name, measure.help, labels=["purgatory", measure.label] if measure.label else ["purgatory"])
