"""Work over many keys is done in slices on a loop too, to its very end; calls of other threads wake it once."""

import asyncio
import threading
import tracemalloc
from collections.abc import Callable
from contextvars import Context
from itertools import pairwise
from typing import Any, TypeVarTuple, Unpack

import pytest

from purgatory import DelayedOperationPurgatory, VirtualClock
from tests.support.operations import Flag, Waiting

Ts = TypeVarTuple("Ts")

MANY = 20_000
SLICE = 1000


async def steps(measure: Callable[[], int], over: Callable[[], bool]) -> list[int]:
    """The change of `measure()` in each iteration of the loop until `over()` is true."""
    values = [measure()]
    for _ in range(1_000_000):
        await asyncio.sleep(0)
        values.append(measure())
        if over():
            return [abs(after - before) for before, after in pairwise(values)]
    raise AssertionError("it is never over")


async def test_a_close_lets_go_of_keys_in_slices_to_its_very_end() -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10 * MANY)
    for n in range(MANY):
        operation = purgatory.try_complete_else_watch(Waiting(3600.0), (n,))
        if n % 2:
            operation.cancel()
    closing = asyncio.ensure_future(purgatory.aclose())
    changes = await steps(lambda: len(purgatory.watched_keys()), closing.done)
    assert sum(changes) == MANY
    assert max(changes) <= 2 * SLICE
    assert purgatory.watched == 0


def finish(purgatory: DelayedOperationPurgatory) -> None:
    """Finish enough operations for a purge to be due."""
    for n in range(MANY + 100):
        purgatory.try_complete_else_watch(Waiting(None), (n % 10,)).cancel()


@pytest.mark.parametrize("work", ["purge", "aclose"])
def test_no_copy_of_all_keys_is_made(work: str) -> None:
    clock = VirtualClock()
    tracemalloc.start()
    try:
        purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
        for n in range(MANY):
            purgatory.try_complete_else_watch(Waiting(None), (n,))
        if work == "purge":
            finish(purgatory)
            clock.advance(0)  # a first purge lays out the lists anew
            finish(purgatory)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        if work == "purge":
            clock.advance(0)
            assert purgatory.watched == MANY
        else:
            for _ in purgatory.aclose().__await__():
                pass
            assert purgatory.watched == 0
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A list of all keys has 8 bytes for each; the longest of the ten with dead entries is made anew.
    assert most - before < 4 * MANY


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often other threads wake it."""

    woken = 0

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.woken += 1
        return super().call_soon_threadsafe(callback, *args, context=context)


def run(main: Callable[[CountingLoop], Any]) -> None:
    """Run `main` on a loop of its own."""
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        runner.run(main(loop))


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Do `work` in threads while the loop is busy waiting for them."""
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("threads", "keys"), [(1, 5000), (4, 3)])
def test_calls_of_other_threads_wake_a_busy_loop_once(threads: int, keys: int) -> None:
    async def main(loop: CountingLoop) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            flags = [purgatory.try_complete_else_watch(Flag(), (f"key {n}",)) for n in range(keys)]
            for flag in flags:
                flag.ready = True
            loop.woken = 0

            def check(thread: int) -> None:
                for n in range(10_000):
                    purgatory.check_and_complete_threadsafe(f"key {n % keys}")

            in_threads(threads, check)
            assert loop.woken == 1
            tries = await steps(lambda: sum(flag.tries for flag in flags), lambda: not purgatory.num_delayed)
            assert sum(tries) == keys
            assert max(tries) <= SLICE
            assert loop.woken == 1
            for _ in range(1000):  # the passes asked for run to their ends
                await asyncio.sleep(0)
            # The loop is idle now, and is woken again.
            again = purgatory.try_complete_else_watch(Flag(), ("key 0",))
            again.ready = True
            in_threads(1, lambda _: purgatory.check_and_complete_threadsafe("key 0"))
            assert loop.woken == 2
            await again

    run(main)
