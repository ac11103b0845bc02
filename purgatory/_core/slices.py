"""Work in slices, and the next iteration of the loop.

Work that grows with what is pending is cut into *slices*: after each the loop runs an iteration, with other I/O. A
slice ends after `SLICE` entries or, on an event loop, after `SLICE_SECONDS`, whichever comes first. On a clock of
another kind it ends by entries alone, so that a simulation does the same steps in each run.

Work of a later iteration runs in an empty context (`contextvars.Context()`), in which every context variable has
its default: never in the context of the request that happened to come first, which would lend its variables to others
and stay alive meanwhile.
"""

from collections.abc import Callable
from contextvars import Context
from time import perf_counter
from typing import Final, TypeVarTuple, Unpack

from purgatory._core.clock import Clock, Handle

__all__ = ["SLICE", "SLICE_SECONDS", "Slice", "call_neutral", "call_next"]

Ts = TypeVarTuple("Ts")

SLICE: Final = 1000
"""The most entries of a slice."""

SLICE_SECONDS: Final = 0.001
"""Seconds after which a slice ends on an event loop."""

_CHEAP: Final = 64
"""Entries between two looks at the time where an entry takes a fraction of a microsecond, as in a purge."""


class Slice:
    """The measure of one slice of work."""

    __slots__ = ("_look", "began", "bounded", "left")

    def __init__(self, bounded: bool) -> None:
        """Begin a slice, which ends after a time too if it is `bounded`."""
        self.bounded: bool = bounded
        """Whether it ends after a time too."""
        self.began: float = perf_counter()
        """By `time.perf_counter`."""
        self.left: int = SLICE
        """Entries that may still be worked on."""
        self._look: int = SLICE - _CHEAP

    def seconds(self) -> float:
        """Seconds that it has taken so far."""
        return perf_counter() - self.began

    def is_over(self, entries: int = 1) -> bool:
        """Count `entries`, each of which ran callbacks. Returns whether the slice is over."""
        self.left = left = self.left - entries
        return left <= 0 or (self.bounded and perf_counter() - self.began >= SLICE_SECONDS)

    def is_over_cheaply(self, entries: int = 1) -> bool:
        """As `is_over`, for entries that take less time than a look at the clock."""
        self.left = left = self.left - entries
        if left > self._look and left > 0:
            return False
        self._look = left - _CHEAP
        return left <= 0 or (self.bounded and perf_counter() - self.began >= SLICE_SECONDS)


def call_neutral(clock: Clock, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
    """`clock.call_at(when, callback, *args)` in an empty context, a fresh one: a context cannot be entered twice."""
    call_at: Callable[..., Handle] = clock.call_at
    return Context().run(call_at, when, callback, *args)


def call_next(clock: Clock, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
    """Call `callback(*args)` on the next iteration of the loop, in an empty context."""
    return call_neutral(clock, clock.time(), callback, *args)
