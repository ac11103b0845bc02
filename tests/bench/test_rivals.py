"""The rivals of the benchmark do their work too: a rival that loses requests would be fast."""

import asyncio

import pytest

from purgatory import VirtualClock
from purgatory.bench.rivals import CallLaterPurgatory, EventWaiters, Request
from purgatory.bench.stalls import Heartbeat


class Waiting(Request):
    """Completes when it is ready, and notes its events."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.ready = False
        self.events: list[str] = []

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.events.append("complete")

    def on_expiration(self) -> None:
        self.events.append("expiration")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def rival(clock: VirtualClock) -> CallLaterPurgatory:
    return CallLaterPurgatory(clock)


def test_ready_request_does_not_wait(rival: CallLaterPurgatory, clock: VirtualClock) -> None:
    request = Waiting(1)
    request.ready = True
    rival.try_complete_else_watch(request, ["key"])
    clock.advance(2)
    assert request.events == ["complete"]
    assert rival.check_and_complete("key") == 0


def test_check_completes_ready_requests(rival: CallLaterPurgatory, clock: VirtualClock) -> None:
    requests = [Waiting(1) for _ in range(4)]
    for request in requests:
        rival.try_complete_else_watch(request, ["key", "other"])
    requests[1].ready = requests[2].ready = True
    assert rival.check_and_complete("key") == 2
    assert rival.check_and_complete("other") == 0
    clock.advance(2)
    once = ["complete"]
    expired = ["complete", "expiration"]
    assert [request.events for request in requests] == [expired, once, once, expired]


def test_a_deadline_is_kept(rival: CallLaterPurgatory, clock: VirtualClock) -> None:
    requests = [Waiting(timeout) for timeout in (0.5, 0.1, 0.3)]
    for request in requests:
        rival.try_complete_else_watch(request, ["key"])
    clock.advance(0.0999)
    assert [request.completed for request in requests] == [False, False, False]
    clock.advance(0.1001)
    assert [request.completed for request in requests] == [False, True, False]
    clock.advance(1)
    assert [request.completed for request in requests] == [True, True, True]


def test_what_is_complete_is_forgotten(rival: CallLaterPurgatory) -> None:
    requests = [Waiting(1), Waiting(2)]
    for request in requests:
        rival.try_complete_else_watch(request, ["key", "other"])
    requests[0].force_complete()
    assert rival.watching == {"key": {requests[1]}, "other": {requests[1]}}


@pytest.mark.parametrize("expires", [False, True])
async def test_a_task_waits_for_its_event_or_its_timeout(expires: bool) -> None:
    waiters = EventWaiters()
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    event = waiters.start(["key"], 0.001 if expires else 100, done.set_result)
    await asyncio.wait({done}, timeout=0)
    if not expires:
        assert waiters.keys["key"] == {event}
        event.set()
    assert await done is expires
    assert waiters.keys["key"] == set()


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
