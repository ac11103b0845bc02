"""Following a journal: the rows of its cube, each once, in spite of kills and wrong clocks."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row, SparkSession

from purgatory.pipeline import answers, cube, trace
from purgatory.pipeline.stream import follow, progress_line
from purgatory.spark.errors import PipelineError
from tests.pipeline.test_cube import made_up
from tests.pipeline.traces import START, row, write
from tests.support.paths import ROOT

Sums = list[dict[str, Any]]


class Following:
    """Follows the journal below a directory."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.journal = directory / "journal"
        self.cube = directory / "cube"
        self.checkpoint = directory / "checkpoint"
        self.lines: list[str] = []
        self.journal.mkdir()

    def __call__(self, **places: Path) -> None:
        """Follow it to its present end."""
        journal, cube, checkpoint = (
            str(places.get(name, getattr(self, name))) for name in ("journal", "cube", "checkpoint")
        )
        follow(self.spark, journal, cube, checkpoint, self.lines.append, slot=1.0, once=True)

    def written(self) -> pa.Table:
        """The rows of all batches."""
        return cube.load(str(self.cube), lambda day: True)

    def assert_whole(self) -> None:
        """See that the batches add up to the cube of the whole journal, made in one go."""
        assert sums(self.written()) == sums(trace.cube(trace.read(self.spark, str(self.journal)), 1))


def sums(table: pa.Table) -> Sums:
    """The rows of a cube, added up: those of keys too, of which all are kept here. The samples are not the same."""
    table = table.filter(pc.invert(pc.is_in(table["part"], pa.array(["samples", "moments"]))))
    by = ["part", "key", "purgatory", "instance", "operation", "arrived", "finished", "outcome", "missed", "is_gone"]
    by += ["timeout_bin", "wait_bin"]
    added = table.group_by(by).aggregate([("operations", "sum"), ("num_expired", "sum"), ("wait_max", "max")])
    found: Sums = added.to_pylist()
    return sorted(found, key=repr)


@pytest.fixture
def following(spark: SparkSession, tmp_path: Path) -> Following:
    return Following(spark, tmp_path)


def test_batches_add_up_to_the_cube_of_the_whole(following: Following) -> None:
    rows = made_up(600)
    for part in range(3):
        write(following.journal, rows[part::3], f"web-{part}")
        following()
    following()  # there is nothing new
    assert len(list(following.cube.glob("batch=*"))) == 3
    following.assert_whole()
    assert [line.partition(",")[0] for line in following.lines] == [f"batch {n}: 200 operations" for n in range(3)]


def test_an_instance_whose_clock_is_ahead_makes_nobody_late(following: Following) -> None:
    now = time.time() - START.timestamp()
    write(following.journal, [row(now + 7200 + number / 10) for number in range(100)], "web-2")
    following()
    write(following.journal, [row(now - 100 + number / 1000) for number in range(1000)], "web-1")
    following()
    found = following.written()
    assert answers.rows_of(found).groupby("instance")["operations"].sum().to_dict() == {"web-1": 1000}
    first, second = following.lines
    assert first == ("batch 0: 100 operations; 100 of them are refused: they end later than now, by the clock of web-2")
    assert second.startswith("batch 1: 1,000 operations, the newest ended ")
    assert cube.refused(found) == {"web-2": 100}


def test_the_lag_is_in_seconds() -> None:
    seen = Row(operations=12_043, newest=1000.0, ahead=0, instances=[])
    progress = {"batchId": 7, "observedMetrics": {"seen": seen}}
    assert progress_line(progress, 1042.26) == "batch 7: 12,043 operations, the newest ended 42.3 s ago"


