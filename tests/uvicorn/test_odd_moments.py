"""Parked requests at odd moments: stray bytes, shutdown, pauses, clients that do not take what was sent."""

import asyncio
import gc
import logging
import math
import re
import socket
import time
from contextvars import ContextVar
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from purgatory.uvicorn import ParkingProtocol
from purgatory.uvicorn.parked import QuietConnection
from purgatory.uvicorn.shared import Shared
from tests.uvicorn.board import Board
from tests.uvicorn.middlewares import adding, around
from tests.uvicorn.serving import Client, Server, connected, serving

QUIET = "QuietConnection"
NAME: ContextVar[str] = ContextVar("NAME", default="none")


@pytest.mark.parametrize("path", ["/look?timeout=0.01", "/events"])
async def test_messages_that_a_middleware_changes_are_of_one_response(path: str) -> None:
    board = Board(around(adding))
    headers = [(b"content-type", b"text/plain"), (b"x-mine", b"1")]
    response = Response(b"mine")
    response.raw_headers = headers
    for board.render in (lambda notes: 1 / 0, lambda notes: response):
        async with serving(board.app) as server:
            for _ in range(2):
                async with connected(server) as client:
                    await client.send("HEAD" if path == "/events" else "GET", path)
                    assert (await client.until(b"\r\n\r\n")).count(b"x-added: 1\r\n") == 1
    assert len(headers) == 2


@pytest.mark.parametrize("path", ["/look", "/events", "/tokens"])
async def test_request_that_is_parked_after_shutdown_has_begun_is_answered(board: Board, path: str) -> None:
    gate = asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await gate.wait()
        await board.app(scope, receive, send)

    async with serving(late) as server, connected(server) as client:
        await client.send("GET", path)
        while not server.server_state.tasks:
            await asyncio.sleep(0.005)
        server.should_exit = True
        while server.servers[0].is_serving():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        gate.set()
        assert b"connection: close" in await client.until(b"\r\n\r\n")
        await client.reader.read()
        await server.serve_task


@pytest.mark.parametrize("behind", [b"\r\n", b"GET /no"])
async def test_disconnect_is_seen_although_bytes_have_come_behind_the_request(
    board: Board, server: Server, client: Client, behind: bytes
) -> None:
    await client.send("GET", "/look")
    await board.until_waiting(1)
    await client.write(behind)
    await asyncio.sleep(0.02)
    client.reset()
    await board.until_waiting(0)
    await server.until()


LOOK, NOW = (f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for path in ("/look", "/now"))


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(
    "packets",
    [
        [LOOK],
        [LOOK + NOW],
        [LOOK, NOW],
        [NOW + LOOK],
        [LOOK + LOOK],
        [LOOK, LOOK],
        [LOOK + NOW, NOW],
        [LOOK + NOW + LOOK],
    ],
    ids=lambda packets: "|".join("+".join(re.findall("look|now", packet.decode())) for packet in packets),
)
async def test_no_request_waits_on_for_a_client_that_has_left(packets: list[bytes], how: str) -> None:
    board = Board()
    async with serving(board.app) as server:
        for _ in range(3):
            async with connected(server) as client:
                for packet in packets:
                    await client.write(packet)
                    await asyncio.sleep(0.01)
                await board.until_waiting(1)
                if how == "reset":
                    client.reset()
                else:
                    client.writer.close()
                await board.until_waiting(0)
                await server.until_no_task()
                await server.until()


async def test_requests_in_the_pipeline_do_not_let_more_be_read(board: Board, server: Server, client: Client) -> None:
    await client.write(LOOK + NOW * 200 + LOOK)
    await board.until_waiting(1)
    (connection,) = server.server_state.connections
    sending = asyncio.create_task(client.write(bytes(30_000_000)))
    await asyncio.sleep(0.05)
    most = 0
    board.pin("hello")
    while isinstance(connection, ParkingProtocol) and len(board.looks) < 2:
        most = max(most, len(connection.behind))
        await asyncio.sleep(0)
    assert 0 < most < 1_000_000
    sending.cancel()
    client.reset()


