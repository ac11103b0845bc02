"""A bad trace is refused with the name of the fault, before anything is done with it."""

import importlib
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.journal import SCHEMA
from purgatory.journal.compact import compact
from purgatory.spark import trace
from purgatory.spark.columns import COLUMNS, DEADLINE
from purgatory.spark.errors import PipelineError
from purgatory.spark.files import refuse_existing
from tests.pipeline import traces


def test_a_trace_has_the_rows_of_all_its_files(spark: SparkSession, tmp_path: Path) -> None:
    traces.write(tmp_path, [traces.row(1), traces.row(3)])
    traces.write(tmp_path, [traces.row(2, purgatory="produce")])
    traces.write(tmp_path, [traces.row(-1.5, keys=["a", "b"])], instance="007")
    found = trace.read(spark, str(tmp_path))
    assert (found.files, found.skipped, found.rows.count()) == (3, (), 4)
    assert found.rows.where("completes_s is not null").count() == 0
    noon = int(traces.START.timestamp()) * 1_000_000
    assert list(found.parts) == [
        trace.Part("007", "fetch", 1, noon - 1_500_000, noon - 1_500_000),
        trace.Part("web-1", "fetch", 2, noon + 1_000_000, noon + 3_000_000),
        trace.Part("web-1", "produce", 1, noon + 2_000_000, noon + 2_000_000),
    ]


@pytest.mark.parametrize("name", ["a b", "ü[1]", "x{1,2}", "100%25", "q?*", "#1"])
def test_a_directory_may_have_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    traces.write(tmp_path / name, [traces.row(1)])
    found = trace.read(spark, str(tmp_path / name))
    assert (found.files, found.rows.count()) == (1, 1)
    with pytest.raises(PipelineError, match="exists"):
        refuse_existing(spark, str(tmp_path / name))
    refuse_existing(spark, str(tmp_path / "x*"))


def test_times_as_spark_by_itself_writes_them_are_read(spark: SparkSession, tmp_path: Path) -> None:
    traces.write(tmp_path / "one", [traces.row(1.25)])
    rows = trace.read(spark, str(tmp_path / "one")).rows.drop("completes_s")
    usual = spark.conf.get("spark.sql.parquet.outputTimestampType")
    assert usual is not None
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    rows.write.partitionBy("date", "instance").parquet(str(tmp_path / "other"))
    spark.conf.set("spark.sql.parquet.outputTimestampType", usual)
    assert trace.read(spark, str(tmp_path / "other")).rows.drop("completes_s").collect() == rows.collect()


pd: Any = importlib.import_module("pandas")  # it has no types

_ROWS = [
    traces.row(1.25, waited_s=0.5, keys=["a", "ü"]),
    traces.row(2.5, waited_s=2.0, timeout_s=2.0, outcome="expired", late_s=0.0),
    traces.row(3.0, waited_s=1.5, timeout_s=None, completes_s=1.5),
]
"""Operations whose numbers all types have."""

_NUMBERS = ("timeout_s", "deadline_s", "waited_s", "late_s", "completes_s")
_TEXTS = ("purgatory", "operation", "outcome")
_OTHERS: dict[str, dict[str, pa.DataType]] = {
    "float32": dict.fromkeys(_NUMBERS, pa.float32()),
    "decimal": dict.fromkeys(_NUMBERS, pa.decimal128(30, 3)),
    "large strings": dict.fromkeys(_TEXTS, pa.large_string()),
    "dictionaries": dict.fromkeys(_TEXTS, pa.dictionary(pa.int32(), pa.string())),
    "a large list": {"keys": pa.large_list(pa.large_string())},
    "a list of dictionaries": {"keys": pa.list_(pa.dictionary(pa.int8(), pa.string()))},
    "a list of a fixed size": {"keys": pa.list_(pa.string(), 1)},
    **{
        f"{unit}, {zone}": {"arrived_at": pa.timestamp(unit, zone), "opened_at": pa.timestamp(unit, zone)}
        for unit in ("ms", "us", "ns")
        for zone in ("UTC", "Europe/Berlin", None)
    },
}


@pytest.fixture
def as_written(spark: SparkSession, tmp_path: Path) -> list[Any]:
    """The rows of `_ROWS`, read from a file with a journal's types."""
    fields = [*SCHEMA, pa.field("completes_s", pa.float64())]
    traces.write(tmp_path / "usual", _ROWS, schema=pa.schema(fields))
    return _read(spark, tmp_path / "usual")


