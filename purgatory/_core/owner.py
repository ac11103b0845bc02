"""The owner of operations: its methods that are called seldom, and the purge of dead entries."""

import sys
from asyncio import AbstractEventLoop, BaseEventLoop, _get_running_loop
from collections.abc import Iterator
from time import monotonic
from typing import cast

from purgatory._core._base import OperationBase, OwnerBase
from purgatory._core.listeners import Outcome
from purgatory._core.watchers import compact_all
from purgatory._loop.clock import Clock, Handle, log, report
from purgatory._loop.errors import PurgatoryMisuse
from purgatory._loop.slices import SLICE, call_next
from purgatory._loop.threads import check_loop, running_loop
from purgatory._timer import WheelTimer, is_of_a_loop

_FROM_THREADS = (
    "loop.call_soon_threadsafe(purgatory.try_complete_else_watch, operation, keys), or to wait for its result "
    "asyncio.run_coroutine_threadsafe(). In a web framework, make the handler async def"
)


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

    def log_missed(self, operation: OperationBase) -> None:
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

    def note_end(self, operation: OperationBase, is_missed: bool) -> None:
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
