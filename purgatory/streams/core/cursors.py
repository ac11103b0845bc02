"""Cursors: numbers of time intervals, by which caches tell live requests apart (PROTOCOL.md, 10.1)."""

import random
from typing import Final

_EPOCH: Final = 1_728_432_000  # 2024-10-09T00:00:00Z
_INTERVAL: Final = 20
_JITTER: Final = 3600 // _INTERVAL
_LONGEST: Final = 18


def known_cursor(text: str | None) -> str | None:
    """Return the cursor of a request, or `None` if it does not come from this server."""
    return text if text is not None and text.isascii() and text.isdecimal() and len(text) <= _LONGEST else None


def next_cursor(cursor: str | None, now: float) -> str:
    """Return the cursor of an answer at `now`, in seconds since 1970.

    It is greater than that of the request, if that had a `known_cursor`.
    """
    current = int(now - _EPOCH) // _INTERVAL
    known = 0 if cursor is None else int(cursor)
    return str(current) if known < current else str(known + random.randint(1, _JITTER))
