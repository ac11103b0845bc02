"""Delayed operations: pending in a purgatory until their condition or their deadline completes them.

`states.py` contains the table of an operation's states and steps. `OperationBase` is the code that runs for every
operation, and `DelayedOperation`, which users see, adds what runs seldom.

Change the state first, then call out: so a method of an operation, a waiter, a listener or the clock finds the
structure whole, whatever it calls. After a call out, the code looks again at everything that may have changed.

A handler of a signal may raise at any call of a function and at any jump back. So state, entry and counts change in
stores without a call between them. Who has changed the state ends the operation, and does it again if it was
interrupted. What was done already is not done twice: the state and the result tell.

Names of the internals begin with `_purgatory_` or `_timer_`, so subclasses may use all other names.
"""

import asyncio
import inspect
import math
from abc import ABC, abstractmethod
from asyncio import _get_running_loop
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeVar, cast

from purgatory._core.listeners import Outcome, finite
from purgatory._core.owner import Owner, OwnerBase
from purgatory._core.states import COMPLETING, EXPIRING, FAILING, NEW, PENDING, State
from purgatory._core.watchers import Entry
from purgatory._loop.arguments import is_async, seconds
from purgatory._loop.clock import Clock, report
from purgatory._loop.closing import Unique
from purgatory._loop.errors import OperationCancelled, PurgatoryError, PurgatoryMisuse
from purgatory._loop.slices import ExitRequests
from purgatory._loop.threads import check_loop, running_loop
from purgatory._timer.entry import TimerEntry

T = TypeVar("T")

NESTING: Final = 16
"""How deep operations may end inside each other. The outermost end makes all deeper ones, one after the other."""

