"""The small examples: real processes, real sockets."""

import asyncio
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import cast

import pytest

from examples.idle_connections.server import EchoServer
from tests.support.paths import ROOT
from tests.support.servers import RedisServer


class Example:
    """An example's process."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, "--port", "0", *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        self.lines = self.process.stdout
        first = self.lines.readline()
        assert first.startswith("listening on 127.0.0.1:"), first
        self.port = int(first.split(":")[1].split(";")[0])

    def stop(self) -> str:
        """Return what it has printed since it was last looked at."""
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, output
        assert "Traceback" not in output
        return output


@contextmanager
def example(module: str, *arguments: str) -> Iterator[Example]:
    process = Example(module, *arguments)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.process.communicate()


def _more_files(files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, files), hard), hard))


class Client(asyncio.Protocol):
    """A connection that notes when it was hung up on."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.sent = time.monotonic()
        self.longest_silence = 0.0
        self.echoed = 0
        self.closed: asyncio.Future[float] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def say(self) -> None:
        now = time.monotonic()
        self.longest_silence = max(self.longest_silence, now - self.sent)
        self.sent = now
        self.transport.write(b"x")

    def data_received(self, data: bytes) -> None:
        self.echoed += len(data)

    def connection_lost(self, exception: Exception | None) -> None:
        self.closed.set_result(time.monotonic())


@asynccontextmanager
async def connected(count: int, port: int) -> AsyncIterator[list[Client]]:
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    try:
        for _ in range(count):
            _, client = await loop.create_connection(Client, "127.0.0.1", port)
            client.say()
            clients.append(client)
        yield clients
    finally:
        for client in clients:
            client.transport.abort()


class TestIdleConnections:
    async def test_silent_connections_are_closed_among_thousands_and_no_other(self) -> None:
        _more_files(4500)
        with example("examples.idle_connections", "--timeout", "5") as server:
            async with connected(3000, server.port) as clients:
                talking, silent = clients[::3], [client for index, client in enumerate(clients) if index % 3]
                hung_up = asyncio.gather(*(client.closed for client in silent))
                while not hung_up.done():
                    for client in talking:
                        client.say()
                    await asyncio.wait([hung_up], timeout=0.5)
                for client, closed in zip(silent, hung_up.result(), strict=True):
                    assert closed - client.sent >= 5.0, "too early"
                # On a busy machine this process may be silent for long itself.
                closed_too = [client for client in talking if client.closed.done()]
                assert all(
                    max(client.longest_silence, client.closed.result() - client.sent) >= 5.0 for client in closed_too
                )
                assert all(client.echoed for client in clients)
                told = server.stop()
                await asyncio.gather(*(client.closed for client in talking))
            counts = [int(count) for count in re.findall(r"\d+", told)]
            assert told == "connections open {}, closed because they were silent {}\n".format(*counts)
            assert sum(counts) == 3000
            assert counts[1] >= 2000 + len(closed_too)

    async def test_a_client_that_leaves_is_forgotten_and_one_that_does_not_read_is_disconnected(self) -> None:
        # Long enough for the client that leaves to have left before.
        async with EchoServer(1.0, "127.0.0.1", 0) as server:
            async with connected(2, server.address[1]) as (leaving, deaf):
                deaf.transport.pause_reading()
                deaf.transport.write(b"x" * 50_000_000)
                while len(server.idle) < 2:
                    await asyncio.wait([leaving.closed], timeout=0.001)
                leaving.transport.close()
                while len(server.idle) != 1:
                    await asyncio.wait([deaf.closed], timeout=0.001)
                while server.closed == 0:
                    for connection in server.idle:
                        assert connection.transport.get_write_buffer_size() < 1_000_000, "it is not read any further"
                    await asyncio.wait([deaf.closed], timeout=0.001)
            assert (server.closed, len(server.idle)) == (1, 0)

    def test_a_bad_timeout_is_refused(self) -> None:
        command = [sys.executable, "-m", "examples.idle_connections", "--timeout", "0"]
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 2
        assert "--timeout must be more than 0 and finite, not 0.0" in refused.stderr

    def test_address_that_cannot_be_listened_on_is_reported(self) -> None:
        for arguments, error in (
            (["--port", "99999"], "--port must be from 0 to 65535, not 99999"),
            (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1:"),
        ):
            command = [sys.executable, "-m", "examples.idle_connections", *arguments]
            refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
            assert refused.returncode != 0
            assert error in refused.stderr
            assert "Traceback" not in refused.stderr


class TestSeveralProcesses:
    @pytest.mark.parametrize("broker", ["redis", "postgres"])
    def test_a_change_of_one_process_completes_the_wait_of_another(
        self, broker: str, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        server = request.getfixturevalue(broker)
        url = server.url if isinstance(server, RedisServer) else server.dsn()

        def start(what: str) -> "subprocess.Popen[str]":
            command = [sys.executable, "-m", "examples.several_processes", what, url]
            command += ["--counter", str(tmp_path / "counter.sqlite3"), "--timeout", "300"]
            return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

        with start("wait") as waiting, start("wait") as another:
            for each in (waiting, another):
                assert each.stdout is not None
                assert each.stdout.readline() == "the counter is at 0\n"
            with start("increase") as increasing:
                assert increasing.communicate()[0] == "the counter is at 1 now\n"
            assert [each.communicate()[0] for each in (waiting, another)] == ["it has grown to 1\n"] * 2
