"""The core in C. If it was not built, importing a name raises `ImportError`.

With `PURGATORY_PURE=1` in the environment at the first import, the core in Python is used.
"""

import os

if os.environ.get("PURGATORY_PURE", "") not in ("", "0"):
    raise ImportError("PURGATORY_PURE chooses the core in Python")

from purgatory._speedups.c import (  # all of them or none, so that the cores never mix
    Entry,
    OperationBase,
    OwnerBase,
    PurgatoryBase,
    TimerBase,
    TimerEntry,
    WatcherLists,
    Watchers,
    _note_fork,
    walk,
)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)

__all__ = [
    "Entry",
    "OperationBase",
    "OwnerBase",
    "PurgatoryBase",
    "TimerBase",
    "TimerEntry",
    "WatcherLists",
    "Watchers",
    "walk",
]
