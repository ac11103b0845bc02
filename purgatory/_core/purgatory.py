"""The purgatory: holds operations until their condition or their deadline completes them."""

import asyncio
import math
from asyncio import _get_running_loop as get_running_loop
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast

from purgatory._core.checks import CheckQueue
from purgatory._core.listeners import Listener, Listeners
from purgatory._core.operation import AWAIT_FROM_THREADS, DelayedOperation, Failure, OperationBase, check_exception
from purgatory._core.owner import CHUNK, Owner, OwnerBase, compact_all
from purgatory._core.predicate import DelayedPredicate, check_predicate
from purgatory._core.states import ARRIVING, NEW, PENDING
from purgatory._core.statistics import PurgatoryStatistics
from purgatory._core.watchers import Entry, each_list, skip_dead
from purgatory._loop.arguments import check_callback, check_count, distinct_keys
from purgatory._loop.clock import Clock
from purgatory._loop.closing import Closing
from purgatory._loop.errors import PurgatoryClosed, PurgatoryFull, PurgatoryMisuse
from purgatory._loop.slices import ExitRequests
from purgatory._loop.threads import check_loop
from purgatory._timer import WheelTimer

T = TypeVar("T")
Operation = TypeVar("Operation", bound=OperationBase)


class PurgatoryBase:
    """The hot part of a purgatory: the hand-over of operations, and the check of a key."""

    def __init__(self, owner: OwnerBase) -> None:
        self._owner = owner

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable]) -> Operation:
        """Complete `operation` if its condition holds, else keep it until it does or its deadline comes.

        This call tries the operation. If that doesn't complete it, it is registered under each key and tried once more,
        and its timer starts. So no change is missed if you check one of the keys after the change, whenever that is.
        The timeout counts from this call.

        Args:
            operation: An operation that was not handed over before.
            keys: Hashable objects that name the state its condition depends on. Without any, it completes at once or
                has a deadline.

        Returns:
            The operation, which you may await.

        Raises:
            PurgatoryClosed: The purgatory takes no more operations.
            PurgatoryFull: `max_pending` operations are pending, and this one would have to wait.
            PurgatoryMisuse: The operation was handed over before, or this is another event loop or thread.
            TypeError: `operation` is not an operation, `keys` is not an iterable of keys, or a key is not hashable.
            ValueError: `keys` is empty, and the operation would have to wait without a deadline. It is cancelled.
        """
        owner = self._owner
        if owner.closed:
            self._refuse(None)
        if owner.live and (owner.loop is None or get_running_loop() is not owner.loop):
            owner.bind(self)
        distinct = distinct_keys(keys)
        listeners = owner.listeners
        now = 0.0 if listeners is None else owner.time()
        # Else it is not an operation, a class, or an instance without super().__init__(), or was handed over before.
        if getattr(operation, "_purgatory_state", None) is not NEW:
            self._refuse_new(operation)
        operation._purgatory_state = ARRIVING  # by the table's event "hand over"
        operation._purgatory_owner = owner
        try:
            if listeners is not None:
                listeners.arrive(operation, distinct, now)
            operation._purgatory_try()
            if operation._purgatory_state is ARRIVING:
                self._watch(operation, distinct, owner)
        except BaseException:
            try:
                if operation._purgatory_state.outcome is None:
                    operation.cancel()
            finally:
                if operation._purgatory_state.outcome is None:  # a signal's handler has raised before it had begun
                    operation.cancel()
            raise
        return operation

    def _watch(self, operation: "OperationBase", keys: tuple[Hashable, ...], owner: OwnerBase) -> None:
        """Let an operation wait that the first try has not completed."""
        deadline = operation._purgatory_timeout
        if deadline < math.inf:
            deadline += owner.time()
        if operation._purgatory_state is not ARRIVING:
            return
        if owner.closed or owner.num_delayed >= owner.max_pending or not (keys or deadline < math.inf):
            self._refuse(operation)
        entry, identity = Entry(operation, len(keys)), id(operation)
        if keys:
            owner.lists.watch(entry, keys)
        # No call in these stores.
        if not keys:
            owner._keyless[identity] = operation
        operation._purgatory_entry = entry
        operation._timer_deadline = deadline
        operation._purgatory_state = PENDING  # by the table's event "watch"
        owner.num_delayed += 1
        if owner.num_delayed > owner.peak_delayed:
            owner.peak_delayed = owner.num_delayed
        operation._purgatory_try()
        deadline = operation._timer_deadline  # it may have been rescheduled in the try
        if operation._purgatory_state is PENDING and operation._timer_bucket is None and deadline < math.inf:
            owner.timer._place(operation, deadline, is_new=True)
            if operation._purgatory_state is not PENDING:
                operation._timer_leave()  # the clock has completed it

    def check_and_complete(self, key: Hashable, limit: int | None = None) -> int:
        """Try the operations that watch `key`, in watch order.

        Call it after each change that may have made a condition true.

        Args:
            key: One of the keys that operations were handed over with.
            limit: The most operations to complete, first come, first served. The cost depends on how many are tried.
                `None` means no limit.

        Returns:
            How many of them completed.

        Raises:
            ValueError: `limit` is less than 1.
            TypeError: `limit` is not an `int`, or `key` is not hashable.
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        owner = self._owner
        check_loop(self, owner.loop, "check_and_complete(key)", "check_and_complete_threadsafe()")
        if limit is not None:
            check_count("limit", limit, 1)
        watchers = owner.lists.find(key)
        if watchers is None:
            return 0
        entries = watchers.entries
        end = len(entries)
        at, completed, exit_request = owner.try_each(
            entries, watchers.head, end, end if limit is None else limit, math.inf
        )
        if at == end or skip_dead(watchers, entries):
            owner.compact(watchers)
        if exit_request is None:
            return completed
        try:
            if at < end and (limit is None or completed < limit):
                with suppress(Exception):  # of the clock
                    self.check_and_complete_soon(key, None if limit is None else limit - completed)
            raise exit_request
        finally:
            del exit_request  # its traceback holds this frame

    if TYPE_CHECKING:  # what DelayedOperationPurgatory defines

        def check_and_complete_soon(self, key: Hashable, limit: int | None = None) -> None: ...
        def _refuse(self, operation: OperationBase | None) -> NoReturn: ...
        def _refuse_new(self, operation: object) -> NoReturn: ...


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import PurgatoryBase


class DelayedOperationPurgatory(PurgatoryBase, Closing):
    """Holds `DelayedOperation`s, each watched on one or more keys, until a condition or a deadline completes them.

        async with DelayedOperationPurgatory("fetch") as purgatory:
            # The short form: a predicate, its keys, a timeout.
            await purgatory.wait_for(lambda: log.end > offset, topic, timeout=30.0)

            # The full form: an operation of your own class, for a result, or to release what it has acquired.
            messages = await purgatory.try_complete_else_watch(Fetch(log, offset, timeout=30.0), [topic])

        log.append(message)                       # elsewhere: change the state first,
        purgatory.check_and_complete(topic)       # then check its key

    An operation is tried when it is handed over, when one of its keys is checked, and at its deadline. Nothing polls,
    so check a key after each change. If a check was missing and only the last try found that a condition held, the
    operation counts in `statistics().missed`. In asyncio's debug mode, the logger `purgatory` names it.

    A purgatory belongs to one event loop and its thread. Methods of operations, listeners and all other callbacks may
    call anything. From other threads, handlers of `signal.signal` and finalizers, call `check_and_complete_threadsafe`.
    Any other call from the wrong thread raises `PurgatoryMisuse`. Use a purgatory as an async context manager, or call
    `aclose` at the end.

    Deferred work (deadlines, `check_and_complete_soon` and `_threadsafe`, purges) runs in an empty context
    (`contextvars.Context()`), and never in the context of the request that caused it.
    """

    _owner: Owner

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
        """Make a purgatory.

        Args:
            name: The name in statistics and messages.
            tick: How exact deadlines are, in seconds.
            wheel_size: The number of buckets on each level of the timer.
            purge_interval: A purge starts when there are more dead entries in the watcher lists than this, and more
                than living ones.
            max_pending: At most this many operations may be pending. `None` means no limit.
            clock: The clock for deadlines. By default, the purgatory belongs to the event loop that runs when it is
                first used.

        Raises:
            ValueError: A value is out of range.
            TypeError: A value is of the wrong type.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {name!r}")
        check_count("purge_interval", purge_interval, 0)
        if max_pending is not None:
            check_count("max_pending", max_pending, 1)
        super().__init__(Owner(clock, tick, wheel_size, purge_interval, max_pending))
        self._name = name
        self._queue = CheckQueue(self._owner)

    def _purgatory_describe(self) -> str:
        return f"{self._name!r} num_delayed={self.num_delayed}{' closed' * self.closed}"

    async def __aenter__(self) -> Self:
        if self.closed:
            raise PurgatoryClosed(f"{self!r} is closed: make a new one")
        if self._owner.live:
            self._owner.bind(self)
        return self

    @property
    def name(self) -> str:
        """The name in statistics and messages."""
        return self._name

    @property
    def timer(self) -> WheelTimer:
        """The timer that runs the deadlines. A close forgets its tasks, so don't put your own on it."""
        return self._owner.timer

    @property
    def closed(self) -> bool:
        """Whether it accepts no more operations."""
        return self._owner.closed

    @property
    def num_delayed(self) -> int:
        """The exact number of pending operations."""
        return self._owner.num_delayed

    @property
    def watched(self) -> int:
        """The exact number of entries in the watcher lists, including the dead entries of finished operations."""
        return self._owner.lists.watched

    def watched_keys(self) -> list[Hashable]:
        """Return the keys that operations are watched on, each once.

        The keys of finished operations stay until a check or a purge removes their entries.
        """
        return self._owner.lists.keys()

    def each_watched_key(self) -> Iterator[Hashable]:
        """Yield the watched keys one at a time, in no order. Operations may come and go during the iteration.

        A key that is watched throughout is not missed. A key may be yielded twice.
        """
        for watchers in each_list(self._owner.lists):
            yield watchers.key

    def is_watched(self, key: Hashable) -> bool:
        """Return whether `key` is one of `watched_keys()`."""
        return self._owner.lists.find(key) is not None

    def watching(self, key: Hashable) -> list[DelayedOperation[Any]]:
        """Return the pending operations that watch `key`, in watch order."""
        watchers = self._owner.lists.find(key)
        entries = [] if watchers is None else watchers.entries
        operations = [entry.operation for entry in entries]
        return [cast("DelayedOperation[Any]", operation) for operation in operations if operation is not None]

    def statistics(self) -> PurgatoryStatistics:
        """Return the contents of the purgatory, and its counts so far."""
        owner = self._owner
        lists = owner.lists
        return PurgatoryStatistics(
            name=self._name,
            num_delayed=owner.num_delayed,
            watched=lists.watched,
            **owner.finished,
            missed=owner.missed,
            purges=owner.purges,
            purged=lists.purged,
            scanned=owner.scanned,
            peak_delayed=owner.peak_delayed,
            peak_watched=max(lists.peak, lists.watched),
            longest_slice=owner.timer.longest_slice,
        )

    def wait_for(
        self, predicate: Callable[[], T], *keys: Hashable, timeout: float | None = None
    ) -> DelayedOperation[T]:
        """Wait until `predicate()` is true, in the short form without a class.

        As with `threading.Condition.wait_for`, the result is the last value of the predicate: true if the condition
        held, and false if the deadline or a close came first. The predicate is called twice in this call, so that no
        change is missed. Then it is called whenever one of the keys is checked, and once at the deadline, but not at a
        close. If it raises, the exception comes out of `await`.

            if await purgatory.wait_for(lambda: len(messages) > offset, "topic-1", timeout=30.0):
                return messages[offset:]

            messages.append(message)                   # elsewhere
            purgatory.check_and_complete("topic-1")

        Args:
            predicate: A function without arguments that tells whether the condition holds. Keep it cheap.
            keys: Hashable objects that name the state the condition depends on, at least one. Pass each as an argument
                of its own. `check_and_complete(key)` checks them.
            timeout: Seconds to wait at most, counted from this call. `None` means no limit.

        Returns:
            An operation whose wait has begun. Don't forget to await it, because the operation itself is always true.

        Raises:
            TypeError: `predicate` is not callable or is `async`, a key is not hashable, `timeout` is not a number.
            ValueError: There are no keys, or `timeout` is negative, NaN or infinite.
            PurgatoryClosed: The purgatory accepts no more operations.
            PurgatoryFull: `max_pending` operations are pending, and this one would have to wait.
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
            RuntimeError: No event loop runs.
        """
        self.check_thread("purgatory.wait_for(predicate, *keys)", AWAIT_FROM_THREADS)
        check_predicate(predicate, keys, timeout)
        return self.try_complete_else_watch(DelayedPredicate(predicate, timeout), keys)

    def check_and_complete_soon(self, key: Hashable, limit: int | None = None) -> None:
        """Try the operations that watch `key` on the next iteration of the loop, in slices if there are many.

        Calls for the same key in one iteration make one pass, and their limits are added.

        Between two slices the state may change, and then the pass may complete an operation although others have waited
        longer. If operations compete for something and their order counts, use `check_and_complete`, which makes its
        pass in one go.

        Args:
            key: One of the keys that operations were handed over with.
            limit: The most operations to complete, first come, first served. `None` means no limit.

        Raises:
            ValueError: `limit` is less than 1.
            TypeError: `limit` is not an `int`, or `key` is not hashable.
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        self.check_thread("check_and_complete_soon(key)", "check_and_complete_threadsafe()")
        if limit is not None:
            check_count("limit", limit, 1)
        self._queue.request(key, limit)

    def check_and_complete_threadsafe(self, key: Hashable) -> None:
        """Do `check_and_complete_soon` from another thread, a signal handler or a finalizer.

        However many calls come, the loop wakes up once.

        Raises:
            TypeError: `key` is not hashable.
            PurgatoryMisuse: The purgatory runs on a clock that is not an event loop.
            RuntimeError: The event loop is closed, and the purgatory is not.
        """
        hash(key)
        # Without a loop no operation is pending, and one that comes later finds the condition true at its first try.
        loop = self._owner.loop_for_threads(self)
        if loop is not None:
            self._queue.mailbox.put(key, loop)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation[Any]]:
        """Cancel the operations that watch `key`, even if they watch other keys too. Return them, in watch order.

        Kafka's `cancelForKey` differs, because another key may still complete the operations.
        """
        self.check_thread("purgatory.cancel_for_key(key)")
        operations = self.watching(key)
        exits = ExitRequests()
        cancelled = []
        for operation in operations:
            with exits:
                if operation.cancel():
                    cancelled.append(operation)
        watchers = self._owner.lists.find(key)
        if watchers is not None:
            self._owner.compact(watchers)
        exits.raise_first()
        return cancelled

    def complete_all(self) -> int:
        """Complete every pending operation with the outcome *closed*. Return how many completed."""
        self.check_thread("purgatory.complete_all()")
        return self._end_all(methodcaller("_purgatory_close"))

    def cancel_all(self) -> int:
        """Cancel every pending operation. Return how many were cancelled."""
        self.check_thread("purgatory.cancel_all()")
        return self._end_all(methodcaller("cancel"))

    def fail_all(self, exception: Exception) -> int:
        """Fail every pending operation with the same exception.

        It is always raised with the traceback that it has now, however many tasks get it. If nobody retrieves it, it
        goes to the event loop's exception handler once. The method `fail` of the operations is not called, so release
        resources in `on_done`.

        Args:
            exception: An instance of `Exception`, as for `DelayedOperation.fail`. Make a new one for each call.

        Returns:
            How many operations failed.

        Raises:
            TypeError: `exception` is not such an instance.
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        self.check_thread("purgatory.fail_all(exception)")
        check_exception(exception)
        message = f"fail_all() of {self!r} failed its operations, and nobody retrieved the exception"
        # Without a loop there is no clock yet, and there are no operations.
        failure = Failure(exception, message, self._owner.timer._clock)
        failed = self._end_all(methodcaller("_purgatory_fail", failure))
        if not failed:
            failure.retrieved = True  # no operation has it
        return failed

    async def aclose(self) -> None:
        """Refuse new operations and complete the pending ones, in slices, so that no task is left waiting.

        Their outcome is *closed*. A second call does nothing.
        """
        self.check_thread("purgatory.aclose()", "asyncio.run_coroutine_threadsafe(purgatory.aclose(), loop)")
        owner = self._owner
        owner.closed = True
        exits = ExitRequests()
        steps = self._close_each(exits)
        try:
            is_closed = False
            while not is_closed:
                slice_ = owner.timer.new_slice()
                is_closed = slice_.take(steps)
                owner.timer.note_slice(slice_)
                if not is_closed:
                    await asyncio.sleep(0)
        finally:
            with exits:
                self.close()
            exits.raise_first()

    def close(self) -> None:
        """Do the same as `aclose`, but in one go, for code that cannot await."""
        self.check_thread("purgatory.close()")
        owner = self._owner
        owner.closed = True
        exits = ExitRequests()
        try:
            for _ in self._close_each(exits):
                pass
        finally:
            owner.timer._close()
            owner.stop_purging()
            self._queue.close()
        exits.raise_first()

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` once for each operation that is handed over from now on, when it finishes.

        Args:
            listener: A function that is called with a `FinishedOperation`. Keep it quick, because it runs in the middle
                of the call that completes an operation. Its exceptions go to the event loop's exception handler.

        Raises:
            TypeError: `listener` is not callable, or is `async`.
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        self.check_thread("purgatory.add_listener(listener)")
        check_callback("listener", listener)
        owner = self._owner
        if owner.listeners is None:
            owner.listeners = Listeners(self._name, owner.timer, listener)
        else:
            owner.listeners.all += (listener,)

    def remove_listener(self, listener: Listener) -> None:
        """Stop calling `listener`.

        Raises:
            ValueError: `listener` is not a listener of this purgatory.
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        self.check_thread("purgatory.remove_listener(listener)")
        listeners = self._owner.listeners
        if listeners is None or not listeners.remove(listener):
            raise ValueError(f"{listener!r} is not a listener of {self!r}")
        if not listeners.all:
            self._owner.listeners = None

    def check_thread(self, call: str, instead: str = "") -> None:
        """Refuse a call from the wrong thread, for classes that are built on a purgatory.

        Args:
            call: The call, as code, for example `values.set(key, value)`.
            instead: The right call for other threads, unless it is `call_soon_threadsafe` with this one.

        Raises:
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        check_loop(self, self._owner.loop, call, instead)

    def _refuse(self, operation: OperationBase | None) -> NoReturn:
        if operation is None:
            raise PurgatoryClosed(f"{self!r} takes no more operations: make a new purgatory")
        if self.closed:
            raise PurgatoryClosed(f"{self!r} was closed while {operation!r} was being tried")
        limit = self._owner.max_pending
        if self.num_delayed < limit:
            raise ValueError(
                f"{operation!r} needs a key or a timeout, because nothing else would end it: call "
                "try_complete_else_watch(operation, [key])"
            )
        raise PurgatoryFull(f"{self!r} already holds max_pending={limit} operations: hand over a new one later")

    def _refuse_new(self, operation: object) -> NoReturn:
        if isinstance(operation, type):
            raise TypeError(
                f"operation must be an operation, not the class {operation.__qualname__}: pass "
                f"{operation.__qualname__}(...)"
            )
        if hasattr(operation, "_purgatory_state_name"):
            raise PurgatoryMisuse(
                f"{operation!r} was already handed to a purgatory: create a new operation for each wait"
            )
        if isinstance(operation, OperationBase):
            raise TypeError(f"{type(operation).__qualname__}.__init__ must call super().__init__(timeout)")
        raise TypeError(f"operation must be a DelayedOperation, not {operation!r}")

    def _end_all(self, end: Callable[[OperationBase], bool]) -> int:
        """Call `end` with each pending operation. Return how many of them it has ended."""
        lists = self._owner.lists
        ended = 0
        exits = ExitRequests()
        for watchers in [lists.at(index) for index in range(len(lists))]:
            for entry in watchers.entries.copy():
                if entry.operation is not None:  # no variable, because a failing one's traceback keeps this frame
                    with exits:
                        ended += end(entry.operation)
        keyless = self._owner.keyless()
        while keyless:
            with exits:
                ended += end(keyless.pop())
        exits.raise_first()
        return ended

    def _close_each(self, exits: ExitRequests) -> Iterator[int]:
        """Complete each pending operation and empty the lists. After each step, yield how many entries it had."""
        owner = self._owner
        for watchers in each_list(owner.lists):
            passed = 0
            for entry in watchers.entries:
                passed += 1
                if entry.operation is not None:
                    with exits:
                        entry.operation._purgatory_close()
                elif passed < CHUNK:
                    continue
                yield passed
                passed = 0
        keyless = owner.keyless()
        while keyless:
            with exits:
                keyless.pop()._purgatory_close()
            yield 1
        yield from compact_all(owner)
