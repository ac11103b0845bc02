"""The owner of an operation while it waits.

An operation knows its owner and nothing else of the purgatory that took it: the timer, the loop and the thread that may
call, how deep completions are nested, the listeners, the counts, and when to purge.
"""

import os
import sys
from asyncio import AbstractEventLoop, BaseEventLoop, _get_running_loop
from collections import deque
from collections.abc import Iterator
from threading import get_ident
from time import monotonic
from typing import Any, Final, NoReturn, Protocol

from purgatory._core.clock import Clock, Handle, report
from purgatory._core.listeners import Listeners
from purgatory._core.slices import SLICE, call_next
from purgatory._core.threads import running_loop, wrong_thread
from purgatory._core.watchers import Entry, WatcherLists, Watchers
from purgatory._speedups import compiled, provide
from purgatory._timer import WheelTimer

__all__ = ["NESTING", "Owned", "Owner"]

NESTING: Final = 16
"""How deep completions go on inside each other. Those further in are made by the outermost, one after the other."""


_FROM_THREADS: Final = (
    "loop.call_soon_threadsafe(purgatory.try_complete_else_watch, operation, keys), or to wait for its result "
    "asyncio.run_coroutine_threadsafe()"
)

_CHUNK: Final = 50
"""Entries of short lists that are compacted between two looks at the time."""


class Owned(Protocol):
    """An operation, as far as its owner calls it."""

    @property
    def _purgatory_state(self) -> object:
        """Its state, which is compared by identity."""

    def try_complete(self) -> bool:
        """As its class defines it."""

    def _purgatory_attempt(self, owner: "Owner") -> bool:
        """Try it. Returns whether that completed it."""

    def _purgatory_fail_false_claim(self, claimed: object) -> NoReturn:
        """Raise `PurgatoryMisuse`: `try_complete` returned true without completing the operation."""

    def _purgatory_fail_attempt(self, exception: BaseException, owner: "Owner") -> None:
        """Let the operation fail with `exception`, which `try_complete` raised."""

    def _purgatory_run(self) -> None:
        """Make the completion that was put off."""

    def _purgatory_close(self) -> bool:
        """Complete it as closed. Returns whether this call did."""

    def cancel(self) -> bool:
        """Cancel it. Returns whether this call did."""

    @property
    def outcome(self) -> str | None:
        """How it has finished, or is finishing."""


provide(nesting=NESTING)


