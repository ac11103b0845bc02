"""A real long-poll server in a process of its own."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from examples.long_poll_server.app import LongPollServer
from examples.long_poll_server.protocol import BoundedProtocol
from examples.long_poll_server.settings import Settings
from tests.support.paths import ROOT


class ServerProcess:
    """The process, started on a free port, and its URL."""

    def __init__(self, data: Path | None, *arguments: str, module: str = "examples.long_poll_server") -> None:
        command = [sys.executable, "-m", module, "--port", "0", *arguments]
        if data is not None:
            command += ["--data", str(data)]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.output: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.output.append(line)
            if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
                self.url = found[1]
                return
        raise RuntimeError(f"the server did not start: {''.join(self.output)}")

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(base_url=self.url, timeout=60, limits=limits)

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 30) -> int:
        """Send the signal and return the exit code."""
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=seconds)
        self.output.append(rest)
        return self.process.returncode


@contextmanager
def running(data: Path | None, *arguments: str, module: str = "examples.long_poll_server") -> Iterator[ServerProcess]:
    """A server for as long as the context lasts. Its output must have no traceback."""
    server = ServerProcess(data, *arguments, module=module)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
    assert "Traceback" not in "".join(server.output), "".join(server.output)


async def statistics(client: httpx.AsyncClient, purgatory: str = "fetch") -> dict[str, Any]:
    """The statistics of one of the server's purgatories."""
    response = await client.get("/statistics")
    answer: dict[str, dict[str, Any]] = response.json()
    return answer[purgatory]


async def until_waiting(client: httpx.AsyncClient, count: int, purgatory: str = "fetch") -> None:
    """Return when that many operations are pending: the time-out of the test is the bound."""
    while (await statistics(client, purgatory))["num_delayed"] != count:
        pass


async def publish(client: httpx.AsyncClient, topic: str, value: object) -> int:
    """Publish a value and return its offset."""
    response = await client.post(f"/topics/{topic}/messages", json={"value": value})
    assert response.status_code == 201, response.text
    offset: int = response.json()["offset"]
    return offset


async def fetch(client: httpx.AsyncClient, topic: str, **parameters: Any) -> tuple[list[Any], int]:
    """The values fetched, whose offsets are checked, and the next offset."""
    response = await client.get(f"/topics/{topic}/messages", params=parameters)
    assert response.status_code == 200, response.text
    answer = response.json()
    offset = parameters.get("offset", 0)
    assert [message["offset"] for message in answer["messages"]] == list(range(offset, answer["next_offset"]))
    return [message["value"] for message in answer["messages"]], answer["next_offset"]


async def raw(server: ServerProcess, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer, after which the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
    try:
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()  # bytes that are still to be sent are not read
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.lower().split(": ", 1) for line in lines[1:]), body


@asynccontextmanager
async def in_this_process(data: Path, timeout_keep_alive: int = 5) -> AsyncIterator[int]:
    """The port of a server in this process, where its constants can be changed."""
    app = LongPollServer(Settings(data=data)).app
    config = uvicorn.Config(
        app, http=BoundedProtocol, ws="none", log_config=None, timeout_keep_alive=timeout_keep_alive
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await serving
