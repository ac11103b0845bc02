"""The measured figures, as JSON and as tables of ratios."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Final

from purgatory.bench.case import BEFORE, IN_PYTHON, OURS, Case, Measured, Scenario, find

HOW_MUCH: Final = {"requests", "steps", "waits", "times", "seconds"}
"""The parameters for the amount of work. Groups are told apart by the others."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{number(self.median)} ({number(self.least)} to {number(self.most)})"

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
        shown = {name: value for name, value in self.parameters.items() if name not in HOW_MUCH}
        texts = [f"{name} {value:,}" if isinstance(value, int) else value for name, value in shown.items()]
        return ", ".join([self.loop, *texts])

    def spread(self, implementation: str, metric: str) -> Spread:
        """The spread of one figure of one implementation."""
        return Spread.of([figures[metric] for figures in self.members[implementation].rounds])

    @staticmethod
    def reference(implementation: str) -> str:
        """The implementation it is compared with: ours, or for another core or checkout of it, the same one."""
        same = implementation.removesuffix(BEFORE).removesuffix(IN_PYTHON)
        return OURS if same == implementation else same

    def ratio(self, implementation: str, metric: str) -> Spread | None:
        """The ratio of its figure to ours, round by round; `None` if it is ours, or ours is zero or not measured."""
        if implementation == OURS or OURS not in self.members:
            return None
        ours = self.members[self.reference(implementation)].rounds
        theirs = self.members[implementation].rounds
        ratios = [other[metric] / own[metric] for own, other in zip(ours, theirs, strict=False) if own[metric]]
        return Spread.of(ratios) if ratios else None


def groups(measured: Iterable[Measured]) -> list[Group]:
    """The measured cases of one scenario as groups, in the order of their measurement."""
    finished = [each for each in measured if each.rounds]
    return [
        Group(loop, parameters, {each.case.implementation: each for each in members})
        for (loop, parameters), members in groupby(finished, lambda each: (each.case.loop, dict(each.case.parameters)))
    ]


def table(scenario: Scenario, measured: Iterable[Measured]) -> str:
    """The table of a scenario, a row for each implementation of each group, with its figures and ratios to ours."""
    columns = ["where", "what"]
    for metric in scenario.metrics:
        columns.append(f"{metric.label} ({metric.unit})" if metric.unit else metric.label)
        if metric.compared:
            columns.append("times ours")
    rows = []
    for group in groups(measured):
        for place, implementation in enumerate(group.members):
            row = ["" if place else str(group), implementation]
            for metric in scenario.metrics:
                row.append(number(group.spread(implementation, metric.key).median))
                if metric.compared:
                    row.append(str(group.ratio(implementation, metric.key) or ""))
            rows.append(row)
    return markdown(scenario.title, columns, rows)


def number(value: float) -> str:
    """Return `value` with three significant digits."""
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(title: str, columns: list[str], rows: list[list[str]]) -> str:
    """A table for a document."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join([f"### {title}", "", *("| " + " | ".join(line) + " |" for line in lines)])


def save(path: Path, about: dict[str, Any], measured: dict[str, list[Measured]], missing: dict[str, str]) -> None:
    """Write everything to a JSON file, whole or not at all."""
    content = {
        **about,
        "scenarios": {
            name: {
                "title": find(name).title,
                "metrics": {metric.key: f"{metric.label} ({metric.unit})" for metric in find(name).metrics},
                "cases": [
                    {**asdict(each.case), "rounds": each.rounds, **({"failed": each.failed} if each.failed else {})}
                    for each in cases
                ],
            }
            for name, cases in measured.items()
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
        name: [
            Measured(rounds=case.pop("rounds"), failed=case.pop("failed", None), case=Case(**case))
            for case in scenario["cases"]
        ]
        for name, scenario in content.pop("scenarios").items()
    }
    return content, measured
