"""Delayed operations: pending in a purgatory until their condition or their deadline completes them.

`states.py` contains the table of an operation's states and steps. The base class here is the code that runs for every
operation, and the class that users see adds the rest.

Names of the internals begin with `_purgatory_` or `_timer_`, so subclasses may use all other names.
"""

import asyncio
import inspect
import math
from abc import ABC, abstractmethod
from asyncio import _get_running_loop
from collections.abc import Generator
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeVar, cast

from purgatory._core.listeners import Outcome
from purgatory._core.owner import OwnerBase
from purgatory._core.states import EXPIRING, NEW, PENDING, State
from purgatory._core.watchers import Entry
from purgatory._loop.arguments import is_async, seconds
from purgatory._loop.clock import Clock, VirtualClock, report
from purgatory._loop.closing import Unique
from purgatory._loop.errors import OperationCancelled, PurgatoryError, PurgatoryMisuse
from purgatory._loop.slices import ExitRequests
from purgatory._loop.threads import check_loop, running_loop
from purgatory._timer.entry import TimerEntry

T = TypeVar("T")

NESTING: Final = 16
"""How deep operations may end inside each other. The outermost end makes all deeper ones, one after the other."""

AWAIT_FROM_THREADS: Final = (
    "asyncio.run_coroutine_threadsafe() with a coroutine that awaits it. In a web framework, make the handler async def"
)


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

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that it belongs to."""


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


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import OperationBase


class Failure:
    """The exception that made operations fail. It is reported if all of them are collected and nobody retrieved it."""

    __slots__ = ("clock", "exception", "message", "retrieved", "traceback")

    def __init__(self, exception: BaseException, message: str, clock: Clock | None) -> None:
        self.retrieved = isinstance(exception, (SystemExit, KeyboardInterrupt))  # these are raised at once
        self.exception = exception
        self.traceback = exception.__traceback__
        """The traceback with which it is raised each time, because its own grows with each task that raises it."""
        self.message = message
        self.clock = clock

    def __del__(self) -> None:
        if not self.retrieved:
            report(self.clock, self.message, self.exception)


def check_exception(exception: object) -> None:
    """Raise `TypeError` unless an operation may fail with `exception`: see `DelayedOperation.fail`."""
    if isinstance(exception, type):
        name = exception.__qualname__
        raise TypeError(f"exception must be an instance, not the class {name}: pass {name}(...)")
    if isinstance(exception, (StopIteration, asyncio.CancelledError)):
        raise TypeError(
            f"exception must be an Exception other than StopIteration and CancelledError, not {exception!r}"
        )
    if not isinstance(exception, Exception):
        raise TypeError(f"exception must be an Exception, not {exception!r}")


class _NoFuture:
    """Names the right call if an operation is passed to `asyncio.wait`, which looks for this method of a future."""

    def __get__(self, operation: object, owner: object = None) -> NoReturn:
        raise AttributeError(f"{operation!r} is not a future: pass asyncio.ensure_future(operation)")


class _Signature:
    """The signature of classes that inherit the constructor, because `inspect` on CPython 3.14 can't read C's."""

    def __get__(self, operation: object, owner: type) -> inspect.Signature:
        if owner.__init__ is not OperationBase.__init__:  # type: ignore[misc]
            raise AttributeError("inspect reads this one itself")
        _, *parameters = inspect.signature(OperationBase.__init__).parameters.values()
        return inspect.Signature(parameters)


class DelayedOperation(OperationBase, Unique, Generic[T], ABC):
    """An operation that completes exactly once: when its condition holds, or else when its deadline comes.

        class Reaches(DelayedOperation[int]):
            def __init__(self, counter: Counter, value: int, timeout: float | None) -> None:
                super().__init__(timeout)
                self.counter, self.value = counter, value

            def try_complete(self) -> bool:
                return self.counter.value >= self.value and self.force_complete()

            def on_complete(self) -> int:
                return self.counter.value

    Define the condition (`try_complete`) and the result (`on_complete`) in a subclass. They are plain methods: if one
    is `async`, defining the class raises `TypeError`. You may also define `on_expiration`, `on_undelivered` and
    `on_done`, which releases whatever the operation has acquired, however it ends.

    Hand each instance to `DelayedOperationPurgatory.try_complete_else_watch` once, and `await` it if you need its
    result. Several tasks may await the same operation. Cancelling one of them doesn't affect the others. Cancelling
    the last one cancels the operation.

    An operation fails if `try_complete` or `on_complete` raises, or if you call `fail`. The exception comes out of
    `await`. As with `asyncio.Future`, it goes to the event loop's exception handler if nobody has retrieved it when
    the operation is collected.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, T]: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("try_complete", "on_complete", "on_expiration", "on_undelivered", "on_done"):
            if is_async(getattr(cls, name)):
                raise TypeError(f"{cls.__qualname__}.{name} must not be async, because its result is not awaited")

    def _purgatory_describe(self) -> str:
        state = self._purgatory_state_name
        if self.done():
            return str(self.outcome)
        if state == "new":
            timeout = self._purgatory_timeout
            return f"new timeout={timeout if timeout < math.inf else None!r}"
        owner, deadline = self._purgatory_owner, self._timer_deadline
        if state != "pending" or owner is None:
            return state
        if deadline == math.inf:
            return "pending, without a deadline"
        try:
            left = deadline - owner.time()
        except Exception:
            return f"pending, due at {deadline!r}"
        digits = 1 if abs(left) >= 1 else 3
        return f"pending, due in {left:.{digits}f} s" if left >= 0 else f"pending, due {-left:.{digits}f} s ago"

    if not TYPE_CHECKING:
        add_done_callback = _NoFuture()
        __signature__ = _Signature()

    @abstractmethod
    def try_complete(self) -> bool:
        """Return `self.force_complete()` if the condition holds, else `False`.

        Keep it cheap, because it is called often: twice at the hand-over, whenever one of the keys is checked, and a
        last time at the deadline. If the last try completes the operation, it counts as satisfied and not as expired.

        Returns:
            Whether this call completed the operation.
        """

    @abstractmethod
    def on_complete(self) -> T:
        """Return the result, which `await` yields. Called exactly once, when the operation completes.

        The condition doesn't hold if the deadline or a close completes the operation, which `outcome` tells. It is not
        called if the operation fails or is cancelled.
        """

    def on_expiration(self) -> None:
        """Handle an expiry. Called after `on_complete` if the deadline completed the operation.

        An exception goes to the event loop's exception handler, and the result stays.
        """

    def on_undelivered(self, result: T, /) -> None:
        """Take back a result that no task has received, for example to return a job to its queue.

        Called if every awaiting task was cancelled before it could receive the result. It is not called if no task has
        ever awaited the operation.

        Args:
            result: The result of `on_complete`.
        """

    def fail(self, exception: Exception) -> bool:
        """End the operation with an exception, which awaiting tasks get, and without `on_complete`.

        It is like `asyncio.Future.set_exception`, but it accepts only an instance and returns `False` if the operation
        is done or being completed. You may `return self.fail(...)` in `try_complete`, because a failed operation
        doesn't count as completed.

        Args:
            exception: An instance of `Exception`. `StopIteration` and `CancelledError` are refused, because they mean
                something else to an awaiting task.

        Returns:
            Whether this call ended the operation.

        Raises:
            TypeError: `exception` is not such an instance.
            PurgatoryMisuse: The purgatory belongs to another event loop or thread.
        """
        check_exception(exception)
        owner = self._purgatory_owner
        if owner is not None:
            check_loop(self, owner.loop, "operation.fail(exception)")
        return self.outcome is None and self._purgatory_fail(self._purgatory_failure(exception))

    def reschedule(self, timeout: float | None) -> None:
        """Move the deadline, earlier or later.

        Args:
            timeout: Seconds from now. `None` means no deadline.

        Raises:
            ValueError: `timeout` is negative, NaN or infinite.
            TypeError: `timeout` is not a number.
            PurgatoryMisuse: The operation is not pending in a purgatory, or the purgatory belongs to another event
                loop or thread.
        """
        if timeout is not None:
            timeout = seconds("timeout", timeout, none=True)
        owner = self._purgatory_owner
        deadline = math.inf
        if owner is not None:
            check_loop(self, owner.loop, "operation.reschedule(timeout)")
            if timeout is not None:
                deadline = owner.time() + timeout
        if owner is None or self._purgatory_state_name != "pending":
            raise PurgatoryMisuse(f"cannot reschedule {self!r}: it is not pending in a purgatory")
        owner.timer.reschedule(self, deadline)
        if self._purgatory_state_name != "pending":
            self._timer_leave()  # the clock has completed it
        elif owner.listeners is not None:
            owner.listeners.reschedule(self, timeout)

    def result(self) -> T:
        """Return the result of `on_complete`.

        Raises:
            asyncio.InvalidStateError: The operation is not done.
            OperationCancelled: The operation was cancelled.
            Exception: The operation failed with this exception.
        """
        exception = self.exception()
        if exception is None:
            return cast(T, self._purgatory_outcome)
        try:
            raise exception.with_traceback(cast(Failure, self._purgatory_outcome).traceback)
        finally:
            del self, exception  # its traceback holds this frame

    def exception(self) -> BaseException | None:
        """Return the exception that made the operation fail, or `None`.

        Raises:
            asyncio.InvalidStateError: The operation is not done.
            OperationCancelled: The operation was cancelled.
        """
        if not self.done():
            raise asyncio.InvalidStateError(f"{self!r} is not done: await it first")
        if self.cancelled():
            raise OperationCancelled(f"{type(self).__qualname__} was cancelled")
        if self.outcome != "failed":
            return None
        failure = cast(Failure, self._purgatory_outcome)
        failure.retrieved = True
        return failure.exception

    def _purgatory_clock(self) -> Clock | None:
        return None if self._purgatory_owner is None else self._purgatory_owner.timer.clock

    def _purgatory_failure(self, exception: BaseException) -> object:
        name = type(self).__qualname__
        if isinstance(exception, (asyncio.CancelledError, StopIteration)):
            # These mean something else to the awaiting task.
            wrapped = PurgatoryError(f"{name} raised {type(exception).__qualname__}")
            wrapped.__cause__ = exception
            exception = wrapped
        return Failure(exception, f"{name} failed, and its exception was never retrieved", self._purgatory_clock())

    def _purgatory_misuse(self) -> NoReturn:
        raise PurgatoryMisuse(
            f"try_complete() of {self!r} returned true, but did not force_complete(): return self.force_complete()"
        )

    def _purgatory_report(self, exception: BaseException, owner: OwnerBase | None) -> None:
        if isinstance(exception, (SystemExit, KeyboardInterrupt)):
            raise exception
        clock = _get_running_loop() if owner is None else owner.timer.clock
        report(clock, f"{type(self).__qualname__} raised after it was done", exception, operation=self)

    def _purgatory_wake_failed(self, waiter: Waiter, exception: BaseException) -> None:
        with suppress(Exception):
            if waiter.get_loop().is_closed():
                return
        report(_get_running_loop(), f"{type(waiter).__qualname__} could not be told that {self!r} is done", exception)

    def _purgatory_check_await(self) -> asyncio.AbstractEventLoop:
        """Return the running loop. Raise if nothing would ever complete the operation, or if it is the wrong loop."""
        owner = self._purgatory_owner
        if owner is None:
            raise PurgatoryMisuse(f"{self!r} would never complete: hand it to try_complete_else_watch() first")
        return running_loop(self, owner.loop, "operation.__await__()", AWAIT_FROM_THREADS)

    def _purgatory_new_waiter(self) -> "asyncio.Future[None]":
        loop = self._purgatory_check_await()
        waiter = loop.create_future()
        clock = self._purgatory_clock()
        if isinstance(clock, VirtualClock):
            clock._await(waiter, loop)
        return waiter

    def _purgatory_leave_soon(self, waiter: "asyncio.Future[None]") -> None:
        # Through the loop's mailbox, because the collector may close a coroutine in the middle of anything.
        with suppress(RuntimeError):  # its loop is closed
            waiter.get_loop().call_soon_threadsafe(self._purgatory_remove_waiter, waiter, context=Context())

    def _purgatory_undeliver(self) -> None:
        if self.outcome in ("cancelled", "failed"):
            return
        try:
            self.on_undelivered(cast(T, self._purgatory_outcome))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exception:
            message = f"{type(self).__qualname__}.on_undelivered() raised"
            report(_get_running_loop(), message, exception, operation=self)