def test_a_batch_takes_a_bounded_number_of_files(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory.pipeline.stream._MOST_FILES", 2)
    for number in range(5):
        write(following.journal, [row(number)])
    following()
    assert [line.split()[2] for line in following.lines] == ["2", "2", "1"]
    following.assert_whole()


def test_a_batch_that_is_done_again_is_written_once(following: Following) -> None:
    write(following.journal, [row(0.0)])
    following()
    (written,) = following.cube.glob("batch=0/*.parquet")
    # As if it had been killed before it wrote down that the batch is done.
    shutil.rmtree(following.checkpoint / "commits")
    following()
    assert list(following.cube.glob("batch=*/*.parquet")) == [written]
    following.assert_whole()


def test_a_batch_that_is_done_again_after_it_was_merged_writes_nothing(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purgatory.pipeline.stream._MOST_FILES", 1)
    monkeypatch.setattr("purgatory.pipeline.compact.SIZES", (2,))
    for number in range(3):
        write(following.journal, [row(number)])
    following()
    written = {name: (following.cube / name).stat().st_mtime_ns for name in cube.files(str(following.cube))}
    assert [name.partition("/")[0] for name in written] == ["batch=2", "batches=0-1"]
    # As if the checkpoint had been restored from a copy that is older.
    for name in ("commits/1", "commits/2", "offsets/2"):
        for path in (following.checkpoint / name, (following.checkpoint / name).with_name(f".{name[-1]}.crc")):
            path.unlink()
    following()
    assert [line.partition(",")[0] for line in following.lines[3:]] == [f"batch {n}: 1 operations" for n in (1, 2)]
    assert {name: (following.cube / name).stat().st_mtime_ns for name in cube.files(str(following.cube))} == written
    assert {path.name for path in following.cube.glob("batch*")} == {"batch=2", "batches=0-1"}
    following.assert_whole()


def test_a_checkpoint_and_a_cube_that_do_not_belong_together_are_refused(following: Following, tmp_path: Path) -> None:
    write(following.journal, [row(0.0)])
    following()
    for places in ({"cube": tmp_path / "other"}, {"checkpoint": tmp_path / "other"}):
        with pytest.raises(PipelineError, match=r"is not the checkpoint of .*: name those that belong together"):
            following(**places)
    write(following.journal, [row(1.0)])
    following()
    following.assert_whole()


@pytest.mark.parametrize("slot", [0.0, 1e9])
def test_an_impossible_slot_is_refused(following: Following, slot: float) -> None:
    with pytest.raises(PipelineError, match=r"slot must be a number of seconds from 0\.001 to 86400, not "):
        follow(following.spark, "journal", "cube", "checkpoint", print, slot=slot)


def test_a_missing_journal_is_named(following: Following, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="none does not exist"):
        following(journal=tmp_path / "none")


def test_a_file_that_cannot_be_read_ends_the_stream_with_its_name(following: Following) -> None:
    bad = write(following.journal, [row(0.0)])
    bad.write_bytes(b"PAR1 and no more")
    with pytest.raises(PipelineError, match=rf"^following .*journal failed: .*{bad.name}"):
        following()
    bad.unlink()
    worse = write(following.journal, [row(0.0, waited_s=-1.0)])
    with pytest.raises(PipelineError, match=rf"{worse.name}: the column waited_s is missing, or has a value that"):
        following(checkpoint=following.checkpoint.with_name("another"))


def _until(process: "subprocess.Popen[bytes]", condition: Callable[[], bool]) -> None:
    """Return when `condition()` holds: the time-out of the test is the bound, unless the process ends."""
    pause = threading.Event()
    while not condition():
        assert process.poll() is None
        pause.wait(0.005)


def _follower(following: Following) -> "subprocess.Popen[bytes]":
    places = map(str, (following.journal, following.cube, following.checkpoint))
    command = [sys.executable, "-m", "tests.pipeline.follower", *places]
    silent = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=silent, start_new_session=True)


@pytest.mark.timeout(600)
def test_a_stream_that_is_killed_twice_loses_and_repeats_nothing(following: Following) -> None:
    numbers = count()
    is_over = threading.Event()

    def grow() -> None:
        while not is_over.wait(0.1):
            number = next(numbers)
            write(following.journal, [row(number, keys=[f"key-{number % 20}"]) for _ in range(50)], f"web-{number % 3}")

    growing = threading.Thread(target=grow)
    growing.start()
    try:
        for kill in range(2):
            process = _follower(following)
            offsets = following.checkpoint / "offsets" / str(3 * (kill + 1))
            _until(process, offsets.exists)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        process = _follower(following)
        _until(process, (following.checkpoint / "commits" / "9").exists)
    finally:
        is_over.set()
        growing.join()
    assert list(following.cube.glob("batches=*"))
    # The last rows are there though none follows them.
    total = 50 * next(numbers)
    _until(process, lambda: answers.rows_of(following.written())["operations"].sum() == total)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[0].decode()
    assert process.returncode == 0
    assert said.splitlines()[-1] == "stopped"
    following.assert_whole()
