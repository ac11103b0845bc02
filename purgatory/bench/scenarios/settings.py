"""The best wheel size and the best purge interval: the enqueue benchmark, by both.

It runs as fast as possible with the proposal's timeout of 200 ms and many timeouts. It runs at 10,000 requests a second
with few timeouts, where the wake-ups of the timer matter. It runs as fast as possible with the timeout of long polls,
30 seconds, and requests that all complete within a second.
"""

from typing import Any, Final

from purgatory.bench.case import OURS, UNLIMITED, Case, Figures, Plot, Scenario
from purgatory.bench.scenarios import enqueue

KINDS: Final[dict[str, dict[str, Any]]] = {
    "200 ms, many expire": {"load": "high", "rate": UNLIMITED, "requests": 200_000},
    "10,000/s, few expire": {"load": "low", "rate": 10_000, "requests": 30_000},
    "30 s, none expires": {"load": "high", "rate": UNLIMITED, "requests": 200_000, "timeout": 30.0, "longest": 1.0},
}


SETTINGS: Final[dict[str, dict[str, int]]] = {
    OURS: {},
    **{f"wheel size {size}": {"wheel_size": size} for size in (4, 8, 64, 256, 1024)},
    **{f"purge interval {interval:,}": {"purge_interval": interval} for interval in (100, 300, 3000, 10_000, 100_000)},
}
"""The settings that differ from the defaults."""


def measure(case: Case) -> Figures:
    parameters = {**KINDS[case.parameters["kind"]], **SETTINGS[case.implementation]}
    parameters["requests"] //= case.parameters["part"]
    return enqueue.measure(Case(case.scenario, OURS, case.loop, parameters))


def cases(quick: bool) -> list[Case]:
    return [
        Case("settings", implementation, "asyncio", {"kind": kind, "part": 50 if quick else 1})
        for kind in KINDS
        for implementation in list(SETTINGS)[: 2 if quick else None]
    ]


SCENARIO = Scenario(
    name="settings",
    title="Wheel size and purge interval",
    cases=cases,
    measure=measure,
    metrics=enqueue.SCENARIO.metrics,
    plots=(Plot("cpu", metric="cpu_us", panel="kind"), Plot("memory", metric="memory_mib", panel="kind")),
    all_ours=True,
)
