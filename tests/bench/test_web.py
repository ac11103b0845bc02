"""The servers of the scenario `http` give the same answers, also behind a proxy that partitions their topics."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from purgatory.bench.case import OURS
from purgatory.bench.client import Client, connected
from purgatory.bench.machine import Running, running
from purgatory.bench.web.servers import POLLS
from tests.support.paths import ROOT
from tests.support.servers import LOOPBACK, nginx, program, reserved_port

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


@pytest.fixture(params=POLLS)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    if request.param == "Node":
        program("node", "nodejs")
    with running(POLLS[request.param]) as server:
        yield server


async def until_waiting(client: Client, count: int) -> None:
    while int(await client.ask("GET", "/waiting")) != count:
        await asyncio.sleep(0.01)


async def test_a_publish_answers_all_clients_that_wait_for_it(server: Running) -> None:
    control, *clients, late, other = await connected(server.port, 23)
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


async def test_a_deadline_answers_with_the_count(server: Running) -> None:
    (client,) = await connected(server.port, 1)
    assert await client.ask("GET", "/wait?topic=news&after=0&timeout=0.05") == b"0"
    await until_waiting(client, 0)


@pytest.mark.parametrize("server", [OURS, "not parked"], indirect=True)
async def test_waiting_clients_are_answered_when_the_server_stops(server: Running) -> None:
    control, *clients = await connected(server.port, 11)
    waiting = [client.ask("GET", "/wait?topic=news&after=0") for client in clients]
    await until_waiting(control, 10)
    server.process.terminate()
    assert await asyncio.gather(*waiting) == [b"0"] * 10
    # uvicorn raises the signal again when it has shut down.
    assert await asyncio.to_thread(server.process.wait, 30) in (0, -signal.SIGTERM)


async def dial(port: int) -> Client:
    while True:
        try:
            return (await connected(port, 1))[0]
        except ConnectionRefusedError:  # nginx does not listen yet
            await asyncio.sleep(0.01)


async def ask(port: int, method: str, target: str) -> int:
    client = await dial(port)
    try:
        return int(await client.ask(method, target))
    finally:
        client.close()


async def test_waits_and_changes_of_a_topic_meet_in_one_process_behind_nginx(tmp_path: Path) -> None:
    # The site is that of the page. Each of its servers is a process without a relay.
    found = re.search(
        r"^```text\n(upstream .*?)^```", (ROOT / "purgatory" / "SCALE.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert found is not None
    topics, servers, port = [f"topic-{number}" for number in range(30)], [], reserved_port()
    site = found[1].replace("listen 80;", f"listen {LOOPBACK}:{port};")
    with ExitStack() as stack:
        for address in re.findall(r"^    server ([\d.:]+);", site, re.MULTILINE):
            servers.append(stack.enter_context(running(POLLS[OURS])))
            site = site.replace(f"server {address};", f"server {LOOPBACK}:{servers[-1].port};")
        stack.enter_context(nginx(tmp_path, site, workers=2))
        waits = [asyncio.ensure_future(ask(port, "GET", f"/wait?topic={topic}&after=0")) for topic in topics]
        async with asyncio.timeout(30):
            while len(topics) > sum(counts := [await ask(server.port, "GET", "/waiting") for server in servers]):
                await asyncio.sleep(0.02)
            assert min(counts) > 0
            for topic in topics:
                assert await ask(port, "POST", f"/publish?topic={topic}") == 1
            assert await asyncio.gather(*waits) == [1] * len(topics)
