"""Delayed operations: what waits in a purgatory for its condition or its deadline."""

import asyncio
import enum
import math
import sys
from abc import abstractmethod
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from traceback import walk_stack, walk_tb
from types import TracebackType
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from purgatory.clock import Clock, report
from purgatory.errors import OperationCancelled, PurgatoryError
from purgatory.listeners import Outcome
from purgatory.timer import TimerTask
from purgatory.watchers import WatcherLists

__all__ = ["PENDING", "DelayedOperation"]

T = TypeVar("T")

Home: TypeAlias = "WatcherLists[DelayedOperation[Any]]"


NESTING: Final = 16
"""How deep completions go on inside each other. Those further in are made by the outermost, one after the other."""


class _State(enum.Enum):
    PENDING = "pending"
    COMPLETING = "completing"
    EXPIRING = "expiring"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    UNSEEN = "failed, unseen"
    """Failed, and nobody has asked for the exception yet."""
    FAILED = "failed"


# Names of the module are looked up in half the time of an enum's members.
PENDING: Final = _State.PENDING
_COMPLETING: Final = _State.COMPLETING
_EXPIRING: Final = _State.EXPIRING
_COMPLETED: Final = _State.COMPLETED
_EXPIRED: Final = _State.EXPIRED
_CANCELLED: Final = _State.CANCELLED
_UNSEEN: Final = _State.UNSEEN
_FAILED: Final = _State.FAILED
_NEVER: Final = math.inf
_MOST: Final = sys.float_info.max
"""An `int` that is more cannot be made a `float`, though it is less than infinity."""


