"""The base classes of operations and of their purgatory: what is called for every operation.

This is the reference. `purgatory._speedups` has the same classes in C, and they take the place of these where it could
be built, as with CPython's `random.Random` and `_random.Random`. The classes that users see inherit from the ones here
and add what is rare, in Python. They rely on the public methods and on these:

    Entry.operation, Watchers.key, .entries, .head
    WatcherLists: len, at, find, keys, compact, replace; watched, dead, peak, purged
    OwnerBase: all but at_deadline, depth, deferred, finish_deferred, try_all
    OperationBase._purgatory_owner           the owner, from the hand-over until it is done
    OperationBase._purgatory_timeout         the timeout it was made with, in seconds; infinity if there is none
    OperationBase._purgatory_outcome         the result, or the `Failure`
    OperationBase._purgatory_state_name      the state's name in the table of `states.py`
    OperationBase._purgatory_entry           its entry in watcher lists, once it has waited
    OperationBase._purgatory_close(), _purgatory_fail(failure)
    OperationBase._purgatory_add_waiter(waiter), _purgatory_remove_waiter(waiter), _purgatory_taken()
    PurgatoryBase._owner

They define these for the base to call:

    Owner.note_end(operation, is_missed), log_missed(operation), report_key(exception), bind(purgatory)
    DelayedOperation.result(), _purgatory_failure(exception), _purgatory_misuse(), _purgatory_report(exception, owner),
        _purgatory_new_waiter(), _purgatory_wake_failed(waiter, exception), _purgatory_leave_soon(waiter),
        _purgatory_undeliver()
    DelayedOperationPurgatory._refuse(operation), _refuse_new(operation), _check_limited(key, limit)

Change the state first, then call out: whatever an operation's method, a waiter, a listener or the clock calls finds
the structure whole. After a call out, what it may have changed is looked at once more.
"""

import math
from asyncio import AbstractEventLoop
from asyncio import _get_running_loop as get_running_loop
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

from purgatory._core.listeners import Listeners, Outcome
from purgatory._core.states import ARRIVING, EXPIRING, NEW, OUTCOMES, PENDING, State
from purgatory._loop.arguments import distinct_keys, seconds
from purgatory._loop.slices import ExitRequests
from purgatory._loop.threads import check_loop
from purgatory._timer import WheelTimer
from purgatory._timer._base import TimerEntry

__all__ = ["NESTING", "Entry", "OperationBase", "OwnerBase", "PurgatoryBase", "Waiter", "WatcherLists", "Watchers"]

Operation = TypeVar("Operation", bound="OperationBase")

NESTING: Final = 16
"""How deep operations end inside each other. The ends further in are made by the outermost, one after the other."""


class Waiter(Protocol):
    """What is told that an operation is done: a future, or any object with these methods of one."""

    def done(self) -> bool:
        """Return whether it needs to be told no more."""

    def set_result(self, result: None, /) -> None:
        """The operation is done: take its result in a later iteration of the loop."""

    def get_loop(self) -> AbstractEventLoop:
        """Return the event loop that it belongs to."""


class Entry:
    """An operation in watcher lists, shared by all that watch it."""

    __slots__ = ("lists", "operation")

    def __init__(self, operation: "OperationBase | None", lists: int) -> None:
        self.operation: OperationBase | None = operation
        """`None` if it is dead: the operation has finished."""
        self.lists: int = lists
        """How many lists it is in."""


class Watchers:
    """The watcher list of one key."""

    __slots__ = ("entries", "head", "index", "key")

    def __init__(self, key: Hashable, index: int) -> None:
        self.key: Hashable = key
        self.entries: list[Entry] = []
        """In watch order. Replaced as a whole, and never shortened."""
        self.head: int = 0
        """So many entries at the front are dead: a check with a limit begins behind them."""
        self.index: int = index
        """Its place among all lists."""