UNMADE: Final = object()
"""The result of an operation that has none yet."""

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
    """An operation: its state, its place in a purgatory, its awaiting tasks.

    `DelayedOperation` relies on the public methods and on these:

        _purgatory_owner         the owner, from the hand-over until it is done
        _purgatory_timeout       the timeout it was made with, in seconds, or infinity
        _purgatory_result        the result, or the `Failure`
        _purgatory_state_name    the state's name in the table
        _purgatory_entry         its entry in watcher lists, once it has waited
        _purgatory_close(), _purgatory_fail(failure)
        _purgatory_add_waiter(waiter), _purgatory_remove_waiter(waiter), _purgatory_taken(), _purgatory_finalize()
    """

    __slots__ = (
        "_purgatory_entry",
        "_purgatory_owner",
        "_purgatory_result",
        "_purgatory_state",
        "_purgatory_timeout",
        "_purgatory_waiters",
    )

    def __init__(self, timeout: float | None) -> None:
        """Make an operation. If a subclass defines its own constructor, it must call `super().__init__(timeout)`.

        Args:
            timeout: Seconds to wait at most, from when the operation is handed to a purgatory. `None` means no
                deadline.

        Raises:
            ValueError: `timeout` is negative, NaN or infinite.
            TypeError: `timeout` is not a number.
            PurgatoryMisuse: It was made before, and handed to a purgatory or ended since.
        """
        number = math.inf if timeout is None else seconds("timeout", timeout, none=True)
        if getattr(self, "_purgatory_state", NEW) is not NEW:
            raise PurgatoryMisuse(f"cannot initialize {self!r} again: create a new operation for each wait")
        super().__init__()
        self._purgatory_timeout = number
        self._purgatory_state: State = NEW
        self._purgatory_result: Any = UNMADE
        self._purgatory_owner: OwnerBase | None = None
        self._purgatory_entry: Entry | None = None
        """Set when the operation is watched, and kept."""
        self._purgatory_waiters: list[Any] | None = None
        """Who is owed the result: the futures of the awaiting tasks, and other waiters. `None` again after one of them
        has taken it. If nobody waits and `on_undelivered` is defined, the owner, when it is done. An empty list if all
        have left while `on_complete` was running."""

    def on_undelivered(self, result: Any, /) -> None:
        """Take back a result that nobody has received, for example to return a job to its queue.

        Called if every awaiting task was cancelled before it could receive the result. Called too if the operation is
        freed and its result came out of no `await`, `result()` or `take_result`. That is on the next iteration of the
        event loop, or at the next move of a `VirtualClock`. It can't be if the loop is closed, or if the class defines
        `__del__`. A variable or a traceback that holds the operation delays it. What a task took counts as received.

        Args:
            result: The result of `on_complete`.
        """

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
        return self._purgatory_end("complete")

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
        return self._purgatory_end("cancel")

    def _purgatory_fail(self, failure: object) -> bool:
        """Let the operation fail with `failure`. Return `False` if it has an outcome already."""
        return self._purgatory_end("fail", failure)

    def _purgatory_close(self) -> bool:
        """Complete the operation because its purgatory is closed or completes all. Return whether this call did."""
        return self._purgatory_end("close")

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
            self._purgatory_fail(self._purgatory_failure(exception))
            if isinstance(exception, (SystemExit, KeyboardInterrupt)):
                raise
            return False

    def _purgatory_end(self, event: str, failure: object = UNMADE) -> bool:
        """Make the step for `event`, which gives the operation its outcome, and end it. Return `False` if it has one.

        An operation that is no longer pending leaves the timer and the watcher lists at once, so that the purgatory no
        longer holds it. Its entry stays in the lists, dead.
        """
        before = self._purgatory_state
        after = before.steps.get(event)
        if after is None:
            return False
        owner, entry, identity = self._purgatory_owner, self._purgatory_entry, id(self)
        # No call in these stores.
        self._purgatory_state = after
        self._purgatory_result = failure
        if before is PENDING:
            assert owner is not None
            assert entry is not None
            entry.operation = None
            owner.num_delayed -= 1
            owner.lists.dead += entry.lists
            if not entry.lists:
                del owner._keyless[identity]
        try:
            self._timer_leave()
            self._purgatory_finish(owner)
        except BaseException:
            if not self._purgatory_state.is_done:  # a signal's handler has raised before it had begun
                self._timer_leave()
                self._purgatory_finish(owner)
            raise
        return True

    def _purgatory_finish(self, owner: OwnerBase | None) -> None:
        """End the operation now, and then the deferred ones. If ends are nested too deeply, defer this one."""
        if owner is None:  # it was never handed over
            self._purgatory_run(None)
        elif owner.depth >= NESTING:
            owner.deferred.append(self)
        else:
            owner.depth += 1
            try:
                self._purgatory_run(owner)
            finally:
                try:
                    if owner.depth == 1 and owner.deferred:
                        owner.run_deferred()
                finally:
                    owner.depth -= 1

    def _purgatory_run(self, owner: OwnerBase | None) -> None:
        """Let the operation make its result, and tell everybody. If it was interrupted before, go on with the rest."""
        state = self._purgatory_state
        if state.is_done:
            return
        is_unmade = state.has_result and self._purgatory_result is UNMADE
        try:
            if is_unmade:
                if owner is not None and owner.at_deadline is self and state is COMPLETING:
                    owner.log_missed(self)
                self._purgatory_result = self.on_complete()
        except BaseException as exception:
            self._purgatory_state = FAILING  # by the table's event "raise"
            self._purgatory_result = self._purgatory_failure(exception)
            if isinstance(exception, (SystemExit, KeyboardInterrupt)):
                raise
        finally:
            try:
                if is_unmade and state is EXPIRING:
                    try:
                        self.on_expiration()
                    except BaseException as exception:
                        self._purgatory_report(exception, owner)
            finally:
                self._purgatory_tell(owner)

    def _purgatory_tell(self, owner: OwnerBase | None) -> None:
        """Make it done, count it, call `on_done`, wake awaiting tasks, call listeners. Begin a purge if due."""
        kind, after, waiters = type(self), self._purgatory_state.steps["end"], self._purgatory_waiters
        has_on_done = kind.on_done is not OperationBase.on_done
        is_owed = waiters is None and after.has_result and kind.on_undelivered is not OperationBase.on_undelivered
        is_missed = False
        # No call in these stores.
        self._purgatory_state = after
        self._purgatory_owner = None
        if owner is not None:
            assert after.outcome is not None, "it is done"
            owner.finished[after.outcome] += 1
            is_missed = after.outcome == "satisfied" and owner.at_deadline is self
            owner.missed += is_missed
            if is_owed:
                self._purgatory_waiters = [owner]
        try:
            if has_on_done:
                try:
                    self.on_done()
                except BaseException as exception:
                    self._purgatory_report(exception, owner)
        finally:
            try:
                if waiters:
                    left = waiters[::-1]
                    try:
                        self._purgatory_wake(left)
                    finally:
                        if left:  # it was interrupted
                            self._purgatory_wake(left)
                elif waiters is not None and self._purgatory_waiters is not None:
                    self._purgatory_waiters = None  # all have left while it was being completed
                    self._purgatory_undeliver()
            finally:
                if owner is not None:
                    owner.note_end(self, is_missed)

    def _purgatory_wake(self, left: list[Waiter]) -> None:
        """Notify the waiters that are left, from the last one on, and take each out of the list."""
        exits = ExitRequests()
        while left:
            with exits:
                try:
                    if not left[-1].done():
                        left[-1].set_result(None)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as exception:
                    self._purgatory_wake_failed(left[-1], exception)
            del left[-1]
        exits.raise_first()

    def _timer_expire(self) -> None:
        """Try once more at the deadline, and expire if that does not complete the operation."""
        owner, bucket = self._purgatory_owner, self._timer_bucket
        assert owner is not None, "it is pending"
        before, owner.at_deadline = owner.at_deadline, self
        try:
            self._purgatory_try()
        finally:
            owner.at_deadline = before
        if self._timer_bucket is bucket:  # else it was rescheduled
            self._purgatory_end("expire")

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
        try:
            return self._purgatory_take()
        finally:
            del self  # the traceback of an exception holds this frame

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
        if waiters is None or isinstance(waiters[0] if waiters else None, OwnerBase):
            return  # another one has taken the result, or it never waited
        at = next((at for at, other in enumerate(waiters) if other is waiter), None)
        if at is None:
            raise ValueError(f"{waiter!r} is not a waiter of {self!r}")
        del waiters[at]
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
        self._purgatory_waiters = None

    def _purgatory_finalize(self) -> None:
        """When it is freed, let `on_undelivered` be called later if nobody has taken the result."""
        waiters = getattr(self, "_purgatory_waiters", None)
        if waiters and self._purgatory_state.is_done and self._purgatory_state.has_result:
            self._purgatory_undeliver_later(waiters[0])

    if TYPE_CHECKING:  # what DelayedOperation defines

        def try_complete(self) -> bool: ...
        def on_complete(self) -> Any: ...
        def on_expiration(self) -> None: ...
        def _purgatory_take(self) -> Any: ...
        def _purgatory_failure(self, exception: BaseException) -> object: ...
        def _purgatory_misuse(self) -> NoReturn: ...
        def _purgatory_report(self, exception: BaseException, owner: OwnerBase | None) -> None: ...
        def _purgatory_wake_failed(self, waiter: Waiter, exception: BaseException) -> None: ...
        def _purgatory_new_waiter(self) -> Any: ...
        def _purgatory_leave_soon(self, waiter: Any) -> None: ...
        def _purgatory_undeliver(self) -> None: ...
        def _purgatory_undeliver_later(self, waiter: Any) -> None: ...


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import OperationBase