async def test_what_comes_behind_requests_in_the_pipeline_is_answered(board: Board, client: Client) -> None:
    body = bytes(200_000)  # more than is read ahead
    head = f"POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    await client.write(LOOK + NOW)
    await board.until_waiting(1)
    sending = asyncio.create_task(client.write(head + body + LOOK.replace(b"/look", b"/look?seen=1") + NOW))
    await asyncio.sleep(0.02)
    board.pin("hello")
    answers = [await client.receive() for _ in range(3)]
    await sending
    await board.until_waiting(1)
    board.pin("again")
    answers += [await client.receive() for _ in range(2)]
    assert [answer.body for answer in answers] == [b'["hello"]', b"now 0", b"now 200000", b'["again"]', b"now 0"]


async def test_nothing_is_handled_behind_the_last_answer_of_a_connection(
    board: Board, server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await client.write(LOOK + NOW.replace(b"Host: a", b"Host: a\r\nConnection: close"))
    await board.until_waiting(1)
    await client.write(LOOK + NOW)
    await asyncio.sleep(0.02)
    board.pin("hello")
    assert (await client.reader.read()).count(b"HTTP/1.1 200 OK") == 2
    await server.until()
    assert len(board.looks) == 1
    assert not caplog.records


@pytest.mark.parametrize("path", ["/look", "/events"])
async def test_background_task_runs_although_the_client_has_left(board: Board, http: Any, path: str) -> None:
    async with serving(board.app, http) as server, connected(server) as client:
        await client.send("GET", f"{path}?background")
        await board.until_waiting(1)
        client.reset()
        await board.until_waiting(0)
        await server.until_no_task()
    assert board.rendered == ["background"]


async def test_next_request_runs_in_the_context_of_the_server(board: Board) -> None:
    seen: list[str] = []

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen.append(NAME.get())
            NAME.set("the request's own")
        await board.app(scope, receive, send)

    NAME.set("the server's")
    async with serving(noting) as server, connected(server) as client:
        await client.send("GET", "/look")
        await board.until_waiting(1)
        await client.send("GET", "/now")
        await asyncio.sleep(0.02)
        NAME.set("the publisher's")
        board.pin("hello")
        await client.receive()
        await client.receive()
        await client.request("GET", "/now")
    assert seen == ["the server's"] * 3


class TestClientThatDoesNotTakeItsAnswer:
    @pytest.mark.parametrize("headers", [{}, {"Connection": "close"}])
    async def test_it_is_disconnected(self, board: Board, headers: dict[str, str]) -> None:
        class Impatient(ParkingProtocol):
            write_timeout = 0.3

        board.render = lambda notes: Response(b"x" * 20_000_000, headers=headers)
        async with serving(board.app, Impatient) as server, connected(server) as client:
            await client.send("GET", "/look?timeout=0.01")
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await server.until()

    async def test_it_is_kept_while_it_reads_steadily_though_more_was_written(self, board: Board) -> None:
        class Steady(ParkingProtocol):
            write_timeout = 2.0  # on a busy machine, the kernel may take nothing for half a second

        board.render = lambda notes: Response(b"x" * 8_000_000)
        async with serving(board.app, Steady) as server, connected(server) as client:
            for _ in range(2):
                await client.send("GET", "/look?timeout=0.01")
                await asyncio.sleep(0.05)
            began = time.monotonic()
            left = 16_000_000
            while left > 0:
                data = await client.reader.read(800_000)
                assert data
                left -= len(data)
                await asyncio.sleep(0.06)
            assert time.monotonic() - began > Steady.write_timeout

    async def test_its_next_request_is_handled(self, board: Board, server: Server, client: Client) -> None:
        await self.leave_some(board, server, client)
        await client.send("GET", "/look?timeout=0.1")
        await board.until_waiting(1)
        await server.until(QUIET)
        await client.send("GET", "/now")
        for length in (20_000_000, 20_000_000, 5):
            assert len((await client.receive()).body) == length

    async def test_no_events_are_asked_for(self, board: Board, server: Server, client: Client) -> None:
        await self.leave_some(board, server, client)
        await client.send("GET", "/events?timeout=0.01")
        await asyncio.sleep(0.2)
        assert len(board.looks) == 1

    @staticmethod
    async def leave_some(board: Board, server: Server, client: Client) -> None:
        """Let the server have an answer that the client does not take whole."""
        board.render = lambda notes: Response(b"x" * 20_000_000)
        await client.send("GET", "/look?timeout=0.01")
        await server.until(QUIET)
        while not any(each.transport.get_write_buffer_size() for each in server.server_state.connections):
            await asyncio.sleep(0.005)


async def test_websocket_behind_a_parked_request_comes_after_its_answer_and_stays(board: Board) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await asyncio.sleep(0.3)
            await send({"type": "websocket.send", "text": "still here"})
        else:
            await board.app(scope, receive, send)

    async with serving(app, lifespan="off", timeout_keep_alive=0.1) as server, connected(server) as client:
        await client.send("GET", "/look")
        await board.until_waiting(1)
        await server.until(QUIET)
        key = ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
        await client.send("GET", "/socket", "Upgrade: websocket", "Connection: Upgrade", *key)
        board.pin("hello")
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        received = await client.until(b"\r\n\r\n")
        assert received.startswith(b'["hello"]HTTP/1.1 101 Switching Protocols\r\n')
        await client.until(b"still here")


class TestRequestsThatBeginLater:
    """At most 16 begin in an iteration. The others are handled like those."""

    CLIENTS = 100

    @pytest.mark.parametrize("then", ["nothing", "half-closed", "closed", "reset", "keep-alive ends", "shutdown"])
    async def test_all_of_them_run(
        self, http: Any, then: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        ran = received = 0
        receiving = QuietConnection if http is ParkingProtocol else http
        data_received = receiving.data_received

        def count_and_receive(protocol: Any, data: bytes) -> None:
            nonlocal received
            received += 1
            data_received(protocol, data)

        monkeypatch.setattr(receiving, "data_received", count_and_receive)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal ran
            assert (await receive())["body"] == b"12345"
            if "slow" in scope["path"]:
                time.sleep(0.02 if then == "keep-alive ends" else 0.005)  # noqa: ASYNC251 - the loop has much to do
            ran += 1
            headers = [(b"content-length", b"2")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"ok"})

        options = {"timeout_keep_alive": 3} if then == "keep-alive ends" else {}
        async with serving(app, http, lifespan="off", **options) as server:
            contexts = [connected(server) for _ in range(self.CLIENTS)]
            clients = [await each.__aenter__() for each in contexts]
            if then == "keep-alive ends":
                await asyncio.gather(*(client.request("POST", "/", body=b"12345") for client in clients))
                ran = 0
                await asyncio.sleep(2.0)  # and 100 times 20 ms are longer than the rest
            for client in clients:
                client.writer.write(b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345")
                if then == "half-closed":
                    client.writer.write_eof()
                elif then == "closed":
                    client.writer.close()
            if then == "shutdown":
                while ran == 0:
                    await asyncio.sleep(0)
                server.should_exit = True
            if then == "reset":
                while received < self.CLIENTS:  # what the server has not read is lost in a reset
                    await asyncio.sleep(0)
                for client in clients:
                    client.reset()
            if then == "reset" and "zuvloop" in type(asyncio.get_running_loop()).__module__:
                await server.until()  # it has closed the sockets, so uvicorn can't ask for their addresses
                ran = self.CLIENTS
            elif then in ("closed", "reset"):
                while ran < self.CLIENTS:
                    await asyncio.sleep(0.005)
            else:
                answers = [await client.receive() for client in clients]
                assert [answer.body for answer in answers] == [b"ok"] * self.CLIENTS
            assert ran == self.CLIENTS
            for each in contexts:
                await each.__aexit__(None, None, None)
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


class TestClientThatVanishesSilently:
    """Its machine lost power, or its network: no packet says that it is gone. TCP asks, after a while."""

    @pytest.mark.parametrize("path", ["/look", "/events", "/tokens"])
    async def test_is_noticed_when_tcp_asks(self, board: Board, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
        monkeypatch.setattr(ParkingProtocol, "tcp_keep_alive", 1.0)
        async with serving(board.app) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                while not (server.server_state.tasks or board.looks):
                    await asyncio.sleep(0.005)
                await server.until(QUIET)
                try:
                    client.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR: closing it then sends no packet
                except PermissionError:
                    pytest.skip("only with CAP_NET_ADMIN can a connection end without a packet")
            await server.until()
            await board.until_waiting(0)

    @pytest.mark.parametrize(("seconds", "idle", "interval"), [(60.0, 60, 10), (0.1, 1, 1), (1e6, 32767, 5461)])
    async def test_times_are_those_of_the_setting(
        self, board: Board, monkeypatch: pytest.MonkeyPatch, seconds: float, idle: int, interval: int
    ) -> None:
        monkeypatch.setattr(ParkingProtocol, "tcp_keep_alive", seconds)
        async with serving(board.app) as server, connected(server):
            await server.until(QUIET)
            (connection,) = server.server_state.connections
            transport: Any = connection.transport
            own = transport.get_extra_info("socket")
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            names = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
            assert [own.getsockopt(socket.IPPROTO_TCP, name) for name in names] == [idle, interval, 3]

    async def test_infinity_means_never(self, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ParkingProtocol, "tcp_keep_alive", math.inf)
        async with serving(board.app) as server, connected(server):
            await server.until(QUIET)
            (connection,) = server.server_state.connections
            transport: Any = connection.transport
            assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


class TestNothingOutlivesItsConnection:
    """After a reset, uvicorn alone keeps protocol and request until the end of keep-alive: codex-lb #2041."""

    @pytest.mark.parametrize("moment", ["answered", "quiet", "parked", "streaming"])
    @pytest.mark.parametrize("how", ["client closes", "client resets", "half-closed", "closed", "aborted", "shutdown"])
    async def test_protocols_and_timers_go_with_it(self, board: Board, moment: str, how: str) -> None:
        class Protocol(ParkingProtocol):
            settle_after = 0.05 if moment == "quiet" else 60.0

        async with serving(board.app, Protocol) as server, connected(server) as client:
            if moment in ("answered", "quiet"):
                await client.request("GET", "/now")
                await server.until(QUIET if moment == "quiet" else "Protocol")
            else:
                await client.send("GET", "/look" if moment == "parked" else "/events")
                await board.until_waiting(1)
                await server.until(QUIET)
            connection: Any = next(iter(server.server_state.connections))
            shared: Shared = connection.shared
            transport = connection.transport
            del connection
            if how == "client closes":
                client.writer.close()
            elif how == "client resets":
                client.reset()
            elif how == "half-closed":
                client.writer.write_eof()
            elif how == "closed":
                transport.close()
            elif how == "aborted":
                transport.abort()
            else:
                server.should_exit = True
                await server.serve_task  # whose frame has the connection
            del transport
            await server.until()
            await board.until_waiting(0)
            assert [look.outcome for look in board.looks] in ([], ["closed" if how == "shutdown" else "cancelled"])
            await server.until_no_task()
            await asyncio.sleep(0)
            gc.collect()
            protocols = [each for each in gc.get_objects() if isinstance(each, (ParkingProtocol, QuietConnection))]
            assert [each for each in protocols if each.shared is shared] == []
            assert len(shared.timer) == 0
