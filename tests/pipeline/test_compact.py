"""Merging the batches of a cube: the same sums, true bounds, and each row once for those who read meanwhile."""

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from purgatory.pipeline import answers, compact, cube, trace
from purgatory.pipeline.compact import LABELS, MAXIMA, MORE, SIZES, SUMS, merged
from purgatory.pipeline.places import LocalPlace
from tests.pipeline.batches import ADDITIVE, COUNTS, Made, PerKey, Row, numbered, write_batch
from tests.pipeline.compacting import BATCHES, merge_all, numbers
from tests.pipeline.test_cube import made_up
from tests.pipeline.traces import write
from tests.support.paths import ROOT

KEPT, SAMPLED = 4, 30


def totals(table: pa.Table, parts: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The counts of rows with the same labels, which are added up one by one."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in table.to_pylist():
        if row["part"] in parts:
            total = found.setdefault(tuple(row.get(label) for label in LABELS), {})
            for names, add in ((SUMS, sum), (MAXIMA, max)):
                for name in names:
                    values = [each for each in (total.get(name), row.get(name)) if each is not None]
                    total[name] = add(values) if values else None
    return found


def assert_bounds(table: pa.Table, per_key: PerKey) -> None:
    """See that each key has as many operations as `answers.keys` allows, also if it is not there."""
    truth: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (purgatory, _, key), counts in per_key.items():
        truth[purgatory, key] += counts
    cuts: Counter[tuple[str, str]] = Counter()
    for row in table.to_pylist():
        if row["part"] == "cuts":
            cuts.update({(row["purgatory"], name): row[name] for name in COUNTS})
    bounds = {(row["purgatory"], row["key"]): row for row in answers.keys(table).to_dict("records")}
    for place, counts in truth.items():
        for count, name in zip(COUNTS, ("operations", "expired", "missed"), strict=True):
            low, high = 0, cuts[place[0], count]
            if place in bounds:
                low, high = bounds[place][name], bounds[place][f"{name}_most"]
            assert low <= counts[count] <= high, (place, count)


def assert_sample(table: pa.Table, moments: list[Row]) -> None:
    """See that all files have all moments of the keys that all have."""
    rows = pa.Table.from_pylist(moments, table.drop_columns("file").schema) if moments else None
    for purgatory in ("fetch", "produce"):
        samples = [row for row in table.to_pylist() if row["part"] == "samples" and row["purgatory"] == purgatory]
        assert bool(samples) == any(row["purgatory"] == purgatory for row in moments)
        if rows is None or not samples:
            continue
        last = min(row["hash"] for row in samples)
        found, truth = (
            {
                labels: total
                for labels, total in totals(each, ["moments"]).items()
                if labels[LABELS.index("purgatory")] == purgatory and labels[LABELS.index("hash")] % 4096 <= last
            }
            for each in (table, rows)
        )
        assert found == truth
        buckets = [row["hash"] % 4096 for row in moments if row["purgatory"] == purgatory]
        assert last >= min(buckets)  # one is always there


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 12))
def test_merges_in_any_order_keep_sums_bounds_and_samples(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    batches = [Made(seed + number, KEPT, SAMPLED) for number in range(count)]
    per_key: PerKey = defaultdict(Counter)
    for batch in batches:
        for place, counts in batch.per_key.items():
            per_key[place] += counts
    moments = [row for batch in batches for row in batch.moments]
    tables = [batch.table for batch in batches]
    expected = totals(pa.concat_tables(tables), ADDITIVE)
    with patch.object(compact, "KEPT", KEPT), patch.object(compact, "SAMPLED", SAMPLED):
        while True:
            together = cube.joined(tables)
            assert totals(together, ADDITIVE) == expected
            assert_bounds(together, per_key)
            assert_sample(together, moments)
            if len(tables) == 1:
                break
            random.shuffle(tables)
            size = int(random.integers(2, len(tables) + 1))
            tables = [*tables[size:], merged(tables[:size])]
    (last,) = tables
    rows = last.to_pylist()
    assert len(totals(last, ADDITIVE)) == sum(row["part"] in ADDITIVE for row in rows)
    for purgatory in ("fetch", "produce"):
        some = [row for row in rows if row["part"] == "moments" and row["purgatory"] == purgatory]
        assert sum(row["operations"] for row in some) <= SAMPLED or len({row["hash"] % 4096 for row in some}) == 1
    for kind, limit in (("hot_keys", 3 * KEPT), ("cuts", 1)):
        by_day = Counter((row["purgatory"], row["arrived"]) for row in rows if row["part"] == kind)
        assert all(each <= limit for each in by_day.values())


def test_merged_cubes_of_batches_are_the_cube_of_all(spark: SparkSession, tmp_path: Path) -> None:
    rows = made_up(600)
    tables = []
    for number in range(3):
        write(tmp_path / f"{number}", rows[number::3])
        journal = trace.read(spark, str(tmp_path / f"{number}"))
        limits = {"kept": 10, "sampled": 40} if number else {}
        tables.append(trace.maker()(spark, journal, trace.numbers(1_000_000, 2**60, 20_000) | limits, None))
        assert set(tables[-1].column_names) == {*LABELS, *SUMS, *MAXIMA}  # each adds up in its way
    write(tmp_path / "all", rows)
    whole = trace.cube(trace.read(spark, str(tmp_path / "all")), 1)
    with patch.object(compact, "KEPT", 10), patch.object(compact, "SAMPLED", 40):
        found = cube.joined([merged([merged(tables[:2]), tables[2]])])
    expected, sums = (totals(table, ADDITIVE) for table in (whole, found))
    assert sums.keys() == expected.keys()
    for labels, total in expected.items():
        assert sums[labels] == {name: None if each is None else pytest.approx(each) for name, each in total.items()}
    per_key: PerKey = defaultdict(Counter)
    for row in rows:
        day = int(row["arrived_at"].timestamp()) // 86_400
        counts = {"operations": 1, "num_expired": row["outcome"] == "expired", "num_missed": row["missed"]}
        for key in row["keys"]:
            per_key[row["purgatory"], day, key].update(counts)
    assert_bounds(found, per_key)
    assert_sample(found, [row for row in whole.to_pylist() if row["part"] == "moments"])


def _compacting(mode: str, path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.pipeline.compacting", mode, str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(900)
def test_who_reads_meanwhile_finds_each_row_once(tmp_path: Path) -> None:
    written, reads = 0, 0
    with _compacting("write", tmp_path) as process:
        while written < BATCHES:
            assert process.poll() in (None, 0)
            marker = tmp_path / "_written"
            if marker.exists():
                written = int(marker.read_text())
                found = numbers(tmp_path)
                assert found == list(range(len(found)))
                assert len(found) >= written
                reads += 1
    assert process.returncode == 0
    assert reads > 10
    assert len(cube.files(str(tmp_path))) < 20


@pytest.mark.parametrize("step", ["names", "read"])
def test_a_merge_between_two_steps_of_a_reader_is_seen(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        write_batch(tmp_path, number, numbered(number))
    original: Callable[..., Any] = getattr(LocalPlace, step)
    merges: list[str] = []

    def merging(place: LocalPlace, *names: Sequence[str]) -> Any:
        if merges:
            return original(place, *names)
        merges.append(step)
        if step == "read":  # of files that have gone since they were listed
            merge_all(tmp_path)
            return original(place, *names)
        # The entries of the directory are from before the merge, and what is below them from after it.
        found = original(place)
        merge_all(tmp_path)
        return [name for name in found if (tmp_path / name).exists()]

    monkeypatch.setattr(LocalPlace, step, merging)
    assert numbers(tmp_path) == list(range(12))
    assert merges == [step]
    assert len(cube.files(str(tmp_path))) == 3


@pytest.mark.timeout(900)
def test_a_merge_that_is_killed_loses_and_repeats_nothing(tmp_path: Path) -> None:
    process = _compacting("kill", tmp_path / "cube")
    said = process.communicate()[0]
    assert process.returncode == 0
    assert int(said) > 80


def test_two_processes_do_not_merge_at_once(tmp_path: Path) -> None:
    for number in range(12):
        write_batch(tmp_path, number, Made(number, KEPT, SAMPLED).table)
    with compact._locked(tmp_path) as is_locked:
        assert is_locked
        assert not compact.compact(str(tmp_path))
    assert compact.compact(str(tmp_path))


def test_columns_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    for number in range(12):
        table = Made(number, KEPT, SAMPLED).table
        write_batch(tmp_path, number, table.append_column("newer", pa.repeat(1, len(table))))
    assert not compact.compact(str(tmp_path))
    assert len(cube.files(str(tmp_path))) == 12


@pytest.mark.parametrize("place", ["file:///cube", "s3://bucket/cube", "missing"])
def test_a_cube_that_is_elsewhere_is_left_alone(place: str) -> None:
    assert not compact.compact(place)


def test_six_hours_are_a_few_files_and_each_batch_is_merged_thrice() -> None:
    spans: list[tuple[int, int]] = []
    most, merges = 0, 0
    for number in range(2160):
        spans = sorted([*spans, (number, number)])
        while group := compact._next_group(spans):
            merges += group[-1][1] - group[0][0] + 1
            spans = sorted({*spans}.difference(group) | {(group[0][0], group[-1][1])})
        most = max(most, len(spans))
    assert len(spans) == 18  # 2 of a thousand, 1 of a hundred, 5 of ten, and the newest ten
    assert most <= 10 * len(SIZES)
    assert merges <= 3 * 2160


def test_counts_of_hot_keys_have_a_column_for_what_they_may_lack() -> None:
    assert set(MORE) == set(COUNTS)
