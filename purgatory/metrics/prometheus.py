"""Metrics for Prometheus."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from purgatory import FinishedOperation
from purgatory._extras import missing
from purgatory.asgi import parking_statistics
from purgatory.metrics import measures
from purgatory.metrics.measures import Exporter, Measure

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as _error:
    raise missing(_error, "metrics") from None

if TYPE_CHECKING:
    from purgatory.journal import Journal


class _Histogram:
    """Counts values by bucket, in a fifth of the time that the client library's own histogram takes."""

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
    """The histograms of one purgatory, and its missed operations."""

    def __init__(self) -> None:
        self.missed: dict[str, int] = {}
        """By the operation's type."""
        self.waits = {outcome: _Histogram(measures.WAIT_BOUNDS) for outcome in measures.WAITED}
        self.lateness = _Histogram(measures.LATENESS_BOUNDS)

    def __call__(self, finished: FinishedOperation) -> None:
        wait = self.waits.get(finished.outcome)
        if wait is not None:
            wait.observe(finished.waited)
        if finished.late is not None:
            self.lateness.observe(finished.late)
        if finished.missed:  # replaced as a whole, because another thread may scrape
            self.missed = {**self.missed, finished.operation: self.missed.get(finished.operation, 0) + 1}


class PurgatoryCollector(Exporter[_Listener], Collector):
    """Collects the figures of purgatories for a registry of `prometheus_client`. One serves a whole registry.

        collector = PurgatoryCollector(fetches, produces)
        REGISTRY.register(collector)
        collector.add(another)

    Every series has the label `purgatory`, the name. Any thread may collect.
    """

    def collect(self) -> Iterator[Metric]:
        """Yield the figures as they are now. The registry calls it."""
        listened = self._listened
        read = [(each.name, each.statistics(), each.timer.statistics()) for each in listened]
        for measure in measures.MEASURES:
            family = _family(measure)
            for name, statistics, timer in read:
                for label, value in measure.read(statistics, timer).items():
                    family.add_metric([name, label] if measure.label else [name], value)
            yield family
        waits = HistogramMetricFamily(
            f"purgatory_{measures.WAIT[0]}_seconds", measures.WAIT[1], labels=["purgatory", "outcome"]
        )
        lateness = HistogramMetricFamily(
            f"purgatory_{measures.LATENESS[0]}_seconds", measures.LATENESS[1], labels=["purgatory"]
        )
        missed = CounterMetricFamily(
            f"purgatory_{measures.MISSED[0]}", measures.MISSED[1], labels=["purgatory", "operation"]
        )
        for purgatory, listener in listened.items():
            for operation, count in listener.missed.items():
                missed.add_metric([purgatory.name, operation], count)
            for outcome, wait in listener.waits.items():
                wait.add_to(waits, [purgatory.name, outcome])
            listener.lateness.add_to(lateness, [purgatory.name])
        yield missed
        yield waits
        yield lateness

    def _listener(self) -> _Listener:
        return _Listener()


class JournalCollector(Collector):
    """Collects the figures of journals: rows written, rows queued, and rows lost.

    For example:

        REGISTRY.register(JournalCollector(journal))
    """

    def __init__(self, *journals: "Journal") -> None:
        self._journals = journals

    def collect(self) -> Iterator[Metric]:
        """Yield the figures as they are now. The registry calls it."""
        read = [(journal.instance, journal.statistics()) for journal in self._journals]
        for kind, name, attribute, explanation in (
            (CounterMetricFamily, "rows", "rows", "Rows on disk"),
            (CounterMetricFamily, "files", "files", "Files on disk"),
            (GaugeMetricFamily, "queued_rows", "queued", "Rows that are not on disk yet"),
            (CounterMetricFamily, "dropped_rows", "dropped", "Rows lost"),
            (CounterMetricFamily, "failures", "failures", "Failures to write a file"),
        ):
            family = kind(f"purgatory_journal_{name}", explanation, labels=["instance"])
            for instance, statistics in read:
                family.add_metric([instance], getattr(statistics, attribute))
            yield family


class ParkingCollector(Collector):
    """Collects how the waiting HTTP requests of this process were handled: parked, or why not.

    For example:

        REGISTRY.register(ParkingCollector())
    """

    def collect(self) -> Iterator[Metric]:
        """Yield the figures as they are now. The registry calls it."""
        family = CounterMetricFamily(f"purgatory_{measures.REQUESTS[0]}", measures.REQUESTS[1], labels=["handled"])
        for way, count in asdict(parking_statistics()).items():
            family.add_metric([way], count)
        yield family


def _family(measure: Measure) -> CounterMetricFamily | GaugeMetricFamily:
    name = f"purgatory_{measure.name}" + ("_seconds" if measure.seconds else "")
    kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    return kind(name, measure.help, labels=["purgatory", measure.label] if measure.label else ["purgatory"])
