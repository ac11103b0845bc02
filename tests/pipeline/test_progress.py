"""The lines about the progress of a command."""

import io
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from purgatory.pipeline.progress import Steps
from tests.pipeline import cluster
from tests.support.paths import ROOT


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_has_the_name_of_the_step(spark: SparkSession, tmp_path: Path, terminal: bool) -> None:
    lines = io.StringIO()
    steps = Steps(spark, Console(file=lines, force_terminal=terminal, width=120), interval=0.1)
    go_on = tmp_path / "go on"

    def wait(rows: object) -> object:
        pause = threading.Event()
        while not go_on.exists():
            pause.wait(0.05)
        return rows

    def let_go() -> None:
        pause = threading.Event()
        while not re.search(r"counting them[^\n]*\d(/| of )4\b", lines.getvalue()):
            pause.wait(0.05)
        go_on.touch()

    threading.Thread(target=let_go, daemon=True).start()
    with steps.shown():
        steps.begin("counting them")
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "counting them"
        assert spark.range(8, numPartitions=4).mapInArrow(wait, "id long").count() == 8  # type: ignore[arg-type]
    assert "counting them\n" in lines.getvalue().replace("\r", "")
    assert "executor" not in lines.getvalue()


def test_a_cluster_without_a_free_executor_is_told_of(tmp_path: Path) -> None:
    with cluster.running(tmp_path, workers=0) as master:
        command = [sys.executable, "-m", "tests.pipeline.waiting", master, "3"]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stderr is not None
        said = next(line for line in process.stderr if "no executor" in line)
        process.send_signal(signal.SIGKILL)
        process.stderr.close()
        process.wait()
    assert re.search(r"no executor has been given to this application for 3 s, and 8 tasks are waiting", said)
