"""The small examples: real processes, real sockets."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from examples.idle_connections.server import EchoServer
from tests.support.operations import turn
from tests.support.paths import ROOT
from tests.support.servers import RedisServer


class TestIdleConnections:
    def test_silent_connection_is_closed_and_not_too_early(self) -> None:
        command = [sys.executable, "-m", "examples.idle_connections", "--port", "0", "--timeout", "0.5"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                address, _, _ = process.stdout.readline().removeprefix("listening on ").partition(";")
                host, _, port = address.partition(":")
                began = time.monotonic()
                with socket.create_connection((host, int(port)), 60) as client:
                    client.sendall(b"x")
                    assert (client.recv(9), client.recv(9)) == (b"x", b"")
                assert time.monotonic() - began >= 0.5
                process.send_signal(signal.SIGTERM)
                told, _ = process.communicate(timeout=60)
            finally:
                process.kill()
        assert told == "connections open 0, closed because they were silent 1\n"
        assert process.returncode == 0

    async def test_a_client_that_leaves_is_forgotten_and_one_that_does_not_read_is_disconnected(self) -> None:
        # Long enough for the client that leaves to have left before.
        async with EchoServer(1.0, "127.0.0.1", 0) as server:
            _, flooding = await asyncio.open_connection(*server.address)
            _, leaving = await asyncio.open_connection(*server.address)
            while len(server.idle) < 2:
                await turn()
            leaving.close()
            while len(server.idle) != 1:
                await turn()
            cast(asyncio.Transport, flooding.transport).pause_reading()
            flooding.write(b"x" * 50_000_000)
            while server.closed == 0:
                for connection in server.idle:
                    assert connection.transport.get_write_buffer_size() < 1_000_000, "it is not read any further"
                await turn()
            assert (server.closed, len(server.idle)) == (1, 0)
            flooding.transport.abort()

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (("--timeout", "0"), "--timeout must be more than 0 and finite, not 0.0"),
            (("--port", "99999"), "--port must be from 0 to 65535, not 99999"),
            (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1:"),
        ],
    )
    def test_wrong_options_are_refused_in_a_line(self, arguments: tuple[str, str], error: str) -> None:
        command = [sys.executable, "-m", "examples.idle_connections", *arguments]
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode != 0
        assert error in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("broker", ["redis", "postgres"])
def test_a_change_of_one_process_completes_the_waits_of_others(
    broker: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue(broker)
    url = server.url if isinstance(server, RedisServer) else server.dsn()

    def start(action: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "examples.several_processes", action, url]
        command += ["--file", str(tmp_path / "number.sqlite3"), "--timeout", "300"]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    with start("wait") as waiting, start("wait") as another:
        for each in (waiting, another):
            assert each.stdout is not None
            assert each.stdout.readline() == "the number is 0\n"
        with start("increase") as increasing:
            assert increasing.communicate()[0] == "the number is 1 now\n"
        assert [each.communicate()[0] for each in (waiting, another)] == ["it has grown to 1\n"] * 2
