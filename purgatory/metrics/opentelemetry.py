"""Metrics for OpenTelemetry."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from weakref import WeakSet

from purgatory import DelayedOperationPurgatory, FinishedOperation
from purgatory._extras import missing
from purgatory.asgi import parking_statistics
from purgatory.lowlevel import Listener
from purgatory.metrics import measures
from purgatory.metrics.measures import Exporter, Measure

try:
    from opentelemetry.metrics import (
        CallbackOptions,
        Histogram,
        Meter,
        MeterProvider,
        Observation,
        get_meter,
        get_meter_provider,
    )
except ModuleNotFoundError as _error:
    raise missing(_error, "metrics") from None

_instrumented: "WeakSet[MeterProvider]" = WeakSet()
"""Providers that have the instruments already. If they are created again, the SDK observes nothing."""


class PurgatoryInstruments(Exporter[Listener]):
    """The instruments for the figures of purgatories. One set serves a whole meter provider.

        instruments = PurgatoryInstruments(fetches, produces)
        instruments.add(another)

    Every point has the attribute `purgatory`, the name. The histograms are recorded when an operation finishes, at a
    cost that depends on the SDK in use.
    """

    def __init__(self, *purgatories: DelayedOperationPurgatory, meter_provider: MeterProvider | None = None) -> None:
        """Make the instruments.

        Args:
            purgatories: The purgatories to export, each with a name of its own.
            meter_provider: The provider of the meters. By default, the global one.

        Raises:
            ValueError: The provider has instruments already, or two purgatories have the same name.
        """
        provider = meter_provider or get_meter_provider()
        if provider in _instrumented:
            raise ValueError(f"{provider!r} has PurgatoryInstruments already: add() the purgatories to them")
        meter = get_meter("purgatory", meter_provider=provider)
        self._waits = _histogram(meter, measures.WAIT, measures.WAIT_BOUNDS)
        self._lateness = _histogram(meter, measures.LATENESS, measures.LATENESS_BOUNDS)
        self._missed = meter.create_counter(_name(measures.MISSED[0]), "1", measures.MISSED[1])
        super().__init__(*purgatories)
        _instrumented.add(provider)
        for measure in measures.MEASURES:
            kind = meter.create_observable_counter if measure.kind == "counter" else meter.create_observable_gauge
            kind(_name(measure.name), [self._observer(measure)], "s" if measure.seconds else "1", measure.help)

    def _listener(self) -> Listener:
        return self._record

    def _record(self, finished: FinishedOperation) -> None:
        if finished.outcome != "completed_at_once":
            self._waits.record(finished.waited, {"purgatory": finished.purgatory, "outcome": finished.outcome})
        if finished.late is not None:
            self._lateness.record(finished.late, {"purgatory": finished.purgatory})
        if finished.missed:
            self._missed.add(1, {"purgatory": finished.purgatory, "operation": finished.operation})

    def _observer(self, measure: Measure) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for purgatory in self._listened:
                for label, value in measure.read(purgatory.statistics(), purgatory.timer.statistics()).items():
                    attributes = {"purgatory": purgatory.name}
                    if measure.label is not None:
                        attributes[measure.label] = label
                    yield Observation(value, attributes)

        return observe


def observe_parking(meter_provider: MeterProvider | None = None) -> None:
    """Count how the waiting HTTP requests of this process were handled. Call it once for each provider.

    The attribute `handled` tells whether they were parked, or why not.

    Args:
        meter_provider: The provider of the meters. By default, the global one.
    """

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {"handled": way}) for way, count in asdict(parking_statistics()).items()]

    meter = get_meter("purgatory", meter_provider=meter_provider)
    meter.create_observable_counter(_name(measures.REQUESTS[0]), [observe], "1", measures.REQUESTS[1])


def _name(name: str) -> str:
    return f"purgatory.{name}"


def _histogram(meter: Meter, named: tuple[str, str], bounds: tuple[float, ...]) -> Histogram:
    name, description = named
    return meter.create_histogram(_name(name), "s", description, explicit_bucket_boundaries_advisory=bounds)
