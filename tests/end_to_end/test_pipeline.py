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

PAGE = ROOT / "purgatory" / "spark" / "README.md"


def commands(folder: Path) -> dict[str, list[str]]:
    """The arguments of each command that the page shows, with their directories in `folder`."""
    places = {name: str(folder / name) for name in ("journal", "replayed", "report")}
    lines = re.findall(r"^\.venv/bin/purgatory pipeline (.*)$", PAGE.read_text(), re.MULTILINE)
    return {
        line.split()[0]: [line.split()[0], *(places.get(word, word) for word in line.split()[1:])] for line in lines
    }


def run(*command: str) -> str:
    # The commands live for seconds, so it doesn't pay that Java compiles more thoroughly.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    command = (sys.executable, "-m", *command)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_traffic_of_a_server_becomes_a_report(tmp_path: Path) -> None:
    program("java", "openjdk-17-jre-headless")
    journal = ["--journal", str(tmp_path / "journal"), "--instance", "web-1", "--long-poll-timeout", "1"]
    with running(tmp_path / "data", *journal) as server:
        run("examples.stream_traffic", "--seconds", "3", "--clients", "40", "--url", server.url)
    shown = commands(tmp_path)
    run("purgatory", "pipeline", *shown["replay"])
    said = run("purgatory", "pipeline", *shown["report"])
    assert f"written to {tmp_path}/report/index.html" in said
    assert "read / Read: " in said
    (outcomes,) = pq.read_table(tmp_path / "report" / "tables" / "outcomes").to_pylist()
    assert outcomes["operation"] == "Read"
    assert min(outcomes["satisfied"], outcomes["expired"]) > 0
    replayed = pq.read_table(tmp_path / "replayed" / "summary").to_pylist()
    assert {row["operations"] for row in replayed} == {outcomes["operations"]}
    assert "data:image/png;base64," in (tmp_path / "report" / "index.html").read_text()
