"""After a reconnect every watched key is checked, in slices, however many there are, on a loop without waits."""

import asyncio
from collections.abc import Collection
from itertools import pairwise

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.relay import Relay
from tests.relay.relays import MemoryBroker, pass_time, skipping
from tests.support.operations import Flag

MANY = 60_000


class CountedKey(str):
    """Counts how often keys are hashed: each step of the relay's work on a key hashes it."""

    __slots__ = ()

    hashed = 0

    def __hash__(self) -> int:
        CountedKey.hashed += 1
        return super().__hash__()


@pytest.mark.parametrize("refreshing", [False, True], ids=["checked", "refreshed and checked"])
@skipping
async def test_an_iteration_looks_at_a_bounded_number_of_keys(broker: MemoryBroker, refreshing: bool) -> None:
    async def refresh(keys: Collection[str]) -> None:
        pass

    async with DelayedOperationPurgatory() as purgatory:
        flags = [purgatory.try_complete_else_watch(Flag(), [CountedKey(number)]) for number in range(MANY)]
        for flag in flags:
            flag.ready = True
        loop = asyncio.get_running_loop()
        hashed: list[int] = []
        handle: asyncio.Handle

        def beat() -> None:
            nonlocal handle
            hashed.append(CountedKey.hashed)
            handle = loop.call_soon(beat)

        handle = loop.call_soon(beat)
        async with Relay(purgatory, broker=broker, refresh=refresh if refreshing else None):
            while not all(flag.done() for flag in flags):
                for _ in range(100):
                    await asyncio.sleep(0)
            handle.cancel()
    # An iteration has a thousand keys and a thousand passes in the purgatory. A pass hashes a key a few times.
    assert max(later - earlier for earlier, later in pairwise(hashed)) < MANY / 3


@pytest.mark.parametrize("max_keys", [100, 10_000], ids=["all over again", "those left"])
@skipping
async def test_keys_left_after_too_many_failures_are_tried_again(broker: MemoryBroker, max_keys: int) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    failures = 20  # more than one attempt makes
    refreshed: set[str] = set()

    async def refresh(keys: Collection[str]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("not now")
        refreshed.update(keys)

    async with DelayedOperationPurgatory() as purgatory:
        flags = [purgatory.try_complete_else_watch(Flag(), [str(number)]) for number in range(5000)]
        for flag in flags:
            flag.ready = True
        async with Relay(purgatory, broker=broker, refresh=refresh, max_keys=max_keys) as relay:
            await pass_time(60)
            assert all(flag.done() for flag in flags)
            assert (len(refreshed), relay.statistics().unchecked) == (5000, 0)


@skipping
async def test_operations_that_come_and_go_meanwhile_hide_no_key(broker: MemoryBroker) -> None:
    async with DelayedOperationPurgatory(purge_interval=0) as purgatory:

        def watch(key: str) -> Flag:
            return purgatory.try_complete_else_watch(Flag(), [key])

        leaving = [watch(f"leaving-{number}") for number in range(5000)]
        flags = [watch(str(number)) for number in range(5000)]
        leaving += [watch(f"leaving-{number}") for number in range(5000, 10_000)]
        for flag in flags:
            flag.ready = True
        batches = 0

        async def refresh(keys: Collection[str]) -> None:
            nonlocal batches
            batches += 1
            for flag in (*leaving[-700:], *leaving[:700]):  # their lists are dropped, and others take the places
                flag.cancel()
            del leaving[-700:], leaving[:700]
            for number in range(100):
                watch(f"new-{batches}-{number}")
            await asyncio.sleep(0)

        async with Relay(purgatory, broker=broker, refresh=refresh):
            await pass_time(60)
            assert all(flag.done() for flag in flags)
            assert purgatory.num_delayed == 100 * batches + len(leaving)
