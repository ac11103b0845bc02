"""The lives of operations, read from a trace's Parquet files by the process that needs them."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.journal import SCHEMA
from purgatory.spark.simulate import OUTCOMES, Floats, Rows

__all__ = ["OPTIONAL", "TYPES", "Impossible", "Lives", "check", "deadlines", "lean", "lives", "opened", "read"]

Integers: TypeAlias = npt.NDArray[np.int64]

TYPES: Final = {**{field.name: field.type for field in SCHEMA if field.name != "missed"}, "completes_s": pa.float64()}
"""The columns of a trace's file, by type. `completes_s` is null where it is unknown."""

OPTIONAL: Final = frozenset({"deadline_s", "opened_at", "completes_s"})

_LOT: Final = 20_000
"""The most rows that are read in one go: the memory for a row group does not depend on its size."""

_BUFFER: Final = 256 * 1024
"""The bytes of a column that are read from a file in one go."""

_SECOND: Final = 1e6
"""Microseconds."""

_SAME: Final = 1e-6
"""Seconds by which a time may be off, as a journal's times are rounded to microseconds."""

_AT_ONCE, _SATISFIED, _EXPIRED, _CLOSED, _CANCELLED, _FAILED = range(len(OUTCOMES))


class Lives(NamedTuple):
    """Operations of a trace: the columns that decide what becomes of them."""

    arrived: Integers
    """Microseconds since 1970."""
    timeout: Floats
    """Seconds from the arrival to the last deadline; infinite is for ever."""
    end: Floats
    """Seconds from the arrival until the end, if the timeout does not come first; infinite if that is not known."""
    ending: npt.NDArray[np.int8]
    """The outcome at that end, as its place in `OUTCOMES`."""
    table: pa.Table
    """Their keys and their names, if these were read."""

    def take(self, places: Integers) -> "Lives":
        """The operations at `places`."""
        return Lives(
            self.arrived[places],
            self.timeout[places],
            self.end[places],
            self.ending[places],
            self.table.take(places),
        )

    @classmethod
    def together(cls, some: Sequence["Lives"]) -> "Lives":
        """The operations of several, which are at least one."""
        return Lives(
            np.concatenate([each.arrived for each in some]),
            np.concatenate([each.timeout for each in some]),
            np.concatenate([each.end for each in some]),
            np.concatenate([each.ending for each in some]),
            pa.concat_tables(each.table for each in some).combine_chunks(),
        )

    def rows(self, base: int, lot: int, *, references: bool) -> Iterator[Rows]:
        """The operations in order of arrival, for a simulation whose time begins at `base`, at most `lot` at a time.

        With `references`, that of an operation is its name, its arrival and its keys.
        """
        order = self._order()
        for start in range(0, len(order), lot):
            some = self.take(order[start : start + lot])
            keys = _keys(some.table["keys"].combine_chunks())
            known: Any = keys
            if references:
                known = list(zip(some.table["operation"].to_pylist(), some.arrived.tolist(), keys, strict=True))
            yield Rows((some.arrived - base) / _SECOND, keys, some.timeout, some.end, some.ending, known)

    def _order(self) -> Integers:
        """The places in order of arrival. The order of the rows does not matter, not even between equal times."""
        order = np.argsort(self.arrived, kind="stable")
        arrived = self.arrived[order]
        same = np.flatnonzero(arrived[1:] == arrived[:-1])
        if len(same):
            starts = same[np.flatnonzero(np.diff(same, prepend=-2) > 1)]
            stops = same[np.flatnonzero(np.diff(same, append=len(arrived) + 1) > 1)] + 2
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                order[start:stop] = sorted(order[start:stop].tolist(), key=self._row)
        return order

    def _row(self, place: int) -> tuple[Any, ...]:
        texts = [self.table[name][place].as_py() for name in ("keys", "operation") if name in self.table.column_names]
        return (*texts, *(column[place] for column in (self.timeout, self.end, self.ending)))


class Impossible(NamedTuple):
    """Values that no operation has."""

    column: str
    rows: int
    example: str


@contextmanager
def opened(path: str) -> Iterator[pq.ParquetFile]:
    """The Parquet file at `path`, a URI of Hadoop's kind. Raises `pa.ArrowException` and `OSError`."""
    if path.startswith("file:"):
        system, path = fs.LocalFileSystem(), re.sub("^file:/+", "/", path)
    else:
        system, path = fs.FileSystem.from_uri(quote(re.sub("^s3[an]:", "s3:", path), safe=":/@"))
    with (
        system.open_input_file(path) as file,
        # Spark by itself writes times as INT96.
        pq.ParquetFile(file, coerce_int96_timestamp_unit="us", buffer_size=_BUFFER) as parquet,
    ):
        yield parquet


def lean() -> None:
    """Give memory back to the system when it is free: Arrow's own allocator would keep a tenth of a worker's."""
    pa.set_memory_pool(pa.system_memory_pool())


