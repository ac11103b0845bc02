"""The owner of operations, and the purge of dead entries."""

import sys
from asyncio import AbstractEventLoop, BaseEventLoop, _get_running_loop
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, cast

from purgatory._core.listeners import Listeners, Outcome
from purgatory._core.states import OUTCOMES
from purgatory._core.watchers import Entry, WatcherLists, Watchers, compact_all
from purgatory._loop.clock import Clock, Handle, log, report
from purgatory._loop.errors import PurgatoryMisuse
from purgatory._loop.slices import SLICE, ExitRequests, call_next
from purgatory._loop.threads import check_loop, running_loop
from purgatory._timer import WheelTimer, is_of_a_loop

if TYPE_CHECKING:
    from purgatory._core.operation import OperationBase

_FROM_THREADS = (
    "loop.call_soon_threadsafe(purgatory.try_complete_else_watch, operation, keys), or to wait for its result "
    "asyncio.run_coroutine_threadsafe(). In a web framework, make the handler async def"
)


class OwnerBase:
    """The part of a purgatory that its operations refer to: the timer, the loop that may call, the lists, the counts.

    It is a separate object so that a purgatory is freed when the program drops it, while its deadlines still run.
    """

    __slots__ = (
        "at_deadline",
        "closed",
        "deferred",
        "depth",
        "finished",
        "listeners",
        "lists",
        "live",
        "loop",
        "max_pending",
        "missed",
        "num_delayed",
        "peak_delayed",
        "purge_interval",
        "purging",
        "time",
        "timer",
    )

    def __init__(self, timer: WheelTimer, live: bool, purge_interval: int, max_pending: int) -> None:
        self.timer: WheelTimer = timer
        self.time: Callable[[], float] = timer.time
        """`clock.time`, bound directly once the loop is known."""
        self.live: bool = live
        """Whether this belongs to an event loop, rather than to a clock of another kind."""
        self.loop: AbstractEventLoop | None = None
        """The loop that this belongs to, if it belongs to one yet."""
        self.lists: WatcherLists = WatcherLists()
        self.listeners: Listeners | None = None
        self.purge_interval: int = purge_interval
        self.purging: bool = False
        """Whether a purge is under way."""
        self.max_pending: int = max_pending
        self.closed: bool = False
        """Whether operations are refused."""
        self.num_delayed: int = 0
        """Operations pending, exactly."""
        self.peak_delayed: int = 0
        self.finished: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
        """Operations finished, by outcome."""
        self.missed: int = 0
        """Satisfied operations that only the last try at the deadline completed."""
        self.at_deadline: OperationBase | None = None
        """The operation whose last try is under way."""
        self.depth: int = 0
        """How many operations are being ended, each inside the end of another."""
        self.deferred: deque[OperationBase] = deque()
        """Operations that the outermost end will end."""

    def is_purge_due(self) -> bool:
        """Return whether there are too many dead entries and no purge is under way."""
        lists = self.lists
        return lists.dead > self.purge_interval and 2 * lists.dead > lists.watched and not self.purging

    def try_each(self, entries: list[Entry], exits: ExitRequests) -> int:
        """Try the operations of `entries` that are alive. Return how many of them completed.

        Requests to exit are kept in `exits`.
        """
        completed = 0
        for entry in entries:
            operation = entry.operation
            if operation is not None:
                try:
                    operation._purgatory_try()
                except (SystemExit, KeyboardInterrupt) as exception:
                    exits.keep(exception)
                if operation._purgatory_state.outcome == "satisfied":
                    completed += 1
                del operation  # the traceback of another one's exception keeps this frame, and would keep it
        return completed

    def finish_deferred(self) -> None:
        """End the operations whose ends were deferred, in their order."""
        exits = ExitRequests()
        while self.deferred:
            with exits:
                self.deferred.popleft()._purgatory_run(self)
        exits.raise_first()

    def try_all(self, watchers: Watchers) -> int:
        """Try the operations of a list in one go, and compact it. Return how many of them completed.

        A request to exit is raised at the end.
        """
        exits = ExitRequests()
        completed = self.try_each(watchers.entries.copy(), exits)
        self.compact(watchers)
        if exits:
            exits.raise_first()
        return completed

    def compact(self, watchers: Watchers) -> None:
        """Remove the dead entries of a list. If looking up its key raises, that is reported."""
        try:
            self.lists.compact(watchers)
        except Exception as exception:
            self.report_key(exception)

    def note_end(self, operation: "OperationBase", is_missed: bool) -> None:
        """Call the listeners, and start a purge if there are many dead entries. Raise only requests to exit."""
        raise NotImplementedError

    def log_missed(self, operation: "OperationBase") -> None:
        """In debug mode, log an operation that its last try completes. Raise only requests to exit."""
        raise NotImplementedError

    def report_key(self, exception: Exception) -> None:
        """Report a key whose `__hash__` or `__eq__` raised."""
        raise NotImplementedError

    def bind(self, purgatory: object) -> None:
        """Belong to the running loop, unless this belongs to a loop already. Raise if that is another one."""
        raise NotImplementedError


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import OwnerBase