class WatcherLists:
    """The watcher lists of one purgatory by key, and the counts of their entries."""

    __slots__ = ("_by_key", "_lists", "dead", "peak", "purged", "watched")

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Watchers] = {}
        self._lists: list[Watchers] = []
        """The same lists in a row, for walks in slices: a dict cannot be walked while it changes."""
        self.watched: int = 0
        """Entries in all lists, dead ones included."""
        self.dead: int = 0
        """Entries of operations that have finished."""
        self.peak: int = 0
        """The most entries at a time, as of the last removal."""
        self.purged: int = 0
        """Dead entries removed so far."""

    def __len__(self) -> int:
        """How many keys have a list."""
        return len(self._lists)

    def at(self, index: int) -> Watchers:
        """Return the list at a place, from 0 on. Places change when lists are dropped."""
        return self._lists[index]

    def find(self, key: Hashable) -> Watchers | None:
        """Return the list of `key`, if it has one."""
        return self._by_key.get(key)

    def keys(self) -> list[Hashable]:
        """Return the keys that have a list."""
        return list(self._by_key)

    def watch(self, entry: Entry, keys: tuple[Hashable, ...]) -> None:
        """Put `entry` at the end of the lists of `keys`. If a key raises, nothing has changed."""
        found: list[Watchers] = []
        try:
            for key in keys:
                watchers = self._by_key.get(key)
                if watchers is None:
                    watchers = Watchers(key, len(self._lists))
                    self._by_key[key] = watchers
                    self._lists.append(watchers)
                found.append(watchers)
        except BaseException:
            for watchers in found:
                self._drop_if_empty(watchers)
            raise
        for watchers in found:
            watchers.entries.append(entry)
        self.watched += len(keys)

    def compact(self, watchers: Watchers) -> None:
        """Remove the dead entries of one list, in one go. A list without entries is dropped."""
        if not self.dead and watchers.entries:
            return
        alive = [entry for entry in watchers.entries if entry.operation is not None]
        if not alive or len(alive) < len(watchers.entries):
            self.replace(watchers, alive)

    def replace(self, watchers: Watchers, alive: list[Entry]) -> None:
        """Put `alive` in the place of the entries of a list, of which the others are dead."""
        removed = len(watchers.entries) - len(alive)
        if self.watched > self.peak:
            self.peak = self.watched
        self.watched -= removed
        self.dead -= removed
        self.purged += removed
        watchers.entries = alive
        watchers.head = 0
        self._drop_if_empty(watchers)

    def _drop_if_empty(self, watchers: Watchers) -> None:
        if watchers.entries or self._by_key.get(watchers.key) is not watchers:
            return  # it is in use, or was dropped before: its key may have another list by now
        del self._by_key[watchers.key]
        last = self._lists.pop()
        if last is not watchers:
            self._lists[watchers.index] = last
            last.index = watchers.index


