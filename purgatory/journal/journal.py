"""The queue of a journal, and the thread that takes it to disk."""

import asyncio
import atexit
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

import pyarrow as pa

from purgatory import FinishedOperation, PurgatoryError
from purgatory.journal.files import Files, Row, columns_by_day
from purgatory.lowlevel import check_callback, check_count, seconds

_CHUNK: Final = 1000
"""Rows that are made into columns in one go, which holds up the interpreter, and the loop, for about a millisecond."""

_RETRY: Final = 1.0
"""Seconds from one attempt to write a file to the next."""

_INSTANCE: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")

_NUMBER: Final = re.compile(r"[0-9.-]+([eE][0-9-]+)?")

_log = logging.getLogger("purgatory")


class JournalError(PurgatoryError):
    """Rows could not be written, or the journal is closed.

    For example:

        with suppress(JournalError):  # with when_full="raise"
            journal.close()
    """


class JournalFull(JournalError):
    """The queue has `max_queued` rows, because the disk is slow or full.

    For example:

        with suppress(JournalFull):  # with when_full="raise"
            journal.write(finished)
    """


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """The contents of a journal, and its counts since it was opened.

    For example:

        assert journal.statistics().dropped == 0
    """

    rows: int
    """Rows on disk."""
    files: int
    """Files on disk."""
    queued: int
    """Rows that are not on disk yet."""
    dropped: int
    """Rows lost because the queue was full or the journal was closed."""
    failures: int
    """Failures to write a file, whose rows are tried again."""


