"""The server goes on, whatever bytes come, in whatever pieces, from clients that leave at any time.

Each connection is answered or closed, with nothing worse than a 4xx, or the 503 that is described; no other
client is affected; and in the end no operation waits without a client.
"""

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.streams.processes import ROOT, TEXT, ServerProcess, append, create, poll, running, until_waiting

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

PENDING_CLIENT = 20
PATIENCE = 0.05
"""Seconds."""
CONNECTIONS = 8
"""At once, in one example."""

ALLOWED = {b"200", b"201", b"204", b"304", b"503"}
"""Every 4xx is allowed too."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    # A wait is longer than the tests: it ends because its client has gone.
    options = ("--long-poll-timeout", "600", "--event-stream-timeout", "600", "--heartbeat", "600")
    with running(
        tmp_path_factory.mktemp("data"), *options, "--max-pending-client", str(PENDING_CLIENT), "--max-streams", "50"
    ) as server:
        for name in "ab":
            httpx.put(f"{server.url}{ROOT}/{name}", headers=TEXT).raise_for_status()
        yield server


# The parts of a request: mostly right, so that it gets far.
METHODS = st.sampled_from(b"GET GET POST POST PUT HEAD DELETE OPTIONS CONNECT PRI get \0".split(b" "))
STREAMS = st.sampled_from([*b"a b a/b __ds .. %00 %2e%2e %2F <b> \xff  a//b".split(b" "), b"x" * 1025])
POSITIONS = [b"%016d_%016d" % (0, position) for position in (0, 1, 10**16 - 1)]
OFFSETS = st.sampled_from([*b"-1 now 0 -2  %F0 +1".split(b" "), *POSITIONS])
QUERIES = st.lists(
    OFFSETS.map(b"offset=".__add__)
    | st.sampled_from(b"live=sse live=long-poll live= cursor=1 cursor=x  % limit=9".split(b" ")),
    max_size=4,
).map(b"&".join)
SUBSCRIPTIONS = st.sampled_from(b"s s/claim s/ack  s/streams".split(b" "))
OTHERS = st.sampled_from(b"/ * /v1/streams /metrics /health /openapi.json http://evil/ // /v1/../x evil:80".split())
PATHS = st.one_of(
    st.builds(b"/v1/stream/%b?%b".__mod__, st.tuples(STREAMS, QUERIES)),
    SUBSCRIPTIONS.map(b"/v1/stream/__ds/subscriptions/".__add__),
    OTHERS,
)
NAMES = st.sampled_from(
    b"Host Connection Content-Length Transfer-Encoding Expect If-None-Match Origin Sec-Fetch-Site X-Forwarded-For "
    b"X-Forwarded-Proto Accept Content-Type Stream-Closed Stream-TTL Stream-Expires-At Stream-Forked-From "
    b"Stream-Fork-Offset Stream-Seq Producer-Id Producer-Epoch Producer-Seq Authorization X X\0".split()
)
ODD = b'  -1 \xff * ,W/," null cross-site evil.example gzip,chunked 1.2.3.4:99999999999,<b>, 9999-99-99T00:00:00Z'
VALUES = st.sampled_from([*ODD.split(b" "), b"9" * 20, b"text/plain; version=\xfe", b"Bearer x.y.z", b"x" * 20_000])
FORK = b"Stream-Forked-From: /v1/stream/a"
PRODUCER = b"Producer-Id: p\r\nProducer-Epoch: %d\r\nProducer-Seq: %d"
SENSIBLE = st.sampled_from(
    [
        *(b"Connection: close", b"Connection: upgrade\r\nUpgrade: websocket", b"Connection: upgrade\r\nUpgrade: h2c"),
        *(b"Content-Length: 12", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Expect: 100-continue"),
        *(b"Content-Type: text/plain", b"Content-Type: application/json", b"Stream-Closed: true", b"Stream-TTL: 1"),
        *(b"Stream-Expires-At: 2030-01-01T00:00:00Z", FORK, b"Stream-Fork-Offset: %b" % POSITIONS[1]),
        *(PRODUCER % (0, 0), PRODUCER % (9, 7)),
    ]
)
HEADERS = st.one_of(
    SENSIBLE, SENSIBLE, st.builds(b"%b: %b".__mod__, st.tuples(NAMES, VALUES)), st.sampled_from([b" folded", b": "])
)
CHUNKED = b'c\r\n{"value": 1}\r\n0\r\n\r\n'
BODIES = st.sampled_from(
    [
        *(b"", b'{"value": 1}', b'{"value": "\\ud800"}', b'{"pending": 1e999}', b'{"pending": 3}'),
        *(CHUNKED, b'c;x=y\r\n{"value": 1}\r\n0\r\nTrailer: 1\r\n\r\n'),
        *(b"fffffffffffffffffffff\r\n", b"-1\r\n\r\n", b"z\r\n", b"[" * 100_000, b"\x00" * 100),
    ]
)
REQUESTS = st.builds(
    lambda method, path, version, headers, body: b"\r\n".join(
        [b"%b %b %b" % (method, path, version), *headers, b"", body]
    ),
    METHODS,
    PATHS,
    st.sampled_from([b"HTTP/1.1"] * 5 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""]),
    st.lists(HEADERS, max_size=4).map(lambda headers: [b"Host: localhost", *headers]),
    BODIES,
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Requests, one behind the other, of which some bytes are others, or missing, or too many."""
    sent = bytearray(b"".join(draw(st.lists(REQUESTS, min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(sent)))
        sent[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(sent)


ENDS = st.sampled_from(["close", "half-close", "reset", "read"])
"""The ways in which a client ends when it has sent everything."""

HOST = b" HTTP/1.1\r\nHost: localhost\r\n"
RIGHT = st.sampled_from(
    [
        b"GET /v1/stream/a?offset=now&live=long-poll" + HOST + b"\r\n",
        b"GET /v1/stream/a?offset=now&live=sse" + HOST + b"\r\n",
        b"POST /v1/stream/b" + HOST + b'Content-Type: text/plain\r\nContent-Length: 12\r\n\r\n{"value": 1}',
        b"PUT /v1/stream/b" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    ]
)
"""Requests with nothing wrong, so that something may be left behind."""
CLIENTS = st.tuples(
    st.one_of(RIGHT, RIGHT, mutated(), REQUESTS, st.binary(max_size=200)),
    st.lists(st.integers(1, 300), max_size=5),
    ENDS,
)


async def _visit(port: int, sent: bytes, pieces: list[int], end: str) -> None:
    """Send that, in pieces of those sizes and the rest, and leave in that way. Look at what is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        for size in pieces:
            writer.write(sent[:size])
            await writer.drain()
            await asyncio.sleep(0)
            sent = sent[size:]
        writer.write(sent)
        if end == "reset":
            writer.transport.abort()
            return
        if end == "half-close":
            writer.write_eof()
        if end != "close":
            try:
                answer = await asyncio.wait_for(reader.read(100), PATIENCE)
            except TimeoutError:
                # It may wait for a message, or for the rest of the request; but not if none is to come.
                writer.write_eof()
                answer = await asyncio.wait_for(reader.read(100), 30)
    except TimeoutError:
        raise  # also an OSError
    except OSError:
        pass  # it has closed: that is an answer, too
    finally:
        writer.close()
    for status in re.findall(rb"HTTP/1\.1 (\d+)", answer):
        assert status in ALLOWED or status.startswith((b"1", b"4")), answer


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of what has been found: let us see it
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(st.lists(CLIENTS, min_size=1, max_size=CONNECTIONS))
async def test_arbitrary_bytes_do_not_end_the_server(
    server: ServerProcess, clients: list[tuple[bytes, list[int], str]]
) -> None:
    await asyncio.gather(*(_visit(server.port, *each) for each in clients))
    assert server.process.poll() is None


async def test_fuzzed_server_lets_as_many_clients_wait_as_before(server: ServerProcess) -> None:
    """Also those with the address of all these clients."""
    async with server.client("127.0.0.2") as client, server.client() as waiting:
        await until_waiting(client, 0)
        for name in "ac":
            await client.delete(f"{ROOT}/{name}")
            await create(client, name)
            polls = [asyncio.create_task(poll(waiting, name)) for _ in range(PENDING_CLIENT)]
            await until_waiting(client, PENDING_CLIENT)
            assert (await waiting.get(f"{ROOT}/{name}?offset=-1&live=long-poll")).status_code == 429
            await append(client, name, "for all")
            assert await asyncio.gather(*polls) == ["for all"] * PENDING_CLIENT
