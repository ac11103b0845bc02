"""The configurations of a replay: their costs, the lateness of expired operations, and a recommendation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.spark import storage
from purgatory.spark.costs import UNITS
from purgatory.spark.errors import PipelineError
from purgatory.spark.simulate import COUNTS, Configuration
from purgatory.spark.words import count, figure, percent, seconds

__all__ = [
    "COMPONENTS",
    "ConfigurationChoice",
    "Costs",
    "by_timeout",
    "choose",
    "costs",
    "of",
    "read",
    "settings",
    "which",
]

Costs: TypeAlias = Mapping[str, Any]
"""A row of the result of `costs`."""

COMPONENTS: Final = {
    "wake_ups": UNITS.wake_up,
    "buckets": UNITS.bucket,
    "cascaded": UNITS.cascaded,
    "scanned": UNITS.scanned,
    "purges": UNITS.purge,
}
"""The components of the cost: counts, and the seconds of one of them."""

_SETTINGS: Final = ("tick", "wheel_size", "purge_interval", "timeout")
_SUMMED: Final = (*COUNTS, "peak_delayed", "peak_dead")
_WORST: Final = ("late_p50", "late_p99", "late_max")

_NEAR: Final = 1.02
"""The share by which a configuration may be dearer than the cheapest and still counts as equal."""

_DEFAULT: Final = Configuration()


@dataclass(frozen=True, slots=True)
class ConfigurationChoice:
    """The configuration to take for one of a sweep's timeouts."""

    timeout: float | None
    """Seconds; `None` is as recorded."""
    max_lateness: float | None
    """Seconds by which 99 % of the expired operations may be late, at the most; `None` if there is no bound."""
    configuration: Configuration | None
    """The configuration; `None` if none qualifies."""
    reason: str

    def __str__(self) -> str:
        return f"{which(self.timeout)}: {self.reason}"


def which(timeout: float | None) -> str:
    """A timeout of the sweep in words."""
    return "timeouts as recorded" if timeout is None else f"a timeout of {seconds(timeout)}"


def of(row: Costs) -> Configuration:
    """The configuration of a row."""
    return Configuration(*(row[column] for column in _SETTINGS))


def settings(row: Costs) -> str:
    """The settings of a configuration in words, without the timeout."""
    return f"tick {seconds(row['tick'])}, wheel {row['wheel_size']}, purge interval {count(row['purge_interval'])}"


def read(spark: SparkSession, replay: str) -> DataFrame:
    """The summary in a replay's directory. Raises `PipelineError`, which names the missing directory or column."""
    path = f"{replay.rstrip('/')}/summary"
    try:
        summary = storage.read(spark, path)
    except AnalysisException as error:
        why = "does not exist" if error.getCondition() == "PATH_NOT_FOUND" else "has no Parquet files"
        raise PipelineError(f"{path} {why}: {replay} must be the output of `replay`") from None
    for column in (*_SETTINGS, *_SUMMED, *_WORST):
        if column not in summary.columns:
            raise PipelineError(f"missing column {column} in {path}: it is not a replay's summary")
    if summary.isEmpty():
        raise PipelineError(f"{path} has no rows")
    if not summary.where("wake_ups is null").isEmpty():
        raise PipelineError(f"{path} has no costs: the replay was made with --no-costs")
    return summary


def costs(summary: DataFrame) -> DataFrame:
    """The counts of each configuration and their costs, all instances and purgatories together.

    Counts and peaks are added up; lateness (seconds) is that of the instance and purgatory where it is worst. `cost`
    and its components, such as `cost_wake_ups`, are microseconds of CPU time an operation. `cost_inserts` is not part
    of it, because it is the same in all configurations.
    """
    summed = summary.groupBy(*_SETTINGS).agg(
        *[F.sum(column).alias(column) for column in _SUMMED], *[F.max(column).alias(column) for column in _WORST]
    )

    def each(column: str, unit: float) -> dict[str, Any]:
        operations = F.greatest("operations", F.lit(1))
        return {f"cost_{column}": F.col(column) * F.lit(unit * 1e6) / operations}

    for column, unit in {**COMPONENTS, "inserts": UNITS.insert}.items():
        summed = summed.withColumns(each(column, unit))
    total = sum((F.col(f"cost_{column}") for column in COMPONENTS), F.lit(0.0))
    return summed.withColumn("cost", total).orderBy(F.asc_nulls_first("timeout"), "cost", *_SETTINGS[:-1])


