"""The lines about the progress of a command."""

import io
import re
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from purgatory.pipeline.progress import Steps
from purgatory.spark.session import Tasks, watching
from tests.support.journals import until


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_has_the_name_of_the_step(spark: SparkSession, tmp_path: Path, terminal: bool) -> None:
    lines = io.StringIO()
    steps = Steps(spark, Console(file=lines, force_terminal=terminal, width=120), interval=0.1)
    go_on = tmp_path / "go on"

    def wait(rows: object) -> object:
        while not go_on.exists():
            time.sleep(0.05)
        return rows

    def let_go() -> None:
        until(lambda: re.search(r"counting them[^\n]*\d(/| of )4\b", lines.getvalue()) is not None)
        with watching(spark) as look:
            until(lambda: look().running > 0)
        go_on.touch()

    threading.Thread(target=let_go, daemon=True).start()
    with steps.shown():
        steps.begin("counting them")
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "counting them"
        assert spark.range(8, numPartitions=4).mapInArrow(wait, "id long").count() == 8  # type: ignore[arg-type]
    assert "counting them\n" in lines.getvalue().replace("\r", "")
    assert "executor" not in lines.getvalue()


def test_tasks_that_no_executor_takes_are_told_of(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory.pipeline.progress.watching", lambda spark: nullcontext(lambda: Tasks(1, 9, 0)))
    lines = io.StringIO()
    with Steps(spark, Console(file=lines), patience=0.1).shown():
        until(lambda: "executor" in lines.getvalue())
    said = r"no executor has been given to this application for \d+ s, and 8 tasks are waiting: the cluster has"
    assert re.match(said, lines.getvalue())
