"""What an operator asks, as small functions of a cube."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from purgatory.pipeline.estimate import BLOCKS, EDGES, LOWEST, Ends, Estimate, Floats, estimate

Frame: TypeAlias = Any
"""A `DataFrame` of pandas, which has no types."""
Kind: TypeAlias = tuple[str, str]
"""A purgatory and an operation."""

_SECOND: Final = 1_000_000
_HOUR, _DAY = 3600 * _SECOND, 86400 * _SECOND
_FOREVER: Final = 10_000
"""The bin of no timeout."""
_GAP, _WIDEST = 3, 10
"""At most so many bins are between timeouts of one stratum, and in all of it: jitter of 7 % is one timeout."""

_CLOSE: Final = 0.03
"""Timeouts that differ by less are one rung of a ladder."""
_RUNGS: Final = 10

QUANTILES: Final = {"wait_p50_s": 0.5, "wait_p90_s": 0.9, "wait_p99_s": 0.99}
CAUSES: Final = {"satisfied": ("completed_at_once", "satisfied"), "left": ("cancelled",), "failed": ("failed",)}
"""Why operations end before their deadlines."""
OUTCOMES: Final = ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed")


def rows_of(table: pa.Table) -> Frame:
    """The rows of a cube that count operations. Times are in microseconds."""
    rows = table.filter(pa.compute.is_valid(table["outcome"])).to_pandas()
    rows["timeout_bin"] = rows["timeout_bin"].fillna(_FOREVER).astype(int)
    rows["day"] = pd.to_datetime(rows["arrived"], unit="us", utc=True).dt.date
    return rows


def duration(rows: Frame) -> float:
    """For how long the operations arrived, in seconds: a day without any does not count."""
    days = rows.groupby("day").agg(first=("arrived", "min"), last=("arrived", "max"), slot=("slot", "max"))
    return float((days["last"] + days["slot"] - days["first"]).sum() / _SECOND)


def operations(rows: Frame, *by: str) -> Frame:
    """For each combination of the columns `by`: counts by outcome, waits, lateness and load."""
    rows = rows.assign(late=rows["late_sum"].fillna(0.0))
    grouped = rows.groupby(list(by))
    found = grouped.agg(
        operations=("operations", "sum"),
        wait_s=("wait_sum", "sum"),
        wait_max_s=("wait_max", "max"),
        late_s=("late", "sum"),
        late_max_s=("late_max", "max"),
    )
    counts = rows.pivot_table(index=list(by), columns="outcome", values="operations", aggfunc="sum", fill_value=0)
    for outcome in OUTCOMES:
        found[outcome] = counts.get(outcome, 0)
    found["missed"] = rows[rows["missed"]].groupby(list(by))["operations"].sum().reindex(found.index, fill_value=0)
    for name, share in QUANTILES.items():
        found[name] = [_quantile(some, share) for _, some in grouped]
    found["expired_share"] = found["expired"] / found["operations"]
    found["wait_mean_s"] = found["wait_s"] / found["operations"]
    found["late_mean_s"] = (found["late_s"] / found["expired"]).where(found["expired"] > 0, 0.0)
    return found.drop(columns=["late_s"]).reset_index()


def _quantile(rows: Frame, share: float) -> float:
    bins = rows.groupby("wait_bin")["operations"].sum()
    place = int(np.searchsorted(bins.cumsum(), share * bins.sum()))
    return float(EDGES[bins.index[place] - LOWEST])


def pending(rows: Frame) -> Frame:
    """How many operations arrive, finish and are pending, at the end of each slot of time."""
    came = rows.groupby("arrived")["operations"].sum()
    went = rows.groupby("finished")["operations"].sum()
    found = pd.DataFrame({"arrivals": came, "finishes": went}).fillna(0).astype(int).sort_index()
    slot = int(rows["slot"].max())
    found["pending"] = (found["arrivals"] - found["finishes"]).cumsum()
    found.index.name = "start"
    found["slot_s"] = slot / _SECOND
    return found.reset_index()


def settled(rows: Frame) -> Frame:
    """The rows of arrivals whose operations all have a row.

    Operations that are pending when a process is killed, or when the journal is read, have none, so that the quick ones
    are left of the last arrivals. Those are left out that came later than the last finish of their process minus the
    longest wait or timeout of those with the same timeout. They stay if the purgatory was closed after them, which
    gives each a row.
    """
    if rows.empty:
        return rows
    rows = rows.assign(process=rows["opened"].fillna(-1))
    process = ["instance", "process"]
    rows["longest"] = rows[["timeout_max", "wait_max"]].max(axis=1)
    # By timeout, because a single client that asks for days must not make a journal of a day too short for all others.
    alike = ["instance", "purgatory", "operation", "timeout_bin"]
    longest = rows.groupby(alike)["longest"].transform("max") * _SECOND
    last = rows.groupby(process)["finished"].transform("max")
    closes = rows.where(rows["outcome"] == "closed")["finished"]
    closed = closes.groupby([rows[each] for each in (*process, "purgatory")]).transform("max").fillna(-1)
    arrived = rows.groupby([*process, "purgatory"])["arrived"].transform("max")
    return rows[(closed >= arrived) | (rows["arrived"] + rows["slot"] <= last - longest)]


def ends(rows: Frame) -> Ends:
    """How the operations of these rows have ended, by stratum, block and bin."""
    # Of the slots in which operations have arrived: a quiet night is no time.
    slots, slot = np.unique(rows["arrived"].to_numpy(), return_inverse=True)
    blocks = min(BLOCKS, len(slots))
    block = slot * blocks // len(slots)
    columns = (rows["wait_bin"] - LOWEST).to_numpy()
    counts, is_gone = rows["operations"].to_numpy(), rows["is_gone"].to_numpy().astype(bool)
    timeouts = rows["timeout_bin"].to_numpy()
    begins = _strata(np.unique(timeouts).tolist())
    stratum = np.searchsorted(begins, timeouts, side="right") - 1
    seen: Floats = np.zeros((len(begins), blocks, len(EDGES)))
    gone = np.zeros_like(seen)
    np.add.at(seen, (stratum, block, columns), counts)
    np.add.at(gone, (stratum[is_gone], block[is_gone], columns[is_gone]), counts[is_gone])
    causes: dict[str, Floats] = {cause: np.zeros(len(EDGES)) for cause in CAUSES}
    for cause, outcomes in CAUSES.items():
        some = is_gone & rows["outcome"].isin(outcomes).to_numpy()
        np.add.at(causes[cause], columns[some], counts[some])
    return Ends(gone, seen, causes)


def _strata(timeouts: Sequence[int]) -> list[int]:
    """The first bin of the timeouts of each stratum."""
    begins = [timeouts[0]]
    for before, timeout in pairwise(timeouts):
        if timeout - before > _GAP or timeout - begins[-1] > _WIDEST:
            begins.append(timeout)
    return begins


def estimates(rows: Frame, timeout_rate: float) -> dict[Kind, Estimate | None]:
    """The estimate for each kind of operation, the most frequent first; `None` if no arrival is settled."""
    counted = rows.groupby(["purgatory", "operation"])["operations"].sum().sort_values(ascending=False, kind="stable")
    settled_rows = dict(list(settled(rows).groupby(["purgatory", "operation"])))
    return {
        kind: estimate(ends(settled_rows[kind]), timeout_rate) if kind in settled_rows else None
        for kind in counted.index
    }


def longest_timeout(rows: Frame) -> float | None:
    """The longest timeout in use, in seconds."""
    longest = rows["timeout_max"].max()
    return None if pd.isna(longest) else float(longest)


def same_hours(rows: Frame, *days: date) -> tuple[Frame, str]:
    """The rows of arrivals of these days in the hours of which each day has some, and these hours in words."""
    rows = rows[rows["day"].isin(days)]
    since = rows["arrived"] % _DAY
    by_day = rows.assign(since=since, until=since + rows["slot"]).groupby("day").agg({"since": "min", "until": "max"})
    first, last = int(by_day["since"].max()), int(by_day["until"].min())
    both = rows[(since >= first) & (since + rows["slot"] <= last)]
    begin, end = (f"{each // _HOUR:02}:{each % _HOUR // (60 * _SECOND):02}" for each in (first, last))
    return both, f"from {begin} to {end} UTC"


@dataclass(frozen=True, slots=True)
class Rung:
    """What a timeout would do. The shares of those that expire, are satisfied, leave and fail are 1 together."""

    timeout: float
    rate: float
    low: float
    high: float
    satisfied: float
    left: float
    failed: float
    empty_answers: float
    """A second."""
    pending: float
    """On average."""
    is_safe: bool
    is_used: bool


def ladder(rows: Frame, found: Estimate) -> list[Rung]:
    """What timeouts of round numbers would do, with the longest in use and the one that is advised."""
    used = longest_timeout(rows)
    last = min(found.longest, max(used or 0.0, float(EDGES[len(found.rates) - 1]))) * (1 + 1e-9)
    median = operations(rows, "purgatory", "operation")["wait_p50_s"].iloc[0]
    round_numbers = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]
    named = {each for each in (used, found.safe) if each and each <= last}
    chosen = named | {
        each
        for each in round_numbers
        if min(median, last) / 2 <= each <= last and all(abs(each / other - 1) > _CLOSE for other in named)
    }
    arrivals = float(rows["operations"].sum()) / duration(rows)
    rungs = []
    for timeout in sorted(chosen)[-_RUNGS:]:
        share = found.at(timeout)
        rungs.append(
            Rung(
                timeout,
                *share,
                **found.ended(timeout),
                empty_answers=arrivals * share[0],
                pending=arrivals * found.waits(timeout),
                is_safe=timeout == found.safe,
                is_used=timeout == used,
            )
        )
    return rungs


def keys(table: pa.Table) -> Frame:
    """The operations of the keys with the most, by purgatory."""
    rows = table.filter(pa.compute.is_valid(table["key"])).to_pandas()
    found = rows.groupby(["purgatory", "key"])[["operations", "num_expired", "num_missed"]].sum().reset_index()
    found = found.rename(columns={"num_expired": "expired", "num_missed": "missed"})
    return found.sort_values(["operations", "purgatory", "key"], ascending=[False, True, True], kind="stable")
