"""Offsets: the positions of a stream, as clients see them.

A position counts the bytes before it, in a stream of JSON the messages. So a fork at a sub-offset is an addition.

An offset has the form of the reference server's: the public conformance suite forges that of the beginning.
"""

import re
from typing import Final

from purgatory.streams.core.errors import Invalid

BEFORE_ALL: Final = "-1"
"""The beginning of a stream. As an offset that a subscription has acknowledged: nothing, not even an empty stream."""
NOW: Final = "now"
"""The tail."""

_PREFIX: Final = "0000000000000000_"
_OFFSET: Final = re.compile(rf"{_PREFIX}[0-9]{{16}}", re.ASCII)


def encode(position: int) -> str:
    """Return the offset of a position. Offsets compare as strings like their positions."""
    return f"{_PREFIX}{position:016d}"


def parse(offset: str) -> int:
    """Return the position of an offset that `encode` has made. Raises `Invalid` for other strings."""
    if _OFFSET.fullmatch(offset) is None:
        raise Invalid(f"an offset must be one that this server has returned, -1 or now, not {offset[:40]!r}")
    return int(offset[len(_PREFIX) :])
