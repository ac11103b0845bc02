"""The journal: its rows and files, their times, its close, and the rows that outlive a killed process."""

import math
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.journal import SCHEMA, Journal, JournalError, JournalStatistics
from purgatory.journal.files import Files
from tests.support.journals import NOON, files, fill, numbers, partitions, read, row, until
from tests.support.operations import FaultLog, Flag
from tests.support.paths import ROOT


class TestRows:
    def test_each_finished_operation_becomes_a_row(
        self, tmp_path: Path, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        clock.advance(NOON)
        with Journal(tmp_path, "web-1", now=clock.time) as journal:
            purgatory.add_listener(journal.write)
            flag = purgatory.try_complete_else_watch(Flag(), ["a", ("b", 1)])
            purgatory.try_complete_else_watch(Flag(0.25), ["c"])
            purgatory.try_complete_else_watch(Flag(7.0), ["d"]).cancel()
            purgatory.try_complete_else_watch(Flag(ready=True), ["e"])
            clock.advance(1.0)
            flag.force_complete()
            forgotten = purgatory.try_complete_else_watch(Flag(0.5), ["f"])
            forgotten.ready = True
            purgatory.try_complete_else_watch(Flag(60.0), ["f"])
            moved = purgatory.try_complete_else_watch(Flag(9.0), ["g"])
            clock.advance(0.25)
            moved.reschedule(0.5)
            clock.advance(0.5)
            purgatory.close()
        noon = datetime.fromtimestamp(NOON, UTC)
        same = {"purgatory": "test", "operation": "Flag"}
        assert read(tmp_path) == [
            same
            | {"keys": keys, "arrived_at": noon + timedelta(seconds=after), "timeout_s": timeout}
            | {"deadline_s": deadline, "waited_s": waited, "outcome": outcome, "late_s": late, "opened_at": noon}
            | {"missed": missed}
            for keys, after, timeout, deadline, waited, outcome, late, missed in [
                (["a", "('b', 1)"], 0.0, None, None, 1.0, "satisfied", None, False),
                (["c"], 0.0, 0.25, 0.25, 0.25, "expired", 0.0, False),
                (["d"], 0.0, 7.0, 7.0, 0.0, "cancelled", None, False),
                (["e"], 0.0, None, None, 0.0, "completed_at_once", None, False),
                (["f"], 1.0, 0.5, 0.5, 0.5, "satisfied", None, True),
                (["f"], 1.0, 60.0, 60.0, 0.75, "closed", None, False),
                (["g"], 1.0, 0.5, 0.75, 0.75, "expired", 0.0, False),
            ]
        ]
        assert journal.statistics() == JournalStatistics(rows=7, files=1, queued=0, dropped=0, failures=0)

    def test_rows_have_the_time_at_which_their_journal_was_opened(self, tmp_path: Path) -> None:
        for opened in (NOON, NOON + 7.25):
            times = iter([opened, NOON + 100.0, NOON + 200.0])
            with Journal(tmp_path, "web-1", now=partial(next, times)) as journal:
                journal.write(row())
                journal.write(row())
        noon = datetime.fromtimestamp(NOON, UTC)
        found = sorted(found["opened_at"] - noon for found in read(tmp_path))
        assert found == [timedelta(0)] * 2 + [timedelta(seconds=7.25)] * 2

    def test_schema_has_fixed_columns_types_and_nullability(self) -> None:
        assert {field.name: (str(field.type), field.nullable) for field in SCHEMA} == {
            "purgatory": ("string", False),
            "operation": ("string", False),
            "keys": ("list<element: string not null>", False),
            "arrived_at": ("timestamp[us, tz=UTC]", False),
            "timeout_s": ("double", True),
            "deadline_s": ("double", True),
            "waited_s": ("double", False),
            "outcome": ("string", False),
            "late_s": ("double", True),
            "opened_at": ("timestamp[us, tz=UTC]", False),
            "missed": ("bool", True),
        }

    def test_partitions_are_days_of_arrival_and_instances(self, tmp_path: Path) -> None:
        midnight = datetime(2026, 11, 22, tzinfo=UTC).timestamp()
        for instance in ("web-1", "web-2"):
            with Journal(tmp_path, instance, now=lambda: midnight + 1.0) as journal:
                for waited in (0.0, 0.5, 2.0):
                    journal.write(row(waited=waited))
        assert partitions(tmp_path) == [
            ("2026-11-21", "web-1", 1),
            ("2026-11-21", "web-2", 1),
            ("2026-11-22", "web-1", 2),
            ("2026-11-22", "web-2", 2),
        ]
        assert {*pq.read_table(tmp_path).schema.names} == {*SCHEMA.names, "date", "instance"}
        assert all(path.parents[2] == tmp_path and path.suffix == ".parquet" for path in files(tmp_path))

    def test_arrival_is_computed_from_the_wall_clock_by_default(self, tmp_path: Path) -> None:
        before = time.time()
        with Journal(tmp_path, "web-1") as journal:
            journal.write(row(waited=100.0))
        after = time.time()
        [found] = read(tmp_path)
        assert before - 100 - 1e-6 <= found["arrived_at"].timestamp() <= after - 100 + 1e-6

    def test_any_key_becomes_text(self, tmp_path: Path) -> None:
        class Odd:
            def __str__(self) -> str:
                raise LookupError

        with Journal(tmp_path, "web-1", now=lambda: NOON) as journal:
            journal.write(row(keys=(Odd(), "\ud800", "\0", b"\xff", "日本", 1.5, "")))
        [found] = read(tmp_path)
        assert found["keys"][0].startswith("<tests.journal.test_journal.")
        assert found["keys"][1:] == ["\\ud800", "\0", "b'\\xff'", "日本", "1.5", ""]

    @pytest.mark.parametrize("odd", [{"timeout": "long"}, {"waited": math.nan}, {"waited": 1e300}, {"keys": None}])
    def test_a_bad_row_is_dropped_alone(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: dict[str, Any]
    ) -> None:
        with Journal(tmp_path, "web-1", now=lambda: NOON) as journal:
            for number in range(10):
                journal.write(row(number, **odd) if number == 5 else row(number))
        assert numbers(tmp_path) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert (journal.statistics().rows, journal.statistics().dropped) == (9, 1)
        assert caplog.text.count("cannot take") == 1


class TestWhenFilesAppear:
    def test_file_appears_after_seconds_per_file(self, tmp_path: Path) -> None:
        with Journal(tmp_path, "web-1", seconds_per_file=0.02, now=lambda: NOON) as journal:
            for number in range(3):
                journal.write(row(number))
                until(lambda: journal.statistics().queued == 0)
                assert len(read(tmp_path)) == number + 1

    def test_no_file_appears_before_it_is_full_or_old_enough(self, tmp_path: Path) -> None:
        with Journal(tmp_path, "web-1", now=lambda: NOON) as journal:
            fill(journal, 1500)
            until(lambda: len(journal._queue) < 1000)
            assert journal.statistics().queued == 1500
            assert files(tmp_path) == []
        assert len(read(tmp_path)) == 1500

    def test_file_has_a_hidden_name_until_it_is_on_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found: list[list[str]] = []

        def sync(descriptor: int) -> None:
            found.append([path.name for path in files(tmp_path)])

        monkeypatch.setattr(os, "fsync", sync)
        with Journal(tmp_path, "web-1", now=lambda: NOON) as journal:
            journal.write(row())
        [before], *after = found  # first the file, then the directories that have its name
        assert after == [[before.removeprefix(".").removesuffix(".unfinished")]] * 3
        assert after[0][0].endswith(".parquet")


def test_rows_of_several_threads_are_all_written(tmp_path: Path) -> None:
    with Journal(tmp_path, "web-1", rows_per_file=2000, max_queued=10_000, now=lambda: NOON) as journal:
        threads = [threading.Thread(target=fill, args=[journal, n, n + 2500]) for n in range(0, 10_000, 2500)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # No row has to wait for the file's time: the row that fills the chunk wakes the writer.
        until(lambda: len(journal._queue) < 1000)
    assert numbers(tmp_path) == list(range(10_000))


class TestClosing:
    @pytest.mark.parametrize(
        ("rows", "per_file", "queued"), [(0, 5, 5), (4, 5, 9), (20, 5, 9), (21, 5, 9), (20, 7, 3), (5, 1, 1)]
    )
    def test_close_writes_every_queued_row(self, tmp_path: Path, rows: int, per_file: int, queued: int) -> None:
        with Journal(tmp_path, "web-1", rows_per_file=per_file, max_queued=queued, now=lambda: NOON) as journal:
            for number in range(rows):
                until(lambda: len(journal._queue) < queued)
                journal.write(row(number))
        assert numbers(tmp_path) == list(range(rows))
        assert journal.statistics() == JournalStatistics(rows, -(-rows // per_file), 0, 0, 0)
        assert len(files(tmp_path)) == journal.statistics().files

    async def test_async_context_writes_rows_and_closes_the_journal(self, tmp_path: Path) -> None:
        async with Journal(tmp_path, "web-1") as journal, DelayedOperationPurgatory() as purgatory:
            purgatory.add_listener(journal.write)
            await purgatory.try_complete_else_watch(Flag(0.001), ["a"])
        [found] = read(tmp_path)
        assert found["outcome"] == "expired"
        await journal.aclose()

    def test_closed_journal_drops_or_refuses_rows(self, tmp_path: Path) -> None:
        with Journal(tmp_path, "web-1") as journal:
            pass
        journal.close()
        with pytest.raises(JournalError, match="is closed"):
            journal.__enter__()
        journal.write(row())
        assert journal.statistics() == JournalStatistics(rows=0, files=0, queued=0, dropped=1, failures=0)
        with Journal(tmp_path, "web-1", when_full="raise") as journal:
            pass
        with pytest.raises(JournalError, match="closed> takes no more rows"):
            journal.write(row())

    def test_row_written_while_another_thread_closes_the_journal_is_counted(self, tmp_path: Path) -> None:
        reading, opened, closed = threading.Event(), threading.Event(), threading.Event()

        def now() -> float:
            if opened.is_set():
                reading.set()
                closed.wait()
            return NOON

        journal = Journal(tmp_path, "web-1", now=now)
        opened.set()
        writer = threading.Thread(target=journal.write, args=[row()])
        writer.start()
        reading.wait()
        journal.close()
        closed.set()
        writer.join()
        assert journal.statistics() == JournalStatistics(rows=0, files=0, queued=0, dropped=1, failures=0)

    def test_end_of_the_process_closes_an_open_journal(self, tmp_path: Path) -> None:
        subprocess.run([sys.executable, "-m", "tests.journal.writer", tmp_path, "2500"], cwd=ROOT, check=True)
        assert len(read(tmp_path)) == 2500

    def test_killed_process_leaves_whole_files_with_all_rows_before_open_batch(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "tests.journal.writer", str(tmp_path), "10000000"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                if int(line) >= 7000:
                    break
            writer.send_signal(signal.SIGKILL)
            taken = max([int(line), *map(int, writer.stdout.read().split())])
        assert writer.returncode == -signal.SIGKILL
        found = numbers(tmp_path)
        # 2,000 rows of the open batch, 4,000 of the queue, and the thousand that it had not told of yet.
        assert found == list(range(len(found)))
        assert taken - 6000 <= len(found) <= taken + 1000


def test_a_file_that_a_killed_process_has_begun_is_removed(tmp_path: Path) -> None:
    begun = [tmp_path / "date=2026-11-20" / f"instance={name}" / ".1.parquet.unfinished" for name in ("web-1", "web-2")]
    for path in begun:
        path.parent.mkdir(parents=True)
        path.touch()
    Files(tmp_path, "web-1")
    assert [path.exists() for path in begun] == [False, True]


def test_failed_directory_sync_writes_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def fail_for_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise PermissionError
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_directories)
    with Journal(tmp_path, "web-1", now=lambda: NOON) as journal:
        journal.write(row())
    assert journal.statistics() == JournalStatistics(rows=1, files=1, queued=0, dropped=0, failures=0)
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"rows_per_file": 0}, ValueError, "rows_per_file must be at least 1"),
        ({"max_queued": 0}, ValueError, "max_queued must be at least 1"),
        ({"max_queued": 1.5}, TypeError, "max_queued must be an int"),
        ({"seconds_per_file": 0.0}, ValueError, "seconds_per_file must be finite and positive"),
        ({"seconds_per_file": float("nan")}, ValueError, "seconds_per_file must be finite and positive"),
        ({"seconds_per_file": 1e300}, ValueError, "seconds_per_file must be at most 9"),
        ({"seconds_per_file": None}, TypeError, "seconds_per_file must be a number of seconds, not None"),
        ({"now": 3}, TypeError, "now must be callable, not 3"),
        *(({"instance": name}, ValueError, "looks like a number") for name in ("7", "-1.5", "1e9", "2026-11-21")),
        *(
            ({"instance": name}, ValueError, "instance must be 1 to 128 of the characters")
            for name in ("", "a/b", "a=b", "..x/", "ü", "a b", "x" * 129)
        ),
        ({"instance": None}, TypeError, "instance must be a str, not None"),
        ({"when_full": "wait"}, ValueError, "when_full must be 'drop' or 'raise'"),
    ],
)
def test_bad_parameters_are_refused_and_start_nothing(
    tmp_path: Path, parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    threads = threading.active_count()
    with pytest.raises(error, match=message):
        Journal(tmp_path / "journal", **{"instance": "web-1", **parameters})
    assert (threading.active_count(), list(tmp_path.iterdir())) == (threads, [])
