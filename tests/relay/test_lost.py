"""The relay when its connection is lost or a state cannot be read, on a loop without waits."""

import asyncio
import logging
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory import DelayedOperationPurgatory
from purgatory.relay import Relay
from purgatory.relay.payload import decode
from purgatory.relay.retries import LONGEST
from tests.relay.relays import MemoryBroker, MemoryConnection, Process, pass_time, run, skipping
from tests.support.operations import Flag


class TestLostConnections:
    @skipping
    async def test_the_states_of_keys_without_a_watcher_are_forgotten(
        self, broker: MemoryBroker, state: dict[str, int]
    ) -> None:
        async with Process(state, broker) as here, Process(state, broker) as there:
            there.watch("key").cancel()
            there.purgatory.check_and_complete("key")
            broker.connections[1].lose()
            here.grow("key")
            await pass_time(10)
            assert "key" not in there.known
            assert there.watch("key", 0).done()

    @skipping
    async def test_more_than_max_keys_collapse_to_everything(self, broker: MemoryBroker, state: dict[str, int]) -> None:
        async with Process(state, broker, max_keys=100) as here, Process(state, broker) as there:
            waiting = [there.watch(str(number)) for number in range(101)]
            await pass_time(1)
            there.refreshed.clear()
            broker.connections[0].lose()
            for number in range(100):
                here.grow(str(number))
            assert here.relay.statistics().unpublished == 100
            here.grow("100")
            assert here.relay.statistics().unpublished == 1
            here.relay.notify("one more")
            assert here.relay.statistics().unpublished == 1
            for operation in waiting:
                await operation
            assert [decode(payload)[1] for payload in broker.taken] == [None]
            assert [len(keys) for keys in there.refreshed] == [101]

    @skipping
    async def test_more_than_max_keys_that_wait_to_be_looked_at_collapse_too(
        self, broker: MemoryBroker, state: dict[str, int]
    ) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with Process(state, broker) as here, Process(state, broker, max_keys=100) as there:
            there.failing = 3
            waiting = there.watch("5000")
            for number in range(10_000):
                here.grow(str(number))
            await here.relay.flush()
            await pass_time(0.001)
            assert there.relay.statistics().unchecked <= 1
            await waiting

    @skipping
    async def test_a_peer_that_does_not_answer_is_given_up_within_two_heartbeats(
        self, broker: MemoryBroker, state: dict[str, int]
    ) -> None:
        async with Process(state, broker) as here, Process(state, broker) as there:
            waiting = there.watch("key")
            for connection in broker.connections:
                connection.deaf = True
            await pass_time(2)
            here.grow("key")
            began = asyncio.get_running_loop().time()
            await waiting
            await here.relay.flush()
            assert asyncio.get_running_loop().time() - began < 30 + 2 * LONGEST

    def test_idle_costs_a_ping_each_heartbeat(
        self, broker: MemoryBroker, state: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pings = []
        ping = MemoryConnection.ping

        async def counted(connection: MemoryConnection) -> None:
            pings.append(asyncio.get_running_loop().time())
            await ping(connection)

        monkeypatch.setattr(MemoryConnection, "ping", counted)

        async def main() -> None:
            async with Process(state, broker):
                await pass_time(3601)

        run(main)
        assert len(pings) == 240

    @skipping
    async def test_attempts_to_connect_come_at_random_and_ever_more_slowly(
        self, broker: MemoryBroker, state: dict[str, int], caplog: pytest.LogCaptureFixture
    ) -> None:
        async with Process(state, broker):
            await pass_time(100)
            broker.away = True
            broker.connections[0].lose()
            await pass_time(200)
            waits = [_wait(record) for record in caplog.records]
            assert len(set(waits)) == len(waits)
            assert all(0 <= wait <= min(LONGEST, 0.1 * 2**number) for number, wait in enumerate(waits))
            assert 40 < len(waits) < 200
            broker.away = False
            await pass_time(100)
            caplog.clear()
            broker.connections[0].lose()
            await pass_time(1)
            [record] = caplog.records
            assert "ConnectionError: the broker has ended the connection" in record.getMessage()
            assert _wait(record) <= 0.1

    @skipping
    async def test_a_connection_that_is_lost_at_once_again_and_again_is_no_busy_loop(
        self, broker: MemoryBroker, state: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refused(connection: MemoryConnection, payloads: object) -> None:
            raise PermissionError("publishing is not allowed")

        monkeypatch.setattr(MemoryConnection, "publish", refused)

        async with Process(state, broker) as here:
            here.relay.notify("key")
            await pass_time(1000)
            assert here.relay.statistics().reconnects < 1000
            assert here.relay.statistics().unpublished == 1


class TestRefreshThatFails:
    @skipping
    async def test_failed_refresh_is_reported_and_tried_again(
        self, broker: MemoryBroker, state: dict[str, int]
    ) -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        async with Process(state, broker) as here, Process(state, broker) as there:
            waiting = there.watch("key")
            await pass_time(1)
            there.failing = 5
            here.grow("key")
            await waiting
            assert [str(context["exception"]) for context in faults] == ["the state cannot be read"] * 5
            assert there.relay.statistics().failures == 5

    @given(
        batches=st.lists(st.lists(st.integers(0, 2999), max_size=1500), min_size=1, max_size=4),
        poisoned=st.sets(st.integers(0, 2999), max_size=5),
    )
    @settings(max_examples=30)
    def test_poisoned_keys_delay_no_other_keys(self, batches: list[list[int]], poisoned: set[int]) -> None:
        bad = {str(number) for number in poisoned}

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

            async def refresh(keys: Collection[str]) -> None:
                await pass_time(0.001)
                if bad.intersection(keys):
                    raise ValueError("it cannot be read")

            broker = MemoryBroker()
            async with (
                DelayedOperationPurgatory() as purgatory,
                Relay(purgatory, broker=broker, refresh=refresh) as relay,
                Relay(broker=broker) as other,
            ):
                for number, batch in enumerate(batches):
                    good = [key for key in dict.fromkeys(map(str, batch)) if key not in bad]
                    flags = [purgatory.try_complete_else_watch(Flag(), [key]) for key in good]
                    for flag in flags:
                        flag.ready = True
                    # A batch has all poisoned keys in one notification. The key `alone` comes last, in its own.
                    other.notify(*bad, *map(str, batch))
                    await pass_time(0.3)  # about the time of the refreshes that find the poisoned keys
                    assert all(flag.done() for flag in flags)
                    alone = purgatory.try_complete_else_watch(Flag(), [f"alone-{number}"])
                    alone.ready = True
                    other.notify(f"alone-{number}")
                    await pass_time(0.01)
                    assert alone.done()
                await pass_time(60)
                assert relay.statistics().unchecked <= len(bad)

        run(main)

    @skipping
    async def test_an_invalidate_that_fails_is_tried_again(self, broker: MemoryBroker, state: dict[str, int]) -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        failures = iter([True, True])

        def invalidate() -> None:
            if next(failures, False):
                raise OSError("not now")

        async with DelayedOperationPurgatory() as purgatory:
            flag = purgatory.try_complete_else_watch(Flag(), ["key"])
            flag.ready = True
            async with Relay(purgatory, broker=broker, invalidate=invalidate):
                await flag
        assert len(faults) == 2


def _wait(record: logging.LogRecord) -> float:
    assert isinstance(record.args, tuple)
    assert isinstance(record.args[0], float)
    return record.args[0]
