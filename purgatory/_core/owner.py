"""The owner of operations, and the purge of dead entries."""

import sys
from asyncio import AbstractEventLoop, _get_running_loop
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

from purgatory._core.listeners import Listeners, Outcome
from purgatory._core.states import OUTCOMES
from purgatory._core.watchers import Entry, WatcherLists, Watchers, each_list
from purgatory._loop.clock import Clock, log, report
from purgatory._loop.errors import PurgatoryMisuse
from purgatory._loop.slices import SLICE, ExitRequests, SlicedWork
from purgatory._loop.threads import check_loop, running_loop
from purgatory._timer import WheelTimer, is_of_a_loop

if TYPE_CHECKING:
    from purgatory._core.operation import OperationBase

_FROM_THREADS = (
    "loop.call_soon_threadsafe(purgatory.try_complete_else_watch, operation, keys), or to wait for its result "
    "asyncio.run_coroutine_threadsafe(). In a web framework, make the handler async def"
)

CHUNK: Final = 50
"""Entries between two looks at the time: tries that do not complete, dead entries, and those of short lists."""


class OwnerBase:
    """The part of a purgatory that its operations refer to: the timer, the loop that may call, the lists, the counts.

    It is a separate object so that a purgatory is freed when the program drops it, while its deadlines still run.

    `Owner` relies on the methods and attributes here, and defines `note_end`, `log_missed`, `report_key` and `bind`.
    """

    def __init__(self, timer: WheelTimer, live: bool, purge_interval: int, max_pending: int) -> None:
        self.timer: WheelTimer = timer
        self.live: bool = live
        """Whether this belongs to an event loop, rather than to a clock of another kind."""
        self.loop: AbstractEventLoop | None = None
        """The loop that this belongs to, if it belongs to one yet."""
        self.lists: WatcherLists = WatcherLists()
        self._keyless: dict[int, OperationBase] = {}
        """The pending operations without keys, by `id`."""
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

    def time(self) -> float:
        """Return the clock's time, in seconds. It is asked each time, because tests replace `loop.time`."""
        return (self.timer if self.loop is None else self.loop).time()

    def is_purge_due(self) -> bool:
        """Return whether there are too many dead entries and no purge is under way."""
        lists = self.lists
        return lists.dead > self.purge_interval and 2 * lists.dead > lists.watched and not self.purging

    def keyless(self) -> list["OperationBase"]:
        """Return the pending operations without keys."""
        return list(self._keyless.values())

    def try_each(
        self, entries: list[Entry], at: int, end: int, limit: int, seconds: float
    ) -> tuple[int, int, BaseException | None]:
        """Try the operations of `entries`, from the index `at` to `end`, until `limit` of them have completed.

        End earlier with one that completes after `seconds`, because other people's code runs when it does.

        Returns:
            The index behind the last operation that was tried, how many completed, and the request to exit of a method
            that has ended this early.
        """
        completed = 0
        ends = perf_counter() + seconds
        operation: OperationBase | None = None  # and again None, because a failed one's traceback keeps this frame
        try:
            while at < end and completed < limit:
                operation = entries[at].operation
                at += 1
                if operation is not None:
                    operation._purgatory_try()
                    completed += operation._purgatory_state.outcome == "satisfied"
                    if operation._purgatory_state.is_done and perf_counter() >= ends:
                        limit = completed
                    operation = None
        except BaseException as exception:
            completed += operation is not None and operation._purgatory_state.outcome == "satisfied"
            operation = None
            return at, completed, exception
        return at, completed, None

    def run_deferred(self) -> None:
        """End the operations whose ends were deferred, in their order, and then raise the first request to exit."""
        exits = ExitRequests()
        try:
            while self.deferred:
                with exits:
                    self.deferred[0]._purgatory_run(self)
                if self.deferred[0].done():  # else it was interrupted before it had begun
                    self.deferred.popleft()
        except BaseException:  # a signal's handler has raised between two of them
            self.run_deferred()
            raise
        exits.raise_first()

    def compact(self, watchers: Watchers) -> None:
        """Remove the dead entries of a list. If looking up its key raises, that is reported."""
        try:
            self.lists.compact(watchers)
        except Exception as exception:
            self.report_key(exception)

    if TYPE_CHECKING:  # what Owner defines

        def note_end(self, operation: "OperationBase", is_missed: bool) -> None: ...
        def log_missed(self, operation: "OperationBase") -> None: ...
        def report_key(self, exception: Exception) -> None: ...
        def bind(self, purgatory: object) -> None: ...


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import OwnerBase


