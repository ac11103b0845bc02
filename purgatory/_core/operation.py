"""Delayed operations: pending in a purgatory until their condition or their deadline completes them.

`states.py` contains the table of an operation's states and steps, and `_base.py` the code that runs for every
operation. This module contains the rest: the methods that subclasses define, and the code that runs seldom.

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
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast

from purgatory._core._base import OperationBase, OwnerBase, Waiter
from purgatory._loop.arguments import is_async, seconds
from purgatory._loop.clock import Clock, VirtualClock, report
from purgatory._loop.closing import Unique
from purgatory._loop.errors import OperationCancelled, PurgatoryError, PurgatoryMisuse
from purgatory._loop.threads import check_loop, running_loop

T = TypeVar("T")

AWAIT_FROM_THREADS: Final = (
    "asyncio.run_coroutine_threadsafe() with a coroutine that awaits it. In a web framework, make the handler async def"
)


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
