"""The base classes of operations and of their purgatory: the code that runs for every operation.

This is the reference. `purgatory._speedups` contains the same classes in C, which replace these if it was built, as
with CPython's `random.Random` and `_random.Random`. The classes that users see inherit from these and add the methods
that are called seldom, in Python. They rely on the public methods and on these:

    Entry.operation, Watchers.key, .entries, .head
    WatcherLists: len, at, find, keys, compact, replace; watched, dead, peak, purged
    OwnerBase: all but at_deadline, depth, deferred, finish_deferred, try_all
    OperationBase._purgatory_owner           the owner, from the hand-over until it is done
    OperationBase._purgatory_timeout         the timeout it was made with, in seconds, or infinity
    OperationBase._purgatory_outcome         the result, or the `Failure`
    OperationBase._purgatory_state_name      the state's name in the table of `states.py`
    OperationBase._purgatory_entry           its entry in watcher lists, once it has waited
    OperationBase._purgatory_close(), _purgatory_fail(failure)
    OperationBase._purgatory_add_waiter(waiter), _purgatory_remove_waiter(waiter), _purgatory_taken()
    PurgatoryBase._owner

They define these methods, which the base calls:

    Owner.note_end(operation, is_missed), log_missed(operation), report_key(exception), bind(purgatory)
    DelayedOperation.result(), _purgatory_failure(exception), _purgatory_misuse(), _purgatory_report(exception, owner),
        _purgatory_new_waiter(), _purgatory_wake_failed(waiter, exception), _purgatory_leave_soon(waiter),
        _purgatory_undeliver()
    DelayedOperationPurgatory._refuse(operation), _refuse_new(operation), _check_limited(key, limit)

Change the state first, then call out: so a method of an operation, a waiter, a listener or the clock finds the
structure whole, whatever it calls. After a call out, the code looks again at everything that may have changed.
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
"""How deep operations may end inside each other. The outermost end makes all deeper ones, one after the other."""


class Waiter(Protocol):
    """An object that is notified when an operation is done: a future, or any object with these methods of a future.

    For example:

        waiter = asyncio.get_running_loop().create_future()
        if add_waiter(operation, waiter):
            await waiter
    """

    def done(self) -> bool:
        """Return whether it no longer needs a notification."""

    def set_result(self, result: None, /) -> None:
        """Take note that the operation is done. Fetch its result in a later iteration of the loop."""

    def get_loop(self) -> AbstractEventLoop:
        """Return the event loop that it belongs to."""


class Entry:
    """An operation in watcher lists, shared by all lists that watch it."""

    __slots__ = ("lists", "operation")

    def __init__(self, operation: "OperationBase | None", lists: int) -> None:
        self.operation: OperationBase | None = operation
        """`None` if the entry is dead, because the operation has finished."""
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
        """The number of dead entries at the front, which a check with a limit skips."""
        self.index: int = index
        """Its place among all lists."""


class WatcherLists:
    """The watcher lists of one purgatory by key, and the counts of their entries."""

    __slots__ = ("_by_key", "_lists", "dead", "peak", "purged", "watched")

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Watchers] = {}
        self._lists: list[Watchers] = []
        """The same lists in a row, for walks in slices, because a dict must not change during an iteration."""
        self.watched: int = 0
        """Entries in all lists, including dead ones."""
        self.dead: int = 0
        """Entries of operations that have finished."""
        self.peak: int = 0
        """The largest number of entries at a time, as of the last removal."""
        self.purged: int = 0
        """Dead entries removed so far."""

    def __len__(self) -> int:
        """Return how many keys have a list."""
        return len(self._lists)

    def at(self, index: int) -> Watchers:
        """Return the list at an index. Indexes change when lists are dropped."""
        return self._lists[index]

    def find(self, key: Hashable) -> Watchers | None:
        """Return the list of `key`, if it has one."""
        return self._by_key.get(key)

    def keys(self) -> list[Hashable]:
        """Return the keys that have a list."""
        return list(self._by_key)

    def watch(self, entry: Entry, keys: tuple[Hashable, ...]) -> None:
        """Append `entry` to the lists of `keys`. If a key raises, nothing has changed."""
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
        """Replace the entries of a list with those that are alive."""
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
        """Make an operation. If a subclass defines its own constructor, it must call `super().__init__(timeout)`.

        Args:
            timeout: Seconds to wait at most, from when the operation is handed to a purgatory. `None` means no
                deadline.

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
        """The futures of the awaiting tasks, and other waiters. `None` again after one of them has taken the result. An
        empty list if all have left while `on_complete` was running."""

    def try_complete(self) -> bool:
        raise NotImplementedError

    def on_complete(self) -> Any:
        raise NotImplementedError

    def on_expiration(self) -> None:
        raise NotImplementedError

    def on_done(self) -> None:
        """Release whatever the operation has acquired. Called exactly once, however the operation ends.

        It is called after `on_complete` and `on_expiration`, and also if the operation fails or is cancelled. `outcome`
        tells which. Awaiting tasks receive the result later, so don't release anything that the result contains. An
        exception goes to the event loop's exception handler.

        Acquire in `try_complete`. If a purgatory refuses an operation before its first try, the operation has not
        ended, so call `cancel()` if its constructor has acquired something.
        """

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, which is already set in `on_complete`, or `None` while the operation is pending.

        It is one of the strings `completed_at_once` (by its first try), `satisfied` (later), `expired`, `closed` (its
        purgatory was closed, or completed all), `cancelled` and `failed`.
        """
        return self._purgatory_state.outcome

    @property
    def _purgatory_state_name(self) -> str:
        return self._purgatory_state.name

    def done(self) -> bool:
        """Return whether the operation has a result or an exception, or was cancelled."""
        return self._purgatory_state.is_done

    def expired(self) -> bool:
        """Return whether the deadline completed the operation. It is true in `on_complete` already."""
        return self._purgatory_state.outcome == "expired"

    def cancelled(self) -> bool:
        """Return whether the operation was cancelled."""
        return self._purgatory_state.outcome == "cancelled"

    def force_complete(self) -> bool:
        """Complete the operation, whether its condition holds or not.

        If completions nest more than 16 deep, `on_complete` is deferred: it runs before the outermost call returns.

        Returns:
            Whether this call completed the operation. It is `False` if the operation was done or being completed.

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
        """End the operation without a result and without `on_complete`. Awaiting tasks get `OperationCancelled`.

        If ends nest more than 16 deep, `on_done` is deferred: it runs before the outermost call returns.

        Returns:
            Whether this call cancelled the operation. It is `False` if the operation was done or being completed.

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
        """Let the operation fail with `failure`. Return `False` if it has an outcome already."""
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
                except GeneratorExit:  # the coroutine is closed, perhaps by the collector or in another thread
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
        """Make the step of the table for `event`. Return `False` if there is none.

        An operation that is no longer pending leaves the timer and the watcher lists at once, so that the purgatory no
        longer holds it. Its entry stays in the lists, dead.
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
        """Call `try_complete`, and let the operation fail if it raises. Return whether it completed the operation."""
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
        """Complete or end the operation, for the winner of the compare-and-set, and then the deferred ones."""
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
        """Complete the operation because its purgatory is closed or completes all. Return whether this call did."""
        if not self._purgatory_step("close"):
            return False
        self._purgatory_finish()
        return True

    def _timer_expire(self) -> None:
        """Try once more at the deadline, and expire if that does not complete the operation."""
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
        """Notify `waiter` when the operation is done. Return `False` if the operation is done already."""
        if self._purgatory_state.is_done:
            return False
        if self._purgatory_waiters is None:
            self._purgatory_waiters = [waiter]
        else:
            self._purgatory_waiters.append(waiter)
        return True

    def _purgatory_remove_waiter(self, waiter: Waiter) -> None:
        """Remove a waiter, as when its task is cancelled.

        The last one that is removed cancels the operation, or leaves its result undelivered.
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
        """Note that the result was delivered, even if the other waiters leave."""
        if self._purgatory_owner is None:  # otherwise they have not been notified yet
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
        """Report `exception`, because the operation already has an outcome. Raise it if it is a request to exit."""
        raise NotImplementedError

    def _purgatory_wake_failed(self, waiter: Waiter, exception: BaseException) -> None:
        """Report `exception` of a waiter, unless its loop is closed and so none of its tasks will run."""
        raise NotImplementedError

    def _purgatory_new_waiter(self) -> Any:
        """Return a new future. Raise if nothing would ever complete the operation, or if it is the wrong loop."""
        raise NotImplementedError

    def _purgatory_leave_soon(self, waiter: Any) -> None:
        """Remove a waiter on the next iteration of its loop."""
        raise NotImplementedError

    def _purgatory_undeliver(self) -> None:
        """Call `on_undelivered`, if there is a result."""
        raise NotImplementedError


class PurgatoryBase:
    """The hot part of a purgatory: the hand-over of operations, and the check of a key."""

    __slots__ = ("_owner",)

    def __init__(self, owner: OwnerBase) -> None:
        self._owner = owner

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable]) -> Operation:
        """Complete `operation` if its condition holds, else keep it until it does or its deadline comes.

        This call tries the operation. If that doesn't complete it, it is registered under each key and tried once more,
        and its timer starts. So no change is missed if you check one of the keys after the change, whenever that is.
        The timeout counts from this call.

        Args:
            operation: An operation that was not handed over before.
            keys: Hashable objects that name the state its condition depends on, at least one.

        Returns:
            The operation, which you may await.

        Raises:
            PurgatoryClosed: The purgatory takes no more operations.
            PurgatoryFull: `max_pending` operations are pending, and this one would have to wait.
            PurgatoryMisuse: The operation was handed over before, or this is another event loop or thread.
            TypeError: `operation` is not an operation, `keys` is not an iterable of keys, or a key is not hashable.
            ValueError: `keys` is empty.
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
        except (AttributeError, TypeError):  # not an operation, a class, or an instance without super().__init__()
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
        """Let an operation wait that the first try has not completed."""
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
            return self._check_limited(key, limit)
        watchers = owner.lists.find(key)
        return 0 if watchers is None else owner.try_all(watchers)

    def _refuse(self, operation: "OperationBase | None") -> NoReturn:
        """Raise, because the purgatory is closed or full."""
        raise NotImplementedError

    def _refuse_new(self, operation: object) -> NoReturn:
        """Raise, because this is not an operation, or was handed over before."""
        raise NotImplementedError

    def _check_limited(self, key: Hashable, limit: int) -> int:
        """Do `check_and_complete` with a limit."""
        raise NotImplementedError


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import Entry, OperationBase, OwnerBase, PurgatoryBase, WatcherLists, Watchers
