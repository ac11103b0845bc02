"""The bytes of a request that the server reads at all: heads, bodies, connections. Real sockets."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from purgatory.streams.http import protocol
from tests.streams.processes import append, create, raw, running, until_waiting
from tests.streams.serving import Server, serving

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
POLL = b"GET /v1/stream/%b?offset=now&live=long-poll HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        yield client


def says(body: bytes, message: str) -> bool:
    return bool(json.loads(body) == {"error": {"message": message}})


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"X: " + b"x" * 16_400 + b"\r\n\r\n",
        b"GET /" + b"x" * 16_400 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        HEAD + b"X: " + b"x" * 100_000,
        b"GET /" + b"x" * 100_000,
    ],
    ids=["long header", "long path", "header without end", "path without end"],
)
async def test_too_long_head_is_a_431(server: Server, head: bytes) -> None:
    status, headers, body = await raw(server, head)
    assert status == 431
    assert says(body, "the request line and the headers must not be longer than 16384 bytes")
    assert headers["connection"] == "close"


async def test_more_than_two_hundred_headers_are_a_431_before_the_rest_is_parsed(server: Server) -> None:
    """An empty one costs as much as others: 4,000 took 1.8 ms, in a head of 16 KiB."""
    few, many = (HEAD + b"X:\r\n" * count + b"\r\n" for count in (198, 199))
    assert (await raw(server, few))[0] == 200
    status, _, body = await raw(server, many)
    assert status == 431
    assert says(body, "a request must not have more than 200 headers")


@pytest.mark.parametrize(("count", "status"), [(4096, 404), (4097, 400)])
async def test_a_body_in_very_many_chunks_is_a_400_before_the_rest_is_parsed(
    server: Server, count: int, status: int
) -> None:
    """Chunks of one byte, 40,000 in a read, held up others for 60 ms, and each was copied with all before it."""
    head = b"POST /v1/stream/none HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    found, _, body = await raw(
        server, head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * count + b"0\r\n\r\n"
    )
    assert found == status
    if status == 400:
        assert says(body, "the body came in more than 4096 chunks at once: send larger ones")


async def test_more_than_two_hundred_trailers_are_a_431(server: Server) -> None:
    head = b"POST /v1/stream/none HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    status, _, body = await raw(server, head + b"X:\r\n" * 300)
    assert status == 431
    assert says(body, "a request must not have more than 200 trailers")


async def test_incomplete_heads_count_for_their_address(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """17,000 of 16 KiB were 480 MiB."""
    memory = server.application.limits.memory
    monkeypatch.setattr(protocol.BoundedProtocol, "memory", memory)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(HEAD + b"X: " + b"x" * 8000)
    while not memory.bytes:  # noqa: ASYNC110 - of another thread
        await asyncio.sleep(0)
    assert 8000 < memory.bytes < 8200
    writer.write(b"x" * 2000)
    while memory.bytes < 10_000:  # noqa: ASYNC110 - of another thread
        await asyncio.sleep(0)
    writer.write(b"\r\n\r\n")
    assert b"200 OK" in await reader.read()
    assert memory.bytes == 0
    writer.close()
    with memory.hold("127.0.0.1") as hold:
        hold.count(12 * 1024 * 1024)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEAD + b"X: " + b"x" * 8000)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nretry-after: 1\r\n" in answer
        writer.transport.abort()


async def test_an_incomplete_head_on_a_server_without_a_budget_is_read(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(HEAD + b"X: " + b"x" * 8000)
    assert (await raw(server, HEAD + b"\r\n"))[0] == 200  # the first part is read by then
    writer.write(b"\r\n\r\n")
    assert b"200 OK" in await reader.read()
    writer.close()


async def test_head_just_below_limit_is_answered(server: Server) -> None:
    assert (await raw(server, HEAD + b"X: " + b"x" * 16_000 + b"\r\n\r\n"))[0] == 200
    # With a body in the same packet it is a head of the same size.
    head = b"POST /v1/stream/none HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 30000\r\n\r\n"
    assert (await raw(server, head + b"x" * 30_000))[0] == 404


@pytest.mark.parametrize(("size", "status"), [(0, 200), (16_400, 431)])
async def test_head_in_the_packet_of_a_body_is_not_longer_by_it(server: Server, size: int, status: int) -> None:
    """The request with the body is answered before that comes, as GET needs none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 30000\r\n\r\n")
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
    writer.write(b"x" * 30_000 + HEAD)
    assert (await raw(server, HEAD + b"\r\n"))[0] == 200  # the first part is read by then
    writer.write(b"X: " + b"x" * size + b"\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 %d " % status)
    writer.transport.abort()


