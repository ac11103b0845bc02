"""`purgatory serve` in a process of its own."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import httpx
import psutil

ROOT = "/v1/stream"
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
ZERO = "0000000000000000_0000000000000000"


class ServerProcess:
    """The process, started on a free port, and its URL. It may have so many open files, if that is given."""

    def __init__(self, *options: str, files: int | None = None) -> None:
        command = [sys.executable, "-m", "purgatory", "serve", "--port", "0", *options]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
        self.output: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                self.url = f"http://127.0.0.1:{self.port}"
                return
        raise RuntimeError(f"the server did not start: {''.join(self.output)}")

    def client(self, address: str = "127.0.0.1", **headers: str) -> httpx.AsyncClient:
        return client_of(self.url, address, **headers)

    @property
    def memory(self) -> int:
        size: int = psutil.Process(self.process.pid).memory_info().rss
        return size

    @property
    def files(self) -> int:
        """Open files: each connection is one."""
        count: int = psutil.Process(self.process.pid).num_fds()
        return count

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 60) -> int:
        """Send the signal and return the exit code."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=seconds)
        self.output.append(rest)
        return self.process.returncode

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.communicate()


def client_of(url: str, address: str = "127.0.0.1", **headers: str) -> httpx.AsyncClient:
    """A client that comes from `address`."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=limits)
    return httpx.AsyncClient(base_url=url, transport=transport, timeout=60, headers=headers)


@contextmanager
def running(data: Path | None, *options: str, files: int | None = None) -> Iterator[ServerProcess]:
    """A server for as long as the context lasts. Its output must have no traceback."""
    server = ServerProcess(*options, *(() if data is None else ("--data", str(data))), files=files)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
    assert "Traceback" not in "".join(server.output), "".join(server.output)


async def waiting(client: httpx.AsyncClient, purgatory: str = "read") -> int:
    """The number of pending operations of one of the server's purgatories."""
    return int(await metric(client, f'purgatory_delayed_operations{{purgatory="{purgatory}"}}'))


async def metric(client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


async def until_waiting(client: httpx.AsyncClient, count: int, purgatory: str = "read") -> None:
    """Return when so many operations are pending: the time-out of the test is the bound."""
    while await waiting(client, purgatory) != count:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)


async def create(client: httpx.AsyncClient, *names: str, **headers: str) -> None:
    for name in names:
        response = await client.put(f"{ROOT}/{name}", headers={**TEXT, **headers})
        assert response.status_code in (200, 201), response.text


async def append(client: httpx.AsyncClient, name: str, data: str | bytes, **headers: str) -> str:
    """Append text. Returns the offset of the end."""
    response = await client.post(f"{ROOT}/{name}", content=data, headers={**TEXT, **headers})
    assert response.status_code in (200, 204), response.text
    offset: str = response.headers["stream-next-offset"]
    return offset


async def poll(client: httpx.AsyncClient, name: str, offset: str = ZERO) -> str:
    """The data behind an offset, by a long poll."""
    response = await client.get(f"{ROOT}/{name}", params={"offset": offset, "live": "long-poll"})
    assert response.status_code in (200, 204), response.text
    return response.text


class Listening(Protocol):
    port: int


async def raw(server: Listening, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer, after which the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()  # bytes that are still to be sent are not read
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.lower().split(": ", 1) for line in lines[1:]), body


def slow_reader(server: Listening, target: str, address: str = "127.0.0.1") -> socket.socket:
    """A connection with a small buffer that has asked for a stream, and does not read."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(60)
    reader.bind((address, 0))
    reader.connect(("127.0.0.1", server.port))
    reader.sendall(f"GET {ROOT}/{target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader
