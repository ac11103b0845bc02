"""Following a journal: every window once, with the figures of a batch, in spite of kills and late rows."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from glob import glob
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from purgatory._core.listeners import Outcome
from purgatory.journal import Journal
from purgatory.journal.compact import compact
from purgatory.spark import trace
from purgatory.spark.errors import PipelineError
from purgatory.spark.simulate import OUTCOMES
from purgatory.spark.stream import Settings, follow, start, windows
from tests.support.journals import NOON, row
from tests.support.paths import ROOT

SETTINGS = Settings(window=5.0, watermark=10.0, interval=0.2)
"""In seconds. A file of `_write` is one window long."""

Window = tuple[Any, ...]


def _write(journal: Path, number: int, instance: str = "web-1", rows: int = 50) -> None:
    """The file number `number` of an instance: five seconds of traffic from `number * 5` seconds after noon on."""
    now = 0.0
    with Journal(journal, instance, now=lambda: now) as opened:
        for each in range(rows):
            outcome: Outcome = OUTCOMES[each % len(OUTCOMES)]
            waited = 0.0 if outcome == "completed_at_once" else each % 13 / 7
            now = NOON + 5 * number + 5 * each / rows
            late = 0.25 if outcome == "expired" else None
            keys = (f"key-{each % 4}", "all", "all")
            opened.write(row(keys=keys, waited=waited, outcome=outcome, late=late, operation=f"Fetch{each % 2}"))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    (tmp_path / "journal").mkdir()
    return tmp_path / "journal"


class Following:
    """Follows a journal below a directory, again and again."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.journal = directory / "journal"
        self.output = directory / "output"
        self.checkpoint = directory / "checkpoint"
        self.lines: list[str] = []

    def __call__(self, say: Callable[[str], object] | None = None, **changes: Any) -> None:
        """Follow the journal, by default only to its present end."""
        settings = replace(SETTINGS, **{"once": True, **changes})
        say = say or self.lines.append
        follow(self.spark, str(self.journal), str(self.output), str(self.checkpoint), settings, say)

    def found(self) -> list[Window]:
        """The windows in the output, as two readers that know nothing of Spark find them."""
        return _found(self.output)

    def expected(self) -> list[Window]:
        """The closed windows of the whole journal, made in one go."""
        rows = trace.read(self.spark, str(self.journal)).rows
        latest = rows.agg(F.max(F.unix_micros("arrived_at") + F.round(F.col("waited_s") * 1e6))).first()
        assert latest is not None
        end = latest[0] // 1000 / 1e3 - SETTINGS.watermark  # Spark's watermark is in milliseconds
        made = windows(rows, SETTINGS.window, SETTINGS.watermark)
        closed = made.where(F.unix_micros("window_end") / 1e6 <= end)
        return _plain(closed.select([F.unix_micros(name) if "window" in name else name for name in made.columns]))


