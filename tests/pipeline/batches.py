"""Batches of a stream's cube that are made without Spark, with the truth that their files leave out."""

from collections import Counter
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DAY: Final = 86_400_000_000
COUNTS: Final = ("operations", "num_expired", "num_missed")
ADDITIVE: Final = ("operations", "refused", "steps", "instance_steps")

SCHEMA: Final = pa.schema(
    [
        *[(name, pa.string()) for name in ("part", "instance", "purgatory", "operation")],
        *[(name, pa.int64()) for name in ("opened", "slot", "arrived", "finished")],
        ("outcome", pa.string()),
        *[(name, pa.bool_()) for name in ("missed", "is_gone", "entered_late")],
        *[(name, pa.int32()) for name in ("timeout_bin", "wait_bin")],
        *[(name, pa.int64()) for name in COUNTS],
        *[(name, pa.float64()) for name in ("wait_sum", "wait_max", "late_sum", "late_max", "timeout_max")],
        ("refused", pa.string()),
        ("moment", pa.int64()),
        ("key", pa.string()),
        *[(name, pa.int64()) for name in ("hash", "num_others")],
    ]
)
"""The columns of the cube."""

Row: TypeAlias = dict[str, Any]
PerKey: TypeAlias = dict[tuple[str, int, str], Counter[str]]
"""What each key has, by purgatory, day and key."""


class Made:
    """A batch with few labels, whose hot keys and samples are cut off as in `cube.sql`."""

    def __init__(self, seed: int, kept: int, sampled: int) -> None:
        random = np.random.default_rng(seed)
        self.per_key: PerKey = {}
        self.moments: list[Row] = []
        rows: list[Row] = []
        for part in ADDITIVE:
            rows += [_additive(random, part) for _ in range(random.integers(0, 8))]
        for purgatory in ("fetch", "produce")[: random.integers(0, 3)]:
            for _ in range(random.integers(1, 80)):
                key = f"key-{random.zipf(1.3) % 60}"
                day = DAY * int(random.integers(20_000, 20_002))
                expired, missed = (int(random.random() < share) for share in (0.3, 0.1))
                counts = {"operations": 1, "num_expired": expired, "num_missed": missed}
                self.per_key.setdefault((purgatory, day, key), Counter()).update(counts)
                self.moments.append(_moment(random, purgatory, key, day, expired))
        rows += _hot(self.per_key, kept)
        rows += _sampled(self.moments, sampled)
        self.table = pa.Table.from_pylist(rows, SCHEMA)


def _one_of(random: np.random.Generator, *values: str | int | None) -> str | int | None:
    return values[random.integers(0, len(values))]


def _additive(random: np.random.Generator, part: str) -> Row:
    """A row of few labels, with sums that are exact in any order, or null."""
    row: Row = {
        "part": part,
        "instance": _one_of(random, "web-1", "web-2", None),
        "slot": 60,
        "arrived": int(random.integers(0, 2)),
        "operations": int(random.integers(-3, 4)),
    }
    if part == "operations":
        row |= {"purgatory": "fetch", "operation": "DelayedFetch", "outcome": _one_of(random, "expired", "satisfied")}
        row |= {"missed": bool(random.random() < 0.5), "timeout_bin": _one_of(random, None, 7)}
        if random.random() < 0.7:
            row |= {name: float(random.integers(0, 1000)) / 1024 for name in ("wait_sum", "wait_max", "timeout_max")}
        if row["outcome"] == "expired":
            row |= {name: float(random.integers(0, 1000)) / 1024 for name in ("late_sum", "late_max")}
    elif part == "refused":
        row["refused"] = _one_of(random, "ahead of the clock", "waited_s in a.parquet")
    else:
        row["moment"] = int(random.integers(-1000, 1000))
    return row


def _moment(random: np.random.Generator, purgatory: str, key: str, day: int, expired: int) -> Row:
    number = int(key.partition("-")[2])
    return {
        "part": "moments",
        "purgatory": purgatory,
        "operation": "DelayedFetch",
        "hash": (-1) ** number * (4096 * number + 97 * number % 4096),
        "arrived": day + 250_000 * int(random.integers(0, 3)),
        "operations": 1,
        "num_expired": expired,
        "num_others": 0,
    }


def _hot(per_key: PerKey, kept: int) -> list[Row]:
    rows = []
    for purgatory, day in {place[:2] for place in per_key}:
        keys = {key: counts for (*place, key), counts in per_key.items() if place == [purgatory, day]}
        cut = {}
        for name in COUNTS:
            numbers = sorted((counts[name] for counts in keys.values()), reverse=True)
            cut[name] = numbers[kept] if len(numbers) > kept else 0
        place = {"purgatory": purgatory, "arrived": day}
        rows.append({"part": "cuts", **place, **cut})
        for key, counts in keys.items():
            if any(counts[name] > cut[name] for name in COUNTS):
                rows.append({"part": "hot_keys", **place, "key": key, **{name: counts[name] for name in COUNTS}})
    return rows


def _sampled(moments: list[Row], sampled: int) -> list[Row]:
    rows: list[Row] = []
    for purgatory in {row["purgatory"] for row in moments}:
        buckets = Counter(row["hash"] % 4096 for row in moments if row["purgatory"] == purgatory)
        up_to, last = 0, 4095
        for place, bucket in enumerate(sorted(buckets)):
            up_to += buckets[bucket]
            if up_to > sampled:
                last = max(each for each in sorted(buckets)[: max(place, 1)])
                break
        rows.append({"part": "samples", "purgatory": purgatory, "hash": last})
        rows += [row for row in moments if row["purgatory"] == purgatory and row["hash"] % 4096 <= last]
    return rows


def numbered(number: int) -> pa.Table:
    """A batch with one operation, whose name is a number."""
    row = {"part": "operations", "operation": str(number), "arrived": 0, "operations": 1, "slot": 60}
    return pa.Table.from_pylist([row], SCHEMA)


def write_batch(directory: Path, number: int, table: pa.Table) -> None:
    """Write a batch as Spark does: its directory is there before its file, which appears whole."""
    path = directory / f"batch={number}"
    path.mkdir(parents=True)
    pq.write_table(table, path / "_written")
    (path / "_SUCCESS").touch()
    (path / "_written").rename(path / "part-0.parquet")
