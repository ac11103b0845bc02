"""Whether the database does what requests need."""

import asyncio
from typing import Final

from purgatory.streams.core.commands import Nothing
from purgatory.streams.engine.streams import Streams
from purgatory.streams.storage.database import Database, StorageUnavailable

_FRESH: Final = 1.0
"""Seconds for which a count is good."""
_PATIENCE: Final = 5.0
"""Seconds in which the database has to answer to be healthy."""


class Health:
    """Looks at the database: once for all that ask meanwhile, and while it is healthy once a second at most."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._count: int
        self._fresh_until = 0.0
        self._look: asyncio.Task[int] | None = None

    async def count(self) -> int:
        """Count the streams, through all that a request needs.

        Raises:
            StorageError: The database does not do it, or has not answered within five seconds.
        """
        if asyncio.get_running_loop().time() < self._fresh_until:
            return self._count
        if self._look is None:
            self._look = asyncio.create_task(self._looked())
            self._look.add_done_callback(self._done)
        return await asyncio.shield(self._look)

    async def _looked(self) -> int:
        try:
            async with asyncio.timeout(_PATIENCE):
                count = await self._streams.store.read(Database.probe)
                await self._streams.run(Nothing())
        except TimeoutError as error:
            raise StorageUnavailable("the database does not answer") from error
        self._count, self._fresh_until = count, asyncio.get_running_loop().time() + _FRESH
        return count

    def _done(self, look: asyncio.Task[int]) -> None:
        self._look = None
        _ = look.cancelled() or look.exception()  # all who have asked may have left
