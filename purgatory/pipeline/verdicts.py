"""What is wrong with a service, as far as its journal tells: each statement with its evidence."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final, Literal, TypeAlias

import numpy as np

from purgatory.pipeline.answers import Frame, Kind, estimates, hours, operations, processes, same_hours
from purgatory.pipeline.words import count, kind_name, name, percent, seconds

Colour: TypeAlias = Literal["red", "amber", "green"]

_ENOUGH: Final = 100
"""Operations of which a share, or a quantile, says something."""
_MANY: Final = 0.01
"""The share of missed checks from which on they are no exception."""
_FAR: Final = 2.0
"""How many times as long as the median instance an instance waits that is sick."""
_SICK: Final = 0.01
"""Seconds that it waits longer at least: below that nobody notices."""
_ENDED: Final[dict[str, tuple[float, float]]] = {"failed": (0.01, 0.05), "cancelled": (0.05, 0.2)}
"""Shares of operations that end so from which on that is worth a look, and is wrong."""
_UNUSUAL: Final = 3.0
"""How many times as long as usual all instances wait in an hour that is worth a look."""
_MINUTE: Final = 60_000_000
_LOOK: Final = "Look at the logs of that time, and report on it alone with --from and --to."
_LATE: Final[tuple[float, float]] = (0.02, 0.1)
"""Seconds of mean lateness from which on the loop is busy, and very busy."""
_CHANGED: Final = 1.5
"""A change from one day to another that is reported, as a factor."""
_COMPARED: Final = (
    ("operations", ("arrives", "often"), count),
    ("wait_p50_s", ("waits", "long in the median"), seconds),
    ("wait_p90_s", ("waits", "long at the 90th percentile"), seconds),
    ("expired_share", ("expires", "often"), percent),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A statement with its evidence."""

    colour: Colour
    text: str
    evidence: str


def verdicts(
    rows: Frame,
    hottest: Frame,
    timeout_rate: float,
    compared: tuple[date, date] | None,
    patient: Collection[Kind] = (),
) -> list[Verdict]:
    """All statements, the worst first.

    `compared` is the day in question and the one that it is compared with. Operations of the kinds `patient` wait for
    events, so it is no fault if all of them wait longer for an hour.
    """
    found = [*_missed(rows, hottest), *_ended(rows), *_sick(rows, timeout_rate), *_hours(rows, patient), *_late(rows)]
    if compared is not None:
        found += _changed(rows, *compared)
    return sorted(found, key=lambda each: ("red", "amber", "green").index(each.colour))


def _missed(rows: Frame, hottest: Frame) -> list[Verdict]:
    found = []
    for row in operations(rows, "purgatory", "operation").to_dict("records"):
        if row["missed"]:
            share = row["missed"] / row["operations"]
            keys = hottest[(hottest["purgatory"] == row["purgatory"]) & (hottest["missed"] > 0)]
            first = ", ".join(name(key, 24) for key in keys.sort_values("missed", ascending=False)["key"].head(3))
            kind = kind_name((row["purgatory"], row["operation"]))
            text = f"{kind}: nobody checked {count(row['missed'])} operations whose condition held."
            evidence = (
                f"Only the last try, at the deadline, completed {percent(share)} of all operations. Call "
                f"check_and_complete(key) where the state changes. The keys with most of them are {first}."
            )
            found.append(Verdict("red" if share >= _MANY else "amber", text, evidence))
    return found or [
        Verdict(
            "green", "No operation waited for a check that nobody made.", "The last try at the deadline completed none."
        )
    ]


def _ended(rows: Frame) -> list[Verdict]:
    found = []
    for kind, some in rows.groupby(["purgatory", "operation"]):
        row = operations(some, "purgatory", "operation").iloc[0]
        for outcome, (amber, red) in _ENDED.items():
            share = row[outcome] / row["operations"]
            if row["operations"] < _ENOUGH or share < amber:
                continue
            ended = operations(some[some["outcome"] == outcome], "purgatory").iloc[0]
            half, most = seconds(ended["wait_p50_s"]), seconds(ended["wait_p99_s"])
            if outcome == "failed":
                text = f"{kind_name(kind)}: {percent(share)} of the operations fail."
                evidence = f"Half of these had failed within {half}, because a method of theirs raised, or fail() was"
                evidence += " called. Look for the exceptions in the log."
            else:
                text = f"{kind_name(kind)}: {percent(share)} of the operations are cancelled: usually, clients leave."
                evidence = f"Half of these end within {half}, and 99 % within {most}."
                if ended["wait_p99_s"] >= row["wait_p99_s"]:
                    evidence += " Hardly anything waits longer, so a longer timeout is hardly ever reached."
            found.append(Verdict("red" if share >= red else "amber", text, evidence))
    return found