def by_timeout(rows: Sequence[Costs]) -> dict[float | None, list[Costs]]:
    """The rows of `costs` for each timeout, the cheapest first."""
    return {timeout: list(some) for timeout, some in groupby(rows, key=lambda row: row["timeout"])}


def choose(rows: Sequence[Costs], max_lateness: float | None, recorded: float | None) -> list[ConfigurationChoice]:
    """The recommended configuration for each timeout, with the reason.

    It is the cheapest with which 99 % of the expired operations are at most `max_lateness` seconds late. The default is
    a hundredth of the timeout; for timeouts as recorded, of `recorded`, which is their median, or `None` if there is
    none. Among those within 2 % of the cheapest it is the one with the fewest dead entries, then with the finest tick.
    """
    choices = []
    for timeout, some in by_timeout(rows).items():
        limit, usual = max_lateness, recorded if timeout is None else timeout
        if limit is None and usual is not None:
            limit = usual / 100
        choices.append(_choose(timeout, some, limit))
    return choices


def _choose(timeout: float | None, rows: Sequence[Costs], limit: float | None) -> ConfigurationChoice:
    qualified = [row for row in rows if limit is None or row["late_p99"] is None or row["late_p99"] <= limit]
    if not qualified:
        assert limit is not None, "without a limit all configurations qualify"
        closest = min(rows, key=lambda row: (row["late_p99"], row["cost"]))
        reason = (
            f"none of the {len(rows)} configurations is punctual enough: closest is {settings(closest)}, with which "
            f"99 % of the expiries are at most {seconds(closest['late_p99'])} late, and not {seconds(limit)}"
        )
        return ConfigurationChoice(timeout, limit, None, reason)
    cheapest = min(row["cost"] for row in qualified)
    near = [row for row in qualified if row["cost"] <= cheapest * _NEAR]
    best = min(near, key=lambda row: (row["peak_dead"], row["tick"], row["cost"], row["wheel_size"]))
    configuration = Configuration(best["tick"], best["wheel_size"], best["purge_interval"], timeout)
    return ConfigurationChoice(timeout, limit, configuration, _reason(best, rows, qualified, near, limit))


def _reason(
    best: Costs, rows: Sequence[Costs], qualified: Sequence[Costs], near: Sequence[Costs], limit: float | None
) -> str:
    cost = f"{figure(best['cost'])} µs of CPU time an operation for wake-ups, cascades and purges"
    parts = [f"{settings(best)}: {cost}{_compared(best, rows)}"]
    if best["late_p99"] is None:
        parts.append("nothing expires")
    elif limit is None:
        parts.append(f"99 % of the expiries are at most {seconds(best['late_p99'])} late, and there is no bound")
    else:
        parts.append(f"99 % of the expiries are at most {seconds(best['late_p99'])} late, of {seconds(limit)} allowed")
    parts.append(f"up to {count(best['peak_dead'])} dead entries")
    others = len(rows) - 1
    late = len(rows) - len(qualified)
    if others == 0:
        why = "it is the only one"
    elif len(near) > 1:
        why = f"of {len(near)} that cost the same within 2 %, the one with the fewest dead entries"
        if sum(row["peak_dead"] == best["peak_dead"] for row in near) > 1:
            why += " and the finest tick"
    else:
        why = f"the cheapest of {len(qualified)} that are punctual enough" if late else f"the cheapest of {len(rows)}"
    return f"{', '.join(parts)}; {why}"


def _compared(best: Costs, rows: Sequence[Costs]) -> str:
    """The comparison with the library's default, if that is in the sweep."""
    wanted = (_DEFAULT.tick, _DEFAULT.wheel_size, _DEFAULT.purge_interval)
    for row in rows:
        if (row["tick"], row["wheel_size"], row["purge_interval"]) == wanted:
            if row is best:
                return " (it is the default)"
            if row["cost"] > 0:
                change = best["cost"] / row["cost"] - 1
                return f" ({percent(abs(change))} {'less' if change < 0 else 'more'} than the default)"
    return ""
