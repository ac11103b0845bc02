"""The walk over the frames of running coroutines, of which there are two dozen for a request in a web framework."""

from contextlib import suppress
from types import CodeType, FrameType
from typing import TYPE_CHECKING

__all__ = ["place_of", "walk"]


def place_of(frame: FrameType) -> int:
    """Return a number for the place in the code where the frame is. It holds while the code exists."""
    return id(frame.f_code) << 16 ^ frame.f_lasti


def walk(frame: FrameType | None, end: CodeType, known: dict[int, bool]) -> int | FrameType | None:
    """Follow the frames outwards from `frame` to that of the server, whose code is `end`.

    Returns:
        A number for this chain of places, or the first frame of which is not known that nothing is left to run, or
        `None` if the server's is not among the frames.
    """
    chain = 0
    while frame is not None and frame.f_code is not end:
        place = place_of(frame)
        if not known.get(place):
            return frame
        chain = hash((chain, place))
        frame = frame.f_back
    return None if frame is None else chain


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import walk
