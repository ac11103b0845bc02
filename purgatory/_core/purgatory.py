"""The purgatory: holds operations until their condition or their deadline completes them."""

import asyncio
import math
from asyncio import _get_running_loop
from collections.abc import Hashable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar, cast

from purgatory._core.arguments import check_callback, check_count, refuse_copy
from purgatory._core.checks import CheckQueue, Pass, try_all, walk
from purgatory._core.clock import Clock
from purgatory._core.errors import PurgatoryClosed, PurgatoryError, PurgatoryFull, PurgatoryMisuse
from purgatory._core.listeners import Listener, Listeners, Outcome
from purgatory._core.operation import PENDING, DelayedOperation
from purgatory._core.owner import Owned, Owner
from purgatory._core.statistics import PurgatoryStatistics
from purgatory._core.watchers import Entry
from purgatory._speedups import compiled
from purgatory._timer import WheelTimer

__all__ = ["DelayedOperationPurgatory"]

Operation = TypeVar("Operation", bound=DelayedOperation[Any])

_NEVER: Final = math.inf


@compiled("Purgatory")
class DelayedOperationPurgatory:
    """Holds `DelayedOperation`s, each watched on one or more keys, until a condition or a deadline completes them.

    An operation is tried when it is handed over, when one of its keys is checked, and at its deadline; nothing polls.

    Belongs to one event loop and, `check_and_complete_threadsafe` excepted, to its thread. Any of its methods may be
    called at any point: in the methods of an operation, in a key's `__hash__`, in a finalizer. Use it as an async
    context manager, or call `aclose`.

    Deferred work runs in an empty context (`contextvars.Context()`), never in that of the request that caused it:
    deadlines, `check_and_complete_soon` and `_threadsafe`, and purges.
    """

    __slots__ = (
        "__weakref__",
        "_name",
        "_owner",
        "_queue",
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

        `tick` (seconds) is how exact deadlines are, `wheel_size` the number of buckets on each level of the timer. A
        purge starts when the dead entries in the watcher lists are more than `purge_interval` and more than the living
        ones. More than `max_pending` operations are not let in; `None` is no limit. Without a `clock`, the purgatory
        belongs to the event loop that runs when it is first used. Raises `ValueError` or `TypeError` for values out of
        range.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {name!r}")
        check_count("purge_interval", purge_interval, 0)
        if max_pending is not None:
            check_count("max_pending", max_pending, 1)
        self._name = name
        self._owner = Owner(clock, tick, wheel_size, purge_interval, max_pending)
        self._queue = CheckQueue(self._owner)

    def __repr__(self) -> str:
        closed = " closed" if self.closed else ""
        return f"<{type(self).__qualname__} {self._name!r} num_delayed={self.num_delayed}{closed}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_copy(self)

    async def __aenter__(self) -> "DelayedOperationPurgatory":
        if self.closed:
            raise PurgatoryClosed(f"{self!r} is closed")
        if self._owner.live:
            self._owner.bind(self)
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
        return self._owner.timer

    @property
    def closed(self) -> bool:
        """Whether it takes no more operations."""
        return self._owner.closed

    @property
    def num_delayed(self) -> int:
        """How many operations are pending, exactly."""
        return self._owner.num_delayed

    @property
    def watched(self) -> int:
        """How many entries the watcher lists have, those of finished operations included, exactly."""
        return self._owner.lists.watched

    def watched_keys(self) -> list[Hashable]:
        """The keys that operations are watched on, each once.

        As in `watched`, those of finished operations stay until a check or a purge removes their entries.
        """
        return self._owner.lists.keys()

    def each_watched_key(self) -> Iterator[Hashable]:
        """As `watched_keys`, one at a time: while the iteration is suspended, operations may come and go.

        Keys that are watched throughout are not missed. Keys may come twice, and without an order.
        """
        for watchers in self._owner.lists.backwards():
            yield watchers.key

    def is_watched(self, key: Hashable) -> bool:
        """Whether `key` is one of `watched_keys()`."""
        return key in self._owner.lists

    def watching(self, key: Hashable) -> list[DelayedOperation[Any]]:
        """The pending operations that watch `key`, in watch order."""
        watchers = self._owner.lists.find(key)
        entries = [] if watchers is None else watchers.entries
        return [cast("DelayedOperation[Any]", operation) for entry in entries for operation in entry]

    def statistics(self) -> PurgatoryStatistics:
        """The contents of the purgatory, and its counts so far."""
        owner = self._owner
        lists = owner.lists
        watched = lists.watched
        return PurgatoryStatistics(
            name=self._name,
            num_delayed=owner.num_delayed,
            watched=watched,
            estimated_total=watched,
            completed_at_once=owner.completed_at_once,
            satisfied=owner.satisfied,
            missed=owner.missed,
            expired=owner.expired,
            closed=owner.closed_operations,
            cancelled=owner.cancelled,
            failed=owner.failed,
            purges=owner.purges,
            purged=lists.purged,
            scanned=owner.scanned,
            peak_delayed=owner.peak_delayed,
            peak_watched=max(lists.peak, watched),
            longest_slice=owner.timer.longest_slice,
        )

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable]) -> Operation:
        """Complete `operation` if its condition holds, else keep it until it does or its deadline comes.

        Tries it, watches it on every key, tries it again and starts its timer, all in this call: if the condition
        becomes true and one of the keys is checked after that, at any moment, it is not missed. Returns the operation,
        to be awaited or not. Its timeout counts from this call.

        Raises, with nothing registered: `PurgatoryClosed`, `PurgatoryFull` (only if it would have to wait),
        `PurgatoryMisuse` if the operation has been used before or the purgatory belongs to another event loop,
        `TypeError` if `operation` or `keys` is of the wrong type or a key is not hashable, `ValueError` if there are no
        keys.
        """
        owner = self._owner
        if owner.closed:
            self._refuse_closed()
        if owner.live:
            running = _get_running_loop()
            if running is None or running is not owner.loop:
                owner.bind(self)
        if type(keys) is not tuple:
            if isinstance(keys, (str, bytes)):
                raise TypeError(f"keys must be an iterable of keys, not the {type(keys).__qualname__} {keys!r}")
            keys = tuple(keys)
        count = len(keys)
        if count == 1:
            hash(keys[0])
        elif count:
            distinct = dict.fromkeys(keys)
            if len(distinct) < count:
                keys = tuple(distinct)
                count = len(keys)
        else:
            raise ValueError("an operation needs at least one key to be watched on")
        try:
            # No call from here: the operation is this purgatory's, or it is refused.
            if operation._purgatory_owner is None and operation._purgatory_state is PENDING:
                operation._purgatory_owner = owner
            else:
                self._refuse(operation)
        except AttributeError:
            self._refuse(operation)
        timeout = operation._timer_deadline
        listeners = owner.listeners
        if listeners is not None:
            self._arrive(operation, keys, timeout)
        # As _purgatory_attempt, here and below, without its call: two of them are 9 % of an operation.
        try:
            if (claimed := operation.try_complete()) and operation._purgatory_state is PENDING:
                operation._purgatory_fail_false_claim(claimed)
        except BaseException as exception:
            operation._purgatory_fail_attempt(exception, owner)
        if operation._purgatory_state is not PENDING:
            return operation
        owner = self._owner  # which may be closed by now
        deadline = owner.time() + timeout
        entry: Entry[Owned] = [operation]
        # No call from here: the operation is counted as pending and all of its entries as living, or it is done.
        if operation._purgatory_state is not PENDING:
            return operation
        if owner.closed or (owner.max_pending is not None and owner.num_delayed >= owner.max_pending):
            self._reject(operation)
            return operation
        lists = owner.lists
        operation._timer_deadline = deadline
        operation._purgatory_entry = entry
        operation._purgatory_keys = count
        lists.watched += count
        owner.num_delayed = num_delayed = owner.num_delayed + 1
        if num_delayed > owner.peak_delayed:
            owner.peak_delayed = num_delayed
        clears = lists.clears
        # To here.
        if (failed := lists.watch(entry, keys)) is not None:
            error, missing = failed
            self._withdraw(operation, timeout, missing, clears)
            try:
                raise error
            finally:
                del error, failed  # their traceback holds this frame
        if lists.revived:
            owner.retry_revived()
        if entry:  # still pending
            try:
                if (claimed := operation.try_complete()) and operation._purgatory_state is PENDING:
                    operation._purgatory_fail_false_claim(claimed)
            except BaseException as exception:
                operation._purgatory_fail_attempt(exception, owner)
        if entry and operation._timer_deadline < _NEVER:
            try:
                owner.timer._place(operation, operation._timer_deadline, None)  # unless it has been rescheduled
            except BaseException:  # the clock does not call back: its loop is closed, perhaps
                operation.cancel()
                raise
            if not entry:  # finished meanwhile, by a finalizer for one
                owner.timer.cancel(operation)
        if owner.closed:  # meanwhile, and the closing may not have met this one
            self._close_late(operation)
        return operation

    def check_and_complete(self, key: Hashable, limit: int | None = None) -> int:
        """Try the operations that watch `key`, in watch order. Returns how many of them that completed.

        To be called after whatever may have made a condition true. With a `limit`, at most so many complete, first come
        first served, at a cost by the number tried: one item of a queue is for one taker. Raises `ValueError` or
        `TypeError` unless `limit` is a positive `int`.
        """
        owner = self._owner
        if owner.thread is not None:
            owner.check_thread("check_and_complete(key)", "check_and_complete_threadsafe()")
        if limit is not None:
            return self._check_limited(key, limit)
        watchers = owner.lists.find(key)
        return 0 if watchers is None else try_all(owner, watchers)

    def check_and_complete_soon(self, key: Hashable, limit: int | None = None) -> None:
        """Try the operations that watch `key` on the next iteration of the loop, in slices if there are many.

        Calls for the same key in one iteration make one pass, whose limit is the sum of theirs. Raises as
        `check_and_complete`.
        """
        owner = self._owner
        if owner.thread is not None:
            owner.check_thread("check_and_complete_soon(key)", "check_and_complete_threadsafe()")
        if limit is not None:
            check_count("limit", limit, 1)
        self._queue.request(key, limit)

    def check_and_complete_threadsafe(self, key: Hashable) -> None:
        """`check_and_complete_soon` for other threads, and for signal handlers. Many calls wake the loop once.

        Raises `TypeError` if `key` is not hashable, `PurgatoryMisuse` if the purgatory runs on a clock that is no event
        loop, `RuntimeError` if its loop is closed and the purgatory is not.
        """
        hash(key)
        # Without a loop no operation is pending: one that comes later finds the condition true at its first try.
        loop = self._loop_for_threads()
        if loop is not None:
            self._queue.request_threadsafe(key, loop)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation[Any]]:
        """Cancel the operations that watch `key`. Returns them, in watch order."""
        self.check_thread("purgatory.cancel_for_key(key)")
        watchers = self._owner.lists.find(key)
        if watchers is None:
            return []
        cancelled = []
        leaving: BaseException | None = None
        for entry in watchers.entries.copy():
            if entry:
                operation = entry[0]
                try:
                    if operation.cancel():
                        cancelled.append(cast("DelayedOperation[Any]", operation))
                except (SystemExit, KeyboardInterrupt) as exception:
                    leaving = leaving or exception
        self._owner.compact(watchers)
        if leaving is not None:
            raise leaving
        return cancelled

    def complete_all(self) -> int:
        """Complete every pending operation whether its condition holds or not. Returns how many that completed.

        Their outcome is *closed*.
        """
        self.check_thread("purgatory.complete_all()")
        return self._end_all(close=True)

    def cancel_all(self) -> int:
        """Cancel every pending operation. Returns how many that were."""
        self.check_thread("purgatory.cancel_all()")
        return self._end_all(close=False)

    async def aclose(self) -> None:
        """Take no more operations and complete every pending one, in slices: no awaiting task is left waiting.

        Their outcome is *closed*. Harmless when repeated.
        """
        self.check_thread("purgatory.aclose()", "asyncio.run_coroutine_threadsafe(purgatory.aclose(), loop)")
        owner = self._owner
        owner.closed = True
        owner.stop_purging()
        leaving: BaseException | None = None
        part = owner.timer.new_slice()
        try:
            left = -1
            while owner.num_delayed and owner.num_delayed != left:
                left = owner.num_delayed  # lists that were dropped meanwhile may have hidden others from this walk
                for watchers in owner.lists.forwards():
                    for entry in watchers.entries:
                        try:
                            over = part.is_over() if entry and entry[0]._purgatory_close() else part.is_over_cheaply()
                        except (SystemExit, KeyboardInterrupt) as exception:
                            leaving = leaving or exception
                            over = part.is_over()
                        if over:
                            owner.timer.note_slice(part)
                            await asyncio.sleep(0)
                            part = owner.timer.new_slice()
            for entries in owner.compact_all():
                if part.is_over_cheaply(entries):
                    owner.timer.note_slice(part)
                    await asyncio.sleep(0)
                    part = owner.timer.new_slice()
        finally:
            self.close()
        if leaving is not None:
            raise leaving

    def close(self) -> None:
        """As `aclose`, in one go: for code that cannot await, inside an operation or on a `VirtualClock`."""
        self.check_thread("purgatory.close()")
        owner = self._owner
        owner.closed = True
        try:
            if owner.num_delayed:
                self.complete_all()
        finally:
            owner.timer.close()
            owner.stop_purging()
            self._drop_lists()
            self._queue.close()

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` with a `FinishedOperation` for each operation that has finished.

        A listener sees operations handed over after it was added. It is called in the middle of the call that completes
        an operation, so it has to be quick. Its exceptions go to the loop's exception handler. Raises `TypeError` if
        `listener` is not callable, or is `async`.
        """
        self.check_thread("purgatory.add_listener(listener)")
        check_callback("a listener", listener)
        owner = self._owner
        fresh = Listeners(self._name, owner.timer, listener)
        while True:
            listeners = owner.listeners
            present = () if listeners is None else listeners.all
            more = (*present, listener)
            # No call from here to the end. Up to CPython 3.11 the collector may run while the tuple is made.
            if owner.listeners is listeners and (listeners is None or listeners.all is present):  # pragma: no branch
                break
        if listeners is None:
            owner.listeners = fresh
            owner.set_fast_path()
        else:
            listeners.all = more

    def remove_listener(self, listener: Listener) -> None:
        """Call `listener` no more. Raises `ValueError` if it is not a listener of this purgatory."""
        self.check_thread("purgatory.remove_listener(listener)")
        owner = self._owner
        listeners = owner.listeners
        if listeners is None or not listeners.remove(listener):
            raise ValueError(f"{listener!r} is not a listener of {self!r}")
        # No call from here.
        if owner.listeners is listeners and not listeners.all:
            owner.listeners = None
            owner.set_fast_path()

    def check_thread(self, call: str, instead: str = "") -> None:
        """For classes that are built on a purgatory: raise `PurgatoryMisuse` in asyncio's debug mode if this is not the
        thread of the event loop. `call` is the method that was called, as code.
        """
        if self._owner.thread is not None:
            self._owner.check_thread(call, instead)

    def _loop_for_threads(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that another thread may call, unless there is none yet, or the purgatory is closed.

        Raises `PurgatoryMisuse` if the purgatory runs on a clock that is no event loop.
        """
        owner = self._owner
        if not owner.live:
            raise PurgatoryMisuse(f"{self!r} has no event loop that another thread could call")
        return None if owner.closed else owner.loop

    def _check_limited(self, key: Hashable, limit: int) -> int:
        """`check_and_complete` with a limit."""
        check_count("limit", limit, 1)
        limited = Pass(key, limit)
        for _ in walk(self._owner, limited):
            pass
        return limited.completed

    def _refuse_closed(self) -> NoReturn:
        raise PurgatoryClosed(f"{self!r} takes no more operations")

    def _refuse(self, operation: object) -> NoReturn:
        """Refuse what is no operation, or one that has been used."""
        if isinstance(operation, type):
            raise TypeError(f"an operation is needed, not the class {operation.__qualname__}")
        if hasattr(operation, "_purgatory_owner") and hasattr(operation, "_purgatory_state"):
            raise PurgatoryMisuse(f"{operation!r} has been used: an operation serves once")
        raise TypeError(
            f"a DelayedOperation whose __init__ calls super().__init__(timeout) is needed, not this "
            f"{type(operation).__qualname__}"
        )

    def _arrive(self, operation: DelayedOperation[Any], keys: tuple[Hashable, ...], timeout: float) -> None:
        """Tell the listeners of the arrival of an operation."""
        owner = self._owner
        listeners = cast(Listeners, owner.listeners)
        listeners.arrive(operation, keys, owner.time(), timeout if timeout < _NEVER else None)
        if operation._purgatory_owner is None:  # finished before its arrival was noted
            listeners.finish(operation, cast(Outcome, operation.outcome), owner.time())

    def _close_late(self, operation: DelayedOperation[Any]) -> None:
        """The purgatory was closed while an operation was being registered, and the closing may not have met it."""
        if operation._purgatory_entry:
            operation._purgatory_close()
        self._owner.timer.close()
        self._drop_lists()

    def _reject(self, operation: DelayedOperation[Any]) -> None:
        """Refuse an operation that would have to wait, unless it is done meanwhile."""
        owner = self._owner
        error: PurgatoryError
        if owner.closed:
            error = PurgatoryClosed(f"{self!r} was closed while {operation!r} was being tried")
        else:
            error = PurgatoryFull(f"{self!r} holds {owner.max_pending} operations, as many as it may")
        if owner.listeners is not None:
            owner.listeners.reject(operation)
        if operation._purgatory_waiters is not None:  # awaited in its own try_complete()
            operation.cancel()
        try:
            # No call from here.
            if operation._purgatory_state is PENDING:
                operation._purgatory_owner = None
                raise error
            if operation.cancelled():
                raise error
        finally:
            del error  # its traceback holds this frame

    def _withdraw(self, operation: DelayedOperation[Any], timeout: float, missing: int, clears: int) -> None:
        """Undo the registration of an operation, `missing` of whose entries are not in a list.

        `clears` is how often all lists had been dropped before it was registered.
        """
        owner = self._owner
        lists = owner.lists
        owner.timer.cancel(operation)
        # No call from here.
        if operation._purgatory_state is PENDING and operation._purgatory_entry is not None:
            del operation._purgatory_entry[0]
            owner.num_delayed -= 1
            lists.watched -= missing
            lists.dead += operation._purgatory_keys - missing
            operation._purgatory_owner = operation._purgatory_entry = None
            operation._purgatory_keys = 0
            operation._timer_deadline = timeout
        elif lists.clears == clears:
            lists.watched -= missing
            lists.dead -= missing  # counted when it finished
        # To here.
        if owner.listeners is not None:
            owner.listeners.reject(operation)
        owner.purge_if_due()

    def _end_all(self, *, close: bool) -> int:
        """Complete or cancel each pending operation. Returns how many that were. A request to exit is raised at the
        end.
        """
        ended = 0
        leaving: BaseException | None = None
        for watchers in self._owner.lists.all():
            for entry in watchers.entries.copy():
                try:
                    if entry and (entry[0]._purgatory_close() if close else entry[0].cancel()):
                        ended += 1
                except (SystemExit, KeyboardInterrupt) as exception:
                    leaving = leaving or exception
        if leaving is not None:
            raise leaving
        return ended

    def _drop_lists(self) -> None:
        for _ in self._owner.compact_all():
            pass
        self._owner.lists.clear()
