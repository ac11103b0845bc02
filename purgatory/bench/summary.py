"""What matters most of a full run, in one table: what ours costs, and how many times that the alternatives cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from purgatory.bench.case import OURS, UNLIMITED, Measured, Metric
from purgatory.bench.report import Group, Table, groups, number
from purgatory.bench.scenarios import SCENARIOS

__all__ = ["summary"]


@dataclass(frozen=True, slots=True)
class Headline:
    """A metric of a scenario where its parameters are these."""

    what: str
    scenario: str
    metric: str
    parameters: Mapping[str, Any]


HEADLINES = (
    Headline("enqueue benchmark, few timeouts: CPU a request", "enqueue", "cpu_us", {"load": "low", "rate": UNLIMITED}),
    Headline("the same: longest turn of the loop", "enqueue", "turn_ms", {"load": "low", "rate": UNLIMITED}),
    Headline("many timeouts: CPU a request", "enqueue", "cpu_us", {"load": "high", "rate": UNLIMITED}),
    Headline("the same: longest turn of the loop", "enqueue", "turn_ms", {"load": "high", "rate": UNLIMITED}),
    Headline("set and cancel a timer, 1,000 pending", "size", "ns", {"pending": 1_000}),
    Headline("set and cancel a timer, 1,000,000 pending", "size", "ns", {"pending": 1_000_000}),
    Headline("memory of an operation, 1,000,000 pending", "memory", "bytes", {"pending": 1_000_000}),
    Headline("a full garbage collection then", "memory", "collection_ms", {"pending": 1_000_000}),
    Headline("wake the right one of 100,000", "wakeup", "ms", {"satisfied": "one"}),
    Headline("wake the right thousand of 100,000", "wakeup", "ms", {"satisfied": "1 %"}),
    Headline("1,000,000 due in one tick: longest turn of the loop", "storm", "stall_ms", {}),
    Headline("the same: how late the last one is", "storm", "late_max_ms", {}),
    Headline("register and complete, 1,000 at a time", "callback", "us", {"pending": 1_000}),
    Headline("register and complete, 100,000 at a time", "callback", "us", {"pending": 100_000}),
    Headline("a task waits once more, 2,000 tasks", "await", "us", {"tasks": 2_000}),
    Headline("a task waits once more, 100,000 tasks", "await", "us", {"tasks": 100_000}),
    Headline("HTTP, 5,000 clients wait: memory each", "http", "kib", {}),
    Headline("HTTP: from publish to all answered", "http", "answer_ms", {}),
)


def summary(measured: Mapping[str, Iterable[Measured]], loop: str) -> Table:
    """The headlines of what was measured on `loop`; of HTTP on what there is."""
    rows = []
    found = {name: groups(cases) for name, cases in measured.items()}
    for headline in HEADLINES:
        metric = next(each for each in SCENARIOS[headline.scenario].metrics if each.key == headline.metric)
        for group in found.get(headline.scenario, ()):
            parameters = headline.parameters.items() <= group.parameters.items()
            if parameters and OURS in group.members and (group.loop == loop or headline.scenario == "http"):
                rows.append([headline.what, *_row(group, metric)])
    return Table(f"On {loop}", ["", "purgatory", "times that, beside it (least to most of the rounds)"], rows)


def _row(group: Group, metric: Metric) -> tuple[str, str]:
    ours = f"{number(group.spread(OURS, metric.key).median)} {metric.unit}"
    others = []
    for name in group.members:
        ratio = group.ratio(name, metric.key)
        if name != OURS and ratio is not None:
            short = name.removeprefix(f"{OURS}, ")
            others.append(f"{short} **{_times(ratio.median)}** ({_times(ratio.least)} to {_times(ratio.most)})")
    return ours, ", ".join(others)


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"
