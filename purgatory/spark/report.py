"""The report on a trace: tables as Parquet, plots, and a page with both and with the recommendations."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.spark import configurations, page, plots, survival, tables
from purgatory.spark.configurations import ConfigurationChoice
from purgatory.spark.errors import PipelineError
from purgatory.spark.survival import TimeoutChoice
from purgatory.spark.trace import Part, Trace
from purgatory.spark.words import count, percent

__all__ = ["Recommendations", "report"]

_MOST_WINDOWS: Final = 1_000
_MOST_KEYS: Final = 1_000
_MOST_ROWS: Final = 1_000
"""The most rows of a table on the page."""

_TIMEOUTS: Final = pa.schema(
    [
        pa.field("purgatory", pa.string()),
        pa.field("operation", pa.string()),
        *(pa.field(name, pa.float64()) for name in ("wanted", "timeout", "earliest", "latest", "longest")),
        pa.field("rate_at_longest", pa.float64()),
        pa.field("reason", pa.string()),
    ]
)
_CONFIGURATIONS: Final = pa.schema(
    [
        pa.field("timeout", pa.float64()),
        pa.field("max_lateness", pa.float64()),
        pa.field("tick", pa.float64()),
        pa.field("wheel_size", pa.int64()),
        pa.field("purge_interval", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Recommendations:
    """The recommendations of a report."""

    timeouts: tuple[TimeoutChoice, ...]
    """A choice for each operation, the most frequent first."""
    configurations: tuple[ConfigurationChoice, ...]
    """A choice for each timeout of the replay's sweep; none without a replay."""
    page: Path

    def __str__(self) -> str:
        return "\n".join(map(str, chain(self.timeouts, self.configurations, [f"written to {self.page}"])))


