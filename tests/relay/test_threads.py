"""The relay between event loops in threads of one process."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest

from purgatory.relay import ThreadBroker
from purgatory.relay.threads import _WAITING
from tests.relay.relays import Process
from tests.support.operations import turn

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

T = TypeVar("T")
Run = Callable[[Callable[[], Awaitable[T]]], "Future[T]"]


@pytest.fixture(params=["asyncio", "uvloop"])
def in_thread(request: pytest.FixtureRequest) -> Iterator[Run[Any]]:
    """Runs an async function on a new loop in a new thread."""
    factory = asyncio.SelectorEventLoop if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    def run(main: Callable[[], Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())

    with ThreadPoolExecutor(16) as threads:
        yield lambda main: threads.submit(run, main)


@contextmanager
def hanging(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Keep the loop of another thread in one callback."""
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        goes_on.wait()

    loop.call_soon_threadsafe(hang)
    hangs.wait()
    try:
        yield
    finally:
        goes_on.set()


class Elsewhere:
    """A process of the relay's tests on a loop in another thread, until it is told to stop."""

    def __init__(self, in_thread: Run[None], process: Process) -> None:
        self.process = process
        self._ready = threading.Event()
        self.ended = in_thread(self._run)
        self._ready.wait()

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self.process:
            self._ready.set()
            await self._stop.wait()

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call()` there."""

        async def called() -> T:
            return await call()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(called(), self.loop))

    async def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        await asyncio.wrap_future(self.ended)


async def test_change_in_one_loop_wakes_waiters_in_all_loops(in_thread: Run[None]) -> None:
    state: dict[str, int] = {}
    broker = ThreadBroker()
    count, keys = 4, 200
    waiting = threading.Barrier(count)
    done = threading.Barrier(count)

    async def run(number: int) -> None:
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
            assert process.relay.statistics().reconnects == 0

    for running in [in_thread(partial(run, number)) for number in range(count)]:
        await asyncio.wrap_future(running)
    assert repr(broker) == "<ThreadBroker connections=0>"


async def test_loop_that_hangs_holds_up_no_other_and_misses_nothing(in_thread: Run[None]) -> None:
    state: dict[str, int] = {}
    broker = ThreadBroker()
    there = Elsewhere(in_thread, Process(state, broker))
    async with Process(state, broker) as here, Process(state, broker) as beside:

        async def watch() -> Any:
            return [there.process.watch(f"key {number}") for number in range(_WAITING + 500)]

        missed = await there.call(watch)
        with hanging(there.loop):
            for number in range(_WAITING + 500):
                waiting = beside.watch(f"key {number}")
                here.grow(f"key {number}")
                assert await waiting == 1
            assert not any(operation.done() for operation in missed)
            assert len(broker._connections) == 2, "the third one is full"

        async def catch_up() -> None:
            for operation in missed:
                assert await operation == 1

        await there.call(catch_up)
        assert there.process.relay.statistics().reconnects == 1
        assert here.relay.statistics().reconnects == beside.relay.statistics().reconnects == 0
        await there.stop()


async def test_no_more_payloads_wait_than_the_limit() -> None:
    broker = ThreadBroker()
    async with broker.connect(print) as slow, broker.connect(print) as connection:
        for _ in range(_WAITING):
            await connection.publish(["payload"])
        await slow.ping()
        await connection.publish(["payload"])
        for each in (slow, connection):
            with pytest.raises(ConnectionError, match=f"more than {_WAITING} unread messages"):
                await each.ping()
            with pytest.raises(ConnectionError):
                await each.publish(["payload"])
            with pytest.raises(ConnectionError):
                await each.listen()


async def test_loop_that_was_closed_without_leaving_is_forgotten() -> None:
    broker = ThreadBroker()
    heard: list[str | bytes] = []
    gone = broker.connect(heard.append)

    def enter() -> None:
        loop = asyncio.SelectorEventLoop()
        loop.run_until_complete(gone.__aenter__())
        loop.close()

    await asyncio.to_thread(enter)
    async with broker.connect(heard.append) as connection:
        listening = asyncio.create_task(connection.listen())
        assert len(broker._connections) == 2
        await connection.publish(["first"])
        assert len(broker._connections) == 1
        await connection.publish(["second"])
        while len(heard) < 2:
            await turn()
        listening.cancel()
    assert heard == ["first", "second"]


async def test_loop_that_is_closed_while_a_message_is_handed_over_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = ThreadBroker()
    gone = broker.connect(lambda payload: None)
    loop = asyncio.SelectorEventLoop()
    await asyncio.to_thread(loop.run_until_complete, gone.__aenter__())
    loop.close()
    answers = iter([False])  # as it was when it was asked
    monkeypatch.setattr(loop, "is_closed", lambda: next(answers, True))
    async with broker.connect(lambda payload: None) as connection:
        await connection.publish(["first"])
        assert len(broker._connections) == 1


async def test_subscriber_that_raises_is_disconnected_alone() -> None:
    broker = ThreadBroker()
    heard: list[str | bytes] = []

    def fail(payload: str | bytes) -> None:
        raise LookupError(payload)

    async with broker.connect(fail) as failing, broker.connect(heard.append) as connection:
        listening = asyncio.create_task(connection.listen())
        await connection.publish(["payload"])
        with pytest.raises(LookupError, match="payload"):
            await failing.listen()
        await connection.publish(["another"])
        while len(heard) < 2:
            await turn()
        listening.cancel()


async def test_long_queue_is_taken_in_slices() -> None:
    loop = asyncio.get_running_loop()
    broker = ThreadBroker()
    iterations = 0
    heard: list[int] = []

    def count() -> None:
        nonlocal iterations
        iterations += 1
        if len(heard) < _WAITING:
            loop.call_soon(count)

    async with broker.connect(lambda payload: heard.append(iterations)) as connection:
        await connection.publish(["payload"] * _WAITING)
        count()
        listening = asyncio.create_task(connection.listen())
        while len(heard) < _WAITING:
            await turn()
        listening.cancel()
    assert max(map(heard.count, set(heard))) <= 1000