def _sick(rows: Frame, timeout_rate: float) -> list[Verdict]:
    found = []
    for kind, some in rows.groupby(["purgatory", "operation"]):
        each = operations(some, "instance")
        each = each[each["operations"] >= _ENOUGH]
        hourly = _enough(hours(some, "instance"))
        for row in each.to_dict("records"):
            others = each[each["instance"] != row["instance"]]
            for column, words in (("wait_p50_s", "in the median"), ("wait_p90_s", "at the 90th percentile")):
                usual = others[column].median()
                if column == "wait_p90_s" and not _slow_hours(hourly, row["instance"])[0].empty:
                    continue  # these hours are named
                if row[column] >= max(_FAR * usual, usual + _SICK):
                    times = f"{row[column] / usual:.1f} times as long"
                    text = f"{name(row['instance'])} is slow: {kind_name(kind)} waits {times}."
                    evidence = f"{seconds(row[column])} {words}, compared with {seconds(usual)} for the others. Take it"
                    evidence += " out, or look at its CPU, its network and what it shares with others."
                    well = some[some["instance"] != row["instance"]]
                    found.append(Verdict("red", text, f"{evidence}{_without(some, well, timeout_rate)}"))
                    break
    instances = rows["instance"].nunique()
    if not found and instances > 1:
        text = f"No instance of {instances} is slow all the time."
        found = [Verdict("green", text, f"None waits {_FAR:g} times as long as the median of the others.")]
    return found


def _hours(rows: Frame, patient: Collection[Kind]) -> list[Verdict]:
    """Hours in which an instance was slower than the others, or all were slower than usual, or more expired."""
    found = []
    for kind, some in rows.groupby(["purgatory", "operation"]):
        each, together = (_enough(hours(some, *by)) for by in (("instance",), ()))
        instances = each["instance"].unique()
        if len(instances) > 1:
            slower = [verdict for instance in instances for verdict in _slower(kind, some, each, instance)]
            found += slower
            if slower:
                # These hours are explained.
                together = together.drop(together.index.intersection(_slow_index(each)))
        if kind not in patient and len(together):
            found += _unusual(kind, together, len(instances))
    return found


def _enough(hourly: Frame) -> Frame:
    return hourly[hourly["operations"] >= _ENOUGH].set_index("hour")


def _slower(kind: Kind, some: Frame, each: Frame, instance: str) -> list[Verdict]:
    """Whether an instance was slower than the others for some hours."""
    slow, others = _slow_hours(each, instance)
    if slow.empty:
        return []
    times = (slow["wait_p90_s"] / others[slow.index]).max()
    text = f"{name(instance)} was slow {_when(slow)}: {kind_name(kind)} waited {times:.1f} times as long."
    evidence = (
        f"{seconds(slow['wait_p90_s'].max())} at the 90th percentile, compared with "
        f"{seconds(others[slow.index].median())} for the others.{_restarted(some, instance, slow)} {_LOOK}"
    )
    return [Verdict("red", text, evidence)]


def _slow_index(each: Frame) -> Frame:
    """The hours in which any instance was slower than the others."""
    slow = [_slow_hours(each, instance)[0].index for instance in each["instance"].unique()]
    return slow[0].append(slow[1:])


def _slow_hours(each: Frame, instance: str) -> tuple[Frame, Frame]:
    """The hours in which an instance was slower than the others, and their waits; none, if it is most of the time."""
    own = each[each["instance"] == instance]
    others = (
        each[each["instance"] != instance][["wait_p50_s", "wait_p90_s"]].groupby("hour").median().reindex(own.index)
    )
    slow = own[_is_slow(own["wait_p90_s"], others["wait_p90_s"], _FAR)]
    is_always = max(len(slow), _is_slow(own["wait_p50_s"], others["wait_p50_s"], _FAR).sum()) > len(own) / 2
    return (slow.iloc[:0] if is_always else slow), others["wait_p90_s"]


def _unusual(kind: Kind, hourly: Frame, instances: int) -> list[Verdict]:
    """Whether all instances together were slow for some hours, or more operations expired than usually."""
    found = []
    usual = hourly["wait_p90_s"].median()
    slow = hourly[_is_slow(hourly["wait_p90_s"], usual, _UNUSUAL)]
    if 0 < len(slow) <= len(hourly) / 2:
        times = slow["wait_p90_s"].max() / usual
        where = ", on all instances together" if instances > 1 else ""
        text = f"{kind_name(kind)} waited {times:.1f} times as long as usually {_when(slow)}{where}."
        evidence = f"{seconds(slow['wait_p90_s'].max())} at the 90th percentile, usually {seconds(usual)}. {_LOOK}"
        found.append(Verdict("amber", text, evidence))
    usual = hourly["expired_share"].median()
    many = hourly[(hourly["expired"] >= _ENOUGH) & (hourly["expired_share"] >= max(_UNUSUAL * usual, usual + _MANY))]
    if 0 < len(many) <= len(hourly) / 2:
        text = f"{kind_name(kind)}: {percent(many['expired_share'].max())} expired {_when(many)}."
        found.append(Verdict("amber", text, f"Usually {percent(usual)} do. {_LOOK}"))
    return found


