"""Cursors: numbers of time intervals, by which caches tell live requests apart (PROTOCOL.md, 10.1)."""

import random
from typing import Final

__all__ = ["next_cursor"]

_EPOCH: Final = 1_728_432_000  # 2024-10-09T00:00:00Z
_INTERVAL: Final = 20
_JITTER: Final = 3600 // _INTERVAL
_LONGEST: Final = 18


def next_cursor(cursor: str | None, now: float) -> str:
    """The cursor of an answer at `now`, in seconds since 1970: greater than that of the request, if it had one."""
    current = int(now - _EPOCH) // _INTERVAL
    if cursor is None or not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= _LONGEST):
        return str(current)
    known = int(cursor)
    return str(current) if known < current else str(known + random.randint(1, _JITTER))
