"""The server behind a real nginx, with the configuration that README names."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.streams.processes import ROOT, append, client_of, create, metric, poll, running, slow_reader, until_waiting
from tests.support.paths import ROOT as PROJECT
from tests.support.servers import LOOPBACK, nginx, reserved_port

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

SITE = (PROJECT / "purgatory" / "streams" / "nginx.conf").read_text()
HOST = "streams.example.org"
LOCAL_TOO = ("        allow 127.0.0.0/8;\n", "")
"""Tests come from where the operator does."""


@contextmanager
def behind_nginx(folder: Path, *options: str, changed: tuple[str, str] = ("", "")) -> Iterator[str]:
    """nginx before a server with these options, for as long as the context lasts, and its URL.

    Of the documented configuration, the first text of `changed` is replaced by the second.
    """
    port = reserved_port()
    with running(folder / "data", "--allowed-host", HOST, *options) as server:
        site = SITE.replace(*changed) if changed[0] else SITE
        site = _replaced(site, "server 127.0.0.1:4437;", f"server {server.url.removeprefix('http://')};")
        site = _replaced(site, "listen 80;", f"listen {LOOPBACK}:{port};")
        with nginx(folder, site) as process:
            url = f"http://{LOOPBACK}:{port}"
            while not _answers(url):
                assert process.poll() is None, process.stderr and process.stderr.read()
            yield url


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def _answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", headers={"Host": HOST}).status_code == 200
    return False


_client = partial(client_of, Host=HOST)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with behind_nginx(tmp_path_factory.mktemp("nginx"), "--max-pending-client", "3") as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with _client(url) as client:
        yield client


async def test_events_come_at_once(client: httpx.AsyncClient) -> None:
    await create(client, "events")
    async with client.stream("GET", f"{ROOT}/events", params={"offset": "-1", "live": "sse"}) as stream:
        lines = stream.aiter_lines()
        for text in "abc":
            await append(client, "events", text)
            async for line in lines:
                if line == f"data:{text}":
                    break


async def test_a_client_that_disconnects_is_removed_at_once(client: httpx.AsyncClient) -> None:
    cancelled = 'purgatory_operations_total{outcome="cancelled",purgatory="read"}'
    await create(client, "left")
    before = await metric(client, cancelled)
    polls = [asyncio.create_task(poll(client, "left")) for _ in range(3)]
    await until_waiting(client, 3)
    for each in polls[:2]:
        each.cancel()
    await until_waiting(client, 1)
    assert await metric(client, cancelled) == before + 2
    await append(client, "left", "for the others")
    assert await polls[2] == "for the others"


async def test_the_longest_wait_ends_before_nginx_gives_up(tmp_path: Path) -> None:
    # Both are shorter by the same factor: a test should not take a minute.
    changed = ("proxy_read_timeout 60s;", "proxy_read_timeout 2s;")
    with behind_nginx(tmp_path, "--long-poll-timeout", "1", changed=changed) as url:
        async with _client(url) as client:
            await create(client, "news")
            assert await asyncio.gather(*(poll(client, "news") for _ in range(50))) == [""] * 50
    assert "timed out" not in (tmp_path / "error.log").read_text()


async def test_clients_are_told_apart_by_their_own_addresses(url: str, client: httpx.AsyncClient) -> None:
    await create(client, "apart")
    async with _client(url, "127.0.0.2") as second, _client(url, "127.0.0.3") as third:
        polls = [asyncio.create_task(poll(second, "apart")) for _ in range(3)]
        await until_waiting(client, 3)
        refused = await second.get(f"{ROOT}/apart?offset=-1&live=long-poll")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        polls += [asyncio.create_task(poll(third, "apart")) for _ in range(3)]
        await until_waiting(client, 6)
        # The address that a client gives itself is not believed.
        async with _client(url, "127.0.0.2", **{"X-Forwarded-For": "10.0.0.1"}) as liar:
            assert (await liar.get(f"{ROOT}/apart?offset=-1&live=long-poll")).status_code == 429
        await append(client, "apart", "for all")
        assert await asyncio.gather(*polls) == ["for all"] * 6


async def test_an_address_has_so_many_connections_and_no_more(tmp_path: Path) -> None:
    changed = ("limit_conn streams_connections 200;", "limit_conn streams_connections 3;")
    with behind_nginx(tmp_path, changed=changed) as url:
        async with _client(url, "127.0.0.2") as greedy, _client(url, "127.0.0.3") as other:
            await create(other, "news")
            polls = [asyncio.create_task(poll(greedy, "news")) for _ in range(3)]
            await until_waiting(other, 3)
            refused = await greedy.get(f"{ROOT}/news")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["message"] == "the client has reached the limit of the proxy"
            await append(other, "news", "for all")
            assert await asyncio.gather(*polls) == ["for all"] * 3


async def test_connections_are_kept_and_slow_clients_are_the_proxys(url: str, client: httpx.AsyncClient) -> None:
    """With a connection for each of them, the server would have so many more files open."""
    await create(client, "long")
    before = await metric(client, "process_open_fds")
    for _ in range(100):
        await append(client, "long", b"x" * 10_000)
    assert await metric(client, "process_open_fds") <= before + 2
    stalled = f"POST {ROOT}/long HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 9999\r\n\r\nx"
    proxy: Any = SimpleNamespace(port=httpx.URL(url).port)
    with ExitStack() as stack:
        for _ in range(20):
            writer = stack.enter_context(socket.create_connection((LOOPBACK, proxy.port)))
            writer.sendall(stalled.encode())
            reader = stack.enter_context(slow_reader(proxy, "long"))
            assert await asyncio.to_thread(reader.recv, 12) == b"HTTP/1.1 200"
        # The server has sent all of it when it takes the next request on the same connection.
        assert len((await client.get(f"{ROOT}/long")).content) == 1_000_000
        assert await metric(client, "process_open_fds") <= before + 2


async def test_a_page_of_the_site_may_append_and_one_of_another_may_not(client: httpx.AsyncClient) -> None:
    await create(client, "news")
    for origin, status in ((f"https://{HOST}", 204), ("https://evil.example", 403)):
        headers = {"Origin": origin, "Content-Type": "text/plain"}
        assert (await client.post(f"{ROOT}/news", content="x", headers=headers)).status_code == status


SPELLINGS = (
    *("/v1/stream/__ds/subscriptions/x", "/v1/stream/__ds/subscriptions/%2E%2E%2F%2E%2E%2Fx"),
    *("/v1/stream/__ds/subscriptions/..%2F..%2Fx", "/v1/stream/__ds/subscriptions/a/../../../x"),
    *("/v1/stream/__ds/../x", "/v1/stream//__ds/subscriptions/x", "/v1/stream/%5F%5Fds/subscriptions/x"),
    *("/v1/stream/__ds%2Fsubscriptions%2Fx", "/v1/stream%2f__ds/subscriptions/x", "/v1/./stream/__ds/subscriptions/x"),
    *("/v1/x/../stream/__ds/subscriptions/x", "/v1/x/%2e%2E/stream/__ds/subscriptions/x", "//v1/stream/__ds/x"),
    *("/v1/stream/a/%2e%2e/__ds/subscriptions/x", "/v1/stream/a%2F..%2F__ds/subscriptions/x"),
    *("/v1/stream/__ds/subscriptions/%2E%2E%2F%2E%2E%2Fx/streams", "/v1/stream/__ds/subscriptions/x%0A"),
    *("/v1/stream/__ds/subscriptions/%0A%2E%2E%2F%2E%2E%2Fx", "/v1/stream/__ds/./subscriptions/x"),
    *("/v1/stream/__ds/subscriptions/a%2Fb", "http://streams.example.org/v1/stream/__ds/subscriptions/x"),
    *("/metrics", "/metrics%0A", "/%6Detrics", "/./metrics", "/x/../metrics", "/x/%2E%2E/metrics", "//metrics"),
    *("/x%2F..%2Fmetrics", "/metrics/", "/metrics/.", "/metrics/%2e", "/v1/streams", "/v1/streams%0A", "/v1//streams"),
    *("/v1/statistics", "/v1/%73tatistics", "/v1/stream/../statistics", "/v1%2Fstatistics", "/v1/statistics%0a"),
    *("/", "/.", "/%2e", "/page/page.js", "/page/%2e/page.js", "/v1/stream/..%2F..%2Fpage%2Fpage.js"),
)
"""Paths of what the configuration keeps for the operator."""


async def test_no_spelling_passes_the_rule_for_what_is_the_operators(tmp_path: Path) -> None:
    body = json.dumps({"type": "pull-wake", "pattern": "**", "wake_stream": "wakes"})
    with behind_nginx(tmp_path, changed=LOCAL_TOO) as url:
        host, port = url.removeprefix("http://").split(":")
        for spelling in SPELLINGS:
            for method in ("GET", "PUT"):
                connection = HTTPConnection(host, int(port))
                connection.putrequest(method, spelling, skip_host=True)
                for name, value in {
                    "Host": HOST,
                    "Content-Type": "application/json",
                    "Content-Length": str(len(body)),
                }.items():
                    connection.putheader(name, value)
                connection.endheaders(body.encode())
                answer = connection.getresponse()
                assert answer.status in (400, 403, 404), (method, spelling, answer.status, answer.read())
                connection.close()
        # What is not the operator's goes through.
        async with _client(url) as client:
            await create(client, "a")
            assert (await client.get(f"{ROOT}/__ds/jwks.json")).status_code == 200
