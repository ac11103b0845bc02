"""What an operator asks, as small functions of a cube."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from purgatory.pipeline.estimate import BLOCKS, EDGES, LOWEST, Ends, Estimate, Floats, estimate

Frame: TypeAlias = Any
"""A `DataFrame` of pandas, which has no types."""
Kind: TypeAlias = tuple[str, str]
"""A purgatory and an operation."""

_SECOND: Final = 1_000_000
_HOUR, _DAY = 3600 * _SECOND, 86400 * _SECOND
_FULL: Final = 6
"""A journal of fewer hours is cut into parts that are shorter."""
_DAYS: Final = 7
"""From so many days on, the blocks of time are days."""
_FOREVER: Final = 10_000
"""The bin of no timeout."""
_GAP, _WIDEST = 3, 10
"""At most so many bins are between timeouts of one stratum, and in all of it: jitter of 7 % is one timeout."""

_RARE: Final = 0.01
"""The share of operations whose timeout is not what is in use: a single client may ask for days."""
_CLOSE: Final = 0.03
"""Timeouts that differ by less are one rung of a ladder."""
_RUNGS: Final = 12

QUANTILES: Final = {"wait_p50_s": 0.5, "wait_p90_s": 0.9, "wait_p99_s": 0.99}
CAUSES: Final = {"satisfied": ("completed_at_once", "satisfied"), "left": ("cancelled",), "failed": ("failed",)}
"""Why operations end before their deadlines."""
OUTCOMES: Final = ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed")


def rows_of(table: pa.Table) -> Frame:
    """The rows of a cube that count operations. Times are in microseconds."""
    rows = _part(table, "operations")
    rows["timeout_bin"] = rows["timeout_bin"].fillna(_FOREVER).astype(int)
    rows["day"] = pd.to_datetime(rows["arrived"], unit="us", utc=True).dt.date
    return rows


def _part(table: pa.Table, part: str) -> Frame:
    return table.filter(pa.compute.equal(table["part"], part)).to_pandas()


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
    return min(float(EDGES[bins.index[place] - LOWEST]), float(rows["wait_max"].max()))


@dataclass(frozen=True, slots=True)
class Pending:
    """How many operations were pending in each step of time, of which at least one had a change.

    Args:
        starts: The starts of the steps, in microseconds, in order.
        step: Their length, in microseconds.
        means: How many were pending on average. Means are exact, and no step has a greater one than its peak.
        ends: How many were pending at the end, and until the next step.
    """

    starts: Floats
    step: int
    means: Floats
    ends: Floats

    def mean(self, first: float, last: float) -> float:
        """The average from `first` to `last`, in microseconds, which are the starts of steps."""
        # Between two steps nothing changes.
        edges = np.concatenate((self.starts, self.starts + self.step, (first, last))).clip(first, last)
        edges = np.unique(edges)
        place = np.searchsorted(self.starts, edges[:-1], side="right") - 1
        inside = (place >= 0) & (edges[:-1] < self.starts[place] + self.step)
        level = np.where(inside, self.means[place], np.where(place >= 0, self.ends[place], 0.0))
        return float((np.diff(edges) * level).sum() / (last - first))

    def peak(self, first: float, last: float) -> float:
        """How many were pending at one time at least, from `first` to `last`."""
        some = (self.starts >= first) & (self.starts < last)
        before = int(np.searchsorted(self.starts, first)) - 1
        levels = np.concatenate((self.means[some], self.ends[some], self.ends[before : before + 1]))
        return float(levels.max(initial=0.0))


def pending(table: pa.Table, kind: Kind | None = None) -> Pending:
    """What was pending of a kind of operation, or of all."""
    steps = _part(table, "steps")
    if kind is not None:
        steps = steps[(steps["purgatory"] == kind[0]) & (steps["operation"] == kind[1])]
    length = int(steps["slot"].max())
    # The steps of a short day are shorter, and then the rest of the longer one counts, too.
    start = steps["arrived"] - steps["arrived"] % length
    rest = start + length - steps["arrived"] - steps["slot"]
    steps = steps.assign(start=start, moment=steps["moment"] + steps["operations"] * rest)
    sums = steps.groupby("start")[["operations", "moment"]].sum()
    ends = sums["operations"].to_numpy(float).cumsum()
    before = np.concatenate(([0.0], ends[:-1]))
    means = before + sums["moment"].to_numpy(float) / length
    return Pending(sums.index.to_numpy(float), length, means, ends)


def moments(table: pa.Table, kind: Kind, most: int) -> Frame:
    """Arrivals and ends of some keys of this kind in bins of a quarter of a second, about `most` rows.

    Each file has the keys up to a bucket of their hashes, of 4,096, so all files have those up to the least of these.
    """
    samples = _part(table, "samples")
    last = samples[samples["purgatory"] == kind[0]]["hash"].min()
    rows = _part(table, "moments")
    rows = rows[(rows["purgatory"] == kind[0]) & (rows["operation"] == kind[1])] if len(rows) else rows
    if rows.empty or pd.isna(last):
        return rows
    rows = rows.assign(bucket=rows["hash"].astype("int64") % 4096)
    rows = rows[rows["bucket"] <= last]
    up_to = rows.groupby("bucket").size().cumsum()
    enough = up_to.index[max(int((up_to <= most).sum()) - 1, 0)] if len(up_to) else 0
    rows = rows[rows["bucket"] <= enough]
    counts = ["operations", "num_expired", "num_others"]
    return rows.groupby(["hash", "arrived"])[counts].sum().reset_index()


def load(table: pa.Table, rows: Frame) -> Frame:
    """How many operations arrive, finish and expire in each slot, and how many are pending: mean and peak."""
    slot = int(rows["slot"].max())
    came = rows.groupby(rows["arrived"] // slot * slot)["operations"].sum()
    went = rows.groupby(rows["finished"] // slot * slot)["operations"].sum()
    ended = rows["operations"].where(rows["outcome"] == "expired", 0).groupby(rows["finished"] // slot * slot).sum()
    found = pd.DataFrame({"arrivals": came, "finishes": went, "expired": ended}).fillna(0).astype(int).sort_index()
    found.index.name = "start"
    found["slot_s"] = slot / _SECOND
    steps = pending(table)
    for name, figure in (("pending_mean", Pending.mean), ("pending", Pending.peak)):
        found[name] = [figure(steps, start, start + slot) for start in found.index]
    return found.reset_index()


def settled(rows: Frame) -> Frame:
    """The rows of arrivals whose operations all have a row.

    Operations that are pending when a process is killed, or when the journal is read, have none, so that the quick ones
    are left of the last arrivals. Those are left out that came later than the last finish of their process minus the
    longest wait or timeout of those with the same timeout. They stay if the purgatory was closed after them, which
    gives each a row.
    """
    rows = rows[~rows["entered_late"]]  # of those that came with it, the quick ones have no row
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


def hours(rows: Frame, *by: str) -> Frame:
    """How operations waited and expired in each hour, by the columns `by`. Short journals are cut into a dozen parts.

    The `ratio` tells how many times as long the 90th percentile was as it usually was for this kind of operation, that
    is in the median of all hours and all values of `by`. Of several kinds it is the greatest.
    """
    span = int((rows["arrived"] + rows["slot"]).max() - rows["arrived"].min())
    slot = int(rows["slot"].max())
    length = _HOUR if span >= _FULL * _HOUR else span // (2 * _FULL)
    length = -(-length // slot) * slot
    rows = rows.assign(hour=rows["arrived"] // length * length)
    found = operations(rows, "purgatory", "operation", "hour", *by)
    usual = found.groupby(["purgatory", "operation"])["wait_p90_s"].transform("median")
    found["ratio"] = found["wait_p90_s"] / usual.clip(lower=1e-6)
    found["length"] = length
    return found


def processes(rows: Frame) -> Frame:
    """The processes, each with the time at which it opened its journal, and whether its instance had one before."""
    known = rows[rows["opened"].notna()]
    found = known.groupby(["instance", "opened"])["arrived"].max().rename("last_slot").reset_index()
    # Several processes of one name that run at the same time are no restarts.
    found["is_restart"] = found.groupby("instance")["last_slot"].shift() <= found["opened"]
    found = found.drop(columns="last_slot")
    found["opened"] = pd.to_datetime(found["opened"], unit="us", utc=True)
    return found.sort_values(["opened", "instance"])


def ends(rows: Frame) -> Ends:
    """How the operations of these rows have ended, by stratum, block and bin."""
    # Of the slots in which operations have arrived: a quiet night is no time.
    are_days = rows["day"].nunique() >= _DAYS
    starts = rows["arrived"] // _DAY * _DAY if are_days else rows["arrived"]
    slots, slot = np.unique(starts.to_numpy(), return_inverse=True)
    blocks = len(slots) if are_days else min(BLOCKS, len(slots))
    block = slot * blocks // len(slots)
    times = np.bincount(np.arange(len(slots)) * blocks // len(slots), slots) / _SECOND
    times = times / np.bincount(np.arange(len(slots)) * blocks // len(slots))
    columns = (rows["wait_bin"] - LOWEST).to_numpy()
    counts, is_gone = rows["operations"].to_numpy(), rows["is_gone"].to_numpy().astype(bool)
    stratum = strata(rows)
    seen: Floats = np.zeros((stratum.max() + 1, blocks, len(EDGES)))
    gone = np.zeros_like(seen)
    np.add.at(seen, (stratum, block, columns), counts)
    np.add.at(gone, (stratum[is_gone], block[is_gone], columns[is_gone]), counts[is_gone])
    causes: dict[str, Floats] = {cause: np.zeros(len(EDGES)) for cause in CAUSES}
    for cause, outcomes in CAUSES.items():
        some = is_gone & rows["outcome"].isin(outcomes).to_numpy()
        np.add.at(causes[cause], columns[some], counts[some])
    return Ends(gone, seen, causes, times, are_days)


def strata(rows: Frame) -> npt.NDArray[np.intp]:
    """The number of the stratum of timeouts that each of the rows is of."""
    timeouts = np.unique(rows["timeout_bin"])
    begins = [timeouts[0]]
    for before, timeout in pairwise(timeouts):
        if timeout - before > _GAP or timeout - begins[-1] > _WIDEST:
            begins.append(timeout)
    number: npt.NDArray[np.intp] = np.searchsorted(begins, rows["timeout_bin"], side="right") - 1
    return number


def estimates(rows: Frame, timeout_rate: float) -> dict[Kind, Estimate | None]:
    """The estimate for each kind of operation, the most frequent first; `None` if no arrival is settled."""
    counted = rows.groupby(["purgatory", "operation"])["operations"].sum().sort_values(ascending=False, kind="stable")
    settled_rows = dict(list(settled(rows).groupby(["purgatory", "operation"])))
    return {
        kind: estimate(ends(settled_rows[kind]), timeout_rate) if kind in settled_rows else None
        for kind in counted.index
    }


def longest_timeout(rows: Frame) -> float | None:
    """The longest timeout in use but for a hundredth of the operations, in seconds. `None` if these have none."""
    counts = rows.groupby("timeout_bin").agg(operations=("operations", "sum"), longest=("timeout_max", "max"))
    counts = counts[::-1]
    is_common = counts["operations"].cumsum() > _RARE * counts["operations"].sum()
    longest = counts["longest"][is_common].iloc[0]
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

    world: str
    """`leave` or `ask-again`: what clients do after an answer, if this is right."""
    timeout: float
    rate: float
    low: float
    high: float
    satisfied: float
    left: float
    failed: float
    requests: float
    """A second."""
    empty_answers: float
    """A second: those that expire."""
    empty_low: float
    empty_high: float
    pending: float
    """On average."""
    is_safe: bool
    is_used: bool


def round_timeouts(shortest: float, longest: float, named: Iterable[float]) -> list[float]:
    """The timeouts of a ladder: `named`, and round numbers that are not close to these."""
    named = [each for each in named if each <= longest]
    numbers = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]
    chosen = {
        each
        for each in numbers
        if shortest <= each <= longest and all(abs(each / other - 1) > _CLOSE for other in named)
    }
    return sorted(chosen.union(named))[-_RUNGS:]


def ladder(rows: Frame, found: Estimate) -> list[Rung]:
    """What timeouts of round numbers would do if clients leave, with the longest in use and the one that is advised."""
    used = longest_timeout(rows)
    last = min(found.longest, used or float(EDGES[len(found.rates) - 1])) * (1 + 1e-9)
    median = operations(rows, "purgatory", "operation")["wait_p50_s"].iloc[0]
    arrivals = float(rows["operations"].sum()) / duration(rows)
    rungs = []
    for timeout in round_timeouts(min(median, last) / 2, last, {each for each in (used, found.safe) if each}):
        rate, low, high = found.at(timeout)
        rungs.append(
            Rung(
                "leave",
                timeout,
                rate,
                low,
                high,
                **found.ended(timeout),
                requests=arrivals,
                empty_answers=arrivals * rate,
                empty_low=arrivals * low,
                empty_high=arrivals * high,
                pending=arrivals * found.waits(timeout),
                is_safe=timeout == found.safe,
                is_used=timeout == used,
            )
        )
    return rungs


def keys(table: pa.Table) -> Frame:
    """The keys with the most operations, by purgatory.

    A file has the greatest keys, and the `cuts` that none of its other keys exceeds. So the number of operations is at
    least `operations`, the sum of what the files have, and at most `operations_most`, which adds the cuts of files that
    lack the key. A merged file adds those of its own files as `more_operations`. The same holds for `expired` and
    `missed`.
    """
    shown = {"operations": "operations", "num_expired": "expired", "num_missed": "missed"}
    rows = _part(table, "hot_keys")
    found = rows.groupby(["purgatory", "key"])[list(shown)].sum().rename(columns=shown)
    cuts = _part(table, "cuts")
    for column, name in shown.items():
        found[f"{name}_most"] = found[name]
        if f"more_{name}" in rows:
            found[f"{name}_most"] += rows.groupby(["purgatory", "key"])[f"more_{name}"].sum()
        if len(cuts) and len(found):
            # What all files could lack, less the cuts of those that have the key.
            file = ["file", "arrived", "purgatory"]
            cut = cuts.groupby(file)[column].sum()
            own = rows[[*file, "key"]].drop_duplicates().join(cut.rename("cut"), on=file)
            had = own.groupby(["purgatory", "key"])["cut"].sum()
            lacked = cuts.groupby("purgatory")[column].sum()
            found[f"{name}_most"] += found.index.get_level_values("purgatory").map(lacked).to_numpy() - had
    found = found.astype(int).reset_index()
    order = ["operations_most", "operations", "purgatory", "key"]
    return found.sort_values(order, ascending=[False, False, True, True], kind="stable")
