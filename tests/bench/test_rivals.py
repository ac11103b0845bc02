"""The rivals of the benchmark do their work too: a rival that loses requests would be fast."""

import asyncio

import pytest

from purgatory import VirtualClock
from purgatory.bench.machine import Heartbeat
from purgatory.bench.scenarios.pending import Call, CallLaterPurgatory, EventWaiters


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def rival(clock: VirtualClock) -> CallLaterPurgatory:
    return CallLaterPurgatory(clock)


def test_a_deadline_is_kept(rival: CallLaterPurgatory, clock: VirtualClock) -> None:
    calls = [Call(timeout) for timeout in (0.5, 0.1, 0.3)]
    for call in calls:
        rival.try_complete_else_watch(call, ["key"])
    clock.advance(0.0999)
    assert [call.completed for call in calls] == [False, False, False]
    clock.advance(0.1001)
    assert [call.completed for call in calls] == [False, True, False]
    assert calls[0].force_complete()
    clock.advance(1)
    assert [call.force_complete() for call in calls] == [False, False, False]


def test_what_is_complete_is_forgotten(rival: CallLaterPurgatory) -> None:
    calls = [Call(1), Call(2)]
    for call in calls:
        rival.try_complete_else_watch(call, ["key", "other"])
    calls[0].force_complete()
    assert rival.watching == {"key": {calls[1]}, "other": {calls[1]}}


@pytest.mark.parametrize("expires", [False, True])
async def test_a_task_waits_for_its_event_or_its_timeout(expires: bool) -> None:
    waiters = EventWaiters()
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    event = waiters.start(0.001 if expires else 100, done.set_result)
    await asyncio.wait({done}, timeout=0)
    if not expires:
        assert not done.done()
        event.set()
    assert await done is expires


async def test_the_longest_iteration_is_noted() -> None:
    loop = asyncio.get_running_loop()
    heartbeat = Heartbeat()

    def busy() -> None:
        until = loop.time() + 0.05
        while loop.time() < until:
            pass
        turns.append(None)

    turns: list[None] = []
    loop.call_soon(busy)
    await heartbeat.until(lambda: bool(turns))
    assert heartbeat.longest >= 0.04  # uvloop's clock counts whole milliseconds