def report(
    spark: SparkSession,
    recorded: Trace,
    output: str,
    *,
    replay: str | None = None,
    timeout_rate: float = 0.01,
    window: float | None = None,
    top: int = 20,
    max_lateness: float | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Recommendations:
    """Write the report on a trace to the directory `output` of this machine, which must be empty or not exist.

    `replay` is a directory that `replay.write` has written. Timeouts are recommended for a share of `timeout_rate` that
    times out, and configurations for at most `max_lateness` seconds, by default a hundredth of the timeout. Figures
    over time are in windows of `window` seconds, by default of a length with which there are at most 60. `top` is the
    most keys, and the most operations on the page. `say` is called with each step before it begins, and with warnings
    about the trace. Raises
    `PipelineError` for values out of range, for a trace without operations or with impossible values, and for a
    `replay` that is none.
    """
    if re.match("[a-z][a-z0-9]+:", output):
        raise PipelineError(f"a report is written to a directory of this machine, and not to {output}")
    _check("timeout_rate", timeout_rate, 1e-6, 0.999)
    _check("top", top, 1, _MOST_KEYS, int)
    if window is not None:
        _check("window", window, 1e-3, 1e9)
    if max_lateness is not None:
        _check("max_lateness", max_lateness, 1e-9, 1e9)
    directory = Path(output)
    _check_empty(directory)
    summary = None if replay is None else configurations.read(spark, replay)
    parts = recorded.parts
    if not parts:
        raise PipelineError(
            "the trace has no operations: a journal writes a file once a minute and at its close, so let it run longer"
        )
    warnings = recorded.warnings
    for warning in warnings:
        say(warning)
    width = _window(parts, window)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PipelineError(f"{directory} cannot be written: {error.strerror}") from None

    rows = recorded.rows
    say("outcomes by operation")
    by_operation = tables.outcomes(rows).orderBy(F.desc("operations"), "purgatory", "operation")
    outcomes = _write(directory, "outcomes", by_operation.toArrow())
    say("the hottest keys")
    keys = _write(directory, "keys", tables.hottest_keys(rows, top).toArrow())
    say("outcomes over time")
    windows = _write(directory, "windows", tables.windows(rows, width).toArrow())
    say("rates of timeouts")
    curve = survival.curve(survival.settled(rows)).orderBy("purgatory", "operation", "time").toArrow()
    _write_table(directory, "timeout_rates", curve)
    curves = {(row["purgatory"], row["operation"]): survival.UNKNOWN for row in outcomes}
    curves |= survival.by_operation(curve)
    found = {(choice.purgatory, choice.operation): choice for choice in survival.choose(curves, timeout_rate)}
    timeouts = [found[row["purgatory"], row["operation"]] for row in outcomes]
    reasons = [{**asdict(choice), "reason": choice.reason} for choice in timeouts]
    _write_table(directory, "recommended_timeouts", pa.Table.from_pylist(reasons, _TIMEOUTS))
    shown = timeouts[:top]
    costs: Sequence[Mapping[str, Any]] = ()
    choices: Sequence[ConfigurationChoice] = ()
    if summary is not None:
        say("costs of the configurations")
        costs, choices = _configurations(directory, summary, rows, max_lateness)

    say("plots and page")
    drawn = directory / "plots"
    pictures = {
        "timeout_rates": plots.timeout_rates(curves, shown, drawn / "timeout_rates.png"),
        "outcomes_over_time": plots.outcomes_over_time(windows, width, drawn / "outcomes_over_time.png"),
        "waits_over_time": plots.waits_over_time(windows, outcomes, width, drawn / "waits_over_time.png"),
        "hottest_keys": plots.hottest_keys(keys[:20], drawn / "hottest_keys.png"),
    }
    if choices:
        pictures["configurations"] = plots.configurations(costs, choices, drawn / "configurations.png")
    path = directory / "index.html"
    names = {"purgatory": "purgatory", "operation": "operation"}
    page.render(
        path,
        overview=page.overview(recorded, parts),
        skipped=recorded.skipped,
        warnings=warnings,
        wanted=percent(timeout_rate),
        timeouts=shown,
        advice=page.advice(shown, outcomes),
        chosen=page.chosen(shown, len(timeouts)),
        rates=page.rates(curves, shown),
        settled=count(sum(pc.sum(curve[name]).as_py() or 0 for name in ("events", "censored"))),
        configurations=choices,
        costs=page.cost(costs, choices) if choices else None,
        outcomes=page.counted(outcomes[:top], names, len(outcomes)),
        windows=page.counted(windows[:_MOST_ROWS], {"start": "from (UTC)", **names}, len(windows)),
        keys=page.counted(keys, {"purgatory": "purgatory", "key": "key"}),
        pictures=pictures,
    )
    return Recommendations(tuple(timeouts), tuple(choices), path)


def _configurations(
    directory: Path, summary: DataFrame, rows: DataFrame, max_lateness: float | None
) -> tuple[list[dict[str, Any]], list[ConfigurationChoice]]:
    """The costs of the replay's configurations, and the recommended one for each timeout."""
    costs = _write(directory, "costs", configurations.costs(summary).toArrow())
    as_recorded = any(row["timeout"] is None for row in costs)
    replayed = rows.join(F.broadcast(summary.select("instance", "purgatory").distinct()), ["instance", "purgatory"])
    recorded = tables.median_timeout(replayed) if as_recorded and max_lateness is None else None
    choices = configurations.choose(costs, max_lateness, recorded)
    chosen = []
    for choice in choices:
        settings = astuple(choice.configuration)[:3] if choice.configuration else (None, None, None)
        values = (choice.timeout, choice.max_lateness, *settings, choice.reason)
        chosen.append(dict(zip(_CONFIGURATIONS.names, values, strict=True)))
    _write_table(directory, "recommended_configurations", pa.Table.from_pylist(chosen, _CONFIGURATIONS))
    return costs, choices


def _write(directory: Path, name: str, table: pa.Table) -> list[dict[str, Any]]:
    """Write a small table. Returns its rows."""
    _write_table(directory, name, table)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _write_table(directory: Path, name: str, table: pa.Table) -> None:
    path = directory / "tables" / name
    path.mkdir(parents=True)
    pq.write_table(table, path / f"{name}.parquet", compression="zstd")


def _window(parts: Sequence[Part], wanted: float | None) -> float:
    """The length of a window, in seconds."""
    first, last = min(part.first for part in parts), max(part.last for part in parts)
    if wanted is None:
        return tables.usual_window(first, last)
    windows = tables.num_windows(first, last, wanted)
    if windows > _MOST_WINDOWS:
        raise PipelineError(
            f"window must be longer: with {wanted:g} s there would be {count(windows)} windows, of at most "
            f"{count(_MOST_WINDOWS)}"
        )
    return float(wanted)


def _check(name: str, value: float, least: float, most: float, kind: type = float) -> None:
    number = not isinstance(value, bool) and isinstance(value, (int, kind)) and math.isfinite(value)
    if not number or not least <= value <= most:
        what = "a whole number" if kind is int else "a number"
        raise PipelineError(f"{name} must be {what} from {least:g} to {most:g}, not {value!r}")


def _check_empty(directory: Path) -> None:
    """Raise `PipelineError` if the directory has anything that could be overwritten."""
    try:
        occupied = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
    except OSError as error:
        raise PipelineError(f"{directory} cannot be used: {error.strerror}") from None
    if occupied:
        raise PipelineError(f"{directory} exists already, and is not an empty directory: name another one")
