"""The link to the other processes: one connection to the broker at a time, replaced whenever it is lost.

Keys stay in the backlog until the broker has taken them. A lost connection ends both directions, even if the broker has
one for each. So after a failure to publish, the relay subscribes again too. It misses nothing, because every watched
key is checked afterwards.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

from purgatory.relay.backlog import Backlog
from purgatory.relay.broker import Broker, Connection
from purgatory.relay.payload import encode
from purgatory.relay.retries import is_cancelled, retrying

_CHUNK: Final = 16
"""The most payloads published in one go: about a millisecond of the loop's time, and little memory."""

_log = logging.getLogger("purgatory")


class Link:
    """Publishes the added keys, and hands over incoming payloads."""

    def __init__(
        self,
        broker: Broker,
        sender: str,
        heartbeat: float,
        max_keys: int,
        receive: Callable[[str | bytes], object],
        subscribed: Callable[[], object],
    ) -> None:
        """Make a link. It calls `subscribed` after each subscription, because notifications may have been missed."""
        self._broker = broker
        self._sender = sender
        self._heartbeat = heartbeat
        self._receive = receive
        self._subscribed = subscribed
        self._backlog = Backlog(max_keys)
        self._given = 0
        """The number of calls that have added keys."""
        self._taken = 0
        """The number of these whose keys the broker has taken."""
        self._progress = asyncio.Condition()
        self._lasts = False
        """Whether the present connection has lasted for a while."""
        self._closed = False
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first connection is there, or has failed."""
        self.connected: bool = False
        self.connections: int = 0
        self.published: int = 0

    @property
    def pending(self) -> int:
        """The number of keys that wait to be published."""
        return len(self._backlog)

    @property
    def idle(self) -> bool:
        """Whether the broker has taken all added keys."""
        return self._taken == self._given

    def add(self, keys: Iterable[str]) -> None:
        """Publish `keys` soon."""
        self._backlog.add(keys)
        self._given += 1

    async def flush(self) -> bool:
        """Return when the broker has taken all keys added so far, or never will."""
        given = self._given
        async with self._progress:
            await self._progress.wait_for(lambda: self._taken >= given or self._closed)
        return self._taken >= given

    async def aclose(self) -> None:
        """End each `flush`, because nothing more will be published."""
        self._closed = True
        async with self._progress:
            self._progress.notify_all()

    async def run(self) -> None:
        """Connect, and reconnect whenever the connection is lost. Return only if the first attempt fails."""
        attempts = retrying(self._report, should_retry=lambda: self.connections > 0, reset_backoff=lambda: self._lasts)
        try:
            await attempts(self._attempt)
        except Exception as exception:
            if not self.first.done():
                self.first.set_exception(exception)
        except asyncio.CancelledError:
            if not self.first.done():
                self.first.set_exception(ConnectionError("the broker has cancelled the connection"))
            raise

    async def _attempt(self) -> None:
        # A task of its own, as `retrying` explains.
        await asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        """Connect, and publish and listen until the connection is lost: raise then."""
        self._lasts = False
        async with self._limited() as limit, self._broker.connect(self._receive) as connection:
            limit.reschedule(None)
            self.connected = True
            self.connections += 1
            self._subscribed()
            if not self.first.done():
                self.first.set_result(None)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._listen(connection))
                    # Not a task of the group, because a task cancelled while it waits for two stays counted as
                    # cancelled.
                    await self._talk(connection)
            finally:
                self.connected = False
                limit.reschedule(asyncio.get_running_loop().time() + self._heartbeat)

    async def _listen(self, connection: Connection) -> None:
        try:
            await connection.listen()
        except asyncio.CancelledError:
            # The cancellation of another task would end this task alone, and the relay would not listen any more.
            if is_cancelled():
                raise
        raise ConnectionError("the broker has ended the connection")

    async def _talk(self, connection: Connection) -> None:
        """Publish whenever keys have been added, and ping each `heartbeat`."""
        loop = asyncio.get_running_loop()
        waiting = self._backlog.waiting
        due = loop.time() + self._heartbeat
        while True:
            try:
                async with asyncio.timeout_at(due):
                    await waiting.wait()
            except TimeoutError:
                pass
            if waiting.is_set():
                await self._publish(connection)
            if loop.time() >= due:
                async with self._limited():
                    await connection.ping()
                self._lasts = True
                due = loop.time() + self._heartbeat

    async def _publish(self, connection: Connection) -> None:
        given = self._given
        keys = self._backlog.take()
        try:
            payloads = encode(keys, self._sender)
            while chunk := list(islice(payloads, _CHUNK)):
                async with self._limited():
                    await connection.publish(chunk)
                self.published += len(chunk)
        except BaseException:
            # The broker may have taken them or not.
            self._backlog.add(keys)
            raise
        self._taken = given
        async with self._progress:
            self._progress.notify_all()

    @asynccontextmanager
    async def _limited(self) -> AsyncIterator[asyncio.Timeout]:
        """Raise `TimeoutError` if the broker does not answer in time."""
        limit = asyncio.timeout(self._heartbeat)
        try:
            async with limit:
                yield limit
        except TimeoutError as error:
            if not limit.expired():
                raise  # the broker's own
            raise TimeoutError(f"the broker has not answered for {self._heartbeat:g} seconds") from error

    def _report(self, exception: BaseException, seconds: float) -> None:
        _log.warning(
            "the relay has no connection to its broker, and tries again in %.1f seconds: %s",
            seconds,
            "; ".join(f"{type(cause).__name__}: {' '.join(str(cause).split())}" for cause in _causes(exception)),
        )


def _causes(exception: BaseException) -> Iterator[BaseException]:
    if isinstance(exception, BaseExceptionGroup):
        for each in exception.exceptions:
            yield from _causes(each)
    else:
        yield exception
