"""A journal: one row for each finished operation, in Parquet files, so that traffic can be studied and replayed.

    with Journal("journal", instance="web-1") as journal:
        purgatory.add_listener(journal.write)

The files are `journal/date=2026-11-21/instance=web-1/….parquet`; the date, in UTC, is the date of the operations'
arrival. `SCHEMA` has the columns of the files. `date` and `instance` are columns of the whole, which readers take from
the directories' names, as is usual since Hive; pyarrow refuses a directory whose files have one of them too.

`write` appends to a queue and does nothing else on the thread of the loop. A thread takes a thousand rows at a time
from the queue into the *open batch*. A batch that has `rows_per_file` rows or is `seconds_per_file` old becomes a file,
under a hidden name first; the file gets its name when all of it is on disk. So there are whole files and no others. A
close writes all rows that are left. A process that is killed loses the open batch and the queue, and the operations
that are pending then have no row. `opened_at`, the time of the journal's opening, tells its rows from those of the
next process.

The rows of a file that cannot be written, because the disk is full for one, stay and are tried again every second.
Meanwhile, and if the disk is slow, the queue gets longer. It takes `max_queued` rows; `when_full` chooses the fate of
more.

A journal belongs to the process that has opened it: after a fork, the child opens one of its own.

    journal     the queue and the thread
    columns     the schema, and rows as columns
    files       the directory, and a file that is whole or absent
    errors      `JournalError`, `JournalFull`

It needs the extra `journal`.
"""

from purgatory._extras import missing

try:
    import pyarrow.parquet  # noqa: F401 - columns and files need it
except ModuleNotFoundError as _error:
    raise missing(_error, "journal") from None

from purgatory.journal.columns import SCHEMA
from purgatory.journal.errors import JournalError, JournalFull
from purgatory.journal.journal import Journal, JournalStatistics

__all__ = ["SCHEMA", "Journal", "JournalError", "JournalFull", "JournalStatistics"]