def _read(spark: SparkSession, path: Path) -> list[Any]:
    rows = trace.read(spark, str(path)).rows.orderBy("arrived_at").collect()
    assert [row.asDict().keys() for row in rows] == [COLUMNS.keys()] * len(rows)
    return rows


@pytest.mark.parametrize("types", _OTHERS)
def test_types_that_hold_the_same_are_cast(
    spark: SparkSession, tmp_path: Path, as_written: list[Any], types: str
) -> None:
    others = _OTHERS[types]
    rows = [{**row, "keys": row["keys"][:1]} for row in _ROWS]
    fields = [*SCHEMA, pa.field("completes_s", pa.float64())]
    usual = pa.Table.from_pylist(rows, pa.schema(fields))
    table = pa.table({name: _as(usual[name], others.get(name, usual[name].type)) for name in usual.column_names})
    directory = tmp_path / "other" / "date=2026-11-21" / "instance=web-1"
    directory.mkdir(parents=True)
    pq.write_table(table, directory / "other.parquet")
    expected = [{**row.asDict(), "keys": row["keys"][:1]} for row in as_written]
    assert [row.asDict() for row in _read(spark, tmp_path / "other")] == expected


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_timestamp(kind) and kind.tz is None:
        column = column.cast(pa.timestamp("us"))  # the time in UTC
    return column.cast(kind) if pa.types.is_decimal(kind) else pa.chunked_array([pa.array(column.to_pylist(), kind)])


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64(), pa.null()])
def test_whole_numbers_are_cast(spark: SparkSession, tmp_path: Path, kind: pa.DataType) -> None:
    others = ("timeout_s", "deadline_s", "late_s", "completes_s")
    value = None if kind == pa.null() else 3
    outcome = "satisfied" if value is None else "expired"
    row = traces.row(1, waited_s=6.0, outcome=outcome, **dict.fromkeys(others, value))
    fields = [field for field in SCHEMA if field.name not in others]
    traces.write(tmp_path, [row], schema=pa.schema([*fields, *(pa.field(name, kind) for name in others)]))
    [found] = _read(spark, tmp_path)
    assert [found[name] for name in others] == [value] * 4


def test_files_of_several_writers_are_one_trace(spark: SparkSession, tmp_path: Path, as_written: list[Any]) -> None:
    """A journal's file, one that pandas has written, and one of DuckDB's."""
    usual = traces.write(tmp_path / "all", _ROWS)
    with pq.ParquetFile(usual) as parquet:
        frame = parquet.read().to_pandas()
    assert frame["arrived_at"].dtype == "datetime64[us, UTC]"
    frame["arrived_at"] = frame["arrived_at"].astype("datetime64[ns, UTC]")
    frame["outcome"] = frame["outcome"].astype("category")
    frame["waited_s"] = frame["waited_s"].astype("float32")
    frame["late_s"] = pd.Series([None, 0, None], dtype="Int64")
    frame.to_parquet(usual.with_name("pandas.parquet"))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            f"COPY (SELECT * REPLACE (arrived_at::TIMESTAMP AS arrived_at, waited_s::DECIMAL(9, 3) AS waited_s,"
            f" timeout_s::BIGINT AS timeout_s) FROM read_parquet('{usual}', hive_partitioning = false))"
            f" TO '{usual.with_name('duckdb.parquet')}' (FORMAT parquet)"
        )
    found = [{**row.asDict(), "completes_s": None} for row in _read(spark, tmp_path / "all")]
    assert found == [{**row.asDict(), "completes_s": None} for row in as_written for _ in range(3)]


def test_the_same_file_twice_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    file = traces.write(tmp_path, [traces.row(1), traces.row(2)])
    traces.write(tmp_path, [traces.row(1), traces.row(3)])
    traces.write(tmp_path, [traces.row(1), traces.row(2)], instance="web-2")
    traces.write(tmp_path, [])
    traces.write(tmp_path, [])
    assert trace.read(spark, str(tmp_path)).rows.count() == 6
    for copy in (file.with_name("copy.parquet"), tmp_path / "backup" / file.relative_to(tmp_path)):
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
        with pytest.raises(PipelineError, match=r"\.parquet is a copy of .*\.parquet: remove one of them"):
            trace.read(spark, str(tmp_path))
        copy.unlink()