class Owner(OwnerBase):
    """The owner of the operations of one purgatory.

    A purge starts when there are more dead entries than `purge_interval` and more than living ones. So it looks at no
    more than two entries for each that it removes, however many operations are pending.

    Kafka's purgatory decides by an *estimate* of the entries: the operations that were ever watched, minus the finished
    ones. The estimate is wrong if operations have several keys, and from the end of an operation until its entry is
    removed from each list. Counting is exact, and costs one addition when an operation ends and one when a list is
    compacted.
    """

    __slots__ = ("_purge_handle", "purges", "scanned")

    def __init__(
        self, clock: Clock | None, tick: float, wheel_size: int, purge_interval: int, max_pending: int | None
    ) -> None:
        timer = WheelTimer(clock, tick=tick, wheel_size=wheel_size)
        live = is_of_a_loop(clock)
        limit = sys.maxsize if max_pending is None else min(max_pending, sys.maxsize)
        super().__init__(timer, live, min(purge_interval, sys.maxsize), limit)
        self.purges = 0
        self.scanned = 0
        self._purge_handle: Handle | None = None
        if isinstance(clock, AbstractEventLoop):
            self._belong_to(clock)

    def bind(self, purgatory: object) -> None:
        """Belong to the running loop, unless this belongs to a loop already.

        Raises:
            PurgatoryMisuse: `purgatory` belongs to another loop, or its loop runs in another thread.
            RuntimeError: No loop runs.
        """
        loop = self.loop
        if loop is not None:
            call = "purgatory.try_complete_else_watch(operation, keys)"
            if loop.is_closed():
                running_loop(purgatory, loop, call)
            check_loop(purgatory, loop, call, _FROM_THREADS)
            return
        loop = running_loop(purgatory, None, "")
        clock = self.timer.clock
        if clock is not loop and isinstance(clock, AbstractEventLoop):
            running_loop(purgatory, clock, "")  # which raises
        self._belong_to(loop)

    def _belong_to(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        # BaseEventLoop.time() is a Python function around this one.
        is_plain = getattr(loop.time, "__func__", None) is BaseEventLoop.time
        self.time = monotonic if is_plain else loop.time

    def loop_for_threads(self, purgatory: object) -> AbstractEventLoop | None:
        """Return the event loop that another thread may call, or `None` if there is none yet, or after a close.

        Raises:
            PurgatoryMisuse: `purgatory` runs on a clock that is not an event loop.
        """
        if not self.live:
            raise PurgatoryMisuse(
                f"{purgatory!r} has no event loop that another thread could call: it runs on another kind of clock"
            )
        return None if self.closed else self.loop

    def report_key(self, exception: Exception) -> None:
        """Report a key whose `__hash__` or `__eq__` raised."""
        report(self.timer.clock, "looking up a watched key raised", exception)

    def log_missed(self, operation: "OperationBase") -> None:
        """In debug mode, log an operation that its last try completes. Raise requests to exit, and nothing else."""
        try:
            loop = self.loop or _get_running_loop()
            if loop is None or not loop.get_debug():
                return
            # Only in debug mode, because it looks at all lists. An operation does not know its keys.
            watchers = [self.lists.at(index) for index in range(len(self.lists))]
            keys = [each.key for each in watchers if operation._purgatory_entry in each.entries]
            log.warning(
                "%s, watched on %r: only the last try at its deadline found that its condition holds. A call of "
                "check_and_complete for these keys is missing, had a limit, or was still queued",
                type(operation).__qualname__,
                keys,
            )
        except Exception as exception:
            report(self.timer.clock, "an operation that nobody checked could not be logged", exception)

    def note_end(self, operation: "OperationBase", is_missed: bool) -> None:
        """Call the listeners, and start a purge if there are many dead entries. Raise only requests to exit."""
        try:
            if self.listeners is not None:
                self.listeners.finish(operation, cast(Outcome, operation.outcome), is_missed, self.time())
            if self.is_purge_due():
                self._purge()
        except Exception as exception:  # of the clock
            if not (self.loop is not None and self.loop.is_closed()):
                report(self.timer.clock, "the clock raised", exception)

    def _purge(self) -> None:
        lists = self.lists
        self.purging = True
        try:
            self._purge_soon(compact_all(self), lists.watched + lists.purged)
        except BaseException:
            self.purging = False
            raise
        self.purges += 1

    def stop_purging(self) -> None:
        """Stop a purge that is under way, and leave the other entries where they are."""
        handle, self._purge_handle = self._purge_handle, None
        self.purging = False
        if handle is not None:
            handle.cancel()

    def _purge_soon(self, purge: Iterator[int], added: int) -> None:
        self._purge_handle = call_next(self.timer.clock, self._purge_slice, purge, added)

    def _purge_slice(self, purge: Iterator[int], added: int) -> None:
        """Go on with a purge. `added` is the number of entries that had ever been added before the last slice."""
        self._purge_handle = None
        lists = self.lists
        now = lists.watched + lists.purged
        # At least twice as fast as new entries come, because otherwise the purge would never catch up.
        slice_ = self.timer.new_slice(max(SLICE, 2 * (now - added)))
        is_over = False
        try:
            while not is_over:
                entries = next(purge, 0)
                if not entries:
                    self.purging = False
                    if self.is_purge_due():
                        self._purge()
                    return
                self.scanned += entries
                is_over = slice_.is_over_cheaply(entries)
            self._purge_soon(purge, now)
        except BaseException:  # the clock does not call back, so the next completion begins again
            self.purging = False
            raise
        finally:
            self.timer.note_slice(slice_)
