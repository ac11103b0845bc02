"""The long-poll server behind a real nginx, with the configuration that README shows."""

import asyncio
import os
import re
import resource
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.paths import ROOT
from tests.support.server_process import ServerProcess, fetch, publish, running, statistics, until_waiting
from tests.support.servers import LOOPBACK, free_port, program

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

SITE = (ROOT / "examples" / "long_poll_server" / "nginx.conf").read_text()
HOST = "poll.example.org"

# The frame of a site in Debian's nginx.conf, with its files elsewhere, and no more processes than needed.
AROUND = """
daemon off;
worker_processes 1;
worker_rlimit_nofile 8192;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections {connections}; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


@contextmanager
def nginx(server: ServerProcess, folder: Path, site: str = SITE, connections: int = 768) -> Iterator[str]:
    """nginx before the server, for as long as the context lasts, and its URL."""
    executable = program("nginx", "nginx")
    port = free_port()
    site = _replaced(site, "server 127.0.0.1:8000;", f"server {server.url.removeprefix('http://')};")
    (folder / "site.conf").write_text(_replaced(site, "listen 80;", f"listen {LOOPBACK}:{port};"))
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder, connections=connections))
    # Its workers, which are another user's if it is root's, have to get at its files.
    user = ["-g", "user root;"] if os.geteuid() == 0 else []
    command = [executable, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf"), *user]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = f"http://{LOOPBACK}:{port}"
            while not _answers(url):
                assert process.poll() is None, process.stderr and process.stderr.read()
            yield url
        finally:
            process.send_signal(signal.SIGTERM)


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def _answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/statistics", headers={"Host": HOST}).status_code == 200
    return False


def _client(url: str, address: str = LOOPBACK, **headers: str) -> httpx.AsyncClient:
    """A client that comes from `address`."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=limits)
    return httpx.AsyncClient(base_url=url, transport=transport, timeout=60, headers={"Host": HOST, **headers})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("nginx")
    with (
        running(folder / "data", "--allowed-host", HOST, "--max-pending-client", "3") as server,
        nginx(server, folder) as url,
    ):
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with _client(url) as client:
        yield client


async def test_a_poll_is_answered_by_a_publish(client: httpx.AsyncClient) -> None:
    polls = [asyncio.create_task(fetch(client, "answered", wait=300)) for _ in range(3)]
    await until_waiting(client, 3)
    await publish(client, "answered", "through nginx")
    assert await asyncio.gather(*polls) == [(["through nginx"], 1)] * 3


async def test_a_client_that_disconnects_is_removed_at_once(client: httpx.AsyncClient) -> None:
    before = (await statistics(client))["cancelled"]
    polls = [asyncio.create_task(fetch(client, "left", wait=300)) for _ in range(3)]
    await until_waiting(client, 3)
    for poll in polls[:2]:
        poll.cancel()
    await until_waiting(client, 1)
    assert (await statistics(client))["cancelled"] == before + 2
    await publish(client, "left", "for the others")
    assert await polls[2] == (["for the others"], 1)


async def test_connections_to_the_server_are_kept(client: httpx.AsyncClient) -> None:
    async def accepted() -> int:
        """How many files the server has open: with 100 more connections there would be 100 more."""
        metrics = (await client.get("/metrics")).text
        found = re.search(r"^process_open_fds (\S+)$", metrics, re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    before = await accepted()
    for n in range(100):
        await publish(client, "kept", n)
    assert await accepted() <= before + 1


async def test_the_longest_wait_ends_before_nginx_gives_up(tmp_path: Path) -> None:
    # Both are shorter by the same factor: a test should not take a minute.
    site = _replaced(SITE, "proxy_read_timeout 60s;", "proxy_read_timeout 1200ms;")
    with (
        running(tmp_path / "data", "--allowed-host", HOST, "--max-wait", "1.0") as server,
        nginx(server, tmp_path, site) as url,
    ):
        async with _client(url) as client:
            polls = [fetch(client, f"topic-{n}", wait=300) for n in range(50)]
            produce = client.post("/topics/other/messages?acks=1&timeout=300", json={"value": 1})
            answers, produced = await asyncio.gather(asyncio.gather(*polls), produce)
            assert answers == [([], 0)] * 50
            assert "too few replicas have acknowledged it" in produced.json()["error"]
    error_log = (tmp_path / "error.log").read_text()
    assert "timed out" not in error_log


async def test_clients_are_told_apart_by_their_own_addresses(url: str, client: httpx.AsyncClient) -> None:
    async with _client(url, "127.0.0.2") as second, _client(url, "127.0.0.3") as third:
        polls = [asyncio.create_task(fetch(second, "apart", wait=300)) for _ in range(3)]
        await until_waiting(client, 3)
        refused = await second.get("/topics/apart/messages?wait=300")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json() == {"error": "the client has 3 waiting requests, as many as it may"}
        polls += [asyncio.create_task(fetch(third, "apart", wait=300)) for _ in range(3)]
        await until_waiting(client, 6)
        # The address that a client gives itself is not believed.
        async with _client(url, "127.0.0.2", **{"X-Forwarded-For": "10.0.0.1"}) as liar:
            assert (await liar.get("/topics/apart/messages?wait=300")).status_code == 429
        await publish(second, "apart", "for all")
        assert await asyncio.gather(*polls) == [(["for all"], 1)] * 6


async def test_a_page_of_the_site_may_publish_and_one_of_another_may_not(client: httpx.AsyncClient) -> None:
    for origin, status in ((f"https://{HOST}", 201), ("https://evil.example", 403)):
        response = await client.post("/topics/news/messages", json={"value": origin}, headers={"Origin": origin})
        assert response.status_code == status


async def test_five_hundred_polls_at_once(tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        running(tmp_path / "data", "--allowed-host", HOST) as server,
        nginx(server, tmp_path, connections=2048) as url,
    ):
        polls = [asyncio.create_task(_poll(url)) for _ in range(500)]
        async with server.client() as direct:
            await until_waiting(direct, 500)
            await publish(direct, "news", "for all")
        assert set(await asyncio.gather(*polls)) == {b'{"messages":[{"offset":0,"value":"for all"}],"next_offset":1}'}


async def _poll(url: str) -> bytes:
    """By hand, for five hundred of httpx' connections are slow."""
    reader, writer = await asyncio.open_connection(LOOPBACK, httpx.URL(url).port)
    writer.write(f"GET /topics/news/messages?wait=300 HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert b" 200 OK" in head
    return body
