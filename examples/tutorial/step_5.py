"""Step 5: tests of step 4 in virtual time. Run it with `python -m pytest examples/tutorial/step_5.py`."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from examples.tutorial.step_4 import app, topics
from purgatory import DelayedOperationPurgatory, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def client(clock: VirtualClock) -> AsyncIterator[httpx.AsyncClient]:
    topics.clear()
    app.state.purgatory = DelayedOperationPurgatory(clock=clock, max_pending=1)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def start_poll(client: httpx.AsyncClient) -> asyncio.Task[httpx.Response]:
    """Send a poll, and return when it waits."""
    poll = asyncio.create_task(client.get("/topics/news"))
    while not app.state.purgatory.num_delayed:
        await asyncio.sleep(0)
    return poll


async def test_next_message(clock: VirtualClock, client: httpx.AsyncClient) -> None:
    poll = await start_poll(client)
    await client.post("/topics/weather", params={"text": "rain"})
    await client.post("/topics/news", params={"text": "hello"})
    clock.advance(0.0)  # the next iteration, in which the topic is checked
    assert (await poll).json() == ["hello"]


async def test_deadline(clock: VirtualClock, client: httpx.AsyncClient) -> None:
    poll = await start_poll(client)
    clock.advance(29.0)
    assert app.state.purgatory.num_delayed == 1
    clock.advance(1.0)
    assert (await poll).json() == []


async def test_limit(clock: VirtualClock, client: httpx.AsyncClient) -> None:
    poll = await start_poll(client)
    refused = await client.get("/topics/news")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    clock.advance(30.0)
    await poll
