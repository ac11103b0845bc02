"""The measured figures, as JSON and as tables of ratios."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from purgatory.bench.case import BEFORE, IN_PYTHON, OURS, Case, Measured, Metric, Scenario
from purgatory.bench.registry import EVERY, find

__all__ = ["Group", "Spread", "Table", "groups", "load", "markdown", "save", "table"]


HOW_MUCH: Final = {"requests", "steps", "waits", "times", "seconds"}
"""The parameters for the amount of work. Groups are told apart by the others."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """The spread of `figures`, one for each round."""
        return cls(median(figures), min(figures), max(figures))


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that are compared with each other: all implementations on one loop, with the same parameters."""

    loop: str
    parameters: dict[str, Any]
    members: dict[str, Measured]

    def __str__(self) -> str:
        parameters = [f"{name} {value:,}" if isinstance(value, int) else f"{value}" for name, value in self.shown()]
        return ", ".join([self.loop, *parameters])

    def shown(self) -> Iterable[tuple[str, Any]]:
        """The parameters that tell it from other groups, without those for the amount of work."""
        return [(name, value) for name, value in self.parameters.items() if name not in HOW_MUCH]

    def spread(self, implementation: str, metric: str) -> Spread:
        """The spread of one figure of one implementation."""
        return Spread.of([figures[metric] for figures in self.members[implementation].rounds])

    @staticmethod
    def reference(implementation: str) -> str:
        """The implementation it is compared with: ours, or for another core or checkout of it, the same one."""
        same = implementation.removesuffix(BEFORE).removesuffix(IN_PYTHON)
        return OURS if same == implementation else same

    def ratio(self, implementation: str, metric: str) -> Spread | None:
        """The ratio of its figure to ours, round by round; `None` if ours is zero."""
        ours = self.members[self.reference(implementation)].rounds
        theirs = self.members[implementation].rounds
        ratios = [other[metric] / own[metric] for own, other in zip(ours, theirs, strict=False) if own[metric]]
        return Spread.of(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class Table:
    """A scenario's figures as text, a row for each implementation of each group."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def groups(measured: Iterable[Measured]) -> list[Group]:
    """The measured cases of one scenario as groups, in the order of their measurement."""
    found: dict[str, Group] = {}
    for each in measured:
        if each.rounds:
            case = each.case
            name = json.dumps([case.loop, case.parameters])
            group = found.setdefault(name, Group(case.loop, dict(case.parameters), {}))
            group.members[case.implementation] = each
    return list(found.values())


def table(scenario: Scenario, measured: Iterable[Measured]) -> Table:
    """The table of a scenario. Figures are medians of all rounds; a compared one has its ratio to ours beside it."""
    columns = ["where", "what"]
    for metric in scenario.metrics:
        columns.append(f"{metric.label} ({metric.unit})" if metric.unit else metric.label)
        if metric.compared:
            columns.append("times ours")
    rows = []
    for group in groups(measured):
        for number, implementation in enumerate(group.members):
            row = ["" if number else str(group), implementation]
            for metric in scenario.metrics:
                row += _cells(group, implementation, metric)
            rows.append(row)
    return Table(scenario.title, columns, rows)


def _cells(group: Group, implementation: str, metric: Metric) -> list[str]:
    cells = [number(group.spread(implementation, metric.key).median)]
    if metric.compared:
        ratio = group.ratio(implementation, metric.key) if OURS in group.members and implementation != OURS else None
        cells.append(f"{number(ratio.median)} ({number(ratio.least)} to {number(ratio.most)})" if ratio else "")
    return cells


def number(value: float) -> str:
    """Return `value` with three significant digits."""
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(table: Table) -> str:
    """The table for a document."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join([f"### {table.title}", "", *("| " + " | ".join(line) + " |" for line in lines)])


def save(path: Path, about: dict[str, Any], measured: dict[str, list[Measured]], missing: dict[str, str]) -> None:
    """Write everything to a JSON file, whole or not at all."""
    content = {
        **about,
        "scenarios": {
            name: {
                "title": find(name).title,
                "metrics": {metric.key: f"{metric.label} ({metric.unit})" for metric in find(name).metrics},
                "cases": [_written(each) for each in cases],
            }
            for name in EVERY
            if (cases := measured.get(name))
        },
        "missing": missing,
    }
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content) + "\n")
    unfinished.replace(path)


def load(path: Path) -> tuple[dict[str, Any], dict[str, list[Measured]]]:
    """Read a file that `save` has written: the description of the run, and the measured cases."""
    content = json.loads(path.read_text())
    measured = {
        name: [_read(case) for case in scenario["cases"]] for name, scenario in content.pop("scenarios").items()
    }
    return content, measured


def _written(measured: Measured) -> dict[str, Any]:
    failed = {} if measured.failed is None else {"failed": measured.failed}
    return {**asdict(measured.case), "rounds": measured.rounds, **failed}


def _read(written: dict[str, Any]) -> Measured:
    rounds, failed = written.pop("rounds"), written.pop("failed", None)
    return Measured(Case(**written), rounds, failed)
