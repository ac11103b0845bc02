"""Outcomes and waiting times: of each operation, of the hottest keys, and over time."""

import math
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from purgatory.spark.simulate import OUTCOMES

__all__ = ["WAITS", "hottest_keys", "median_timeout", "num_windows", "outcomes", "usual_window", "windows"]

WAITS: Final = {"wait_p50": 0.5, "wait_p90": 0.9, "wait_p99": 0.99}

_ACCURACY: Final = 10_000
"""Percentiles are off by a ten-thousandth of all values at most, and exact for fewer values than that."""

_MOST_WINDOWS: Final = 60

_STEPS: Final = (
    *(digit * 10**power for power in range(-3, 0) for digit in (1, 2, 5)),
    *(digit * unit for unit in (1, 60) for digit in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12)),
    *(86_400 * days for days in (1, 2, 7, 14, 28)),
)
"""Seconds that are round numbers of some unit."""


def outcomes(rows: DataFrame, *by: str | Column) -> DataFrame:
    """The number of operations with each outcome, and percentiles of their waits, in seconds.

    It has a row for each combination of the columns `by`, by default the purgatory and the operation.
    """
    waited = F.percentile_approx("waited_s", list(WAITS.values()), _ACCURACY)
    summed = rows.groupBy(*(by or ("purgatory", "operation"))).agg(
        F.count("*").alias("operations"),
        *[F.count_if(F.col("outcome") == outcome).alias(outcome) for outcome in OUTCOMES],
        waited.alias("waits"),
        F.max("waited_s").alias("wait_max"),
    )
    waits = {wait: F.col("waits")[place] for place, wait in enumerate(WAITS)}
    expired = F.col("expired") / F.col("operations")
    return summed.withColumns({"expired_share": expired, **waits}).select(
        *[column for column in summed.columns if column not in ("waits", "wait_max")],
        "expired_share",
        *WAITS,
        "wait_max",
    )


def hottest_keys(rows: DataFrame, top: int) -> DataFrame:
    """As `outcomes`, for the `top` keys with the most operations. An operation on several keys counts for each."""
    watched = rows.select("purgatory", F.explode(F.array_distinct("keys")).alias("key"), "outcome", "waited_s")
    # Percentiles are made for those few only: there may be millions of keys.
    ranking = (F.desc("count"), "purgatory", "key")
    hottest = watched.groupBy("purgatory", "key").count().orderBy(*ranking).limit(top).select("purgatory", "key")
    found = outcomes(watched.join(F.broadcast(hottest), ["purgatory", "key"]), "purgatory", "key")
    return found.orderBy(F.desc("operations"), "purgatory", "key")


def windows(rows: DataFrame, seconds: float) -> DataFrame:
    """As `outcomes`, for each operation in windows of `seconds` by time of arrival; `start` is the start of one."""
    width = round(seconds * 1e6)
    start = F.timestamp_micros(F.floor(F.unix_micros("arrived_at") / F.lit(width)) * width)
    return outcomes(rows.withColumn("start", start), "start", "purgatory", "operation").orderBy(
        "start", "purgatory", "operation"
    )


def usual_window(first: int, last: int) -> float:
    """The shortest window, in seconds, with at most 60 windows from `first` to `last`, in microseconds."""
    for step in _STEPS:
        if num_windows(first, last, step) <= _MOST_WINDOWS:
            return float(step)
    return float(math.ceil((last - first) / 1e6 / _STEPS[-1] / (_MOST_WINDOWS - 1)) * _STEPS[-1])


def num_windows(first: int, last: int, seconds: float) -> int:
    """The number of windows from `first` to `last`, in microseconds."""
    width = round(seconds * 1e6)
    return last // width - first // width + 1


def median_timeout(rows: DataFrame) -> float | None:
    """The median timeout in seconds; `None` if no operation has a timeout."""
    found = rows.agg(F.percentile_approx("timeout_s", 0.5, _ACCURACY)).first()
    return None if found is None or found[0] is None else float(found[0])
