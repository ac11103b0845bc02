"""The long-poll server goes on, whatever bytes come, in whatever pieces, from clients that leave at any time.

Each connection is answered or closed, with nothing worse than a 4xx, or the 503 and 504 that are described; no other
client is affected; and in the end no operation waits without a client.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.server_process import ServerProcess, fetch, publish, running, until_waiting

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

PENDING_CLIENT = 20
PATIENCE = 0.05
"""Seconds."""
CONNECTIONS = 8
"""At once, in one example."""

ALLOWED = {b"200", b"201", b"304", b"503", b"504"}
"""Every 4xx is allowed too."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    # A wait is longer than the tests: it ends because its client has gone.
    options = ("--max-wait", "300", "--max-pending-client", str(PENDING_CLIENT), "--demo", "--max-topics", "50")
    with running(tmp_path_factory.mktemp("data"), *options) as server:
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client() as client:
        yield client


# The parts of a request: mostly right, so that it gets far.
METHODS = st.sampled_from([b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"CONNECT", b"PRI", b"get", b"\x00"])
TOPICS = st.sampled_from([b"a", b"b", b"__statistics", b"..", b"%00", b"%2e%2e", b"x" * 250, b"<b>", b"\xff", b""])
NUMBERS = st.sampled_from(
    [b"0", b"1", b"-1", b"500", b"10000", b"9" * 25, b"1e308", b"nan", b"0.3", b"", b"%F0", b"+1"]
)
NAMES = st.sampled_from(
    [b"offset", b"min_messages", b"max_messages", b"wait", b"replica", b"acks", b"timeout", b"", b"%"]
)
QUERIES = st.lists(st.tuples(NAMES, NUMBERS).map(b"=".join), max_size=4).map(b"&".join)
PATHS = st.one_of(
    st.builds(b"/topics/%b/messages?%b".__mod__, st.tuples(TOPICS, QUERIES)),
    st.sampled_from(
        [
            b"/",
            b"*",
            b"/statistics",
            b"/metrics",
            b"/openapi.json",
            b"/demo",
            b"http://evil/",
            b"//",
            b"/page/../app.py",
            b"evil:80",
        ]
    ),
)
HEADERS = st.sampled_from(
    [
        b"Host: 127.0.0.1",
        b"Host: 127.0.0.1",
        b"Host: evil.example",
        b"Connection: close",
        b"Connection: upgrade\r\nUpgrade: websocket",
        b"Connection: upgrade\r\nUpgrade: h2c",
        b"Content-Length: 12",
        b"Content-Length: 5",
        b"Content-Length: -1",
        b"Content-Length: 99999999999999999999",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Expect: 100-continue",
        b"If-None-Match: *",
        b'If-None-Match: ,W/,"',
        b"Origin: null",
        b"Sec-Fetch-Site: cross-site",
        b"X-Forwarded-For: 1.2.3.4:99999999999, <b>,",
        b"X-Forwarded-Proto: \xff",
        b"Accept: application/openmetrics-text; version=\xfe",
        b"Accept: application/openmetrics-text; version=1.x",
        b"Accept: text/plain; version=x",
        b"X: " + b"x" * 20_000,
        b"X\x00: 1",
        b" folded",
        b": ",
    ]
)
BODIES = st.sampled_from(
    [
        b"",
        b'{"value": 1}',
        b'{"value": "\\ud800"}',
        b'c\r\n{"value": 1}\r\n0\r\n\r\n',
        b'c;x=y\r\n{"value": 1}\r\n0\r\nTrailer: 1\r\n\r\n',
        b"fffffffffffffffffffff\r\n",
        b"-1\r\n\r\n",
        b"z\r\n",
        b"[" * 100_000,
        b"\x00" * 100,
        b'{"pending": 1e999}',
        b'{"pending": 3}',
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

# Those with which nothing is wrong, so that there is something to leave behind.
RIGHT = st.sampled_from(
    [
        b"GET /topics/a/messages?offset=100000&wait=300 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /topics/__statistics/messages?wait=300 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /topics/b/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n" + b'{"value": 1}',
        b"POST /topics/b/messages?acks=9&timeout=300 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b'c\r\n{"value": 1}\r\n0\r\n\r\n',
    ]
)
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
async def test_no_bytes_do_harm(server: ServerProcess, clients: list[tuple[bytes, list[int], str]]) -> None:
    port = httpx.URL(server.url).port
    assert port is not None
    await asyncio.gather(*(_visit(port, *each) for each in clients))
    assert server.process.poll() is None


async def test_afterwards_no_client_waits_and_as_many_may_wait_as_before(client: httpx.AsyncClient) -> None:
    await until_waiting(client, 0)
    await until_waiting(client, 0, "produce")
    await until_waiting(client, 0, "throttle")
    # No client that has gone is counted: as many as ever may wait, and no more.
    for topic in ("a", "b"):
        _, end = await fetch(client, topic, max_messages=10_000, wait=0)
        polls = [asyncio.create_task(fetch(client, topic, offset=end, wait=300)) for _ in range(PENDING_CLIENT)]
        await until_waiting(client, PENDING_CLIENT)
        assert (await client.get(f"/topics/{topic}/messages?offset={end}")).status_code == 429
        await publish(client, topic, "for all")
        assert await asyncio.gather(*polls) == [(["for all"], end + 1)] * PENDING_CLIENT
