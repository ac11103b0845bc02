"""The report's pictures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from purgatory.spark.configurations import COMPONENTS, ConfigurationChoice, by_timeout, of, settings, which
from purgatory.spark.simulate import OUTCOMES
from purgatory.spark.survival import Floats, TimeoutChoice, rate_at
from purgatory.spark.words import count, figure, name, percent, seconds

__all__ = ["Picture", "configurations", "hottest_keys", "outcomes_over_time", "timeout_rates", "waits_over_time"]

Row: TypeAlias = Mapping[str, Any]

# Okabe and Ito's colours, which the colour-blind can tell apart too.
_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
_GREY: Final = "#767676"
_LINES: Final = (_BLUE, _RED, _GREEN, _PURPLE, _ORANGE, _SKY)
_OUTCOME: Final = dict(zip(OUTCOMES, (_SKY, _BLUE, _RED, _GREY, _ORANGE, _PURPLE), strict=True))
_COMPONENT: Final = dict(zip(COMPONENTS, (_BLUE, _SKY, _GREEN, _ORANGE, _PURPLE), strict=True))
_WAIT: Final = {"wait_p50": _SKY, "wait_p90": _BLUE, "wait_p99": _RED}

_STYLE: Any = {
    "font.family": "DejaVu Sans",  # it comes with matplotlib, so it is always there
    "font.size": 9,
    "text.parse_math": False,  # a name may have dollar signs
    "text.usetex": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "savefig.dpi": 140,
}

_MOST_BARS: Final = 12
_MOST_PANELS: Final = 4


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot that has been written."""

    path: Path
    title: str
    alt: str
    """The picture's content in words, for screen readers."""


def timeout_rates(
    curves: Mapping[tuple[str, str], Mapping[str, Floats]], choices: Sequence[TimeoutChoice], path: Path
) -> Picture:
    """The rate of timeouts by the timeout, with its band and the recommended timeout, for the first few operations."""
    shown = choices[: len(_LINES)]
    drawn = [curves[choice.purgatory, choice.operation] for choice in shown]
    times = np.concatenate([points["time"] for points in drawn])
    rates = np.concatenate([points["timeout_rate"] for points in drawn])
    earliest = min(times[times > 0], default=0.001) / 2
    lowest = min([*rates[rates > 0], *(choice.wanted for choice in shown)]) / 2
    with _figure(path, 4.4) as drawing:
        axis = drawing.subplots()
        axis.set_xscale("log")
        axis.set_yscale("log")
        longest = max(*times, earliest)
        axis.set_xlim(earliest, 2 * longest)
        axis.set_ylim(lowest, 1.3)
        for number, (choice, points, colour) in enumerate(zip(shown, drawn, _LINES, strict=False)):
            label = _label((choice.purgatory, choice.operation))
            # From the left edge, because time 0 is not on the axis.
            begin = rate_at(points, earliest)
            above = points["time"] > 0
            time = np.append(earliest, points["time"][above])
            rate = np.append(begin[0] if begin else points["timeout_rate"][-1:], points["timeout_rate"][above])
            axis.step(time, rate, where="post", color=colour, linewidth=1.6, label=label)
            low, high = points["low"][above], points["high"][above]
            axis.fill_between(time[1:], low, high, step="post", color=colour, alpha=0.2, lw=0)
            if choice.timeout:
                axis.plot(choice.timeout, choice.wanted, "o", color=colour, markersize=7, zorder=5)
                axis.annotate(
                    seconds(choice.timeout),
                    (choice.timeout, choice.wanted),
                    xytext=(6, 6 + 11 * number),
                    textcoords="offset points",
                    color=colour,
                    fontweight="bold",
                )
        for wanted in {choice.wanted for choice in shown}:
            axis.axhline(wanted, color=_GREY, linewidth=1, linestyle="--")
            axis.annotate(
                f"wanted: {percent(wanted)}",
                (0, wanted),
                xycoords=("axes fraction", "data"),
                xytext=(4, 3),
                textcoords="offset points",
                color=_GREY,
            )
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if longest < 500 * earliest else (1,)))
        axis.set_xlabel("timeout")
        axis.set_ylabel("operations that would time out")
        _format(axis, x=seconds, y=percent)
        _legend(axis)
    told = "; ".join(str(choice) for choice in shown)
    return Picture(path, "How many would time out, by the timeout", f"Falling steps, on logarithmic axes. {told}.")


