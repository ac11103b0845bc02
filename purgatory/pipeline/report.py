"""The report on a cube: a page that begins with the answers, and everything as tables."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from purgatory.pipeline import answers, plots
from purgatory.pipeline.answers import Frame, Kind
from purgatory.pipeline.cube import refused
from purgatory.pipeline.estimate import EDGES, Estimate
from purgatory.pipeline.verdicts import Verdict, verdicts
from purgatory.pipeline.words import count, figure, kind_name, name, percent, seconds
from purgatory.spark.errors import PipelineError

_SIZE: Final = 171
"""Bytes of a pending operation of the core in C."""
_KINDS, _KEYS = 6, 8
"""How many operations, and keys of a purgatory, the page shows. The tables have all."""
_LONGER: Final = 10
"""A timeout that nothing is known of is looked for at this many times the longest one."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report that has been written."""

    page: Path
    advice: dict[Kind, str]
    """The answer for each operation, in words."""
    verdicts: list[Verdict]


def check(output: str, timeout_rate: float) -> Path:
    """Make the directory. Raises `PipelineError` if that has anything in it, and for a share that is none."""
    if not 0 < timeout_rate < 1:
        raise PipelineError(f"timeout-rate must be a share between 0 and 1, not {timeout_rate!r}")
    directory = Path(output)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_empty = not any(directory.iterdir())
    except OSError as error:
        raise PipelineError(f"{directory} cannot be used: {error.strerror}") from None
    if not is_empty:
        raise PipelineError(f"{directory} exists already, and is not an empty directory: name another one")
    return directory


def report(table: pa.Table, output: str, timeout_rate: float = 0.01, compare: date | None = None) -> Report:
    """Write the report on a cube to the directory `output`, which is empty or missing.

    `timeout_rate` is the share of operations that may expire, and `compare` the day to compare the newest one with.
    Raises `PipelineError`.
    """
    directory = check(output, timeout_rate)
    left_out = refused(table)
    rows = answers.rows_of(table)
    if rows.empty:
        raise PipelineError("there are no operations in these days")
    days = sorted(set(rows["day"]))
    if compare is not None and (compare not in days or compare == days[-1]):
        earlier = ", ".join(map(str, days[:-1][-10:])) or "none"
        raise PipelineError(f"compare must be an earlier day that has operations, not {compare}: there are {earlier}")
    hottest = answers.keys(table)
    found = answers.estimates(rows, timeout_rate)
    said = verdicts(rows, hottest, timeout_rate, None if compare is None else (days[-1], compare))
    advice = {kind: _advice(of_kind(rows, kind), estimate, timeout_rate) for kind, estimate in found.items()}
    ladders = {
        kind: answers.ladder(of_kind(rows, kind), estimate) for kind, estimate in found.items() if estimate is not None
    }
    summary = answers.operations(rows, "purgatory", "operation").set_index(["purgatory", "operation"])
    load = answers.pending(rows)
    tables = {
        "advice": _advised(found, timeout_rate),
        "ladder": pd.DataFrame(
            [{"purgatory": kind[0], "operation": kind[1], **asdict(rung)} for kind in ladders for rung in ladders[kind]]
        ),
        "rates": _rates(found),
        "operations": summary.reset_index(),
        "instances": answers.operations(rows, "purgatory", "operation", "instance"),
        "days": answers.operations(rows.assign(day=rows["day"].astype(str)), "day", "purgatory", "operation"),
        "load": load.assign(start=pd.to_datetime(load["start"], unit="us", utc=True)),
        "keys": hottest,
        "verdicts": pd.DataFrame([asdict(each) for each in said]),
        "refused": pd.DataFrame({"instance": list(left_out), "operations": list(left_out.values())}),
    }
    for title, each in tables.items():
        path = directory / "tables" / title
        path.mkdir(parents=True)
        pq.write_table(pa.Table.from_pandas(each, preserve_index=False), path / f"{title}.parquet", compression="zstd")
    page = directory / "index.html"
    span = answers.duration(rows)
    content = {
        "about": _about(rows, left_out),
        "verdicts": said,
        "timeout_rate": percent(timeout_rate),
        "kinds": [
            {
                "name": kind_name(kind),
                "advice": advice[kind],
                "small": _small(found[kind]),
                "rungs": [_rung(rung) for rung in ladders.get(kind, ())],
                "plot": _plot(found[kind]),
            }
            for kind in list(found)[:_KINDS]
        ],
        "more": len(found) - _KINDS,
        "load": [_loaded(kind, summary.loc[kind], of_kind(rows, kind), span) for kind in list(found)[:_KINDS]],
        "pending": plots.load(load),
        "days": _days(rows, compare, days[-1], list(found)[:_KINDS]) if compare else None,
        "keys": _keys(hottest),
    }
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.write_text(environment.get_template("page.html.jinja").render(content), encoding="utf-8")
    return Report(page, advice, said)


def of_kind(rows: Frame, kind: Kind) -> Frame:
    """The rows of one kind of operation."""
    return rows[(rows["purgatory"] == kind[0]) & (rows["operation"] == kind[1])]


