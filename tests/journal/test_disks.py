"""The journal, when the disk is slow or full."""

import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.journal import Journal, JournalError, JournalFull, JournalStatistics
from tests.support.journals import NOON, files, fill, numbers, partitions, read, row, until
from tests.support.operations import FaultLog, Flag


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that takes until this is set."""
    written = threading.Event()
    sync = os.fsync

    def slow(descriptor: int) -> None:
        written.wait()
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    yield written
    written.set()


class TestASlowDisk:
    def test_rows_beyond_max_queued_are_dropped_and_counted(
        self, tmp_path: Path, slow_disk: threading.Event, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Journal(tmp_path, "web-1", rows_per_file=10, max_queued=20, now=lambda: NOON) as journal:
            fill(journal, 10)
            until(lambda: journal._num_open == 10)
            fill(journal, 10, 50)
            assert journal.statistics() == JournalStatistics(rows=0, files=0, queued=30, dropped=20, failures=0)
            slow_disk.set()
        assert numbers(tmp_path) == list(range(30))
        assert caplog.text.count("must drop rows") == 1, "said once"

    def test_dropped_row_can_be_reported_to_exception_handler(
        self, tmp_path: Path, slow_disk: threading.Event, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        with Journal(tmp_path, "web-1", rows_per_file=1, max_queued=1, when_full="raise") as journal:
            purgatory.add_listener(journal.write)
            purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
            until(lambda: journal._num_open == 1)
            for _ in range(3):
                assert purgatory.try_complete_else_watch(Flag(ready=True), ["a"]).done()
            assert [type(exception) for exception in clock.exceptions] == [JournalFull] * 2
            assert "is full: 1 rows are queued" in str(clock.exceptions[0])
            assert journal.statistics().dropped == 2
            slow_disk.set()
        assert len(read(tmp_path)) == 2

    def test_a_close_does_not_wait_for_ever(self, tmp_path: Path, slow_disk: threading.Event) -> None:
        journal = Journal(tmp_path, "web-1", now=lambda: NOON)
        journal.write(row())
        with pytest.raises(TimeoutError, match=r"not written within 0\.01 seconds"):
            journal.close(0.01)
        slow_disk.set()
        journal.close()
        assert len(read(tmp_path)) == 1


@pytest.fixture
def full_disk() -> Iterator[Callable[[], None]]:
    """No file can have more than a few bytes until the yielded function is called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))

    def room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    yield room
    room()


class TestAFullDisk:
    def test_rows_that_could_not_be_written_are_written_when_there_is_room(
        self,
        tmp_path: Path,
        full_disk: Callable[[], None],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr("purgatory.journal.journal._RETRY", 0.001)
        with Journal(tmp_path, "web-1", rows_per_file=10, max_queued=20, now=lambda: NOON) as journal:
            fill(journal, 10)
            until(lambda: journal.statistics().failures >= 3)
            fill(journal, 10, 40)
            statistics = journal.statistics()
            assert (statistics.rows, statistics.queued, statistics.dropped) == (0, 30, 10)
            assert all(path.suffix == ".unfinished" for path in files(tmp_path))
            full_disk()
            until(lambda: journal.statistics().rows == 30)
        assert numbers(tmp_path) == list(range(30))
        assert caplog.text.count("cannot write, and goes on trying") == 1, "said once"

    def test_rows_of_other_days_are_written_while_one_day_cannot_be(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The second day cannot be written: there is a file where its directory should be.
        monkeypatch.setattr("purgatory.journal.journal._RETRY", 0.001)
        obstacle = tmp_path / "date=2026-11-22"
        with Journal(tmp_path, "web-1", rows_per_file=4, now=lambda: NOON + 86_400) as journal:
            obstacle.touch()
            for waited in (86_400.0, 0.0, 1.0, -86_400.0):
                journal.write(row(waited=waited))
            until(lambda: journal.statistics().failures >= 3)
            assert (journal.statistics().rows, journal.statistics().queued) == (2, 2)
            obstacle.unlink()
        assert [count for *_, count in partitions(tmp_path)] == [1, 2, 1]

    def test_new_rows_do_not_make_write_attempts_more_frequent(
        self, tmp_path: Path, full_disk: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("purgatory.journal.journal._RETRY", 3600.0)
        journal = Journal(tmp_path, "web-1", rows_per_file=1_000, max_queued=20_000, now=lambda: NOON)
        fill(journal, 1_000)
        until(lambda: journal.statistics().failures == 1)
        fill(journal, 1_000, 20_000)
        assert journal.statistics().failures == 1
        full_disk()
        journal.close()
        assert journal.statistics().rows == 20_000

    @pytest.mark.parametrize("when_full", ["drop", "raise"])
    def test_a_close_reports_the_lost_rows(
        self, tmp_path: Path, full_disk: Callable[[], None], when_full: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        journal = Journal(tmp_path, "web-1", rows_per_file=10, max_queued=20, when_full=when_full, now=lambda: NOON)
        fill(journal, 10)
        until(lambda: journal.statistics().failures > 0)
        fill(journal, 10, 15)
        if when_full == "raise":
            with pytest.raises(JournalError, match="15 rows could not be written"):
                journal.close()
        else:
            journal.close()
        full_disk()
        statistics = journal.statistics()
        assert (statistics.rows, statistics.queued, statistics.dropped) == (0, 0, 15)
        assert "cannot write" in caplog.text
        assert "could not write 15 rows" in caplog.text
        assert files(tmp_path) == []
        journal.close()