class DelayedOperation(TimerTask, Generic[T]):
    """Something that completes when its condition holds or when its deadline comes, exactly once, whichever is first.

    A subclass says what the condition is (`try_complete`) and what completion yields (`on_complete`), in plain methods:
    defining them `async` raises `TypeError`. Hand it to `DelayedOperationPurgatory.try_complete_else_watch`, then
    `await` it, or do not. It serves once.

    Several tasks may await the same operation. If an awaiting task is cancelled, so is the operation.

    Exceptions raised by its methods make the operation fail: they come out of `await`, or go to the event loop's
    exception handler if by the next turn of the loop nobody has awaited it or asked for `exception()`.
    """

    __slots__ = ("_entry", "_home", "_outcome", "_state", "_timeout", "_waiter")

    _outcome: T | BaseException
    """What `on_complete` has returned, or what was raised: set when there is one, and not before."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("try_complete", "on_complete", "on_expiration"):
            if iscoroutinefunction(cls.__dict__.get(name)):
                raise TypeError(f"{cls.__qualname__}.{name} must not be async: it is called, and not awaited")

    def __init__(self, timeout: float | None) -> None:
        """Wait for `timeout` seconds from the time at which the purgatory takes the operation; `None` is for ever.

        Raises `ValueError` if `timeout` is negative, NaN or infinite, `TypeError` if it is not a number.
        """
        # A float in range, the usual case, is let through without a call.
        if timeout is not None and not (type(timeout) is float and 0.0 <= timeout < _NEVER):
            check_timeout(timeout)
        self._bucket = None
        self._deadline = _NEVER
        self._timeout = timeout
        self._state = PENDING
        self._home: Home | None = None
        """Where the operation waits: set from the moment it is handed to a purgatory until it is done."""
        self._entry: list[DelayedOperation[Any]] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = self._state.value
        if self._state is PENDING:
            state += " unwatched" if self._entry is None else f" deadline={self._deadline!r}"
        return f"<{type(self).__qualname__} {state} timeout={self._timeout!r}>"

    @abstractmethod
    def try_complete(self) -> bool:
        """If the condition holds, return `self.force_complete()`, else `False`. To be cheap: it is called often."""

    @abstractmethod
    def on_complete(self) -> T:
        """Called exactly once, whatever completes the operation. Returns its result, which `await` yields.

        The condition may not hold: `expired()` tells whether it is the deadline that completes it, and
        `force_complete`, `complete_all` and closing the purgatory complete it too.
        """

    def on_expiration(self) -> None:
        """Called after `on_complete` when it was the deadline that completed the operation."""

    def force_complete(self) -> bool:
        """Complete the operation whether its condition holds or not. Returns whether it was this call that did.

        A compare-and-set from *pending*: of all who try, in any order and from inside each other, one gets `True`.
        Called more than 16 deep inside the `on_complete` of others, it returns before its own `on_complete` has run:
        that runs before the outermost of these calls returns.
        """
        if self._state is not PENDING:
            return False
        home = self._home
        if home is not None and home.thread is not None:
            home.check_thread("force_complete", "loop.call_soon_threadsafe(operation.force_complete)")
        self._state = _COMPLETING
        # _leave(), here once more: it is called for every operation, and the call would take as long as what it does.
        bucket = self._bucket
        if bucket is not None:
            del bucket[id(self)]
            self._bucket = None
        entry = self._entry
        if entry is not None and home is not None:
            entry.clear()
            home.num_delayed -= 1
            home.finished += 1
        if home is None or home.depth < NESTING:
            self._complete()
        else:
            home.deferred.append(self)
        return True

    def cancel(self) -> bool:
        """Finish without a result and without `on_complete`. Returns whether the operation was pending.

        Who awaits it gets `OperationCancelled`.
        """
        if self._state is not PENDING:
            return False
        home = self._home
        if home is not None and home.thread is not None:
            home.check_thread("cancel", "loop.call_soon_threadsafe(operation.cancel)")
        self._state = _CANCELLED
        self._leave()
        self._finish()
        return True

    def reschedule(self, timeout: float | None) -> None:
        """Move the deadline to `timeout` seconds from now, earlier or later; `None` is never.

        Raises `ValueError` or `TypeError` as the constructor, `PurgatoryError` unless it waits in a purgatory.
        """
        if timeout is not None:
            check_timeout(timeout)
        home = self._home
        if self._state is not PENDING or home is None or self._entry is None:
            raise PurgatoryError(f"only an operation that waits in a purgatory is rescheduled, not {self!r}")
        if home.thread is not None:
            home.check_thread("reschedule", "loop.call_soon_threadsafe(operation.reschedule, timeout)")
        timer = home.timer
        if timeout is None:
            timer.cancel(self)
            self._deadline = _NEVER
        else:
            timer.reschedule(self, timer.time() + timeout)
        self._timeout = timeout

    def done(self) -> bool:
        """Whether the operation has its outcome: a result, an exception, or that it was cancelled."""
        state = self._state
        return state is not PENDING and state is not _COMPLETING and state is not _EXPIRING

    def expired(self) -> bool:
        """Whether the deadline completed it; in `on_complete`, whether it is the deadline that does."""
        return self._state is _EXPIRING or self._state is _EXPIRED

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._state is _CANCELLED

    def result(self) -> T:
        """What `on_complete` returned. Raises what made the operation fail, `OperationCancelled` if it was cancelled,
        and `asyncio.InvalidStateError` if it is not done.
        """
        try:
            exception = self.exception()
            if exception is None:
                return cast(T, self._outcome)
            raise exception
        finally:
            # The traceback holds this frame: it must not hold the operation, nor the exception itself.
            exception = None
            del self

    def exception(self) -> BaseException | None:
        """What made the operation fail, or `None`. Raises `OperationCancelled` if it was cancelled, and
        `asyncio.InvalidStateError` if it is not done.
        """
        state = self._state
        if state is _COMPLETED or state is _EXPIRED:
            return None
        try:
            if state is _CANCELLED:
                raise OperationCancelled(f"{type(self).__qualname__} was cancelled")
            if not self.done():
                raise asyncio.InvalidStateError(f"{self!r} is not done")
            self._state = _FAILED
            return cast(BaseException, self._outcome)
        finally:
            del self

    def __await__(self) -> Generator[Any, None, T]:
        try:
            state = self._state
            if state is PENDING or state is _COMPLETING or state is _EXPIRING:
                waiter = self._new_waiter()
                try:
                    yield from waiter
                except BaseException:  # the awaiting task was cancelled, or its coroutine closed
                    self.cancel()
                    raise
                state = self._state
            if state is _COMPLETED or state is _EXPIRED:
                return cast(T, self._outcome)
            return self.result()
        finally:
            del self

    def run(self) -> None:
        """The deadline has come. Called by the timer."""
        if self._state is PENDING:
            self._state = _EXPIRING
            self._leave()
            self._complete()

    def _refute(self, claimed: object) -> None:
        """Raise, as `try_complete` has claimed to complete the operation and has not."""
        raise PurgatoryError(f"try_complete() of {self!r} returned {claimed!r}, but did not force_complete()")

    def _fail_attempt(self, exception: BaseException, home: Home) -> None:
        """Make `exception`, which is being handled and came out of `try_complete`, the outcome."""
        if self._state is PENDING:
            self._state = _COMPLETING
            self._leave()
            try:
                self._fail(exception, home)
            finally:
                self._finish()
        else:
            self._report_late(exception, home)

    def _complete(self) -> None:
        """Run the callbacks, for the winner of the compare-and-set, and then those that it has put off."""
        expires = self._state is _EXPIRING
        home = self._home
        depth = 0
        if home is not None:
            depth = home.depth
            home.depth = depth + 1
        try:
            try:
                self._outcome = self.on_complete()
            except BaseException as exception:
                self._fail(exception, home)
            if expires:
                try:
                    self.on_expiration()
                except BaseException as exception:
                    self._fail(exception, home)
        finally:
            try:
                state = self._state
                # _finish(), for most of all operations, without the call.
                if state is _COMPLETING and home is not None and home.finished <= home.quiet:
                    self._state = _COMPLETED
                    self._home = None
                    if self._entry is None:
                        home.at_once += 1
                    else:
                        home.satisfied += 1
                    if self._waiter is not None:
                        self._wake_waiter()
                else:
                    self._finish()
            finally:
                if home is not None:
                    try:
                        if not depth and home.deferred:
                            _complete_deferred(home)
                    finally:
                        home.depth = depth

    def _leave(self) -> None:
        """Leave the timer and the watcher lists, at once: nothing of the purgatory's holds the operation any more."""
        bucket = self._bucket
        if bucket is not None:
            del bucket[id(self)]
            self._bucket = None
        entry = self._entry
        home = self._home
        if entry is not None and home is not None:
            entry.clear()
            home.num_delayed -= 1
            home.finished += 1

    def _fail(self, exception: BaseException, home: "Home | None") -> None:
        """Make `exception`, which is being handled, the outcome, unless the operation has failed before."""
        state = self._state
        if state is not _COMPLETING and state is not _EXPIRING:
            self._report_late(exception, home)
            return
        if isinstance(exception, (asyncio.CancelledError, StopIteration)):
            # To the awaiting task these mean something else.
            self._outcome = PurgatoryError(f"{type(self).__qualname__} raised {type(exception).__qualname__}")
            self._outcome.__cause__ = exception
        else:
            self._outcome = exception
        self._state = _UNSEEN
        if isinstance(exception, (SystemExit, KeyboardInterrupt)):
            raise exception

    def _report_late(self, exception: BaseException, home: "Home | None") -> None:
        """Report `exception`, which is being handled and comes when the operation has its outcome."""
        if isinstance(exception, (SystemExit, KeyboardInterrupt)):
            raise exception
        clock = None if home is None else home.timer.clock
        report(clock, f"{type(self).__qualname__} raised after it was done", exception, operation=self)

    def _finish(self) -> None:
        """Make the outcome known: to the statistics, and to who waits for it."""
        home = self._home
        state = self._state
        if state is _COMPLETING:
            self._state = _COMPLETED
        elif state is _EXPIRING:
            self._state = _EXPIRED
        outcome: Outcome = "failed"
        if home is not None:
            self._home = None
            if state is _COMPLETING:
                if self._entry is None:
                    home.at_once += 1
                    outcome = "completed_at_once"
                else:
                    home.satisfied += 1
                    outcome = "satisfied"
            elif state is _EXPIRING:
                home.expired += 1
                outcome = "expired"
            elif state is _CANCELLED:
                home.cancelled += 1
                outcome = "cancelled"
            else:
                home.failed += 1
        if self._waiter is not None:
            self._wake_waiter()
        if home is None:
            self._report_unseen(None)
            return
        try:
            if self._state is _UNSEEN:
                self._see_next_turn(home.timer.clock)
            home.purge_if_due()
        except RuntimeError:
            if not _is_closed(home.timer.clock):
                raise
            # Its loop calls nobody who would look whether anybody has seen it, or who would purge.
            self._report_unseen(None)
        finally:
            if home.listeners is not None:
                home.listeners.finish(self, outcome, home.time())

    def _wake_waiter(self) -> None:
        waiter = self._waiter
        self._waiter = None
        if waiter is not None and not waiter.done():
            try:
                waiter.set_result(None)
            except RuntimeError:
                if not _is_closed(waiter.get_loop()):
                    raise
                # Nobody on it waits any more.

    def _see_next_turn(self, clock: Clock) -> None:
        """On the next turn, see whether somebody has seen the exception, and let go of what its tracebacks hold."""
        exception = cast(BaseException, self._outcome)
        clock.call_at(clock.time(), self._look_back, clock, _tracebacks(exception))

    def _look_back(self, clock: Clock, tracebacks: list[TracebackType]) -> None:
        self._report_unseen(clock)
        _clear(tracebacks)

    def _report_unseen(self, clock: Clock | None) -> None:
        if self._state is _UNSEEN:
            self._state = _FAILED
            exception = cast(BaseException, self._outcome)
            report(clock, f"{type(self).__qualname__} failed, and nobody awaits it", exception, operation=self)

    def _new_waiter(self) -> asyncio.Future[None]:
        """A future that is done when the operation is."""
        home = self._home
        if home is None:
            raise PurgatoryError(f"{self!r} would never complete: hand it to try_complete_else_watch() first")
        loop = asyncio.get_running_loop()
        if loop is not home.loop:
            clock = home.timer.clock
            if clock is not loop and isinstance(clock, asyncio.AbstractEventLoop):
                raise PurgatoryError(f"{self!r} waits on another event loop")
        waiter: asyncio.Future[None] = loop.create_future()
        if self._waiter is None:
            self._waiter = waiter
        else:
            self._waiter.add_done_callback(partial(_wake_up, waiter))
        return waiter


