"""The core in C. If it was not built, importing a name raises `ImportError`.

With `PURGATORY_PURE=1` in the environment at the first import, the core in Python is used.
"""

import os

if os.environ.get("PURGATORY_PURE", "") not in ("", "0"):
    raise ImportError("PURGATORY_PURE chooses the core in Python")

from purgatory._speedups.c import (
    Entry,
    OperationBase,
    OwnerBase,
    PurgatoryBase,
    TimerBase,
    TimerEntry,
    WatcherLists,
    Watchers,
)

__all__ = [
    "Entry",
    "OperationBase",
    "OwnerBase",
    "PurgatoryBase",
    "TimerBase",
    "TimerEntry",
    "WatcherLists",
    "Watchers",
]
