"""The rate of timeouts as a function of the timeout: the Kaplan-Meier estimator, for each operation.

The true time of an expired operation is unknown: it is longer than the time until which it was watched. Such an
operation is *censored* at that time; a completed one is an *event*. `S(t)`, the share that takes
longer than `t` and would time out with a timeout of `t`, is the product over all event times up to `t` of
`1 - events / at risk`, and estimates the rate for any timeout up to the longest that was observed, and for none beyond.

Every operation counts up to its own timeout, and no longer: an expired one is censored at its timeout, though the
timer may have come to it somewhat later, and so is one that was satisfied even later than that, by the last try at its
deadline for one. After the timeout, only those operations still wait that the timer or a busy loop has kept: they are
few, they come together, and a busy loop is the reason for their long wait. If expired ones were censored when they
expired, the last steps of the estimate would depend on those few; if only the late and satisfied were kept, they
would be all that is at risk, and the rate would drop to zero. A rescheduled operation counts up to its timeout too.

A closed operation is censored at the time of the close, a cancelled or failed one at its end: a deployment that ends
waits after some milliseconds is no evidence of their true time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from purgatory.spark.words import name, percent, seconds

__all__ = ["TimeoutChoice", "by_operation", "choose", "curve", "rate_at"]

Floats: TypeAlias = npt.NDArray[np.float64]

_DIGITS: Final = 4
"""Significant digits of a time. So there are at most 9,000 times to a decade, however many operations."""

_FINEST: Final = 9
"""Decimals: a nanosecond."""

_NORMAL_975: Final = 1.959963984540054
"""The 97.5th percentile of the standard normal distribution: 95 % lie between it and its negative."""

_SAME: Final = 1 + 1e-9
"""The factor by which equal products of thousands of factors may differ."""


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
    in_time = (F.col("outcome") == "satisfied") & (F.col("waited_s") <= F.coalesce("timeout_s", "waited_s"))
    watched = F.when(at_once, F.lit(0.0)).otherwise(F.least("waited_s", "timeout_s"))
    ends = rows.select("purgatory", "operation", _rounded_up(watched).alias("time"), (at_once | in_time).alias("event"))
    times = ends.groupBy("purgatory", "operation", "time").agg(
        F.count_if("event").alias("events"), F.count_if(~F.col("event")).alias("censored")
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
    return summed.select(
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
        for start, end in zip(starts, [*starts[1:], len(names)], strict=True)
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
