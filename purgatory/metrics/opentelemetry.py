"""Metrics for OpenTelemetry."""

from collections.abc import Callable, Iterable

from purgatory.listeners import FinishedOperation
from purgatory.metrics.measures import LATENESS, LATENESS_BOUNDS, MEASURES, WAIT, WAIT_BOUNDS, Measure, check_names
from purgatory.purgatory import DelayedOperationPurgatory

try:
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation, get_meter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'asyncio-purgatory[metrics]'", name=error.name) from None

__all__ = ["instrument"]


def instrument(*purgatories: DelayedOperationPurgatory, meter_provider: MeterProvider | None = None) -> None:
    """Export the figures of `purgatories`, by the global meter provider if no other is given.

    Every point has the attribute `purgatory`, the name. The histograms are recorded when an operation finishes: what
    that costs depends on the SDK in use. Raises `ValueError` if two purgatories have the same name.
    """
    check_names(purgatories)
    meter = get_meter("purgatory", meter_provider=meter_provider)
    for measure in MEASURES:
        kind = meter.create_observable_counter if measure.kind == "counter" else meter.create_observable_gauge
        kind(_name(measure.name), [_observer(measure, purgatories)], "s" if measure.seconds else "1", measure.help)
    waits = _histogram(meter, WAIT, WAIT_BOUNDS)
    lateness = _histogram(meter, LATENESS, LATENESS_BOUNDS)

    def listen(finished: FinishedOperation) -> None:
        if finished.outcome != "completed_at_once":
            waits.record(finished.waited, {"purgatory": finished.purgatory, "outcome": finished.outcome})
        if finished.late is not None:
            lateness.record(finished.late, {"purgatory": finished.purgatory})

    for purgatory in purgatories:
        purgatory.add_listener(listen)


def _name(name: str) -> str:
    return f"purgatory.{name}"


def _histogram(meter: Meter, named: tuple[str, str], bounds: tuple[float, ...]) -> Histogram:
    name, description = named
    return meter.create_histogram(_name(name), "s", description, explicit_bucket_boundaries_advisory=bounds)


def _observer(
    measure: Measure, purgatories: tuple[DelayedOperationPurgatory, ...]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for purgatory in purgatories:
            for label, value in measure.read(purgatory.statistics(), purgatory.timer.statistics()).items():
                attributes = {"purgatory": purgatory.name}
                if measure.label is not None:
                    attributes[measure.label] = label
                yield Observation(value, attributes)

    return observe
