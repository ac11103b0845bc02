"""The scenarios, in the order of their runs."""

from purgatory.bench.case import Scenario
from purgatory.bench.scenarios import (
    enqueue,
    http,
    idle,
    listeners,
    memory,
    paths,
    queue,
    settings,
    silence,
    size,
    storm,
    threads,
    threshold,
    timeouts,
    versions,
    wakeup,
)
from purgatory.bench.streams import appends, delivery, readers, reads

__all__ = ["EVERY", "SCENARIOS", "STREAMS"]

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        enqueue.SCENARIO,
        size.SCENARIO,
        memory.SCENARIO,
        wakeup.SCENARIO,
        storm.SCENARIO,
        paths.CALLBACK,
        paths.AWAIT,
        http.SCENARIO,
        settings.SCENARIO,
        threshold.SCENARIO,
        listeners.SCENARIO,
        silence.SCENARIO,
        idle.SCENARIO,
        queue.SCENARIO,
        threads.SCENARIO,
        versions.SCENARIO,
        timeouts.SCENARIO,
    )
}
"""Those of the library."""

STREAMS: dict[str, Scenario] = {
    scenario.name: scenario for scenario in (appends.SCENARIO, reads.SCENARIO, readers.SCENARIO, delivery.SCENARIO)
}
"""Those of `purgatory serve`."""

EVERY: dict[str, Scenario] = {**SCENARIOS, **STREAMS}
