"""The headlines of a full run as a table and a picture: the cost of ours, and each alternative's ratio to it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from purgatory.bench.case import OURS, Measured, find
from purgatory.bench.report import Spread, groups, markdown, number

COLOURS: Final = ("#d1495b", "#edae49", "#66a182", "#8d6a9f", "#7a7a7a", "#2e4057", "#b0713a", "#5aa9c7")

plt.switch_backend("Agg")  # files, no windows

ONE_LOOP: Final = {"http", "arrivals", "events"}
"""The scenarios that are in both tables though they have one loop only, which the headline names."""

_BATCHES: Final = {"clients": 10_000, "pace": "in batches"}
_AT_ONCE: Final = {"clients": 10_000, "pace": "at once"}
_ONE_BY_ONE: Final = {"clients": 10_000, "pace": "one by one"}

HEADLINES: Final[tuple[tuple[str, str, str, Mapping[str, Any]], ...]] = (
    ("memory of an operation, 1,000,000 pending", "memory", "bytes", {"pending": 1_000_000}),
    ("a full garbage collection then", "memory", "collection_ms", {"pending": 1_000_000}),
    ("register and complete, 1,000 at a time", "callback", "us", {"pending": 1_000}),
    ("register and complete, 100,000 at a time", "callback", "us", {"pending": 100_000}),
    ("a task waits once more, 2,000 tasks", "await", "us", {"tasks": 2_000}),
    ("a task waits once more, 100,000 tasks", "await", "us", {"tasks": 100_000}),
    ("wake the right one of 100,000 on one key", "wakeup", "ms", {"satisfied": "one", "waiters": 100_000}),
    ("wake the right thousand of 100,000 on one key", "wakeup", "ms", {"satisfied": "1 %", "waiters": 100_000}),
    ("1,000,000 due in one tick: longest turn of the loop", "storm", "stall_ms", {"due": 1_000_000}),
    ("the same: how late the last one is", "storm", "late_max_ms", {"due": 1_000_000}),
    ("FastAPI with CORS on uvloop, 10,000 clients come in batches: memory each", "arrivals", "kib", _BATCHES),
    ("the same: the server's CPU to answer one", "arrivals", "cpu_answer_us", _BATCHES),
    ("the same, if all come at once: memory each", "arrivals", "kib", _AT_ONCE),
    ("the same: the longest that another client waits then", "arrivals", "longest_ms", _AT_ONCE),
    ("the same, if they come one by one: memory each", "arrivals", "kib", _ONE_BY_ONE),
    ("HTTP on uvloop, 10,000 clients wait: memory each", "http", "kib", {"clients": 10_000}),
    ("the same: from publish to all answered", "http", "answer_ms", {"clients": 10_000}),
    ("the same: the server's CPU for it, a client", "http", "cpu_answer_us", {"clients": 10_000}),
    ("the same: from publish to the answer of one", "http", "latency_us", {"clients": 10_000}),
    ("an idle HTTP connection: memory", "http", "idle_kib", {"clients": 10_000}),
    ("an HTTP request that does not wait: the server's CPU", "http", "now_us", {"clients": 10_000}),
    ("server-sent events on uvloop, 10,000 idle streams: memory each", "events", "kib", {"clients": 10_000}),
    ("the same: the server's CPU, with heartbeats", "events", "idle_cpu", {"clients": 10_000}),
    ("the same: from publish to the event at all clients", "events", "event_ms", {"clients": 10_000}),
    ("the same: the server's CPU for it, a client", "events", "cpu_event_us", {"clients": 10_000}),
    ("the same: from publish to the event at one client", "events", "latency_us", {"clients": 10_000}),
    ("the same: from SIGTERM to the end of the server", "events", "stop_s", {"clients": 10_000}),
    ("durable appends of 100 bytes, 1 writer: time each", "appends", "us", {"bytes": 100, "writers": 1}),
    ("the same, 64 writers on 16 streams", "appends", "us", {"bytes": 100, "writers": 64}),
    ("the same: the server's CPU", "appends", "cpu_us", {"bytes": 100, "writers": 64}),
    ("the same, 512 writers", "appends", "us", {"bytes": 100, "writers": 512}),
    ("durable appends of 64 KiB, 1 writer: time each", "appends", "us", {"bytes": 65_536, "writers": 1}),
    ("the same, 64 writers on 16 streams", "appends", "us", {"bytes": 65_536, "writers": 64}),
    ("the same, 512 writers", "appends", "us", {"bytes": 65_536, "writers": 512}),
    *(
        (what, "readers", metric, {"readers": readers, "by": by})
        for readers in (1_000, 10_000)
        for by, waits in (("long poll", "long polls wait"), ("SSE", "readers wait by SSE"))
        for what, metric in (
            (f"{readers:,} {waits}: memory each", "kib"),
            ("the same: from append to the last of them", "answer_ms"),
            ("the same: the server's CPU, each", "cpu_us"),
        )
    ),
)
"""What it says, the scenario, its metric, and the parameters of the cases."""


@dataclass(frozen=True, slots=True)
class Line:
    """A headline, the figure of ours, and the ratio of each alternative to it."""

    what: str
    ours: str
    ratios: dict[str, Spread]


def lines(measured: Mapping[str, Iterable[Measured]], loop: str) -> list[Line]:
    """The headlines of the figures measured on `loop`, and of HTTP on the loop that it has."""
    found = []
    for what, scenario, key, parameters in HEADLINES:
        for group in groups(measured.get(scenario, ())):
            on_loop = group.loop == loop or scenario in ONE_LOOP
            if on_loop and OURS in group.members and parameters.items() <= group.parameters.items():
                unit = next(metric.unit for metric in find(scenario).metrics if metric.key == key)
                ratios = {name.replace(OURS, "ours"): group.ratio(name, key) for name in group.members}
                named = {name: ratio for name, ratio in ratios.items() if ratio}
                found.append(Line(what, f"{number(group.spread(OURS, key).median)} {unit}", named))
    return found


def summary(measured: Mapping[str, Iterable[Measured]], loop: str) -> str:
    """The headlines as a table; nothing if none was measured."""
    rows = [
        [
            line.what,
            line.ours,
            ", ".join(
                f"{name} **{_times(ratio.median)}** ({_times(ratio.least)} to {_times(ratio.most)})"
                for name, ratio in line.ratios.items()
            ),
        ]
        for line in lines(measured, loop)
    ]
    columns = ["", "purgatory", "others, times as much (least to most of the rounds)"]
    return markdown(f"On {loop}", columns, rows) if rows else ""


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"


def draw(lines: list[Line], loop: str, file: Path) -> None:
    """Draw the ratio of each alternative's cost to ours, with its spread."""
    shown = [line for line in lines if line.ratios]
    if not shown:
        return
    figure, axis = plt.subplots(figsize=(9.2, 1.3 + 0.34 * len(shown)))
    axis.axvline(1, color="black", linewidth=1)
    names = dict.fromkeys(name for line in shown for name in line.ratios)
    for name, marker, colour in zip(names, cycle("osD^vPX*"), cycle(COLOURS), strict=False):
        ratios = {place: line.ratios[name] for place, line in enumerate(shown) if name in line.ratios}
        medians = [ratio.median for ratio in ratios.values()]
        below = [ratio.median - ratio.least for ratio in ratios.values()]
        above = [ratio.most - ratio.median for ratio in ratios.values()]
        axis.errorbar(medians, list(ratios), xerr=[below, above], fmt=marker, color=colour, label=name)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else ""))
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.set_title("How many times what this library takes, with the spread over the rounds", fontsize=11)
    axis.set_yticks(range(len(shown)), [f"{line.what}  ({line.ours})" for line in shown], fontsize=8)
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
    axis.set_xlabel(f"on {loop}; right of the line, this library takes less", fontsize=8)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(file, dpi=110, bbox_inches="tight")
    plt.close(figure)
