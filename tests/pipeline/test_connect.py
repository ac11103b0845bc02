"""The commands on a Spark Connect server: the same answers as on this machine."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import cube, generate, report, stream, trace
from purgatory.pipeline.generate import PRESETS
from purgatory.spark.errors import PipelineError
from purgatory.spark.session import session
from tests.pipeline.clusters import connect_server
from tests.pipeline.commands import pipeline
from tests.pipeline.test_casting import recast, rows_of
from tests.pipeline.traces import write
from tests.support.servers import reserved_port

TRAFFIC = replace(PRESETS["high"], rate=500.0, seconds=4.0, instances=3, seed=3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Spark Connect server on loopback, a process with two cores. Its address, `sc://127.0.0.1:…`."""
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


def _pipeline(server: str, *arguments: str | Path, code: int = 0) -> str:
    """Run a command without Java: there can be no other Spark than the server's. Returns what it says."""
    done = pipeline(*arguments, code=code, SPARK_REMOTE=server, JAVA_HOME="/nonexistent")
    return done.stderr + done.stdout


def _rows(path: Path) -> list[str]:
    return sorted(map(repr, pq.read_table(path).to_pylist()))


@pytest.mark.timeout(900)
def test_a_connect_server_gives_the_same_answers_as_this_machine(
    spark: SparkSession, server: str, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    traffic = ["--preset", "high", "--rate", "500", "--seconds", "4", "--instances", "3", "--seed", "3"]
    assert "generating about 6,000" in _pipeline(server, "generate", there / "journal", *traffic)
    generate.write(generate.generate(spark, TRAFFIC), str(here / "journal"))
    assert _rows(there / "journal") == _rows(here / "journal")

    _pipeline(server, "rollup", there / "journal", there / "cube")
    trace.rollup(spark, str(here / "journal"), str(here / "cube"), lambda line: None)
    assert _rows(there / "cube") == _rows(here / "cube")

    said = _pipeline(server, "report", there / "journal", there / "report", "--timeout-rate", "0.1")
    assert f"written to {there}/report/index.html" in said
    report.report(cube.load(str(here / "cube"), lambda day: True), str(here / "report"), 0.1)
    for table in (here / "report" / "tables").iterdir():
        assert _rows(there / "report" / "tables" / table.name) == _rows(table)

    options: list[str | Path] = ["--slot", "1", "--once", "--checkpoint", there / "checkpoint"]
    for _ in range(2):
        _pipeline(server, "stream", there / "journal", there / "streamed", *options)
    journal, streamed, checkpoint = (str(here / name) for name in ("journal", "streamed", "checkpoint"))
    stream.follow(spark, journal, streamed, checkpoint, print, slot=1.0, once=True)
    assert _rows(there / "streamed" / "batch=0") == _rows(here / "streamed" / "batch=0")


def test_files_of_other_types_are_cast_on_a_server_too(server: str, tmp_path: Path) -> None:
    for kind in ("ordinary", "other"):
        for instance in range(3):
            write(tmp_path / kind, rows_of(instance), f"web-{instance}")
    recast(next((tmp_path / "other").rglob("instance=web-0/*")), "int64", ("timeout_s",))
    recast(next((tmp_path / "other").rglob("instance=web-1/*")), "ns", ("arrived_at", "opened_at"))
    for kind in ("ordinary", "other"):
        _pipeline(server, "rollup", tmp_path / kind, tmp_path / f"cube-{kind}")
    assert _rows(tmp_path / "cube-ordinary") == _rows(tmp_path / "cube-other")
    wrong = write(tmp_path / "other", rows_of(0), "web-2")
    table = pq.read_table(wrong, partitioning=None)
    place = table.column_names.index("timeout_s")
    pq.write_table(table.set_column(place, "timeout_s", pa.array(["soon"] * len(table))), wrong)
    said = _pipeline(server, "rollup", tmp_path / "other", tmp_path / "cube", code=1)
    assert f"{wrong.name}: the column timeout_s is string, and has a value that is no double" in said


def test_a_corrupt_file_and_a_missing_one_are_named_in_a_line(server: str, tmp_path: Path) -> None:
    file = tmp_path / "journal" / "date=2026-11-21" / "instance=web-1" / "corrupt.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1 and no more")
    said = _pipeline(server, "report", tmp_path / "journal", tmp_path / "report", code=1)
    assert re.search(r"^purgatory pipeline: .*/corrupt.parquet", said, re.MULTILINE)
    options = ("--checkpoint", tmp_path / "checkpoint", "--once")
    said = _pipeline(server, "stream", tmp_path / "journal", tmp_path / "cube", *options, code=1)
    assert re.search(r"^purgatory pipeline: following .* failed: .*/corrupt.parquet", said, re.MULTILINE)
    assert len(said.splitlines()) == 2
    said = _pipeline(server, "stream", tmp_path / "none", tmp_path / "cube", *options, code=1)
    assert f"purgatory pipeline: {tmp_path}/none does not exist" in said


def test_a_server_that_does_not_answer_is_named(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory.spark.session._PATIENCE", 0.5)
    silent = f"sc://127.0.0.1:{reserved_port()}"
    with (
        pytest.raises(PipelineError, match=f"no Spark Connect server has answered at {silent} for 0.5 s"),
        session(remote=silent),
    ):
        raise AssertionError("there is no server")
