"""The headlines of a full run in one table: the cost of ours, and the ratio of each alternative's cost to it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from purgatory.bench.case import OURS, Measured
from purgatory.bench.registry import find
from purgatory.bench.report import Group, Spread, Table, groups, number

__all__ = ["Line", "lines", "summary"]


@dataclass(frozen=True, slots=True)
class Headline:
    """A metric of a scenario, for the cases with these parameters."""

    what: str
    scenario: str
    metric: str
    parameters: Mapping[str, Any]


ONE_LOOP: Final = {"http", "events"}
"""The scenarios that are in both tables though they have one loop only, which the headline names."""

HEADLINES: Final = (
    Headline("memory of an operation, 1,000,000 pending", "memory", "bytes", {"pending": 1_000_000}),
    Headline("a full garbage collection then", "memory", "collection_ms", {"pending": 1_000_000}),
    Headline("register and complete, 1,000 at a time", "callback", "us", {"pending": 1_000}),
    Headline("register and complete, 100,000 at a time", "callback", "us", {"pending": 100_000}),
    Headline("a task waits once more, 2,000 tasks", "await", "us", {"tasks": 2_000}),
    Headline("a task waits once more, 100,000 tasks", "await", "us", {"tasks": 100_000}),
    Headline("wake the right one of 100,000 on one key", "wakeup", "ms", {"satisfied": "one", "waiters": 100_000}),
    Headline("wake the right thousand of 100,000 on one key", "wakeup", "ms", {"satisfied": "1 %", "waiters": 100_000}),
    Headline("1,000,000 due in one tick: longest turn of the loop", "storm", "stall_ms", {"due": 1_000_000}),
    Headline("the same: how late the last one is", "storm", "late_max_ms", {"due": 1_000_000}),
    Headline("HTTP on uvloop, 10,000 clients wait: memory each", "http", "kib", {"clients": 10_000}),
    Headline("the same: from publish to all answered", "http", "answer_ms", {"clients": 10_000}),
    Headline("the same: the server's CPU for it, a client", "http", "cpu_answer_us", {"clients": 10_000}),
    Headline("the same: from publish to the answer of one", "http", "latency_us", {"clients": 10_000}),
    Headline("an idle HTTP connection: memory", "http", "idle_kib", {"clients": 10_000}),
    Headline("an HTTP request that does not wait: the server's CPU", "http", "now_us", {"clients": 10_000}),
    Headline("server-sent events on uvloop, 10,000 idle streams: memory each", "events", "kib", {"clients": 10_000}),
    Headline("the same: the server's CPU, with heartbeats", "events", "idle_cpu", {"clients": 10_000}),
    Headline("the same: from publish to the event at all clients", "events", "event_ms", {"clients": 10_000}),
    Headline("the same: the server's CPU for it, a client", "events", "cpu_event_us", {"clients": 10_000}),
    Headline("the same: from publish to the event at one client", "events", "latency_us", {"clients": 10_000}),
    Headline("the same: from SIGTERM to the end of the server", "events", "stop_s", {"clients": 10_000}),
    Headline("durable appends of 100 bytes, 1 writer: time each", "appends", "us", {"bytes": 100, "writers": 1}),
    Headline("the same, 64 writers on 16 streams", "appends", "us", {"bytes": 100, "writers": 64}),
    Headline("the same: the server's CPU", "appends", "cpu_us", {"bytes": 100, "writers": 64}),
    Headline("the same, 512 writers", "appends", "us", {"bytes": 100, "writers": 512}),
    Headline("durable appends of 64 KiB, 1 writer: time each", "appends", "us", {"bytes": 65_536, "writers": 1}),
    Headline("the same, 64 writers on 16 streams", "appends", "us", {"bytes": 65_536, "writers": 64}),
    Headline("the same, 512 writers", "appends", "us", {"bytes": 65_536, "writers": 512}),
    *(
        Headline(what, "readers", metric, {"readers": readers, "by": by})
        for readers in (1_000, 10_000)
        for by, waits in (("long poll", "long polls wait"), ("SSE", "readers wait by SSE"))
        for what, metric in (
            (f"{readers:,} {waits}: memory each", "kib"),
            ("the same: from append to the last of them", "answer_ms"),
            ("the same: the server's CPU, each", "cpu_us"),
        )
    ),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A headline, the figure of ours, and the ratio of each alternative to it."""

    what: str
    ours: str
    ratios: dict[str, Spread]


def lines(measured: Mapping[str, Iterable[Measured]], loop: str) -> list[Line]:
    """The headlines of the figures measured on `loop`, and of HTTP on the loop that it has."""
    found = {name: groups(cases) for name, cases in measured.items()}
    return [
        _line(headline, group)
        for headline in HEADLINES
        for group in found.get(headline.scenario, ())
        if OURS in group.members and headline.parameters.items() <= group.parameters.items()
        if group.loop == loop or headline.scenario in ONE_LOOP
    ]


def _line(headline: Headline, group: Group) -> Line:
    metric = next(each for each in find(headline.scenario).metrics if each.key == headline.metric)
    ratios = {name: group.ratio(name, metric.key) for name in group.members if name != OURS}
    ours = f"{number(group.spread(OURS, metric.key).median)} {metric.unit}"
    named = {name.replace(OURS, "ours"): ratio for name, ratio in ratios.items() if ratio is not None}
    return Line(headline.what, ours, named)


def summary(measured: Mapping[str, Iterable[Measured]], loop: str) -> Table:
    """The headlines as a table."""
    rows = [[line.what, line.ours, ", ".join(map(_told, line.ratios.items()))] for line in lines(measured, loop)]
    return Table(f"On {loop}", ["", "purgatory", "times that, beside it (least to most of the rounds)"], rows)


def _told(of: tuple[str, Spread]) -> str:
    name, ratio = of
    return f"{name} **{_times(ratio.median)}** ({_times(ratio.least)} to {_times(ratio.most)})"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"
