"""The purgatory: holds operations until their condition or their deadline completes them."""

import asyncio
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from threading import get_ident
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from purgatory.clock import Clock, Handle, check_callback, report
from purgatory.errors import PurgatoryClosed, PurgatoryError, PurgatoryFull
from purgatory.listeners import Listener, Listeners
from purgatory.operation import PENDING, DelayedOperation
from purgatory.statistics import PurgatoryStatistics
from purgatory.timer import WheelTimer
from purgatory.timer.timer import SLICE
from purgatory.watchers import WatcherLists

__all__ = ["DelayedOperationPurgatory"]

Operation = TypeVar("Operation", bound=DelayedOperation[Any])


class _Pass:
    """What `check_and_complete_soon` has been asked to do for one key."""

    __slots__ = ("key", "over", "walk", "wanted")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.walk: Iterator[int] | None = None
        """What is left of the pass, if it has begun."""
        self.wanted = False
        """Whether it has been asked for since it last began."""
        self.over = False
        """Whether it was given up because its key could not be looked up."""


class DelayedOperationPurgatory:
    """Holds `DelayedOperation`s, each watched on one or more keys, until a condition or a deadline completes them.

    Belongs to one event loop and, `check_and_complete_threadsafe` excepted, to its thread. Any of its methods may be
    called from inside the methods of an operation. Use it as an async context manager, or call `aclose`.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_lists",
        "_live",
        "_max_pending",
        "_name",
        "_passes",
        "_queue",
        "_soon_handle",
        "_timer",
    )

    def __init__(
        self,
        name: str = "purgatory",
        *,
        tick: float = 0.001,
        wheel_size: int = 20,
        purge_interval: int = 1000,
        max_pending: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make a purgatory; `name` is for statistics and messages.

        `tick` (seconds) is how exact deadlines are, `wheel_size` the number of buckets on each level of the timer.
        A purge starts when more than `purge_interval` operations have finished since the last one. More than
        `max_pending` operations are not let in; `None` is no limit. Without a `clock`, the purgatory belongs to the
        event loop that runs when it is first used. Raises `ValueError` or `TypeError` for values out of range.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {name!r}")
        _check_count("purge_interval", purge_interval, 0)
        if max_pending is not None:
            _check_count("max_pending", max_pending, 1)
        self._name = name
        self._timer = WheelTimer(clock, tick=tick, wheel_size=wheel_size)
        self._lists: WatcherLists[DelayedOperation[Any]] = WatcherLists(self._timer, purge_interval)
        self._max_pending = max_pending
        self._live = clock is None or isinstance(clock, asyncio.AbstractEventLoop)
        """Whether the purgatory belongs to an event loop, rather than to a clock of another kind."""
        self._closed = False
        # What check_and_complete_soon has been asked for, in the order of its turns, and by key.
        self._queue: deque[_Pass] = deque()
        self._passes: dict[Hashable, _Pass] = {}
        self._soon_handle: Handle | None = None

    def __repr__(self) -> str:
        closed = " closed" if self._closed else ""
        return f"<{type(self).__qualname__} {self._name!r} num_delayed={self.num_delayed}{closed}>"

    async def __aenter__(self) -> "DelayedOperationPurgatory":
        if self._closed:
            raise PurgatoryClosed(f"{self!r} is closed")
        if self._live:
            self._bind()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def name(self) -> str:
        """The name given to it."""
        return self._name

    @property
    def timer(self) -> WheelTimer:
        """The timer that runs the deadlines."""
        return self._timer

    @property
    def num_delayed(self) -> int:
        """How many operations are pending, exactly."""
        return self._lists.num_delayed

    @property
    def watched(self) -> int:
        """How many entries the watcher lists have, those of finished operations included, exactly."""
        return self._lists.watched

    def watched_keys(self) -> list[Hashable]:
        """The keys that operations are watched on, each once.

        As in `watched`, those of finished operations stay until a check or a purge removes their entries.
        """
        return self._lists.keys()

    def statistics(self) -> PurgatoryStatistics:
        """What the purgatory holds and what it has done so far."""
        lists = self._lists
        return PurgatoryStatistics(
            name=self._name,
            num_delayed=lists.num_delayed,
            watched=lists.watched,
            estimated_total=lists.num_delayed + lists.finished,
            completed_at_once=lists.at_once,
            satisfied=lists.satisfied,
            expired=lists.expired,
            cancelled=lists.cancelled,
            failed=lists.failed,
            purges=lists.purges,
            purged=lists.purged,
            scanned=lists.scanned,
            peak_delayed=lists.peak_delayed,
            peak_watched=max(lists.peak_watched, lists.watched),
            longest_slice=self._timer.longest_slice,
        )

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable]) -> Operation:
        """Complete `operation` if its condition holds, else keep it until it does or its deadline comes.

        Tries it, watches it on every key, tries it again and starts its timer, all in this call: if the condition
        becomes true and one of the keys is checked after that, at any moment, it is not missed. Returns the operation,
        to be awaited or not. Its timeout counts from this call.

        Raises, with nothing registered: `PurgatoryClosed`, `PurgatoryFull` (only if it would have to wait),
        `PurgatoryError` if the operation has been used before or the purgatory belongs to another event loop,
        `TypeError` if `operation` or `keys` is of the wrong type or a key is not hashable, `ValueError` if there are no
        keys.
        """
        if self._closed:
            raise PurgatoryClosed(f"{self!r} takes no more operations")
        lists = self._lists
        if self._live:
            running = _get_running_loop()
            if running is None or running is not lists.loop:
                self._bind()
        if type(keys) is not tuple:
            if isinstance(keys, (str, bytes)):
                raise TypeError(f"keys must be an iterable of keys, not the {type(keys).__qualname__} {keys!r}")
            keys = tuple(keys)
        if not keys:
            raise ValueError("an operation needs at least one key to be watched on")
        if len(keys) == 1:
            hash(keys[0])
        else:
            keys = tuple(dict.fromkeys(keys))
        try:
            used = operation._home is not None or operation._state is not PENDING
        except AttributeError:
            raise TypeError(
                f"a DelayedOperation whose __init__ calls super().__init__(timeout) is needed, not this "
                f"{type(operation).__qualname__}"
            ) from None
        if used:
            if isinstance(operation, type):
                raise TypeError(f"an operation is needed, not the class {operation.__qualname__}")
            raise PurgatoryError(f"{operation!r} has been used: an operation serves once")

        operation._home = lists
        if lists.listeners is not None:
            lists.listeners.arrive(operation, keys, lists.time())
        # As in _try_each, here and below; a function for the three of them would cost a call for each try.
        try:
            if (claimed := operation.try_complete()) and operation._state is PENDING:
                operation._refute(claimed)
        except BaseException as exception:
            operation._fail_attempt(exception, lists)
        if operation._state is not PENDING:
            return operation
        try:
            if self._closed:
                raise PurgatoryClosed(f"{self!r} was closed while {operation!r} was being tried")
            if self._max_pending is not None and lists.num_delayed >= self._max_pending:
                raise PurgatoryFull(f"{self!r} holds {self._max_pending} operations, as many as it may")
            now = lists.time()
            entry = operation._entry = lists.watch(operation, keys)
        except BaseException:
            operation._home = None
            if lists.listeners is not None:
                lists.listeners.turn_away(operation)
            raise
        if operation._state is not PENDING:  # something that a key's own methods did has finished it meanwhile
            entry.clear()
            lists.num_delayed -= 1
            lists.finished += 1
            lists.purge_if_due()
            return operation
        if self._closed:  # a key's own methods did that, and the closing did not meet this one
            operation.force_complete()
            lists.close()
            return operation
        try:
            if (claimed := operation.try_complete()) and operation._state is PENDING:
                operation._refute(claimed)
        except BaseException as exception:
            operation._fail_attempt(exception, lists)
        timeout = operation._timeout
        # It may be done, or rescheduled, by now.
        if entry and timeout is not None and operation._bucket is None:
            try:
                self._timer.add(operation, now + timeout)
            except BaseException:  # the clock does not call back: its loop is closed, perhaps
                operation.cancel()
                raise
        return operation

    def check_and_complete(self, key: Hashable) -> int:
        """Try the operations that watch `key`, in watch order. Returns how many of them that completed.

        To be called after whatever may have made a condition true.
        """
        lists = self._lists
        if lists.thread is not None:
            lists.check_thread("check_and_complete", "check_and_complete_threadsafe()")
        entries = lists.entries(key)
        if not entries:
            return 0
        completed = self._try_each(entries)
        if not all(entries):
            lists.compact(key)
        return completed

    def check_and_complete_soon(self, key: Hashable) -> None:
        """Try the operations that watch `key` on the next turn of the loop, in slices if there are many.

        Calls for the same key in one turn make one pass.
        """
        lists = self._lists
        if lists.thread is not None:
            lists.check_thread("check_and_complete_soon", "check_and_complete_threadsafe()")
        asked = self._passes.get(key)
        if asked is None or asked.over:
            if not lists.has(key):
                return
            if self._soon_handle is None:
                self._check_next_turn()
            asked = self._passes[key] = _Pass(key)
            self._queue.append(asked)
        asked.wanted = True

    def check_and_complete_threadsafe(self, key: Hashable) -> None:
        """`check_and_complete_soon` for other threads, and for signal handlers.

        Raises `TypeError` if `key` is not hashable, `PurgatoryError` if the purgatory runs on a clock that is no event
        loop, `RuntimeError` if its loop is closed and the purgatory is not.
        """
        hash(key)
        if not self._live:
            raise PurgatoryError(f"{self!r} has no event loop that another thread could call")
        # Without a loop nobody waits: who comes later finds the condition true by trying it.
        loop = self._lists.loop
        if loop is not None and not self._closed:
            loop.call_soon_threadsafe(self.check_and_complete_soon, key)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation[Any]]:
        """Cancel the operations that watch `key`. Returns them, in watch order."""
        self._lists.check_thread("cancel_for_key", "loop.call_soon_threadsafe(purgatory.cancel_for_key, key)")
        cancelled = [operation for entry in self._lists.entries(key) for operation in entry if operation.cancel()]
        self._lists.compact(key)
        return cancelled

    def complete_all(self) -> int:
        """Complete every pending operation whether its condition holds or not. Returns how many that completed."""
        self._lists.check_thread("complete_all", "loop.call_soon_threadsafe(purgatory.complete_all)")
        completed = 0
        leaving: BaseException | None = None
        for entry in self._lists.all_entries():
            try:
                if entry and entry[0].force_complete():
                    completed += 1
            except (SystemExit, KeyboardInterrupt) as exception:
                leaving = exception
        if leaving is not None:
            raise leaving
        return completed

    def cancel_all(self) -> int:
        """Cancel every pending operation. Returns how many that were."""
        self._lists.check_thread("cancel_all", "loop.call_soon_threadsafe(purgatory.cancel_all)")
        return sum(operation.cancel() for entry in self._lists.all_entries() for operation in entry)

    async def aclose(self) -> None:
        """Take no more operations and complete every pending one, in slices, so that nobody is left waiting.

        Harmless when repeated.
        """
        self._lists.check_thread("aclose", "asyncio.run_coroutine_threadsafe(purgatory.aclose(), loop)")
        self._closed = True
        try:
            for index, entry in enumerate(self._lists.all_entries(), 1):
                if entry:
                    entry[0].force_complete()
                if index % SLICE == 0:
                    await asyncio.sleep(0)
        finally:
            self.close()

    def close(self) -> None:
        """As `aclose`, in one go. For where nothing can be awaited: inside an operation, or on a `VirtualClock`."""
        self._lists.check_thread("close", "loop.call_soon_threadsafe(purgatory.close)")
        self._closed = True
        try:
            if self._lists.num_delayed:
                self.complete_all()
        finally:
            self._timer.close()
            self._lists.close()
            self._queue.clear()
            self._passes.clear()
            if self._soon_handle is not None:
                self._soon_handle.cancel()
                self._soon_handle = None

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` with a `FinishedOperation` for each operation that has finished.

        Not for those that were handed over before anybody listened. It is called in the middle of whatever completes
        an operation: it has to be quick. What it raises goes to the loop's exception handler, and harms nobody.
        Raises `TypeError` if `listener` cannot be called, or is `async`.
        """
        self._lists.check_thread("add_listener", "loop.call_soon_threadsafe(purgatory.add_listener, listener)")
        check_callback("a listener", listener)
        listeners = self._lists.listeners or Listeners(self._name, self._timer)
        listeners.add(listener)
        self._lists.listen(listeners)

    def remove_listener(self, listener: Listener) -> None:
        """Call `listener` no more. Raises `ValueError` if it is not a listener of this purgatory."""
        self._lists.check_thread("remove_listener", "loop.call_soon_threadsafe(purgatory.remove_listener, listener)")
        listeners = self._lists.listeners
        if listeners is None or listener not in listeners:
            raise ValueError(f"{listener!r} is no listener of {self!r}")
        listeners.remove(listener)
        if not listeners:
            self._lists.listen(None)

    def _bind(self) -> None:
        """Belong to the running loop, if to none yet. Raises if to another one."""
        lists = self._lists
        if lists.loop is not None and _get_running_loop() is None:
            call = "loop.call_soon_threadsafe(purgatory.try_complete_else_watch, operation, keys)"
            raise PurgatoryError(f"{self!r} is not for other threads than that of its event loop: use {call}")
        loop = asyncio.get_running_loop()
        if self._timer.clock is not loop:
            raise PurgatoryError(f"{self!r} belongs to another event loop than the running one")
        lists.loop = loop
        lists.time = loop.time
        if loop.get_debug():
            lists.thread = get_ident()

    def _try_each(self, entries: list[list[DelayedOperation[Any]]]) -> int:
        """Try the operations of `entries` that are alive. Returns how many of them that completed."""
        completed = 0
        operation: DelayedOperation[Any] | None = None
        try:
            for entry in entries:
                if entry:
                    operation = entry[0]
                    try:
                        if claimed := operation.try_complete():
                            if operation._state is PENDING:
                                operation._refute(claimed)
                            completed += 1
                    except BaseException as exception:
                        operation._fail_attempt(exception, self._lists)
        finally:
            # A traceback that somebody keeps would keep this frame, and with it an operation that it is not about.
            operation = None
        return completed

    def _check_next_turn(self) -> None:
        clock = self._timer.clock
        self._soon_handle = clock.call_at(clock.time(), self._check_queue)

    def _check_queue(self) -> None:
        """Work on the passes asked for, each a slice in turn, so that a long one does not hold up the others."""
        self._soon_handle = None
        began = perf_counter()
        queue = self._queue
        budget = SLICE
        turns = len(queue)  # what is asked for meanwhile has its turn after this one
        try:
            while turns > 0 and budget > 0 and queue:
                turns -= 1
                budget = self._go_on(queue.popleft(), budget)
        finally:
            if self._closed:
                queue.clear()
            if queue and self._soon_handle is None:
                self._check_next_turn()
            self._timer.note_slice(began)

    def _go_on(self, asked: _Pass, budget: int) -> int:
        """Go on with a pass, until it ends or the budget does. Returns what is left of the budget."""
        try:
            if asked.walk is None:
                asked.wanted = False
                asked.walk = self._walk(asked.key)
            for entries in asked.walk:
                budget -= entries
                if budget <= 0:
                    self._queue.append(asked)
                    return budget
            asked.walk = None
            if asked.wanted:
                self._queue.append(asked)
            else:
                self._passes.pop(asked.key, None)
        except Exception as exception:  # from the key's own __hash__ or __eq__
            asked.over = True
            report(self._timer.clock, "a watch key cannot be looked up", exception)
        except BaseException:  # an operation asks to exit: those after it are tried on the next turn
            asked.walk = None
            self._queue.append(asked)
            raise
        return budget

    def _walk(self, key: Hashable) -> Iterator[int]:
        """Try what watches `key` now; after each slice, yield how many entries it had."""
        dead = False
        for part in self._lists.slices(key):
            self._try_each(part)
            dead = dead or not all(part)
            yield len(part)
        if dead:
            yield from self._lists.compact_in_slices(key)


def _check_count(name: str, value: int, least: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__qualname__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")
