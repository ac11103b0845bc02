"""The server of parked requests: clients that go, shutdown, limits, logs, WebSockets, TLS, the command."""

import asyncio
import logging
import runpy
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import program
from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, Server, connected, serving

QUIET = "QuietConnection"


async def test_client_that_shares_an_operation_leaves_it_to_the_other(
    board: Board, server: Server, client: Client
) -> None:
    await client.send("GET", "/look")
    await board.until_waiting(1)
    waiting = asyncio.ensure_future(board.looks[0])
    await asyncio.sleep(0)
    client.writer.close()
    await server.until()
    board.pin("hello")
    assert await waiting == ["hello"]


class TestTheServer:
    async def test_parked_requests_are_answered_when_shutdown_begins(self, board: Board) -> None:
        async with (
            serving(board.app) as server,
            connected(server) as one,
            connected(server) as other,
            connected(server) as reader,
            connected(server) as idle,
        ):
            assert (await idle.request("GET", "/now")).status == 200
            await server.until(*[QUIET] * 4)
            await one.send("GET", "/look")
            await other.send("GET", "/look")
            await reader.send("GET", "/events")
            await board.until_waiting(3)
            server.should_exit = True
            for client in (one, other):
                response = await client.receive()
                assert (response.status, response.body, response.headers["connection"]) == (200, b"[]", "close")
                assert await client.ended()
            assert (await reader.receive()).body == b":\n\n"
            assert await reader.ended()
            assert await idle.ended()
            await server.serve_task
        assert {look.outcome for look in board.looks} == {"closed"}

    async def test_limit_of_concurrency_counts_parked_requests(self, board: Board) -> None:
        async with (
            serving(board.app, limit_concurrency=3) as server,
            connected(server) as one,
            connected(server) as other,
        ):
            await one.send("GET", "/look")
            await other.send("GET", "/look")
            await board.until_waiting(2)
            async with connected(server) as third:
                assert (await third.request("GET", "/now")).status == 503

    async def test_access_log_is_the_same_as_without_parking(
        self, board: Board, http: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, logger="uvicorn.access")
        async with serving(board.app, http) as server, connected(server) as client:
            port = client.writer.get_extra_info("sockname")[1]
            await client.request("GET", "/look?timeout=0.01&x=%20y")
            await client.request("HEAD", "/look?timeout=0.01", "X-Forwarded-For: 10.1.2.3")
            await client.send("GET", "/look?timeout=0.01", version="1.0")
            await client.receive()
        assert [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"] == [
            f'127.0.0.1:{port} - "GET /look?timeout=0.01&x=%20y HTTP/1.1" 200',
            '10.1.2.3:0 - "HEAD /look?timeout=0.01 HTTP/1.1" 200',
            f'127.0.0.1:{port} - "GET /look?timeout=0.01 HTTP/1.0" 200',
        ]
        assert server.server_state.total_requests == 3

    async def test_access_log_is_not_written_if_it_is_off(
        self, board: Board, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)  # put back at the end
        async with serving(board.app, access_log=False) as server, connected(server) as client:
            assert (await client.request("GET", "/look?timeout=0.01")).status == 200
        assert not [record for record in caplog.records if record.name == "uvicorn.access"]


async def test_requests_over_tls_are_parked(board: Board, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = "req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 1"
    command = [program("openssl", "openssl"), *request.split(), "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)
    async with serving(board.app, ssl_keyfile=str(key), ssl_certfile=str(certificate)) as server:
        trusting = ssl.create_default_context(cafile=str(certificate))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=trusting, server_hostname="localhost"
        )
        client = Client(reader, writer)
        for seen in range(2):
            await client.send("GET", f"/look?seen={seen}")
            await board.until_waiting(1)
            await server.until(QUIET)
            await client.send("GET", "/now")
            await asyncio.sleep(0.05)
            board.pin("hello")
            assert (await client.receive()).body == b'["hello"]'
            assert (await client.receive()).body == b"now 0"
        await client.send("GET", "/look?seen=2")
        await board.until_waiting(1)
        writer.close()
        await board.until_waiting(0)
        await server.until()


def test_command_is_uvicorns_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["purgatory.uvicorn", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("purgatory.uvicorn", run_name="__main__")
    assert "python -m purgatory.uvicorn [OPTIONS] APP" in capsys.readouterr().out
