"""From a running server to a report: the commands that the page of `purgatory pipeline` shows, on a real Spark."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from tests.streams.processes import running
from tests.support.paths import ROOT
from tests.support.servers import program

PAGE = ROOT / "purgatory" / "pipeline" / "README.md"


def shown(journal: Path, report: Path) -> list[str]:
    """The arguments of the report that the page shows, with these directories."""
    (command,) = re.findall(
        r"^\.venv/bin/purgatory pipeline report journal report (.*)$", PAGE.read_text(), re.MULTILINE
    )
    return ["report", str(journal), str(report), *command.split()]


def run(*command: str) -> str:
    # The commands live for seconds, so it doesn't pay that Java compiles more thoroughly.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    command = (sys.executable, "-m", *command)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_traffic_of_a_server_becomes_a_report(tmp_path: Path) -> None:
    program("java", "openjdk-17-jre-headless")
    (timeout,) = re.findall(r"(--long-poll-timeout) (\d+)", PAGE.read_text())
    with running(tmp_path / "data", "--journal", str(tmp_path / "journal"), "--instance", "web-1", *timeout) as server:
        run("tests.support.stream_traffic", "--seconds", "5", "--clients", "40", "--url", server.url)
    said = run("purgatory", "pipeline", *shown(tmp_path / "journal", tmp_path / "report"))
    assert f"written to {tmp_path}/report/index.html" in said
    assert "read / Read: " in said
    (advice,) = pq.read_table(tmp_path / "report" / "tables" / "advice").to_pylist()
    assert (advice["purgatory"], advice["operation"], advice["rate"]) == ("read", "Read", 0.05)
    (counted,) = pq.read_table(tmp_path / "report" / "tables" / "operations").to_pylist()
    assert counted["satisfied"] > 0
    assert "<svg" in (tmp_path / "report" / "index.html").read_text()
