"""`purgatory pipeline`, as a user runs it: in processes of their own, here and on a cluster."""

import re
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from purgatory.__main__ import main
from purgatory.pipeline import cube
from purgatory.pipeline.command import _last
from purgatory.pipeline.trace import refuse_empty
from purgatory.pipeline.words import seconds
from purgatory.spark.errors import first_line
from tests.pipeline.commands import command, pipeline
from tests.pipeline.traces import row, write
from tests.support.paths import ROOT

SMALL = ("--rate", "500", "--seconds", "20", "--seed", "3")


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("command") / "journal"
    found = pipeline("generate", path, *SMALL)
    assert "generating about 40,000 operations of 4 instances" in found.stderr
    assert not found.stdout
    return path


@pytest.fixture(scope="module")
def rolled_up(journal: Path) -> Path:
    path = journal.with_name("cube")
    found = pipeline("rollup", journal, path)
    assert re.search(r"2025-06-15: \d\d,\d{3} operations in [\d,]+ rows", found.stderr)
    assert not found.stdout
    return path


def rows(path: Path) -> list[str]:
    return sorted(map(repr, cube.load(str(path), lambda day: True).to_pylist()))


def test_a_cube_and_its_journal_have_the_same_report(
    journal: Path, rolled_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_journal = pipeline("report", journal, tmp_path / "one", "--timeout-rate", "0.1", "--after-expiry", "leave")
    lines = of_journal.stdout.splitlines()
    assert lines[-1] == f"written to {tmp_path}/one/index.html"
    assert lines[0].startswith("red: instance-3 is slow: generated / Request waits ")
    assert lines[1].startswith("amber: generated / Request: nobody checked ")
    assert re.match(r"generated / Request: 2\.\d+ s\. With this timeout at most 10 % expire", lines[2])
    assert of_journal.stderr.splitlines()[-1] == "writing the report"
    # Of a cube there is one without Java.
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    main(["pipeline", "report", str(rolled_up), str(tmp_path / "two"), "--timeout-rate=0.1", "--after-expiry=leave"])
    for table in ("advice", "ladder", "operations", "instances", "keys", "load"):
        one, two = (pq.read_table(tmp_path / place / "tables" / table).to_pylist() for place in ("one", "two"))
        assert one == two


@pytest.mark.timeout(900)
def test_a_cluster_makes_the_same_cube_though_an_executor_is_killed(
    journal: Path, rolled_up: Path, tmp_path: Path
) -> None:
    # A master and two workers in the process of the command, with an executor each, which is a process.
    options = ("--master", "local-cluster[2,1,1024]", "--conf", "spark.task.maxFailures=8")
    process = subprocess.Popen(
        command("rollup", journal, tmp_path / "cube", *options), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    executors: list[psutil.Process] = []
    while not executors:
        assert process.poll() is None
        time.sleep(0.05)
        ours = {each.pid for each in psutil.Process(process.pid).children(recursive=True)}
        executors = [
            each
            for each in psutil.process_iter(["cmdline"])
            if each.pid in ours and "CoarseGrainedExecutorBackend" in " ".join(each.info["cmdline"] or ())
        ]
    time.sleep(1.0)  # it has registered by then
    executors[0].send_signal(signal.SIGKILL)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert rows(tmp_path / "cube") == rows(rolled_up)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "out", "--rate", "0"), "rate must be a number from 1e-06"),
        (("rollup", "none", "cube"), "none does not exist"),
        (("report", "none", "out"), "none does not exist"),
        (("rollup", "EMPTY", "cube"), "/empty: a server writes its first file after five minutes, or when it ends"),
        (("rollup", "s3a://journals/web", "cube"), "Spark needs Java 17 or newer"),  # it is looked at with Spark
        (("report", "none", "."), "exists already, and is not an empty directory: name another one"),
        (("report", "none", "out", "--timeout-rate", "1.5"), "timeout-rate must be a share between 0 and 1, not 1.5"),
        (("rollup", "JOURNAL", "cube", "--remote", "spark://host"), "remote must be like sc://127.0.0.1:15002"),
        (
            ("rollup", "JOURNAL", "cube", "--master", "sc://host"),
            "is named by --remote, and not by --master: sc://host",
        ),
        (("rollup", "JOURNAL", "cube", "--conf", "spark.x"), "--conf takes NAME=VALUE, not 'spark.x'"),
        (("rollup", "JOURNAL", "cube"), "Spark needs Java 17 or newer"),
        (("stream", "JOURNAL", "CUBE", "--checkpoint", "x"), "is a cube that rollup has written"),
        (("generate", "JOURNAL"), "exists: name another directory"),
    ],
)
def test_what_cannot_be_done_is_refused_before_spark_starts(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path / "journal", [row(0.0)])
    (tmp_path / "cube" / "date=2026-11-21").mkdir(parents=True)
    (tmp_path / "cube" / "date=2026-11-21" / "cube.parquet").touch()
    (tmp_path / "empty").mkdir()
    places = {"JOURNAL": str(tmp_path / "journal"), "CUBE": str(tmp_path / "cube"), "EMPTY": str(tmp_path / "empty")}
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    with pytest.raises(SystemExit, match=r"^purgatory pipeline: ") as refused:
        main(["pipeline", *(places.get(each, each) for each in arguments)])
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("2026-11-26", "2026-11-27T00:00"),
        ("2026-11-26T12:00", "2026-11-26T12:00"),
        ("2026-11-26t12", "2026-11-26T12:00"),
    ],
)
def test_only_a_day_ends_with_its_last_hour(text: str, end: str) -> None:
    assert _last(text) == datetime.fromisoformat(f"{end}+00:00")