def _is_closed(clock: Clock | None) -> bool:
    return isinstance(clock, asyncio.AbstractEventLoop) and clock.is_closed()


def _complete_deferred(home: Home) -> None:
    """Complete what was put off because it was too deep inside other completions, in the order in which it was."""
    leaving: BaseException | None = None
    while home.deferred:
        try:
            home.deferred.popleft()._complete()
        except BaseException as exception:  # a request to exit, or the clock does not call back
            leaving = exception
    if leaving is not None:
        raise leaving


def _tracebacks(exception: BaseException) -> list[TracebackType]:
    """The tracebacks of `exception` and of all that it came from."""
    tracebacks = []
    exceptions: list[BaseException | None] = [exception]
    seen = set()
    for each in exceptions:
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            if each.__traceback__ is not None:
                tracebacks.append(each.__traceback__)
            exceptions += [each.__cause__, each.__context__]
            if isinstance(each, BaseExceptionGroup):
                exceptions += each.exceptions
    return tracebacks


def _clear(tracebacks: list[TracebackType]) -> None:
    """Clear the finished frames of `tracebacks`, and those that called them.

    An operation holds its exception, which holds its traceback, which holds the frames of the operation's own methods
    and of all that called them, which hold the operation: it would stay until the garbage collector comes.
    """
    for traceback in tracebacks:
        for frame, _ in (*walk_tb(traceback), *walk_stack(traceback.tb_frame)):
            # Without a caller it is suspended: to clear it would close its coroutine.
            if frame.f_back is not None:
                with suppress(RuntimeError):  # it is running
                    frame.clear()


def _wake_up(waiter: "asyncio.Future[None]", _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


def check_timeout(timeout: float) -> None:
    """Raise `TypeError` or `ValueError` unless `timeout` is a finite number of seconds and not negative."""
    try:
        valid = 0 <= timeout <= _MOST
    except TypeError:
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}") from None
    if not valid:
        raise ValueError(f"timeout must be finite and not negative, or None for never, not {timeout!r}")
