"""The files of a journal: their columns, and a directory in which each file is whole or absent."""

import os
from collections.abc import Hashable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory import FinishedOperation

SCHEMA: Final = pa.schema(
    [
        pa.field("purgatory", pa.string(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("keys", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("arrived_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("timeout_s", pa.float64()),
        pa.field("deadline_s", pa.float64()),
        pa.field("waited_s", pa.float64(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("late_s", pa.float64()),
        pa.field("opened_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("missed", pa.bool_()),
    ]
)
"""The columns of a file: the fields of a `FinishedOperation`, the keys as `str`, and the wall clock's time of arrival.

`timeout_s` and `deadline_s` are null for an operation without a deadline, and `late_s` unless the operation expired.
`opened_at` is the time at which the journal was opened. It separates the rows of a process from the rows of the next
one with the same instance. `missed` is null only in older files that a reader joins.

`outcome` is `completed_at_once`, `satisfied`, `expired`, `closed`, `cancelled` or `failed`. A satisfied operation that
the last try at its deadline completed has waited up to a tick longer than `deadline_s`.
"""

Row: TypeAlias = tuple[float, FinishedOperation]
"""The time of arrival, by the wall clock, and the operation."""

_DAY: Final = 86_400
_EPOCH: Final = date(1970, 1, 1)

pa.array([])  # the first array makes pyarrow import the rest of its modules, which fails at the interpreter's exit


def columns_by_day(rows: Sequence[Row], opened: float) -> list[tuple[date, pa.RecordBatch]]:
    """Return the columns of `rows` for each day of arrival. Raise any exception if one of them is not a row.

    `opened` is the time at which the journal was opened, by the wall clock.
    """
    days: dict[int, list[Row]] = {}
    for row in rows:
        days.setdefault(int(row[0] // _DAY), []).append(row)
    return [(_EPOCH + timedelta(days=day), _columns(some, opened)) for day, some in days.items()]


def _columns(rows: Sequence[Row], opened: float) -> pa.RecordBatch:
    finished = [row for _, row in rows]
    columns: list[list[Any]] = [
        [_text(row.purgatory) for row in finished],
        [_text(row.operation) for row in finished],
        [[_text(key) for key in row.keys] for row in finished],
        [round(arrived * 1e6) for arrived, _ in rows],
        [None if row.timeout is None else float(row.timeout) for row in finished],
        [None if row.deadline is None else float(row.deadline) for row in finished],
        [float(row.waited) for row in finished],
        [row.outcome for row in finished],
        [None if row.late is None else float(row.late) for row in finished],
        [round(opened * 1e6)] * len(rows),
        [bool(row.missed) for row in finished],
    ]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def _text(value: Hashable) -> str:
    """Return `value` as text that can be written, whatever its type and its `__str__`."""
    try:
        text = str(value)
    except Exception:
        text = object.__repr__(value)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class Files:
    """The files of one instance, by day."""

    def __init__(self, directory: Path, instance: str) -> None:
        """Make the directory, and remove the unfinished files of a killed process.

        Raises:
            OSError: The directory is not writable.
        """
        self.directory = directory
        self._instance = instance
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".{instance}.{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
        for unfinished in directory.glob(f"date=*/instance={instance}/.*.unfinished"):
            unfinished.unlink(missing_ok=True)

    def write(self, day: date, batches: Sequence[pa.RecordBatch]) -> None:
        """Write another file of that day. It is on disk when this returns, and absent if this raises."""
        directory = self.directory / f"date={day}" / f"instance={self._instance}"
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex}.parquet"
        unfinished = directory / f".{name}.unfinished"
        try:
            pq.write_table(pa.Table.from_batches(batches, SCHEMA), unfinished, compression="zstd")
            sync(unfinished)
            unfinished.rename(directory / name)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        for named in (directory, directory.parent, self.directory):
            with suppress(OSError):  # the file is there, and must not be written again
                sync(named)


def sync(path: Path) -> None:
    """Flush the file, or the directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
