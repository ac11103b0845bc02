"""The summary of a run: the cost of ours in the largest cases, and the ratio of each alternative's cost to it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from purgatory.bench.case import OURS, Measured
from purgatory.bench.registry import find
from purgatory.bench.report import Spread, Table, groups, number

__all__ = ["Line", "lines", "summary"]


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of ours, and the ratio of each alternative's to it."""

    what: str
    ours: str
    ratios: dict[str, Spread]


def lines(measured: Mapping[str, Iterable[Measured]]) -> Iterator[Line]:
    """The figures that are compared, of the largest cases of each scenario, on the first of its loops."""
    for name, cases in measured.items():
        scenario = find(name)
        found = [group for group in groups(cases) if OURS in group.members]
        found = [group for group in found if group.loop == found[0].loop]
        for group in found[-scenario.largest :]:
            for metric in filter(lambda metric: metric.compared, scenario.metrics):
                ratios = {name: group.ratio(name, metric.key) for name in group.members if name != OURS}
                named = {name.replace(OURS, "ours"): ratio for name, ratio in ratios.items() if ratio is not None}
                ours = f"{number(group.spread(OURS, metric.key).median)} {metric.unit}"
                yield Line(f"{metric.label} ({group})", ours, named)


def summary(measured: Mapping[str, Iterable[Measured]]) -> Table:
    """The summary as a table."""
    rows = [[line.what, line.ours, ", ".join(map(_cell, line.ratios.items()))] for line in lines(measured)]
    return Table("Summary", ["", "purgatory", "times that, beside it (least to most of the rounds)"], rows)


def _cell(of: tuple[str, Spread]) -> str:
    name, ratio = of
    return f"{name} **{_times(ratio.median)}** ({_times(ratio.least)} to {_times(ratio.most)})"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"
