"""A bad trace is refused with the name of the fault, before anything is done with it."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.journal import SCHEMA
from purgatory.journal.compact import compact
from purgatory.spark import trace
from purgatory.spark.errors import PipelineError
from tests.pipeline import traces


def test_a_trace_has_the_rows_of_all_its_files(spark: SparkSession, tmp_path: Path) -> None:
    traces.write(tmp_path, [traces.row(1), traces.row(3)])
    traces.write(tmp_path, [traces.row(2, purgatory="produce")])
    traces.write(tmp_path, [traces.row(-1.5, keys=["a", "b"])], instance="007")
    found = trace.read(spark, str(tmp_path))
    assert (found.files, found.skipped, found.rows.count()) == (3, (), 4)
    assert found.rows.where("completes_s is not null").count() == 0
    noon = int(traces.START.timestamp()) * 1_000_000
    assert trace.parts(found) == [
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
        trace.refuse_existing(spark, str(tmp_path / name))
    trace.refuse_existing(spark, str(tmp_path / "x*"))


def test_times_as_spark_by_itself_writes_them_are_read(spark: SparkSession, tmp_path: Path) -> None:
    traces.write(tmp_path / "one", [traces.row(1.25)])
    rows = trace.read(spark, str(tmp_path / "one")).rows.drop("completes_s")
    usual = spark.conf.get("spark.sql.parquet.outputTimestampType")
    assert usual is not None
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    rows.write.partitionBy("date", "instance").parquet(str(tmp_path / "other"))
    spark.conf.set("spark.sql.parquet.outputTimestampType", usual)
    assert trace.read(spark, str(tmp_path / "other")).rows.drop("completes_s").collect() == rows.collect()


def test_files_that_are_being_written_are_no_part_of_it(spark: SparkSession, tmp_path: Path) -> None:
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
    with pytest.raises(PipelineError, match=r"there is no .*nowhere"):
        trace.read(spark, str(tmp_path / "nowhere"))
    with pytest.raises(PipelineError, match="no Parquet files"):
        trace.read(spark, str(tmp_path))


def test_files_outside_directories_that_name_the_instance_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copy(traces.write(tmp_path / "trace", [traces.row(1)]), tmp_path)
    shutil.rmtree(tmp_path / "trace")
    with pytest.raises(PipelineError, match="missing column instance"):
        trace.read(spark, str(tmp_path))


@pytest.mark.parametrize("missing", SCHEMA.names)
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
        ("arrived_at", pa.float64(), 1.0),
        ("completes_s", pa.int64(), 1),
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
    corrupt = traces.write(tmp_path, [traces.row(n / 100, keys=[f"topic {n * n}"]) for n in range(2000)])
    content = bytearray(corrupt.read_bytes())
    content[100:4000] = b"\xff" * 3900
    corrupt.write_bytes(content)
    with pytest.raises(PipelineError, match=f"{corrupt.name}.*--skip-corrupt"):
        trace.parts(trace.read(spark, str(tmp_path)))
    found = trace.read(spark, str(tmp_path), skip_corrupt=True)
    assert corrupt.name in found.skipped[0]
    assert [part.operations for part in trace.parts(found)] == [2000]


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_s": -1.0},
        {"timeout_s": float("nan")},
        {"timeout_s": None, "outcome": "expired", "late_s": 0.0},
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
        trace.parts(trace.read(spark, str(tmp_path)))
