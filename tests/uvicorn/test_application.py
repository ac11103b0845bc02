"""An application that others wrote is answered with the same bytes by uvicorn and by `python -m purgatory.uvicorn`.

It is the everything-server of the MCP SDK, which has event streams, from its source distribution. A script talks with
both servers, and all bytes of each connection are compared: status, headers and chunks.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from purgatory.uvicorn import ParkingProtocol
from tests.support import brought
from tests.support.paths import ROOT
from tests.uvicorn.serving import Client

RANDOM: Final = re.compile(rb"(?P<id>\b[0-9a-f]{32}\b)|(?P<date>(?<=\r\ndate: )[^\r]+)")
"""What differs from run to run: the ids of sessions, and dates."""

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
        """What has come, with a number in the place of each id: the order in which it first appeared."""
        numbers: dict[bytes, int] = {}

        def number(match: "re.Match[bytes]") -> bytes:
            return b"%d" % numbers.setdefault(match[0], len(numbers)) if match.lastgroup == "id" else b"date"

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

    def leave(self) -> None:
        """Disconnect. What has come behind the part that was waited for is not kept: it depends on the packets."""
        received = self.talk.received
        received[self.name] = received[self.name].removesuffix(self.left)
        self.left = b""
        self.writer.transport.abort()


@contextmanager
def serving(server: str, app: str, log: Path) -> Iterator[int]:
    """A server's process, which ends with the test. Yields its port."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", server, "--factory", app, "--port", "0"],
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
    """MCP's streamable HTTP: each call is answered by an event stream, and a session has one of its own."""
    one = await talk.connect("calls")
    answer = await one.request("POST", "/mcp", *RPC, body=call(1, "initialize", **INITIALIZE))
    session = ("Mcp-Session-Id: " + answer.headers["mcp-session-id"], "Mcp-Protocol-Version: 2025-06-18")
    initialized = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    assert (await one.request("POST", "/mcp", *RPC, *session, body=initialized)).status == 202

    listener = await talk.connect("the session's own stream")
    await listener.send("GET", "/mcp", "Accept: text/event-stream", *session)
    await listener.until(b"\r\n\r\n")
    await talk.settle()
    for body in (
        call(2, "tools/list"),
        call(3, "tools/call", name="test_tool_with_logging", arguments={}),
        call(4, "tools/call", name="test_tool_with_progress", arguments={}, _meta={"progressToken": 4}),
        call(5, "tools/call", name="test_error_handling", arguments={}),
        call(6, "tools/call", name="test_x_mcp_header", arguments={"region": "r" * 500_000}),
        b"{no JSON",
    ):
        await one.request("POST", "/mcp", *RPC, *session, body=body)

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

    await one.request("DELETE", "/mcp", *session)
    await listener.until(b"0\r\n\r\n")  # the session's end


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_application_is_answered_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = brought.source("mcp", tmp_path) / "examples" / "servers" / "everything-server"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [folder, ROOT])))
    compared = []
    for server in ("uvicorn", "purgatory.uvicorn"):
        with serving(
            server, "mcp_everything_server.server:mcp.streamable_http_app", tmp_path / f"{server}.log"
        ) as port:
            talk = Talk(port)
            try:
                await stream(talk)
            finally:
                await talk.end()
            compared.append(talk.compared)
    alone, parking = compared
    assert alone.keys() == parking.keys()
    for connection, received in alone.items():
        assert received, connection
        assert received == parking[connection], connection
