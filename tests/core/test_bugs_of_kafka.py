"""Bugs of Kafka's purgatory and of what it is used for, which must not be here."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from purgatory import DelayedOperationPurgatory, PurgatoryMisuse
from tests.support.invariants import check_purgatory
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


def test_nothing_is_kept_by_key_when_operations_have_expired(clock: FaultLog) -> None:
    """KAFKA-20204: each partition on which an operation had expired kept its meter of expirations for good."""

    class Partition:
        pass

    purgatory = DelayedOperationPurgatory(purge_interval=0, clock=clock)
    purgatory.add_listener(lambda finished: None)
    partitions = [Partition() for _ in range(1000)]
    alive = [weakref.ref(partition) for partition in partitions]
    for _ in range(3):
        for n in range(1000):
            purgatory.try_complete_else_watch(Flag(1.0), [partitions[n]])
        clock.advance(1.0)
    partitions.clear()
    assert purgatory.statistics().expired == 3000
    assert (purgatory.watched, purgatory.watched_keys()) == (0, [])
    assert [each for each in alive if each() is not None] == []


def test_a_condition_without_a_check_is_counted_at_the_deadline(clock: FaultLog) -> None:
    """KAFKA-14334: fetches from followers waited for their deadline, as replication checked no key.

    KAFKA-19227: share fetches did so for which an acknowledgement had made room. KAFKA-19567: they did so after a
    change of the leader, and their dead entries stayed until a purge.
    """
    purgatory = DelayedOperationPurgatory(purge_interval=0, clock=clock)
    fetch = purgatory.try_complete_else_watch(Flag(0.5), ["partition"])
    fetch.ready = True
    clock.advance(0.5)
    assert (fetch.outcome, purgatory.statistics().missed) == ("satisfied", 1)
    clock.advance(0)
    assert purgatory.watched == 0


@pytest.mark.parametrize("end", ["expires", "is forced", "is cancelled", "is checked"])
def test_the_end_of_an_operation_tries_no_other_one(clock: FaultLog, end: str) -> None:
    """KAFKA-20425: each share fetch that completed had the others of its partitions tried, even when nothing was there.

    A program checks a key when something has come for those that watch it.
    """

    class Counting(Flag):
        tries = 0

        def try_complete(self) -> bool:
            self.tries += 1
            return super().try_complete()

    purgatory = DelayedOperationPurgatory(purge_interval=0, clock=clock)
    operations = [purgatory.try_complete_else_watch(Counting(60.0), ["partition"]) for _ in range(100)]
    ending = [purgatory.try_complete_else_watch(Counting(n / 10), ["partition", n]) for n in range(1, 101)]
    for n, operation in enumerate(ending, start=1):
        match end:
            case "expires":
                clock.advance_to(n / 10)
            case "is forced":
                operation.force_complete()
            case "is cancelled":
                operation.cancel()
            case "is checked":
                operation.ready = True
                purgatory.check_and_complete(n)
        clock.advance(0)
        assert operation.done()
    assert {operation.tries for operation in operations} == {2}, "of the hand-over"
    assert {operation.tries for operation in ending} == {3 if end in ("expires", "is checked") else 2}
    check_purgatory(purgatory)


async def test_an_operation_completes_neither_at_its_deadline_nor_by_a_thread_while_it_is_tried() -> None:
    """KAFKA-17948: `onComplete`, in the expiration thread, read what a `tryComplete` in another one was changing."""
    loop = asyncio.get_running_loop()
    calls: list[str] = []

    class Fetch(Flag):
        def try_complete(self) -> bool:
            calls.append("try_complete")
            if self.ready:
                thread.submit(purgatory.check_and_complete_threadsafe, "key").result()
                with pytest.raises(PurgatoryMisuse, match="not for other threads"):
                    thread.submit(self.force_complete).result()
                while loop.time() <= self._timer_deadline:
                    pass  # the deadline passes meanwhile
            calls.append("tried")
            return False

        def on_complete(self) -> str:
            calls.append("on_complete")
            return super().on_complete()

    with ThreadPoolExecutor(1) as thread:
        async with DelayedOperationPurgatory() as purgatory:
            fetch = purgatory.try_complete_else_watch(Fetch(0.02), ["key"])
            fetch.ready = True
            calls.clear()
            purgatory.check_and_complete("key")
            assert calls == ["try_complete", "tried"]
            await asyncio.wait_for(fetch, 30)
            assert fetch.expired()
            assert calls == [*["try_complete", "tried"] * (len(calls) // 2), "on_complete"]


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


@pytest.mark.parametrize("method", ["try_complete", "on_complete", "on_expiration"])
async def test_a_thread_with_a_lock_may_ask_for_a_check_while_an_operation_waits_for_that_lock(method: str) -> None:
    """KAFKA-20505: a thread completed a future under a partition's lock, and that checked the purgatory.

    It waited for the lock of an operation, whose thread waited for that of the partition.
    """
    lock = threading.Lock()
    is_held, waits = threading.Event(), threading.Event()

    def check_under_the_lock() -> None:
        with lock:
            is_held.set()
            assert waits.wait(30)
            purgatory.check_and_complete_threadsafe("key")

    class Fetch(Flag):
        def try_complete(self) -> bool:
            self.visit("try_complete")
            return super().try_complete()

        def on_complete(self) -> str:
            self.visit("on_complete")
            return super().on_complete()

        def on_expiration(self) -> None:
            self.visit("on_expiration")

        def visit(self, name: str) -> None:
            if name == method and is_held.is_set():
                waits.set()
                assert lock.acquire(timeout=30)
                lock.release()

    async with DelayedOperationPurgatory() as purgatory:
        with ThreadPoolExecutor(1) as thread:
            fetch = purgatory.try_complete_else_watch(Fetch(3600.0), ["key"])
            checked = thread.submit(check_under_the_lock)
            assert is_held.wait(30)
            fetch.ready = method != "on_expiration"
            purgatory.check_and_complete_soon("key")
            if method == "on_expiration":
                fetch.reschedule(0.0)
            assert await fetch == "result of flag"
            checked.result(30)
        assert fetch.outcome == ("expired" if method == "on_expiration" else "satisfied")