class Failure:
    """The exception that made operations fail. It is reported if all of them are collected and nobody retrieved it."""

    __slots__ = ("clock", "exception", "message", "retrieved", "traceback")

    def __init__(self, exception: BaseException, message: str, clock: Clock | None) -> None:
        self.exception = exception
        self.traceback = exception.__traceback__
        """The traceback with which it is raised each time, because its own grows with each task that raises it."""
        self.message = message
        self.clock = clock
        self.retrieved = isinstance(exception, (SystemExit, KeyboardInterrupt))  # these are raised at once

    def __del__(self) -> None:
        if not getattr(self, "retrieved", True):  # it is not set if the constructor was interrupted
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


class _Attribute:
    """A value that can be read. It has no setter, so an attribute that a subclass sets has its name for itself."""

    def __init__(self, read: "Callable[[DelayedOperation[Any]], float | None]") -> None:
        self._read = read

    def __get__(self, operation: "DelayedOperation[Any] | None", owner: object = None) -> object:
        return self if operation is None else self._read(operation)


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

    _timer_is_task = False

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, T]: ...

        # `Any`, so that a subclass may give its own attributes of these names any type. Here they are `float | None`.
        timeout: Any
        """The timeout it was made with, in seconds, or `None`. A subclass may set an attribute of this name."""
        deadline: Any
        """Its deadline, a time of the clock in seconds, which follows `reschedule` and stays after the end.

        It is `None` if it has no deadline, before the hand-over, and if it completed at once. A subclass may set an
        attribute of this name."""
    else:
        timeout = _Attribute(lambda operation: finite(operation._purgatory_timeout))
        deadline = _Attribute(lambda operation: finite(operation._timer_deadline))
        add_done_callback = _NoFuture()
        __signature__ = _Signature()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("try_complete", "on_complete", "on_expiration", "on_undelivered", "on_done"):
            if is_async(getattr(cls, name)):
                raise TypeError(f"{cls.__qualname__}.{name} must not be async, because its result is not awaited")
        if cls.on_undelivered is not OperationBase.on_undelivered and not hasattr(cls, "__del__"):
            # Only here, so that freeing an operation of another class costs nothing.
            setattr(cls, "__del__", OperationBase._purgatory_finalize)  # noqa: B010 - mypy refuses the other form

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
        """Move the deadline, earlier or later. If the clock raises, the deadline stays where it was.

        Args:
            timeout: Seconds from now. `None` means no deadline.

        Raises:
            ValueError: `timeout` is negative, NaN or infinite.
            TypeError: `timeout` is not a number.
            PurgatoryMisuse: The operation is not pending in a purgatory, or has no keys and would have no deadline, or
                the purgatory belongs to another event loop or thread.
        """
        if timeout is not None:
            timeout = seconds("timeout", timeout, none=True)
        owner, entry = self._purgatory_owner, self._purgatory_entry
        deadline = math.inf
        if owner is not None:
            check_loop(self, owner.loop, "operation.reschedule(timeout)")
            if timeout is not None:
                deadline = owner.time() + timeout
        if owner is None or entry is None or self._purgatory_state_name != "pending":
            raise PurgatoryMisuse(f"cannot reschedule {self!r}: it is not pending in a purgatory")
        if timeout is None and not entry.lists:
            raise PurgatoryMisuse(
                f"cannot take its deadline from {self!r}: it has no keys, so nothing else would end it"
            )
        owner.timer._place(self, deadline)
        if self._purgatory_state_name != "pending":
            self._timer_leave()  # the clock has completed it
        elif owner.listeners is not None:
            owner.listeners.reschedule(self, timeout)

    def result(self) -> T:
        """Return the result of `on_complete`, which counts as received now.

        Raises:
            asyncio.InvalidStateError: The operation is not done.
            OperationCancelled: The operation was cancelled.
            Exception: The operation failed with this exception.
        """
        return cast(T, self._purgatory_take())

    def exception(self) -> BaseException | None:
        """Return the exception that made the operation fail, or `None`.

        Raises:
            asyncio.InvalidStateError: The operation is not done.
            OperationCancelled: The operation was cancelled.
        """
        return self._purgatory_exception()

    def as_future(self) -> "asyncio.Future[T]":
        """Return a future of the event loop that waits for the operation from this call on.

        A task that awaits an operation waits from its first step on. If it is cancelled before that, the operation
        stays pending. So use this one in `asyncio.wait_for`, whose timeout may have passed, and wherever a task may be
        cancelled at once:

            job = await asyncio.wait_for(purgatory.try_complete_else_watch(Take(queue), ["jobs"]).as_future(), left)

        The future is like an awaiting task: cancelling it doesn't affect others that wait, and cancelling the last one
        cancels the operation. A result that it has and nobody fetches goes to `on_undelivered`.

        Raises:
            PurgatoryMisuse: The operation was not handed to a purgatory, or belongs to another event loop or thread.
            RuntimeError: No event loop runs.
        """
        return OperationFuture(self)

    def _purgatory_take(self) -> Any:
        """Return the result to somebody who takes it, or raise the exception."""
        exception = self._purgatory_exception()
        self._purgatory_taken()
        if exception is None:
            return self._purgatory_result
        try:
            raise exception.with_traceback(cast(Failure, self._purgatory_result).traceback)
        finally:
            del self, exception  # its traceback holds this frame

    def _purgatory_exception(self) -> BaseException | None:
        state = self._purgatory_state_name  # not by methods that a subclass may extend
        if not OperationBase.done(self):
            raise asyncio.InvalidStateError(f"{self!r} is not done: await it first")
        if state == "cancelled":
            raise OperationCancelled(f"{type(self).__qualname__} was cancelled")
        if state != "failed":
            return None
        failure = cast(Failure, self._purgatory_result)
        failure.retrieved = True
        return failure.exception

    def _purgatory_clock(self) -> Clock | None:
        return None if self._purgatory_owner is None else self._purgatory_owner.timer.clock

    def _purgatory_failure(self, exception: BaseException) -> object:
        """Return the result of an operation that fails with `exception`."""
        name = type(self).__qualname__
        if isinstance(exception, (asyncio.CancelledError, StopIteration)):
            # These mean something else to the awaiting task.
            wrapped = PurgatoryError(f"{name} raised {type(exception).__qualname__}")
            wrapped.__cause__ = exception
            exception = wrapped
        return Failure(exception, f"{name} failed, and its exception was never retrieved", self._purgatory_clock())

    def _purgatory_misuse(self) -> NoReturn:
        """Raise, because `try_complete` claims to have completed the operation, and has not."""
        raise PurgatoryMisuse(
            f"try_complete() of {self!r} returned true, but did not force_complete(): return self.force_complete()"
        )

    def _purgatory_report(self, exception: BaseException, owner: OwnerBase | None) -> None:
        """Report `exception`, because the operation already has an outcome. Raise it if it is a request to exit."""
        if isinstance(exception, (SystemExit, KeyboardInterrupt)):
            raise exception
        clock = _get_running_loop() if owner is None else owner.timer.clock
        report(clock, f"{type(self).__qualname__} raised after it was done", exception, operation=self)

    def _purgatory_wake_failed(self, waiter: Waiter, exception: BaseException) -> None:
        """Report `exception` of a waiter, unless its loop is closed and so none of its tasks will run."""
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
        if (await_ := getattr(self._purgatory_clock(), "_await", None)) is not None:
            await_(waiter, loop)  # a VirtualClock, which warns if nothing moves it
        return waiter

    def _purgatory_leave_soon(self, waiter: "asyncio.Future[None]") -> None:
        # Through the loop's mailbox, because the collector may close a coroutine in the middle of anything.
        with suppress(RuntimeError):  # its loop is closed
            waiter.get_loop().call_soon_threadsafe(self._purgatory_remove_waiter, waiter, context=Context())

    def _purgatory_undeliver(self) -> None:
        """Call `on_undelivered`, if there is a result."""
        if self.outcome in ("cancelled", "failed"):
            return
        try:
            self.on_undelivered(self._purgatory_result)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exception:
            message = f"{type(self).__qualname__}.on_undelivered() raised"
            report(_get_running_loop(), message, exception, operation=self)

    def _purgatory_undeliver_later(self, waiter: Any) -> None:
        # In any thread, and in the middle of anything.
        if isinstance(waiter, Owner):
            waiter.call_soon_from_anywhere(self._purgatory_undeliver)
        else:
            with suppress(RuntimeError):  # its loop is closed
                waiter.get_loop().call_soon_threadsafe(self._purgatory_undeliver, context=Context())


