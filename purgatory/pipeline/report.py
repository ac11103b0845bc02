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

from purgatory.pipeline import again, answers, plots
from purgatory.pipeline.again import Clients, World
from purgatory.pipeline.answers import Frame, Kind, Rung, processes
from purgatory.pipeline.cube import joined, refused
from purgatory.pipeline.estimate import EDGES, INDEPENDENT, Estimate
from purgatory.pipeline.verdicts import Verdict, verdicts
from purgatory.pipeline.words import count, figure, kind_name, name, percent, seconds
from purgatory.spark.errors import PipelineError

CLIENT: Final = 797
"""Bytes of a waiting HTTP client on `purgatory.uvicorn` and uvloop, with its connection and its operation."""
REQUEST: Final = 51.5e-6
"""Seconds of CPU of an HTTP request there."""
_KINDS, _KEYS = 6, 8
"""How many operations, and keys of a purgatory, the page shows. The tables have all."""
_STARTS: Final = 6
"""How many restarts it shows."""
_MISSED: Final = 0.001
"""The share of operations without a check from which on the advice says that it would be another with it."""
_SHORTER: Final = 40
"""The shorter timeout that an advice names is so many times shorter."""
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


def report(
    table: pa.Table,
    output: str,
    timeout_rate: float = 0.01,
    compare: date | None = None,
    after_expiry: World | None = None,
) -> Report:
    """Write the report on a cube to the directory `output`, which is empty or missing.

    `timeout_rate` is the share of operations that may expire, and `compare` the day to compare the newest one with.
    `after_expiry` says what clients do after an answer, instead of the journal. Raises `PipelineError`.
    """
    directory = check(output, timeout_rate)
    if "file" not in table.column_names:
        table = joined([table])
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
    clients = {kind: Clients.of(table, of_kind(rows, kind), kind, after_expiry) for kind in found}
    patient = {kind for kind, each in clients.items() if each.world == "ask-again"}
    said = verdicts(rows, hottest, timeout_rate, None if compare is None else (days[-1], compare), patient)
    ladders = {kind: _ladders(of_kind(rows, kind), estimate, clients[kind]) for kind, estimate in found.items()}
    advice = {
        kind: _advice(of_kind(rows, kind), estimate, timeout_rate, clients[kind], ladders[kind])
        + _missed(of_kind(rows, kind))
        for kind, estimate in found.items()
    }
    summary = answers.operations(rows, "purgatory", "operation").set_index(["purgatory", "operation"])
    load = answers.load(table, rows)
    tables = {
        "advice": _advised(found, timeout_rate),
        "ladder": pd.DataFrame(
            [
                {"purgatory": kind[0], "operation": kind[1], **asdict(rung)}
                for kind, some in ladders.items()
                for rungs in some
                for rung in rungs
            ]
        ),
        "rates": _rates(found),
        "operations": summary.reset_index(),
        "instances": answers.operations(rows, "purgatory", "operation", "instance"),
        "days": answers.operations(rows.assign(day=rows["day"].astype(str)), "day", "purgatory", "operation"),
        "load": load.assign(start=pd.to_datetime(load["start"], unit="us", utc=True)),
        "keys": hottest,
        "processes": processes(rows),
        "verdicts": pd.DataFrame([asdict(each) for each in said]),
        "refused": pd.DataFrame({"instance": list(left_out), "operations": list(left_out.values())}),
    }
    for title, each in tables.items():
        path = directory / "tables" / title
        path.mkdir(parents=True)
        pq.write_table(pa.Table.from_pandas(each, preserve_index=False), path / f"{title}.parquet", compression="zstd")
    page = directory / "index.html"
    content = {
        "about": _about(rows, left_out),
        "verdicts": said,
        "timeout_rate": percent(timeout_rate),
        "kinds": [
            {
                "name": kind_name(kind),
                "advice": advice[kind],
                "small": _small(found[kind], clients[kind], of_kind(rows, kind)),
                "ladders": [_shown(rungs) for rungs in ladders[kind] if rungs],
                "plot": _plot(found[kind]) if clients[kind].world != "ask-again" else "",
            }
            for kind in list(found)[:_KINDS]
        ],
        "more": len(found) - _KINDS,
        "load": [_loaded(kind, summary.loc[kind], of_kind(rows, kind), table) for kind in list(found)[:_KINDS]],
        "step": seconds(answers.pending(table).step / 1e6),
        "day": plots.day(rows, table),
        "starts": _starts(rows),
        "days": _days(rows, table, compare, days[-1], list(found)[:_KINDS]) if compare else None,
        "keys": _keys(hottest),
        "client": count(CLIENT),
        "request": seconds(REQUEST),
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


def _ladders(rows: Frame, found: Estimate | None, clients: Clients) -> list[list[Rung]]:
    """What timeouts would do in both worlds, the likelier one first."""
    leave = answers.ladder(rows, found) if found is not None else []
    asking = again.ladder(rows, *clients.gap)
    return [asking, leave] if clients.ask_first else [leave, asking]


def _advice(
    rows: Frame, found: Estimate | None, timeout_rate: float, clients: Clients, ladders: list[list[Rung]]
) -> str:
    leave = _if_they_leave(rows, found, timeout_rate)
    asking = next((_if_they_ask(rungs) for rungs in ladders if rungs and rungs[0].world == "ask-again"), None)
    if clients.follow is None and not clients.is_given:
        return f"{leave} {clients.how()}."
    if clients.world == "leave" or asking is None:
        return leave
    if clients.world == "ask-again":
        return f"{clients.how()}. So a shorter timeout saves no memory. {asking}"
    return f"{clients.how()}. If they leave: {leave} If they ask again: {asking}"


def _missed(rows: Frame) -> str:
    """A sentence, if the estimate is of operations that nobody checked."""
    missed = rows[rows["missed"]]["operations"].sum() / rows["operations"].sum()
    if missed < _MISSED:
        return ""
    return (
        f" {percent(missed)} of the operations count as expired because nobody checked them before their deadline: "
        "mend that first, and report again."
    )


def _if_they_ask(rungs: list[Rung]) -> str:
    used = next((rung for rung in rungs if rung.is_used), rungs[-1])
    short = next((rung for rung in reversed(rungs) if rung.timeout <= used.timeout / _SHORTER), rungs[0])
    return (
        f"Set the longest timeout that your proxies allow: at {seconds(short.timeout)} there are "
        f"{_range(short.requests - short.empty_answers, short)} requests a second, at {seconds(used.timeout)} "
        f"{_range(used.requests - used.empty_answers, used)}, and {figure(used.pending)} operations stay pending."
    )


def _range(others: float, rung: Rung) -> str:
    """The requests a second, of which `others` are not empty."""
    low, high = figure(others + rung.empty_low), figure(others + rung.empty_high)
    return low if low == high else f"{low} to {high}"


def _if_they_leave(rows: Frame, found: Estimate | None, timeout_rate: float) -> str:
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
    longest = float(EDGES[len(found.rates) - 1]) if used is None else used
    last = found.at(longest)[0]
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
    if found.reason == "alike":
        return (
            "No answer: waits are long for a long time and then short, so this journal tells as little as "
            f"{count(found.independent)} independent pieces of time, and {INDEPENDENT:.0f} are needed. Record for "
            "several times as long."
        )
    about = f" It is about {seconds(found.timeout)}." if found.timeout else ""
    return (
        f"Too few operations last that long, or all of them do at the same time.{about} Record for ten times as long."
    )


def _small(found: Estimate | None, clients: Clients, rows: Frame) -> str:
    if clients.world == "ask-again":
        ended = rows[rows["outcome"] != "expired"]["operations"].sum() / answers.duration(rows)
        return (
            "Twice the clients are twice the requests, and twice as many are pending. Twice the events are at most "
            f"{figure(float(ended))} more requests a second, and as many are pending. This holds unless clients give "
            "up after some empty answers, which one timeout cannot show."
        )
    twice = "Twice the arrivals are twice as many pending, and the same share expires."
    if found is None or found.timeout is None:
        return twice
    low = seconds(found.earliest) if found.earliest else "unknown"
    high = f"to {seconds(found.latest)}" if found.latest else "and longer"
    alike = ""
    if found.effective < found.total:
        alike = f" {count(found.total)} operations tell as much as {count(found.effective)} that end independently."
    return f"The estimate is {seconds(found.timeout)}, its 95 % band {low} {high}.{alike} {twice}"


def _advised(found: dict[Kind, Estimate | None], timeout_rate: float) -> Frame:
    columns = {"timeout_s": "safe", "low_s": "earliest", "high_s": "latest", "estimate_s": "timeout"}
    rows = [
        {
            "purgatory": kind[0],
            "operation": kind[1],
            **{column: getattr(each, attribute, None) for column, attribute in columns.items()},
            "rate": timeout_rate,
            "reason": "unsettled" if each is None else each.reason,
        }
        for kind, each in found.items()
    ]
    return pd.DataFrame(rows).astype(dict.fromkeys(columns, "float64"))


def _rates(found: dict[Kind, Estimate | None]) -> Frame:
    columns = ["purgatory", "operation", "timeout_s", "rate", "low", "high"]
    known = [(kind, each) for kind, each in found.items() if each is not None]
    some = [
        pd.DataFrame(
            dict(zip(columns, (*kind, EDGES[: len(each.rates)], each.rates, each.low, each.high), strict=True))
        )
        for kind, each in known
    ]
    return pd.concat(some) if some else pd.DataFrame(columns=columns)


def _about(rows: Frame, left_out: dict[str, int]) -> dict[str, str]:
    ends = rows["arrived"].min(), (rows["arrived"] + rows["slot"]).max()
    first, last = (datetime.fromtimestamp(each / 1e6, UTC) for each in ends)
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


def _shown(rungs: list[Rung]) -> dict[str, Any]:
    """A ladder for the page: its title, its columns with their classes, and its rows."""
    rows = [
        {
            "note": "advised" if rung.is_safe else "in use" if rung.is_used else "",
            "is_safe": rung.is_safe,
            "cells": (_asking if rung.world == "ask-again" else _leaving)(rung),
        }
        for rung in rungs
    ]
    if rungs[0].world == "ask-again":
        columns = ["timeout", "requests a second", "of them empty", "pending", "CPU for them", "memory"]
        return {"title": "If clients ask again", "columns": columns, "spare": [4], "rows": rows}
    columns = ["timeout", "expire", "95 % band", "satisfied", "leave", "fail", "empty a second", "pending", "memory"]
    return {"title": "If clients leave", "columns": columns, "spare": [3, 4, 5, 8], "rows": rows}


def _asking(rung: Rung) -> list[str]:
    low, high = figure(rung.empty_low), figure(rung.empty_high)
    return [
        seconds(rung.timeout),
        _range(rung.requests - rung.empty_answers, rung),
        low if low == high else f"{low} to {high}",
        figure(rung.pending),
        f"{percent(REQUEST * rung.requests)} of a core",
        _bytes(CLIENT * rung.pending),
    ]


def _leaving(rung: Rung) -> list[str]:
    return [
        seconds(rung.timeout),
        percent(rung.rate),
        f"{figure(100 * rung.low)} to {figure(100 * rung.high)}",
        *(percent(share) for share in (rung.satisfied, rung.left, rung.failed)),
        figure(rung.empty_answers),
        figure(rung.pending),
        _bytes(CLIENT * rung.pending),
    ]


def _loaded(kind: Kind, row: Any, rows: Frame, table: pa.Table) -> Sequence[str]:
    first, last = rows["arrived"].min(), (rows["arrived"] + rows["slot"]).max()
    span = answers.duration(rows)
    pending = answers.pending(table, kind)
    mean = rows["wait_sum"].sum() / span if rows["day"].nunique() > 1 else pending.mean(first, last)
    peak = max(pending.peak(first, last), mean)
    return [
        kind_name(kind),
        figure(row["operations"] / span),
        figure(mean),
        f"at least {figure(peak)}",
        _bytes(CLIENT * peak),
        percent(row["expired_share"]),
        seconds(row["wait_p50_s"]),
        seconds(row["wait_p90_s"]),
        seconds(row["late_max_s"]) if row["expired"] else "none",
    ]


def _starts(rows: Frame) -> list[str]:
    """When instances were started again."""
    again_ = processes(rows)
    again_ = again_[again_["is_restart"]]
    said = [
        f"{name(row['instance'])} at {row['opened']:%Y-%m-%d %H:%M:%S} UTC"
        for row in again_.head(_STARTS).to_dict("records")
    ]
    return said + ([f"{len(again_) - _STARTS} more are in tables/processes"] if len(again_) > _STARTS else [])


def _days(rows: Frame, table: pa.Table, before: date, today: date, shown: Sequence[Kind]) -> list[list[str]]:
    cells = []
    for kind in shown:
        for day in (before, today):
            some = of_kind(rows[rows["day"] == day], kind)
            if len(some):
                row = answers.operations(some, "purgatory", "operation").iloc[0]
                cells.append([str(day), *_loaded(kind, row, some, table)])
    return cells


def _keys(hottest: Frame) -> list[list[str]]:
    several = hottest["purgatory"].nunique() > 1
    return [
        [
            f"{name(row['purgatory'])} / {name(row['key'])}" if several else name(row["key"]),
            *(_between(row[each], row[f"{each}_most"]) for each in ("operations", "expired", "missed")),
        ]
        for _, some in hottest.groupby("purgatory")
        for row in some.head(_KEYS).to_dict("records")
    ]


def _between(low: int, high: int) -> str:
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def _bytes(number: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{figure(number / size)} {unit}"
    return f"{figure(number)} B"
