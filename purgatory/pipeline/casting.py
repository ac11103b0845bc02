"""Files of a journal whose columns have other types, as other writers make them: they are cast to the journal's own.

Spark reads all files of a scan with one schema, and a file of another type fails. To open each file first would take
longer than the scan, so a day is read with the journal's own types, and its files are looked at only

- if that fails, or
- if the last file of one of its instances has other types. (Spark reads a decimal of up to nine digits as the double of
  its digits, without an error.)

Then files of the same types become a scan of their own. Which files these are is found by halving: Spark merges the
schemas of many files in one job, and fails if their types differ.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Final, NoReturn, TypeVar
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.pipeline.places import literal
from purgatory.spark.errors import PipelineError

Result = TypeVar("Result")

_FAILED: Final = re.compile(r"FAILED_READ_FILE|PARQUET_TYPE_|SchemaColumnConvertNotSupported")
_DIFFER: Final = re.compile(r"CANNOT_MERGE|PARQUET_TYPE_|UNSUPPORTED_TIME_TYPE")
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?: the column .+?) SQLSTATE")
_NANOS: Final = "spark.sql.legacy.parquet.nanosAsLong"
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_IS_SECONDS, _IS_NANOSECONDS = 1e11, 1e17
"""An integer from 1970 below the first counts seconds, and above the second nanoseconds: 5138 and 1973 are far away."""


class Days:
    """The rows of a journal, a day at a time, with the types of `columns` whatever the types of its files."""

    def __init__(
        self, rows: DataFrame, path: str, columns: Mapping[str, str], files: Mapping[date, Sequence[str]]
    ) -> None:
        """`rows` are those of the whole journal at `path`, as Spark reads `files` with these types."""
        self.rows = rows
        self._spark = rows.sparkSession
        self._path = path
        self._columns = {column: kind for column, kind in columns.items() if column not in ("date", "instance")}
        self.files = files
        self._cast: dict[date, DataFrame | None] = {}
        """The rows of the days that were looked at; none, if their types are the journal's."""

    def run(self, day: date, work: Callable[[DataFrame], Result]) -> Result:
        """Return what `work` makes of the rows of a day. Raises `PipelineError` for a value that cannot be cast."""
        if day not in self._cast and not self._is_usual(day):
            self._cast[day] = self._cast_rows(day)
        rows = self._cast.get(day)
        if rows is None:
            try:
                return work(self.rows.where(f"date = '{day}'"))
            except (PySparkException, Py4JError) as error:
                if day in self._cast or not is_failed_read(error):
                    raise
                rows = self._cast[day] = self._cast_rows(day)
                if rows is None:
                    raise
        try:
            with _nanoseconds_as_integers(self._spark):
                return work(rows)
        except (PySparkException, Py4JError) as error:
            if (raised := _RAISED.search(str(error))) is None:
                raise
            raise PipelineError(raised[1]) from None

    def _is_usual(self, day: date) -> bool:
        """Whether the last file of each instance has the journal's own types."""
        last = {file.rpartition("/")[0]: file for file in sorted(self.files.get(day, ()))}
        kinds = kinds_of(self._spark, self._path, list(last.values()))
        return kinds is not None and self._own(kinds) == self._columns

    def _cast_rows(self, day: date) -> DataFrame | None:
        """The rows of a day, cast; none, if all files have the journal's own types."""
        groups: dict[tuple[str, ...], list[str]] = {}
        with _nanoseconds_as_integers(self._spark):
            for files, kinds in self._groups(sorted(self.files.get(day, ()))):
                groups.setdefault(tuple(self._own(kinds).values()), []).extend(files)
            if list(groups) == [tuple(self._columns.values())]:
                return None
            parts = [
                self._group(files, dict(zip(self._columns, kinds, strict=True))) for kinds, files in groups.items()
            ]
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.union(part)
        return rows

    def _own(self, kinds: Mapping[str, str]) -> dict[str, str]:
        """The types of the journal's columns. One that is missing has any type, because it is null."""
        return {column: kinds.get(column, kind) for column, kind in self._columns.items()}

    def _groups(self, files: Sequence[str]) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
        """Divide files into groups of the same types."""
        kinds = kinds_of(self._spark, self._path, files)
        if kinds is not None:
            yield files, kinds
        elif len(files) > 1:
            half = len(files) // 2
            yield from self._groups(files[:half])
            yield from self._groups(files[half:])
        else:
            refuse_unreadable(self._spark, files[0], self._columns)

    def _group(self, files: Sequence[str], kinds: Mapping[str, str]) -> DataFrame:
        """The rows of files of these types, cast."""
        schema = ", ".join(
            f"{column} {kind}" for column, kind in {**kinds, "date": "string", "instance": "string"}.items()
        )
        read = self._spark.read.schema(schema).option("basePath", self._path)
        rows = read.parquet(*map(_literal, files))
        for column, kind in kinds.items():
            try:
                rows.select(_cast(column, kind, self._columns[column])).schema  # noqa: B018  # Connect looks no sooner
            except AnalysisException:
                raise PipelineError(
                    f"{unquote(files[0])}: the column {column} is {kind}, which is not cast to {self._columns[column]}"
                ) from None
        return rows.select(
            *[_cast(column, kind, self._columns[column]) for column, kind in kinds.items()],
            "date",
            "instance",
            F.expr("_metadata.file_path AS file"),
        )