def read(parquet: pq.ParquetFile, group: int, columns: Collection[str] = TYPES) -> Iterator[pa.Table]:
    """The `columns` of a row group, some rows at a time, with a trace's types; a missing one is null."""
    there = set(parquet.schema_arrow.names)
    wanted = [name for name in columns if name in there]
    for batch in parquet.iter_batches(_LOT, row_groups=[group], columns=wanted, use_threads=False):
        arrays = [
            batch[name].cast(TYPES[name], safe=False) if name in there else pa.nulls(len(batch), TYPES[name])
            for name in columns
        ]
        yield pa.table(arrays, names=list(columns))


def lives(table: pa.Table) -> Lives:
    """The lives of the operations in the rows of a trace."""
    outcome = _outcomes(table)
    waited, completes = (table[name].to_numpy() for name in ("waited_s", "completes_s"))
    expired, closed = outcome == _EXPIRED, outcome == _CLOSED
    # An operation that ended after its deadline without expiring, by the last try for one, is replayed without a
    # deadline: it ends as it did.
    timeout = deadlines(table)
    timeout = np.where(expired | (waited <= timeout), timeout, inf)
    end = np.where(np.isnan(completes), np.where(expired, inf, waited), completes)
    left = (outcome == _CANCELLED) | (outcome == _FAILED) | (closed & ~(completes < inf))
    end = np.where(left, waited, np.where(outcome == _AT_ONCE, 0.0, end))
    ending = np.where((expired | closed) & (completes < inf), _SATISFIED, outcome).astype(np.int8)
    arrived = table["arrived_at"].cast(pa.int64()).to_numpy()
    return Lives(
        arrived,
        timeout,
        end,
        ending,
        table.select([name for name in ("keys", "operation") if name in table.column_names]),
    )


def deadlines(table: pa.Table) -> Floats:
    """Seconds from the arrival to the last deadline; infinite is for ever, NaN is unknown.

    Older journals do not have it, and their `timeout_s` counts from the last reschedule. It follows from the lateness
    of an expired operation. Another operation that ended later than its timeout was rescheduled, or the loop was busy.
    """
    known, timeout, waited, late = (
        table[name].to_numpy() for name in ("deadline_s", "timeout_s", "waited_s", "late_s")
    )
    expired = _outcomes(table) == _EXPIRED
    moved = expired & (np.abs(waited - late - timeout) > _SAME)
    derived = np.where(moved, np.maximum(waited - late, 0.0), np.where(np.isnan(timeout), inf, timeout))
    derived = np.where(~expired & (waited > timeout), np.nan, derived)
    found: Floats = np.where(np.isnan(known), derived, known)
    return found


def check(table: pa.Table) -> Impossible | None:
    """The first column with values that no operation has; `None` if there is none."""
    outcome = _outcomes(table)
    numbers = {
        name: table[name].to_numpy() for name in ("timeout_s", "deadline_s", "waited_s", "late_s", "completes_s")
    }
    absent = {name: table[name].is_null().to_numpy() for name in TYPES}
    timeout, deadline, waited, late, completes = numbers.values()
    expired = outcome == _EXPIRED
    keys = table["keys"].combine_chunks()
    empty = pc.fill_null(pc.equal(pc.list_value_length(keys), 0), fill_value=True).to_numpy(zero_copy_only=False)
    if keys.flatten().null_count:
        empty[pc.list_parent_indices(keys).filter(keys.flatten().is_null()).to_numpy()] = True
    wrong = {
        "purgatory": absent["purgatory"],
        "operation": absent["operation"],
        "keys": empty,
        "arrived_at": absent["arrived_at"],
        "timeout_s": ~absent["timeout_s"] & ~((timeout >= 0) & (timeout < inf)) | absent["timeout_s"] & expired,
        "deadline_s": ~absent["deadline_s"] & ~((deadline >= 0) & (deadline < inf)),
        "waited_s": ~((waited >= 0) & (waited < inf)),
        "outcome": outcome < 0,
        "late_s": (absent["late_s"] == expired) | (~absent["late_s"] & ~((late >= 0) & (late < inf))),
        "completes_s": ~absent["completes_s"] & ~(completes >= 0) | (completes == inf) & (outcome == _SATISFIED),
    }
    for column, places in wrong.items():
        if places.any():
            example = repr(table[column][int(np.argmax(places))].as_py())
            return Impossible(column, int(np.count_nonzero(places)), example)
    return None


def _outcomes(table: pa.Table) -> npt.NDArray[np.int8]:
    """The place of each outcome in `OUTCOMES`; -1 if it is none."""
    places = pc.fill_null(pc.index_in(table["outcome"], pa.array(OUTCOMES)), -1)
    found: npt.NDArray[np.int8] = places.to_numpy().astype(np.int8)
    return found


def _keys(column: pa.ListArray) -> list[tuple[str, ...]]:
    """The keys of each row; equal ones are one object, which `to_pylist` would make anew for each."""
    encoded = pc.dictionary_encode(column.flatten())
    names = encoded.dictionary.to_pylist()
    keys = [names[index] for index in encoded.indices.to_numpy().tolist()]
    edges = np.concatenate(([0], np.cumsum(pc.list_value_length(column).to_numpy()))).tolist()
    return [tuple(keys[start:stop]) for start, stop in pairwise(edges)]