class Owner(OwnerBase):
    """The owner of the operations of one purgatory.

    A *purge* removes the dead entries of all lists, in slices. It starts when there are more dead entries than
    `purge_interval` and more than living ones. So it looks at no more than two entries for each that it removes,
    however many operations are pending.

    Kafka's purgatory decides by an *estimate* of the entries: the operations that were ever watched, minus the finished
    ones. The estimate is wrong if operations have several keys, and from the end of an operation until its entry is
    removed from each list. Counting is exact, and costs one addition when an operation ends and one when a list is
    compacted.
    """

    def __init__(
        self, clock: Clock | None, tick: float, wheel_size: int, purge_interval: int, max_pending: int | None
    ) -> None:
        timer = WheelTimer(clock, tick=tick, wheel_size=wheel_size)
        timer._is_owned = True
        live = is_of_a_loop(clock)
        limit = sys.maxsize if max_pending is None else min(max_pending, sys.maxsize)
        super().__init__(timer, live, min(purge_interval, sys.maxsize), limit)
        self.purges = 0
        self.scanned = 0
        self._purge = SlicedWork(timer, self._purge_slice, self._purge_stopped)
        self._steps: Iterator[int] = iter(())
        """The rest of the purge."""
        self._added = 0
        """Entries that had ever been added before the last slice of the purge."""
        if isinstance(clock, AbstractEventLoop):
            self.loop = clock

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
        self.loop = loop

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

    def call_soon_from_anywhere(self, callback: Callable[[], object]) -> None:
        """Call `callback()` on the next iteration of the loop, or at the next move of a `VirtualClock`.

        It never calls out, so a finalizer may call it in the middle of anything. Nothing is called if the loop is
        closed, or if the clock is of a kind of its own.
        """
        if self.loop is not None:
            with suppress(RuntimeError):  # it is closed
                self.loop.call_soon_threadsafe(callback, context=Context())
        else:
            call = getattr(self.timer._clock, "_call_at_next_move", bool)  # which ignores it
            call(callback)

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
                self._begin_purge()
        except Exception as exception:  # of the clock
            if not (self.loop is not None and self.loop.is_closed()):
                report(self.timer.clock, "the clock raised", exception)

    def _begin_purge(self) -> None:
        self._steps = compact_all(self)
        self._added = self.lists.watched + self.lists.purged
        self.purging = True
        try:
            self._purge.schedule()
        except BaseException:
            self.purging = False
            raise
        self.purges += 1

    def _purge_slice(self) -> Iterator[int]:
        """Go on with the purge. Entries are free up to twice those that have come since the last slice.

        Otherwise the purge would never catch up.
        """
        added = self.lists.watched + self.lists.purged
        free = 2 * (added - self._added)
        self._added = added
        for entries in self._steps:
            self.scanned += entries
            yield max(0, entries - free)
            free = max(0, free - entries)
        self.purging = False
        if self.is_purge_due():
            self._begin_purge()

    def _purge_stopped(self) -> None:
        self.purging = False  # the next completion begins again

    def stop_purging(self) -> None:
        """Stop a purge that is under way, and leave the other entries where they are."""
        self._purge.cancel()
        self.purging = False

    def compact_in_slices(self, watchers: Watchers) -> Iterator[int]:
        """Remove the dead entries of one list. After each slice, yield how many entries it had."""
        entries = watchers.entries
        length = len(entries)
        if length <= SLICE:
            self.compact(watchers)
            yield length
            return
        alive: list[Entry] = []
        for start in range(0, length, SLICE):
            part = entries[start : min(start + SLICE, length)]
            living = [entry for entry in part if entry.operation is not None]
            alive += living
            # The old list drops the dead ones now, because freeing a million of them at the end would hold up the loop.
            # The others stay where they are, so that a suspended walk over it misses none.
            dead = next((entry for entry in part if entry.operation is None), part[0])
            places = [dead if entry.operation is None else entry for entry in part] if living else [dead] * len(part)
            entries[start : start + len(part)] = places
            yield len(part)
        if watchers.entries is entries:  # else another compaction has replaced it meanwhile
            alive += entries[length:]
            try:
                self.lists.replace(watchers, alive)
            except Exception as exception:
                self.report_key(exception)


def compact_all(owner: Owner) -> Iterator[int]:
    """Remove the dead entries of all lists. After each slice, yield how many entries it had."""
    done = 0
    for watchers in each_list(owner.lists):
        length = len(watchers.entries)
        if length > SLICE:
            yield from owner.compact_in_slices(watchers)
            continue
        owner.compact(watchers)
        # Not after each short list: there may be a million of them.
        done += max(length, 1)
        if done >= CHUNK:
            yield done
            done = 0
    if done:
        yield done
