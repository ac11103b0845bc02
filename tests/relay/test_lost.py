"""The relay when its connection is lost or a state cannot be read, on a loop without waits."""

import asyncio
import logging
from collections.abc import Collection
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory import DelayedOperationPurgatory
from purgatory.relay import Relay
from purgatory.relay.payload import decode
from purgatory.relay.retries import LONGEST
from tests.relay.relays import (
    MakeProcess,
    MemoryBroker,
    MemoryConnection,
    collect_faults,
    pass_time,
    skipping,
    watch_unchecked,
)
from tests.support.operations import Flag


class TestLostConnections:
    @skipping
    async def test_the_states_of_keys_without_a_watcher_are_forgotten(
        self, broker: MemoryBroker, process: MakeProcess
    ) -> None:
        async with process() as here, process() as there:
            there.watch("key").cancel()
            there.purgatory.check_and_complete("key")
            broker.connections[1].lose()
            here.grow("key")
            await pass_time(10)
            assert "key" not in there.known
            assert there.watch("key", 0).done()

    @skipping
    async def test_keys_that_are_no_str_are_not_brought_up_to_date(
        self, broker: MemoryBroker, process: MakeProcess
    ) -> None:
        async with process() as here:
            here.purgatory.try_complete_else_watch(Flag(), ["a", 1, ("b",), None])
            broker.connections[0].lose()
            await pass_time(10)
            assert here.refreshed == [["a"]]

    @skipping
    async def test_more_than_max_keys_collapse_to_everything(self, broker: MemoryBroker, process: MakeProcess) -> None:
        async with process(max_keys=100) as here, process() as there:
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
    async def test_more_than_max_keys_that_wait_to_be_looked_at_collapse_too(self, process: MakeProcess) -> None:
        collect_faults()
        async with process() as here, process(max_keys=100) as there:
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
        self, broker: MemoryBroker, process: MakeProcess
    ) -> None:
        async with process() as here, process() as there:
            waiting = there.watch("key")
            for connection in broker.connections:
                connection.deaf = True
            await pass_time(2)
            here.grow("key")
            began = asyncio.get_running_loop().time()
            await waiting
            await here.relay.flush()
            assert asyncio.get_running_loop().time() - began < 30 + 2 * LONGEST

    @skipping
    async def test_idle_costs_a_ping_each_heartbeat(
        self, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pings: list[MemoryConnection] = []

        async def ping(connection: MemoryConnection) -> None:
            pings.append(connection)

        monkeypatch.setattr(MemoryConnection, "ping", ping)
        async with Relay(broker=broker):
            await pass_time(3601)
        assert len(pings) == 240

    @skipping
    async def test_attempts_to_connect_come_at_random_and_ever_more_slowly(
        self, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with Relay(broker=broker):
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
        self, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refused(connection: MemoryConnection, payloads: object) -> None:
            raise PermissionError("publishing is not allowed")

        monkeypatch.setattr(MemoryConnection, "publish", refused)
        async with Relay(broker=broker) as relay:
            relay.notify("key")
            await pass_time(1000)
            assert relay.statistics().reconnects < 1000
            assert relay.statistics().unpublished == 1


MANY = 20_000


class CountedKey(str):
    """Counts how often keys are hashed: each step of the relay's work on a key hashes it."""

    __slots__ = ()

    hashed = 0

    def __hash__(self) -> int:
        CountedKey.hashed += 1
        return super().__hash__()


@pytest.mark.parametrize("refreshing", [False, True], ids=["checked", "refreshed and checked"])
@skipping
async def test_an_iteration_looks_at_a_bounded_number_of_the_watched_keys(
    broker: MemoryBroker, refreshing: bool
) -> None:
    async def refresh(keys: Collection[str]) -> None:
        pass

    async with DelayedOperationPurgatory() as purgatory:
        watch_unchecked(purgatory, *map(CountedKey, range(MANY)))
        hashed: list[int] = []
        async with Relay(purgatory, broker=broker, refresh=refresh if refreshing else None):
            while purgatory.num_delayed:
                hashed.append(CountedKey.hashed)
                await asyncio.sleep(0)
    # An iteration has a thousand keys and a thousand passes in the purgatory. A pass hashes a key a few times.
    assert max(later - earlier for earlier, later in pairwise(hashed)) < MANY / 3


class TestRefreshThatFails:
    @pytest.mark.parametrize("max_keys", [100, 10_000], ids=["all over again", "those left"])
    @skipping
    async def test_keys_left_after_too_many_failures_are_tried_again(self, broker: MemoryBroker, max_keys: int) -> None:
        collect_faults()
        failures = iter(range(20))  # more than one attempt makes
        refreshed: set[str] = set()

        async def refresh(keys: Collection[str]) -> None:
            if next(failures, None) is not None:
                raise OSError("not now")
            refreshed.update(keys)

        async with DelayedOperationPurgatory() as purgatory:
            flags = watch_unchecked(purgatory, *map(str, range(5000)))
            async with Relay(purgatory, broker=broker, refresh=refresh, max_keys=max_keys) as relay:
                await pass_time(60)
                assert all(flag.done() for flag in flags)
                assert (len(refreshed), relay.statistics().unchecked) == (5000, 0)

    @given(
        batches=st.lists(st.lists(st.integers(0, 2999), max_size=1500), min_size=1, max_size=4),
        poisoned=st.sets(st.integers(0, 2999), max_size=5),
    )
    @settings(max_examples=30)
    @skipping
    async def test_poisoned_keys_delay_no_other_keys(self, batches: list[list[int]], poisoned: set[int]) -> None:
        collect_faults()
        bad = {str(number) for number in poisoned}

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
                flags = watch_unchecked(purgatory, *{str(key) for key in batch if key not in poisoned})
                # A batch has all poisoned keys in one notification. The key `alone` comes last, in its own.
                other.notify(*bad, *map(str, batch))
                await pass_time(0.3)  # about the time of the refreshes that find the poisoned keys
                assert all(flag.done() for flag in flags)
                [alone] = watch_unchecked(purgatory, f"alone-{number}")
                other.notify(f"alone-{number}")
                await pass_time(0.01)
                assert alone.done()
            await pass_time(60)
            assert relay.statistics().unchecked <= len(bad)

    @skipping
    async def test_an_invalidate_that_fails_is_tried_again(self, broker: MemoryBroker) -> None:
        faults = collect_faults()
        failures = iter([True, True])

        def invalidate() -> None:
            if next(failures, False):
                raise OSError("not now")

        async with DelayedOperationPurgatory() as purgatory:
            [flag] = watch_unchecked(purgatory, "key")
            async with Relay(purgatory, broker=broker, invalidate=invalidate):
                await flag
        assert len(faults) == 2


def _wait(record: logging.LogRecord) -> float:
    assert isinstance(record.args, tuple)
    assert isinstance(record.args[0], float)
    return record.args[0]
