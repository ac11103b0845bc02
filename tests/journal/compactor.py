"""Compacts a journal, and kills itself: `python -m tests.journal.compactor JOURNAL NOW KEEP STEP`.

A step is a change of a file or directory. With an odd number it is killed before the change, or else after it. It
writes the number of steps if it comes to its end.
"""

import os
import sys
from typing import Any

from purgatory.journal import compact


class Killing:
    """A file system on which the process dies."""

    def __init__(self, system: Any, step: int) -> None:
        self._system = system
        self._left = step

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._system, name)
        if name not in ("create_dir", "open_output_stream", "move", "delete_file"):
            return method

        def change(*arguments: Any) -> Any:
            self._count()
            done = method(*arguments)
            self._count()
            return done

        return change

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os._exit(9)


if __name__ == "__main__":
    journal, now, keep, step = sys.argv[1:]
    place = compact._place(journal)
    killing = Killing(place.system, int(step))
    compact._place = lambda journal: compact._Place(killing, place.root, {})
    compact.compact(journal, keep=float(keep), now=lambda: float(now))
    sys.stdout.write(str(int(step) - killing._left))
