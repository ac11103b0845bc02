"""A journal: one row for each finished operation, in Parquet files, so that traffic can be studied and replayed.

    with Journal("journal", instance="web-1") as journal:
        purgatory.add_listener(journal.write)

The files are `journal/date=2026-11-21/instance=web-1/….parquet`, by the date of the operations' arrival in UTC.
`SCHEMA` lists the columns of the files. Readers take the columns `date` and `instance` from the directories' names.

`write` appends to a queue and does nothing else on the loop's thread. Another thread takes a thousand rows at a time
from the queue into the *open batch*. A batch that has `rows_per_file` rows or is `seconds_per_file` old becomes a file,
which gets its final name only when all of it is on disk. A close writes all remaining rows. A process that is killed
loses the open batch and the queue, and its pending operations get no row.

If a file cannot be written, for example because the disk is full, its rows stay and are tried again every second. The
queue accepts `max_queued` rows, and `when_full` decides about more. After a fork, open another journal in the child.

It needs the extra `journal`.
"""

from purgatory._extras import missing

try:
    import pyarrow.parquet  # noqa: F401 - the files need it
except ModuleNotFoundError as _error:
    raise missing(_error, "journal") from None

from purgatory.journal.files import SCHEMA
from purgatory.journal.journal import Journal, JournalError, JournalFull, JournalStatistics

__all__ = ["SCHEMA", "Journal", "JournalError", "JournalFull", "JournalStatistics"]
