"""A server under load, in a process of its own, and what it tells of itself."""

import asyncio
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parent.parent.parent.parent


def raise_file_limit() -> int:
    """A connection is an open file: take as many as the system lets us. Returns how many that is."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


BIND_ADDRESS_NO_PORT = 24
"""Linux' IP_BIND_ADDRESS_NO_PORT: a port is taken when it connects. To look for a free one at `bind` takes a ms."""

AT_ONCE = 500
"""Connections that a client opens at a time. A server's backlog is not endless: uvicorn's is 2,048."""


@asynccontextmanager
async def session(url: str, source: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """A client with as many connections as it has requests, and no time-out; they come from the address `source`."""

    def open_socket(info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = info
        opened = socket.socket(family, kind, protocol)
        if source is not None:
            opened.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
            opened.bind((source, 0))
        return opened

    connecting = asyncio.Semaphore(AT_ONCE)

    async def before(*_: object) -> None:
        await connecting.acquire()

    async def after(*_: object) -> None:
        connecting.release()

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_start.append(before)
    tracing.on_connection_create_end.append(after)
    async with aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0, socket_factory=open_socket),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        trace_configs=[tracing],
        raise_for_status=True,
    ) as session:
        yield session


class Metrics:
    """The answer of `GET /metrics`."""

    def __init__(self, text: str) -> None:
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def of(self, name: str, **labels: str) -> float:
        """The value of one sample."""
        return self._samples[name, frozenset(labels.items())]

    def pending(self, purgatory: str = "fetch") -> int:
        """Operations that wait."""
        return int(self.of("purgatory_delayed_operations", purgatory=purgatory))

    def finished(self, outcome: str, purgatory: str = "fetch") -> int:
        """Operations that have ended so."""
        return int(self.of("purgatory_operations_total", purgatory=purgatory, outcome=outcome))

    @property
    def memory(self) -> float:
        """Bytes that are resident."""
        return self.of("process_resident_memory_bytes")

    @property
    def files(self) -> int:
        """Open ones, of which a connection is one."""
        return int(self.of("process_open_fds"))


class Server:
    """The process, and where it listens."""

    def __init__(self, process: psutil.Process, url: str) -> None:
        self.process = process
        self.url = url
        self.scrapes: list[float] = []
        """Seconds that each `GET /metrics` has taken."""

    async def metrics(self, client: aiohttp.ClientSession) -> Metrics:
        """Of now."""
        began = time.monotonic()
        async with client.get("/metrics") as response:
            text = await response.text()
        self.scrapes.append(time.monotonic() - began)
        return Metrics(text)

    async def until_pending(self, client: aiohttp.ClientSession, count: int, purgatory: str = "fetch") -> None:
        """Return when so many operations wait. Raises `TimeoutError` if that takes more than a minute."""
        async with asyncio.timeout(60):
            while (await self.metrics(client)).pending(purgatory) != count:
                await asyncio.sleep(0.05)

    async def idle_cpu(self, seconds: float) -> float:
        """How much of a core the process takes, in percent, while nothing is asked of it."""
        before = self.process.cpu_times()
        await asyncio.sleep(seconds)
        after = self.process.cpu_times()
        return 100 * (after.user + after.system - before.user - before.system) / seconds


@contextmanager
def running_server(*options: str) -> Iterator[Server]:
    """A server on a free port, with its data in a temporary directory."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "examples.long_poll_server", "--port", "0", "--data", data, *options]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            said = []
            try:
                for line in process.stderr:
                    said.append(line)
                    if found := re.search(r"running on (http://\S+)", line):
                        yield Server(psutil.Process(process.pid), found[1])
                        break
                else:
                    raise RuntimeError(f"the server did not start: {''.join(said)}")
            finally:
                process.terminate()
                said += process.stderr.readlines()
            if process.wait() or any(line.startswith("Traceback") for line in said):
                raise RuntimeError(f"the server has failed: {''.join(said)}")
