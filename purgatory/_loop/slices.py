"""Work in slices, the next iteration of the loop, and requests to exit in the middle of many callbacks.

Work that grows with the number of pending operations is cut into *slices*. After each slice the loop runs an iteration,
so that other I/O goes on. A slice ends after `SLICE` entries or, on an event loop, after `SLICE_SECONDS`, whichever
comes first. On other clocks it ends by entries alone, so that a simulation takes the same steps in each run.

Such work is an iterator of *costs*: after each step it yields how many entries that looked at. A step that calls other
people's code ends after each operation that completed, because only the clock can tell how long that took.

Work of a later iteration runs in an empty context (`contextvars.Context()`), in which every context variable has its
default. If it ran in the context of the request that happened to come first, it would show that request's variables to
other requests and keep them alive.
"""

from collections.abc import Callable, Iterator
from contextvars import Context
from time import monotonic, perf_counter
from types import TracebackType
from typing import Final, Protocol, TypeVarTuple, Unpack

from purgatory._loop.clock import Clock, Handle
from purgatory._loop.threads import LOST

Ts = TypeVarTuple("Ts")

SLICE: Final = 1000
"""The most entries of a slice."""

SLICE_SECONDS: Final = 0.001
"""Seconds after which a slice ends on an event loop."""


class Slice:
    """A slice of work, which is over after a number of entries or after some time.

    For example:

        slice_ = Slice(bounded=True)
        while queue and not slice_.is_over():
            handle(queue.popleft())
    """

    __slots__ = ("began", "bounded", "left")

    def __init__(self, bounded: bool, entries: int = SLICE) -> None:
        """Begin a slice of at most `entries`, which ends after `SLICE_SECONDS` too if it is `bounded`."""
        self.bounded: bool = bounded
        """Whether it ends after `SLICE_SECONDS` too."""
        self.began: float = perf_counter()
        """The time of its beginning, by `time.perf_counter`, in seconds."""
        self.left: int = entries
        """Entries that may still be worked on."""

    def seconds(self) -> float:
        """Return how long it has taken so far, in seconds."""
        return perf_counter() - self.began

    def is_over(self, entries: int = 1) -> bool:
        """Count `entries` more, and return whether the slice is over."""
        self.left -= entries
        return self.left <= 0 or (self.bounded and self.seconds() >= SLICE_SECONDS)

    def take(self, steps: Iterator[int]) -> bool:
        """Take steps, each of which yields its entries, until the slice is over. Return whether none is left."""
        return not any(self.is_over(entries) for entries in steps)


class Pacer(Protocol):
    """What knows the clock and how long slices are: a `WheelTimer`."""

    @property
    def clock(self) -> Clock:
        """The clock whose next iteration a slice waits for."""

    def new_slice(self) -> Slice:
        """Begin a slice of work."""

    def note_slice(self, slice_: Slice) -> None:
        """Note the end of a slice of work."""


class SlicedWork:
    """Work that is done in slices on the next iterations of the loop, until there is none left."""

    def __init__(
        self, pacer: Pacer, work: Callable[[], Iterator[int]], stopped: Callable[[], object] = lambda: None
    ) -> None:
        """Make it, without beginning it.

        Args:
            pacer: The timer.
            work: Returns the steps of a slice. They go on where those of the slice before have ended.
            stopped: Called if the clock refuses to call back for the next slice.
        """
        self._pacer = pacer
        self._work = work
        self._stopped = stopped
        self._handle: Handle | None = None
        self._goes_on = False
        """Whether the slice that is being done is followed by others."""
        self._asked = 0.0
        """When the clock was asked to call back, in real time."""
        self.is_due: bool = False
        """Whether the clock will call back for a slice."""

    def schedule(self) -> None:
        """Do a slice on the next iteration, if none is due yet."""
        now = monotonic()
        if self.is_due and now < self._asked + LOST:
            return
        self.is_due = True
        self._asked = now
        try:
            self._handle = call_next(self._pacer.clock, self._run)
        except BaseException:
            self.is_due = False
            self._stopped()
            raise

    def cancel(self) -> None:
        """Do no further slice, unless it is scheduled again."""
        handle, self._handle = self._handle, None
        self._goes_on = self.is_due = False
        if handle is not None:
            handle.cancel()

    def _run(self) -> None:
        self._handle = None
        self.is_due = False
        self._goes_on = True
        is_done = False
        try:
            slice_ = self._pacer.new_slice()
            is_done = slice_.take(self._work())
            self._pacer.note_slice(slice_)
        finally:
            if not is_done and self._goes_on:
                self.schedule()


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
