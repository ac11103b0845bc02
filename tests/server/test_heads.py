"""The bytes of a request that the long-poll server reads at all: heads, bodies, connections. Real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from examples.long_poll_server import protocol, requests
from tests.support.server_process import ServerProcess, in_this_process, publish, raw, running, until_waiting

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client() as client:
        yield client


HEAD = b"GET /statistics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"


class TestHeads:
    """The bytes that are read before they are a request."""

    @pytest.mark.parametrize(
        "head",
        [
            HEAD + b"X: " + b"x" * 16_400 + b"\r\n\r\n",
            HEAD + b"X: x\r\n" * 6000 + b"\r\n",
            b"GET /" + b"x" * 16_400 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            HEAD + b"X: " + b"x" * 100_000,
            b"GET /" + b"x" * 100_000,
        ],
        ids=["long header", "many headers", "long path", "header without end", "path without end"],
    )
    async def test_too_long_head_is_a_431(self, server: ServerProcess, head: bytes) -> None:
        status, headers, body = await raw(server, head)
        assert status == 431
        assert json.loads(body) == {"error": "the request line and the headers must not be longer than 16384 bytes"}
        assert headers["connection"] == "close"

    async def test_head_just_below_limit_is_answered(self, server: ServerProcess) -> None:
        assert (await raw(server, HEAD + b"X: " + b"x" * 16_000 + b"\r\n\r\n"))[0] == 200

    async def test_bytes_that_are_not_http_get_a_400(self, server: ServerProcess) -> None:
        status, headers, body = await raw(server, b"<script>alert(1)</script>\r\n\r\n")
        assert (status, json.loads(body)) == (400, {"error": "this is not HTTP"})
        assert headers["content-type"] == "application/json"

    @pytest.mark.parametrize("earlier", [0, 1], ids=["on a new connection", "on a used one"])
    async def test_a_target_without_a_path_is_a_400(self, server: ServerProcess, earlier: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
        for _ in range(earlier):
            writer.write(b"GET /topics/none/messages?wait=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert await reader.readuntil(b"}")
        writer.write(b"CONNECT evil:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b'{"error": "this is not HTTP"}')
        writer.transport.abort()

    async def test_a_second_request_behind_the_first_is_not_read(
        self, server: ServerProcess, client: httpx.AsyncClient
    ) -> None:
        poll = b"GET /topics/behind/messages?wait=300 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
        writer.write(poll + poll)
        await until_waiting(client, 1)
        await publish(client, "behind", 1)
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200 OK") == 1
        assert b"connection: close" in answer
        writer.transport.abort()
        # And no client that has gone is waited for.
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
        writer.write(poll.replace(b"behind", b"gone") * 2)
        await until_waiting(client, 1)
        writer.transport.abort()
        await until_waiting(client, 0)

    @pytest.mark.parametrize("rest", [b"X: 1\r\n" * 10_000, b"z" * 64_000], ids=["many", "one without end"])
    async def test_trailers_are_not_kept_and_have_a_bound(self, server: ServerProcess, rest: bytes) -> None:
        chunked = HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked") + b"\r\n0\r\nX: "
        memory = psutil.Process(server.process.pid).memory_info().rss
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
        writer.write(chunked)
        assert await reader.readuntil(b"}}")
        with suppress(ConnectionError):  # it is hung up on, sooner or later
            for _ in range(2**26 // len(rest)):
                writer.write(rest)
                await writer.drain()
            assert await reader.read() == b""
        writer.transport.abort()
        assert psutil.Process(server.process.pid).memory_info().rss - memory < 16 * 2**20

    async def test_trailers_behind_a_body_are_too_long_before_it_is_answered(self, server: ServerProcess) -> None:
        chunked = (
            b"GET /topics/trailed/messages?wait=300 HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        status, _, body = await raw(server, chunked + b"0\r\nX: " + b"x" * 1_000_000)
        assert status == 431
        assert json.loads(body) == {"error": "what comes behind the body must not be longer than 524288 bytes"}

    @pytest.mark.parametrize(
        "sent",
        [
            (b"Content-Length: 9\r\n\r\n", b"x"),
            (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
            (b"Transfer-Encoding: chunked\r\n\r\n", b"not a chunk"),
            (b"\r\n", b"\r\n"),
            (b"\r\n", b""),
        ],
        ids=["body", "chunk", "no chunk", "empty line", "nothing"],
    )
    async def test_bytes_behind_an_answer_do_not_keep_the_connection(
        self, tmp_path: Path, sent: tuple[bytes, bytes]
    ) -> None:
        async with in_this_process(tmp_path, timeout_keep_alive=1) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD.replace(b"Connection: close\r\n", sent[0]))
            await reader.readuntil(b"}}")
            writer.write(sent[1])
            assert await reader.read() == b""
            writer.transport.abort()

    @pytest.mark.parametrize("rest", [b"G", b"\x00", b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000])
    async def test_a_poll_does_not_suffer_from_bytes_behind_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: bytes
    ) -> None:
        monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
        async with in_this_process(tmp_path) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /topics/news/messages?wait=0.5 HTTP/1.1\r\nHost: localhost\r\n\r\n" + rest)
            answer = await reader.read()
            assert (answer.count(b"HTTP/1.1"), answer.count(b"200 OK")) == (1, 1)
            writer.transport.abort()

    async def test_a_request_that_began_behind_a_poll_may_wait_for_longer_than_an_idle_connection(
        self, tmp_path: Path
    ) -> None:
        poll = b"GET /topics/news/messages?wait=%b HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with in_this_process(tmp_path, timeout_keep_alive=1) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            second = poll % b"1.5"
            writer.write(poll % b"0.3" + second[:9])
            await reader.readuntil(b'"next_offset":0}')
            writer.write(second[9:])
            assert b"200 OK" in await reader.readuntil(b'"next_offset":0}')
            writer.transport.abort()

    async def test_a_request_that_comes_too_slowly_is_given_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
        monkeypatch.setattr(requests, "BODY_SECONDS", 0.1)
        body = HEAD.replace(b"GET /statistics", b"POST /topics/news/messages") + b"Content-Length: 100\r\n\r\n{"
        async with in_this_process(tmp_path) as port:
            for sent, status in ((b"", None), (b"GET / HT", b"408"), (HEAD, b"408"), (body, b"408")):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                answer = await reader.read()
                assert answer.split()[1:2] == ([status] if status else [])
                writer.transport.abort()
            # Between two requests there is more time: as long as an idle connection is kept.
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for wait in ("0.5", "0"):
                writer.write(f"GET /topics/news/messages?wait={wait} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert b"200 OK" in await reader.readuntil(b'"next_offset":0}')
            writer.transport.abort()
