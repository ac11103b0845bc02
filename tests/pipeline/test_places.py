"""Cubes on Hadoop's file systems: `viewfs`, which Spark's jars have, and S3 itself where its jars are.

For S3, install `moto[server]`, and name jars of `hadoop-aws` and of the AWS SDK, comma-separated, in TEST_S3A_JARS. The
package `sagemaker-pyspark` has some of Hadoop 3.3.1, which work with the settings below.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import cube, places
from purgatory.pipeline.trace import rollup
from purgatory.spark.errors import PipelineError
from tests.pipeline.commands import pipeline
from tests.pipeline.test_cube import made_up
from tests.pipeline.traces import DAY, write
from tests.support.journals import until
from tests.support.servers import reserved_port

TRAFFIC = ("--preset", "high", "--rate", "500", "--seconds", "4", "--instances", "3", "--seed", "3")


@pytest.fixture(params=["plain", "od{d} [na]me *é%20"])
def mounted(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A path of Hadoop's, and the directory that it is."""
    name = f"v{uuid4().hex}"  # Hadoop keeps its file systems by name
    spark.conf.set(f"fs.viewfs.mounttable.{name}.link./data", f"file://{tmp_path}")
    return f"viewfs://{name}/data/{request.param}", tmp_path / request.param


@pytest.fixture
def journal(tmp_path: Path) -> str:
    write(tmp_path / "journal", made_up(600))
    return str(tmp_path / "journal")


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def everything(path: str, spark: SparkSession | None = None) -> pa.Table:
    return cube.load(path, lambda day: True, spark)


def test_a_cube_on_a_file_system_of_hadoops_is_that_of_this_machine(
    spark: SparkSession, mounted: tuple[str, Path], journal: str, tmp_path: Path
) -> None:
    path, directory = mounted
    assert cube.files(path, spark) == []
    rollup(spark, journal, str(tmp_path / "cube"), print)
    here = everything(str(tmp_path / "cube"))
    for number in range(1, 4):
        rollup(spark, journal, path, print)
        (name,) = cube.files(path, spark)
        assert name.startswith(f"date={DAY}/version={number:09}-")
        assert cube.days_of(path, spark) == [DAY]
        there = everything(path, spark)
        assert rows(there) == rows(here)
        assert [(field.name, field.type) for field in there.schema] == [
            (field.name, field.type) for field in here.schema
        ]
        assert [file.relative_to(directory).as_posix() for file in directory.rglob("[!.]*.*")] == [name]
    # It is a cube of this machine as well, if it is copied, and then rollup writes it again.
    copy = str(shutil.copytree(directory, tmp_path / "copy"))
    assert rows(everything(copy)) == rows(here)
    cube.save(here.slice(0, 5), copy, DAY)
    assert cube.files(copy) == [f"date={DAY}/cube.parquet"]
    assert len(everything(copy)) == 5


def test_one_of_two_writers_of_a_day_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [pa.table({"part": ["samples"] * count, "purgatory": ["a"] * count}) for count in (2, 3)]
    write_table = pq.write_table

    def written(table: pa.Table, where: Path, **options: Any) -> None:
        write_table(table, where, **options)
        if table is tables[0]:
            cube.save(tables[1], str(tmp_path), DAY)

    monkeypatch.setattr(pq, "write_table", written)
    cube.save(tables[0], str(tmp_path), DAY)
    place = places.LocalPlace(tmp_path)
    assert [len(table) for table in place.read(place.names())] == [2]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_a_file_without_rows_is_read(spark: SparkSession, mounted: tuple[str, Path]) -> None:
    path, directory = mounted
    for number in range(3):
        (directory / f"batch={number}").mkdir(parents=True)
        pq.write_table(
            pa.table({"part": pa.array(["samples"] * number, pa.string())}),
            directory / f"batch={number}" / "part.parquet",
        )
    place = places.SparkPlace(path, spark)
    assert [len(table) for table in place.read(place.names())] == [0, 1, 2]


def test_a_cube_of_this_machine_that_was_copied_is_replaced(
    spark: SparkSession, mounted: tuple[str, Path], journal: str
) -> None:
    path, directory = mounted
    rollup(spark, journal, str(directory), print)
    before = everything(path, spark)
    assert rows(before) == rows(everything(str(directory)))
    cube.save(before.slice(0, 5), path, DAY, spark)
    assert len(everything(path, spark)) == 5
    assert len(list(directory.rglob("*.parquet/*"))) == 0


def test_a_writer_that_is_killed_leaves_the_newest_rows(
    spark: SparkSession, mounted: tuple[str, Path], journal: str, tmp_path: Path
) -> None:
    path, directory = mounted
    rollup(spark, journal, path, print)
    table = everything(path, spark)
    shutil.copytree(directory, tmp_path / "before")
    cube.save(table.slice(0, 5), path, DAY, spark)
    shutil.copytree(tmp_path / "before", directory, dirs_exist_ok=True)  # as if the older version had not been emptied
    assert len(everything(path, spark)) == 5
    (directory / f"date={DAY}" / "version=000000009-half").mkdir()  # nor is one there that is not whole
    (directory / f"date={DAY}" / "version=000000009-half" / ".part.parquet").write_bytes(b"half")
    assert len(everything(path, spark)) == 5
    cube.save(table.slice(0, 7), path, DAY, spark)
    assert len(everything(path, spark)) == 7
    assert duckdb.connect().execute(
        "SELECT count(*) FROM read_parquet(?)", [[str(file) for file in directory.rglob("[!.]*.parquet")]]
    ).fetchall() == [(7,)]


