"""Delayed operations: pending in a purgatory until their condition or their deadline completes them.

This table is the whole life of an operation. The steps out of PENDING are a compare-and-set: of all calls that try, in
any order and from inside each other, one wins. `force_complete` makes the first one, `_purgatory_claim` the others. The
winner runs `on_complete` (`_purgatory_run`), which makes the last step too; `_purgatory_fail` makes the step to FAILED.

    from         to           made by                                                  outcome
    PENDING      COMPLETING   force_complete                                           satisfied, completed_at_once
    PENDING      CLOSING      complete_all, close and aclose of the purgatory          closed
    PENDING      EXPIRING     the timer, where a last try does not complete it         expired
    PENDING      FAILING      an exception of try_complete                             failed
    PENDING      CANCELLED    cancel; the last awaiting task that leaves               cancelled
    COMPLETING   COMPLETED    on_complete has returned                                 as before
    CLOSING      CLOSED       on_complete has returned                                 as before
    EXPIRING     EXPIRED      on_complete has returned, and on_expiration was called   as before
    these three  FAILED       an exception of on_complete                              failed
    FAILING      FAILED       the exception is kept for the awaiting tasks             failed

Names of the internals begin with `_purgatory_`, or `_timer_` for the timer's: all other names are a subclass's own.
"""

import asyncio
import math
from abc import abstractmethod
from asyncio import _get_running_loop
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar, cast, overload

from purgatory._core.arguments import is_async, seconds
from purgatory._core.clock import VirtualClock, report
from purgatory._core.errors import OperationCancelled, PurgatoryError, PurgatoryMisuse
from purgatory._core.failures import Failure, clear_frames, own_frames
from purgatory._core.listeners import Outcome
from purgatory._core.owner import NESTING, Owned, Owner
from purgatory._core.slices import call_next
from purgatory._core.threads import running_loop
from purgatory._core.watchers import Entry
from purgatory._speedups import compiled, provide, python_of
from purgatory._timer.entry import TimerEntry

__all__ = ["PENDING", "DelayedOperation"]

T = TypeVar("T")


