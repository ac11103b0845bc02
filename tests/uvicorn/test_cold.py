"""Connections without a transport: what the other tests here, all with a threshold of zero too, do not show of them."""

import asyncio
import gc
import math
import os
import re
import resource
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.responses import Response

from purgatory.bench.case import OURS
from purgatory.bench.client import Client as Caller
from purgatory.bench.client import abort, connect
from purgatory.bench.web.servers import POLLS
from purgatory.connections import QuietTransport
from purgatory.uvicorn import ParkingProtocol
from purgatory.uvicorn.protocol import setting as setting_of
from tests.support.operations import turn
from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, Server, connected, serving


@pytest.fixture
def temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParkingProtocol, "cool_after", 0.0)


def is_cold(connection: Any) -> bool:
    transport = getattr(connection, "transport", None)
    return isinstance(transport, QuietTransport) and transport.is_cold()


async def cold(server: Server) -> Any:
    """The only connection, once it is cold and its transport is closed."""
    while True:
        for connection in server.server_state.connections:
            if is_cold(connection):
                await turn()
                return connection
        await turn()


async def parked(board: Board, server: Server, client: Client, target: str = "/look") -> Any:
    """The connection of a request that waits, cold."""
    await client.send("GET", target)
    await board.until_waiting(1)
    return await cold(server)


async def warming(connection: Any) -> None:
    """Return when the connection is not watched any more, and has no transport yet."""
    while connection.shared.quiet.num_cold:
        await turn()
    assert connection.transport._transport is None


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_cold_connection_has_one_descriptor_and_no_timer(board: Board, server: Server, client: Client) -> None:
    await client.request("GET", "/now")
    before = descriptors()
    connection = await parked(board, server, client)
    shared = connection.shared
    assert descriptors() == before + 1  # that of epoll
    assert (shared.quiet.num_cold, shared.quiet.num_resting_soon, len(shared.timer)) == (1, 0, 0)
    board.pin("hello")
    assert (await client.receive()).body == b'["hello"]'
    assert is_cold(connection)
    client.writer.close()
    await server.until()
    assert descriptors() == before - 2
    assert (shared.quiet.num_cold, len(shared.timer)) == (0, 0)


async def test_connection_is_cold_after_its_time_and_not_before(board: Board) -> None:
    class Later(ParkingProtocol):
        cool_after = 0.3

    async with serving(board.app, Later) as server, connected(server) as client:
        clock = asyncio.get_running_loop()  # uvloop's counts whole milliseconds
        began = clock.time()
        await parked(board, server, client)
        assert clock.time() - began >= Later.cool_after - 1e-6


async def test_connection_of_a_unix_socket_gets_cold(board: Board, tmp_path: Path) -> None:
    async with serving(board.app, uds=str(tmp_path / "socket")) as server:
        client = Client(*await asyncio.open_unix_connection(tmp_path / "socket"))
        for seen in range(2):
            await parked(board, server, client, f"/look?seen={seen}")
            board.pin("hello")
            assert (await client.receive()).body == b'["hello"]'
        client.writer.close()
        await server.until()


async def test_without_a_descriptor_they_keep_their_transports_until_there_is_one(
    board: Board, server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(server) as other:
        for each in (client, other):
            await each.request("GET", "/now")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() - 1, hard))  # one was that of the folder
        try:
            for each in (client, other):
                await each.send("GET", "/look")
            await board.until_waiting(2)
            await asyncio.sleep(0.05)
            assert not any(is_cold(each) for each in server.server_state.connections)
            assert caplog.text.count("connections keep their transports, and take a kibibyte more") == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while not all(is_cold(each) for each in server.server_state.connections):
            await turn()


async def test_at_the_limit_of_descriptors_the_server_answers_and_logs_and_goes_on(tmp_path: Path) -> None:
    """Those that came before the limit get cold, the last one keeps its transport, others are not let in."""
    log = tmp_path / "log"
    with (
        log.open("w") as file,
        subprocess.Popen(POLLS[OURS], stderr=file, env={**os.environ, "PURGATORY_COOL_AFTER": "0"}) as process,
    ):
        while not (found := re.search(r"running on http://127.0.0.1:(\d+)", log.read_text())):
            await asyncio.sleep(0.02)
        server = psutil.Process(process.pid)
        control = await anext(connect(int(found[1]), 1, Caller))
        await control.ask("GET", "/now")
        before = server.num_fds()
        server.rlimit(psutil.RLIMIT_NOFILE, (before + 20, before + 1000))
        clients = [client async for client in connect(int(found[1]), 40, Caller)]
        for client in clients:
            if not client.transport.is_closing():
                client.ask("GET", "/wait?topic=all&after=0")
        while "connections keep their transports" not in log.read_text():
            await asyncio.sleep(0.02)
        await control.ask("POST", "/publish?topic=all")
        answers = await asyncio.gather(*(client.answer for client in clients), return_exceptions=True)
        assert 15 <= answers.count(b"1") <= 20
        abort(clients)
        while server.num_fds() > before + 1:
            await asyncio.sleep(0.02)
        again = [client async for client in connect(int(found[1]), 15, Caller)]
        assert await asyncio.gather(*(client.ask("GET", "/now") for client in again)) == [b'"now"'] * 15
        process.kill()
    assert log.read_text().count("Too many open files") == 1