def test_readers_find_one_cube_or_the_other(spark: SparkSession, mounted: tuple[str, Path], journal: str) -> None:
    path, _ = mounted
    rollup(spark, journal, path, print)
    table = everything(path, spark)
    tables = [table, pa.concat_tables([table] * 3)]
    is_over = threading.Event()

    def write_again() -> None:
        try:
            for number in range(10):
                cube.save(tables[number % 2], path, DAY, spark)
        finally:
            is_over.set()

    writer = threading.Thread(target=write_again)
    writer.start()
    while not is_over.is_set():
        assert len(everything(path, spark)) in {len(each) for each in tables}
    writer.join()


def test_what_is_no_place_is_named(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"gopher://host/cube cannot be used: .*No FileSystem for scheme"):
        cube.files("gopher://host/cube", spark)
    with pytest.raises(PipelineError, match="s3a://bucket/cube cannot be used without Spark"):
        cube.files("s3a://bucket/cube")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("cube", False), ("/cube", False), ("C:/cube", False), ("file:///cube", False), ("file:/cube", False)]
    + [(f"{scheme}/cube", True) for scheme in ("s3a:/", "abfss://c@a.net", "gs://b", "hdfs:", "hdfs://nn:8020")],
)
def test_a_scheme_is_hadoops(path: str, expected: bool) -> None:
    assert places.needs_spark(path) is expected


def test_a_cube_with_the_scheme_of_files_needs_no_spark(spark: SparkSession, journal: str, tmp_path: Path) -> None:
    rollup(spark, journal, f"file://{tmp_path}/cube", print)
    assert cube.days_of(f"file://{tmp_path}/cube") == cube.days_of(str(tmp_path / "cube")) == [DAY]


@pytest.fixture
def bucket() -> Iterator[tuple[str, list[str]]]:
    """A bucket of a real server of S3's protocol, as a path, and the options with which Spark reaches it."""
    jars = os.environ.get("TEST_S3A_JARS")
    server = shutil.which("moto_server", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if jars is None or server is None:
        pytest.skip("it needs moto_server, and jars in TEST_S3A_JARS")
    port = reserved_port()
    process = subprocess.Popen([server, "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def is_made() -> bool:
        try:
            return httpx.put(f"{url}/journals").status_code == 200
        except httpx.TransportError:
            assert process.poll() is None
            return False

    until(is_made)
    settings = {
        "endpoint": url,
        "path.style.access": "true",
        "access.key": "key",
        "secret.key": "secret",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        # Hadoop's newer defaults have units, which its older jars do not know.
        "connection.timeout": "60000",
        "connection.establish.timeout": "30000",
        "threads.keepalivetime": "60",
        "multipart.purge.age": "86400",
    }
    options = ["--conf", f"spark.jars={jars}"]
    for name, value in settings.items():
        options += ["--conf", f"spark.hadoop.fs.s3a.{name}={value}"]
    yield "s3a://journals", options
    process.kill()
    process.wait()


@pytest.mark.timeout(900)
def test_all_commands_work_on_s3(bucket: tuple[str, list[str]], tmp_path: Path) -> None:
    place, options = bucket
    check_commands(place, options, tmp_path)


@pytest.mark.timeout(900)
def test_all_commands_work_on_a_file_system_of_hadoops(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    link = f"spark.hadoop.fs.viewfs.mounttable.commands.link./data=file://{tmp_path}/data"
    check_commands("viewfs://commands/data", ["--conf", link], tmp_path)


def check_commands(place: str, options: list[str], directory: Path) -> None:
    """Make a journal, its cube, its stream's cube and their reports at a place, and see that the reports agree."""
    pipeline("generate", f"{place}/journal", *TRAFFIC, *options)
    pipeline("rollup", f"{place}/journal", f"{place}/cube", *options)
    stream = ("stream", f"{place}/journal", f"{place}/streamed", "--checkpoint", f"{place}/checkpoint", "--once")
    pipeline(*stream, "--slot", "1", *options)
    reports = []
    for name in ("journal", "cube", "streamed"):
        out = directory / f"report-{name}"
        pipeline("report", f"{place}/{name}", out, "--timeout-rate", "0.1", *options)
        reports.append(rows(pa.concat_tables([pa.parquet.read_table(out / "tables" / "advice")])))
    assert reports[0] == reports[1] == reports[2]
    again = ("stream", f"{place}/journal", f"{place}/cube", "--checkpoint", f"{place}/another", "--once")
    assert "is a cube that rollup has written" in pipeline(*again, *options, code=1).stderr
