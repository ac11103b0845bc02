"""An ASGI application whose requests wait, with a client in the same loop. It needs no server, port or real seconds."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import ThresholdPurgatory
from purgatory.asgi import DelayedResponse


def application(index: ThresholdPurgatory[int]) -> Starlette:
    async def wait(request: Request) -> Response:
        change = index.reach(int(request.query_params["index"]), timeout=30.0)
        return DelayedResponse(change, lambda value: JSONResponse(value))

    return Starlette(routes=[Route("/", wait)])


@pytest.fixture
async def index() -> AsyncIterator[ThresholdPurgatory[int]]:
    async with ThresholdPurgatory(41) as index:
        yield index


@pytest.fixture
async def client(index: ThresholdPurgatory[int]) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application(index))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_change_answers_a_poll(client: httpx.AsyncClient, index: ThresholdPurgatory[int]) -> None:
    loop = asyncio.get_running_loop()
    asked = loop.time()
    async with asyncio.TaskGroup() as group:
        poll = group.create_task(client.get("/", params={"index": 41}))
        await asyncio.sleep(10.0)
        index.advance(42)
    assert poll.result().json() == 42
    assert loop.time() - asked == pytest.approx(10.0, abs=0.002)


async def test_poll_without_a_change_is_answered_at_its_deadline(client: httpx.AsyncClient) -> None:
    loop = asyncio.get_running_loop()
    asked = loop.time()
    assert (await client.get("/", params={"index": 41})).json() == 41
    assert loop.time() - asked == pytest.approx(30.0, abs=0.002)


async def test_client_that_gives_up_leaves_no_poll(client: httpx.AsyncClient, index: ThresholdPurgatory[int]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await client.get("/", params={"index": 41})
    assert index.num_waiting == 0
