"""One piece of work for all simultaneous requests."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

BATCH_SIZE = 4 * 1024 * 1024
"""Characters, which are about bytes: JSON escapes all that are not ASCII."""

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Batches(Generic[Item, Outcome]):
    """While a batch is being worked on, the next one gathers: a transaction serves all items that came meanwhile.

    There is one at a time, in the order of coming.
    """

    def __init__(
        self,
        work: Callable[[list[Item]], Awaitable[Sequence[Outcome]]],
        most: int,
        size: Callable[[Item], int] = lambda item: 0,
    ) -> None:
        """`work(items)`, for up to `most` of them, returns the outcome of each. Its exception is raised for each.

        A batch ends with the item that makes their `size` 4 MiB or more: large ones hold up the others briefly.
        """
        self._work = work
        self._most = most
        self._size = size
        self._waiting: deque[tuple[Item, asyncio.Future[Outcome]]] = deque()
        self._working: asyncio.Task[None] | None = None

    async def do(self, item: Item) -> Outcome:
        """Do it in a batch that begins later than now.

        Once begun, it is done even if the caller is cancelled; before, it is not.
        """
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, outcome))
        if self._working is None:
            self._working = asyncio.create_task(self._run())
        return await outcome

    async def finish(self) -> None:
        """Return when all items given to `do` are done, except those without a waiting caller."""
        while self._working is not None:
            await asyncio.wait([self._working])

    async def _run(self) -> None:
        try:
            while batch := self._next():
                await self._do([item for item, _ in batch], [outcome for _, outcome in batch])
        finally:
            self._working = None

    def _next(self) -> "list[tuple[Item, asyncio.Future[Outcome]]]":
        batch: list[tuple[Item, asyncio.Future[Outcome]]] = []
        size = 0
        while self._waiting and len(batch) < self._most and size < BATCH_SIZE:
            item, outcome = self._waiting.popleft()
            if not outcome.done():  # else its caller has been cancelled
                batch.append((item, outcome))
                size += self._size(item)
        return batch

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