def _advice(rows: Frame, found: Estimate | None, timeout_rate: float) -> str:
    used = answers.longest_timeout(rows)
    if found is None:
        longest = max(used or 0.0, float(rows["wait_max"].max()))
        return (
            f"No answer yet: slow operations of the last {seconds(longest)} may have no row yet, and the journal is no "
            "longer than that. Record for ten times as long."
        )
    if found.reason is None and found.safe is not None:
        share = percent(timeout_rate)
        days = rows["day"].nunique()
        recorded = "this one" if days == 1 else f"these {days}"
        return (
            f"{seconds(found.safe)}. With this timeout at most {share} expire, with a probability of 90 % if the days "
            f"ahead are like {recorded}."
        )
    last = float(found.rates[-1])
    longest = float(EDGES[len(found.rates) - 1]) if used is None else used
    until, longer = seconds(longest), seconds(longest * _LONGER)
    if found.reason == "unreached":
        return (
            f"{percent(last)} still expire at {until}, the longest timeout in use: raise that to {longer} for an "
            "hour, and report again."
        )
    if found.reason == "strata":
        return (
            "No answer: operations with short timeouts end differently from those with long ones, so what they "
            f"would do later is unknown. Give all of them a timeout of {longer} for an hour, and report again."
        )
    about = f" It is about {seconds(found.timeout)}." if found.timeout else ""
    return (
        f"Too few operations last that long, or all of them do at the same time.{about} Record for ten times as long."
    )


def _small(found: Estimate | None) -> str:
    if found is None or found.timeout is None:
        return ""
    low = seconds(found.earliest) if found.earliest else "unknown"
    high = f"to {seconds(found.latest)}" if found.latest else "and longer"
    total = count(found.total)
    return (
        f"The estimate is {seconds(found.timeout)}, its 95 % band {low} {high}. {total} operations tell as much as "
        f"{count(min(found.effective, found.total))} that end independently."
    )


def _advised(found: dict[Kind, Estimate | None], timeout_rate: float) -> Frame:
    rows = [
        {
            "purgatory": kind[0],
            "operation": kind[1],
            "timeout_s": each.safe if each else None,
            "low_s": each.earliest if each else None,
            "high_s": each.latest if each else None,
            "rate": timeout_rate,
            "estimate_s": each.timeout if each else None,
            "reason": "unsettled" if each is None else each.reason,
        }
        for kind, each in found.items()
    ]
    frame = pd.DataFrame(rows)
    columns = ["timeout_s", "low_s", "high_s", "estimate_s"]
    return frame.astype(dict.fromkeys(columns, "float64"))


def _rates(found: dict[Kind, Estimate | None]) -> Frame:
    some = [
        pd.DataFrame(
            {
                "purgatory": kind[0],
                "operation": kind[1],
                "timeout_s": EDGES[: len(each.rates)],
                "rate": each.rates,
                "low": each.low,
                "high": each.high,
            }
        )
        for kind, each in found.items()
        if each is not None
    ]
    columns = ["purgatory", "operation", "timeout_s", "rate", "low", "high"]
    return pd.concat(some) if some else pd.DataFrame(columns=columns)


def _about(rows: Frame, left_out: dict[str, int]) -> dict[str, str]:
    first, last = (datetime.fromtimestamp(rows["arrived"].agg(each) / 1e6, UTC) for each in ("min", "max"))
    about = {
        "operations": count(rows["operations"].sum()),
        "instances": count(rows["instance"].nunique()),
        "from": f"{first:%Y-%m-%d %H:%M:%S} UTC",
        "to": f"{last:%Y-%m-%d %H:%M:%S} UTC",
    }
    if left_out:
        ahead = ", ".join(f"{count(number)} of {name(instance)}" for instance, number in left_out.items())
        about["left out, as their clock is ahead"] = ahead
    return about


def _plot(found: Estimate | None) -> str:
    return "" if found is None or len(found.rates) < 2 else plots.rates(found)


def _rung(rung: answers.Rung) -> dict[str, Any]:
    return {
        "timeout": seconds(rung.timeout),
        "note": "advised" if rung.is_safe else "in use" if rung.is_used else "",
        "is_safe": rung.is_safe,
        "rate": percent(rung.rate),
        "band": f"{figure(100 * rung.low)} to {figure(100 * rung.high)}",
        "satisfied": percent(rung.satisfied),
        "left": percent(rung.left),
        "failed": percent(rung.failed),
        "empty": figure(rung.empty_answers),
        "pending": figure(rung.pending),
        "memory": _bytes(_SIZE * rung.pending),
    }


def _loaded(kind: Kind, row: Any, rows: Frame, span: float) -> Sequence[str]:
    load = answers.pending(rows)
    return [
        kind_name(kind),
        figure(row["operations"] / span),
        figure(rows["wait_sum"].sum() / span),
        count(load["pending"].max()),
        _bytes(_SIZE * float(load["pending"].max())),
        percent(row["expired_share"]),
        seconds(row["wait_p50_s"]),
        seconds(row["wait_p90_s"]),
        seconds(row["late_max_s"]) if row["expired"] else "none",
    ]


def _days(rows: Frame, before: date, today: date, shown: Sequence[Kind]) -> list[list[str]]:
    cells = []
    for kind in shown:
        for day in (before, today):
            some = of_kind(rows[rows["day"] == day], kind)
            if len(some):
                row = answers.operations(some, "purgatory", "operation").iloc[0]
                cells.append([str(day), *_loaded(kind, row, some, answers.duration(some))])
    return cells


def _keys(hottest: Frame) -> list[list[str]]:
    several = hottest["purgatory"].nunique() > 1
    return [
        [
            f"{name(row['purgatory'])} / {name(row['key'])}" if several else name(row["key"]),
            *(count(row[each]) for each in ("operations", "expired", "missed")),
        ]
        for _, some in hottest.groupby("purgatory")
        for row in some.head(_KEYS).to_dict("records")
    ]


def _bytes(number: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{figure(number / size)} {unit}"
    return f"{figure(number)} B"
