"""Work in slices, the next iteration of the loop, and requests to exit in the middle of many callbacks.

Work that grows with what is pending is cut into *slices*: after each of them the loop runs an iteration, with other
I/O. A slice ends after `SLICE` entries or, on an event loop, after `SLICE_SECONDS`, whichever comes first. On a clock
of another kind it ends by entries alone, so that a simulation does the same steps in each run.

Work of a later iteration runs in an empty context (`contextvars.Context()`), in which every context variable has its
default. In the context of the request that happened to come first it would lend that request's variables to others,
and keep them alive.
"""

from collections.abc import Callable
from contextvars import Context
from time import perf_counter
from types import TracebackType
from typing import Final, TypeVarTuple, Unpack

from purgatory._loop.clock import Clock, Handle

__all__ = ["SLICE", "SLICE_SECONDS", "ExitRequests", "Slice", "call_neutral", "call_next"]

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

    def __init__(self, bounded: bool, entries: int = SLICE) -> None:
        """Begin a slice of so many `entries`, which ends after a time too if it is `bounded`."""
        self.bounded: bool = bounded
        """Whether it ends after a time too."""
        self.began: float = perf_counter()
        """By `time.perf_counter`."""
        self.left: int = entries
        """Entries that may still be worked on."""
        self._look: int = entries - _CHEAP

    def seconds(self) -> float:
        """Return the seconds that it has taken so far."""
        return perf_counter() - self.began

    def is_over(self, entries: int = 1) -> bool:
        """Count `entries`, each of which ran callbacks, and return whether the slice is over."""
        self.left -= entries
        return self.left <= 0 or (self.bounded and self.seconds() >= SLICE_SECONDS)

    def is_over_cheaply(self, entries: int = 1) -> bool:
        """Do as `is_over`, for entries that take less time than a look at the clock."""
        self.left -= entries
        if self.left > 0 and self._look < self.left:
            return False
        self._look = self.left - _CHEAP
        return self.left <= 0 or (self.bounded and self.seconds() >= SLICE_SECONDS)


class ExitRequests(list[BaseException]):
    """`SystemExit` and `KeyboardInterrupt` out of many callbacks: the first is raised when the others have run.

    exits = ExitRequests()
    for callback in callbacks:
        with exits:
            callback()
    exits.raise_first()
    """

    __slots__ = ()

    def keep(self, exception: BaseException) -> bool:
        """Return whether `exception` is a request to exit. It is kept then."""
        if not isinstance(exception, (SystemExit, KeyboardInterrupt)):
            return False
        self.append(exception)
        return True

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return exception is not None and self.keep(exception)

    def raise_first(self) -> None:
        """Raise the first exception that was kept, if there is one."""
        if self:
            try:
                raise self[0]
            finally:
                self.clear()  # the traceback holds this frame


def call_neutral(clock: Clock, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
    """Do `clock.call_at(when, callback, *args)` in a fresh empty context: a context cannot be entered twice."""
    call_at: Callable[..., Handle] = clock.call_at
    return Context().run(call_at, when, callback, *args)


def call_next(clock: Clock, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
    """Call `callback(*args)` on the next iteration of the loop, in an empty context.

    Args:
        clock: The event loop, or another clock.
        callback: What to call.
        args: Its arguments.

    Returns:
        A handle with `cancel()`.
    """
    return call_neutral(clock, clock.time(), callback, *args)
