"""The report as a page: one file that holds everything and loads nothing."""

import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from purgatory.spark import configurations
from purgatory.spark.configurations import COMPONENTS, ConfigurationChoice
from purgatory.spark.plots import Picture
from purgatory.spark.simulate import OUTCOMES
from purgatory.spark.survival import Floats, TimeoutChoice, rate_at
from purgatory.spark.tables import WAITS
from purgatory.spark.trace import Part, Trace
from purgatory.spark.words import count, figure, name, percent, seconds

__all__ = ["Cells", "advice", "chosen", "cost", "counted", "overview", "rates", "render"]

Row: TypeAlias = Mapping[str, Any]

_MOST_TIMEOUTS: Final = 10

_EVENTS: Final = 10
"""The timeouts that are expected, at the least, of enough operations: their number then varies by a third."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A table as text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int
    """The number of columns with names, on the left; the others have numbers."""
    more: str = ""
    """A sentence about the rows that are not shown."""


def render(path: Path, **content: Any) -> None:
    """Write the page with `content` to `path`. The pictures become part of it."""
    # No value is marked as safe: all values of a trace are text.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(embedded=_embedded, name=name)
    path.write_text(environment.get_template("page.html.jinja").render(content), encoding="utf-8")


def overview(trace: Trace, parts: Sequence[Part]) -> dict[str, str]:
    """The overview of the trace."""
    first, last = (datetime.fromtimestamp(at / 1e6, UTC) for at in _span(parts))
    return {
        "operations": count(sum(part.operations for part in parts)),
        "instances": count(len({part.instance for part in parts})),
        "purgatories": count(len({part.purgatory for part in parts})),
        "files": count(trace.files),
        "first arrival": f"{first:%Y-%m-%d %H:%M:%S} UTC",
        "last arrival": f"{last:%Y-%m-%d %H:%M:%S} UTC",
    }


def counted(rows: Sequence[Row], labels: Mapping[str, str], total: int | None = None) -> Cells:
    """Outcomes and waits; `labels` are the columns before them, and their titles."""
    columns = [*labels.values(), "operations", *(outcome.replace("_", " ") for outcome in OUTCOMES), "expired share"]
    columns += [f"{wait.removeprefix('wait_p')} % waited at most" for wait in WAITS] + ["longest wait"]
    cells = [
        [
            *(_label(row[label]) for label in labels),
            *(count(row[column]) for column in ("operations", *OUTCOMES)),
            percent(row["expired_share"]),
            *(seconds(row[column]) for column in (*WAITS, "wait_max")),
        ]
        for row in rows
    ]
    return Cells(columns, cells, len(labels), _more(len(rows), total))


def chosen(choices: Sequence[TimeoutChoice], total: int) -> Cells:
    """Recommended timeouts."""
    columns = ["purgatory", "operation", "recommended timeout", "if the rate is at the low, high end of the band"]
    columns += ["longest observed", "time out then"]
    rows = [
        [
            name(each.purgatory),
            name(each.operation),
            _seconds(each.timeout, "not reachable"),
            f"{_seconds(each.earliest, 'unknown')} to {_seconds(each.latest, 'unknown')}",
            seconds(each.longest),
            percent(each.rate_at_longest),
        ]
        for each in choices
    ]
    return Cells(columns, rows, 2, _more(len(rows), total))


def advice(choices: Sequence[TimeoutChoice], outcomes: Sequence[Row]) -> list[str]:
    """The way to an answer for each operation for which the trace has too little of its traffic."""
    operations = {(row["purgatory"], row["operation"]): row["operations"] for row in outcomes}
    advised = []
    for each in choices:
        had, needed = operations[each.purgatory, each.operation], math.ceil(_EVENTS / each.wanted)
        if had < needed:
            text = (
                f"{count(had)} operations are few for a rate of {percent(each.wanted)}: record about {count(needed)}, "
                f"{figure(needed / had)} times as much traffic, or ask for a higher rate with --timeout-rate"
            )
        elif each.timeout is None and each.longest > 0:  # otherwise the reason tells
            text = (
                f"no operation was observed for longer than {seconds(each.longest)}: record some traffic with a longer "
                "timeout, or ask for a higher rate with --timeout-rate"
            )
        else:
            continue
        advised.append(f"{name(each.purgatory)} / {name(each.operation)}: {text}.")
    return advised


def rates(curves: Mapping[tuple[str, str], Mapping[str, Floats]], choices: Sequence[TimeoutChoice]) -> Cells:
    """The estimated rate, with its band, for timeouts that are round numbers."""
    longest = max((each.longest for each in choices), default=0.0)
    timeouts = [timeout for timeout in _round_numbers() if timeout <= longest * 2.5][-_MOST_TIMEOUTS:]
    rows = []
    for each in choices:
        points = curves[each.purgatory, each.operation]
        found = [_rate(rate_at(points, timeout)) for timeout in timeouts]
        rows.append([name(each.purgatory), name(each.operation), *found])
    return Cells(["purgatory", "operation", *map(seconds, timeouts)], rows, 2)


def cost(rows: Sequence[Row], choices: Sequence[ConfigurationChoice]) -> Cells:
    """The costs and counts of a replay's configurations."""
    columns = ["timeout", "configuration", "µs an operation", *(f"of it {_words(each)}" for each in COMPONENTS)]
    columns += ["not compared: inserts", "99 % at most so late", "latest", "most dead entries", "most pending"]
    columns += ["expired", "unknown end"]
    recommended = {each.configuration for each in choices}
    cells = [
        [
            "as recorded" if row["timeout"] is None else seconds(row["timeout"]),
            configurations.settings(row) + (": recommended" if configurations.of(row) in recommended else ""),
            figure(row["cost"]),
            *(figure(row[f"cost_{each}"]) for each in (*COMPONENTS, "inserts")),
            _seconds(row["late_p99"], ""),
            _seconds(row["late_max"], ""),
            *(count(row[each]) for each in ("peak_dead", "peak_delayed", "expired", "unknown")),
        ]
        for row in rows
    ]
    return Cells(columns, cells, 2)


def _embedded(picture: Picture) -> str:
    return f"data:image/png;base64,{b64encode(picture.path.read_bytes()).decode()}"


def _span(parts: Sequence[Part]) -> tuple[int, int]:
    return min(part.first for part in parts), max(part.last for part in parts)


def _label(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S.%f}"[:-3] if isinstance(value, datetime) else name(value)


def _seconds(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else seconds(value)


def _rate(found: tuple[float, float, float] | None) -> str:
    if found is None:
        return "unknown"
    rate, low, high = found
    return percent(rate) if math.isnan(low) else f"{percent(rate)} ({figure(100 * low)} to {figure(100 * high)})"


def _round_numbers() -> Iterable[float]:
    return [digit * 10.0**power for power in range(-6, 8) for digit in (1, 2, 5)]


def _words(column: str) -> str:
    return column.replace("_", " ")


def _more(shown: int, total: int | None) -> str:
    return f"The first {count(shown)} of {count(total)}." if total is not None and total > shown else ""
