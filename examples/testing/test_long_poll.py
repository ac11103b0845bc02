"""The [long poll](../long_poll.py), with a client in the same loop. It needs no server, port or real seconds."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from examples import long_poll

NEWS = "/topics/news"


@pytest.fixture
async def state(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[long_poll.State]:
    monkeypatch.setattr(long_poll, "MAX_PENDING", 1)
    async with long_poll.lifespan(long_poll.app) as state:
        yield state


@pytest.fixture
async def client(state: long_poll.State) -> AsyncIterator[httpx.AsyncClient]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # ASGITransport runs no lifespan, so the requests get its state here.
        await long_poll.app({**scope, "state": dict(state)}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client


async def test_message_answers_a_poll(client: httpx.AsyncClient) -> None:
    loop = asyncio.get_running_loop()
    asked = loop.time()
    async with asyncio.TaskGroup() as group:
        poll = group.create_task(client.get(NEWS))
        await asyncio.sleep(10.0)
        await client.post(NEWS, content="hello")
    assert poll.result().json() == {"messages": ["hello"], "next_offset": 1}
    assert loop.time() - asked == pytest.approx(10.0, abs=0.002)  # a tick is a millisecond


async def test_poll_without_a_message_is_answered_at_its_deadline(client: httpx.AsyncClient) -> None:
    loop = asyncio.get_running_loop()
    asked = loop.time()
    assert (await client.get(NEWS)).json() == {"messages": [], "next_offset": 0}
    assert loop.time() - asked == pytest.approx(30.0, abs=0.002)


async def test_client_that_gives_up_leaves_no_poll(client: httpx.AsyncClient, state: long_poll.State) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await client.get(NEWS)
    assert state["purgatory"].num_delayed == 0


async def test_limits_and_bad_input_are_refused_in_one_format(client: httpx.AsyncClient) -> None:
    poll = asyncio.create_task(client.get(NEWS))
    await asyncio.sleep(1.0)
    full = await client.get(NEWS)
    assert (full.status_code, full.headers["Retry-After"]) == (503, "1")
    answers = [await client.get(NEWS, params={"offset": value}) for value in ("x", "1", "-1")]
    answers += [await client.get(NEWS, params={"wait": value}) for value in ("x", "nan", "301")]
    assert {answer.status_code for answer in answers} == {400}
    answers += [full, await client.post(NEWS, content=b"x" * 65_537), await client.delete(NEWS)]
    assert [list(answer.json()) for answer in answers] == [["error"]] * 9
    assert (await client.post(NEWS, content=b"x" * 65_536)).status_code == 201
    assert (await poll).json()["next_offset"] == 1
