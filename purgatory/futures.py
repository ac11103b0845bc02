"""Waiting for futures, until a deadline."""

import asyncio
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from purgatory.clock import check_callback
from purgatory.operation import DelayedOperation

__all__ = ["DelayedFutures"]

T = TypeVar("T")

Futures: TypeAlias = set[asyncio.Future[T]]


class DelayedFutures(DelayedOperation[tuple[Futures[T], Futures[T]]]):
    """Completes when all of its futures are done or its deadline comes. Yields the done ones and the others.

        done, late = await purgatory.try_complete_else_watch(DelayedFutures(futures, 5.0), ["request 7"])

    As `asyncio.wait`, it raises nothing of what the futures raise. Any `asyncio.Future` will do, a task for one. It is
    not checked: it completes by itself; a key is what it can be cancelled for. (Kafka's `DelayedFuture`.)
    """

    __slots__ = ("_awaited", "_callback", "_cancel_late", "_futures")

    def __init__(
        self,
        futures: Iterable[asyncio.Future[T]],
        timeout: float | None,
        *,
        callback: Callable[[Futures[T], Futures[T]], object] | None = None,
        cancel_late: bool = False,
    ) -> None:
        """Wait for `futures` for `timeout` seconds; `None` is for ever.

        `callback(done, late)` is called once when the operation completes; what it raises makes the operation fail.
        With `cancel_late`, futures that are not done when the wait ends are cancelled, also if it ends because the
        operation is cancelled; else they are left alone. Raises `TypeError` or `ValueError` as `DelayedOperation`, and
        `TypeError` if one of `futures` is no future of asyncio's, `ValueError` if they belong to another event loop.
        """
        super().__init__(timeout)
        if asyncio.isfuture(futures):
            raise TypeError(f"an iterable of futures is needed, not {futures!r} alone")
        if callback is not None:
            check_callback("callback", callback)
        self._futures = set(futures)
        for future in self._futures:
            if not asyncio.isfuture(future):
                raise TypeError(f"an asyncio.Future or a task is needed, not {future!r}")
        loops = {future.get_loop() for future in self._futures}
        if len(loops) > 1:
            raise ValueError("the futures belong to several event loops")
        running = _get_running_loop()
        if loops and running is not None and running not in loops:
            raise ValueError("the futures belong to another event loop than the running one")
        self._callback = callback
        self._cancel_late = cancel_late
        self._awaited: Futures[T] | None = None
        """Those that call when they are done, once they have been asked to."""

    def try_complete(self) -> bool:
        if all(future.done() for future in self._futures):
            return self.force_complete()
        # The first try only looks: the purgatory may refuse the operation yet.
        if self._entry is not None and self._awaited is None:
            self._ask()
        return False

    def on_complete(self) -> tuple[Futures[T], Futures[T]]:
        late = {future for future in self._futures if not future.done()}
        done = self._futures - late
        callback = self._callback
        self._let_go()
        if callback is not None:
            callback(done, late)
        return done, late

    def cancel(self) -> bool:
        """As `DelayedOperation.cancel`; with `cancel_late` the futures that are not done are cancelled too."""
        if not super().cancel():
            return False
        self._let_go()
        return True

    def _ask(self) -> None:
        self._awaited = {future for future in self._futures if not future.done()}
        for future in self._awaited:
            future.add_done_callback(self._note)

    def _note(self, future: asyncio.Future[T]) -> None:
        if self._awaited is None:
            return  # it has ended in the same turn, after the future had asked the loop to call
        self._awaited.discard(future)
        if not self._awaited:
            self.force_complete()

    def _let_go(self) -> None:
        """Nothing of the futures' holds the operation any more, nor the other way round."""
        for future in self._awaited or ():
            future.remove_done_callback(self._note)
        if self._cancel_late:
            for future in self._futures:
                future.cancel()
        self._futures = set()
        self._awaited = None
        self._callback = None
