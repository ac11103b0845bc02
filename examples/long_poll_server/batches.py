"""One piece of work for all who ask at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Batches(Generic[Item, Outcome]):
    """While a batch is being worked on, the next one gathers: a transaction serves all who came during the one before.

    There is one at a time, in the order of coming.
    """

    def __init__(self, work: Callable[[list[Item]], Awaitable[Sequence[Outcome]]], most: int) -> None:
        """`work(items)`, for up to `most` of them, returns the outcome of each. What it raises, each of them gets."""
        self._work = work
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Outcome]]] = []
        self._working: asyncio.Task[None] | None = None

    async def do(self, item: Item) -> Outcome:
        """Do it in a batch that begins later than now. Once begun, it is done even if the caller is cancelled."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, outcome))
        if self._working is None:
            self._working = asyncio.create_task(self._run())
        return await outcome

    async def finish(self) -> None:
        """Return when all that was given to `do` is done."""
        while self._working is not None:
            await asyncio.wait([self._working])

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._do([item for item, _ in batch], [outcome for _, outcome in batch])
        finally:
            self._working = None

    async def _do(self, items: list[Item], futures: "list[asyncio.Future[Outcome]]") -> None:
        try:
            outcomes = await self._work(items)
        except Exception as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future, outcome in zip(futures, outcomes, strict=True):
            if not future.done():
                future.set_result(outcome)