class OperationFuture(asyncio.Future[T]):
    """A future that waits for an operation. What its task has not fetched when it is cancelled is undelivered."""

    def __init__(self, operation: DelayedOperation[T]) -> None:
        loop = operation._purgatory_check_await() if not operation.done() else running_loop(operation, None, "")
        super().__init__(loop=loop)
        self._operation = operation
        self._waiter: asyncio.Future[None] | None = None
        if operation.done():
            self._note_end()
            return
        self._waiter = waiter = operation._purgatory_new_waiter()
        waiter.add_done_callback(self._note_end, context=Context())
        if not operation._purgatory_add_waiter(waiter):  # making the future has ended it
            self._note_end()

    def _note_end(self, waiter: "asyncio.Future[None] | None" = None) -> None:
        if self.done():
            return  # cancelled
        try:
            exception = self._operation._purgatory_exception()
        except OperationCancelled as error:
            self.set_exception(error.with_traceback(None))  # which would hold this frame
            return
        if exception is None:
            self.set_result(self._operation._purgatory_result)
        else:
            self.set_exception(exception)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait as futures do. If the task is cancelled when the result has come, the result is given back."""
        if not self.done():
            woken: asyncio.Future[None] = self.get_loop().create_future()
            self.add_done_callback(lambda _: None if woken.done() else woken.set_result(None), context=Context())
            try:
                yield from woken
            except GeneratorExit:  # the coroutine is closed, perhaps by the collector or in another thread
                with suppress(RuntimeError):  # its loop is closed
                    self.get_loop().call_soon_threadsafe(self._give_up, context=Context())
                raise
            except BaseException:  # the task is cancelled
                self._give_up()
                raise
        try:
            return self.result()
        finally:
            del self  # the traceback of an exception holds this frame

    __iter__ = __await__

    def result(self) -> T:
        """Return the result, which counts as received now."""
        try:
            result = super().result()
            self._operation._purgatory_taken()
            return result
        finally:
            del self  # as above

    def cancel(self, msg: Any | None = None) -> bool:
        """Stop waiting, as an awaiting task that is cancelled."""
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._leave()
        return is_cancelled

    def _give_up(self) -> None:
        if not self.cancel():
            self._leave()  # the result has come, and was not fetched

    def _leave(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._operation._purgatory_remove_waiter(waiter)
