"""Parts for the tests of the relay: a shared state, a broker in memory, and a loop that skips the waits."""

import asyncio
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Hashable, Sequence
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeAlias

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.relay import Broker, Relay
from tests.support.operations import Flag

P = ParamSpec("P")


def collect_faults() -> list[dict[str, Any]]:
    """The contexts that the running loop's exception handler will be given."""
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    return faults


def watch_unchecked(purgatory: DelayedOperationPurgatory, *keys: Hashable) -> list[Flag]:
    """An operation for each key that completes when the key is checked next."""
    flags = [purgatory.try_complete_else_watch(Flag(), [key]) for key in keys]
    for flag in flags:
        flag.ready = True
    return flags


class Grown(DelayedOperation[int]):
    """Completes when the number of `key`, as far as it is known here, is at least `wanted`."""

    def __init__(self, numbers: dict[str, int], key: str, wanted: int) -> None:
        super().__init__(None)
        self.numbers = numbers
        self.key = key
        self.wanted = wanted

    def try_complete(self) -> bool:
        return self.numbers.get(self.key, 0) >= self.wanted and self.force_complete()

    def on_complete(self) -> int:
        return self.numbers.get(self.key, 0)


class Process:
    """A process that shares `state` with others: it caches numbers of it, and its operations wait for them to grow.

    `state` maps keys to numbers: a dict, or what looks like one.
    """

    def __init__(self, state: Any, broker: Broker | None = None, **options: Any) -> None:
        self.state = state
        self.known: dict[str, int] = {}
        self.failing = 0
        """The number of following reads of the state that fail."""
        self.refreshed: list[Collection[str]] = []
        self.purgatory = DelayedOperationPurgatory()
        self.relay = Relay(self.purgatory, broker=broker, refresh=self.refresh, invalidate=self.known.clear, **options)

    async def __aenter__(self) -> "Process":
        await self.purgatory.__aenter__()
        await self.relay.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await self.relay.__aexit__(*exception)
        await self.purgatory.aclose()

    async def refresh(self, keys: Collection[str]) -> None:
        self.refreshed.append(keys)
        found = {key: self.state.get(key, 0) for key in keys}
        await asyncio.sleep(0)  # the numbers take a while to arrive, and may be outdated by then
        if self.failing:
            self.failing -= 1
            raise OSError("the state cannot be read")
        for key, number in found.items():
            self.known[key] = max(number, self.known.get(key, 0))

    def grow(self, key: str) -> None:
        """Change the state, and notify all processes."""
        number = self.known[key] = self.state.get(key, 0) + 1
        self.state[key] = number
        self.relay.notify(key)

    def watch(self, key: str, more: int = 1) -> Grown:
        """Wait until the number of `key` has grown by `more` from its cached value, or from the value now."""
        number = self.known.setdefault(key, self.state.get(key, 0))
        return self.purgatory.try_complete_else_watch(Grown(self.known, key, number + more), [key])


MakeProcess: TypeAlias = Callable[..., Process]


class MemoryBroker:
    """A broker in memory, which may be away, and whose connections get lost with all that is on its way on them."""

    def __init__(self) -> None:
        self.away = False
        self.connecting: Callable[[], Awaitable[object]] = partial(asyncio.sleep, 0)
        """Awaited by each attempt to connect."""
        self.takes = asyncio.Event()
        self.takes.set()
        """Publishing waits while this event is not set."""
        self.connections: list[MemoryConnection] = []
        self.taken: list[str] = []

    @asynccontextmanager
    async def connect(self, receive: Callable[[str | bytes], object]) -> AsyncIterator["MemoryConnection"]:
        await self.connecting()
        if self.away:
            raise ConnectionRefusedError("the broker is away")
        connection = MemoryConnection(self, receive)
        self.connections.append(connection)
        try:
            yield connection
        finally:
            connection.lose()


class MemoryConnection:
    def __init__(self, broker: MemoryBroker, receive: Callable[[str | bytes], object]) -> None:
        self.broker = broker
        self.receive = receive
        self.arriving: asyncio.Queue[str | None] = asyncio.Queue()
        self.lost = False
        self.deaf = False
        """Whether the connection takes everything and answers nothing."""

    def lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.broker.connections.remove(self)
            self.arriving.put_nowait(None)

    async def publish(self, payloads: Sequence[str]) -> None:
        await self.broker.takes.wait()
        for payload in payloads:
            await self._answer()
            self.broker.taken.append(payload)
            for connection in list(self.broker.connections):
                connection.arriving.put_nowait(payload)
        # The connection may be lost before, between and after the payloads.
        await self._answer()

    async def ping(self) -> None:
        await self._answer()

    async def listen(self) -> None:
        while (payload := await self.arriving.get()) is not None and not self.lost:
            if not self.deaf:
                self.receive(payload)

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.deaf:
            await asyncio.get_running_loop().create_future()
        if self.lost:
            raise ConnectionResetError("the connection is lost")


HOURS = 20_000.0
"""Seconds."""


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop on which time passes at once when there is nothing to do. Waiting for nothing is an error, and no hang."""

    def __init__(self) -> None:
        self._now = 0.0
        self._end = HOURS
        super().__init__(_SkippingSelector(self._skip))

    def time(self) -> float:
        return self._now

    def _skip(self, seconds: float | None) -> None:
        if seconds is None:
            raise RuntimeError("all tasks wait, and nothing will ever happen")
        self._now += seconds
        if self._now > self._end:
            self._end += HOURS  # for tasks that clean up
            raise RuntimeError("hours have passed, and nothing but heartbeats has happened")


class _SkippingSelector(selectors.DefaultSelector):
    def __init__(self, skip: Callable[[float | None], None]) -> None:
        super().__init__()
        self._skip = skip

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._skip(timeout)
        return ready


async def pass_time(seconds: float) -> None:
    """Let time pass on a `SkippingLoop`, where that takes no real time."""
    assert isinstance(asyncio.get_running_loop(), SkippingLoop)
    await asyncio.sleep(seconds)


def skipping(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a `SkippingLoop`. No task may be left by it."""

    @wraps(test)
    def run_test(*arguments: P.args, **options: P.kwargs) -> None:
        async def alone() -> None:
            await test(*arguments, **options)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            runner.run(alone())

    return run_test
