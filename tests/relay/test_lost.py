"""The relay when a connection is lost, a state cannot be read, a part fails, or it is left, on a loop without waits."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory import DelayedOperationPurgatory
from purgatory.relay import Relay, RelayError
from purgatory.relay.payload import decode
from purgatory.relay.retries import LONGEST
from tests.relay.relays import (
    MakeProcess,
    MemoryBroker,
    MemoryConnection,
    Process,
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


def _wait(record: logging.LogRecord) -> float:
    assert isinstance(record.args, tuple)
    assert isinstance(record.args[0], float)
    return record.args[0]
