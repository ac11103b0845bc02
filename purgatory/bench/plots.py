"""Pictures of the measured figures."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from purgatory.bench.case import ALONE, OURS, UNLIMITED, Measured, Metric, Plot, Scenario
from purgatory.bench.report import Group, groups, number
from purgatory.bench.summary import lines

__all__ = ["draw", "draw_overview"]

NAMED = {
    OURS: "#0b6e99",
    f"{OURS}, soon": "#5aa9c7",
    f"{OURS}, call_later": "#5aa9c7",
    f"{OURS}, in Python": "#8fc1d9",
    "ours, in Python": "#0b6e99",
    "ours, soon": "#5aa9c7",
    "ours, call_later": "#5aa9c7",
    "old design (heap)": "#d1495b",
    "call_later": "#edae49",
    "loop.call_later": "#edae49",
    "Event + timeout": "#66a182",
    "Condition": "#8d6a9f",
    "Event": "#2e4057",
    "list of futures": "#c06c84",
    "wait_for": "#b0713a",
    "future + call_later": "#edae49",
    ALONE: "#7a7a7a",
}
"""The colour of each implementation, the same in all pictures."""

COLOURS = ("#0b6e99", "#d1495b", "#edae49", "#66a182", "#8d6a9f", "#7a7a7a", "#2e4057", "#b0713a", "#5b8e7d", "#c06c84")


plt.switch_backend("Agg")  # files, no windows


def draw(scenario: Scenario, measured: Iterable[Measured], directory: Path) -> list[Path]:
    """Draw the scenario's plots into `directory`. Returns the files."""
    found = groups(measured)
    return [_draw(scenario, plot, found, directory) for plot in scenario.plots if found]


def draw_overview(measured: Mapping[str, Iterable[Measured]], loop: str, directory: Path) -> Path | None:
    """Draw the headlines: the ratio of each alternative's cost to ours, with its spread."""
    told = [line for line in lines(measured, loop) if line.ratios]
    if not told:
        return None
    names = dict.fromkeys(name for line in told for name in line.ratios)
    figure, axis = plt.subplots(figsize=(9.2, 1.3 + 0.34 * len(told)))
    axis.axvline(1, color="black", linewidth=1)
    for number_, name in enumerate(names):
        points = [(place, line.ratios[name]) for place, line in enumerate(told) if name in line.ratios]
        middles = [ratio.median for _, ratio in points]
        errors: Any = [
            [ratio.median - ratio.least for _, ratio in points],
            [ratio.most - ratio.median for _, ratio in points],
        ]
        places = [place for place, _ in points]
        marker = "osD^vPX*"[number_ % 8]
        axis.errorbar(
            middles, places, xerr=errors, fmt=marker, color=NAMED.get(name, COLOURS[number_ % len(COLOURS)]), label=name
        )
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else ""))
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.set_title("Times what ours takes, with the spread over the rounds", fontsize=11)
    axis.set_yticks(range(len(told)), [f"{line.what}  ({line.ours})" for line in told], fontsize=8)
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
    axis.set_xlabel(f"times what ours takes, on {loop}; right of the line ours takes less", fontsize=8)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    path = directory / f"overview-{loop}.png"
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


def _draw(scenario: Scenario, plot: Plot, found: list[Group], directory: Path) -> Path:
    metric = next(metric for metric in scenario.metrics if metric.key == plot.metric)
    panels: dict[str, list[Group]] = {}
    for group in found:
        panels.setdefault(_panel(plot, group), []).append(group)
    columns = min(len(panels), 4 if plot.x is None else 2)
    rows = -(-len(panels) // columns)
    height = 3.4 if plot.x is not None else 0.9 + 0.36 * max(len(group.members) for group in found)
    figure, axes = plt.subplots(
        rows, columns, figsize=(max(7.5, 4.6 * columns), 0.7 + height * rows), squeeze=False, sharey=plot.x is not None
    )
    for position, (title, members) in enumerate(panels.items()):
        axis = axes[position // columns][position % columns]
        axis.set_title(title, fontsize=10)
        if plot.x is not None:
            _lines(axis, plot, plot.x, metric, members)
        else:
            _bars(axis, metric, members[0])
    for position in range(len(panels), rows * columns):
        axes[position // columns][position % columns].set_axis_off()
    if plot.x is not None:
        if not plot.log_y:
            axes[0][0].set_ylim(bottom=0)  # all panels share the axis
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncol=min(len(labels), 5), fontsize=8, frameon=False)
    figure.suptitle(scenario.title, fontsize=11)
    figure.tight_layout(rect=(0, 0.06 if plot.x is not None else 0, 1, 1))
    path = directory / f"{scenario.name}-{plot.name}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _panel(plot: Plot, group: Group) -> str:
    if plot.panel is None:
        return group.loop
    value = group.parameters[plot.panel]
    if plot.panel == "load":
        return f"{group.loop}, {'few' if value == 'low' else 'many'} timeouts"
    return f"{group.loop}, {plot.panel} {value:,}" if isinstance(value, int) else f"{group.loop}, {plot.panel}: {value}"


def _lines(axis: Axes, plot: Plot, x: str, metric: Metric, members: list[Group]) -> None:
    numbers = [group.parameters[x] for group in members if group.parameters[x] != UNLIMITED]
    beyond = 2.5 * max(numbers, default=1.0)
    names = dict.fromkeys(name for group in members for name in group.members)
    for number_, name in enumerate(names):
        colour = NAMED.get(name, COLOURS[number_ % len(COLOURS)])
        points = [
            (beyond if group.parameters[x] == UNLIMITED else group.parameters[x], group.spread(name, metric.key))
            for group in members
            if name in group.members
        ]
        xs = [point[0] for point in points]
        axis.plot(
            xs,
            [spread.median for _, spread in points],
            marker="o",
            markersize=4,
            linewidth=2.2 if name == OURS else 1.3,
            linestyle=":" if name == ALONE else "-",
            color=colour,
            label=name,
        )
        axis.fill_between(
            xs, [spread.least for _, spread in points], [spread.most for _, spread in points], color=colour, alpha=0.15
        )
    axis.set_xscale("log")
    if plot.log_y:
        axis.set_yscale("log")
    ticks = sorted({*numbers, *([beyond] if len(numbers) < len(members) else [])})
    axis.set_xticks(ticks, [UNLIMITED if tick == beyond else _short(tick) for tick in ticks], fontsize=7, rotation=30)
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axis.tick_params(axis="y", labelsize=8)
    axis.set_xlabel({"rate": "target rate (1/s)", "pending": "timers pending"}.get(x, x), fontsize=8)
    axis.set_ylabel(f"{metric.label} ({metric.unit})", fontsize=8)
    axis.grid(alpha=0.3)


def _bars(axis: Axes, metric: Metric, group: Group) -> None:
    names = list(group.members)
    spreads = [group.spread(name, metric.key) for name in names]
    middles = [spread.median for spread in spreads]
    errors: Any = [
        [spread.median - spread.least for spread in spreads],
        [spread.most - spread.median for spread in spreads],
    ]
    colours = [COLOURS[0] if name.startswith(OURS) else "#a9b7c0" for name in names]
    bars = axis.barh(names, middles, xerr=errors, color=colours)
    axis.bar_label(bars, [f" {number(middle)}" for middle in middles], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.25 * max([spread.most for spread in spreads] + [1e-9]))
    axis.tick_params(labelsize=8)
    axis.set_xlabel(f"{metric.label} ({metric.unit})" if metric.unit else metric.label, fontsize=8)


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
