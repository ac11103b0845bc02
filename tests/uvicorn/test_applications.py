"""Applications that others wrote are answered with the same bytes by uvicorn and by `python -m purgatory.uvicorn`.

They are Datasette and the everything-server of the MCP SDK, which has event streams, from their source distributions as
they are. A script talks with both servers, and all bytes of each connection are compared: status, headers and chunks.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from purgatory.uvicorn import ParkingProtocol
from tests.support import brought
from tests.support.paths import ROOT
from tests.uvicorn.serving import Client

SERVERS: Final = ("uvicorn", "purgatory.uvicorn")

RANDOM: Final = re.compile(
    rb"(?P<id>\b[0-9a-f]{32}\b)"  # of a session
    rb"|(?P<token>(?<=ds_csrftoken=)[^;\r]+|(?<=name=\"csrftoken\" value=\")[^\"]+)"
    rb"|(?P<date>(?<=\r\ndate: )[^\r]+)"
    rb"|(?P<time>(?<=\"query_ms\": )[\d.e-]+|(?<=took )[\d.]+(?=ms))"
    rb"|(?P<size>(?<=\r\n)[0-9a-f]+(?=\r\n[^\r]*(?:\"query_ms\": |took [\d.]+ms)))"  # of a chunk with such a time
)
"""What differs from run to run."""

PING: Final = re.compile(rb"[0-9a-f]+\r\n: ping - [^\r]*\r\n\r\n\r\n")
"""What a stream has every 15 seconds, on a busy machine."""


class Talk:
    """A script's connections, and what has come on them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.received: dict[str, bytes] = {}
        self.clients: list[RecordingClient] = []

    async def connect(self, name: str) -> "RecordingClient":
        assert name not in self.received
        self.received[name] = b""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(RecordingClient(self, name, reader, writer))
        return self.clients[-1]

    async def end(self) -> None:
        """Close all connections."""
        for client in self.clients:
            client.leave()
            with suppress(ConnectionError):
                await client.writer.wait_closed()

    async def settle(self) -> None:
        """Wait until idle connections have become small."""
        await asyncio.sleep(3 * ParkingProtocol.settle_after)

    @property
    def compared(self) -> dict[str, bytes]:
        """What has come, with a number in the place of each random value: the order in which it first appeared."""
        numbers: dict[bytes, int] = {}

        def number(match: "re.Match[bytes]") -> bytes:
            kind = str(match.lastgroup)
            return (
                kind.encode()
                if kind in ("date", "time", "size")
                else b"%d" % numbers.setdefault(match[0], len(numbers))
            )

        return {name: RANDOM.sub(number, PING.sub(b"", received)) for name, received in self.received.items()}