def _is_slow(waits: Frame, usual: Frame, times: float) -> Frame:
    return waits >= np.maximum(times * usual, usual + _SICK)


def _when(slow: Frame) -> str:
    """The first run of these hours, and how many there are."""
    starts = sorted(slow.index)
    length = int(slow["length"].iloc[0])
    end = starts[0]
    run = 0
    while run < len(starts) and starts[run] == end:
        end += length
        run += 1
    first, last = (datetime.fromtimestamp(at / 1e6, UTC) for at in (starts[0], end))
    form = "%H:%M" if length >= _MINUTE else "%H:%M:%S"
    until = last.strftime(form if first.date() == last.date() else f"%Y-%m-%d {form}")
    more = f" and {len(starts) - run} times later" if run < len(starts) else ""
    return f"from {first:%Y-%m-%d {form}} to {until} UTC{more}"


def _restarted(some: Frame, instance: str, slow: Frame) -> str:
    """A sentence, if the instance was started again shortly before."""
    length = int(slow["length"].iloc[0])
    restarts = processes(some)
    own = restarts[(restarts["instance"] == instance) & restarts["is_restart"]]
    for opened in own["opened"]:
        if -length <= opened.timestamp() * 1e6 - min(slow.index) <= length:
            return f" It was started again at {opened:%H:%M:%S} UTC."
    return ""


def _without(some: Frame, well: Frame, timeout_rate: float) -> str:
    """How the advice would be without an instance that is slow."""
    (with_it,), (without,) = (estimates(rows, timeout_rate).values() for rows in (some, well))
    if without is None or without.safe is None:
        return ""
    safe = with_it.safe if with_it else None
    return f" Without it, the advice is {seconds(without.safe)} instead of {seconds(safe) if safe else 'none'}."


def _late(rows: Frame) -> list[Verdict]:
    found = []
    expired = operations(rows, "instance")
    expired = expired[expired["expired"] > 0]
    for row in expired[expired["late_mean_s"] >= _LATE[0]].to_dict("records"):
        late = seconds(row["late_mean_s"])
        text = f"The event loop of {name(row['instance'])} is busy: operations expire {late} late."
        evidence = f"That is the mean of {count(row['expired'])}, and the latest was {seconds(row['late_max_s'])} late."
        evidence += " Find what blocks the loop with asyncio's debug mode, or start more processes."
        found.append(Verdict("red" if row["late_mean_s"] >= _LATE[1] else "amber", text, evidence))
    if not found and len(expired):
        latest = seconds(expired["late_max_s"].max())
        found = [
            Verdict("green", "Operations expire in time, so no event loop is busy.", f"The latest was {latest} late.")
        ]
    return found


def _changed(rows: Frame, today: date, before: date) -> list[Verdict]:
    found = []
    kind = ["purgatory", "operation"]
    rows, hours = same_hours(rows, today, before)
    if rows.empty:
        return [Verdict("amber", f"{today} has no hour in common with {before}.", "So they can't be compared.")]
    here, there = (operations(rows[rows["day"] == day], *kind).set_index(kind) for day in (today, before))
    for each in here.index.symmetric_difference(there.index):
        text = f"{kind_name(each)} is {'new' if each in here.index else 'gone'}."
        found.append(Verdict("amber", text, f"It has operations on {today if each in here.index else before} only."))
    for each in here.index.intersection(there.index):
        now, then = here.loc[each], there.loc[each]
        for column, words, shown in _COMPARED:
            few = max(now["expired"], then["expired"]) if column == "expired_share" else then["operations"]
            factor = now[column] / max(then[column], 1e-9)
            if few >= _ENOUGH and not 1 / _CHANGED < factor < _CHANGED:
                times = f"{factor:,.1f}" if factor < 1000 else "over 1,000"
                text = f"{kind_name(each)} {words[0]} {times} times as {words[1]} on {today}."
                evidence = f"{shown(now[column])}, compared with {shown(then[column])} on {before}, {hours}."
                colour: Colour = "amber" if factor > 1 or column == "operations" else "green"
                found.append(Verdict(colour, text, evidence))
    evidence = f"Load, waits and expiries differ by less than {_CHANGED:g} times, {hours}."
    return found or [Verdict("green", f"{today} is like {before}.", evidence)]
