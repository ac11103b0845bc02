"""`purgatory pipeline`, as a user runs it: in processes of their own, here and on a cluster."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.__main__ import main
from purgatory.spark import replay
from purgatory.spark.trace import read
from tests.pipeline import cluster, traces
from tests.support.paths import ROOT

SMALL = ("--rate", "500", "--seconds", "4", "--instances", "3")


def _pipeline(
    *arguments: str | Path, environment: dict[str, str] | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "purgatory", "pipeline", *map(str, arguments)]
    environment = {**{name: value for name, value in os.environ.items() if "SPARK" not in name}, **(environment or {})}
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert found.returncode == code, found.stdout + found.stderr
    assert "Traceback" not in found.stderr, found.stderr
    return found


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("command") / "trace"
    found = _pipeline("generate", path, *SMALL, "--preset", "high", "--seed", "3")
    assert "generating about 6,000 operations of 3 instances" in found.stderr
    return path


def test_a_trace_is_generated_as_asked(trace: Path) -> None:
    rows = pq.read_table(trace)
    assert sorted({str(value) for value in rows["instance"].to_pylist()}) == ["instance-0", "instance-1", "instance-2"]
    assert abs(len(rows) - 6000) < 400
    expired = rows["outcome"].to_pylist().count("expired")
    assert expired / len(rows) == pytest.approx(0.5, abs=0.05)


def test_outcomes_with_many_timeouts_are_counted(trace: Path, tmp_path: Path) -> None:
    timeouts = ",".join(f"{n / 1000:g}" for n in range(500))
    told = _pipeline("replay", trace, tmp_path / "counted", "--no-costs", "--timeout", timeouts)
    assert "counting the outcomes with 500 configurations" in told.stderr
    counted = pq.read_table(tmp_path / "counted" / "summary")
    assert len(counted) == 500 * len(set(counted["instance"].to_pylist()))
    assert counted["wake_ups"].null_count == len(counted)


def test_a_cluster_gives_the_same_replay_as_this_machine(spark: SparkSession, trace: Path, tmp_path: Path) -> None:
    file = next(trace.glob("date=*/instance=instance-1/*.parquet"))
    corrupt = file.with_name("corrupt.parquet")
    corrupt.write_bytes(file.read_bytes()[:-1])
    more = ["--operations", "--skip-corrupt", "--conf", "spark.sql.shuffle.partitions=2"]
    more += ["--conf", f"spark.driver.extraJavaOptions=-Xlog:gc:file={tmp_path}/gc.log"]
    with cluster.running(tmp_path) as master:
        told = _pipeline("replay", trace, tmp_path / "there", "--master", master, *more)
    corrupt.unlink()
    assert (tmp_path / "gc.log").exists(), "settings of the process that spark-submit starts"
    # spark-submit writes Python's stderr to stdout.
    assert re.search(r"skipped .*corrupt.parquet: cannot be read", told.stdout)
    assert "running 3 simulations of 1 configurations" in told.stdout
    assert "peak dead" in told.stdout, "a table"
    executors = list(tmp_path.glob("work-*/app-*/*/stderr"))
    assert len({executor.parents[2].name for executor in executors}) == 2, "both workers have worked"
    here = replay.replay(spark, read(spark, str(trace)), replay.sweep(), operations=True)
    replay.write(here, str(tmp_path / "here"))
    for table in ("summary", "operations"):
        one, other = (pq.read_table(tmp_path / place / table).to_pylist() for place in ("here", "there"))
        assert sorted(map(repr, one)) == sorted(map(repr, other))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "out", "--rate", "0"), "rate must be a number from 1e-06"),
        (("replay", "trace", "out", "--tick", "0.001,0"), "tick must be finite and positive"),
        (("replay", "trace", "out", "--no-costs", "--wheel-size", "20,64"), "--no-costs takes one --wheel-size"),
        (
            ("replay", "trace", "out", "--remote", "spark://host"),
            "remote must be like sc://127.0.0.1:15002, not 'spark:",
        ),
        (("replay", "trace", "out", "--master", "sc://host"), "is named by --remote, and not by --master: sc://host"),
        (("replay", "trace", "out", "--conf", "spark.x"), "--conf takes NAME=VALUE, not 'spark.x'"),
    ],
)
def test_impossible_options_are_refused_before_spark_starts(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    with pytest.raises(SystemExit, match=r"^purgatory pipeline: ") as refused:
        main(["pipeline", *arguments])
    assert said in str(refused.value)


def test_a_corrupt_page_is_told_of_in_a_line(trace: Path, tmp_path: Path) -> None:
    shutil.copytree(trace, tmp_path / "trace", ignore=shutil.ignore_patterns("*.crc"))
    corrupt = next((tmp_path / "trace").glob("date=*/instance=instance-1/*.parquet"))
    content = bytearray(corrupt.read_bytes())
    content[100:4000] = b"\xff" * 3900
    corrupt.write_bytes(content)
    checkpoint = tmp_path / "checkpoint"
    said = _pipeline("stream", tmp_path / "trace", tmp_path / "windows", "--checkpoint", checkpoint, "--once", code=1)
    last = said.stderr.splitlines()[-1]
    assert re.match(rf"purgatory pipeline: .*{corrupt.name}.*--skip-corrupt leaves such files out", last)
    assert not re.search(r" ERROR \w+: ", said.stderr), said.stderr
    assert not re.search(r"^\s+at ", said.stderr, re.MULTILINE), said.stderr


def test_small_files_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    for number in range(3):
        traces.write(tmp_path / "journal", [traces.row(number)])
    for said in ("3 small files joined into 1; 0 deleted", "0 small files joined into 0; 0 deleted"):
        main(["pipeline", "compact", str(tmp_path / "journal")])
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match=f"^purgatory pipeline: there is no directory {tmp_path}/none$"):
        main(["pipeline", "compact", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match=r"keep must be a number of seconds from 0, not -1\.0"):
        main(["pipeline", "compact", str(tmp_path), "--keep", "-1"])


def test_options_that_are_no_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["pipeline", "replay", "trace", "out", "--tick", "fast"])
    assert "must be numbers with commas between them, not 'fast'" in capsys.readouterr().err


def test_missing_java_is_reported_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    for variables, said in (
        ({"JAVA_HOME": "", "PATH": str(tmp_path)}, "there is none on the PATH"),
        ({"JAVA_HOME": str(tmp_path)}, 'java is openjdk version "11.0.2"'),
    ):
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        wanted = "^purgatory pipeline: Spark needs Java 17 or newer.*apt install openjdk"
        with pytest.raises(SystemExit, match=wanted) as refused:
            main(["pipeline", "replay", "trace", "out"])
        assert said in str(refused.value)
