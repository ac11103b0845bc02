"""The core in C, where it could be built: importing a name raises `ImportError` if not.

With `PURGATORY_PURE=1` in the environment at the first import, the core is the one in Python.
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
