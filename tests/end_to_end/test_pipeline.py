"""`purgatory pipeline` on a real Spark: from a journal of finished operations to a report."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from purgatory import DelayedOperationPurgatory
from purgatory.journal import Journal
from tests.support.operations import Flag
from tests.support.servers import program

SATISFIED, EXPIRED = 150, 50


async def write_journal(folder: Path) -> None:
    """Write a row for each of some operations."""
    async with Journal(str(folder), instance="web-1") as journal, DelayedOperationPurgatory("read") as purgatory:
        purgatory.add_listener(journal.write)
        expiring = [purgatory.try_complete_else_watch(Flag(0.05), ["none"]) for _ in range(EXPIRED)]
        for number in range(SATISFIED):
            purgatory.try_complete_else_watch(Flag(60.0), [number]).ready = True
            purgatory.check_and_complete(number)
        await asyncio.gather(*expiring)


def run_pipeline(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "purgatory", "pipeline", *map(str, arguments)]
    # The commands live for seconds, so it doesn't pay that Java compiles more thoroughly.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_journal_becomes_a_report(tmp_path: Path) -> None:
    program("java", "openjdk-17-jre-headless")
    journal, replayed, report = tmp_path / "journal", tmp_path / "replayed", tmp_path / "report"
    asyncio.run(write_journal(journal))
    run_pipeline("replay", journal, replayed, "--tick", "0.001,0.01")
    simulated = pq.read_table(replayed / "summary").to_pylist()
    assert [row["operations"] for row in simulated] == [SATISFIED + EXPIRED] * 2
    output = run_pipeline("report", journal, report, "--replay", replayed, "--timeout-rate", "0.5")
    assert f"written to {report}/index.html" in output
    (outcomes,) = pq.read_table(report / "tables" / "outcomes").to_pylist()
    assert (outcomes["operation"], outcomes["satisfied"], outcomes["expired"]) == ("Flag", SATISFIED, EXPIRED)
    assert "data:image/png;base64," in (report / "index.html").read_text()
