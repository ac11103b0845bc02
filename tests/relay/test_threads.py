"""The relay between event loops in threads of one process."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest

from purgatory.relay import ThreadBroker, threads
from tests.relay.relays import Process
from tests.support.operations import turn

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

T = TypeVar("T")
Run = Callable[[Callable[[], Awaitable[T]]], "Future[T]"]


@pytest.fixture(params=["asyncio", "uvloop"])
def in_thread(request: pytest.FixtureRequest) -> Iterator[Run[int]]:
    """Runs an async function on a new loop in a new thread."""
    factory = asyncio.SelectorEventLoop if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    async def run(main: Callable[[], Awaitable[int]]) -> int:
        return await main()

    def run_here(main: Callable[[], Awaitable[int]]) -> int:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(run(main))

    with ThreadPoolExecutor(16) as pool:
        yield lambda main: pool.submit(run_here, main)


async def test_change_in_one_loop_wakes_waiters_in_all_loops(in_thread: Run[int]) -> None:
    state: dict[str, int] = {}
    broker = ThreadBroker()
    count, keys = 4, 200
    waiting = threading.Barrier(count)
    done = threading.Barrier(count)

    async def run(number: int) -> int:
        async with Process(state, broker) as process:
            operations = [process.watch(f"{loop}-{key}") for loop in range(count) for key in range(keys)]
            await asyncio.to_thread(waiting.wait)
            for key in range(keys):
                process.grow(f"{number}-{key}")
                if key % 7 == 0:
                    await asyncio.sleep(0)
            for operation in operations:
                assert await operation == 1
            await asyncio.to_thread(done.wait)
            return process.relay.statistics().reconnects

    for running in [in_thread(partial(run, number)) for number in range(count)]:
        assert await asyncio.wrap_future(running) == 0
    assert repr(broker) == "<ThreadBroker connections=0>"


async def test_loop_that_hangs_holds_up_no_other_and_misses_nothing(
    in_thread: Run[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_WAITING", 100)
    state: dict[str, int] = {}
    broker = ThreadBroker()
    keys = [f"key {number}" for number in range(150)]
    hangs, goes_on = threading.Event(), threading.Event()

    async def hang() -> int:
        async with Process(state, broker) as there:
            missed = [there.watch(key) for key in keys]
            hangs.set()
            goes_on.wait()
            for operation in missed:
                assert await operation == 1
            return there.relay.statistics().reconnects

    hanging = in_thread(hang)
    await asyncio.to_thread(hangs.wait)
    try:
        async with Process(state, broker) as here, Process(state, broker) as beside:
            for key in keys:
                waiting = beside.watch(key)
                here.grow(key)
                assert await waiting == 1
            assert repr(broker) == "<ThreadBroker connections=2>", "the third one is full"
            assert here.relay.statistics().reconnects == beside.relay.statistics().reconnects == 0
    finally:
        goes_on.set()
    assert await asyncio.wrap_future(hanging) == 1


async def test_no_more_payloads_wait_than_the_limit() -> None:
    broker = ThreadBroker()
    async with broker.connect(print) as slow, broker.connect(print) as connection:
        for _ in range(4096):
            await connection.publish(["payload"])
        await slow.ping()
        await connection.publish(["payload"])
        for each in (slow, connection):
            with pytest.raises(ConnectionError, match="more than 4096 unread messages"):
                await each.ping()
            with pytest.raises(ConnectionError):
                await each.publish(["payload"])
            with pytest.raises(ConnectionError):
                await each.listen()


async def test_loop_that_was_closed_without_leaving_is_forgotten() -> None:
    broker = ThreadBroker()
    heard: list[str | bytes] = []
    gone = broker.connect(heard.append)
    loop = asyncio.SelectorEventLoop()
    await asyncio.to_thread(loop.run_until_complete, gone.__aenter__())
    loop.close()
    async with broker.connect(heard.append) as connection:
        listening = asyncio.create_task(connection.listen())
        await connection.publish(["first"])
        assert repr(broker) == "<ThreadBroker connections=1>"
        await connection.publish(["second"])
        while len(heard) < 2:
            await turn()
        listening.cancel()
    assert heard == ["first", "second"]


async def test_long_queue_is_taken_in_slices() -> None:
    broker = ThreadBroker()
    heard = 0

    def hear(payload: str | bytes) -> None:
        nonlocal heard
        heard += 1

    async with broker.connect(hear) as connection:
        await connection.publish(["payload"] * 4096)
        listening = asyncio.create_task(connection.listen())
        slices = []
        while heard < 4096:
            before = heard
            await asyncio.sleep(0)
            slices.append(heard - before)
        listening.cancel()
    assert max(slices) <= 1000
