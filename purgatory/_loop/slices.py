"""Work in slices, the next iteration of the loop, and requests to exit in the middle of many callbacks.

Work that grows with the number of pending operations is cut into *slices*. After each slice the loop runs an iteration,
so that other I/O goes on. A slice ends after `SLICE` entries or, on an event loop, after `SLICE_SECONDS`, whichever
comes first. On other clocks it ends by entries alone, so that a simulation takes the same steps in each run.

Work of a later iteration runs in an empty context (`contextvars.Context()`), in which every context variable has its
default. If it ran in the context of the request that happened to come first, it would show that request's variables to
other requests and keep them alive.
"""

from collections.abc import Callable
from contextvars import Context
from time import perf_counter
from types import TracebackType
from typing import Final, TypeVarTuple, Unpack

from purgatory._loop.clock import Clock, Handle

Ts = TypeVarTuple("Ts")

SLICE: Final = 1000
"""The most entries of a slice."""

SLICE_SECONDS: Final = 0.001
"""Seconds after which a slice ends on an event loop."""

_CHEAP: Final = 64
"""Entries between two looks at the time where an entry takes a fraction of a microsecond, as in a purge."""


class Slice:
    """A slice of work, which is over after a number of entries or after some time.

    For example:

        slice_ = Slice(bounded=True)
        while queue and not slice_.is_over():
            handle(queue.popleft())
    """

    __slots__ = ("_look", "began", "bounded", "left")

    def __init__(self, bounded: bool, entries: int = SLICE) -> None:
        """Begin a slice of at most `entries`, which ends after `SLICE_SECONDS` too if it is `bounded`."""
        self.bounded: bool = bounded
        """Whether it ends after `SLICE_SECONDS` too."""
        self.began: float = perf_counter()
        """The time of its beginning, by `time.perf_counter`, in seconds."""
        self.left: int = entries
        """Entries that may still be worked on."""
        self._look: int = entries - _CHEAP

    def seconds(self) -> float:
        """Return how long it has taken so far, in seconds."""
        return perf_counter() - self.began

    def is_over(self, entries: int = 1) -> bool:
        """Count `entries` more, each of which ran callbacks, and return whether the slice is over."""
        self.left -= entries
        return self.left <= 0 or (self.bounded and self.seconds() >= SLICE_SECONDS)

    def is_over_cheaply(self, entries: int = 1) -> bool:
        """Do the same as `is_over`, for entries that take less time than a look at the clock."""
        self.left -= entries
        if self.left > 0 and self._look < self.left:
            return False
        self._look = self.left - _CHEAP
        return self.left <= 0 or (self.bounded and self.seconds() >= SLICE_SECONDS)


class ExitRequests(list[BaseException]):
    """Requests to exit (`SystemExit`, `KeyboardInterrupt`) of many callbacks, kept until all callbacks have run.

    For example:

        exits = ExitRequests()
        for callback in callbacks:
            with exits:
                callback()
        exits.raise_first()
    """

    __slots__ = ()

    def keep(self, exception: BaseException) -> bool:
        """Keep `exception` if it is a request to exit. Return whether it is."""
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
        """Raise the first request that was kept, if there is one, and forget the others."""
        if self:
            try:
                raise self[0]
            finally:
                self.clear()  # the traceback holds this frame


def call_neutral(clock: Clock, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
    """Do `clock.call_at(when, callback, *args)` in an empty context, a new one because none can be entered twice."""
    call_at: Callable[..., Handle] = clock.call_at
    return Context().run(call_at, when, callback, *args)


def call_next(clock: Clock, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
    """Call `callback(*args)` on the next iteration of the loop, in an empty context.

    Args:
        clock: The event loop, or another clock.
        callback: The function to call.
        args: Its arguments.

    Returns:
        A handle to cancel the call.
    """
    return call_neutral(clock, clock.time(), callback, *args)
