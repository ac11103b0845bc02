"""Joined files: each row once at every moment, for each reader, also if the work is killed at any step."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from purgatory.journal import SCHEMA, Journal
from purgatory.journal.compact import (
    DATA,
    KEEP,
    MANIFESTS,
    Compacted,
    Entry,
    _Place,
    compact,
    counting,
    current_files,
)
from tests.support.journals import NOON, row
from tests.support.paths import ROOT

TOMORROW = NOON + 86_400


def _write(journal: Path, instance: str, numbers: range, at: float = NOON) -> None:
    """Write a file of a journal."""
    with Journal(journal, instance, now=lambda: at) as opened:
        for number in numbers:
            opened.write(row(number))


def _fill(journal: Path, days: int = 2, files: int = 4) -> list[str]:
    """Some days of two instances with some files each. Returns the keys of all rows."""
    numbers = iter(range(0, 1000, 10))
    for day in reversed(range(days)):
        for instance in ("web-1", "web-2"):
            for _ in range(files):
                first = next(numbers)
                _write(journal, instance, range(first, first + 10), NOON - 86_400 * day)
    return sorted(str(number) for number in range(next(numbers)))


def _found(journal: Path) -> list[str]:
    """The keys of the rows in the files that are current, as a reader of plain Parquet finds them."""
    return sorted(
        key
        for file in current_files(str(journal))
        for keys in pq.ParquetFile(file).read()["keys"].to_pylist()
        for key in keys
    )


def _small(journal: Path) -> list[Path]:
    return sorted(journal.glob("date=*/instance=*/*.parquet"))


def _at(when: float) -> Callable[[], float]:
    return lambda: when


def _older(journal: Path, seconds: float) -> None:
    """Let so much time pass."""
    for path in journal.rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - seconds,) * 2)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_each_day_and_instance_becomes_a_file(journal: Path) -> None:
    expected = _fill(journal)
    before = {path: path.read_bytes() for path in _small(journal)}
    said: list[str] = []
    assert compact(str(journal), now=_at(TOMORROW), say=said.append) == Compacted(16, 4, 0)
    assert said == ["date=2026-11-20: 8 files joined into 2", "date=2026-11-21: 8 files joined into 2"]
    assert {path: path.read_bytes() for path in _small(journal)} == before, "readers that have begun need them"
    assert len(current_files(str(journal))) == 4
    assert _found(journal) == expected
    [first] = (journal / DATA / "date=2026-11-20" / "instance=web-1").iterdir()
    assert pq.read_schema(first).equals(SCHEMA)
    assert compact(str(journal), now=_at(TOMORROW)) == Compacted(0, 0, 0)
    with duckdb.connect() as connection:
        found = connection.execute("SELECT count(*) FROM read_parquet($1)", [current_files(str(journal))]).fetchall()
    assert found == [(160,)]


def test_replaced_files_are_deleted_later_and_forgotten_after_that(journal: Path) -> None:
    expected = _fill(journal)
    compact(str(journal))
    _older(journal, KEEP - 60)
    assert compact(str(journal)).deleted == 0
    _older(journal, 120)
    assert compact(str(journal)).deleted == 16
    assert _small(journal) == []
    assert _found(journal) == expected
    _older(journal, KEEP - 60)
    compact(str(journal))
    assert _replaced(journal) == 16, "a reader may have listed them before they were deleted"
    _older(journal, 120)
    compact(str(journal))
    assert _replaced(journal) == 0
    assert _found(journal) == expected


def _replaced(journal: Path) -> int:
    lines = [line for path in (journal / MANIFESTS).iterdir() for line in path.read_text().splitlines()]
    return sum(line.count(".parquet") - 1 for line in lines)


def test_files_of_today_single_ones_and_large_ones_stay(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill(journal)
    _write(journal, "single", range(1))
    assert compact(str(journal), now=_at(NOON)).joined == 8
    assert compact(str(journal), now=_at(NOON - 86_400)).joined == 0
    assert not list((journal / DATA).glob("*/instance=single/*"))
    monkeypatch.setattr("purgatory.journal.compact._LARGE", 10)
    assert compact(str(journal), now=_at(TOMORROW)).joined == 0


def test_a_joined_file_is_of_limited_size(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _fill(journal)
    size = _small(journal)[0].stat().st_size
    monkeypatch.setattr("purgatory.journal.compact._SIZE", size * 3 // 2)
    monkeypatch.setattr("purgatory.journal.compact._ROWS", 15)
    assert compact(str(journal), now=_at(TOMORROW)) == Compacted(16, 8, 0)
    assert _found(journal) == expected


def test_late_rows_are_joined_by_the_next_run(journal: Path) -> None:
    expected = _fill(journal)
    compact(str(journal), now=_at(TOMORROW))
    _write(journal, "web-1", range(500, 501))
    assert compact(str(journal), now=_at(TOMORROW)).joined == 0
    _write(journal, "web-1", range(501, 502))
    assert compact(str(journal), now=_at(TOMORROW)) == Compacted(2, 1, 0)
    assert _found(journal) == sorted([*expected, "500", "501"])


def test_files_of_other_schemas_are_not_joined_with_them(journal: Path) -> None:
    expected = _fill(journal)
    older = _small(journal)[0]
    pq.write_table(pq.ParquetFile(older).read().drop(["late_s"]), older)
    assert compact(str(journal), now=_at(TOMORROW)).joined == 15
    assert older in map(Path, current_files(str(journal)))
    assert _found(journal) == expected
    assert len(list((journal / DATA).rglob("*.parquet"))) == 4


def test_a_file_that_cannot_be_read_is_named_and_stays(journal: Path) -> None:
    _fill(journal)
    corrupt = _small(journal)[5]
    corrupt.write_bytes(corrupt.read_bytes()[:-9])
    said: list[str] = []
    assert compact(str(journal), now=_at(TOMORROW), say=said.append).joined == 15
    assert said[0].startswith(f"{corrupt} cannot be read, and stays as it is: ")
    assert corrupt in map(Path, current_files(str(journal)))


@pytest.mark.parametrize("phase", ["joining", "deleting", "forgetting"])
def test_compaction_killed_at_any_step_keeps_each_row_once(tmp_path: Path, phase: str) -> None:
    step, steps = 0, None
    while steps is None:
        step += 1
        journal = tmp_path / str(step)
        expected = _fill(journal, days=1, files=2)
        if phase != "joining":
            compact(str(journal))
            _older(journal, KEEP + 60)
        if phase == "forgetting":
            compact(str(journal))
            _older(journal, KEEP + 60)
        command = [
            sys.executable,
            "-m",
            "tests.journal.compactor",
            str(journal),
            str(time.time()),
            str(KEEP),
            str(step),
        ]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.returncode in (0, 9), run.stderr
        if run.returncode == 0:
            steps = int(run.stdout)
        assert _found(journal) == expected
        for _ in range(3):  # the next runs complete the work, and leave nothing behind
            compact(str(journal))
            assert _found(journal) == expected
            _older(journal, KEEP + 60)
        compact(str(journal))
        assert _small(journal) == []
        assert len(current_files(str(journal))) == len(list((journal / DATA).rglob("*.parquet"))) == 2
        assert all(path.suffix == ".json" for path in (journal / MANIFESTS).iterdir())
    assert steps == step - 1 > 3


def test_readers_that_read_all_the_time_find_each_row_once(journal: Path) -> None:
    """Also beside a journal's writer, and two runs at the same time."""
    expected = _fill(journal)
    ended = threading.Event()
    wrong: list[list[str]] = []
    passes = [0, 0]

    def read(reader: int) -> None:
        while not ended.is_set():
            found = [key for key in _found(journal) if int(key) < 1000]
            if found != expected:
                wrong.append(found)
            passes[reader] += 1

    def write() -> None:
        number = 1000
        while not ended.is_set():
            _write(journal, "web-1", range(number, number + 10))
            number += 10

    threads = [threading.Thread(target=read, args=(reader,)) for reader in (0, 1)] + [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    while min(passes) < 3:
        time.sleep(0.01)
    runs = [threading.Thread(target=compact, args=(str(journal),), kwargs={"now": _at(TOMORROW)}) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    compact(str(journal), now=_at(TOMORROW))
    after = min(passes)
    while min(passes) < after + 3:
        time.sleep(0.01)
    ended.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not any(
        path in _small(journal) for path in map(Path, current_files(str(journal))) if "date=2026-11-20" in str(path)
    )


def test_first_of_two_runs_that_join_the_same_file_counts(journal: Path) -> None:
    expected = _fill(journal)
    compact(str(journal), now=_at(TOMORROW))
    [manifest, _] = sorted((journal / MANIFESTS).iterdir())
    again = manifest.with_name(f"9{manifest.name}")
    again.write_text(re.sub("(/instance=[^/]+)/", r"\1/x", manifest.read_text()))
    assert _found(journal) == expected
    compact(str(journal), now=_at(TOMORROW))
    assert again.read_text() == ""
    assert counting([[Entry("d/1", ("a", "b"))], [Entry("d/2", ("b", "c")), Entry("d/3", ("c",))]]) == (
        ["d/1", "d/3"],
        {"d/a", "d/b", "d/c"},
    )


def test_leftovers_of_a_killed_run_are_deleted_after_a_day(journal: Path) -> None:
    _fill(journal)
    compact(str(journal), now=_at(TOMORROW))
    left = [journal / DATA / "date=2026-11-20" / "left.parquet", journal / MANIFESTS / ".left.json.unfinished"]
    for path in left:
        path.touch()
    compact(str(journal), keep=0)
    assert all(path.exists() for path in left), "a run may be writing them"
    _older(journal, 86_400)
    compact(str(journal), keep=0)
    assert not any(path.exists() for path in left)


def test_journal_on_a_remote_file_system_is_compacted(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _fill(journal)
    system = fs.SubTreeFileSystem(str(journal.parent), fs.LocalFileSystem())
    monkeypatch.setattr("purgatory.journal.compact._place", lambda _: _Place(system, "journal", {}))
    assert compact("bucket", now=_at(TOMORROW)) == Compacted(16, 4, 0)
    assert all(file.startswith("journal/_compacted/data/date=") for file in current_files("bucket"))
    monkeypatch.undo()
    assert _found(journal) == expected


def test_impossible_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep must be a number of seconds from 0, not -1"):
        compact(str(tmp_path), keep=-1)
    with pytest.raises(NotADirectoryError, match=r"there is no directory .*/none"):
        compact(str(tmp_path / "none"))
    assert compact(tmp_path.as_uri()) == Compacted(0, 0, 0)