def test_rows_of_older_journals_are_read_with_a_warning_if_a_deadline_is_unknown(
    spark: SparkSession, tmp_path: Path
) -> None:
    older = pa.schema([field for field in SCHEMA if field.name not in ("deadline_s", "opened_at", "missed")])
    traces.write(tmp_path, [traces.row(1), traces.row(2, waited_s=7.0, outcome="expired", late_s=0.5)], schema=older)
    found = trace.read(spark, str(tmp_path))
    assert found.warnings == ()
    traces.write(tmp_path, [traces.row(3, waited_s=7.0), traces.row(4, timeout_s=None, waited_s=7.0)], schema=older)
    traces.write(tmp_path, [traces.row(5, waited_s=7.0)])
    found = trace.read(spark, str(tmp_path))
    deadlines = found.rows.orderBy("arrived_at").selectExpr(f"{DEADLINE} AS deadline_s").collect()
    assert [row.deadline_s for row in deadlines] == [1.0, 6.5, None, None, 1.0]
    [warning] = found.warnings
    assert warning.startswith("1 operations have no deadline_s")


def test_files_that_are_being_written_are_no_part_of_a_trace(spark: SparkSession, tmp_path: Path) -> None:
    file = traces.write(tmp_path, [traces.row(1)])
    shutil.copy(file, file.with_name(".x.parquet.unfinished"))
    file.with_name("_SUCCESS").touch()
    assert trace.read(spark, str(tmp_path)).rows.count() == 1


def test_joined_files_and_those_that_are_not_yet_joined_are_one_trace(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(6):
        traces.write(tmp_path, [traces.row(number)], instance=f"web-{number % 2}")
    expected = sorted(trace.read(spark, str(tmp_path)).rows.collect())
    opened = trace.read(spark, str(tmp_path))
    compact(str(tmp_path), now=lambda: traces.START.timestamp() + 86_400)
    assert sorted(opened.rows.collect()) == expected, "a reader that has begun before"
    found = trace.read(spark, str(tmp_path))
    assert (found.files, sorted(found.rows.collect())) == (2, expected)
    compacted = tmp_path / "_compacted"
    (compacted / "manifests").rename(compacted / "away")
    found = trace.read(spark, str(tmp_path))
    assert (found.files, sorted(found.rows.collect())) == (6, expected), "a killed run has published nothing"
    (compacted / "away").rename(compacted / "manifests")
    traces.write(tmp_path, [traces.row(6)], instance="web-0")
    traces.write(tmp_path, [traces.row(7)], instance="web-2")
    found = trace.read(spark, str(tmp_path))
    assert (found.files, found.rows.count()) == (4, 8)
    for path in tmp_path.glob("date=*/*/*.parquet"):
        if pq.ParquetFile(path).read()["arrived_at"][0].as_py() < traces.START + timedelta(seconds=6):
            path.unlink()
    found = trace.read(spark, str(tmp_path))
    assert (found.files, found.rows.count()) == (4, 8)
    shutil.rmtree(tmp_path / f"date={traces.START:%Y-%m-%d}")
    assert sorted(trace.read(spark, str(tmp_path)).rows.collect()) == expected
    joined = next((compacted / "data").rglob("*.parquet"))
    joined.write_bytes(joined.read_bytes()[:-9])
    with pytest.raises(PipelineError, match=f"{joined.name}: cannot be read"):
        trace.read(spark, str(tmp_path))
    assert trace.read(spark, str(tmp_path), skip_corrupt=True).rows.count() == 3


def test_a_directory_that_is_not_there_or_has_no_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nowhere does not exist"):
        trace.read(spark, str(tmp_path / "nowhere"))
    with pytest.raises(PipelineError, match="no Parquet files"):
        trace.read(spark, str(tmp_path))


def test_files_outside_directories_that_name_the_instance_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copy(traces.write(tmp_path / "trace", [traces.row(1)]), tmp_path)
    shutil.rmtree(tmp_path / "trace")
    with pytest.raises(PipelineError, match="missing column instance"):
        trace.read(spark, str(tmp_path))


@pytest.mark.parametrize(
    "missing", [each for each in SCHEMA.names if each not in ("deadline_s", "opened_at", "missed")]
)
def test_a_missing_column_is_refused_by_its_name_and_the_files(
    spark: SparkSession, tmp_path: Path, missing: str
) -> None:
    traces.write(tmp_path, [traces.row(1)])
    odd = traces.write(tmp_path, [traces.row(1)], schema=SCHEMA.remove(SCHEMA.get_field_index(missing)))
    with pytest.raises(PipelineError, match=f"{odd.name}: missing column {missing}"):
        trace.read(spark, str(tmp_path))


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("waited_s", pa.string(), "0.5"),
        ("keys", pa.string(), "topic"),
        ("keys", pa.list_(pa.int64()), [1]),
        ("keys", pa.map_(pa.string(), pa.string()), {"topic": "a"}),
        ("keys", pa.list_(pa.list_(pa.string())), [["topic"]]),
        ("arrived_at", pa.float64(), 1.0),
        ("arrived_at", pa.date32(), traces.START.date()),
        ("outcome", pa.binary(), b"satisfied"),
        ("purgatory", pa.list_(pa.string()), ["fetch"]),
        ("completes_s", pa.float16(), np.float16(0.5)),
    ],
)
def test_a_column_of_another_type_is_refused_by_its_name(
    spark: SparkSession, tmp_path: Path, column: str, kind: pa.DataType, value: object
) -> None:
    fields = [field for field in SCHEMA if field.name != column]
    traces.write(tmp_path, [traces.row(1, **{column: value})], schema=pa.schema([*fields, pa.field(column, kind)]))
    with pytest.raises(PipelineError, match=f"column {column} is "):
        trace.read(spark, str(tmp_path))


