"""Merge the batches of a stream's cube into fewer files, while a stream writes it and others read it.

Ten batches become one file, `CUBE/batches=0-9/cube.parquet`, ten of these become one, and so on. So each row is read
and written once per power of ten, and a stream of six hours has a dozen files instead of 2,160.

A merge may be killed at any time. First the merged file appears, whole, and stands for the files that it was made of.
Then those are deleted, by this merge or by the next. Readers leave out what a merged file stands for (`cube.files`).

The newest batch is left alone. Spark begins a batch after it has recorded that the one before is done, so it never
writes a batch that has been merged. If it does one again from an old checkpoint, the names of the merged files tell
that its rows are there.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.pipeline.cube import files, joined
from purgatory.pipeline.places import replaced
from purgatory.pipeline.trace import KEPT, SAMPLED

SIZES: tuple[int, ...] = (10, 100, 1_000, 10_000)
"""How many batches a merged file has. At ten seconds each, ten thousand are more than a day."""

LABELS: Final = (
    *("part", "instance", "purgatory", "operation", "opened", "slot", "arrived", "finished", "outcome", "missed"),
    *("is_gone", "entered_late", "timeout_bin", "wait_bin", "refused", "key", "hash"),
)
SUMS: Final = ("operations", "num_expired", "num_missed", "num_others", "moment", "wait_sum", "late_sum")
MAXIMA: Final = ("wait_max", "late_max", "timeout_max")
MORE: Final = {"operations": "more_operations", "num_expired": "more_expired", "num_missed": "more_missed"}
"""The counts of hot keys, and the columns that tell how many more each may be."""

_NAME: Final = re.compile(r"batch=(\d+)/.*|batches=(\d+)-(\d+)/.*")
_BUCKETS: Final = 4096


def compact(path: str) -> bool:
    """Merge some batches of the cube in the directory `path`, if that is on this machine.

    Call it again while it returns true: it merges at most ten files a call. It returns false if nothing is left to
    merge, or if another process merges. Raises `OSError` and `pyarrow.ArrowException`, after which the cube is whole.
    """
    directory = Path(path)
    if "://" in path or not directory.is_dir():
        return False
    with _locked(directory) as is_locked:
        return is_locked and _compact(directory)


@contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Whether this process alone may merge. The lock ends with the process, however that ends."""
    with (directory / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _compact(directory: Path) -> bool:
    known = files(str(directory), listings=1)  # nobody else merges
    _clean(directory, known)
    pieces: dict[tuple[int, int], list[str]] = {}
    for name in known:
        if span := _span(name):
            pieces.setdefault(span, []).append(name)
    group = _next_group(sorted(pieces))
    names = [name for span in group for name in pieces[span]]
    tables = [pq.read_table(directory / name, partitioning=None) for name in names]
    columns = {*LABELS, *SUMS, *MAXIMA, *MORE.values()}
    if not group or any(not columns.issuperset(table.column_names) for table in tables):
        return False  # of a newer version, whose columns may add up in another way
    result = f"batches={group[0][0]}-{group[-1][1]}/cube.parquet"
    with replaced(directory / result) as hidden:
        pq.write_table(merged(tables), hidden, compression="zstd")
    _clean(directory, [result, *(name for name in known if name not in names)])
    return True


def _span(name: str) -> tuple[int, int] | None:
    """The first and the last batch of a file, or of a directory with a slash."""
    match = _NAME.fullmatch(name)
    return (int(match[1] or match[2]), int(match[1] or match[3])) if match else None


def _next_group(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Batches that can be merged: all there are of ten, a hundred and so on, if there is a newer one."""
    for size in SIZES:
        groups: dict[int, list[tuple[int, int]]] = {}
        for first, last in spans:
            if last - first + 1 < size and first // size == last // size:
                groups.setdefault(first // size, []).append((first, last))
        for number, group in groups.items():
            if len(group) > 1 and spans[-1][1] >= (number + 1) * size:
                return group
    return []


def _clean(directory: Path, known: Sequence[str]) -> None:
    """Delete what merged files stand for, and what is left of a merge that was killed."""
    kept = {name.partition("/")[0] for name in known}
    spans = [span for entry in kept if entry.startswith("batches=") and (span := _span(f"{entry}/"))]
    for entry in set(os.listdir(directory)) - kept:
        span = _span(f"{entry}/")
        # A batch that Spark writes has no file yet.
        if span and (entry.startswith("batches=") or any(first <= span[0] <= last for first, last in spans)):
            shutil.rmtree(directory / entry)


def merged(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of several files of a cube as those of one.

    Counts add up exactly. Hot keys stay between their bounds, and the samples have fewer keys.
    """
    table = joined(tables)
    part = table["part"]
    is_sampled, is_hot = pc.is_in(part, pa.array(["samples"])), pc.is_in(part, pa.array(["hot_keys", "cuts"]))
    added = _added(table.filter(pc.invert(pc.or_(is_sampled, is_hot))))
    samples, added = _sampled(table.filter(is_sampled), added)
    return pa.concat_tables([added, samples, *_hottest(table.filter(is_hot))], promote_options="permissive")


def _added(table: pa.Table) -> pa.Table:
    """One row for each combination of labels. A sum of nulls is null."""
    functions = {**dict.fromkeys(SUMS, "sum"), **dict.fromkeys(MAXIMA, "max")}
    present = [(name, function) for name, function in functions.items() if name in table.column_names]
    labels = [name for name in LABELS if name in table.column_names]
    found = table.group_by(labels, use_threads=False).aggregate(present)
    return found.rename_columns({f"{name}_{function}": name for name, function in present})


def _sampled(samples: pa.Table, added: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The samples of all files, and the rows `added` with the moments of these alone.

    All files have the keys up to the least bucket. If these have too many operations, it is made less.
    """
    if not len(samples):
        return added.slice(0, 0), added
    least = samples.group_by("purgatory").aggregate([("hash", "min")]).to_pandas().set_index("purgatory")["hash_min"]
    is_moment = pc.equal(added["part"], "moments")
    moments = added.filter(is_moment).select(["purgatory", "hash", "operations"]).to_pandas()
    moments["bucket"] = moments["hash"].astype("int64") % _BUCKETS
    last = moments["purgatory"].map(least)
    counts = moments[moments["bucket"] <= last].groupby(["purgatory", "bucket"])["operations"].sum()
    for purgatory, up_to in counts.groupby(level="purgatory").cumsum().groupby(level="purgatory"):
        if up_to.iloc[-1] > SAMPLED:
            enough = max(int((up_to <= SAMPLED).sum()), 1)
            least[purgatory] = up_to.index.get_level_values("bucket")[enough - 1]
    is_kept = moments["bucket"] <= moments["purgatory"].map(least)
    kept = added.filter(is_moment).filter(pa.array(is_kept))
    rows = pa.table({"part": pa.repeat("samples", len(least)), "purgatory": least.index, "hash": least})
    return rows, pa.concat_tables([added.filter(pc.invert(is_moment)), kept])


def _hottest(table: pa.Table) -> list[pa.Table]:
    """The hot keys of several files, and the cuts that no other key exceeds.

    A key has at least what the files count. At most it has, in addition, the cuts of the files that lack it.
    """
    if not len(table):
        return []
    day, key = ["purgatory", "arrived"], ["purgatory", "arrived", "key"]
    counts, more = list(MORE), list(MORE.values())
    frame = table.to_pandas().reindex(columns=["part", *key, "file", *counts, *more])
    frame[[*counts, *more]] = frame[[*counts, *more]].fillna(0).astype("int64")
    rows, is_cut = frame[frame["part"] == "hot_keys"], frame["part"] == "cuts"
    cuts = frame[is_cut].groupby([*day, "file"])[counts].sum()
    lacked = frame[counts].where(is_cut, 0).groupby([frame[name] for name in day]).sum()
    keys = rows.groupby(key)[[*counts, *more]].sum().reset_index()
    # What all files could lack, less the cuts of those that have the key.
    had = rows[[*key, "file"]].join(cuts, on=[*day, "file"]).fillna(0).groupby(key)[counts].sum().reset_index()
    limits = keys[day].join(lacked, on=day)
    is_kept = pd.Series(False, keys.index)
    for count, extra in MORE.items():
        keys[extra] += limits[count] - had[count].astype("int64")
        keys["high"] = keys[count] + keys[extra]
        number = keys.groupby(day)["high"].rank(method="max", ascending=False)
        # The greatest count that too many keys have, as in the cube of a batch.
        left_out = keys[number > KEPT].groupby(day)["high"].max()
        lacked[count] = left_out.reindex(lacked.index, fill_value=0).clip(lower=lacked[count])
        is_kept |= keys["high"] > keys[day].join(lacked[count], on=day)[count]
    parts = {"hot_keys": keys[is_kept].drop(columns="high"), "cuts": lacked.reset_index()}
    return [
        pa.Table.from_pandas(found.assign(part=part), preserve_index=False)
        for part, found in parts.items()
        if len(found)
    ]
