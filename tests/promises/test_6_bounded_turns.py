"""Promise 6: long work is done in slices of about a thousand entries, each in an iteration of its own."""

import asyncio
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from purgatory import DelayedOperationPurgatory, VirtualClock
from tests.support.operations import Flag, Waiting

MANY = 5_000
KEYS = 20_000


def most_in_an_iteration(clock: VirtualClock, measure: Callable[[], int], end: float) -> int:
    """Advance the clock to `end`. Returns the largest rise of `measure()` between two calls of a heartbeat."""
    steps = []
    last = measure()

    def beat() -> None:
        nonlocal last
        steps.append(measure() - last)
        last = measure()
        if sum(steps) < MANY:
            clock.call_at(end, beat)

    clock.call_at(end, beat)
    clock.advance_to(end)
    assert sum(steps) == MANY
    return max(steps)


def test_expiry_is_done_in_slices(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    for _ in range(MANY):
        purgatory.try_complete_else_watch(Flag(0.01), ["key"])
    assert most_in_an_iteration(clock, lambda: purgatory.statistics().expired, 0.01) <= 1000


def test_a_cascade_is_done_in_slices(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    for n in range(MANY):
        purgatory.try_complete_else_watch(Flag(1 + n / MANY / 10), ["key"])
    clock.advance(0.7)
    done = purgatory.timer.statistics().cascaded
    assert done == 0
    # The bucket of level 3 that covers 0.8 s to 1.2 s moves down.
    assert most_in_an_iteration(clock, lambda: purgatory.timer.statistics().cascaded, 0.8) <= 1000


@pytest.mark.parametrize("keys", [1, MANY])
def test_a_purge_is_done_in_slices(clock: VirtualClock, keys: int) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=MANY - 1, clock=clock)
    for n in range(MANY):
        purgatory.try_complete_else_watch(Flag(), [n % keys]).force_complete()
    iterations: list[int] = []

    def beat() -> None:
        iterations.append(purgatory.watched)
        if purgatory.watched:
            clock.call_at(0.0, beat)

    clock.call_at(0.0, beat)
    clock.advance(0)
    assert MANY / 1000 <= len(iterations) <= MANY / 1000 + 2, "a slice an iteration, neither more nor less"
    if keys == MANY:
        assert max(before - after for before, after in pairwise(iterations)) == 1000


@pytest.mark.parametrize("ready", ["none", "one", "all"])
def test_a_check_soon_is_done_in_slices(purgatory: DelayedOperationPurgatory, clock: VirtualClock, ready: str) -> None:
    operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(MANY)]
    for n, operation in enumerate(operations):
        operation.ready = ready == "all" or (ready == "one" and n == MANY // 2)
    purgatory.check_and_complete_soon("key")
    assert most_in_an_iteration(clock, lambda: sum(each.tries for each in operations), 0) <= 1000
    assert purgatory.num_delayed == purgatory.watched == {"none": MANY, "one": MANY - 1, "all": 0}[ready]


def test_a_check_soon_of_many_keys_is_done_in_slices(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    operations = [purgatory.try_complete_else_watch(Flag(), [n]) for n in range(MANY)]
    for n in range(MANY):
        purgatory.check_and_complete_soon(n)
    assert most_in_an_iteration(clock, lambda: sum(each.tries for each in operations), 0) <= 1000


def test_a_long_pass_does_not_hold_up_the_short_ones(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    long = [purgatory.try_complete_else_watch(Flag(), ["long"]) for _ in range(MANY)]
    short = purgatory.try_complete_else_watch(Flag(), ["short"])
    short.ready = True
    tried: list[int] = []
    short.then = lambda: tried.append(sum(each.tries == 3 for each in long))
    purgatory.check_and_complete_soon("long")
    purgatory.check_and_complete_soon("short")
    clock.advance(0)
    assert tried == [1000]


async def test_a_close_is_done_in_slices(purgatory: DelayedOperationPurgatory) -> None:
    operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(5000)]
    closing = purgatory.aclose().__await__()
    steps = [sum(operation.done() for operation in operations) for _ in closing]
    # Then the dead entries are removed, in slices too.
    assert steps == [1000, 2000, 3000, 4000, 5000, *[5000] * 5]


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
    purgatory = DelayedOperationPurgatory(purge_interval=10 * KEYS)
    for n in range(KEYS):
        operation = purgatory.try_complete_else_watch(Waiting(3600.0), (n,))
        if n % 2:
            operation.cancel()
    closing = asyncio.ensure_future(purgatory.aclose())
    changes = await steps(lambda: len(purgatory.watched_keys()), closing.done)
    assert sum(changes) == KEYS
    assert max(changes) <= 2 * 1000
    assert purgatory.watched == 0


def finish(purgatory: DelayedOperationPurgatory) -> None:
    """Finish enough operations for a purge to be due."""
    for n in range(KEYS + 100):
        purgatory.try_complete_else_watch(Waiting(None), (n % 10,)).cancel()


@pytest.mark.parametrize("work", ["purge", "aclose"])
def test_no_copy_of_all_keys_is_made(work: str) -> None:
    clock = VirtualClock()
    tracemalloc.start()
    try:
        purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
        for n in range(KEYS):
            purgatory.try_complete_else_watch(Waiting(None), (n,))
        if work == "purge":
            finish(purgatory)
            clock.advance(0)  # a first purge lays out the lists anew
            finish(purgatory)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        if work == "purge":
            clock.advance(0)
            assert purgatory.watched == KEYS
        else:
            for _ in purgatory.aclose().__await__():
                pass
            assert purgatory.watched == 0
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A list of all keys has 8 bytes for each; the longest of the ten with dead entries is made anew.
    assert most - before < 4 * KEYS


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Do `work` in threads while the loop is busy waiting for them."""
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count)))


@pytest.mark.parametrize(("threads", "keys"), [(1, 5000), (4, 3)])
async def test_calls_of_other_threads_wake_a_busy_loop_once(
    monkeypatch: pytest.MonkeyPatch, threads: int, keys: int
) -> None:
    woken: list[object] = []
    loop = asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe
    async with DelayedOperationPurgatory() as purgatory:
        flags = [purgatory.try_complete_else_watch(Flag(), (f"key {n}",)) for n in range(keys)]
        for flag in flags:
            flag.ready = True

        def check(thread: int) -> None:
            for n in range(10_000):
                purgatory.check_and_complete_threadsafe(f"key {n % keys}")

        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_soon_threadsafe", lambda *call, **options: woken.append(wake(*call, **options)))
            in_threads(threads, check)
            assert len(woken) == 1
            tries = await steps(lambda: sum(flag.tries for flag in flags), lambda: not purgatory.num_delayed)
            assert sum(tries) == keys
            assert max(tries) <= 1000
            for _ in range(1000):  # the passes asked for run to their ends
                await asyncio.sleep(0)
            assert len(woken) == 1
            # The loop is idle now, and is woken again.
            again = purgatory.try_complete_else_watch(Flag(), ("key 0",))
            again.ready = True
            in_threads(1, lambda _: purgatory.check_and_complete_threadsafe("key 0"))
            assert len(woken) == 2
            await again