async def test_bytes_that_are_not_http_get_a_400(server: Server) -> None:
    status, headers, body = await raw(server, b"<script>alert(1)</script>\r\n\r\n")
    assert status == 400
    assert says(body, "this is not HTTP")
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/health", "/v1/stream/none"])
@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [(b"1.1", [], 400), (b"1.1", [b"localhost", b"127.0.0.1"], 400), (b"1.0", [], None), (b"1.1", [b"[::1]"], None)],
)
async def test_request_of_http_1_1_has_one_host(
    server: Server, path: str, version: bytes, hosts: list[bytes], status: int | None
) -> None:
    """RFC 9112, 3.2."""
    lines = [b"GET %b HTTP/%b" % (path.encode(), version), *(b"Host: %b" % host for host in hosts)]
    found, _, _ = await raw(server, b"\r\n".join([*lines, b"Connection: close", b"", b""]))
    assert found == (status or (200 if path == "/health" else 404))


@pytest.mark.parametrize("target", [b"evil:80", b"/health"])
@pytest.mark.parametrize("upgrade", [b"", b"Connection: upgrade\r\nUpgrade: h2c\r\n"], ids=["", "upgrade"])
@pytest.mark.parametrize("earlier", [0, 1], ids=["on a new connection", "on a used one"])
async def test_connect_is_a_400(server: Server, target: bytes, upgrade: bytes, earlier: int) -> None:
    """With a path and an upgrade, the parser's exception was logged as a fatal error, and the answer was missing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for _ in range(earlier):
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert await reader.readuntil(b"}")
    writer.write(b"CONNECT %b HTTP/1.1\r\nHost: 127.0.0.1\r\n%b\r\n" % (target, upgrade))
    answer = await reader.read()
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert says(answer.partition(b"\r\n\r\n")[2], "CONNECT is a request to a proxy, and this server is not a proxy")
    writer.transport.abort()


@pytest.mark.parametrize("earlier", [0, 1], ids=["on a new connection", "on a used one"])
async def test_a_target_without_a_path_is_a_400(server: Server, earlier: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for _ in range(earlier):
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert await reader.readuntil(b"}")
    writer.write(b"GET evil:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert says(answer.partition(b"\r\n\r\n")[2], "this is not HTTP")
    writer.transport.abort()


async def test_an_upgrade_to_another_protocol_is_a_request_like_others(server: Server) -> None:
    head = HEAD.replace(b"close", b"upgrade, close") + b"Upgrade: websocket\r\n\r\n"
    assert (await raw(server, head))[0] == 200


@pytest.mark.parametrize(
    "body", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("apart", [False, True], ids=["one packet", "body apart"])
async def test_body_of_a_request_with_an_upgrade_is_read(
    server: Server, client: httpx.AsyncClient, body: bytes, apart: bool
) -> None:
    """Java's client sends such a header with each first request, to ask for HTTP/2."""
    name = f"upgraded-{apart}-{body[:1].decode()}"
    head = f"PUT /v1/stream/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\n".encode()
    head += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    if apart:
        fields, end, body = body.partition(b"\r\n\r\n")
        writer.write(head + b"Expect: 100-continue\r\n" + fields + end)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body if apart else head + body)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
    assert (await client.get(f"/v1/stream/{name}")).text == "hello"
    writer.write(HEAD + b"\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()
    await writer.wait_closed()


async def test_a_second_request_in_the_same_packet_is_not_read(server: Server, client: httpx.AsyncClient) -> None:
    await create(client, "behind", "gone")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(POLL % b"behind" * 2)
    await until_waiting(client, 1)
    await append(client, "behind", "x")
    answer = await reader.read()
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close" in answer
    writer.transport.abort()
    # A client that has gone is not waited for.
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(POLL % b"gone" * 2)
    await until_waiting(client, 1)
    writer.transport.abort()
    await until_waiting(client, 0)


@pytest.mark.parametrize("rest", [b"X: 1\r\n" * 10_000, b"z" * 64_000], ids=["many", "one without end"])
async def test_trailers_are_not_kept_and_have_a_bound(tmp_path: Path, rest: bytes) -> None:
    chunked = HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked") + b"\r\n0\r\nX: "
    with running(tmp_path) as process:
        memory = process.memory
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        writer.write(chunked)
        assert await reader.readuntil(b"}")
        with suppress(ConnectionError):  # it is disconnected, sooner or later
            for _ in range(2**26 // len(rest)):
                writer.write(rest)
                await writer.drain()
            assert await reader.read() == b""
        writer.transport.abort()
        assert process.memory - memory < 16 * 2**20


async def test_trailers_behind_a_body_are_too_long_before_it_is_answered(server: Server) -> None:
    head = b"POST /v1/stream/trailed HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, _, body = await raw(server, head + b"0\r\nX: " + b"x" * 1_000_000)
    assert status == 431
    assert says(body, "the data behind the body must not be longer than 524288 bytes")


async def test_nonsense_in_a_body_that_is_being_answered_ends_the_connection(
    server: Server, client: httpx.AsyncClient
) -> None:
    """A stream of events has begun, and the body of its request goes on."""
    await create(client, "begun")
    head = b"GET /v1/stream/begun?offset=-1&live=sse HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head)
    await reader.readuntil(b"upToDate")
    writer.write(b"not a chunk")
    assert b"HTTP/1.1" not in await reader.read()
    writer.transport.abort()


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
    tmp_path: Path, sent: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol.BoundedProtocol, "first_request_timeout", 1.0)
    with serving(data=str(tmp_path), timeout_keep_alive=1) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEAD.replace(b"Connection: close\r\n", sent[0]))
        await reader.readuntil(b"}")
        writer.write(sent[1])
        assert await reader.read() in (b"", b"\r\n")
        writer.transport.abort()