class RecordingClient(Client):
    """A client whose answers are kept, in the bytes that came."""

    host = "localhost:80"  # the MCP SDK admits no other name than one with a port

    def __init__(self, talk: Talk, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.talk = talk
        self.name = name
        self._read = reader.read
        reader.read = self._recorded  # type: ignore[method-assign]

    async def _recorded(self, n: int = -1) -> bytes:
        data = await self._read(n)
        self.talk.received[self.name] += data
        return data

    async def rest(self) -> None:
        """Read until the server closes the connection."""
        while await self.reader.read(65536):
            pass

    def leave(self) -> None:
        """Disconnect. What has come behind the part that was waited for is not kept: it depends on the packets."""
        received = self.talk.received
        received[self.name] = received[self.name].removesuffix(self.left)
        self.left = b""
        self.writer.transport.abort()


Script: TypeAlias = Callable[[Talk], Awaitable[None]]


@contextmanager
def serving(server: str, app: str, source: Path, paths: list[Path], log: Path, **environment: str) -> Iterator[int]:
    """A server's process, which ends with the test. Yields its port."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", server, "--factory", app, "--port", "0"],
            cwd=source,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT])), **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        while not (found := re.search(r"running on http://127\.0\.0\.1:(\d+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield int(found[1])
        process.send_signal(signal.SIGINT)
        process.wait()  # the test's own timeout ends it
        assert "Finished server process" in log.read_text()
    finally:
        process.kill()
        process.wait()


async def talk_of(script: Script, port: int) -> dict[str, bytes]:
    """What the server answers to a script."""
    talk = Talk(port)
    try:
        await script(talk)
    finally:
        await talk.end()
    return talk.compared


# Datasette


def make_site(site: Path) -> None:
    """Two databases, one of them with more than a transport buffers, and a static file that is larger still."""
    (site / "files").mkdir(parents=True)
    (site / "files" / "large.txt").write_bytes(b"0123456789abcde\n" * 100_000)
    with sqlite3.connect(site / "shop.db") as shop:
        shop.execute("create table items (id integer primary key, name text, price real)")
        shop.executemany(
            "insert into items (name, price) values (?, ?)",
            [(f"item {number} " + "x" * 60, number / 4) for number in range(5_000)],
        )
    shop.close()
    with sqlite3.connect(site / "notes.db") as notes:
        notes.execute("create table notes (id integer primary key, text text)")
    notes.close()


async def browse(talk: Talk) -> None:
    """Pages, files, errors, conditional requests, large bodies, and all kinds of connections."""
    one = await talk.connect("one by one")
    for target in (
        "/",
        "/shop/items",
        "/shop/items.json?_size=3&_facet=price",
        "/shop/items.csv?_stream=on",
        "/shop.json?sql=select+count(*)+from+items",
        "/shop?sql=no+sql",
        "/-/static/app.css",
        "/files/large.txt",
        "/files/../notes.db",
        "/nothing",
        "/shop/",
    ):
        await one.request("GET", target)
        await one.request("HEAD", target)
    await talk.settle()
    tag = (await one.request("GET", "/shop.db")).headers["etag"]
    await talk.settle()
    assert (await one.request("GET", "/shop.db", f"If-None-Match: {tag}")).status == 304
    assert (await one.request("GET", "/shop.db", 'If-None-Match: "another"')).status == 200
    for method in ("OPTIONS", "PUT", "DELETE", "POST", "BREW"):
        await one.request(method, "/shop/items", body=b"none of these")

    sender = await talk.connect("writes")
    form = ("Content-Type: application/json", "Accept: application/json")
    for text in ("hello", "y" * 300_000):
        await sender.request("POST", "/notes/add", *form, body=json.dumps({"text": text}).encode())
        await talk.settle()
    assert (await sender.request("GET", "/notes/notes.json?_shape=array")).body.count(b"hello") == 1
    await sender.send("POST", "/notes/add", *form, "Expect: 100-continue", "Content-Length: 18")
    await sender.until(b"100 Continue\r\n\r\n")
    await sender.write(b'{"text": "expect"}')
    await sender.receive("POST")
    chunked = "POST /notes/add HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nAccept: application/json\r\n\r\n"
    await sender.write(chunked.encode() + b"9\r\ntext=chun\r\n3\r\nked\r\n0\r\n\r\n")
    await sender.receive("POST")

    pipelined = await talk.connect("pipelined")
    await pipelined.write(b"".join(b"GET /shop/items/%d.json HTTP/1.1\r\nHost: x\r\n\r\n" % each for each in (1, 2, 0)))
    for _ in range(3):
        await pipelined.receive()

    for name, request in {
        "1.0": b"GET /shop.json HTTP/1.0\r\n\r\n",
        "close": b"GET /shop.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "no HTTP": b"Hello there\r\n\r\n",
    }.items():
        closed = await talk.connect(name)
        await closed.write(request)
        await closed.rest()

    many = [await talk.connect(f"together {number}") for number in range(8)]

    async def some(client: RecordingClient, number: int) -> None:
        for step in range(5):
            await client.request("GET", f"/shop/items/{number * 5 + step + 1}.json")

    await asyncio.gather(*(some(client, number) for number, client in enumerate(many)))


# The MCP SDK

RPC: Final = ("Content-Type: application/json", "Accept: application/json, text/event-stream")
INITIALIZE: Final = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "script", "version": "1"},
}


def call(number: int, method: str, **params: Any) -> bytes:
    """A call of JSON-RPC."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


async def stream(talk: Talk) -> None:
    """Streamable HTTP: each call is answered by an event stream, and a session has one of its own."""
    one = await talk.connect("calls")
    answer = await one.request("POST", "/mcp", *RPC, body=call(1, "initialize", **INITIALIZE))
    session = ("Mcp-Session-Id: " + answer.headers["mcp-session-id"], "Mcp-Protocol-Version: 2025-06-18")
    initialized = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    assert (await one.request("POST", "/mcp", *RPC, *session, body=initialized)).status == 202

    listener = await talk.connect("the session's own stream")
    await listener.send("GET", "/mcp", "Accept: text/event-stream", *session)
    await listener.until(b"\r\n\r\n")
    await talk.settle()
    twice = await talk.connect("a second stream")
    assert (await twice.request("GET", "/mcp", "Accept: text/event-stream", *session)).status == 409

    for number, body in enumerate(
        (
            call(2, "tools/list"),
            call(3, "tools/call", name="test_simple_text", arguments={}),
            call(4, "tools/call", name="test_tool_with_logging", arguments={}),
            call(5, "tools/call", name="test_tool_with_progress", arguments={}, _meta={"progressToken": 5}),
            call(6, "tools/call", name="test_image_content", arguments={}),
            call(7, "tools/call", name="test_error_handling", arguments={}),
            call(8, "tools/call", name="nothing", arguments={}),
            call(9, "resources/read", uri="test://static-binary"),
            call(10, "nothing"),
            call(11, "tools/call", name="test_x_mcp_header", arguments={"region": "r" * 500_000}),
            b"{no JSON",
            b"z" * 5_000_000,  # more than is admitted
        )
    ):
        client = one if number < 10 else await talk.connect(f"body {number}")
        await client.request("POST", "/mcp", *RPC, *session, body=body)

    asked = await talk.connect("asks back")
    elicit = call(12, "tools/call", name="test_elicitation", arguments={"message": "who?"})
    await asked.send("POST", "/mcp", *RPC, *session, body=elicit)
    question = re.search(rb"data: (\{.*elicitation/create.*\})\r\n", await asked.until(b"\r\n\r\n\r\n"))
    assert question is not None
    await talk.settle()
    reply = {"action": "accept", "content": {"response": "me"}}
    reply = {"jsonrpc": "2.0", "id": json.loads(question[1])["id"], "result": reply}
    assert (await one.request("POST", "/mcp", *RPC, *session, body=json.dumps(reply).encode())).status == 202
    await asked.until(b"0\r\n\r\n")

    gone = await talk.connect("leaves its stream")
    await gone.send("POST", "/mcp", *RPC, *session, body=elicit.replace(b"12", b"13"))
    await gone.until(b"elicitation/create")
    gone.leave()
    await one.request("POST", "/mcp", *RPC, *session, body=call(14, "tools/call", name="test_trigger_tool_change"))

    for number, (method, *headers) in enumerate(
        (
            ("GET", "Accept: text/event-stream"),
            ("GET", "Accept: text/event-stream", "Mcp-Session-Id: unknown"),
            ("POST", "Accept: text/plain"),
            ("HEAD",),
            ("PUT",),
            ("DELETE", *session),
            ("GET", "Accept: text/event-stream", *session),
        )
    ):
        client = await talk.connect(f"refused {number}")
        await client.request(method, "/mcp", *headers)
    await listener.until(b"0\r\n\r\n")  # the session's end

    sessions = [await talk.connect(f"session {number}") for number in range(6)]
    await asyncio.gather(
        *(each.request("POST", "/mcp", *RPC, body=call(1, "initialize", **INITIALIZE)) for each in sessions)
    )


async def events(talk: Talk) -> None:
    """The SSE transport: all answers come on the client's one event stream."""
    for name in ("first", "second"):
        listener = await talk.connect(f"{name} stream")
        await listener.send("GET", "/sse")
        found = re.search(rb"data: (\S+)", await listener.until(b"\r\n\r\n\r\n"))
        assert found is not None
        target = found[1].decode()
        await talk.settle()
        sender = await talk.connect(f"{name} sender")
        for body in (
            call(1, "initialize", **INITIALIZE),
            json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode(),
            call(2, "tools/call", name="test_tool_with_logging", arguments={}),
        ):
            assert (await sender.request("POST", target, *RPC, body=body)).status == 202
            await talk.settle()
        await listener.until(b"executed successfully")
        listener.leave()
        assert (await sender.request("POST", "/messages/?session_id=no", *RPC, body=b"{}")).status == 400
        assert (await sender.request("POST", "/messages/", *RPC, body=b"{}")).status == 400
        assert (await sender.request("GET", target)).status == 405


def _sdk(app: str) -> tuple[str, str, list[str]]:
    return "mcp", f"mcp_everything_server.server:mcp.{app}", ["examples/servers/everything-server", "src"]


APPLICATIONS: Final[dict[str, tuple[Script, str, str, list[str]]]] = {
    "Datasette": (browse, "datasette", "tests.uvicorn.sites:datasette", [""]),
    "MCP, streamable HTTP": (stream, *_sdk("streamable_http_app")),
    "MCP, SSE": (events, *_sdk("sse_app")),
}


@pytest.mark.parametrize("name", APPLICATIONS)
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_application_is_answered_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    script, library, app, folders = APPLICATIONS[name]
    source = brought.source(library, tmp_path)
    make_site(tmp_path / "template")
    site, compared = tmp_path / "site", []
    for server in SERVERS:
        log = tmp_path / f"{server}.log"
        shutil.copytree(tmp_path / "template", site)
        with serving(server, app, source, [source / each for each in folders], log, SITE=str(site)) as port:
            compared.append(await talk_of(script, port))
        shutil.rmtree(site)
    alone, parking = compared
    assert alone.keys() == parking.keys()
    for connection, received in alone.items():
        assert received, connection
        assert received == parking[connection], connection
