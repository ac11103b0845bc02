"""The cost of listeners: the callback path without one, and with each listener of this library."""

import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from purgatory import DelayedOperationPurgatory, FinishedOperation
from purgatory.bench import machine
from purgatory.bench.case import LOOPS, OURS, Case, Figures, Metric, Plot, Scenario
from purgatory.bench.scenarios.paths import operations
from purgatory.journal import Journal
from purgatory.metrics.opentelemetry import PurgatoryInstruments
from purgatory.metrics.prometheus import PurgatoryCollector

AT_A_TIME: Final = 1000

Close = Callable[[], object]


def _ignore(_: FinishedOperation) -> None:
    pass


def _nobody(purgatory: DelayedOperationPurgatory, directory: str) -> Close:
    return lambda: None


def _listener(purgatory: DelayedOperationPurgatory, directory: str) -> Close:
    purgatory.add_listener(_ignore)
    return lambda: None


def _prometheus(purgatory: DelayedOperationPurgatory, directory: str) -> Close:
    return PurgatoryCollector(purgatory).close


def _journal(purgatory: DelayedOperationPurgatory, directory: str) -> Close:
    journal = Journal(directory, "bench", rows_per_file=50_000, max_queued=1_000_000)
    purgatory.add_listener(journal.write)
    return journal.close


def _opentelemetry(purgatory: DelayedOperationPurgatory, directory: str) -> Close:
    return PurgatoryInstruments(purgatory, meter_provider=MeterProvider([InMemoryMetricReader()])).close


IMPLEMENTATIONS: "Final[dict[str, Callable[[DelayedOperationPurgatory, str], Close]]]" = {
    OURS: _nobody,
    "a listener that ignores it": _listener,
    "Prometheus": _prometheus,
    "journal": _journal,
    "OpenTelemetry": _opentelemetry,
}


async def run(case: Case) -> Figures:
    """Register and complete a thousand at a time, again and again."""
    times = case.parameters["times"]
    with TemporaryDirectory() as directory:
        purgatory = DelayedOperationPurgatory()
        close = IMPLEMENTATIONS[case.implementation](purgatory, directory)
        turn = operations(purgatory, AT_A_TIME)
        await turn()
        began = time.process_time()
        for _ in range(times):
            await turn()
        # Includes the time of other threads, such as the journal's, which writes the files.
        used = time.process_time() - began
        close()
        return {"us": 1e6 * used / (AT_A_TIME * times)}


def measure(case: Case) -> Figures:
    return machine.run(case.loop, run(case))


def cases(quick: bool) -> list[Case]:
    return [
        Case("listeners", implementation, loop, {"times": 20 if quick else 300})
        for loop in LOOPS[: 1 if quick else 2]
        for implementation in IMPLEMENTATIONS
    ]


SCENARIO = Scenario(
    name="listeners",
    title="Register and complete, with a listener",
    cases=cases,
    measure=measure,
    metrics=(Metric("us", "CPU an operation", "µs", compared=True),),
    plots=(Plot("cpu", metric="us"),),
    all_ours=True,
)
