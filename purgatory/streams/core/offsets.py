"""Offsets, the positions of a stream as clients see them, and the cursors of live requests.

A position counts the bytes before it, in a stream of JSON the messages. So a fork at a sub-offset is an addition.

An offset has the form of the reference server's: the public conformance suite forges that of the beginning.

Cursors are numbers of time intervals, by which caches tell live requests apart (PROTOCOL.md, 10.1).
"""

import random
import re
from typing import Final

from purgatory.streams.core.errors import Invalid

BEFORE_ALL: Final = "-1"
"""The beginning of a stream. As an offset that a subscription has acknowledged: nothing, not even an empty stream."""
NOW: Final = "now"
"""The tail."""

_PREFIX: Final = "0000000000000000_"
_OFFSET: Final = re.compile(rf"{_PREFIX}[0-9]{{16}}", re.ASCII)
_EPOCH: Final = 1_728_432_000  # 2024-10-09T00:00:00Z
_INTERVAL: Final = 20
_JITTER: Final = 3600 // _INTERVAL
_LONGEST: Final = 18


def encode(position: int) -> str:
    """Return the offset of a position. Offsets compare as strings like their positions."""
    return f"{_PREFIX}{position:016d}"


def parse(offset: str) -> int:
    """Return the position of an offset that `encode` has made. Raises `Invalid` for other strings."""
    if _OFFSET.fullmatch(offset) is None:
        raise Invalid(f"an offset must be one that this server has returned, -1 or now, not {offset[:40]!r}")
    return int(offset[len(_PREFIX) :])


def known_cursor(text: str | None) -> str | None:
    """Return the cursor of a request, or `None` if it does not come from this server."""
    return text if text is not None and text.isascii() and text.isdecimal() and len(text) <= _LONGEST else None


def next_cursor(cursor: str | None, now: float) -> str:
    """Return the cursor of an answer at `now`, in seconds since 1970.

    It is greater than that of the request, if that had a `known_cursor`.
    """
    current = int(now - _EPOCH) // _INTERVAL
    requested = 0 if cursor is None else int(cursor)
    return str(current) if requested < current else str(requested + random.randint(1, _JITTER))
