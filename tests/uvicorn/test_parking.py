"""Requests that wait behind `ParkingProtocol`: what remains of them, and that the answers are as without parking."""

import asyncio
import gc
import logging
import runpy
import ssl
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import websockets
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from purgatory.asgi.parking import EXTENSION, park
from purgatory.uvicorn import ParkingProtocol
from tests.support.servers import program
from tests.uvicorn.board import Board
from tests.uvicorn.serving import PROTOCOLS, Client, Server, connected, serving

QUIET, BUSY = "QuietConnection", "ParkingProtocol"


@pytest.fixture(params=PROTOCOLS)
def http(request: pytest.FixtureRequest) -> Any:
    """With parking, and as uvicorn is without."""
    return PROTOCOLS[request.param]


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
async def server(board: Board) -> AsyncIterator[Server]:
    async with serving(board.app) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with connected(server) as client:
        yield client


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Objects are freed by their counts of references alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class TestWhatRemains:
    @pytest.mark.usefixtures("no_collector")
    async def test_neither_task_nor_request_nor_parser_remains(
        self, board: Board, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alive: list[weakref.ref[object]] = []
        run_asgi = RequestResponseCycle.run_asgi

        async def noted(cycle: RequestResponseCycle, app: Any) -> None:
            protocol: Any = cycle.on_response.__self__  # type: ignore[attr-defined]
            alive.extend(map(weakref.ref, (cycle, protocol, protocol.flow, cycle.message_event)))
            task = asyncio.current_task()
            assert task is not None
            alive.append(weakref.ref(task))
            await run_asgi(cycle, app)

        monkeypatch.setattr(RequestResponseCycle, "run_asgi", noted)
        tasks = asyncio.all_tasks()
        await client.send("GET", "/look")
        await board.until_waiting(1)
        await server.until(QUIET)
        await asyncio.sleep(0)
        assert len(alive) == 5
        assert [ref() for ref in alive] == [None] * 5
        assert asyncio.all_tasks() == tasks
        assert not server.server_state.tasks

    async def test_the_connection_goes_on_after_the_answer(self, board: Board, server: Server, client: Client) -> None:
        for number in range(3):
            await client.send("GET", f"/look?seen={number}")
            await board.until_waiting(1)
            assert server.connections == [QUIET]
            board.pin(f"note {number}")
            response = await client.receive()
            assert (response.status, response.body) == (200, f'["note {number}"]'.encode())
            assert (await client.request("GET", "/now")).body == b"now 0"
        assert server.server_state.total_requests == 6

    async def test_an_idle_connection_becomes_small(self, server: Server, client: Client) -> None:
        await server.until(QUIET)  # it has not sent anything yet
        assert (await client.request("GET", "/now")).status == 200
        assert server.connections == [BUSY]
        await server.until(QUIET)
        assert (await client.request("GET", "/now")).status == 200

    async def test_a_connection_with_half_a_request_stays_as_it_is(self, server: Server, client: Client) -> None:
        await client.write(b"GET /now HT")
        await asyncio.sleep(5 * ParkingProtocol.settle_after)
        assert server.connections == [BUSY]
        await client.write(b"TP/1.1\r\nHost: localhost\r\n\r\nGET /n")
        assert (await client.receive()).body == b"now 0"
        await asyncio.sleep(5 * ParkingProtocol.settle_after)
        assert server.connections == [BUSY]
        await client.write(b"ow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await client.receive()).body == b"now 0"
        await server.until(QUIET)

    @pytest.mark.parametrize("path", ["/now", "/look?timeout=0.01"])
    async def test_keep_alive_ends(self, board: Board, path: str) -> None:
        async with serving(board.app, timeout_keep_alive=1) as server, connected(server) as client:
            began = asyncio.get_running_loop().time()
            assert (await client.request("GET", path)).status == 200
            assert await client.ended()
            assert asyncio.get_running_loop().time() - began >= 1
            assert server.connections == []

    async def test_a_connection_that_never_sends_has_no_timeout(self, board: Board) -> None:
        async with serving(board.app, timeout_keep_alive=0) as server, connected(server) as client:
            await server.until(QUIET)
            await asyncio.sleep(0.2)
            assert (await client.request("GET", "/now")).status == 200


class TestAnswers:
    """Each of these holds without parking too, but for what is parked."""

    async def test_head_has_no_body(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.send("HEAD", "/look?timeout=0.01")
            response = await client.receive("HEAD")
            assert (response.status, response.body, response.headers["content-length"]) == (200, b"", "2")
            assert (await client.request("GET", "/now")).body == b"now 0"

    @pytest.mark.parametrize("close", ["HTTP/1.0", "Connection: close"])
    async def test_connection_closes_when_the_client_asks_for_it(self, board: Board, http: Any, close: str) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            if close == "HTTP/1.0":
                await client.send("GET", "/look", version="1.0")
            else:
                await client.send("GET", "/look", close)
            await board.until_waiting(1)
            board.pin("hello")
            response = await client.receive()
            assert (response.body, response.headers["connection"]) == (b'["hello"]', "close")
            assert await client.ended()

    async def test_connection_closes_when_the_answer_says_so(self, board: Board, http: Any) -> None:
        board.render = lambda notes: JSONResponse(notes, headers={"Connection": "Close"})
        async with serving(board.app, http) as server, connected(server) as client:
            response = await client.request("GET", "/look?timeout=0.01")
            assert (response.body, response.headers["connection"]) == (b"[]", "Close")
            assert await client.ended()

    async def test_headers_of_the_server_and_of_the_answer(self, board: Board, http: Any) -> None:
        board.render = lambda notes: Response(b"x", 203, {"X-Own": "1"}, "image/own")
        async with serving(board.app, http, headers=[("x-server", "2")]) as server, connected(server) as client:
            response = await client.request("GET", "/look?timeout=0.01")
            del response.headers["date"]
            assert response.status == 203
            assert response.headers == {
                "server": "uvicorn",
                "x-server": "2",
                "x-own": "1",
                "content-length": "1",
                "content-type": "image/own",
            }

    @pytest.mark.parametrize("status", [204, 304])
    async def test_status_without_a_body(self, board: Board, http: Any, status: int) -> None:
        board.render = lambda notes: Response(status_code=status)
        async with serving(board.app, http) as server, connected(server) as client:
            assert (await client.request("GET", "/look?timeout=0.01")).status == status
            assert (await client.request("GET", "/now")).status == 200

    async def test_answer_without_a_length_is_chunked(self, board: Board, http: Any) -> None:
        def render(notes: list[str]) -> Response:
            response = Response(b"unknown")
            del response.headers["content-length"]
            return response

        board.render = render
        async with serving(board.app, http) as server, connected(server) as client:
            response = await client.request("GET", "/look?timeout=0.01")
            assert (response.headers["transfer-encoding"], response.body) == ("chunked", b"unknown")
            assert (await client.request("GET", "/now")).status == 200

    async def test_large_answer_arrives_whole(self, board: Board, http: Any) -> None:
        board.render = lambda notes: Response(bytes(range(256)) * 20_000)
        async with serving(board.app, http) as server, connected(server) as client:
            assert (await client.request("GET", "/look?timeout=0.01")).body == bytes(range(256)) * 20_000
            assert (await client.request("GET", "/now")).status == 200

    async def test_bodies_of_requests(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            for body in (b"small", b"x" * 300_000):
                for read in ("read", "left"):
                    response = await client.request("POST", f"/look?timeout=0.01&body={read}", body=body)
                    assert response.body == b"[]"
            assert (await client.request("POST", "/now", body=b"12345")).body == b"now 5"

    async def test_body_that_comes_while_the_handler_waits(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.write(b"POST /look HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12")
            await board.until_waiting(1)
            assert server.connections == [http.__name__]
            await client.write(b"345")
            await asyncio.sleep(0.05)
            board.pin("hello")
            assert (await client.receive()).body == b'["hello"]'
            assert (await client.request("POST", "/now", body=b"12345")).body == b"now 5"

    @pytest.mark.parametrize("read", ["read", "left"])
    async def test_expect_100_continue(self, board: Board, http: Any, read: str) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            head = f"POST /look?timeout=0.2&body={read} HTTP/1.1\r\nHost: localhost\r\n"
            await client.write((head + "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n").encode())
            if read == "read":
                await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
                await client.write(b"12345")
            else:
                await client.write(b"12345")
            assert b"200 OK" in await client.until(b"\r\n\r\n[]")

    async def test_pipelined_requests_behind_one_that_waits(self, board: Board, http: Any) -> None:
        look, now = (f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in ("/look", "/now"))
        for together in (True, False):
            board.notes.clear()
            async with serving(board.app, http) as server, connected(server) as client:
                if together:
                    await client.write(look + now + now)
                    await board.until_waiting(1)
                else:
                    await client.write(look)
                    await board.until_waiting(1)
                    await client.write(now[:9])
                    await asyncio.sleep(0.02)
                    await client.write(now[9:] + now)
                await asyncio.sleep(0.05)
                assert client.reader._buffer == b""  # type: ignore[attr-defined]
                board.pin("hello")
                assert [(await client.receive()).body for _ in range(3)] == [b'["hello"]', b"now 0", b"now 0"]
                assert (await client.request("GET", "/now")).status == 200

    async def test_beginning_of_the_next_request_in_the_same_packet(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.write(b"GET /look HTTP/1.1\r\nHost: localhost\r\n\r\nPOST /now HTTP/1.1\r\nHost: localh")
            await board.until_waiting(1)
            board.pin("hello")
            assert (await client.receive()).body == b'["hello"]'
            await client.write(b"ost\r\nContent-Length: 3\r\n\r\n123")
            assert (await client.receive()).body == b"now 3"

    async def test_much_data_behind_a_parked_request_is_held_back(self, board: Board, client: Client) -> None:
        await client.send("GET", "/look")
        await board.until_waiting(1)
        body = b"x" * 30_000_000
        sending = asyncio.create_task(client.send("POST", "/now", body=body))
        await asyncio.sleep(0.3)
        assert not sending.done()
        board.pin("hello")
        assert (await client.receive()).body == b'["hello"]'
        assert (await client.receive()).body == b"now 30000000"
        await sending


class TestFaults:
    @pytest.mark.parametrize(
        "render",
        [
            lambda notes: 1 / 0,
            lambda notes: Response(headers={"X": "a\nb"}),
            lambda notes: Response(headers={"a b": "c"}),
            lambda notes: Response(b"long", headers={"Content-Length": "3"}),
            lambda notes: Response(b"short", headers={"Content-Length": "300"}),
            lambda notes: Response(status_code=99),
            lambda notes: None,
        ],
    )
    async def test_bad_answer_is_a_500_and_logged(
        self, board: Board, server: Server, client: Client, render: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        board.render = render
        response = await client.request("GET", "/look?timeout=0.01")
        assert (response.status, response.body) == (500, b"Internal Server Error")
        assert [record.name for record in caplog.records if record.exc_info] == ["purgatory.asgi"]
        assert (await client.request("GET", "/now")).status == 200

    async def test_exception_of_render_is_a_500_without_parking_too(
        self, board: Board, http: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        board.render = lambda notes: 1 / 0
        async with serving(board.app, http) as server, connected(server) as client:
            response = await client.request("GET", "/look?timeout=0.01")
        assert (response.status, response.body) == (500, b"Internal Server Error")
        assert [record.name for record in caplog.records if record.exc_info] == ["purgatory.asgi"]

    async def test_failed_operation_is_a_500_and_logged(
        self, board: Board, http: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            board.pin("fail")
            response = await client.receive()
        assert (response.status, response.body) == (500, b"Internal Server Error")
        assert "a bad note" in caplog.text

    async def test_cancelled_operation_is_a_503(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            board.purgatory.cancel_for_key("board")
            response = await client.receive()
        assert (response.status, response.body) == (503, b"Service Unavailable")

    @pytest.mark.parametrize("key", [lambda notes: 1 / 0, lambda notes: []])
    async def test_bad_key_is_a_500_and_logged(
        self, board: Board, client: Client, key: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        board.key = key
        assert (await client.request("GET", "/look?timeout=0.01")).status == 500
        assert [record.name for record in caplog.records if record.exc_info] == ["purgatory.asgi"]

    async def test_operation_that_cannot_be_awaited_is_refused(
        self, board: Board, server: Server, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        board.watch = lambda look: look  # type: ignore[method-assign]
        assert (await client.request("GET", "/look")).status == 500
        assert "hand it to try_complete_else_watch() first" in caplog.text

    async def test_exception_after_parking_is_logged_and_the_answer_comes(
        self, board: Board, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await board.app(scope, receive, send)
            if scope["type"] == "http":
                assert (await receive())["type"] == "http.disconnect"
                raise ValueError("too late")

        async with serving(app) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            await server.until(QUIET)
            board.pin("hello")
            assert (await client.receive()).body == b'["hello"]'
        assert "too late" in caplog.text


class _AddsHeader:
    """A middleware that wraps `send`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-added", b"1")]
            await send(message)

        await self.app(scope, receive, wrapped)


class _AddsHeaderAndParks(_AddsHeader):
    """The same, for parked requests too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            await send(self.changed(message))

        def park_too(sender: Any, listener: Any) -> Any:
            inner = park(scope, send, listener) if sender == wrapped else None
            return None if inner is None else _Parked(inner)

        extensions = {**(scope.get("extensions") or {}), EXTENSION: {"park": park_too}}
        await self.app({**scope, "extensions": extensions}, receive, wrapped)

    @staticmethod
    def changed(message: Message) -> Message:
        if message["type"] != "http.response.start":
            return message
        return {**message, "headers": [*message["headers"], (b"x-added", b"1")]}


class _Parked:
    def __init__(self, inner: Any) -> None:
        self.close = inner.close
        self.inner = inner

    def send(self, *messages: Message) -> None:
        self.inner.send(*map(_AddsHeaderAndParks.changed, messages))


async def _passes_on(request: Any, call_next: Any) -> Any:
    response = await call_next(request)
    response.headers["x-added"] = "1"
    return response


class TestMiddleware:
    @pytest.mark.parametrize(
        ("middleware", "name"),
        [
            (Middleware(_AddsHeader), "x-added"),
            (Middleware(BaseHTTPMiddleware, dispatch=_passes_on), "x-added"),
            (Middleware(CORSMiddleware, allow_origins=["*"]), "access-control-allow-origin"),
            (Middleware(GZipMiddleware, minimum_size=1), "content-encoding"),
        ],
    )
    async def test_middleware_that_wraps_send_sees_the_answer(
        self, middleware: Middleware, name: str, http: Any
    ) -> None:
        board = Board(middleware)
        async with serving(board.app, http) as server, connected(server) as client:
            await client.send("GET", "/look", "Origin: http://other", "Accept-Encoding: gzip")
            await board.until_waiting(1)
            assert server.connections == [http.__name__]  # its task waits
            board.pin("hello")
            assert name in (await client.receive()).headers
            await client.send("GET", "/look?seen=1", "Origin: http://other", "Accept-Encoding: gzip")
            await board.until_waiting(1)
            client.writer.close()
            await board.until_waiting(0)

    async def test_middleware_that_passes_send_on_lets_requests_be_parked(self) -> None:
        board = Board(Middleware(TrustedHostMiddleware, allowed_hosts=["localhost"]))
        async with serving(board.app) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            await server.until(QUIET)
            board.pin("hello")
            assert (await client.receive()).body == b'["hello"]'

    async def test_middleware_can_wrap_the_extension(self) -> None:
        board = Board(Middleware(_AddsHeaderAndParks))
        async with serving(board.app) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            await server.until(QUIET)
            board.pin("hello")
            response = await client.receive()
            assert (response.body, response.headers["x-added"]) == (b'["hello"]', "1")
            assert (await client.request("GET", "/now")).headers["x-added"] == "1"

    async def test_background_tasks_run_after_the_answer(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.send("GET", "/look?background")
            await board.until_waiting(1)
            assert board.ran == []
            board.pin("hello")
            assert (await client.receive()).body == b'["hello"]'
            while board.ran != ["background"]:
                await asyncio.sleep(0.005)


class TestClientsThatGo:
    @pytest.mark.parametrize("how", ["close", "reset", "half-closed"])
    async def test_the_operation_is_cancelled(self, board: Board, http: Any, how: str) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            if how == "close":
                client.writer.close()
            elif how == "reset":
                client.reset()
            else:
                client.writer.write_eof()
            await board.until_waiting(0)
            assert board.looks[0].cancelled()
            await server.until()

    async def test_answer_that_no_client_takes_is_undelivered(
        self, board: Board, server: Server, client: Client
    ) -> None:
        await client.send("GET", "/look")
        await board.until_waiting(1)
        (quiet,) = server.server_state.connections
        assert board.pin("hello") == 1
        quiet.connection_lost(None)  # before the answer is written
        await asyncio.sleep(0.01)
        assert board.undelivered == [["hello"]]
        assert board.rendered == []

    async def test_client_that_shares_an_operation_leaves_it_to_the_other(self, board: Board) -> None:
        async with serving(board.app) as server, connected(server) as one, connected(server) as other:
            for client in (one, other):
                await client.send("GET", "/look?timeout=60")
            await board.until_waiting(2)
            look = board.looks[1]
            waiting = asyncio.ensure_future(look)
            await asyncio.sleep(0)
            other.writer.close()
            await server.until(QUIET)
            assert not look.done()
            board.pin("hello")
            assert await waiting == ["hello"]
            assert (await one.receive()).body == b'["hello"]'


class TestTheServer:
    async def test_parked_requests_are_answered_when_shutdown_begins(self) -> None:
        board = Board()
        server = Server(board.app)
        serve = asyncio.create_task(server._serve())
        while not server.started:
            await asyncio.sleep(0.005)
        async with connected(server) as one, connected(server) as other, connected(server) as idle:
            assert (await idle.request("GET", "/now")).status == 200
            await server.until(QUIET, QUIET, QUIET)
            await one.send("GET", "/look")
            await other.send("GET", "/look")
            await board.until_waiting(2)
            server.should_exit = True
            for client in (one, other):
                response = await client.receive()
                assert (response.status, response.body, response.headers["connection"]) == (200, b"[]", "close")
                assert await client.ended()
            assert await idle.ended()
            await serve
        assert {look.outcome for look in board.looks} == {"closed"}

    async def test_limit_of_concurrency_counts_parked_requests(self, board: Board, http: Any) -> None:
        async with (
            serving(board.app, http, limit_concurrency=3) as server,
            connected(server) as one,
            connected(server) as other,
        ):
            await one.send("GET", "/look")
            await other.send("GET", "/look")
            await board.until_waiting(2)
            async with connected(server) as third:
                assert (await third.request("GET", "/now")).status == 503

    async def test_access_log_is_the_same(self, board: Board, http: Any, caplog: pytest.LogCaptureFixture) -> None:
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

    async def test_no_access_log_if_it_is_off(
        self, board: Board, http: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)  # put back at the end
        async with serving(board.app, http, access_log=False) as server, connected(server) as client:
            assert (await client.request("GET", "/look?timeout=0.01")).status == 200
        assert not [record for record in caplog.records if record.name == "uvicorn.access"]

    async def test_requests_are_counted(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            for _ in range(3):
                await client.request("GET", "/look?timeout=0.01")
            assert server.server_state.total_requests == 3

    async def test_client_that_does_not_take_its_answer_is_disconnected(self, board: Board) -> None:
        class Impatient(ParkingProtocol):
            write_timeout = 0.3

        board.render = lambda notes: Response(b"x" * 50_000_000)
        async with serving(board.app, Impatient) as server, connected(server) as client:
            await client.send("GET", "/look?timeout=0.01")
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await server.until()

    async def test_client_that_takes_its_answer_slowly_is_not(self, board: Board) -> None:
        class Impatient(ParkingProtocol):
            write_timeout = 0.3

        body = b"x" * 50_000_000
        board.render = lambda notes: Response(body)
        async with serving(board.app, Impatient) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**20)
            client = Client(reader, writer)
            await client.send("GET", "/look?timeout=0.01")
            await client.until(b"\r\n\r\n")
            left = len(body) - len(client.left)
            while left > 0:
                left -= len(await reader.readexactly(min(left, 5_000_000)))
                await asyncio.sleep(0.15)
            client.left = b""
            assert (await client.request("GET", "/now")).status == 200
            writer.close()

    async def test_next_request_of_a_client_that_has_not_taken_its_answer(self, board: Board) -> None:
        body = b"x" * 20_000_000
        board.render = lambda notes: Response(body)
        async with serving(board.app) as server, connected(server) as client:
            await client.send("GET", "/look?timeout=0.01")
            while server.connections != [QUIET]:
                await asyncio.sleep(0.005)
            (quiet,) = server.server_state.connections
            while not quiet.transport.get_write_buffer_size():
                await asyncio.sleep(0.005)
            await client.send("GET", "/look?timeout=0.1")
            await board.until_waiting(1)
            await server.until(QUIET)
            await client.send("GET", "/now")
            for expected in (body, body, b"now 0"):
                assert (await client.receive()).body == expected


class TestTheExtension:
    async def test_wrong_messages_are_refused_and_change_nothing(self) -> None:
        parked: list[Any] = []

        class Listener:
            def disconnected(self) -> None: ...

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            park = scope["extensions"][EXTENSION]["park"]
            assert park(receive, Listener()) is None
            parked.append(park(send, Listener()))
            assert (await receive())["type"] == "http.disconnect"
            await send({"type": "http.response.start", "status": 200})

        async with serving(app, lifespan="off") as server, connected(server) as client:
            await client.send("GET", "/")
            await server.until(QUIET)
            start = {"type": "http.response.start", "status": 200, "headers": [(b"Transfer-Encoding", b"chunked")]}
            body = {"type": "http.response.body", "body": b"abc"}
            for wrong in ((body,), (start, start), (start, {"type": "other"}), (start, body, body)):
                with pytest.raises(RuntimeError, match="Unexpected ASGI message"):
                    parked[0].send(*wrong)
            parked[0].send(start)
            parked[0].send({**body, "more_body": True}, {**body, "body": b"", "more_body": True})
            parked[0].send(body)
            assert (await client.receive()).body == b"abcabc"
            with pytest.raises(RuntimeError, match="the response is complete"):
                parked[0].send(body)

    async def test_messages_after_a_disconnect_are_dropped(self, board: Board, server: Server, client: Client) -> None:
        await client.send("GET", "/look")
        await board.until_waiting(1)
        (quiet,) = server.server_state.connections
        board.pin("hello")
        quiet.transport.abort()  # its protocol is told after the answer
        await server.until()
        assert board.rendered == [["hello"]]


async def test_websocket_stays_a_websocket() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await Response("now")(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})

    async with serving(echo, lifespan="off") as server:
        async with websockets.connect(f"ws://127.0.0.1:{server.port}/") as websocket:
            for _ in range(2):
                await asyncio.sleep(3 * ParkingProtocol.settle_after)  # a connection that were idle would be small now
                await websocket.send("hello")
                assert await websocket.recv() == "hello"
        await server.until()


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
            await client.write(b"GET /now HTTP/1.1\r\n")
            await client.write(b"Host: localhost\r\n\r\n")
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


class TestOneAnswerForMany:
    async def test_answers_with_one_key_are_rendered_once(self, board: Board, server: Server) -> None:
        board.key = tuple
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(server)) for _ in range(20)]
            for client in clients:
                await client.send("GET", "/look")
            await board.until_waiting(20)
            assert board.pin("hello") == 20
            assert [(await client.receive()).body for client in clients] == [b'["hello"]'] * 20
            assert len(board.rendered) < 20

    async def test_answers_with_other_keys_differ(self, board: Board, server: Server) -> None:
        board.key = tuple
        board.notes += ["a", "b"]
        async with connected(server) as one, connected(server) as other:
            await one.send("GET", "/look?seen=2")
            await other.send("HEAD", "/look?seen=2")
            await board.until_waiting(2)
            board.pin("c")
            assert (await one.receive()).body == b'["c"]'
            assert (await other.receive("HEAD")).headers["content-length"] == "5"
            await one.send("GET", "/look?seen=3", "Connection: close")
            await other.send("GET", "/look?seen=3")
            await board.until_waiting(2)
            board.pin("d")
            assert (await one.receive()).headers["connection"] == "close"
            assert "connection" not in (await other.receive()).headers

    async def test_without_a_key_each_is_rendered(self, board: Board, server: Server) -> None:
        async with connected(server) as one, connected(server) as other:
            for client in (one, other):
                await client.send("GET", "/look")
            await board.until_waiting(2)
            board.pin("hello")
            for client in (one, other):
                assert (await client.receive()).body == b'["hello"]'
            assert board.rendered == [["hello"], ["hello"]]
