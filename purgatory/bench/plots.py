"""Pictures of the measured figures: bars for each scenario, and the headlines in one."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from purgatory.bench.case import OURS, Measured, Metric, Plot, Scenario
from purgatory.bench.report import Group, groups, number
from purgatory.bench.summary import lines

__all__ = ["draw", "draw_overview"]

COLOURS: Final = ("#d1495b", "#edae49", "#66a182", "#8d6a9f", "#7a7a7a", "#2e4057", "#b0713a", "#5aa9c7")


plt.switch_backend("Agg")  # files, no windows


def draw(scenario: Scenario, measured: Iterable[Measured], directory: Path) -> None:
    """Draw the scenario's plots into `directory`: a panel for each group, with a bar for each implementation."""
    found = groups(measured)
    for plot in scenario.plots if found else ():
        _draw(scenario, plot, found, directory)


def _draw(scenario: Scenario, plot: Plot, found: list[Group], directory: Path) -> None:
    metric = next(metric for metric in scenario.metrics if metric.key == plot.metric)
    columns = min(len(found), 4)
    rows = -(-len(found) // columns)
    height = 0.9 + 0.36 * max(len(group.members) for group in found)
    size = (max(7.5, 4.6 * columns), 0.7 + height * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    for axis, group in zip(axes.flat, found, strict=False):
        axis.set_title(str(group), fontsize=10)
        _bars(axis, metric, group)
    figure.suptitle(scenario.title, fontsize=11)
    figure.tight_layout()
    figure.savefig(directory / f"{scenario.name}-{plot.name}.png", dpi=110)
    plt.close(figure)


def _bars(axis: Axes, metric: Metric, group: Group) -> None:
    names = list(group.members)
    spreads = [group.spread(name, metric.key) for name in names]
    middles = [spread.median for spread in spreads]
    errors: Any = [
        [spread.median - spread.least for spread in spreads],
        [spread.most - spread.median for spread in spreads],
    ]
    bars = axis.barh(names, middles, xerr=errors, color=["#0b6e99" if OURS in name else "#a9b7c0" for name in names])
    axis.bar_label(bars, [f" {number(middle)}" for middle in middles], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.25 * max([spread.most for spread in spreads] + [1e-9]))
    axis.tick_params(labelsize=8)
    axis.set_xlabel(f"{metric.label} ({metric.unit})" if metric.unit else metric.label, fontsize=8)


def draw_overview(measured: Mapping[str, Iterable[Measured]], loop: str, directory: Path) -> None:
    """Draw the headlines: the ratio of each alternative's cost to ours, with its spread."""
    shown = [line for line in lines(measured, loop) if line.ratios]
    if not shown:
        return
    figure, axis = plt.subplots(figsize=(9.2, 1.3 + 0.34 * len(shown)))
    axis.axvline(1, color="black", linewidth=1)
    for position, name in enumerate(dict.fromkeys(name for line in shown for name in line.ratios)):
        points = [(place, line.ratios[name]) for place, line in enumerate(shown) if name in line.ratios]
        errors: Any = [
            [ratio.median - ratio.least for _, ratio in points],
            [ratio.most - ratio.median for _, ratio in points],
        ]
        axis.errorbar(
            [ratio.median for _, ratio in points],
            [place for place, _ in points],
            xerr=errors,
            fmt="osD^vPX*"[position % 8],
            color=COLOURS[position % len(COLOURS)],
            label=name,
        )
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else ""))
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.set_title("Times what ours takes, with the spread over the rounds", fontsize=11)
    axis.set_yticks(range(len(shown)), [f"{line.what}  ({line.ours})" for line in shown], fontsize=8)
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
    axis.set_xlabel(f"times what ours takes, on {loop}; right of the line ours takes less", fontsize=8)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(directory / f"overview-{loop}.png", dpi=110, bbox_inches="tight")
    plt.close(figure)
