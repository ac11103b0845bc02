"""A purgatory and a timer belong to one loop: calls of other threads and on other loops are refused, but for one door.

Threads make conditions true by `check_and_complete_threadsafe` while the loop expires, cancels and forces.
"""

import asyncio
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import pytest
import uvloop

from purgatory import DelayedOperationPurgatory, Handle, PurgatoryMisuse, WheelTimer
from tests.support.cores import in_c
from tests.support.invariants import check_purgatory
from tests.support.operations import Flag, turn, wait

KEYS = 64
LOOPS = [asyncio.SelectorEventLoop, uvloop.new_event_loop]


class Once(Flag):
    """Counts its completions."""

    __slots__ = ("completions", "expirations", "key")

    def __init__(self, timeout: float | None, key: int) -> None:
        super().__init__(timeout)
        self.key = key
        self.completions = 0
        self.expirations = 0

    def on_complete(self) -> str:
        self.completions += 1
        return "done"

    def on_expiration(self) -> None:
        self.expirations += 1


async def storm(count: int) -> None:
    """Let threads make the conditions of `count` operations true while the loop ends and cancels others."""
    randomly = random.Random(8)
    work: SimpleQueue[Once | None] = SimpleQueue()

    def hammer(purgatory: DelayedOperationPurgatory) -> None:
        while (operation := work.get()) is not None:
            operation.ready = True
            purgatory.check_and_complete_threadsafe(operation.key)

    async with DelayedOperationPurgatory(purge_interval=50) as purgatory:
        threads = [threading.Thread(target=hammer, args=(purgatory,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        operations: list[Once] = []
        cancelled = 0
        for n in range(count):
            # Half of them have no timeout: only a thread completes these.
            timeout = randomly.choice([None, None, None, 0.0, randomly.random() * 0.02, 60.0])
            operation = Once(timeout, randomly.randrange(KEYS))
            purgatory.try_complete_else_watch(operation, [operation.key, KEYS + n % 7])
            operations.append(operation)
            work.put(operation)
            if timeout is not None:
                other = randomly.choice(operations[-50:])
                match randomly.randrange(8):
                    case 0:
                        other.force_complete()
                    case 1:
                        cancelled += other.cancel()
                    case 2 if n % 500 == 0:
                        cancelled += len(purgatory.cancel_for_key(KEYS + n % 7))
            if n % 100 == 0:
                await turn()
        for _ in threads:
            work.put(None)
        while any(thread.is_alive() for thread in threads) or purgatory.num_delayed:
            await turn()
        for thread in threads:
            thread.join()

        for operation in operations:
            assert operation.done()
            assert operation.completions == (0 if operation.cancelled() else 1)
            assert operation.expirations == (1 if operation.expired() else 0)
        statistics = purgatory.statistics()
        assert statistics.satisfied + statistics.expired + statistics.cancelled == count
        assert statistics.cancelled == cancelled == sum(operation.cancelled() for operation in operations)
        for key in range(KEYS + 7):
            purgatory.check_and_complete(key)
        assert (purgatory.num_delayed, purgatory.watched, len(purgatory.timer)) == (0, 0, 0)
        check_purgatory(purgatory)


async def test_every_operation_is_completed_exactly_once_and_none_is_lost() -> None:
    await storm(20_000)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_purgatories_on_loops_in_several_threads_do_not_disturb_each_other(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    def run(_: object) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(storm(5000))

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [None, None]


async def _watch(purgatory: DelayedOperationPurgatory, operation: Flag) -> Flag:
    return purgatory.try_complete_else_watch(operation, ["key"])


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_while_the_loop_does_not_run_anybody_may_call(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        purgatory = DelayedOperationPurgatory(clock=runner.get_loop())
        operations = [runner.run(_watch(purgatory, Flag(60.0))) for _ in range(5)]
        operations[0].force_complete()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(operations[1].cancel).result()
            operations[2].ready = True
            assert thread.submit(purgatory.check_and_complete, "key").result() == 1
            thread.submit(operations[3].reschedule, 0.0).result()
            assert runner.run(wait(operations[3])) == "result of flag"
            thread.submit(purgatory.close).result()
        assert [each.outcome for each in operations] == ["satisfied", "cancelled", "satisfied", "expired", "closed"]


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_purgatory_follows_its_loop_into_another_thread(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    purgatory = DelayedOperationPurgatory()

    async def complete(operation: Flag) -> str:
        operation.ready = True
        purgatory.check_and_complete("key")
        return await operation

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        first, second = (runner.run(_watch(purgatory, Flag())) for _ in range(2))
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(loop.run_until_complete, complete(first)).result() == "result of flag"
            running = thread.submit(loop.run_forever)
            try:
                while not loop.is_running():
                    pass
                for call in (second.force_complete, partial(purgatory.try_complete_else_watch, Flag(), ["key"])):
                    with pytest.raises(PurgatoryMisuse, match="must be called from its event loop's thread"):
                        call()
                with pytest.raises(PurgatoryMisuse, match="must be called from its event loop's thread"):
                    asyncio.run(wait(second))
                assert (purgatory.statistics().satisfied, purgatory.num_delayed) == (1, 1)
            finally:
                loop.call_soon_threadsafe(loop.stop)
                running.result()


@pytest.mark.parametrize("left", [True, False], ids=["with a call waiting", "with none"])
@pytest.mark.parametrize("closed", [False, True], ids=["its own is open", "its own is closed"])
def test_a_timer_on_a_second_loop_is_refused(left: bool, closed: bool) -> None:
    async def use() -> Handle:
        return timer.call_later(3600.0, print)

    timer = WheelTimer()
    first = asyncio.new_event_loop()
    handle = first.run_until_complete(use())
    if not left:
        handle.cancel()
    if closed:
        first.close()
    with pytest.raises(PurgatoryMisuse, match="event loop that is closed" if closed else "another event loop"):
        asyncio.run(use())
    assert len(timer) == left
    first.close()


@in_c
def test_two_threads_that_cancel_the_same_operations_at_a_time_harm_no_memory() -> None:
    async def hand_over() -> list[Flag]:
        return [purgatory.try_complete_else_watch(Flag(60.0), ["key"]) for _ in range(5000)]

    def cancel(operations: list[Flag]) -> None:
        for operation in operations:
            operation.cancel()

    interval = sys.getswitchinterval()
    purgatory = DelayedOperationPurgatory()
    with asyncio.Runner() as runner, ThreadPoolExecutor(2) as threads:
        operations = runner.run(hand_over())
        sys.setswitchinterval(1e-6)
        try:
            list(threads.map(cancel, [operations] * 2))
        finally:
            sys.setswitchinterval(interval)
    assert all(operation.cancelled() for operation in operations)


def test_a_purgatory_whose_loop_is_closed_refuses_an_operation() -> None:
    async def use() -> DelayedOperationPurgatory:
        purgatory = DelayedOperationPurgatory()
        purgatory.try_complete_else_watch(Flag(), ["key"])
        return purgatory

    purgatory = asyncio.run(use())
    operation = Flag(ready=True)
    with pytest.raises(PurgatoryMisuse, match="event loop that is closed"):
        purgatory.try_complete_else_watch(operation, ["key"])
    assert not operation.done()


async def test_a_purgatory_whose_timer_was_asked_on_another_loop_refuses_an_operation() -> None:
    async def ask() -> object:
        return purgatory.timer.clock

    purgatory = DelayedOperationPurgatory()
    assert await asyncio.to_thread(asyncio.run, ask()) is not asyncio.get_running_loop()
    with pytest.raises(PurgatoryMisuse, match="event loop that is closed"):
        purgatory.try_complete_else_watch(Flag(ready=True), ["key"])


async def test_a_purgatory_on_a_timer_of_its_loop_has_wrong_threads_and_a_door() -> None:
    async with DelayedOperationPurgatory(clock=WheelTimer()) as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        with pytest.raises(PurgatoryMisuse, match="must be called from its event loop's thread"):
            await asyncio.to_thread(purgatory.cancel_all)
        operation.ready = True
        await asyncio.to_thread(purgatory.check_and_complete_threadsafe, "key")
        assert await operation == "result of flag"
