"""Bugs of Kafka's purgatory and of what it is used for, which must not be here."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support.operations import FaultLog, Flag, turn


@pytest.mark.parametrize("finish", [Flag.force_complete, Flag.cancel])
def test_a_finished_operation_is_not_kept_until_the_purge(
    purgatory: DelayedOperationPurgatory, finish: Callable[[Flag], bool]
) -> None:
    """KAFKA-19389, KAFKA-19763: brokers ran out of memory on the responses of completed fetches on quiet keys."""
    gc.disable()
    try:
        operations = [purgatory.try_complete_else_watch(Flag(60.0), ["quiet", n]) for n in range(500)]
        alive = [weakref.ref(operation) for operation in operations]
        for operation in operations:
            finish(operation)
        del operation
        operations.clear()
        assert purgatory.watched == 1000, "no purge is due"
        assert [ref for ref in alive if ref() is not None] == []
    finally:
        gc.enable()


def test_a_condition_without_a_check_is_counted_at_the_deadline(clock: FaultLog) -> None:
    """KAFKA-14334: fetches from followers waited for their deadline, as replication checked no key.

    KAFKA-19567: share fetches did so after a change of the leader, and their dead entries stayed until a purge.
    """
    purgatory = DelayedOperationPurgatory(purge_interval=0, clock=clock)
    fetch = purgatory.try_complete_else_watch(Flag(0.5), ["partition"])
    fetch.ready = True
    clock.advance(0.5)
    assert (fetch.outcome, purgatory.statistics().missed) == ("satisfied", 1)
    clock.advance(0)
    assert purgatory.watched == 0


async def test_an_operation_is_not_tried_while_it_completes_nor_afterwards() -> None:
    """KAFKA-19312: `tryComplete` ran in one thread while the expiration thread ran `onComplete`."""
    loop = asyncio.get_running_loop()
    calls: list[str] = []

    class Fetch(Flag):
        def try_complete(self) -> bool:
            calls.append("try_complete")
            return super().try_complete()

        def on_complete(self) -> str:
            calls.append("on_complete")
            purgatory.check_and_complete("key")
            purgatory.check_and_complete_soon("key")
            thread.submit(purgatory.check_and_complete_threadsafe, "key").result()
            while loop.time() <= self._timer_deadline:
                pass  # the deadline passes meanwhile
            calls.append("completed")
            return super().on_complete()

    with ThreadPoolExecutor(1) as thread:
        async with DelayedOperationPurgatory() as purgatory:
            checked = purgatory.try_complete_else_watch(Fetch(0.02), ["key"])
            calls.clear()
            checked.ready = True
            purgatory.check_and_complete("key")
            assert (calls, checked.outcome) == (["try_complete", "on_complete", "completed"], "satisfied")
            calls.clear()
            expired = purgatory.try_complete_else_watch(Fetch(0.001), ["key"])
            await expired
            for _ in range(10):
                await turn()
            assert calls.index("on_complete") == len(calls) - 2, calls
            assert (expired.outcome, len(purgatory.timer)) == ("expired", 0)
