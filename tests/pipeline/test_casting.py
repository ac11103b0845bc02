"""Journals some of whose files have columns of other types: the same cube as if they had not, or the file's name."""

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import casting, trace
from purgatory.pipeline.stream import follow
from purgatory.spark.errors import PipelineError
from tests.pipeline.traces import DAY, START, row, write

NUMBERS: dict[str, pa.DataType] = {
    "float32": pa.float32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "decimal": pa.decimal128(12, 3),
    "decimal as int32": pa.decimal128(9, 3),
    "decimal as int64": pa.decimal128(18, 3),
    "string": pa.string(),
}
TIMES: dict[str, pa.DataType] = {
    "ns": pa.timestamp("ns", "UTC"),
    "ns without zone": pa.timestamp("ns"),
    "us without zone": pa.timestamp("us"),
    "ms": pa.timestamp("ms", "UTC"),
}
KINDS = NUMBERS | TIMES


def rows_of(instance: int) -> list[dict[str, Any]]:
    """Two hundred rows whose numbers and times have the same value in each type."""
    opened = START.replace(minute=instance)
    return [
        row(
            number / 4, timeout_s=2.0 + instance, waited_s=float(number % 2), keys=[f"k-{number % 7}"], opened_at=opened
        )
        for number in range(200)
    ]


def recast(file: Path, kind: str, columns: tuple[str, ...]) -> None:
    """Write a file again, with another type of these columns."""
    table = pq.read_table(file, partitioning=None)
    for column in columns:
        cast = pc.cast(table[column], KINDS[kind], safe=False)
        table = table.set_column(table.column_names.index(column), pa.field(column, cast.type), cast)
    pq.write_table(table, file, store_decimal_as_integer=" as int" in kind)


def journal(path: Path, kind: str | None, odd: Callable[[int], bool]) -> str:
    """A journal of five instances, of which the `odd` ones have columns of another type."""
    columns = ("arrived_at", "opened_at") if kind in TIMES else ("timeout_s", "waited_s")
    for instance in range(5):
        file = write(path, rows_of(instance), f"web-{instance}")
        if kind is not None and odd(instance):
            recast(file, kind, columns)
    return str(path)


def cube_of(spark: SparkSession, path: str) -> list[str]:
    return sorted(map(repr, trace.of_days(spark, path, lambda day: True).to_pylist()))


@pytest.fixture(scope="module")
def ordinary(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return cube_of(spark, journal(tmp_path_factory.mktemp("ordinary"), None, lambda instance: False))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("odd", [{2}, {4}, {0, 1, 2, 3, 4}], ids=["older and newer ones are ordinary", "newest", "all"])
def test_a_file_of_another_type_gives_the_same_cube(
    spark: SparkSession, tmp_path: Path, ordinary: list[str], kind: str, odd: set[int]
) -> None:
    assert cube_of(spark, journal(tmp_path, kind, odd.__contains__)) == ordinary


def test_each_file_may_have_types_of_its_own(spark: SparkSession, tmp_path: Path, ordinary: list[str]) -> None:
    kinds = ["int64", "ns", "decimal as int32", "float32", None]
    for instance, kind in enumerate(kinds):
        file = write(tmp_path, rows_of(instance), f"web-{instance}")
        if kind is not None:
            recast(file, kind, ("arrived_at",) if kind in TIMES else ("waited_s",))
    assert cube_of(spark, str(tmp_path)) == ordinary


def test_files_of_an_instance_may_differ(spark: SparkSession, tmp_path: Path) -> None:
    made = []
    for kind in (None, "int64", "ns"):
        path = tmp_path / f"{kind}"
        for number in range(5):
            file = write(path, rows_of(0))
            file = file.rename(file.with_name(f"{number}.parquet"))
            if kind is not None and number in (1, 2):
                recast(file, kind, ("arrived_at",) if kind in TIMES else ("timeout_s",))
        made.append(cube_of(spark, str(path)))
    assert made[0] == made[1] == made[2]


def test_only_days_that_are_asked_for_are_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    recast(write(tmp_path / "journal", rows_of(0)), "int64", ("timeout_s",))
    other = DAY.replace(day=DAY.day - 1)
    damaged = write(tmp_path / "journal", rows_of(1), day=other)
    damaged.write_bytes(damaged.read_bytes()[:-50])
    said: list[str] = []
    assert trace.rollup(spark, str(tmp_path / "journal"), str(tmp_path / "cube"), said.append, [DAY]) == [DAY]
    assert said[0].startswith(f"{DAY}: 200 operations")


def test_an_ordinary_day_is_scanned_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordinary: list[str]
) -> None:
    opened: list[int] = []
    kinds_of = casting.kinds_of

    def noted(spark: SparkSession, path: str, files: list[str]) -> dict[str, str] | None:
        opened.append(len(files))
        return kinds_of(spark, path, files)

    for module in ("trace", "casting"):
        monkeypatch.setattr(f"purgatory.pipeline.{module}.kinds_of", noted)
    for number in range(20):
        write(tmp_path, rows_of(number % 5), f"web-{number % 5}")
    cube_of(spark, str(tmp_path))
    assert opened == [1, 5]  # the newest file, and the last one of each instance


