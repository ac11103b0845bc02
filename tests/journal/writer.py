"""Writes a journal of so many rows, and ends without closing it: `python -m tests.journal.writer DIR ROWS`.

Row n arrives n seconds after the epoch. Prints a line for each thousand that the journal has taken.
"""

import sys
import threading

from purgatory import FinishedOperation
from purgatory.journal import Journal


def main() -> None:
    """Write the journal."""
    directory, rows = sys.argv[1:]
    number = 0
    pause = threading.Event()
    journal = Journal(directory, "writer", rows_per_file=2000, max_queued=5000, now=lambda: float(number))
    while number < int(rows):
        if journal.statistics().queued > 4000:
            pause.wait(0.0001)  # a full queue would drop rows
            continue
        journal.write(FinishedOperation("fetch", "DelayedFetch", (number,), 0.0, None, 0.0, "satisfied", None, None))
        number += 1
        if number % 1000 == 0:
            print(number, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
