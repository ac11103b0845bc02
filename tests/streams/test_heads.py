"""The bytes of a request that the server reads at all: heads, bodies, connections. Real sockets."""

import asyncio
import json
import math
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from purgatory.streams.http import protocol
from tests.streams.processes import Listening, append, create, raw, running, until_waiting
from tests.streams.serving import Server, serving

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

START = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HEAD = START + b"Connection: close\r\n"
POST = b"POST /v1/stream/none HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: text/plain\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
POLL = b"GET /v1/stream/%b?offset=now&live=long-poll HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
UPGRADE = b"Connection: upgrade\r\nUpgrade: h2c\r\n"


@asynccontextmanager
async def connected(server: Listening, sent: bytes = b"") -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
    """A connection by which these bytes are sent first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(sent)
        yield reader, writer
    finally:
        writer.transport.abort()


TOO_LONG = "the request line and the headers must not be longer than 16384 bytes"
NOT_HTTP = "the request must be HTTP"
NO_PROXY = "CONNECT must be sent to a proxy, which this server is not"
CODING = "Transfer-Encoding must be chunked"
REFUSED: dict[str, tuple[bytes, int, str]] = {
    "long header": (HEAD + b"X: " + b"x" * 16_400 + b"\r\n\r\n", 431, TOO_LONG),
    "long path": (b"GET /" + b"x" * 16_400 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 431, TOO_LONG),
    "header without end": (HEAD + b"X: " + b"x" * 100_000, 431, TOO_LONG),
    "path without end": (b"GET /" + b"x" * 100_000, 431, TOO_LONG),
    # An empty header costs as much as others: 4,000 took 1.8 ms, in a head of 16 KiB.
    "many headers": (HEAD + b"X:\r\n" * 199 + b"\r\n", 431, "a request must not have more than 200 headers"),
    "many trailers": (
        POST + CHUNKED + b"1\r\nx\r\n0\r\n" + b"X:\r\n" * 300,
        431,
        "a request must not have more than 200 trailers",
    ),
    "long trailers": (
        POST + CHUNKED + b"0\r\nX: " + b"x" * 1_000_000,
        431,
        "the data behind the body must not be longer than 524288 bytes",
    ),
    # 40,000 in a read held up others for 60 ms, and each was copied with all before it.
    "many chunks": (
        POST + CHUNKED + b"1\r\nx\r\n" * 4097 + b"0\r\n\r\n",
        400,
        "the body came in more than 4096 chunks at once: send larger ones",
    ),
    "no HTTP": (b"<script>alert(1)</script>\r\n\r\n", 400, NOT_HTTP),
    "no path": (b"GET evil:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400, NOT_HTTP),
    "CONNECT": (b"CONNECT evil:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400, NO_PROXY),
    # The parser's exception was logged as a fatal error, and the answer was missing.
    "CONNECT with an upgrade": (b"CONNECT /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + UPGRADE + b"\r\n", 400, NO_PROXY),
    **{
        coding: (POST + f"Transfer-Encoding: {coding}\r\n\r\n0\r\n\r\n".encode(), 501, CODING)
        for coding in ("gzip, chunked", "gzip", "identity, chunked", "xchunked")
    },
    **{
        repr(field): (POST + field + b"\r\n\r\n0\r\n\r\n", 400, NOT_HTTP)
        for field in (
            *(b"Content-Length: +1", b"Content-Length: 1, 1", b"Content-Length: " + b"9" * 30, b"Content-Length : 1"),
            *(b"Content-Length: 1\r\nContent-Length: 2", b"Content-Length: 1\r\nX: \0"),
            b"Transfer-Encoding: chunked, chunked",
            *(b"Content-Length: 1\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 1"),
        )
    },
    "a chunk of -1": (POST + CHUNKED + b"-1\r\nx\r\n0\r\n\r\n", 400, NOT_HTTP),
    "a chunk of 17 digits": (POST + CHUNKED + b"f" * 17 + b"\r\nx", 400, NOT_HTTP),
    "HTTP/9.9": (b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", 400, NOT_HTTP),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, NOT_HTTP),
    # RFC 9112, 3.2.
    "no host": (b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", 400, "a request of HTTP/1.1 must have a Host"),
    "two hosts": (HEAD + b"Host: localhost\r\n\r\n", 400, "a request must not have more than one Host"),
}


@pytest.mark.parametrize("earlier", [0, 1], ids=["on a new connection", "on a used one"])
@pytest.mark.parametrize(("sent", "status", "message"), REFUSED.values(), ids=REFUSED)
async def test_bytes_that_are_refused_get_one_answer_and_the_connection_is_closed(
    server: Server, caplog: pytest.LogCaptureFixture, sent: bytes, status: int, message: str, earlier: int
) -> None:
    async with connected(server) as (reader, writer):
        for _ in range(earlier):
            writer.write(START + b"\r\n")
            assert await reader.readuntil(b"}")
        writer.write(sent)
        head, _, body = (await reader.read()).lower().partition(b"\r\n\r\n")
    assert head.startswith(b"http/1.1 %d " % status)
    assert b"\r\ncontent-type: application/json" in head
    assert b"\r\nconnection: close" in head
    assert json.loads(body) == {"error": {"message": message.lower()}}
    assert "Traceback" not in caplog.text


ANSWERED: dict[str, tuple[bytes, int]] = {
    "head just below the limit": (HEAD + b"X: " + b"x" * 16_000 + b"\r\n\r\n", 200),
    "body in the packet of the head": (POST + b"Content-Length: 30000\r\n\r\n" + b"x" * 30_000, 404),
    "200 headers": (HEAD + b"X:\r\n" * 198 + b"\r\n", 200),
    "4096 chunks": (POST + CHUNKED + b"1\r\nx\r\n" * 4096 + b"0\r\n\r\n", 404),
    "no host in HTTP/1.0": (b"GET /health HTTP/1.0\r\n\r\n", 200),
    "an upgrade to another protocol": (
        HEAD.replace(b"close", b"upgrade, close") + b"Upgrade: websocket\r\n\r\n",
        200,
    ),
}


@pytest.mark.parametrize(("sent", "status"), ANSWERED.values(), ids=ANSWERED)
async def test_bytes_that_are_unusual_are_answered(server: Server, sent: bytes, status: int) -> None:
    assert (await raw(server, sent))[0] == status


@pytest.mark.parametrize(("size", "status"), [(0, 200), (16_400, 431)])
async def test_head_in_the_packet_of_a_body_is_not_longer_by_it(server: Server, size: int, status: int) -> None:
    """The request with the body is answered before that comes, as GET needs none."""
    async with connected(server, START + b"Content-Length: 30000\r\n\r\n") as (reader, writer):
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"x" * 30_000 + HEAD)
        assert (await raw(server, HEAD + b"\r\n"))[0] == 200  # the first part is read by then
        writer.write(b"X: " + b"x" * size + b"\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 %d " % status)


async def test_incomplete_heads_count_for_their_address(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """17,000 of 16 KiB were 480 MiB."""
    memory = server.application.limits.memory
    sent = HEAD + b"X: " + b"x" * 8000
    async with connected(server, sent) as (reader, writer):  # a server without a budget
        assert (await raw(server, HEAD + b"\r\n"))[0] == 200  # the first part is read by then
        writer.write(b"\r\n\r\n")
        assert b"200 OK" in await reader.read()
    monkeypatch.setattr(protocol.BoundedProtocol, "memory", memory)
    async with connected(server, sent) as (reader, writer):
        while not memory.bytes:  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0)
        assert 8000 < memory.bytes < 8200
        writer.write(b"x" * 2000)
        while memory.bytes < 10_000:  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0)
        writer.write(b"\r\n\r\n")
        assert b"200 OK" in await reader.read()
        assert memory.bytes == 0
    with memory.hold("127.0.0.1") as hold:
        hold.count(12 * 1024 * 1024)
        status, headers, _ = await raw(server, sent)
        assert (status, headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize("body", [b"Content-Length: 5\r\n\r\nhello", CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"])
@pytest.mark.parametrize("apart", [False, True], ids=["one packet", "body apart"])
async def test_body_of_a_request_with_an_upgrade_is_read(
    server: Server, client: httpx.AsyncClient, body: bytes, apart: bool
) -> None:
    """Java's client sends such a header with each first request, to ask for HTTP/2."""
    name = f"upgraded-{apart}-{body[:1].decode()}"
    head = f"PUT /v1/stream/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\n".encode() + UPGRADE
    async with connected(server) as (reader, writer):
        if apart:
            fields, end, body = body.partition(b"\r\n\r\n")
            writer.write(head + b"Expect: 100-continue\r\n" + fields + end)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body if apart else head + body)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
        assert (await client.get(f"/v1/stream/{name}")).text == "hello"
        writer.write(HEAD + b"\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")


