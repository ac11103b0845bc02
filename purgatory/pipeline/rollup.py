"""Roll a journal up into its cube, a day at a time."""

from collections.abc import Callable, Iterable
from datetime import date

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline import cube, trace
from purgatory.pipeline.words import count, name
from purgatory.spark.errors import PipelineError

_AGAIN = 2
"""The newest days of a cube are written again, because rows of their last operations may have come since."""


def rollup(
    spark: SparkSession, journal: str, path: str, days: Iterable[date] = (), say: Callable[[str], object] = print
) -> list[date]:
    """Write the cube of these days of the journal to `path`, in place of those that there are. Returns the days.

    Without `days` these are all that the cube does not have, and the newest two that it has. Raises `PipelineError`.
    """
    if any(name.startswith("batch=") for name in cube.files(path)):
        raise PipelineError(f"{path} is the cube of a stream: name another directory")
    rows = trace.read(spark, journal)
    slots = trace.span(rows)
    wanted = list(days)
    for day in wanted:
        if day not in slots:
            raise PipelineError(f"{journal} has no operations that arrived on {day}")
    if not wanted:
        known = cube.days_of(path)
        again = sorted(known)[-_AGAIN:]
        wanted = [day for day in slots if day not in known or day in again]
    for day in wanted:
        table = _day(rows, day, slots[day])
        cube.save(table, path, day)
        say(f"{day}: {_told(table)}")
    return wanted


def of_days(spark: SparkSession, journal: str, is_wanted: Callable[[date], bool]) -> pa.Table:
    """The cube of the wanted days of a journal, which is written nowhere. Raises `PipelineError`."""
    rows = trace.read(spark, journal)
    slots = {day: slot for day, slot in trace.span(rows).items() if is_wanted(day)}
    if not slots:
        raise PipelineError(f"{journal} has none of these days")
    return pa.concat_tables([_day(rows, day, slot) for day, slot in slots.items()])


def _day(rows: DataFrame, day: date, slot: int) -> pa.Table:
    table = trace.cube(rows.where(f"date = '{day}'"), slot).toArrow()
    cube.refused(table)  # raises
    return table


def _told(table: pa.Table) -> str:
    operations = table.filter(pa.compute.is_valid(table["outcome"]))["operations"]
    told = f"{count(pa.compute.sum(operations).as_py() or 0)} operations in {count(len(table))} rows"
    for instance, number in cube.refused(table).items():
        told += f"; {count(number)} of {name(instance)} are left out, as they end later than now"
    return told