class OwnerBase:
    """What the operations of a purgatory know of it: the timer, the loop that may call, the lists, the counts.

    It is an object of its own: a purgatory that the program has dropped is freed, and the deadlines in it run.
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
        """The clock's, which is asked in fewer steps once it is known."""
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
        """Satisfied operations whose condition only the last try found to hold."""
        self.at_deadline: OperationBase | None = None
        """The operation whose last try is under way."""
        self.depth: int = 0
        """How many operations are being ended, each inside the one before."""
        self.deferred: deque[OperationBase] = deque()
        """Operations whose end the outermost of these makes."""

    def is_purge_due(self) -> bool:
        """Return whether there are too many dead entries, unless a purge is under way."""
        lists = self.lists
        return lists.dead > self.purge_interval and 2 * lists.dead > lists.watched and not self.purging

    def try_each(self, entries: list[Entry], exits: ExitRequests) -> int:
        """Try the operations of `entries` that are alive. Returns how many of them completed.

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
                del operation  # the traceback of another one's exception would keep it, by this frame
        return completed

    def finish_deferred(self) -> None:
        """Make the ends that were put off, in their order."""
        exits = ExitRequests()
        while self.deferred:
            with exits:
                self.deferred.popleft()._purgatory_run(self)
        exits.raise_first()

    def try_all(self, watchers: Watchers) -> int:
        """Try the operations of a list in one go, and compact it. Returns how many of them completed.

        A request to exit is raised at the end.
        """
        exits = ExitRequests()
        completed = self.try_each(watchers.entries.copy(), exits)
        self.compact(watchers)
        if exits:
            exits.raise_first()
        return completed

    def compact(self, watchers: Watchers) -> None:
        """Remove the dead entries of a list. A key that cannot be looked up is reported."""
        try:
            self.lists.compact(watchers)
        except Exception as exception:
            self.report_key(exception)

    def note_end(self, operation: "OperationBase", is_missed: bool) -> None:
        """Call the listeners, and begin to remove dead entries if there are many. Raises requests to exit alone."""
        raise NotImplementedError

    def log_missed(self, operation: "OperationBase") -> None:
        """In debug mode, log an operation that its last try completes. Raises requests to exit alone."""
        raise NotImplementedError

    def report_key(self, exception: Exception) -> None:
        """Report a key that cannot be looked up."""
        raise NotImplementedError

    def bind(self, purgatory: object) -> None:
        """Belong to the running loop, if to none yet. Raises on another loop."""
        raise NotImplementedError


class OperationBase(TimerEntry):
    """An operation: its state, its place in a purgatory, its awaiting tasks."""

    __slots__ = (
        "_purgatory_entry",
        "_purgatory_outcome",
        "_purgatory_owner",
        "_purgatory_state",
        "_purgatory_timeout",
        "_purgatory_waiters",
    )

    _purgatory_outcome: Any

    def __init__(self, timeout: float | None) -> None:
        """Make an operation. A subclass with a constructor of its own calls `super().__init__(timeout)`.

        Args:
            timeout: Seconds to wait at most, counted from the hand-over to a purgatory. `None` means no limit.

        Raises:
            ValueError: `timeout` is negative, NaN or infinite.
            TypeError: `timeout` is not a number.
        """
        super().__init__()
        self._purgatory_timeout = math.inf if timeout is None else seconds("timeout", timeout, none=True)
        self._purgatory_state: State = NEW
        self._purgatory_owner: OwnerBase | None = None
        self._purgatory_entry: Entry | None = None
        """Set when the operation is watched, and kept."""
        self._purgatory_waiters: list[Waiter] | None = None
        """The futures of the tasks that await, and other waiters. `None` again when one of them has taken the result;
        an empty list if all have left while `on_complete` was running."""

    def try_complete(self) -> bool:
        raise NotImplementedError

    def on_complete(self) -> Any:
        raise NotImplementedError

    def on_expiration(self) -> None:
        raise NotImplementedError

    def on_done(self) -> None:
        """Release what the operation has acquired. Called exactly once, however the operation ends.

        If it completes, expires or is closed, that is after `on_complete` and `on_expiration`. It is called too if the
        operation fails or is cancelled; `outcome` says which. Awaiting tasks take the result afterwards, so don't
        release what the result hands over. An exception goes to the event loop's exception handler.

        Acquire in `try_complete`. An operation that a purgatory refuses before its first try has not ended: `cancel()`
        it if its constructor has acquired something.
        """

    @property
    def outcome(self) -> Outcome | None:
        """How it has ended, a `str`; in `on_complete`, how it is ending; `None` while it is pending.

        It is one of `completed_at_once` (by its first try), `satisfied` (later), `expired`, `closed` (by a close or
        `complete_all` of its purgatory), `cancelled` and `failed`.
        """
        return self._purgatory_state.outcome

    @property
    def _purgatory_state_name(self) -> str:
        return self._purgatory_state.name

    def done(self) -> bool:
        """Return whether the operation has its outcome: a result, an exception, or that it was cancelled."""
        return self._purgatory_state.is_done

    def expired(self) -> bool:
        """Return whether the deadline completed it; in `on_complete`, whether it is the deadline that does."""
        return self._purgatory_state.outcome == "expired"

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self._purgatory_state.outcome == "cancelled"

    def force_complete(self) -> bool:
        """Complete the operation whether its condition holds or not. Returns whether it was this call that did.

        Called more than 16 deep inside the `on_complete` of others, it returns before its own `on_complete` has run,
        which happens before the outermost of these calls returns.

        Raises:
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        owner = self._purgatory_owner
        if owner is not None:
            check_loop(self, owner.loop, "operation.force_complete()")
        if not self._purgatory_step("complete"):
            return False
        self._purgatory_finish()
        return True

    def cancel(self) -> bool:
        """Finish without a result and without `on_complete`. Returns whether the operation was pending.

        Tasks that await it get `OperationCancelled`. Called more than 16 deep inside the ends of others, it returns
        before `on_done` has run, as `force_complete` does.

        Raises:
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        owner = self._purgatory_owner
        if owner is not None:
            check_loop(self, owner.loop, "operation.cancel()")
        if not self._purgatory_step("cancel"):
            return False
        self._purgatory_finish()
        return True

    def _purgatory_fail(self, failure: object) -> bool:
        """Let the operation fail, with this outcome. Returns whether this call did: `False` if it has an outcome."""
        if not self._purgatory_step("fail"):
            return False
        self._purgatory_outcome = failure
        self._purgatory_finish()
        return True

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait until the operation is done, and return its result."""
        if not self._purgatory_state.is_done:
            waiter = self._purgatory_new_waiter()
            if self._purgatory_add_waiter(waiter):
                try:
                    yield from waiter
                except GeneratorExit:  # the coroutine is closed, by the collector perhaps, or in another thread
                    self._purgatory_leave_soon(waiter)
                    raise
                except BaseException:  # the task was cancelled
                    self._purgatory_remove_waiter(waiter)
                    raise
        self._purgatory_taken()
        try:
            return self.result()
        finally:
            del self  # the traceback of an exception holds this frame

    def _purgatory_step(self, event: str) -> bool:
        """Make the step of the table for `event`. Returns `False` if there is none.

        When an operation ceases to be pending it leaves the timer and the watcher lists at once: nothing of the
        purgatory's holds it after that. Its entry stays in the lists, dead.
        """
        before = self._purgatory_state
        after = before.steps.get(event)
        if after is None:
            return False
        self._purgatory_state = after
        if before is PENDING:
            self._timer_leave()
            owner, entry = self._purgatory_owner, self._purgatory_entry
            assert owner is not None
            assert entry is not None
            entry.operation = None
            owner.num_delayed -= 1
            owner.lists.dead += entry.lists
        return True

    def _purgatory_try(self) -> bool:
        """Call `try_complete`. Returns whether that has completed the operation. It fails if that raises."""
        owner = self._purgatory_owner
        try:
            if not self.try_complete():
                return False
            if self._purgatory_state.outcome is None:
                self._purgatory_misuse()
            return True
        except BaseException as exception:
            if self._purgatory_state.outcome is not None:
                self._purgatory_report(exception, owner)
                return False
            exits = ExitRequests()
            exits.keep(exception)
            with exits:
                self._purgatory_fail(self._purgatory_failure(exception))
            exits.raise_first()
            return False

    def _purgatory_finish(self) -> None:
        """Complete the operation or end it, for the winner of the compare-and-set, and then those that were put off."""
        owner = self._purgatory_owner
        if owner is None:  # it was never handed over
            self._purgatory_run(None)
        elif owner.depth >= NESTING:
            owner.deferred.append(self)
        else:
            owner.depth += 1
            try:
                self._purgatory_run(owner)
            except (SystemExit, KeyboardInterrupt):
                if owner.depth == 1:
                    with suppress(SystemExit, KeyboardInterrupt):  # the first one is raised
                        owner.finish_deferred()
                raise
            else:
                if owner.depth == 1 and owner.deferred:
                    owner.finish_deferred()
            finally:
                owner.depth -= 1

    def _purgatory_run(self, owner: OwnerBase | None) -> None:
        if self._purgatory_state.is_done:  # cancelled, or it has failed
            self._purgatory_end()
            return
        exits = ExitRequests()
        if owner is not None and owner.at_deadline is self and self._purgatory_state.outcome == "satisfied":
            with exits:
                owner.log_missed(self)
        is_expiring = self._purgatory_state is EXPIRING
        try:
            self._purgatory_outcome, event = self.on_complete(), "return"
        except BaseException as exception:
            self._purgatory_outcome, event = self._purgatory_failure(exception), "raise"
            exits.keep(exception)
        if is_expiring:
            try:
                self.on_expiration()
            except BaseException as exception:
                with exits:
                    self._purgatory_report(exception, owner)
        self._purgatory_step(event)
        try:
            self._purgatory_end()
        finally:
            if exits:
                exits.raise_first()

    def _purgatory_end(self) -> None:
        """Count the finished operation, call `on_done`, wake awaiting tasks, call listeners. Begin a purge if due."""
        owner, outcome = self._purgatory_owner, self._purgatory_state.outcome
        assert outcome is not None, "it is done"
        is_missed = False
        if owner is not None:
            self._purgatory_owner = None
            owner.finished[outcome] += 1
            is_missed = outcome == "satisfied" and owner.at_deadline is self
            owner.missed += is_missed
        waiters = self._purgatory_waiters
        has_on_done = type(self).on_done is not OperationBase.on_done
        if not has_on_done and waiters is None:
            if owner is not None:
                owner.note_end(self, is_missed)
            return
        exits = ExitRequests()
        if has_on_done:
            with exits:
                self._purgatory_call_on_done(owner)
        if waiters is not None:
            with exits:
                self._purgatory_wake(waiters, exits)
        if owner is not None:
            with exits:
                owner.note_end(self, is_missed)
        exits.raise_first()

    def _purgatory_call_on_done(self, owner: OwnerBase | None) -> None:
        try:
            self.on_done()
        except BaseException as exception:
            self._purgatory_report(exception, owner)

    def _purgatory_wake(self, waiters: list[Waiter], exits: ExitRequests) -> None:
        if not waiters and self._purgatory_waiters is not None:  # all have left while it was being completed
            self._purgatory_waiters = None
            self._purgatory_undeliver()
        for waiter in waiters.copy():
            try:
                if not waiter.done():
                    waiter.set_result(None)
            except BaseException as exception:
                if not exits.keep(exception):
                    self._purgatory_wake_failed(waiter, exception)

    def _purgatory_close(self) -> bool:
        """Complete the operation because its purgatory is closed, or completes all. Returns whether this call did."""
        if not self._purgatory_step("close"):
            return False
        self._purgatory_finish()
        return True

    def _timer_expire(self) -> None:
        """The deadline has come: try once more, and expire if that does not complete the operation."""
        owner, deadline = self._purgatory_owner, self._timer_deadline
        assert owner is not None, "it is pending"
        before, owner.at_deadline = owner.at_deadline, self
        try:
            self._purgatory_try()
        finally:
            owner.at_deadline = before
        is_rescheduled = self._timer_bucket is not None or self._timer_deadline != deadline
        if not is_rescheduled and self._purgatory_step("expire"):
            self._purgatory_finish()

    def _purgatory_add_waiter(self, waiter: Waiter) -> bool:
        """Let `waiter` be told when the operation is done. Returns whether it waits: `False` if it is done already."""
        if self._purgatory_state.is_done:
            return False
        if self._purgatory_waiters is None:
            self._purgatory_waiters = [waiter]
        else:
            self._purgatory_waiters.append(waiter)
        return True

    def _purgatory_remove_waiter(self, waiter: Waiter) -> None:
        """Let `waiter` leave, as a cancelled task does.

        The last one to leave cancels the operation, or leaves its result undelivered.
        """
        waiters = self._purgatory_waiters
        if waiters is None:
            return  # another one has taken the result
        waiters.remove(waiter)
        if waiters:
            return
        if self._purgatory_state.outcome is None:
            self._purgatory_waiters = None
            self.cancel()  # which a subclass may extend
        elif self._purgatory_state.is_done:
            self._purgatory_waiters = None
            self._purgatory_undeliver()
        # Else it is being completed, and finds the empty list at its end.

    def _purgatory_taken(self) -> None:
        """Note that the result is delivered, even if the other waiters leave."""
        if self._purgatory_owner is None:  # else they have not been told yet
            self._purgatory_waiters = None

    def result(self) -> Any:
        raise NotImplementedError

    def _purgatory_failure(self, exception: BaseException) -> object:
        """Return the outcome of an operation that fails with `exception`."""
        raise NotImplementedError

    def _purgatory_misuse(self) -> NoReturn:
        """Raise, because `try_complete` claims to have completed the operation, and has not."""
        raise NotImplementedError

    def _purgatory_report(self, exception: BaseException, owner: OwnerBase | None) -> None:
        """Report `exception`, because the operation has its outcome without it. A request to exit is raised."""
        raise NotImplementedError

    def _purgatory_wake_failed(self, waiter: Waiter, exception: BaseException) -> None:
        """Report `exception` of a waiter, unless its loop is closed: no task of that will run."""
        raise NotImplementedError

    def _purgatory_new_waiter(self) -> Any:
        """Return a future that may wait. Raises if nothing would ever complete the operation, or on another loop."""
        raise NotImplementedError

    def _purgatory_leave_soon(self, waiter: Any) -> None:
        """Let a waiter leave on the next iteration of its loop."""
        raise NotImplementedError

    def _purgatory_undeliver(self) -> None:
        """Call `on_undelivered`, if there is a result."""
        raise NotImplementedError