class Journal:
    """Writes the finished operations of any number of purgatories to Parquet files.

    Use it in `with` or `async with`, or call `close` or `aclose`. The interpreter's exit closes it too.

        with Journal("journal", instance="web-1") as journal:
            purgatory.add_listener(journal.write)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        instance: str,
        *,
        rows_per_file: int = 100_000,
        seconds_per_file: float = 300.0,
        max_queued: int = 100_000,
        when_full: Literal["drop", "raise"] = "drop",
        now: Callable[[], float] = time.time,
    ) -> None:
        """Open a journal.

        Args:
            directory: The directory to write to. It is created if needed.
            instance: The name of this process among others that write there, of 1 to 128 characters A-Z a-z 0-9 . _ -
            rows_per_file: Rows after which a file is written.
            seconds_per_file: Seconds after which a file is written, even with fewer rows.
            max_queued: The most rows in the queue if the disk is slow or full.
            when_full: What happens to further rows. With "drop" they are dropped and counted. With "raise", `write`
                raises `JournalFull`, which a purgatory hands to its event loop's exception handler.
            now: Returns the time in seconds since 1970. On a `VirtualClock`, pass its `time`.

        Raises:
            ValueError: A value is out of range, or `instance` is not such a name.
            TypeError: A value is of the wrong type.
            OSError: The directory is not writable.
        """
        if not isinstance(instance, str):
            raise TypeError(f"instance must be a str, not {instance!r}")
        if not _INSTANCE.fullmatch(instance):
            raise ValueError(f"instance must be 1 to 128 of the characters A-Z a-z 0-9 . _ -, not {instance!r}")
        if _NUMBER.fullmatch(instance):
            raise ValueError(
                f"instance {instance!r} looks like a number or a date, and readers would parse it as one: "
                "choose another name"
            )
        check_count("rows_per_file", rows_per_file, 1)
        check_count("max_queued", max_queued, 1)
        file_age = seconds("seconds_per_file", seconds_per_file, "positive")
        if file_age > threading.TIMEOUT_MAX:
            raise ValueError(f"seconds_per_file must be at most {threading.TIMEOUT_MAX:g}, not {seconds_per_file!r}")
        check_callback("now", now)
        if when_full not in ("drop", "raise"):
            raise ValueError(f"when_full must be 'drop' or 'raise', not {when_full!r}")
        self._instance = instance
        self._rows_per_file = rows_per_file
        self._seconds_per_file = file_age
        self._max_queued = max_queued
        self._raises = when_full == "raise"
        self._now = now
        self._opened = now()
        self._chunk = min(_CHUNK, rows_per_file, max_queued)
        self._queue: deque[Row] = deque()
        self._open: dict[date, list[pa.RecordBatch]] = {}
        """The open batch, by the day of arrival."""
        self._num_open = 0
        self._num_files = self._rows = self._dropped = self._failures = 0
        self._failing = False
        self._asleep = False
        self._wake = threading.Event()
        """Set when the thread has work to do."""
        self._closing = threading.Event()
        self._ended = False
        self._lock = threading.Lock()
        """The lock for the count of lost rows, which several threads change."""
        self._files = Files(Path(directory), instance)
        self._thread = threading.Thread(target=self._run, name=f"purgatory-journal-{instance}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __repr__(self) -> str:
        closed = " closed" if self._closing.is_set() else ""
        return f"<{type(self).__qualname__} {str(self._files.directory)!r} instance={self._instance!r}{closed}>"

    def __enter__(self) -> "Journal":
        if self._closing.is_set():
            raise JournalError(f"{self!r} is closed: open another one")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> "Journal":
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def instance(self) -> str:
        """The name of this process in the journal."""
        return self._instance

    def write(self, finished: FinishedOperation) -> None:
        """Add a row to the queue, or drop and count it if the queue is full or the journal is closed.

        It is a listener for purgatories, never blocks, and any thread may call it.

        Raises:
            JournalFull: The queue is full, and `when_full` is "raise".
            JournalError: The journal is closed, and `when_full` is "raise".
        """
        queued = len(self._queue)
        if queued >= self._max_queued or self._closing.is_set():
            self._drop(1)
            if self._raises and self._closing.is_set():
                raise JournalError(f"{self!r} takes no more rows")
            if self._raises:
                raise JournalFull(f"{self!r} is full: {queued} rows are queued")
            return
        self._queue.append((self._now() - finished.waited, finished))
        if (self._asleep or queued >= self._chunk - 1) and not self._wake.is_set():
            self._wake.set()
        if self._ended:  # closed meanwhile, by another thread
            self._count_the_lost()

    def statistics(self) -> JournalStatistics:
        """Return the contents of the journal, and its counts so far."""
        queued = len(self._queue) + self._num_open
        return JournalStatistics(self._rows, self._num_files, queued, self._dropped, self._failures)

    def close(self, timeout: float | None = 60.0) -> None:
        """Write all rows, and end. Rows that cannot be written are dropped and counted.

        Args:
            timeout: Seconds to wait at most. `None` means no limit.

        Raises:
            JournalError: Rows could not be written, and `when_full` is "raise".
            TimeoutError: It takes longer than `timeout`. The thread goes on writing.
        """
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the rows of {self!r} were not written within {timeout} seconds")
        atexit.unregister(self.close)
        self._ended = True
        lost = self._count_the_lost()
        if lost and self._raises:
            raise JournalError(f"{lost} rows could not be written to {self._files.directory}")

    async def aclose(self, timeout: float | None = 60.0) -> None:
        """Do the same as `close`, in a thread."""
        await asyncio.to_thread(self.close, timeout)

    def _count_the_lost(self) -> int:
        """Drop the rows that will never be written. Return their number."""
        with self._lock:
            lost = self._num_open + len(self._queue)
            self._num_open = 0
            self._queue.clear()
        if lost:
            _log.error("%r could not write %d rows", self, lost)
            self._drop(lost)
        return lost

    def _drop(self, rows: int) -> None:
        with self._lock:
            first = not self._dropped
            self._dropped += rows
        if first:
            _log.error("%r must drop rows", self)

    def _run(self) -> None:
        """Write one file after the other: the work of the thread."""
        closing = self._closing
        while not closing.is_set() or self._queue:
            self._wait_for_rows()
            due = time.monotonic() + self._seconds_per_file
            self._take(self._chunk)
            while not self._is_full() and not closing.is_set() and (left := due - time.monotonic()) > 0:
                self._wake.wait(left)
                self._wake.clear()  # before the look at the queue, because it may be set again meanwhile
                self._take(self._chunk)
            self._take(1)
            while not self._write_files():
                if closing.is_set():
                    return
                closing.wait(_RETRY)

    def _is_full(self) -> bool:
        return self._num_open >= self._rows_per_file

    def _wait_for_rows(self) -> None:
        while True:
            self._asleep = True  # before the queue is looked at
            if self._queue or self._closing.is_set():
                break
            self._wake.wait()
            self._wake.clear()
        self._asleep = False

    def _take(self, least: int) -> None:
        """Take chunks into the open batch while it is not full and at least `least` rows are queued."""
        while len(self._queue) >= least and not self._is_full():
            count = min(self._chunk, self._rows_per_file - self._num_open, len(self._queue))
            self._num_open += count  # before they leave the queue, so that they are never nowhere
            rows = [self._queue.popleft() for _ in range(count)]
            try:
                self._add(rows)
            except Exception:  # one of them is not a row, and is dropped alone
                for row in rows:
                    try:
                        self._add([row])
                    except Exception as exception:
                        _log.error("%r cannot take %r: %s", self, row, exception)
                        self._num_open -= 1
                        self._drop(1)

    def _add(self, rows: Sequence[Row]) -> None:
        """Add rows to the open batch: all of them, or none if one is not a row."""
        for day, columns in columns_by_day(rows, self._opened):
            self._open.setdefault(day, []).append(columns)

    def _write_files(self) -> bool:
        """Write the open batch, a file for each day. Return whether all of it was written."""
        failure: Exception | None = None
        for day, batches in sorted(self._open.items()):
            try:
                self._files.write(day, batches)
            except Exception as exception:
                failure = exception
                continue
            rows = sum(map(len, batches))
            self._num_files += 1
            self._rows += rows
            self._num_open -= rows
            del self._open[day]
        if failure is not None:
            self._failures += 1
            if not self._failing:  # logged once, and not every second
                _log.error("%r cannot write, and goes on trying: %s", self, failure)
        self._failing = failure is not None
        return not self._failing
