"""A proxy that partitions topics, with the configuration that `purgatory/SCALE.md` shows: waits and changes meet."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from purgatory.bench.case import OURS
from purgatory.bench.client import Client
from purgatory.bench.machine import Running, running
from purgatory.bench.web.servers import POLLS
from tests.support.paths import ROOT
from tests.support.servers import LOOPBACK, nginx, reserved_port

PAGE = (ROOT / "purgatory" / "SCALE.md").read_text()


@contextmanager
def behind_nginx(folder: Path) -> Iterator[tuple[int, list[Running]]]:
    """The servers that the page names, each a process without a relay, and the port of nginx before them."""
    port = reserved_port()
    found = re.search(r"^```text\n(upstream .*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    site = found[1].replace("listen 80;", f"listen {LOOPBACK}:{port};")
    with ExitStack() as stack:
        servers = []
        for address in re.findall(r"^    server ([\d.:]+);", site, re.MULTILINE):
            servers.append(stack.enter_context(running(POLLS[OURS])))
            site = site.replace(f"server {address};", f"server {LOOPBACK}:{servers[-1].port};")
        stack.enter_context(nginx(folder, site, workers=2))
        yield port, servers


async def dial(port: int) -> Client:
    while True:
        try:
            return (await asyncio.get_running_loop().create_connection(Client, LOOPBACK, port))[1]
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)


async def ask(port: int, method: str, target: str) -> int:
    client = await dial(port)
    try:
        return int(await client.ask(method, target))
    finally:
        client.close()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_waits_and_changes_of_a_topic_meet_in_one_process(tmp_path: Path) -> None:
    topics = [f"topic-{number}" for number in range(30)]
    with behind_nginx(tmp_path) as (port, servers):
        waits = [asyncio.ensure_future(ask(port, "GET", f"/wait?topic={topic}&after=0")) for topic in topics]
        async with asyncio.timeout(30):
            while len(topics) > sum(counts := [await ask(server.port, "GET", "/waiting") for server in servers]):
                await asyncio.sleep(0.02)
            assert min(counts) > 0
            for topic in topics:
                assert await ask(port, "POST", f"/publish?topic={topic}") == 1
            assert await asyncio.gather(*waits) == [1] * len(topics)
