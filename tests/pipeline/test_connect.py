"""The commands on a Spark Connect server: the same answers as on this machine."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.spark import generate, replay, report, stream, trace
from purgatory.spark.errors import PipelineError
from purgatory.spark.session import check_remote, session
from purgatory.spark.traffic import PRESETS
from tests.pipeline import connect
from tests.support.paths import ROOT
from tests.support.servers import reserved_port

TRAFFIC = PRESETS["high"].with_changes(rate=500.0, seconds=4.0, instances=3, seed=3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect.running(tmp_path_factory.mktemp("connect")) as address:
        yield address


def _pipeline(server: str, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command without Java: there can be no other Spark than the server's."""
    environment = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    environment |= {"SPARK_REMOTE": server, "JAVA_HOME": "/nonexistent"}
    command = [sys.executable, "-m", "purgatory", "pipeline", *map(str, arguments)]
    while True:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
        # The server gives the process of a stream's sink ten seconds to start, which a busy machine may exceed.
        if "Python worker failed to connect back" not in found.stderr:
            break
    assert found.returncode == code, found.stdout + found.stderr
    assert "Traceback" not in found.stderr, found.stderr
    return found


def _rows(path: Path) -> list[str]:
    return sorted(map(repr, pq.read_table(path).to_pylist()))


@pytest.mark.timeout(1800)
def test_a_connect_server_gives_the_same_answers_as_this_machine(
    spark: SparkSession, server: str, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    traffic = ["--preset", "high", "--rate", "500", "--seconds", "4", "--instances", "3", "--seed", "3"]
    assert "generating about 6,000" in _pipeline(server, "generate", there / "trace", *traffic).stderr
    generate.write(generate.generate(spark, TRAFFIC), str(here / "trace"))
    assert _rows(there / "trace") == _rows(here / "trace")

    said = _pipeline(server, "replay", there / "trace", there / "replayed", "--operations", "--tick", "0.001,0.01")
    assert "running 6 simulations of 2 configurations" in said.stderr
    assert "peak dead" in said.stdout
    opened = trace.read(spark, str(here / "trace"))
    replay.write(replay.replay(spark, opened, replay.sweep((0.001, 0.01)), operations=True), str(here / "replayed"))
    for table in ("summary", "operations"):
        assert _rows(there / "replayed" / table) == _rows(here / "replayed" / table)

    said = _pipeline(server, "report", there / "trace", there / "report", "--replay", there / "replayed")
    assert f"written to {there}/report/index.html" in said.stdout
    report.report(spark, opened, str(here / "report"), replay=str(here / "replayed"))
    tables = [path.name for path in (here / "report" / "tables").iterdir()]
    for table in tables:
        assert _rows(there / "report" / "tables" / table) == _rows(here / "report" / "tables" / table)

    settings = stream.Settings(window=1.0, watermark=0.0, once=True)
    options: list[str | Path] = ["--window", "1", "--watermark", "0", "--once", "--checkpoint", there / "checkpoint"]
    for _ in range(2):
        said = _pipeline(server, "stream", there / "trace", there / "windows", *options)
    stream.follow(spark, str(here / "trace"), str(here / "windows"), str(here / "checkpoint"), settings)
    assert len(_rows(here / "windows")) > 4
    assert _rows(there / "windows") == _rows(here / "windows")


def test_a_corrupt_file_and_a_missing_one_are_named_in_a_line(server: str, tmp_path: Path) -> None:
    file = tmp_path / "trace" / "date=2026-11-21" / "instance=web-1" / "corrupt.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1 and no more")
    said = _pipeline(server, "report", tmp_path / "trace", tmp_path / "report", code=1).stderr
    assert re.search(r"^purgatory pipeline: .*/corrupt.parquet: cannot be read.*--skip-corrupt", said, re.MULTILINE)
    options = ("--checkpoint", tmp_path / "checkpoint", "--once")
    said = _pipeline(server, "stream", tmp_path / "trace", tmp_path / "windows", *options, code=1).stderr
    assert re.search(r"^purgatory pipeline: following .* failed: .*/corrupt.parquet", said, re.MULTILINE)
    assert len(said.splitlines()) == 2
    said = _pipeline(server, "stream", tmp_path / "none", tmp_path / "windows", *options, code=1).stderr
    assert f"purgatory pipeline: {tmp_path}/none does not exist" in said


def test_a_remote_that_is_no_connect_server_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"remote must be like sc://127\.0\.0\.1:15002, not 'local'"):
        check_remote("local")


def test_a_server_that_does_not_answer_is_named(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory.spark.session._PATIENCE", 0.5)
    silent = f"sc://127.0.0.1:{reserved_port()}"
    with (
        pytest.raises(PipelineError, match=f"no Spark Connect server has answered at {silent} for 0.5 s"),
        session(remote=silent),
    ):
        raise AssertionError("there is no server")


def test_the_sessions_module_alone_needs_a_jvm() -> None:
    sources = (ROOT / "purgatory" / "spark").glob("*.py")
    users = [path.name for path in sources if re.search(r"_jvm|_jsc|sparkContext|\.rdd\b", path.read_text())]
    assert users == ["session.py"]
