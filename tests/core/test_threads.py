"""Threads make conditions true while the loop expires, cancels and forces; one method is for other threads."""

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import pytest
import uvloop

from purgatory import DelayedOperationPurgatory, PurgatoryError, ThresholdPurgatory, VirtualClock
from tests.support.invariants import check_purgatory
from tests.support.operations import Flag, turn

THREADS = 8
OPERATIONS = 100_000
KEYS = 64


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


async def test_every_operation_is_completed_exactly_once_and_none_is_lost() -> None:
    randomly = random.Random(8)
    work: SimpleQueue[Once | None] = SimpleQueue()

    def hammer(purgatory: DelayedOperationPurgatory) -> None:
        while (operation := work.get()) is not None:
            operation.ready = True
            purgatory.check_and_complete_threadsafe(operation.key)

    async with DelayedOperationPurgatory() as purgatory:
        threads = [threading.Thread(target=hammer, args=(purgatory,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        operations: list[Once] = []
        forced = cancelled = 0
        for n in range(OPERATIONS):
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
                        forced += other.force_complete()
                    case 1:
                        cancelled += other.cancel()
                    case 2 if n % 500 == 0:
                        cancelled += len(purgatory.cancel_for_key(KEYS + n % 7))
            if n % 100 == 0:
                await turn()
        for _ in threads:
            work.put(None)
        while any(thread.is_alive() for thread in threads):
            await turn()
        while purgatory.num_delayed:
            await turn()
        for thread in threads:
            thread.join()

        for operation in operations:
            assert operation.done()
            assert operation.completions == (0 if operation.cancelled() else 1)
            assert operation.expirations == (1 if operation.expired() else 0)
        statistics = purgatory.statistics()
        outcomes = (statistics.satisfied, statistics.expired, statistics.cancelled)
        assert statistics.completed_at_once == statistics.failed == 0
        assert sum(outcomes) == OPERATIONS
        assert statistics.cancelled == cancelled == sum(operation.cancelled() for operation in operations)
        assert statistics.expired == sum(operation.expired() for operation in operations)
        for key in range(KEYS + 7):
            purgatory.check_and_complete(key)
        assert (purgatory.num_delayed, purgatory.watched, len(purgatory.timer)) == (0, 0, 0)
        await turn()
        assert all(bucket is None for wheel in purgatory.timer.wheels[:1] for bucket in wheel.buckets)
        check_purgatory(purgatory)


def _call(method: str, purgatory: DelayedOperationPurgatory, _: Flag) -> object:
    return getattr(purgatory, method)()


Use = Callable[[DelayedOperationPurgatory, Flag], object]
USES: dict[str, tuple[Use, str]] = {
    "check_and_complete": (lambda purgatory, _: purgatory.check_and_complete("key"), "check_and_complete_threadsafe"),
    "check_and_complete_soon": (
        lambda purgatory, _: purgatory.check_and_complete_soon("key"),
        "check_and_complete_threadsafe",
    ),
    "cancel_for_key": (
        lambda purgatory, _: purgatory.cancel_for_key("key"),
        r"loop.call_soon_threadsafe\(purgatory.cancel_for_key, key\)",
    ),
    **{
        name: (partial(_call, name), rf"loop.call_soon_threadsafe\(purgatory.{name}\)")
        for name in ("complete_all", "cancel_all", "close")
    },
    "aclose": (
        lambda purgatory, _: asyncio.run(purgatory.aclose()),
        r"asyncio.run_coroutine_threadsafe\(purgatory.aclose\(\), loop\)",
    ),
    "force_complete": (
        lambda _, operation: operation.force_complete(),
        r"loop.call_soon_threadsafe\(operation.force_complete\)",
    ),
    "cancel": (lambda _, operation: operation.cancel(), r"loop.call_soon_threadsafe\(operation.cancel\)"),
    "reschedule": (
        lambda _, operation: operation.reschedule(1.0),
        r"loop.call_soon_threadsafe\(operation.reschedule, timeout\)",
    ),
}


@pytest.fixture
async def _debug() -> None:
    asyncio.get_running_loop().set_debug(True)


@pytest.mark.parametrize("use", USES)
@pytest.mark.usefixtures("_debug")
async def test_other_threads_are_refused_in_debug_mode_and_told_the_right_call(use: str) -> None:
    call, instead = USES[use]
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        operation.ready = True
        before = purgatory.statistics()
        with pytest.raises(PurgatoryError, match=rf"^{use}\(\) is not for other threads .*: use {instead}"):
            await asyncio.to_thread(call, purgatory, operation)
        assert purgatory.statistics() == before
        assert not operation.done()
        assert operation._timer_deadline > asyncio.get_running_loop().time() + 30
        # The right call completes it, and the loop's own thread may await it.
        await asyncio.to_thread(purgatory.check_and_complete_threadsafe, "key")
        assert await operation == "result of flag"


async def test_reschedule_to_an_empty_bucket_from_another_thread_is_refused_by_its_name() -> None:
    loop = asyncio.get_running_loop()
    loop.set_debug(False)
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        deadline = operation._timer_deadline
        with pytest.raises(PurgatoryError, match=r"^reschedule\(\) is not for other threads"):
            await asyncio.to_thread(operation.reschedule, 7200.0)
        assert operation._timer_deadline == deadline
        operation.reschedule(7200.0)
        assert operation._timer_deadline > deadline + 7000


@pytest.mark.parametrize("debug", [False, True])
async def test_watching_from_another_thread_is_always_refused(debug: bool) -> None:
    loop = asyncio.get_running_loop()
    loop.set_debug(debug)
    async with DelayedOperationPurgatory() as purgatory:
        operation = Flag()
        with pytest.raises(PurgatoryError, match=r"use loop.call_soon_threadsafe\(purgatory.try_complete_else_watch"):
            await asyncio.to_thread(purgatory.try_complete_else_watch, operation, ["key"])
        assert purgatory.watched == 0
        loop.call_soon_threadsafe(purgatory.try_complete_else_watch, operation, ["key"])
        await turn()
        assert purgatory.num_delayed == 1


def test_main_thread_is_refused_in_debug_mode_if_the_loop_is_elsewhere() -> None:
    ready, done = threading.Event(), threading.Event()
    purgatories: list[DelayedOperationPurgatory] = []

    async def main() -> None:
        async with DelayedOperationPurgatory() as purgatory:
            purgatory.try_complete_else_watch(Flag(), ["key"])
            purgatories.append(purgatory)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main(), debug=True))
    thread.start()
    ready.wait()
    try:
        with pytest.raises(PurgatoryError, match="check_and_complete_threadsafe"):
            purgatories[0].check_and_complete("key")
    finally:
        done.set()
        thread.join()


async def test_a_refusal_of_the_loop_itself_in_debug_mode_is_not_hidden() -> None:
    loop = asyncio.get_running_loop()
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        waiting = operation.__await__()
        next(waiting).add_done_callback(lambda _: None)
        loop.set_debug(True)  # after the purgatory has read it
        with pytest.raises(RuntimeError, match="Non-thread-safe operation"):
            await asyncio.to_thread(operation.force_complete)
        waiting.close()


@pytest.mark.usefixtures("_debug")
async def test_counts_may_be_read_in_any_thread_in_debug_mode() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        assert (await asyncio.to_thread(purgatory.statistics)).num_delayed == 1
        assert await asyncio.to_thread(lambda: (purgatory.num_delayed, purgatory.watched)) == (1, 1)


def test_a_virtual_clock_may_be_advanced_in_any_thread(
    purgatory: DelayedOperationPurgatory, clock: VirtualClock
) -> None:
    operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
    thread = threading.Thread(target=clock.advance, args=(1.0,))
    thread.start()
    thread.join()
    assert operation.expired()


def test_a_loop_given_as_the_clock_is_guarded_from_its_first_use() -> None:
    async def use() -> None:
        purgatory.try_complete_else_watch(Flag(), ["key"])
        with pytest.raises(PurgatoryError, match="check_and_complete_threadsafe"):
            await asyncio.to_thread(purgatory.check_and_complete, "key")
        await purgatory.aclose()

    with asyncio.Runner(debug=True) as runner:
        purgatory = DelayedOperationPurgatory(clock=runner.get_loop())
        runner.run(use())


async def test_a_thread_with_a_loop_of_its_own_is_refused_too() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        for use in (_watch(purgatory, Flag()), _wait(operation)):
            with pytest.raises(PurgatoryError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, use)
        assert purgatory.num_delayed == 1


async def _watch(purgatory: DelayedOperationPurgatory, operation: Flag) -> Flag:
    return purgatory.try_complete_else_watch(operation, ["key"])


async def _wait(operation: Flag) -> str:
    return await operation


@pytest.mark.parametrize("debug", [False, True])
def test_a_purgatory_follows_its_loop_into_another_thread(debug: bool) -> None:
    purgatory = DelayedOperationPurgatory()

    async def complete(operation: Flag) -> str:
        operation.ready = True
        purgatory.check_and_complete("key")
        return await operation

    with asyncio.Runner(debug=debug) as runner:
        operation = runner.run(_watch(purgatory, Flag()))
        with ThreadPoolExecutor(1) as thread:
            completing = thread.submit(runner.get_loop().run_until_complete, complete(operation))
            assert completing.result() == "result of flag"


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_the_thread_that_a_loop_has_left_is_refused(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    purgatory = DelayedOperationPurgatory()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        operation = runner.run(_watch(purgatory, Flag()))
        runner.run(_watch(purgatory, Flag())).cancel()
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(loop.run_forever)
            try:
                while not loop.is_running():
                    pass
                with pytest.raises(PurgatoryError, match="not for other threads"):
                    purgatory.try_complete_else_watch(Flag(), ["key"])
                for use in (_watch(purgatory, Flag()), _wait(operation)):
                    with pytest.raises(PurgatoryError, match="another event loop"):
                        asyncio.run(use)
                assert purgatory.num_delayed == 1
                assert not operation.done()
            finally:
                loop.call_soon_threadsafe(loop.stop)
                running.result()


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_purgatories_on_loops_in_several_threads_do_not_disturb_each_other(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    operations = 20_000
    begin = threading.Barrier(2)

    async def use() -> None:
        randomly = random.Random(9)
        async with DelayedOperationPurgatory(purge_interval=50) as purgatory, ThresholdPurgatory(0) as index:
            begin.wait()
            flags: list[Once] = []
            waits = []
            for number in range(operations):
                flag = Once(randomly.choice([None, 0.0, 0.01, 60.0]), number % KEYS)
                purgatory.try_complete_else_watch(flag, (flag.key, ("another", number % 7)))
                flags.append(flag)
                other = flags[randomly.randrange(max(0, number - 100), number + 1)]
                match randomly.randrange(4):
                    case 0:
                        other.ready = True
                        purgatory.check_and_complete(other.key)
                    case 1:
                        other.ready = True
                        purgatory.check_and_complete_soon(other.key)
                    case 2:
                        other.cancel()
                if number % 10 == 0:
                    waits.append(index.reach(number, None))
                    index.advance(number // 2)
                if number % 100 == 0:
                    await turn()
            index.advance_soon(operations)
            for flag in flags:
                flag.ready = True
                purgatory.check_and_complete_soon(flag.key)
            while purgatory.num_delayed or index.num_waiting:
                await turn()
            for flag in flags:
                assert flag.completions == (0 if flag.cancelled() else 1)
            assert all(wait.done() for wait in waits)
            assert purgatory.statistics().failed == 0
            check_purgatory(purgatory)
            check_purgatory(index.purgatory)

    def run() -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(use())

    with ThreadPoolExecutor(2) as threads:
        for running in [threads.submit(run) for _ in range(2)]:
            running.result()


def test_environment_variable_turns_the_check_on_where_the_loop_is_not_in_debug_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def use() -> None:
        assert not asyncio.get_running_loop().get_debug()
        async with DelayedOperationPurgatory() as purgatory:
            with pytest.raises(PurgatoryError, match="check_and_complete_threadsafe"):
                await asyncio.to_thread(purgatory.check_and_complete, "key")

    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    asyncio.run(use(), debug=False)
