"""Waiting for futures, until a deadline.

A future gets one callback for all operations that wait for it. asyncio keeps the callbacks of a future in a list, so
removing one looks at all of them. When the future is done, the operations are notified in slices.
"""

import asyncio
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from purgatory._core.operation import DelayedOperation
from purgatory._loop.arguments import check_callback
from purgatory._loop.slices import ExitRequests, Slice, call_next

T = TypeVar("T")

Futures: TypeAlias = set[asyncio.Future[T]]


class _Awaited:
    """A future, and the operations that wait for it."""

    __slots__ = ("__weakref__", "_left", "future", "operations")

    def __init__(self, future: "asyncio.Future[Any]") -> None:
        self.future = future
        self.operations: dict[int, DelayedFutures[Any]] = {}
        """The operations by `id`, in the order of their arrival."""
        self._left: list[int] = []
        """The operations that have not been notified yet, by `id`, in reverse order."""

    def done(self, future: "asyncio.Future[Any]") -> None:
        """Notify the operations: the future is done. Called by its loop."""
        _AWAITED.pop(id(future), None)
        self._left = list(reversed(self.operations))
        self._notify()

    def _notify(self) -> None:
        slice_ = Slice(bounded=True)
        exits = ExitRequests()
        is_over = False
        while self._left and not is_over:
            operation = self.operations.pop(self._left.pop(), None)
            if operation is not None:
                with exits:
                    operation._note(self.future)
                del operation
            is_over = slice_.is_over()
        if self._left:
            call_next(self.future.get_loop(), self._notify)
        exits.raise_first()


_AWAITED: Final[WeakValueDictionary[int, _Awaited]] = WeakValueDictionary()
"""The futures that operations wait for, by `id`. The callback of each future keeps its entry alive."""


class DelayedFutures(DelayedOperation[tuple[Futures[T], Futures[T]]]):
    """Completes when all of its futures are done or its deadline comes, with the done futures and the late ones.

    Any `asyncio.Future` works, including tasks. As with `asyncio.wait`, the exceptions of the futures are not raised.
    It completes without a check, and its key serves to cancel it. Kafka's `DelayedFuture` is the model.

        done, late = await purgatory.try_complete_else_watch(DelayedFutures(futures, 5.0), ["request 7"])
    """

    __slots__ = ("__weakref__", "_awaits", "_callback", "_cancel_late", "_futures")

    def __init__(
        self,
        futures: Iterable[asyncio.Future[T]],
        timeout: float | None,
        *,
        callback: Callable[[Futures[T], Futures[T]], object] | None = None,
        cancel_late: bool = False,
    ) -> None:
        """Make an operation that waits for futures.

        Args:
            futures: The futures to wait for, all of the running event loop.
            timeout: Seconds to wait at most. `None` means no deadline.
            callback: Called as `callback(done, late)` when the operation completes. If it raises, the operation fails.
            cancel_late: Whether to cancel the futures that are not done when the wait ends, however it ends.

        Raises:
            ValueError: `timeout` is negative, NaN or infinite, or a future belongs to another event loop.
            TypeError: `futures` is not an iterable of futures, `timeout` is not a number, or `callback` is not callable
                or is `async`.
        """
        super().__init__(timeout)
        if asyncio.isfuture(futures):
            raise TypeError(f"futures must be an iterable of futures, not {futures!r}: pass [future]")
        if callback is not None:
            check_callback("callback", callback)
        self._futures = set(futures)
        for future in self._futures:
            if not asyncio.isfuture(future):
                raise TypeError(f"each future must be an asyncio.Future, for example a task, not {future!r}")
        loops = {future.get_loop() for future in self._futures}
        if len(loops) > 1:
            raise ValueError(f"futures must belong to the running event loop, not to {len(loops)} different ones")
        running = _get_running_loop()
        if loops and running is not None and running not in loops:
            raise ValueError("futures must belong to the running event loop, not to another one")
        self._callback = callback
        self._cancel_late = cancel_late
        self._awaits: dict[int, _Awaited] | None = None
        """The futures that are not done, by `id`, once they are being waited for."""

    def try_complete(self) -> bool:
        """Complete the operation if all futures are done, else wait for the others from now on."""
        if all(future.done() for future in self._futures):
            return self.force_complete()
        if self._awaits is None:
            self._wait()
        return False

    def on_complete(self) -> tuple[Futures[T], Futures[T]]:
        """Return the set of done futures and the set of late ones, after a call of `callback`."""
        late = {future for future in self._futures if not future.done()}
        done = self._futures - late
        callback = self._callback
        self._let_go()
        if callback is not None:
            callback(done, late)
        return done, late

    def on_done(self) -> None:
        """Release the futures, however the wait ended. If a subclass overrides it, it must call this one."""
        self._let_go()

    def _wait(self) -> None:
        """Add the operation to each future that is not done."""
        self._awaits = {}
        for future in self._futures:
            if not future.done():
                awaited = _AWAITED.get(id(future))
                if awaited is None:
                    awaited = _AWAITED[id(future)] = _Awaited(future)
                    future.add_done_callback(awaited.done, context=Context())
                awaited.operations[id(self)] = self
                self._awaits[id(future)] = awaited

    def _note(self, future: "asyncio.Future[Any]") -> None:
        """Note that `future` is done, and complete the operation if it was the last one."""
        awaits = self._awaits or {}
        awaits.pop(id(future), None)
        if not awaits:
            self.force_complete()

    def _let_go(self) -> None:
        """Drop the references between the operation and its futures."""
        awaits, self._awaits = self._awaits or {}, None
        for awaited in awaits.values():
            awaited.operations.pop(id(self), None)
            if not awaited.operations and _AWAITED.pop(id(awaited.future), None) is not None:
                awaited.future.remove_done_callback(awaited.done)
        if self._cancel_late:
            for future in self._futures:
                future.cancel()
        self._futures = set()
        self._callback = None
