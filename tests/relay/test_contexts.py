"""A relay works in an empty context, never in that of the request that opened it, on a loop without waits."""

import asyncio
import contextvars
import gc
import weakref

from purgatory import DelayedOperationPurgatory
from purgatory.relay import Relay
from tests.relay.relays import MemoryBroker, pass_time, skipping
from tests.support.operations import Flag


class Session:
    """The value of a context variable."""


SESSION: contextvars.ContextVar[Session | None] = contextvars.ContextVar("SESSION", default=None)


@skipping
async def test_relay_works_outside_the_context_of_the_request_that_opened_it(broker: MemoryBroker) -> None:
    seen: list[Session | None] = []

    def see() -> None:
        seen.append(SESSION.get())

    async def see_soon(*arguments: object) -> None:
        see()

    broker.connecting = see_soon

    class Seeing(Flag):
        def try_complete(self) -> bool:
            see()
            return super().try_complete()

    async with DelayedOperationPurgatory() as purgatory:
        seeing = [purgatory.try_complete_else_watch(Seeing(), [str(number)]) for number in range(2)]
        seen.clear()
        SESSION.set(Session())
        async with Relay(purgatory, broker=broker, refresh=see_soon, invalidate=see) as relay:
            seeing[0].ready = True
            await seeing[0]
            broker.connections[0].lose()  # it connects once more, and checks all again
            seeing[1].ready = True
            await seeing[1]
            relay.notify("2")
            await relay.flush()
    assert len(seen) >= 2 * 3 + 3
    assert set(seen) == {None}


@skipping
async def test_request_that_opened_a_relay_is_not_kept_alive(broker: MemoryBroker) -> None:
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