def outcomes_over_time(windows: Sequence[Row], width: float, path: Path) -> Picture:
    """The number of operations in each window, by their outcome, stacked."""
    counts: dict[datetime, dict[str, int]] = {}
    for row in windows:
        window = counts.setdefault(row["start"], dict.fromkeys(OUTCOMES, 0))
        for outcome in OUTCOMES:
            window[outcome] += row[outcome]
    starts = list(counts)
    with _figure(path, 3.2) as drawing:
        axis = drawing.subplots()
        bottom = [0.0] * len(starts)
        for outcome in OUTCOMES:
            rates = [window[outcome] / width for window in counts.values()]
            if any(rates):
                places = [_place(starts[0], start, width) + 0.5 for start in starts]
                axis.bar(places, rates, 1.0, bottom, color=_OUTCOME[outcome], label=_words(outcome))
                bottom = [below + rate for below, rate in zip(bottom, rates, strict=True)]
        axis.set_ylabel("operations a second")
        _format(axis, y=figure)
        _times(axis, starts, width)
        _legend(axis)
    shares = {outcome: sum(window[outcome] for window in counts.values()) for outcome in OUTCOMES}
    told = ", ".join(f"{count(number)} {_words(outcome)}" for outcome, number in shares.items() if number)
    alt = f"Stacked bars for {len(starts)} windows of {seconds(width)}, with from {figure(min(bottom))} to "
    return Picture(path, "Outcomes over time", f"{alt}{figure(max(bottom))} operations a second; in all {told}.")


def waits_over_time(windows: Sequence[Row], operations: Sequence[Row], width: float, path: Path) -> Picture:
    """Percentiles of the waiting time in each window, for the first few of `operations`."""
    shown = [(row["purgatory"], row["operation"]) for row in operations[:_MOST_PANELS]]
    starts = sorted({row["start"] for row in windows})
    told = []
    with _figure(path, 0.8 + 2.3 * len(shown)) as drawing:
        axes = drawing.subplots(len(shown), squeeze=False, sharex=True)
        for (axis,), key in zip(axes, shown, strict=True):
            rows = [row for row in windows if (row["purgatory"], row["operation"]) == key]
            places = [_place(starts[0], row["start"], width) + 0.5 for row in rows]
            for wait, colour in _WAIT.items():
                waits = [row[wait] for row in rows]
                label = f"{wait.removeprefix('wait_p')} %"
                axis.plot(places, waits, "o-", color=colour, markersize=3, linewidth=1.4, label=label)
                told.append(f"{_label(key)}: {label} waited at most {seconds(min(waits))} to {seconds(max(waits))}")
            axis.set_ylim(bottom=0)
            axis.set_title(_label(key), loc="left", fontsize=9)
            axis.set_ylabel("waited at most")
            _format(axis, y=seconds)
        _times(axes[-1][0], starts, width)
        _legend(axes[0][0])
    return Picture(path, "Waiting times over time", f"Lines for each operation. {'; '.join(told)}.")


def hottest_keys(keys: Sequence[Row], path: Path) -> Picture:
    """The number of operations on each key, and of expired ones among them."""
    several = len({row["purgatory"] for row in keys}) > 1
    labels = [
        f"{rank}. {_label((row['purgatory'], row['key'])) if several else _drawable(row['key'], 40)}"
        for rank, row in enumerate(keys, 1)
    ]
    with _figure(path, 1.0 + 0.26 * len(keys)) as drawing:
        axis = drawing.subplots()
        expired = [row["expired"] for row in keys]
        others = [row["operations"] - row["expired"] for row in keys]
        places = range(len(keys))
        axis.barh(places, others, color=_BLUE, label="other outcomes")
        axis.barh(places, expired, left=others, color=_RED, label="expired")
        axis.set_yticks(places, labels, fontsize=8)
        axis.invert_yaxis()
        axis.grid(visible=False, axis="y")
        axis.set_xlabel("operations")
        _format(axis, x=figure)
        _legend(axis)
    first = keys[0]
    hottest = f"{name(first['key'])}, with {count(first['operations'])} operations, {count(first['expired'])} expired"
    alt = f"Bars for {len(keys)} keys, the one with the most operations first: {hottest}."
    return Picture(path, "The keys with the most operations", alt)


def configurations(rows: Sequence[Row], choices: Sequence[ConfigurationChoice], path: Path) -> Picture:
    """The cost of each configuration by component, and the lateness of expired operations, for a few timeouts."""
    panels = [_panel(choice, by_timeout(rows)[choice.timeout]) for choice in choices]
    panels = panels[:_MOST_PANELS]
    sizes = [len(some) for some in panels]
    with _figure(path, sum(0.9 + 0.27 * size for size in sizes)) as drawing:
        axes = drawing.subplots(
            len(panels), 2, squeeze=False, sharex="col", sharey="row", width_ratios=[3, 1.3], height_ratios=sizes
        )
        for (left, right), some, choice in zip(axes, panels, choices, strict=False):
            _costs(left, some, choice)
            _lateness(right, some, choice)
        axes[-1][0].set_xlabel("CPU time an operation (µs)")
        axes[-1][1].set_xlabel("99 % at most so late")
        _legend(axes[0][0])
    told = "; ".join(str(choice) for choice in choices)
    return Picture(
        path, "The costs of the configurations", f"Stacked bars, with points for lateness beside them. {told}."
    )