class PurgatoryBase:
    """A purgatory: the hand-over of operations, and the check of a key."""

    __slots__ = ("_owner",)

    def __init__(self, owner: OwnerBase) -> None:
        self._owner = owner

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable]) -> Operation:
        """Complete `operation` if its condition holds, else keep it until it does or its deadline comes.

        Tries it, watches it on every key, tries it again and starts its timer, all in this call: if the condition
        becomes true and one of the keys is checked after that, at any moment, it is not missed. The timeout counts
        from this call.

        Args:
            operation: An operation that was not handed over before.
            keys: Hashable objects that name the state its condition is about, at least one.

        Returns:
            The operation, to be awaited or not.

        Raises:
            PurgatoryClosed: The purgatory takes no more operations.
            PurgatoryFull: `max_pending` operations are pending, and this one would have to wait.
            PurgatoryMisuse: The operation was handed over before, or this is another event loop or thread.
            TypeError: `operation` is no operation, `keys` is no iterable of keys or a key is not hashable.
            ValueError: There are no keys.
        """
        owner = self._owner
        if owner.closed:
            self._refuse(None)
        if owner.live and (owner.loop is None or get_running_loop() is not owner.loop):
            owner.bind(self)
        distinct = distinct_keys(keys)
        listeners = owner.listeners
        now = 0.0 if listeners is None else owner.time()
        try:
            is_new = operation._purgatory_step("hand over")
        except (AttributeError, TypeError):  # no operation, a class, or one whose constructor was not called
            is_new = False
        if not is_new:
            self._refuse_new(operation)
        operation._purgatory_owner = owner
        if listeners is not None:
            listeners.arrive(operation, distinct, now)
        operation._purgatory_try()
        if operation._purgatory_state is ARRIVING:
            try:
                self._watch(operation, distinct, owner)
            except BaseException:
                operation.cancel()
                raise
        return operation

    def _watch(self, operation: "OperationBase", keys: tuple[Hashable, ...], owner: OwnerBase) -> None:
        """Let the operation, which the first try has not completed, wait."""
        deadline = owner.time() + operation._purgatory_timeout
        if operation._purgatory_state is not ARRIVING:
            return
        if owner.closed or owner.num_delayed >= owner.max_pending:
            self._refuse(operation)
        operation._purgatory_entry = entry = Entry(operation, len(keys))
        owner.lists.watch(entry, keys)
        operation._timer_deadline = deadline
        owner.num_delayed += 1
        if owner.num_delayed > owner.peak_delayed:
            owner.peak_delayed = owner.num_delayed
        operation._purgatory_step("watch")
        operation._purgatory_try()
        deadline = operation._timer_deadline  # it may have been rescheduled in the try
        if operation._purgatory_state is PENDING and operation._timer_bucket is None and deadline < math.inf:
            owner.timer._place(operation, deadline, is_new=True)
            if operation._purgatory_state is not PENDING:
                operation._timer_leave()  # the clock has completed it

    def check_and_complete(self, key: Hashable, limit: int | None = None) -> int:
        """Try the operations that watch `key`, in watch order. Returns how many of them completed.

        Call it after whatever may have made a condition true.

        Args:
            key: One of the keys that operations were handed over with.
            limit: Complete at most this many, first come first served. The cost depends on how many are tried. `None`
                means no limit.

        Raises:
            ValueError: `limit` is less than 1.
            TypeError: `limit` is not an `int`, or `key` is not hashable.
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        owner = self._owner
        check_loop(self, owner.loop, "check_and_complete(key)", "check_and_complete_threadsafe()")
        if limit is not None:
            return self._check_limited(key, limit)
        watchers = owner.lists.find(key)
        return 0 if watchers is None else owner.try_all(watchers)

    def _refuse(self, operation: "OperationBase | None") -> NoReturn:
        """Raise, because the purgatory is closed, or full."""
        raise NotImplementedError

    def _refuse_new(self, operation: object) -> NoReturn:
        """Raise, because this is no operation, or one that was handed over before."""
        raise NotImplementedError

    def _check_limited(self, key: Hashable, limit: int) -> int:
        """Do `check_and_complete` with a limit."""
        raise NotImplementedError


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import Entry, OperationBase, OwnerBase, PurgatoryBase, WatcherLists, Watchers