@pytest.mark.parametrize("rest", [b"G", b"\x00", b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000])
async def test_a_poll_does_not_suffer_from_bytes_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
    with serving(data=str(tmp_path), long_poll_timeout=0.5) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            await create(client, "news")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(POLL % b"news" + rest)
        answer = await reader.read()
        assert (answer.count(b"HTTP/1.1"), answer.count(b"204 No Content")) == (1, 1)
        writer.transport.abort()


async def test_a_request_that_comes_too_slowly_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(protocol.BoundedProtocol, "first_request_timeout", 0.3)
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.3)
    body = HEAD.replace(b"GET /health", b"POST /v1/stream/news") + b"Content-Length: 100\r\n\r\n{"
    with serving(data=str(tmp_path)) as server:
        for sent, status in ((b"", None), (b"GET / HT", b"408"), (HEAD, b"408"), (body, b"408")):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent)
            answer = await reader.read()
            assert answer.split()[1:2] == ([status] if status else [])
            writer.transport.abort()
        # Between two requests there is more time: as long as an idle connection is kept.
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(2):
            writer.write(HEAD.replace(b"Connection: close\r\n", b"\r\n"))
            assert b"200 OK" in await reader.readuntil(b"}")
            await asyncio.sleep(0.5)
        writer.transport.abort()


async def test_a_head_in_pieces_is_read(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for _ in range(2):
        for piece in (b"GET /hea", b"lth HTTP/1.1\r\nHo", b"st: 127.0.0.1\r\n", b"\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        assert b"200 OK" in await reader.readuntil(b"}")
    writer.transport.abort()


@pytest.mark.parametrize("coding", ["gzip, chunked", "identity, chunked"])
async def test_a_transfer_coding_that_is_not_known_is_a_501(server: Server, coding: str) -> None:
    head = f"POST /v1/stream/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {coding}\r\n\r\n".encode()
    status, _, body = await raw(server, head + b"0\r\n\r\n")
    assert status == 501
    assert says(body, "chunked is the only Transfer-Encoding that this server knows")


async def test_what_comes_behind_a_request_that_waits_is_kept_up_to_sixteen_kib(
    server: Server, client: httpx.AsyncClient
) -> None:
    await create(client, "behind")
    next_head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: %b\r\n\r\n"
    for size, answers in ((16_000, 2), (16_400, 1)):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(POLL % b"behind")
        await until_waiting(client, 1)
        writer.write((next_head % (b"x" * size))[: 16 * 1024 if answers == 2 else None])
        await writer.drain()
        for _ in range(50):
            writer.write(b"y" * 1000 if answers == 1 else b"")
        await client.get("/health")
        await append(client, "behind", "z")
        assert b"200 OK" in await reader.readuntil(b"z")
        if answers == 1:
            assert await reader.read() == b""  # it is closed
        writer.transport.abort()


async def test_connections_that_are_too_many_are_refused_counted_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(protocol.BoundedProtocol, "most_connections", 5)
    monkeypatch.setattr(protocol.BoundedProtocol, "refused", 0)
    monkeypatch.setattr(protocol.BoundedProtocol, "_logged_at", -math.inf)
    with serving(data=str(tmp_path)) as server:
        kept = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
        for reader, writer in kept:
            writer.write(HEAD.replace(b"Connection: close\r\n", b"\r\n"))
            assert b"200 OK" in await reader.readuntil(b"}")
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in answer
            writer.transport.abort()
        assert protocol.BoundedProtocol.refused == 3
        for reader, writer in kept:  # those that are there go on
            writer.write(HEAD + b"\r\n")
            assert b"200 OK" in await reader.readuntil(b"}")
            writer.transport.abort()
        while not (await raw_if(server, HEAD + b"\r\n")).startswith(b"HTTP/1.1 200 "):
            pass
    assert caplog.text.count("out of descriptors for connections: the process has 5 and refuses more") == 1


async def raw_if(server: Server, sent: bytes) -> bytes:
    """The answer, perhaps a refusal, of which the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(sent)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()