async def test_look_without_a_cause_changes_nothing(board: Board, server: Server, client: Client) -> None:
    connection = await parked(board, server, client)
    connection.transport.look()
    assert connection.shared.quiet.num_cold == 1
    board.pin("hello")
    assert (await client.receive()).body == b'["hello"]'


class TestMoments:
    """Two things that happen before the loop has looked at the connection, or before it has its new transport."""

    async def test_answer_after_a_reset_is_lost_and_the_connection_ends(
        self, board: Board, server: Server, client: Client
    ) -> None:
        connection = await parked(board, server, client)
        client.reset()
        time.sleep(0.01)  # noqa: ASYNC251 - nobody is to look at the connection meanwhile
        await turn()
        board.pin("hello")
        await server.until()
        assert connection.shared.quiet.num_cold == 0

    @pytest.mark.parametrize("is_seen", [False, True])
    async def test_answer_comes_before_that_of_the_next_request(
        self, board: Board, server: Server, client: Client, is_seen: bool
    ) -> None:
        connection = await parked(board, server, client)
        client.writer.write(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n")
        if is_seen:
            await warming(connection)
        board.pin("hello")
        assert (await client.receive()).body == b'["hello"]'
        assert (await client.receive()).body == b"now 0"

    @pytest.mark.parametrize("how", ["close", "abort"])
    async def test_it_is_closed(self, board: Board, server: Server, client: Client, how: str) -> None:
        connection = await parked(board, server, client)
        await client.send("GET", "/now")
        await warming(connection)
        getattr(connection.transport, how)()
        await server.until()
        await board.until_waiting(0)
        assert await client.ended()

    async def test_its_new_transport_is_cancelled_and_the_connection_ends(
        self, board: Board, server: Server, client: Client
    ) -> None:
        connection = await parked(board, server, client)
        before = asyncio.all_tasks()
        client.writer.write(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n")
        await warming(connection)
        for task in asyncio.all_tasks() - before:
            task.cancel()
        await server.until()
        await board.until_waiting(0)
        assert await client.ended()


async def test_large_answer_is_not_copied_for_each_client(board: Board, server: Server) -> None:
    body = b"x" * 20_000_000
    board.key = lambda notes: "the same"
    board.render = lambda notes: Response(body)
    async with connected(server) as one, connected(server) as other:
        for client in (one, other):
            await client.send("GET", "/look")
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await board.until_waiting(2)
        while not all(is_cold(each) for each in server.server_state.connections):
            await turn()
        before = sys.getrefcount(body)
        tracemalloc.start()
        board.pin("hello")
        while not all(each.transport.get_write_buffer_size() for each in server.server_state.connections):
            await turn()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert sys.getrefcount(body) > before
        assert peak < len(body)


def test_descriptors_are_closed_though_the_loop_ends_before_its_connections() -> None:
    async def leave() -> None:
        board = Board()
        server = Server(board.app)
        serving = asyncio.create_task(server._serve())
        while not server.started:
            await asyncio.sleep(0.005)
        async with connected(server) as client:
            await parked(board, server, client)
            serving.cancel()
            await asyncio.wait([serving])
            server.servers[0].close()

    gc.collect()
    before = descriptors()
    asyncio.run(leave())
    gc.collect()
    assert descriptors() == before


@pytest.mark.parametrize(("setting", "seconds"), [(None, 3.0), ("0", 0.0), ("inf", math.inf)])
def test_environment_has_the_time(setting: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURGATORY_COOL_AFTER", raising=False)
    if setting is not None:
        monkeypatch.setenv("PURGATORY_COOL_AFTER", setting)
    assert setting_of("PURGATORY_COOL_AFTER", 3.0) == seconds


@pytest.mark.parametrize("setting", ["never", "-1", "nan"])
def test_wrong_time_of_the_environment_is_refused(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURGATORY_COOL_AFTER", setting)
    says = f"PURGATORY_COOL_AFTER must be a number of seconds, or inf for never, not '{setting}'"
    with pytest.raises(ValueError, match=says):
        setting_of("PURGATORY_COOL_AFTER", 3.0)