@compiled("Owner")
class Owner:
    """The owner of the operations of one purgatory."""

    __slots__ = (
        "_purge_handle",
        "_purging",
        "awaited",
        "cancelled",
        "closed",
        "closed_operations",
        "completed_at_once",
        "deferred",
        "depth",
        "expired",
        "failed",
        "fast_path_limit",
        "listeners",
        "lists",
        "live",
        "loop",
        "max_pending",
        "missed",
        "num_delayed",
        "peak_delayed",
        "purge_interval",
        "purges",
        "satisfied",
        "scanned",
        "thread",
        "time",
        "timer",
    )

    def __init__(
        self, clock: Clock | None, tick: float, wheel_size: int, purge_interval: int, max_pending: int | None
    ) -> None:
        self.timer = WheelTimer(clock, tick=tick, wheel_size=wheel_size)
        self.time = self.timer.time
        """The clock's, which is asked in fewer steps once it is known."""
        self.live = clock is None or isinstance(clock, AbstractEventLoop)
        """Whether this belongs to an event loop, rather than to a clock of another kind."""
        self.loop: AbstractEventLoop | None = None
        """The loop that this belongs to, if it belongs to one yet."""
        self.thread: int | None = None
        """The thread that alone may call; known in asyncio's debug mode alone, as `get_ident` is a quarter of a check
        of a key without watchers, a tenth of one with a watcher."""
        self.lists: WatcherLists[Owned] = WatcherLists()
        self.listeners: Listeners | None = None
        self.awaited: dict[int, Any] = {}
        """The shared entry of each future that a `DelayedFutures` awaits, by `id` of the future."""
        self.purge_interval = min(purge_interval, sys.maxsize)
        self.fast_path_limit = self.purge_interval
        """While the dead entries are at most this, completion skips the slow path: no listener is attached, and no
        purge is due or one is under way."""
        self.max_pending = None if max_pending is None else min(max_pending, sys.maxsize)
        self.closed = False
        """Whether operations are refused."""
        self.depth = 0
        """How many completions are being made, each inside the one before."""
        self.deferred: deque[Owned] = deque()
        """Operations whose completion the outermost of these makes."""
        self.num_delayed = 0
        """Operations pending, exactly."""
        self.peak_delayed = 0
        # Operations finished, by outcome.
        self.completed_at_once = 0
        self.satisfied = 0
        self.missed = 0
        self.expired = 0
        self.closed_operations = 0
        self.cancelled = 0
        self.failed = 0
        self.purges = 0
        self.scanned = 0
        self._purging = False
        self._purge_handle: Handle | None = None

    def bind(self, what: object) -> None:
        """Belong to the running loop, if to none yet. Raises, with `what` as the owner's name, on another loop."""
        if self.loop is None:
            loop = running_loop(what, None, "")
            clock = self.timer.clock
            if clock is not loop and isinstance(clock, AbstractEventLoop):
                running_loop(what, clock, "")
        else:
            loop = running_loop(what, self.loop, "purgatory.try_complete_else_watch(operation, keys)", _FROM_THREADS)
        self.loop = loop
        # BaseEventLoop.time() is a Python function around this one.
        is_plain = getattr(loop.time, "__func__", None) is BaseEventLoop.time
        self.time = monotonic if is_plain else loop.time
        # uvicorn makes loops that are not in debug mode, whatever Python was told.
        if loop.get_debug() or sys.flags.dev_mode or os.environ.get("PYTHONASYNCIODEBUG"):
            self.thread = get_ident()

    def check_thread(self, call: str, instead: str = "") -> None:
        """Raise `PurgatoryMisuse`, which names the right call, if this is not the thread of the event loop.

        `call` is what was called, as code; `instead` is the right call where it is not `call_soon_threadsafe` of that.
        """
        thread = get_ident()
        if self.thread is not None and self.thread != thread:
            if self.loop is None or _get_running_loop() is not self.loop:
                raise wrong_thread(call, instead)
            self.thread = thread  # the loop goes on here

    def set_fast_path(self) -> None:
        """Say when completion may skip the slow path. To be called when a purge or the first listener comes or goes."""
        # No call from here.
        if self.listeners is not None:
            self.fast_path_limit = -1
        elif self._purging:
            self.fast_path_limit = sys.maxsize
        else:
            self.fast_path_limit = self.purge_interval

    def complete_deferred(self) -> None:
        """Make the completions that were put off, in their order. Called by the outermost one, at depth 1."""
        leaving: BaseException | None = None
        while self.deferred:
            try:
                self.deferred.popleft()._purgatory_run()
            except BaseException as exception:  # a request to exit, or the clock does not call back
                leaving = leaving or exception
        # No call from the last look at the queue: a completion that is put off from now on has an outermost one of its
        # own.
        self.depth = 0
        if leaving is not None:
            raise leaving

    def retry_revived(self) -> None:
        """Try the operations that a check of their key may have missed, as `WatcherLists.revived` explains."""
        while self.lists.revived:
            revived: list[Entry[Owned]] = []
            revived, self.lists.revived = self.lists.revived, revived
            for entry in revived:
                if entry:
                    entry[0]._purgatory_attempt(self)

    def compact(self, watchers: Watchers[Owned]) -> None:
        """Remove the dead entries of one list, in one go."""
        try:
            self.lists.compact(watchers)
        except Exception as exception:
            self._report_key(exception)
        if self.lists.revived:
            self.retry_revived()

    def compact_in_slices(self, watchers: Watchers[Owned]) -> Iterator[int]:
        """Remove the dead entries of one list; after each slice, yield how many entries it had."""
        try:
            yield from self.lists.compact_in_slices(watchers)
        except Exception as exception:
            self._report_key(exception)
        if self.lists.revived:
            self.retry_revived()

    def compact_all(self) -> Iterator[int]:
        """Remove the dead entries of all lists; after each slice, yield how many entries it had."""
        done = 0
        for watchers in self.lists.backwards():
            entries = watchers.entries
            length = len(entries)
            if length > SLICE:
                yield from self.compact_in_slices(watchers)
                continue
            if not entries or not all(entries):  # an empty one was not dropped, as its key could not be looked up
                self.compact(watchers)
            # Not after each short list: there may be a million of them.
            done += max(1, length)
            if done >= _CHUNK:
                yield done
                done = 0
        if done:
            yield done

    def purge_if_due(self) -> None:
        """Start a purge if there are too many dead entries, unless one is under way.

        Too many are more than `purge_interval`, and more than the living ones: so a purge looks at no more than two
        entries for each that it removes, however many operations are pending.
        """
        lists = self.lists
        if lists.dead > self.purge_interval and 2 * lists.dead > lists.watched and not self._purging:
            self._purging = True
            self.set_fast_path()
            try:
                self._purge_soon(self.compact_all(), lists.watched + lists.purged)
            except BaseException:
                self._purging = False
                self.set_fast_path()
                if self.loop is not None and self.loop.is_closed():
                    return  # nothing on it will be completed or purged any more
                raise
            self.purges += 1

    def stop_purging(self) -> None:
        """Leave a purge that is under way where it is."""
        handle, self._purge_handle = self._purge_handle, None
        self._purging = False
        self.set_fast_path()
        if handle is not None:
            handle.cancel()

    def _purge_soon(self, purge: Iterator[int], added: int) -> None:
        self._purge_handle = call_next(self.timer.clock, self._purge_slice, purge, added)

    def _purge_slice(self, purge: Iterator[int], added: int) -> None:
        """Go on with a purge; `added` is how many entries had been added up to the last slice."""
        self._purge_handle = None
        lists = self.lists
        now = lists.watched + lists.purged
        part = self.timer.new_slice()
        # At least twice as fast as new entries come, or else the purge would never catch up.
        part.left = max(SLICE, 2 * (now - added))
        try:
            for entries in purge:
                self.scanned += entries
                if part.is_over_cheaply(entries):
                    self._purge_soon(purge, now)
                    break
            else:
                self._purging = False
                self.set_fast_path()
                self.purge_if_due()
        except BaseException:  # a request to exit, or the clock does not call back: the next completion begins anew
            self._purging = False
            self.set_fast_path()
            raise
        finally:
            self.timer.note_slice(part)

    def _report_key(self, exception: Exception) -> None:
        report(self.timer.clock, "a watch key cannot be looked up", exception)