class TestBehindAPoll:
    async def test_a_second_request_in_the_same_packet_is_not_read(
        self, server: Server, client: httpx.AsyncClient
    ) -> None:
        await create(client, "second")
        async with connected(server, POLL % b"second" * 2) as (reader, _):
            await until_waiting(client, 1)
            await append(client, "second", "x")
            answer = await reader.read()
            assert answer.count(b"HTTP/1.1 200 OK") == 1
            assert b"connection: close" in answer
        async with connected(server, POLL % b"second" * 2):
            await until_waiting(client, 1)
        await until_waiting(client, 0)  # a client that has gone is not waited for

    @pytest.mark.parametrize("rest", [b"G", b"\x00", b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000])
    async def test_a_poll_does_not_suffer_from_bytes_behind_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: bytes
    ) -> None:
        monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
        with serving(data=str(tmp_path), long_poll_timeout=0.5) as server:
            async with httpx.AsyncClient(base_url=server.url) as client:
                await create(client, "news")
            answer = await raw_bytes(server, POLL % b"news" + rest)
            assert (answer.count(b"HTTP/1.1"), answer.count(b"204 No Content")) == (1, 1)

    @pytest.mark.parametrize(("size", "is_kept"), [(16_000, True), (16_400, False)])
    async def test_sixteen_kib_behind_it_are_kept(
        self, server: Server, client: httpx.AsyncClient, size: int, is_kept: bool
    ) -> None:
        await create(client, "behind")
        async with connected(server, POLL % b"behind") as (reader, writer):
            await until_waiting(client, 1)
            writer.write((START + b"X: " + b"x" * size + b"\r\n\r\n")[: 16 * 1024 if is_kept else None])
            await writer.drain()
            if not is_kept:
                writer.write(b"y" * 50_000)
            await client.get("/health")
            await append(client, "behind", "z")
            assert b"200 OK" in await reader.readuntil(b"z")
            if is_kept:
                assert b"200 OK" in await reader.readuntil(b"}")
            else:
                assert await reader.read() == b""  # it is closed


