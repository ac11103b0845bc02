"""The rate of timeouts as a function of the timeout: the Kaplan-Meier estimator, for each operation.

The true time of an expired operation is unknown: it is longer than the time until which it was watched. Such an
operation is *censored* at that time; a completed one is an *event*. `S(t)`, the share that takes
longer than `t` and would time out with a timeout of `t`, is the product over all event times up to `t` of
`1 - events / at risk`, and estimates the rate for any timeout up to the longest that was observed, and for none beyond.

Every operation counts up to its own deadline, and no longer: an expired one is censored at its deadline, though the
timer may have come to it somewhat later, and so is one that was satisfied even later than that, by the last try at its
deadline for one. After the deadline, only those operations still wait that the timer or a busy loop has kept: they are
few, they come together, and a busy loop is the reason for their long wait. If expired ones were censored when they
expired, the last steps of the estimate would depend on those few; if only the late and satisfied were kept, they
would be all that is at risk, and the rate would drop to zero.

The deadline of a rescheduled operation is its last one, counted from its arrival (`deadline_s`). Its last timeout would
be wrong: if operations that live long have their deadline moved, those that survive would leave the risk set early, and
those that complete would stay. An unknown deadline (`columns.DEADLINE`) censors nothing, and the estimate ends at the
longest known one.

A closed operation is censored at the time of the close, a cancelled or failed one at its end: a deployment that ends
waits after some milliseconds is no evidence of their true time.

Operations that are pending when a process is killed have no row, so its last arrivals with a row are the quick ones.
`settled` leaves them out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from purgatory.spark.columns import DEADLINE, UNKNOWN_DEADLINE
from purgatory.spark.words import name, percent, seconds

__all__ = ["UNKNOWN", "TimeoutChoice", "by_operation", "choose", "curve", "rate_at", "settled"]

Floats: TypeAlias = npt.NDArray[np.float64]

_DIGITS: Final = 4
"""Significant digits of a time. So there are at most 9,000 times to a decade, however many operations."""

_FINEST: Final = 9
"""Decimals: a nanosecond."""

_SECOND: Final = 1_000_000
"""Microseconds."""

_NORMAL_975: Final = 1.959963984540054
"""The 97.5th percentile of the standard normal distribution: 95 % lie between it and its negative."""

_SAME: Final = 1 + 1e-9
"""The factor by which equal products of thousands of factors may differ."""


UNKNOWN: Final = {
    "time": np.zeros(1),
    "timeout_rate": np.ones(1),
    "low": np.full(1, math.nan),
    "high": np.full(1, math.nan),
}
"""The curve of an operation without settled rows: known up to 0 s."""


@dataclass(frozen=True, slots=True)
class TimeoutChoice:
    """The shortest timeout of an operation with which no more than a wanted rate of them would time out."""

    purgatory: str
    operation: str
    wanted: float
    timeout: float | None
    """Seconds; `None` if no observed timeout is long enough."""
    earliest: float | None
    latest: float | None
    """The shortest timeouts for the lower and the upper end of the band; `None` if the rate is not reached."""
    longest: float
    """The longest observed timeout, up to which the rate is known."""
    rate_at_longest: float

    @property
    def reason(self) -> str:
        """The choice in words."""
        if self.longest == 0 and self.timeout is None:
            return (
                "no answer: the trace ends too soon after the arrivals, so that slow operations may be missing; "
                "record for several times the longest timeout"
            )
        if self.timeout is None:
            return (
                f"not reachable from this trace: at {seconds(self.longest)}, the longest observed, "
                f"still {percent(self.rate_at_longest)} time out"
            )
        if self.earliest is None:  # all have completed by then, where there is no band
            band = "the band is not defined there"
        else:
            until = f"more than {seconds(self.longest)}" if self.latest is None else seconds(self.latest)
            band = f"{seconds(self.earliest)} to {until} by the 95 % band"
        return f"{seconds(self.timeout)} so that at most {percent(self.wanted)} time out; {band}"

    def __str__(self) -> str:
        return f"{name(self.purgatory)} / {name(self.operation)}: {self.reason}"


def settled(rows: DataFrame) -> DataFrame:
    """The rows of a trace that arrived so early that no operation of their time can be missing.

    An operation is *settled* when it arrived longer before the last finish of its process than the longest wait that
    its instance has recorded for the purgatory and the type, deadlines included: any other one of its time has a row
    too. So is each one of a purgatory that was closed after its last arrival, because that gave every pending operation
    a row. (Others of the same name may go on after an earlier close.) Its own end never decides whether an operation is
    settled: the estimate would prefer quick ones, or long ones. The rows of a process have the same `opened_at`. In
    older journals that is null, and all processes of an instance count as one. Generated rows, which have
    `completes_s`, are all settled.
    """
    run = {"run": F.coalesce(F.unix_micros("opened_at"), F.lit(0))}
    arrived = F.unix_micros("arrived_at")
    finished = arrived + F.round(F.col("waited_s") * _SECOND).cast("long")
    closed = F.col("outcome") == "closed"
    longest = F.ceil(F.greatest(F.col("waited_s"), F.expr(DEADLINE)) * _SECOND)
    names = ["instance", "run", "purgatory", "operation"]
    ends = (
        rows.withColumns(run)
        .groupBy(*names)
        .agg(
            F.max(arrived).alias("latest"),
            F.max(finished).alias("last"),
            F.max(longest).alias("longest"),
            F.max(F.when(closed, finished)).alias("close"),
            F.count_if(closed).alias("closes"),
        )
    )
    process = Window.partitionBy("instance", "run")
    closing = Window.partitionBy("instance", "run", "purgatory")
    kind = Window.partitionBy("instance", "purgatory", "operation")
    limits = ends.select(
        *names,
        (F.max("last").over(process) - F.max("longest").over(kind)).alias("limit"),
        (F.max("close").over(closing) >= F.max("latest").over(closing)).alias("is_closed"),
        F.sum("closes").over(closing).alias("closes"),
    )
    # A closed operation must not be the only evidence of its close.
    before_close = F.col("is_closed") & (~closed | (F.col("closes") > 1))
    return (
        rows.withColumns(run)
        .join(F.broadcast(limits), names)
        .where(F.col("completes_s").isNotNull() | (arrived < F.col("limit")) | before_close)
    )


def curve(rows: DataFrame) -> DataFrame:
    """The rate of timeouts as a function of the timeout, for each operation of a trace.

    `time` (seconds) is every time at which an operation completed or was censored, rounded up to four digits;
    `at_risk` counts the operations that were watched until then, `events` and `censored` those that ended then. From
    `time` on, up to the next one, the rate is estimated as `timeout_rate`; it lies between `low` and `high` with a
    confidence of 95 %, by Greenwood's formula for log(-log(rate)), and they are null where none or all have completed.
    The trace has no data for timeouts beyond the last `time`.
    """
    each = Window.partitionBy("purgatory", "operation")
    so_far = each.orderBy("time").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    at_once = F.col("outcome") == "completed_at_once"
    deadline = F.expr(DEADLINE)
    in_time = (F.col("outcome") == "satisfied") & (F.col("waited_s") <= F.coalesce(deadline, "waited_s"))
    watched = F.when(at_once, F.lit(0.0)).otherwise(F.least("waited_s", deadline))
    ends = rows.select(
        "purgatory",
        "operation",
        _rounded_up(watched).alias("time"),
        (at_once | in_time).alias("event"),
        F.expr(UNKNOWN_DEADLINE).alias("unknown"),
    )
    times = ends.groupBy("purgatory", "operation", "time").agg(
        F.count_if("event").alias("events"),
        F.count_if(~F.col("event")).alias("censored"),
        F.bool_and(F.coalesce("unknown", F.lit(False))).alias("unknown"),
    )
    here = F.col("events") + F.col("censored")
    at_risk = times.withColumn("at_risk", F.sum(here).over(each) - F.sum(here).over(so_far) + here)
    # All that were at risk completed: the logarithm of zero does not exist, and there are no later times.
    is_end = F.col("events") == F.col("at_risk")
    left = F.col("at_risk") - F.col("events")
    logarithm = F.when(~is_end, F.log1p(-F.col("events") / F.col("at_risk"))).otherwise(0.0)
    greenwood = F.when(~is_end, F.col("events") / (F.col("at_risk").cast("double") * left)).otherwise(0.0)
    summed = at_risk.withColumn("logarithm", F.sum(logarithm).over(so_far)).withColumn(
        "greenwood", F.sum(greenwood).over(so_far)
    )
    rate = F.when(is_end, 0.0).otherwise(F.exp("logarithm"))
    width = F.exp(F.lit(_NORMAL_975) * F.sqrt("greenwood") / F.abs("logarithm"))
    has_band = ~is_end & (F.col("logarithm") < 0)
    known = summed.withColumn("longest", F.max(F.when(~F.col("unknown"), F.col("time"))).over(each))
    return known.where("time <= longest").select(
        "purgatory",
        "operation",
        "time",
        "at_risk",
        "events",
        "censored",
        rate.alias("timeout_rate"),
        F.when(has_band, F.exp(F.col("logarithm") * width)).alias("low"),
        F.when(has_band, F.exp(F.col("logarithm") / width)).alias("high"),
    )


def by_operation(curves: pa.Table) -> dict[tuple[str, str], dict[str, Floats]]:
    """The result of `curve`, in order of time, operation by operation and column by column. NaN stands for null."""
    names = list(zip(curves["purgatory"].to_pylist(), curves["operation"].to_pylist(), strict=True))
    starts = [at for at, each in enumerate(names) if at == 0 or names[at - 1] != each]
    columns = {
        column: curves[column].to_numpy().astype(np.float64) for column in ("time", "timeout_rate", "low", "high")
    }
    return {
        names[start]: {column: values[start:end] for column, values in columns.items()}
        for start, end in pairwise([*starts, len(names)])
    }


def choose(curves: Mapping[tuple[str, str], Mapping[str, Floats]], wanted: float) -> list[TimeoutChoice]:
    """The timeout for a rate of `wanted` for each operation, from its curve."""
    choices = []
    for (purgatory, operation), points in curves.items():
        time, rate = points["time"], points["timeout_rate"]
        choices.append(
            TimeoutChoice(
                purgatory,
                operation,
                wanted,
                timeout=_first(time, rate, wanted),
                earliest=_first(time, points["low"], wanted),
                latest=_first(time, points["high"], wanted),
                longest=float(time[-1]),
                rate_at_longest=float(rate[-1]),
            )
        )
    return choices


def rate_at(points: Mapping[str, Floats], timeout: float) -> tuple[float, float, float] | None:
    """The estimated rate with `timeout`, and its band, from the curve of an operation; `None` beyond the curve.

    Where there is no band its ends are NaN.
    """
    time = points["time"]
    if timeout > time[-1]:
        return None
    place = int(np.searchsorted(time, timeout, side="right")) - 1
    if place < 0:  # no operation has completed so early
        return 1.0, math.nan, math.nan
    rate, low, high = (float(points[column][place]) for column in ("timeout_rate", "low", "high"))
    return rate, low, high


def _first(time: Floats, rates: Floats, wanted: float) -> float | None:
    """The first time at which the rate is no more than that."""
    (places,) = np.nonzero(rates <= wanted * _SAME)
    return float(time[places[0]]) if len(places) else None


def _rounded_up(time: Column) -> Column:
    """`time` in seconds, to the next that has so few digits."""
    decimals = F.least(F.lit(_DIGITS - 1) - F.floor(F.log10(time)), F.lit(_FINEST))
    power = F.pow(F.lit(10.0), F.abs(decimals))
    # A time with so few digits stays as it is, though the product may be off in its last bit.
    fine = F.ceil(time * power * (1 - 1e-12)) / power
    coarse = F.ceil(time / power * (1 - 1e-12)) * power
    return F.when(time > 0, F.when(decimals >= 0, fine).otherwise(coarse)).otherwise(0.0)
