"""The servers of the scenario `http` give the same answers."""

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from purgatory.bench.case import OURS
from purgatory.bench.client import Client, connect
from purgatory.bench.machine import Running, running
from purgatory.bench.web.servers import POLLS
from tests.support.servers import program

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


@pytest.fixture(params=POLLS)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    if request.param == "Node":
        program("node", "nodejs")
    with running(POLLS[request.param]) as server:
        yield server


@pytest.fixture
def port(server: Running) -> int:
    return server.port


async def until_waiting(client: Client, count: int) -> None:
    while int(await client.ask("GET", "/waiting")) != count:
        await asyncio.sleep(0.01)


async def test_a_publish_answers_all_clients_that_wait_for_it(port: int) -> None:
    control, *clients, late, other = [each async for each in connect(port, 23, Client)]
    waiting = [client.ask("GET", "/wait?topic=news&after=0") for client in clients]
    more = late.ask("GET", "/wait?topic=news&after=1")
    elsewhere = other.ask("GET", "/wait?topic=other&after=0")
    await until_waiting(control, 22)
    assert await control.ask("POST", "/publish?topic=news") == b"1"
    assert await asyncio.gather(*waiting) == [b"1"] * 20
    await until_waiting(control, 2)
    assert await control.ask("POST", "/publish?topic=news") == b"2"
    assert await more == b"2"
    assert await late.ask("GET", "/wait?topic=news&after=1") == b"2"
    assert not elsewhere.done()
    other.close()
    await until_waiting(control, 0)
    assert await clients[0].ask("GET", "/now") == b'"now"'


async def test_a_deadline_answers_with_the_count(port: int) -> None:
    (client,) = [each async for each in connect(port, 1, Client)]
    assert await client.ask("GET", "/wait?topic=news&after=0&timeout=0.05") == b"0"
    await until_waiting(client, 0)


@pytest.mark.parametrize("server", [OURS, "not parked"], indirect=True)
async def test_waiting_clients_are_answered_when_the_server_stops(server: Running) -> None:
    control, *clients = [each async for each in connect(server.port, 11, Client)]
    waiting = [client.ask("GET", "/wait?topic=news&after=0") for client in clients]
    await until_waiting(control, 10)
    server.process.terminate()
    assert await asyncio.gather(*waiting) == [b"0"] * 10
    # uvicorn raises the signal again when it has shut down.
    assert await asyncio.to_thread(server.process.wait, 30) in (0, -signal.SIGTERM)