class Waiter(Protocol):
    """An object that is told that an operation is done: a future, or a parked request."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...
    def get_loop(self) -> asyncio.AbstractEventLoop: ...


class _State:
    """A state of the table. Not an `enum.Enum`, whose members take a call to be hashed."""

    __slots__ = ("after", "name", "outcome")

    def __init__(self, name: str, outcome: Outcome | None = None, after: "_State | None" = None) -> None:
        self.name: str = name
        self.outcome: Outcome | None = outcome
        """The outcome, if it is the same for all operations in this state."""
        self.after: _State | None = after
        """The state that follows, while the operation is being finished; `None` if it is done or pending."""


PENDING: Final = _State("pending")
_COMPLETED: Final = _State("completed")
_CLOSED: Final = _State("closed", "closed")
_EXPIRED: Final = _State("expired", "expired")
_CANCELLED: Final = _State("cancelled", "cancelled")
_FAILED: Final = _State("failed", "failed")
_COMPLETING: Final = _State("completing", None, _COMPLETED)
_CLOSING: Final = _State("closing", "closed", _CLOSED)
_EXPIRING: Final = _State("expiring", "expired", _EXPIRED)
_FAILING: Final = _State("failing", "failed", _FAILED)

_NEVER: Final = math.inf


provide(
    states=(
        PENDING,
        _COMPLETED,
        _CLOSED,
        _EXPIRED,
        _CANCELLED,
        _FAILED,
        _COMPLETING,
        _CLOSING,
        _EXPIRING,
        _FAILING,
    ),
    seconds=partial(seconds, none=True),
)


@compiled("Operation")
class DelayedOperation(TimerEntry, Generic[T]):
    """Something that completes when its condition holds or when its deadline comes, exactly once, whichever is first.

    A subclass defines the condition (`try_complete`) and the result (`on_complete`) in plain methods: defining them
    `async` raises `TypeError`. Hand it to `DelayedOperationPurgatory.try_complete_else_watch`, then `await` it, or do
    not. It serves once.

    Several tasks may await the same operation. A task that is cancelled leaves alone; the last one to leave cancels the
    operation.

    An exception of its methods makes the operation fail: it comes out of `await`, or goes to the event loop's exception
    handler if the operation is collected and the exception was never retrieved, as on `asyncio.Future`.
    """

    __slots__ = (
        "_purgatory_entry",
        "_purgatory_keys",
        "_purgatory_outcome",
        "_purgatory_owner",
        "_purgatory_state",
        "_purgatory_waiters",
    )

    _purgatory_outcome: T | Failure
    """The result of `on_complete`, or the failure: set when there is one, and not before."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super(DelayedOperation, cls).__init_subclass__(**kwargs)  # noqa: UP008 - not the class of this body
        for name in ("try_complete", "on_complete", "on_expiration", "on_undelivered"):
            if is_async(getattr(cls, name)):
                raise TypeError(f"{cls.__qualname__}.{name} must not be async, as its result is not awaited")

    def __init__(self, timeout: float | None) -> None:
        """Wait for `timeout` seconds from the time at which the purgatory takes the operation; `None` is for ever.

        Raises `ValueError` if `timeout` is negative, NaN or infinite, `TypeError` if it is not a number.
        """
        # A float in range, the usual case, is let through without a call.
        if timeout is None:
            timeout = _NEVER
        elif not (type(timeout) is float and 0.0 <= timeout < _NEVER):
            timeout = seconds("timeout", timeout, none=True)
        self._timer_bucket = None
        self._timer_deadline = timeout
        """The timeout, until the operation is watched; then the deadline."""
        self._purgatory_state = PENDING
        self._purgatory_owner: Owner | None = None
        """Set from the moment the operation is handed to a purgatory until it is done."""
        self._purgatory_entry: Entry[Owned] | None = None
        """Set when the operation is watched, and kept."""
        self._purgatory_keys = 0
        """How many watcher lists have the entry."""
        self._purgatory_waiters: list[Waiter] | None = None
        """The futures of the tasks that await, and parked requests. `None` again when one of them has taken the result;
        an empty list if all have left while `on_complete` was running."""

    def __repr__(self) -> str:
        state = self._purgatory_state.name
        if self._purgatory_state is PENDING:
            name = "deadline" if self._purgatory_entry is not None else "unwatched timeout"
            state += f" {name}={self._timer_deadline if self._timer_deadline < _NEVER else None!r}"
        return f"<{type(self).__qualname__} {state}>"

    @abstractmethod
    def try_complete(self) -> bool:
        """If the condition holds, return `self.force_complete()`, else `False`. To be cheap: it is called often.

        At the deadline it is called a last time: if it completes the operation, that has not expired.
        """

    @abstractmethod
    def on_complete(self) -> T:
        """Called exactly once, whatever completes the operation. Returns its result, which `await` yields.

        The condition may not hold: `outcome` tells whether it is the deadline or a close that completes it.
        """

    def on_expiration(self) -> None:
        """Called after `on_complete` when it was the deadline that completed the operation.

        An exception goes to the event loop's exception handler; the result stays.
        """

    def on_undelivered(self, result: T) -> None:
        """Called when every awaiting task was cancelled before it could take `result`: to put a job back, for one.

        It is not called if no task has ever awaited the operation.
        """

    @property
    def outcome(self) -> Outcome | None:
        """How it has finished; in `on_complete`, how it is finishing; `None` while it is pending."""
        state = self._purgatory_state
        if state is _COMPLETING or state is _COMPLETED:
            return "completed_at_once" if self._purgatory_entry is None else "satisfied"
        return state.outcome

    def force_complete(self) -> bool:
        """Complete the operation whether its condition holds or not. Returns whether it was this call that did.

        Called more than 16 deep inside the `on_complete` of others, it returns before its own `on_complete` has run:
        that runs before the outermost of these calls returns.
        """
        owner = self._purgatory_owner
        if owner is not None and owner.thread is not None:
            owner.check_thread("operation.force_complete()")
        number = id(self)
        # As _purgatory_claim(_COMPLETING), without its call, which is 3 % of an operation. No call from here.
        if self._purgatory_state is not PENDING:
            return False
        self._purgatory_state = _COMPLETING
        bucket = self._timer_bucket
        if bucket is not None:
            self._timer_bucket = None
            del bucket[number]
        entry = self._purgatory_entry
        if entry is not None and owner is not None:
            del entry[0]
            owner.num_delayed -= 1
            owner.lists.dead += self._purgatory_keys
        # To here.
        self._purgatory_run()
        return True

    def cancel(self) -> bool:
        """Finish without a result and without `on_complete`. Returns whether the operation was pending.

        Tasks that await it get `OperationCancelled`.
        """
        owner = self._purgatory_owner
        if owner is not None and owner.thread is not None:
            owner.check_thread("operation.cancel()")
        if not self._purgatory_claim(_CANCELLED):
            return False
        # No call from here: counted, and of no purgatory any more.
        owner, self._purgatory_owner = self._purgatory_owner, None
        if owner is not None:
            owner.cancelled += 1
        # To here.
        self._purgatory_announce(owner)
        return True

    def reschedule(self, timeout: float | None) -> None:
        """Move the deadline to `timeout` seconds from now, earlier or later; `None` is never.

        Raises `ValueError` or `TypeError` as the constructor, `PurgatoryMisuse` unless it waits in a purgatory.
        """
        # As in __init__, without a call: a fifth of a reschedule.
        if timeout is not None and not (type(timeout) is float and 0.0 <= timeout < _NEVER):
            timeout = seconds("timeout", timeout, none=True)
        owner = self._purgatory_owner
        if owner is not None and owner.thread is not None:
            owner.check_thread("operation.reschedule(timeout)")
        if self._purgatory_state is not PENDING or owner is None or self._purgatory_entry is None:
            raise PurgatoryMisuse(f"only an operation that waits in a purgatory is rescheduled, not {self!r}")
        timer = owner.timer
        timer.reschedule(self, _NEVER if timeout is None else owner.time() + timeout)
        if owner.listeners is not None:
            owner.listeners.reschedule(self, timeout)
        if self._purgatory_state is not PENDING:  # finished meanwhile, by a finalizer for one
            timer.cancel(self)

    def done(self) -> bool:
        """Whether the operation has its outcome: a result, an exception, or that it was cancelled."""
        state = self._purgatory_state
        return state is not PENDING and state.after is None

    def expired(self) -> bool:
        """Whether the deadline completed it; in `on_complete`, whether it is the deadline that does."""
        return self._purgatory_state is _EXPIRING or self._purgatory_state is _EXPIRED

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._purgatory_state is _CANCELLED

    def result(self) -> T:
        """The result of `on_complete`. Raises the exception that made the operation fail, `OperationCancelled` if it
        was cancelled, and `asyncio.InvalidStateError` if it is not done.
        """
        try:
            exception = self.exception()
            if exception is None:
                return cast(T, self._purgatory_outcome)
            raise exception
        finally:
            # The traceback holds this frame: it must not hold the operation, nor the exception itself.
            exception = None
            del self

    def exception(self) -> BaseException | None:
        """The exception that made the operation fail, or `None`. Raises `OperationCancelled` if it was cancelled, and
        `asyncio.InvalidStateError` if it is not done.
        """
        try:
            state = self._purgatory_state
            if state is _FAILED:
                failure = cast(Failure, self._purgatory_outcome)
                failure.retrieved = True
                return failure.exception
            if state is _CANCELLED:
                raise OperationCancelled(f"{type(self).__qualname__} was cancelled")
            if not self.done():
                raise asyncio.InvalidStateError(f"{self!r} is not done")
            return None
        finally:
            del self

    def __await__(self) -> Generator[Any, None, T]:
        try:
            state = self._purgatory_state
            if state is PENDING or state.after is not None:
                waiter = self._purgatory_add_waiter()
                if waiter is not None:
                    try:
                        yield from waiter
                    except BaseException:  # the awaiting task was cancelled, or its coroutine closed
                        self._purgatory_remove_waiter(waiter)
                        raise
                state = self._purgatory_state
            self._purgatory_waiters = None  # taken: it is delivered, even if the others leave
            if state is _COMPLETED or state is _EXPIRED:
                return cast(T, self._purgatory_outcome)
            return self.result()
        finally:
            del self

    def _purgatory_claim(self, state: _State, now: float = _NEVER) -> bool:
        """Step from PENDING to `state`, unless the deadline is later than `now`. Returns whether it did.

        The operation leaves the timer and the watcher lists at once: nothing of the purgatory's holds it after that.
        Its entries stay in the lists, dead.
        """
        number = id(self)
        # No call from here, so that a finalizer finds the operation pending and held, or neither.
        if self._purgatory_state is not PENDING or self._timer_deadline > now:
            return False
        self._purgatory_state = state
        bucket = self._timer_bucket
        if bucket is not None:
            self._timer_bucket = None
            del bucket[number]
        entry = self._purgatory_entry
        owner = self._purgatory_owner
        if entry is not None and owner is not None:
            del entry[0]
            owner.num_delayed -= 1
            owner.lists.dead += self._purgatory_keys
        return True

    def _purgatory_run(self) -> None:
        """Run `on_complete`, for the winner of the compare-and-set, and then the completions that were put off."""
        state = self._purgatory_state
        owner = self._purgatory_owner
        depth = 0
        if owner is not None:
            depth = owner.depth
            if depth >= NESTING:
                owner.deferred.append(self)
                return
            owner.depth = depth + 1
        try:
            try:
                self._purgatory_outcome = self.on_complete()
            except BaseException as exception:
                self._purgatory_fail(exception, owner)
            finally:
                if state is _EXPIRING:
                    try:
                        self.on_expiration()
                    except BaseException as exception:
                        self._purgatory_report(exception, owner)
        finally:
            try:
                # No call from here: done and counted, or neither.
                after = self._purgatory_state.after
                if after is not None:
                    self._purgatory_state = after
                self._purgatory_owner = None
                if owner is not None:
                    if after is _COMPLETED:
                        if self._purgatory_entry is None:
                            owner.completed_at_once += 1
                        else:
                            owner.satisfied += 1
                    elif after is _EXPIRED:
                        owner.expired += 1
                    elif after is _CLOSED:
                        owner.closed_operations += 1
                    else:
                        owner.failed += 1
                # To here.
                if self._purgatory_waiters is not None or (
                    owner is not None and owner.lists.dead > owner.fast_path_limit
                ):
                    self._purgatory_announce(owner)
            finally:
                if owner is not None:
                    try:
                        if not depth and owner.deferred:
                            owner.complete_deferred()
                    finally:
                        owner.depth = depth

    def _purgatory_attempt(self, owner: Owner | None) -> bool:
        """Call `try_complete`, and let the operation fail if that raises. Returns whether it completed the
        operation.
        """
        try:
            claimed = self.try_complete()
            if claimed and self._purgatory_state is PENDING:
                self._purgatory_fail_false_claim(claimed)
            return claimed
        except BaseException as exception:
            self._purgatory_fail_attempt(exception, owner)
            return False
        finally:
            del self  # a traceback that is kept holds this frame

    def _purgatory_fail_false_claim(self, claimed: object) -> NoReturn:
        """Raise, as `try_complete` has claimed to complete the operation and has not."""
        raise PurgatoryMisuse(f"try_complete() of {self!r} returned {claimed!r}, but did not force_complete()")

    def _purgatory_fail_attempt(self, exception: BaseException, owner: Owner | None) -> None:
        """Let the operation fail with `exception`, which is being handled and came out of `try_complete`."""
        if self._purgatory_claim(_FAILING):
            try:
                self._purgatory_fail(exception, owner)
            finally:
                # No call from here: counted, and of no purgatory any more.
                owner, self._purgatory_owner = self._purgatory_owner, None
                if owner is not None:
                    owner.failed += 1
                # To here.
                self._purgatory_announce(owner)
        else:
            self._purgatory_report(exception, owner)

    def _purgatory_close(self) -> bool:
        """Complete the operation because its purgatory is closed, or completes all. Returns whether this call did."""
        if not self._purgatory_claim(_CLOSING):
            return False
        self._purgatory_run()
        return True

    def _timer_expire(self) -> None:
        """The deadline has come: try once more, and expire if that does not complete the operation."""
        owner = self._purgatory_owner
        # Rescheduled on the way here, or in the try, it is not due any more.
        now = _NEVER if owner is None else owner.timer.due
        if self._purgatory_state is PENDING and self._timer_deadline <= now:
            if self._purgatory_attempt(owner):
                if owner is not None and self.outcome == "satisfied":
                    owner.missed += 1
            elif self._purgatory_claim(_EXPIRING, now):
                self._purgatory_run()

    def _purgatory_fail(self, exception: BaseException, owner: Owner | None) -> None:
        """Step to FAILED with `exception`, which is being handled. A request to exit is raised again."""
        frames = own_frames(exception, self, _OURS)
        if isinstance(exception, (asyncio.CancelledError, StopIteration)):
            # To the awaiting task these mean something else.
            wrapped = PurgatoryError(f"{type(self).__qualname__} raised {type(exception).__qualname__}")
            wrapped.__cause__ = exception
            failure = Failure(wrapped, type(self).__qualname__, None if owner is None else owner.timer.clock)
        else:
            failure = Failure(exception, type(self).__qualname__, None if owner is None else owner.timer.clock)
        # No call from here.
        self._purgatory_outcome = failure
        self._purgatory_state = _FAILED
        if owner is not None:
            with suppress(Exception):  # the clock does not call back: the garbage collector does it
                call_next(owner.timer.clock, clear_frames, frames)
        if isinstance(exception, (SystemExit, KeyboardInterrupt)):
            raise exception

    def _purgatory_report(self, exception: BaseException, owner: Owner | None) -> None:
        """Report `exception`, which is being handled, as the operation has its outcome without it."""
        if isinstance(exception, (SystemExit, KeyboardInterrupt)):
            raise exception
        clock = None if owner is None else owner.timer.clock
        report(clock, f"{type(self).__qualname__} raised after it was done", exception, operation=self)

    def _purgatory_announce(self, owner: Owner | None) -> None:
        """Tell awaiting tasks and listeners that the operation is done. A purge begins if it is due."""
        if self._purgatory_waiters is not None:
            self._purgatory_wake_waiters(self._purgatory_waiters)
        if owner is not None:
            dead = owner.lists.dead
            if dead > owner.fast_path_limit:
                try:
                    if dead > owner.purge_interval and 2 * dead > owner.lists.watched:
                        owner.purge_if_due()
                finally:
                    if owner.listeners is not None:
                        owner.listeners.finish(self, cast(Outcome, self.outcome), owner.time())

    @overload
    def _purgatory_add_waiter(self) -> "asyncio.Future[None] | None": ...
    @overload
    def _purgatory_add_waiter(self, waiter: Waiter) -> Waiter | None: ...
    def _purgatory_add_waiter(self, waiter: Waiter | None = None) -> Waiter | None:
        """`waiter`, by default a new future, that is done when the operation is; `None` if that is done already."""
        owner = self._purgatory_owner
        state = self._purgatory_state
        if owner is None:
            if state is PENDING or state.after is not None:
                raise PurgatoryMisuse(f"{self!r} would never complete: hand it to try_complete_else_watch() first")
            return None
        if owner.loop is None:
            loop = asyncio.get_running_loop()
            if waiter is None:
                waiter = loop.create_future()
                if isinstance(owner.timer.clock, VirtualClock):
                    owner.timer.clock._await(waiter, loop)
        else:
            loop = running_loop(self, owner.loop, "operation.__await__()", "asyncio.run_coroutine_threadsafe()")
            if waiter is None:
                waiter = loop.create_future()
        waiters = [waiter]
        # No call from here: the future is seen by the completion, or the completion by the caller.
        if self._purgatory_waiters is None:
            self._purgatory_waiters = waiters
        else:
            self._purgatory_waiters += waiters
        state = self._purgatory_state
        return waiter if state is PENDING or state.after is not None else None

    def _purgatory_remove_waiter(self, waiter: Waiter) -> None:
        """A task stops awaiting, or the client of a parked request disconnects.

        The last one to leave cancels the operation, or leaves its result undelivered.
        """
        waiters = self._purgatory_waiters
        if waiters is None:
            return  # another task has taken the result
        waiters.remove(waiter)
        # As long as the empty list is there, a completion that comes in between leaves its result undelivered.
        if not waiters and self._purgatory_waiters is waiters:
            if self._purgatory_state is PENDING:
                self.cancel()
            state = self._purgatory_state
            # No call since then. While `on_complete` is running, the empty list stays.
            if self._purgatory_waiters is waiters and not waiters and state is not PENDING and state.after is None:
                self._purgatory_waiters = None
                self._purgatory_undelivered()

    def _purgatory_wake_waiters(self, waiters: list[Waiter]) -> None:
        if not waiters:
            self._purgatory_waiters = None
            self._purgatory_undelivered()
            return
        for waiter in [*waiters]:  # copy() of CPython 3.11 crashes if a collection in it shortens the list
            if not waiter.done():
                try:
                    waiter.set_result(None)
                except Exception as exception:
                    self._purgatory_wake_failed(waiter, exception)

    def _purgatory_wake_failed(self, waiter: Waiter, exception: Exception) -> None:
        """Raise `exception`, unless the waiter was cancelled meanwhile or its loop is closed: no task of it waits."""
        is_closed = isinstance(exception, RuntimeError) and waiter.get_loop().is_closed()
        if not (is_closed or isinstance(exception, asyncio.InvalidStateError)):
            raise exception

    def _purgatory_undelivered(self) -> None:
        state = self._purgatory_state
        if state is _COMPLETED or state is _EXPIRED or state is _CLOSED:
            try:
                self.on_undelivered(cast(T, self._purgatory_outcome))
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as exception:
                message = f"{type(self).__qualname__}.on_undelivered() raised"
                report(_get_running_loop(), message, exception, operation=self)


_OURS: Final = {
    method.__code__
    for method in (
        python_of(DelayedOperation).force_complete,
        python_of(DelayedOperation)._purgatory_run,
        python_of(DelayedOperation)._purgatory_close,
        python_of(DelayedOperation)._purgatory_attempt,
        python_of(DelayedOperation)._timer_expire,
    )
}
