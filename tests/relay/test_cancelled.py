"""A relay that is left at any time, and a relay's parts that fail or are cancelled, on a loop without waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.relay import Relay, RelayError
from tests.relay.relays import (
    MemoryBroker,
    MemoryConnection,
    Process,
    collect_faults,
    pass_time,
    skipping,
    watch_unchecked,
)


class TestLeaving:
    @pytest.mark.parametrize("iterations", range(8))
    @skipping
    async def test_leaving_ends_when_connection_is_lost_meanwhile(self, broker: MemoryBroker, iterations: int) -> None:
        async with Relay(broker=broker):
            await pass_time(1)
            broker.connections[0].lose()
            for _ in range(iterations):
                await asyncio.sleep(0)
        assert broker.connections == []

    @skipping
    async def test_leaving_ends_when_cancelled_task_raises_another_exception(self, broker: MemoryBroker) -> None:
        reading = asyncio.Event()

        async def refresh(keys: Collection[str]) -> None:
            reading.set()
            try:
                await pass_time(1000)
            finally:
                raise OSError("cannot roll back: the connection is closed")

        async with Relay(broker=broker) as other, Relay(broker=broker, refresh=refresh):
            other.notify("key")
            await reading.wait()

    @skipping
    async def test_a_flush_ends_when_leaving_is_cancelled_twice(self, broker: MemoryBroker) -> None:
        relay = Relay(broker=broker)
        await relay.__aenter__()
        broker.takes.clear()
        relay.notify("key")
        flushing = asyncio.create_task(relay.flush())
        leaving = asyncio.create_task(relay.__aexit__(None, None, None))
        await pass_time(1)
        leaving.cancel()
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        with pytest.raises(RelayError, match="before the broker had taken everything"):
            await flushing
        await pass_time(1)

    @skipping
    async def test_a_lost_connection_that_cannot_be_left_is_given_up(self) -> None:
        class Stuck(MemoryBroker):
            @asynccontextmanager
            async def connect(self, receive: Callable[[str | bytes], object]) -> AsyncIterator[MemoryConnection]:
                async with super().connect(receive) as connection:
                    try:
                        yield connection
                    finally:
                        await asyncio.Event().wait()

        broker = Stuck()
        async with Process({}, broker) as here:
            waiting = here.watch("key")
            for times in range(1, 4):
                broker.connections[0].lose()
                here.state["key"] = times
                await pass_time(100)
                assert here.relay.statistics().reconnects == times
            assert await waiting == 1


async def _cancelled() -> None:
    """Raise `CancelledError`, as a task does that awaits a cancelled one."""
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1, shared.cancel)
    await shared


async def _fails() -> None:
    raise OSError("not now")


async def _fails_in_a_group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_fails())


@pytest.mark.parametrize("fail", [_cancelled, _fails_in_a_group, _fails])
class TestPartsThatFail:
    @skipping
    async def test_a_refresh_is_reported_and_tried_again(self, broker: MemoryBroker, fail: Callable[[], Any]) -> None:
        faults = collect_faults()
        failures = iter([True, True])

        async def refresh(keys: Collection[str]) -> None:
            if next(failures, False):
                await fail()

        async with DelayedOperationPurgatory() as purgatory:
            [flag] = watch_unchecked(purgatory, "key")
            async with Relay(purgatory, broker=broker, refresh=refresh) as relay:
                await flag
                assert relay.statistics().failures == len(faults) == 2

    @pytest.mark.parametrize("method", ["publish", "ping", "listen"])
    @skipping
    async def test_a_connection_is_made_anew(
        self, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, method: str, fail: Callable[[], Any]
    ) -> None:
        failures = iter([True, True])
        works = getattr(MemoryConnection, method)

        async def fails(*arguments: Any) -> None:
            if next(failures, False):
                await fail()
            await works(*arguments)

        monkeypatch.setattr(MemoryConnection, method, fails)
        async with Relay(broker=broker) as relay:
            relay.notify("key")
            await pass_time(100)
            assert relay.connected
            assert (relay.statistics().reconnects, relay.statistics().unpublished) == (2, 0)

    @skipping
    async def test_an_attempt_to_connect_is_followed_by_another_but_the_first(
        self, broker: MemoryBroker, fail: Callable[[], Any]
    ) -> None:
        failures = iter([True])

        async def fail_once() -> None:
            if next(failures, False):
                await fail()

        async with Relay(broker=broker) as relay:
            broker.connecting = fail_once
            broker.connections[0].lose()
            await pass_time(100)
            assert relay.connected
        broker.connecting = fail
        relay = Relay(broker=broker)
        with pytest.raises(RelayError, match=r"the broker cannot be reached: [A-Z][A-Za-z]+: "):
            await relay.__aenter__()
        assert repr(relay) == "<Relay  closed>"


@skipping
async def test_a_time_out_of_the_brokers_own_is_not_said_to_be_the_relays(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def too_long(connection: MemoryConnection, payloads: object) -> None:
        raise TimeoutError("a lock is held")

    monkeypatch.setattr(MemoryConnection, "publish", too_long)
    async with Relay(broker=broker) as relay:
        relay.notify("key")
        await pass_time(1)
    assert "TimeoutError: a lock is held" in caplog.text
    assert "not answered" not in caplog.text
