"""The directory of a journal, in which each file is whole or absent."""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.columns import SCHEMA


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