WRONG: list[tuple[str, pa.Array, str]] = [
    ("timeout_s", pa.array(["1.5", "soon"]), "the column timeout_s is string, and has a value that is no double"),
    ("timeout_s", pa.array([[1.0], [2.0]]), r"the column timeout_s is array<double>, which is not cast to double"),
    ("arrived_at", pa.array([1, 10**13]), "the column arrived_at is bigint, and has a value that is no timestamp"),
    ("waited_s", pa.array([1, 2], pa.time64("us")), "the column waited_s "),
    ("missed", pa.array(["yes", "perhaps"]), "the column missed is string, and has a value that is no boolean"),
    ("keys", pa.array(["a", "b"]), "the column keys is string, which is not cast to array<string>"),
]


@pytest.mark.parametrize(("column", "values", "said"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("instance", ["web-0", "web-9"], ids=["older", "newest"])
def test_a_type_that_cannot_be_cast_is_refused_by_column_and_file(
    spark: SparkSession, tmp_path: Path, column: str, values: pa.Array, said: str, instance: str
) -> None:
    write(tmp_path, rows_of(1), "web-1")
    file = write(tmp_path, [row(0.0), row(1.0)], instance)
    table = pq.read_table(file, partitioning=None)
    pq.write_table(table.set_column(table.column_names.index(column), column, values), file)
    with pytest.raises(PipelineError, match=rf"{file.name}: {said}"):
        cube_of(spark, str(tmp_path))


def test_a_damaged_file_is_named_beside_files_of_other_types(spark: SparkSession, tmp_path: Path) -> None:
    path = Path(journal(tmp_path, "int64", {1}.__contains__))
    damaged = write(path, rows_of(1), "web-2")
    damaged.write_bytes(damaged.read_bytes()[:-50])
    with pytest.raises(Exception, match=re.escape(damaged.name)):
        cube_of(spark, str(path))


def test_a_stream_names_the_file_that_it_cannot_read(spark: SparkSession, tmp_path: Path) -> None:
    path = Path(journal(tmp_path / "journal", None, lambda instance: False))
    other = write(path, rows_of(1), "web-2")
    recast(other, "int64", ("timeout_s",))
    with pytest.raises(PipelineError, match=rf"^following .*journal failed: .*{other.name}.*timeout_s"):
        follow(spark, str(path), str(tmp_path / "cube"), str(tmp_path / "checkpoint"), print, once=True)


def test_decimals_are_cast_to_the_nearest_double(spark: SparkSession, tmp_path: Path) -> None:
    file = write(tmp_path, [row(0.0)])
    table = pq.read_table(file, partitioning=None)
    place = table.column_names.index("waited_s")
    pq.write_table(table.set_column(place, "waited_s", pa.array([Decimal("0.1")], pa.decimal128(9, 1))), file)
    assert pc.max(trace.of_days(spark, str(tmp_path), lambda day: True)["wait_max"]).as_py() == 0.1