def _panel(choice: ConfigurationChoice, rows: list[Row]) -> list[Row]:
    """The configurations to draw: the cheapest, and the recommended one, if that is not among them."""
    return rows[:_MOST_BARS] + [row for row in rows[_MOST_BARS:] if of(row) == choice.configuration]


def _costs(axis: Axes, rows: Sequence[Row], choice: ConfigurationChoice) -> None:
    places = range(len(rows))
    left = [0.0] * len(rows)
    for component, colour in _COMPONENT.items():
        widths = [row[f"cost_{component}"] for row in rows]
        axis.barh(places, widths, left=left, color=colour, label=_words(component))
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for place, row in enumerate(rows):
        words = f" {figure(row['cost'])}{'  recommended' if of(row) == choice.configuration else ''}"
        axis.annotate(words, (left[place], place), va="center", fontsize=8)
    axis.set_xlim(0, max([*left, 1e-9, axis.get_xlim()[1] / 1.35]) * 1.35)
    axis.set_yticks(places, [settings(row) for row in rows], fontsize=8)
    for label, row in zip(axis.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if of(row) == choice.configuration else "normal")
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set_title(which(choice.timeout), loc="left", fontsize=9)
    _format(axis, x=figure)


def _lateness(axis: Axes, rows: Sequence[Row], choice: ConfigurationChoice) -> None:
    known = [(place, row["late_p99"]) for place, row in enumerate(rows) if row["late_p99"] is not None]
    axis.plot([late for _, late in known], [place for place, _ in known], "o", color=_BLUE, markersize=5)
    if choice.max_lateness is not None:
        axis.axvline(choice.max_lateness, color=_RED, linestyle="--", linewidth=1)
        axis.set_title(f"allowed: {seconds(choice.max_lateness)}", loc="left", fontsize=9, color=_RED)
    axis.set_xlim(left=0)
    axis.tick_params(axis="y", labelleft=False)
    axis.locator_params(axis="x", nbins=4)
    _format(axis, x=seconds)


@contextmanager
def _figure(path: Path, height: float) -> Iterator[Figure]:
    """A figure of that height in inches, written to `path` at the end of the context."""
    with rc_context(_STYLE):
        drawing = Figure(figsize=(9.2, height), layout="constrained")
        yield drawing
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path)


def _format(axis: Axes, x: Callable[[float], str] | None = None, y: Callable[[float], str] | None = None) -> None:
    """Format the numbers at the axes."""
    for side, words in ((axis.xaxis, x), (axis.yaxis, y)):
        if words is not None:
            side.set_major_formatter(_formatter(words))
            side.set_minor_formatter(NullFormatter())


def _formatter(words: Callable[[float], str]) -> FuncFormatter:
    return FuncFormatter(lambda value, _: words(value))


def _legend(axis: Axes) -> None:
    """Put the legend below the axes. A label that begins with an underscore would be left out."""
    handles, labels = axis.get_legend_handles_labels()
    drawing = axis.get_figure(root=True)
    assert drawing is not None, "axes are somewhere"
    columns = 2 if max(map(len, labels)) > 24 else 6
    drawing.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), columns), fontsize=8)


def _place(first: datetime, start: datetime, width: float) -> float:
    """The place of a window on the axis: the number of windows since the first."""
    return (start - first) / timedelta(seconds=width)


def _times(axis: Axes, starts: Sequence[datetime], width: float) -> None:
    """Label the axis with the start of a few windows."""
    last = round(_place(starts[0], starts[-1], width))
    places = range(0, last + 1, last // 7 + 1)
    shown = [starts[0] + timedelta(seconds=width * place) for place in places]
    days = len({each.date() for each in (starts[0], starts[-1])}) > 1
    clock = "%H:%M:%S.%f" if width < 1 else "%H:%M:%S" if width < 60 else "%H:%M"
    labels = [each.strftime(f"%d %b\n{clock}" if days else clock) for each in shown]
    axis.set_xticks(places, [label[:-3] if width < 1 else label for label in labels], fontsize=8)
    axis.set_xlim(-0.5, last + 1.5)
    axis.set_xlabel(f"arrival in UTC, from {starts[0]:%Y-%m-%d}, in windows of {seconds(width)}")


def _label(names: tuple[str, str]) -> str:
    """The label of an operation or a key. It begins with a space: matplotlib leaves out labels with a leading `_`."""
    return f" {_drawable(names[0], 24)} / {_drawable(names[1], 24)}"


def _drawable(text: str, longest: int) -> str:
    """`text` shortened, with a box for each character that the font does not have."""
    return "".join(each if ord(each) in _charmap() else "▯" for each in name(text, longest))


@cache
def _charmap() -> Mapping[int, int]:
    return font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap()


def _words(column: str) -> str:
    return column.replace("_", " ")