def test_a_url_of_a_file_is_a_path_of_this_machine(tmp_path: Path) -> None:
    write(tmp_path, [row(0.0)])
    for prefix in ("", "file:", "file://"):
        refuse_empty(f"{prefix}{tmp_path}")


def test_a_cube_of_an_earlier_version_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "cube" / "date=2026-11-21").mkdir(parents=True)
    pq.write_table(pa.table({"operations": [1]}), tmp_path / "cube" / "date=2026-11-21" / "cube.parquet")
    with pytest.raises(SystemExit, match="is of an earlier version: delete it, and roll up the journal again"):
        main(["pipeline", "report", str(tmp_path / "cube"), str(tmp_path / "out")])


def test_a_time_has_three_digits_and_no_exponent() -> None:
    assert [seconds(value) for value in (0.9996, 1.234, 12345.0, 2.5e-6)] == [
        "1,000 ms",
        "1.23 s",
        "12,345 s",
        "2.5 µs",
    ]


def test_a_day_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["pipeline", "rollup", "journal", "cube", "--day", "yesterday"])
    assert "must be a day like 2026-11-26, not 'yesterday'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options"), [("rollup", ["cube"]), ("stream", ["cube", "--checkpoint", "checkpoint", "--once"])]
)
def test_a_corrupt_page_is_told_of_in_a_line(tmp_path: Path, name: str, options: list[str]) -> None:
    corrupt = write(tmp_path / "journal", [row(number / 10) for number in range(2000)])
    content = bytearray(corrupt.read_bytes())
    content[100:4000] = b"\xff" * 3900
    corrupt.write_bytes(content)
    places = [each if each.startswith("--") else tmp_path / each for each in options]
    said = pipeline(name, tmp_path / "journal", *places, code=1).stderr
    assert re.match(rf"purgatory pipeline: .*{corrupt.name}", said.splitlines()[-1]), said
    assert not re.search(r"^\s+at ", said, re.MULTILINE), said


@pytest.mark.parametrize(
    ("home", "said"), [("", "there is none on the PATH"), ("{}", 'java is openjdk version "11.0.2"')]
)
def test_missing_java_is_reported_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str, said: str
) -> None:
    write(tmp_path / "journal", [row(0.0)])
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", home.format(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = "^purgatory pipeline: Spark needs Java 17 or newer.*apt install openjdk"
    with pytest.raises(SystemExit, match=wanted) as refused:
        main(["pipeline", "rollup", str(tmp_path / "journal"), "out"])
    assert said in str(refused.value)


def test_lines_of_java_are_left_out(spark: SparkSession) -> None:
    with pytest.raises(Py4JError) as raised:
        spark.sparkContext._jvm.java.util.Optional.empty().get()  # type: ignore[union-attr]
    assert first_line(raised.value) == "java.util.NoSuchElementException: No value present"
    with pytest.raises(PySparkException) as failed:
        spark.sql("SELECT raise_error('no such thing')").collect()
    assert first_line(failed.value).startswith("[USER_RAISED_EXCEPTION] no such thing")
    assert "\tat " not in first_line(failed.value)
    assert first_line(Py4JError("the answer is empty")) == "the answer is empty"
