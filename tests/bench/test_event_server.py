"""The rival of the long-poll server, which waits for an `asyncio.Event`, gives the same answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.server_process import ServerProcess, fetch, publish, running, until_waiting

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running(tmp_path, module="purgatory.bench.event_server") as server:
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client() as client:
        yield client


async def test_a_publish_answers_all_clients_that_wait_for_it(client: httpx.AsyncClient) -> None:
    polls = [asyncio.create_task(fetch(client, "news", wait=300)) for _ in range(20)]
    more = asyncio.create_task(fetch(client, "news", min_messages=2, wait=300))
    await until_waiting(client, 21)
    await publish(client, "news", "first")
    assert await asyncio.gather(*polls) == [(["first"], 1)] * 20
    await until_waiting(client, 1)
    await publish(client, "news", "second")
    assert await more == (["first", "second"], 2)
    await until_waiting(client, 0)


async def test_a_deadline_answers_with_the_messages_there_are(client: httpx.AsyncClient) -> None:
    assert await fetch(client, "news", wait=0.05) == ([], 0)
    await publish(client, "news", "only one")
    assert await fetch(client, "news", min_messages=2, wait=0.05) == (["only one"], 1)


async def test_a_client_that_disconnects_is_forgotten(server: ServerProcess, client: httpx.AsyncClient) -> None:
    async with server.client() as other:
        poll = asyncio.create_task(fetch(other, "news", wait=300))
        await until_waiting(client, 1)
        poll.cancel()
        await asyncio.wait({poll})
    await until_waiting(client, 0)


async def test_all_are_answered_when_it_stops(server: ServerProcess, client: httpx.AsyncClient) -> None:
    polls = [asyncio.create_task(fetch(client, f"topic-{n}", wait=300)) for n in range(20)]
    await until_waiting(client, 20)
    assert await asyncio.to_thread(server.stop) == 0
    assert await asyncio.gather(*polls) == [([], 0)] * 20