def is_failed_read(error: PySparkException | Py4JError) -> bool:
    """Return whether Spark could not read a file, for its types or because it is damaged."""
    return _FAILED.search(str(error)) is not None


def kinds_of(spark: SparkSession, path: str, files: Sequence[str]) -> dict[str, str] | None:
    """Return the types of the columns of these files of the journal at `path`; none, if they differ or are unknown.

    A timestamp in nanoseconds is a `bigint`.
    """
    read = spark.read.option("mergeSchema", True).option("basePath", path)
    try:
        with _nanoseconds_as_integers(spark):
            return dict(read.parquet(*map(_literal, files)).dtypes)
    except (PySparkException, Py4JError) as error:
        if _DIFFER.search(str(error)):
            return None
        raise


def refuse_unreadable(spark: SparkSession, file: str, columns: Mapping[str, str]) -> NoReturn:
    """Raise `PipelineError` that names the column of a file which has a type that Spark does not know."""
    for column, kind in columns.items():
        try:
            spark.read.schema(f"{column} {kind}").parquet(_literal(file)).agg(F.count(column)).collect()
        except (PySparkException, Py4JError):
            raise PipelineError(f"{unquote(file)}: the column {column} cannot be read as {kind}") from None
    raise PipelineError(f"{unquote(file)} has a column of a type that Spark does not know")


@contextmanager
def _nanoseconds_as_integers(spark: SparkSession) -> Iterator[None]:
    """Let Spark read timestamps in nanoseconds, which it does not have, as the integers that they are."""
    before = spark.conf.get(_NANOS, None)
    spark.conf.set(_NANOS, "true")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_NANOS)
        else:
            spark.conf.set(_NANOS, before)


def _cast(column: str, kind: str, own: str) -> Column:
    """The column, cast to the journal's own type. A value that cannot be cast fails with its name and its file's."""
    value = F.col(column)
    if kind == own:
        return value
    cast = value.try_cast(own)
    if own == "timestamp" and kind in _INTEGERS:
        nanoseconds = F.timestamp_micros(F.expr(f"{column} DIV 1000"))
        cast = F.when(F.abs(value) < _IS_SECONDS, cast).when(F.abs(value) >= _IS_NANOSECONDS, nanoseconds)
    said = F.lit(f": the column {column} is {kind}, and has a value that is no {own}")
    failed = F.raise_error(F.concat(F.expr("_metadata.file_path"), said))
    return F.when(value.isNotNull() & cast.isNull(), failed).otherwise(cast).alias(column)


def _literal(file: str) -> str:
    return literal(unquote(file))