def _until(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Return when `condition()` holds: the time-out of the test is the bound, unless the process ends."""
    pause = threading.Event()
    while not condition():
        assert process.poll() is None
        pause.wait(0.005)


def _plain(found: Any) -> list[Window]:
    return sorted([tuple(each) for each in found.collect()], key=repr)


def _found(output: Path) -> list[Window]:
    if not list(output.glob("batch=*/*.parquet")):
        return []
    with duckdb.connect() as connection:
        first = connection.execute(
            "SELECT * REPLACE (epoch_us(window_start) AS window_start, epoch_us(window_end) AS window_end) "
            f"FROM read_parquet('{output}/batch=*/*.parquet', hive_partitioning = false)"
        ).fetchall()
    assert len(first) == ds.dataset(output).count_rows()
    return sorted(first, key=repr)


@pytest.fixture
def following(spark: SparkSession, journal: Path) -> Following:
    return Following(spark, journal.parent)


class TestFigures:
    def test_figures_are_grouped_by_window_of_the_finish_and_key(self, spark: SparkSession, journal: Path) -> None:
        with Journal(journal, "web-1", now=lambda: NOON) as opened:
            # This operation arrived 2 s before noon.
            opened.write(row(keys=("a", "b", "b"), waited=2.0, outcome="expired", late=0.5))
            opened.write(row(keys=("a",), waited=1.0))
        with Journal(journal, "web-2", now=lambda: NOON + 4.999) as opened:
            opened.write(row(keys=("a",), waited=30.0, outcome="failed"))
        with Journal(journal, "web-2", now=lambda: NOON + 5.0) as opened:
            opened.write(row(keys=("a",), waited=7.0, outcome="cancelled"))
            opened.write(row(keys=("a",), waited=6.0, outcome="closed"))
        made = windows(trace.read(spark, str(journal)).rows, 5.0, 0.0)
        made = made.withColumn("window_start", F.unix_seconds("window_start") - round(NOON))
        made = made.withColumn("window_end", F.unix_seconds("window_end") - round(NOON)).drop("purgatory", "operation")
        found = [tuple(each) for each in made.orderBy("window_start", "key").collect()]
        assert made.columns == [
            *("window_start", "window_end", "key", "operations", *OUTCOMES, "timeout_rate"),
            *("waited_p50", "waited_p90", "waited_p99", "waited_max"),
        ]
        assert found == [
            (0, 5, None, 3, 0, 1, 1, 0, 0, 1, 1 / 3, 2.0, 30.0, 30.0, 30.0),
            (0, 5, "a", 3, 0, 1, 1, 0, 0, 1, 1 / 3, 2.0, 30.0, 30.0, 30.0),
            (0, 5, "b", 1, 0, 0, 1, 0, 0, 0, 1.0, 2.0, 2.0, 2.0, 2.0),
            (5, 10, None, 2, 0, 0, 0, 1, 1, 0, 0.0, 6.0, 7.0, 7.0, 7.0),
            (5, 10, "a", 2, 0, 0, 0, 1, 1, 0, 0.0, 6.0, 7.0, 7.0, 7.0),
        ]


class TestFollowing:
    def test_each_window_is_written_once_and_late_rows_are_told_of(self, following: Following) -> None:
        following()
        assert (following.found(), following.lines) == ([], [])
        for number in range(4):
            _write(following.journal, number)
        following()
        expected = following.expected()
        assert expected == following.found() != []
        assert f"{len(expected)} windows written" in following.lines[-1]
        assert "0 entries dropped" in following.lines[-1]
        _write(following.journal, 0, "late", rows=1)
        _write(following.journal, 4)
        following()
        assert "3 entries dropped" in following.lines[-1]  # the entry without a key, and those of two keys
        added = [window for window in following.found() if window not in expected]
        assert {window[0] for window in added} == {round((NOON + 5) * 1e6)}
        batches = list(following.output.glob("batch=*"))
        assert len(batches) == 2  # a batch without windows has no directory
        following()
        assert list(following.output.glob("batch=*")) == batches

    def test_a_preparation_that_was_killed_is_done_again(self, following: Following) -> None:
        _write(following.journal, 0)
        following()
        [marker] = (following.checkpoint / "_purgatory.json").glob("part-*")
        before = marker.read_text()
        shutil.rmtree(following.checkpoint)
        (following.checkpoint / "_purgatory.json" / "_temporary").mkdir(parents=True)
        following()
        [marker] = (following.checkpoint / "_purgatory.json").glob("part-*")
        assert marker.read_text() != before

    def test_a_batch_that_is_done_again_is_written_once(self, following: Following) -> None:
        for number in range(4):
            _write(following.journal, number)
        following()
        found = following.found()
        [commit] = [path for path in (following.checkpoint / "commits").glob("[0-9]*") if path.name == "1"]
        commit.unlink()
        commit.with_name(f".{commit.name}.crc").unlink()
        following()
        assert following.found() == found
        _write(following.journal, 10)
        following()
        assert following.found() == following.expected()

    @pytest.mark.timeout(1200)  # three starts of Spark
    def test_stream_that_is_killed_twice_loses_and_repeats_nothing(self, following: Following) -> None:
        ended = threading.Event()

        def write() -> None:
            for number in count():
                for instance in ("web-1", "web-2"):
                    _write(following.journal, number, instance)
                if ended.wait(0.4):
                    break
            _write(following.journal, number + 100, rows=1)

        def written(pattern: str) -> list[str]:
            # Path.glob raises if a directory goes while it is looked through, as that of a batch that is made again.
            return glob(pattern, root_dir=following.output, recursive=True)

        def num_batches() -> int:
            return len(written("batch=*/*.parquet"))

        def is_writing() -> bool:
            return bool(written("batch=*/_temporary/**/*.parquet"))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            with _process(following) as process:  # in the middle of writing
                _until(process, lambda: num_batches() >= 2 and is_writing())
            first = following.found()
            with _process(following) as process:  # right after it
                before = num_batches()
                _until(process, lambda: num_batches() > before)
            second = following.found()
        finally:
            ended.set()
            writer.join()
        following()
        found = following.found()
        assert 0 < len(first) < len(second) < len(found)
        assert len({window[:5] for window in found}) == len(found)
        assert found == following.expected()

    def test_joined_files_are_no_new_rows(self, following: Following) -> None:
        for number in range(3):
            _write(following.journal, number)
        following()
        assert compact(str(following.journal)).joined == 3
        _write(following.journal, 3)
        following()
        assert "50 rows read" in following.lines[-2]
        _write(following.journal, 10)
        following()
        assert following.found() == following.expected()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signal_stops_the_stream_and_restores_handlers(self, following: Following, number: signal.Signals) -> None:
        before = signal.getsignal(number)
        _write(following.journal, 0)
        lines: list[str] = []

        def say(line: str) -> None:
            lines.append(line)
            signal.raise_signal(number)

        following(once=False, say=say)
        assert "50 rows read" in lines[0]
        assert lines[-1] == "stopped"
        assert not following.spark.streams.active
        assert signal.getsignal(number) is before

    def test_stream_in_another_thread_leaves_signals_alone(self, following: Following) -> None:
        _write(following.journal, 0)
        thread = threading.Thread(target=following)
        thread.start()
        thread.join()
        assert "50 rows read" in following.lines[0]


@contextmanager
def _process(following: Following) -> Iterator[subprocess.Popen[bytes]]:
    """A process that follows, and is killed with all that it has started."""
    paths = [str(path) for path in (following.journal, following.output, following.checkpoint)]
    command = [sys.executable, "-m", "tests.pipeline.follower", *paths]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class TestRefused:
    def test_unreadable_files_are_refused_unless_they_are_skipped(self, following: Following) -> None:
        _write(following.journal, 0)
        [whole] = following.journal.rglob("*.parquet")
        whole.with_name("half.parquet").write_bytes(whole.read_bytes()[:1000])
        with pytest.raises(PipelineError, match=r"half\.parquet; --skip-corrupt leaves such files out"):
            following()
        following(skip_corrupt=True)
        assert "left out" in following.lines[0]
        assert "50 rows read" in following.lines[1]

    @pytest.mark.parametrize("column", ["waited_s", "keys", "outcome", "late_s"])
    def test_files_that_lack_a_column_are_refused(self, following: Following, column: str) -> None:
        _write(following.journal, 0)
        [whole] = following.journal.rglob("*.parquet")
        pq.write_table(pq.read_table(whole, partitioning=None).drop([column]), whole.with_name("less.parquet"))
        with pytest.raises(PipelineError, match=rf"less\.parquet: the column {column} is missing"):
            following(skip_corrupt=True)

    def test_checkpoint_of_other_settings_is_refused(self, following: Following, tmp_path: Path) -> None:
        following()
        for name, value in (("window", 6.0), ("watermark", 0.0)):
            with pytest.raises(
                PipelineError, match=f"belongs to a stream with {name} {getattr(SETTINGS, name)}, not {value}"
            ):
                changed: dict[str, Any] = {name: value}
                following(**changed)
        following.journal = tmp_path / "other"
        following.journal.mkdir()
        with pytest.raises(PipelineError, match="belongs to a stream with journal"):
            following()

    def test_output_with_a_checkpoint_of_another_stream_is_refused(self, following: Following, tmp_path: Path) -> None:
        for number in range(4):
            _write(following.journal, number)
        following()
        checkpoint, following.checkpoint = following.checkpoint, tmp_path / "new"
        with pytest.raises(PipelineError, match="new is not the checkpoint that belongs to it"):
            following()
        following.checkpoint = checkpoint
        following.output.rename(tmp_path / "away")
        with pytest.raises(PipelineError, match="its windows are not there"):
            following()
        following.output.mkdir()
        with pytest.raises(PipelineError, match="its windows are not there"):
            following()
        marker = checkpoint / "_purgatory.json"
        for written in marker.iterdir():
            written.unlink()
        (marker / "part-0.txt").write_text("{")
        with pytest.raises(PipelineError, match=r"does not hold the settings of a stream"):
            following()
        (marker / "part-0.txt").unlink()
        with pytest.raises(PipelineError, match="is no checkpoint of this"):
            following()

    def test_missing_journal_and_nested_directories_are_refused(self, following: Following) -> None:
        journal, following.journal = following.journal, following.journal / "none"
        with pytest.raises(PipelineError, match="/journal/none does not exist"):
            following()
        assert not following.output.exists()
        following.journal, following.output = journal, journal / "output"
        with pytest.raises(PipelineError, match=r"output, .* must not be in journal, "):
            following()
        following.output = journal.parent / "file"
        following.output.touch()
        with pytest.raises(PipelineError, match=r"file is not empty"):
            following()
        following.output = journal.parent / "file" / "output"
        with pytest.raises(PipelineError, match=r"cannot write to .*/file/output"):
            following()

    @pytest.mark.parametrize(("name", "value"), [("window", 0.0), ("watermark", -1.0), ("interval", float("nan"))])
    def test_numbers_out_of_range_are_refused(self, following: Following, name: str, value: float) -> None:
        changed: dict[str, Any] = {name: value}
        with pytest.raises(PipelineError, match=f"{name} must be a number of seconds from"):
            start(following.spark, str(following.journal), "o", "c", replace(SETTINGS, **changed))