def test_a_corrupt_file_is_named_and_left_out_only_if_asked(spark: SparkSession, tmp_path: Path) -> None:
    good = traces.write(tmp_path / "a trace", [traces.row(1), traces.row(2)])
    corrupt = good.with_name("corrupt.parquet")
    corrupt.write_bytes(good.read_bytes()[:-20])
    empty = good.with_name("empty.parquet")
    empty.touch()
    with pytest.raises(PipelineError, match=r"corrupt.parquet: cannot be read.*and 1 more.*--skip-corrupt"):
        trace.read(spark, str(tmp_path / "a trace"))
    found = trace.read(spark, str(tmp_path / "a trace"), skip_corrupt=True)
    assert [name.split(": ")[0].rpartition("/")[2] for name in found.skipped] == ["corrupt.parquet", "empty.parquet"]
    assert (found.files, found.rows.count()) == (1, 2)
    good.unlink()
    with pytest.raises(PipelineError, match="there is no other file"):
        trace.read(spark, str(tmp_path / "a trace"), skip_corrupt=True)


def test_a_file_that_is_corrupt_inside_is_named_too(spark: SparkSession, tmp_path: Path) -> None:
    traces.write(tmp_path, [traces.row(n / 100, keys=[f"topic {n * n}"]) for n in range(2000)])
    corrupt = traces.write(tmp_path, [traces.row(n / 100, keys=[f"topic {n * n}"]) for n in range(2001)])
    content = bytearray(corrupt.read_bytes())
    content[100:4000] = b"\xff" * 3900
    corrupt.write_bytes(content)
    with pytest.raises(PipelineError, match=f"{corrupt.name}.*--skip-corrupt"):
        trace.read(spark, str(tmp_path))
    found = trace.read(spark, str(tmp_path), skip_corrupt=True)
    assert corrupt.name in found.skipped[0]
    assert [part.operations for part in found.parts] == [2000]


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_s": -1.0},
        {"timeout_s": float("nan")},
        {"timeout_s": None, "outcome": "expired", "late_s": 0.0},
        {"deadline_s": float("inf")},
        {"waited_s": float("inf")},
        {"waited_s": -0.1},
        {"outcome": "lost"},
        {"late_s": 0.1},
        {"late_s": None, "outcome": "expired"},
        {"keys": []},
    ],
)
def test_values_that_no_operation_has_are_refused_by_column(
    spark: SparkSession, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    traces.write(tmp_path, [traces.row(1)])
    file = traces.write(tmp_path, [traces.row(1), traces.row(2, **wrong)])
    with pytest.raises(PipelineError, match=f"1 rows have an impossible {next(iter(wrong))}.*{file.name}"):
        trace.read(spark, str(tmp_path))