class TestBytesBehindAnAnswer:
    @pytest.mark.parametrize("rest", [b"X: 1\r\n" * 10_000, b"z" * 64_000], ids=["many", "one without end"])
    async def test_trailers_are_not_kept_and_have_a_bound(self, tmp_path: Path, rest: bytes) -> None:
        with running(tmp_path) as process:
            memory = process.memory
            async with connected(process, START + CHUNKED + b"0\r\nX: ") as (reader, writer):
                assert await reader.readuntil(b"}")
                with suppress(ConnectionError):  # it is disconnected, sooner or later
                    for _ in range(2**26 // len(rest)):
                        writer.write(rest)
                        await writer.drain()
                    assert await reader.read() == b""
            assert process.memory - memory < 16 * 2**20

    async def test_nonsense_in_a_body_that_is_being_answered_ends_the_connection(
        self, server: Server, client: httpx.AsyncClient
    ) -> None:
        """A stream of events has begun, and the body of its request goes on."""
        await create(client, "begun")
        events = START.replace(b"/health", b"/v1/stream/begun?offset=-1&live=sse") + CHUNKED
        async with connected(server, events) as (reader, writer):
            await reader.readuntil(b"upToDate")
            writer.write(b"not a chunk")
            assert b"HTTP/1.1" not in await reader.read()

    async def test_they_do_not_keep_the_connection(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(protocol.BoundedProtocol, "first_request_timeout", 1.0)
        with serving(data=str(tmp_path), timeout_keep_alive=1) as server:
            for rest, more in (
                (b"Content-Length: 9\r\n\r\n", b"x"),
                (CHUNKED, b"1\r\nx\r\n"),
                (CHUNKED, b"not a chunk"),
                (b"\r\n", b"\r\n"),
                (b"\r\n", b""),
            ):
                async with connected(server, START + rest) as (reader, writer):
                    await reader.readuntil(b"}")
                    writer.write(more)
                    assert await reader.read() in (b"", b"\r\n"), (rest, more)


async def test_a_request_that_comes_too_slowly_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(protocol.BoundedProtocol, "first_request_timeout", 0.3)
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.3)
    body = POST + b"Content-Length: 100\r\n\r\n{"
    with serving(data=str(tmp_path)) as server:
        for sent, status in ((b"", []), (b"GET / HT", [b"408"]), (HEAD, [b"408"]), (body, [b"408"])):
            assert (await raw_bytes(server, sent)).split()[1:2] == status
        # Between two requests there is more time: as long as an idle connection is kept.
        async with connected(server) as (reader, writer):
            for _ in range(2):
                writer.write(START + b"\r\n")
                assert b"200 OK" in await reader.readuntil(b"}")
                await asyncio.sleep(0.5)


async def test_connections_that_are_too_many_are_refused_counted_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(protocol.BoundedProtocol, "most_connections", 5)
    monkeypatch.setattr(protocol.BoundedProtocol, "refused", 0)
    monkeypatch.setattr(protocol.BoundedProtocol, "_logged_at", -math.inf)
    with serving(data=str(tmp_path)) as server:
        kept = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
        for reader, writer in kept:
            writer.write(START + b"\r\n")
            assert b"200 OK" in await reader.readuntil(b"}")
        for _ in range(3):
            status, headers, _ = await raw(server, b"")
            assert (status, headers["retry-after"]) == (503, "1")
        assert protocol.BoundedProtocol.refused == 3
        for reader, writer in kept:  # those that are there go on
            writer.write(HEAD + b"\r\n")
            assert b"200 OK" in await reader.readuntil(b"}")
            writer.transport.abort()
        while not (await raw_bytes(server, HEAD + b"\r\n")).startswith(b"HTTP/1.1 200 "):
            pass
    assert caplog.text.count("out of descriptors for connections: the process has 5 and refuses more") == 1


async def raw_bytes(server: Server, sent: bytes) -> bytes:
    """The answer, after which the connection is closed; nothing, if it is reset."""
    async with connected(server, sent) as (reader, _):
        with suppress(ConnectionResetError):
            return await reader.read()
    return b""
