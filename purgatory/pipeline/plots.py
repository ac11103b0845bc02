"""The report's pictures: SVG in the colours of the page, which has a dark mode."""

import io
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from purgatory.pipeline.answers import Frame, hours, load, processes
from purgatory.pipeline.estimate import EDGES, Estimate
from purgatory.pipeline.words import figure, name, percent, seconds

_TEXT, _SOFT, _LINE, _ACCENT, _BAD = "#010203", "#010204", "#010205", "#010206", "#010207"
_VARIABLES: Final = {_TEXT: "--text", _SOFT: "--soft", _LINE: "--line", _ACCENT: "--accent", _BAD: "--bad"}
"""Colours that stand for variables of the page."""

_INSTANCES: Final = 8
"""The most instances in a picture: those that were slowest at some time."""
_SLOW: Final = 2.0
"""How many times as long as usual a wait is that is painted as slow."""

_STYLE: Final[Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": _SOFT,
    "axes.grid": True,
    "axes.labelcolor": _SOFT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": _LINE,
    "svg.fonttype": "none",
    "text.color": _TEXT,
    "text.parse_math": False,  # a name may have dollar signs
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
}


@rc_context(_STYLE)
def rates(found: Estimate) -> str:
    """The share of operations that expires by the timeout, with its band, the wanted share and the advice."""
    times = EDGES[: len(found.rates)]
    first = int(np.flatnonzero(found.rates > 0.97)[-1]) if (found.rates > 0.97).any() else 0
    shown = slice(min(first, len(times) - 2), None)
    picture, axis = _picture()
    axis.set_xscale("log")
    axis.fill_between(times[shown], found.low[shown], found.high[shown], color=_ACCENT, alpha=0.25, lw=0)
    axis.plot(times[shown], found.rates[shown], color=_ACCENT, linewidth=1.8)
    axis.axhline(found.timeout_rate, color=_SOFT, linewidth=1, linestyle="--")
    if found.safe is not None:
        axis.plot(found.safe, found.timeout_rate, "o", color=_BAD, markersize=6, zorder=5)
        axis.annotate(
            seconds(found.safe),
            (found.safe, found.timeout_rate),
            xytext=(5, 6),
            textcoords="offset points",
            color=_BAD,
            fontweight="bold",
        )
    axis.set_ylim(0, 1)
    axis.set_xlabel("timeout")
    axis.set_ylabel("share that expires")
    decades = np.log10(times[-1] / times[shown][0])
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,), numticks=12))
    _format(axis.xaxis, seconds)
    _format(axis.yaxis, percent)
    return _svg(picture)


@rc_context(_STYLE)
def day(rows: Frame, table: pa.Table) -> str:
    """The time that was recorded at a glance: what was pending, arrivals, expiries, and the waits of each instance."""
    first, last = int(rows["arrived"].min()), int((rows["arrived"] + rows["slot"]).max())
    waits = hours(rows, "instance").groupby(["instance", "hour", "length"])["ratio"].max().reset_index()
    shown = list(waits.groupby("instance")["ratio"].max().sort_values(ascending=False).index[:_INSTANCES])
    picture = Figure(figsize=(5.0, 2.4 + 0.22 * len(shown)), layout="constrained")
    above, strip = picture.subplots(2, 1, sharex=True, height_ratios=(4, 0.6 + 0.5 * len(shown)))
    slots = load(table, rows)
    times = slots["start"] / 1e6
    above.fill_between(times, slots["pending"], color=_ACCENT, alpha=0.2, lw=0, step="post", label="pending, peak")
    above.step(times, slots["pending_mean"], color=_ACCENT, where="post", label="pending, mean")
    above.step(times, slots["arrivals"] / slots["slot_s"], color=_TEXT, lw=0.8, where="post", label="arrivals a second")
    above.step(times, slots["expired"] / slots["slot_s"], color=_BAD, lw=0.8, where="post", label="expired a second")
    above.set_ylim(bottom=0)
    above.legend(frameon=False, fontsize=8, loc="upper left", ncols=2, bbox_to_anchor=(0, 1.38))
    _format(above.yaxis, figure)
    for place, instance in enumerate(shown):
        for each in waits[waits["instance"] == instance].to_dict("records"):
            is_slow = each["ratio"] >= _SLOW
            alpha = min(1.0, 0.12 + 0.28 * max(0.0, float(np.log2(max(each["ratio"], 1e-9)))))
            begin, length = each["hour"] / 1e6, each["length"] / 1e6
            strip.barh(place, length, 0.85, begin, align="edge", color=_BAD if is_slow else _ACCENT, alpha=alpha, lw=0)
    restarts = processes(rows)
    for row in restarts[restarts["is_restart"] & restarts["instance"].isin(shown)].to_dict("records"):
        place = shown.index(row["instance"])
        strip.plot([row["opened"].timestamp()] * 2, [place, place + 0.85], color=_TEXT, lw=1.5)
    strip.set_yticks([place + 0.42 for place in range(len(shown))], [name(each, 14) for each in shown], fontsize=8)
    strip.set_ylim(len(shown), 0)
    strip.grid(visible=False)
    strip.set_xlim(first / 1e6, last / 1e6)
    strip.xaxis.set_major_locator(MaxNLocator(4))
    days = first // 86_400_000_000 != (last - 1) // 86_400_000_000
    whole = last - first >= 600_000_000
    clock = ("%d %b %H:%M" if whole else "%d %b %H:%M:%S") if days else ("%H:%M" if whole else "%H:%M:%S")
    _format(strip.xaxis, lambda at: datetime.fromtimestamp(at, UTC).strftime(clock))
    return _svg(picture)


def _picture() -> tuple[Figure, Axes]:
    """A picture that is as wide as the page of a phone, and its axes."""
    picture = Figure(figsize=(5.0, 2.7), layout="constrained")
    return picture, picture.subplots()


def _svg(picture: Figure) -> str:
    """The picture for the page."""
    file = io.StringIO()
    picture.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    # Several pictures are in one page: each has names of its own.
    own = f"{abs(hash(text)):x}"
    return re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{own}-", text)


def _format(axis: Axis, words: Callable[[float], str]) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, place: words(value)))
    axis.set_minor_formatter(NullFormatter())
