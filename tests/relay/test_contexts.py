"""A relay works in an empty context, never in that of the request that opened it, on a loop without waits."""

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from purgatory import DelayedOperationPurgatory
from purgatory.relay import Relay
from tests.relay.relays import MemoryBroker, MemoryConnection, pass_time, run
from tests.support.operations import Flag


class Session:
    """The value of a context variable."""


SESSION: contextvars.ContextVar[Session | None] = contextvars.ContextVar("SESSION", default=None)


class SeeingBroker(MemoryBroker):
    """Notes the session in which it is called."""

    def __init__(self, seen: list[Session | None]) -> None:
        super().__init__()
        self.seen = seen

    @asynccontextmanager
    async def connect(self, receive: Callable[[str | bytes], object]) -> AsyncIterator[MemoryConnection]:
        self.seen.append(SESSION.get())
        async with super().connect(receive) as connection:
            yield connection


def test_relay_works_outside_the_context_of_the_request_that_opened_it() -> None:
    async def main() -> None:
        seen: list[Session | None] = []
        broker = SeeingBroker(seen)

        class Seeing(Flag):
            def try_complete(self) -> bool:
                seen.append(SESSION.get())
                return super().try_complete()

        async def refresh(keys: Collection[str]) -> None:
            seen.append(SESSION.get())

        def invalidate() -> None:
            seen.append(SESSION.get())

        async with DelayedOperationPurgatory() as purgatory:
            seeing = [purgatory.try_complete_else_watch(Seeing(), [str(number)]) for number in range(2)]
            seen.clear()
            SESSION.set(Session())
            async with Relay(purgatory, broker=broker, refresh=refresh, invalidate=invalidate) as relay:
                seeing[0].ready = True
                await seeing[0]
                broker.connections[0].lose()  # it connects once more, and checks all again
                seeing[1].ready = True
                await seeing[1]
                relay.notify("2")
                await relay.flush()
        assert len(seen) >= 2 * 3 + 3
        assert set(seen) == {None}

    run(main)


def test_request_that_opened_a_relay_is_not_kept_alive(broker: MemoryBroker) -> None:
    async def main() -> None:
        async with DelayedOperationPurgatory() as purgatory:
            relay = Relay(purgatory, broker=broker)

            async def request() -> "weakref.ref[Session]":
                session = Session()
                SESSION.set(session)
                await relay.__aenter__()
                return weakref.ref(session)

            session = await asyncio.create_task(request())
            await pass_time(1)
            gc.collect()
            assert session() is None
            await relay.__aexit__(None, None, None)

    run(main)
