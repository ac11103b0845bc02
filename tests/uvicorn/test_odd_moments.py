"""Parked requests at odd moments: late bodies, stray bytes, shutdown, cancelled futures, pauses."""

import asyncio
import gc
import time
from contextvars import ContextVar
from typing import Any

import pytest
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.asgi.interface import EXTENSION
from purgatory.uvicorn import ParkingProtocol
from purgatory.uvicorn.parked import QuietConnection
from purgatory.uvicorn.shared import Shared
from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, Server, connected, serving

QUIET = "QuietConnection"
NAME: ContextVar[str] = ContextVar("NAME", default="none")


class Quick(ParkingProtocol):
    """Patience of a fraction of a second."""

    write_timeout = 0.3


async def test_rest_of_a_body_after_its_response_is_no_request(http: Any) -> None:
    asked: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        await Response("answered")(scope, receive, send)

    async with serving(app, http, lifespan="off") as server, connected(server) as client:
        smuggled = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await client.write(b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(smuggled))
        assert (await client.receive()).body == b"answered"
        await asyncio.sleep(3 * ParkingProtocol.settle_after)
        await client.write(smuggled + b"GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.receive()
        assert asked == ["/upload", "/next"]


class _AddsInPlace:
    """A middleware that changes messages in place, as Starlette's own do."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-once", b"1"))
            await send(message)

        await self.app(scope, receive, wrapped)


@pytest.mark.parametrize("path", ["/look?timeout=0.01", "/events"])
async def test_messages_that_a_middleware_changes_are_of_one_response(path: str) -> None:
    board = Board(Middleware(_AddsInPlace))
    board.notes.append("end")
    headers = [(b"content-type", b"text/plain"), (b"x-mine", b"1")]
    response = Response(b"mine")
    response.raw_headers = headers

    def failing(notes: list[str]) -> Any:
        raise ValueError

    for board.render in (failing, lambda notes: response):
        async with serving(board.app) as server:
            for _ in range(2):
                async with connected(server) as client:
                    answer = await client.request("HEAD" if path == "/events" else "GET", path)
                    assert list(answer.headers).count("x-once") == 1
    assert len(headers) == 2


@pytest.mark.parametrize("size", [3, 100_000])
async def test_body_that_is_no_bytes_is_a_500(board: Board, client: Client, size: int) -> None:
    class Wrong:
        status_code = 200
        raw_headers = ((b"content-length", b"%d" % size),)
        body = "x" * size

    board.render = lambda notes: Wrong()
    assert (await client.request("GET", "/look?timeout=0.01")).status == 500
    assert (await client.request("GET", "/now")).status == 200


def _cancelled(notes: list[str]) -> Any:
    raise asyncio.CancelledError


async def test_cancelled_error_of_render_is_a_500(board: Board, http: Any) -> None:
    board.render = _cancelled
    async with serving(board.app, http) as server, connected(server) as client:
        assert (await client.request("GET", "/look?timeout=0.01")).status == 500
        board.key = _cancelled
        assert (await client.request("GET", "/look?timeout=0.01")).status == 500


async def test_bad_header_of_the_server_closes_the_connection(board: Board, http: Any) -> None:
    for path in ("/events", "/look?timeout=0.01"):
        async with serving(board.app, http, headers=[("x", "a\nb")]) as server, connected(server) as client:
            await client.send("GET", path)
            assert await client.ended()
            await board.until_waiting(0)


@pytest.mark.parametrize("path", ["/look", "/events"])
async def test_request_that_is_parked_after_shutdown_has_begun_is_answered(path: str) -> None:
    board = Board()
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


async def test_keep_alive_ends_although_bytes_have_come_behind_the_request(board: Board) -> None:
    async with serving(board.app, timeout_keep_alive=1) as server, connected(server) as client:
        await client.send("GET", "/look")
        await board.until_waiting(1)
        await client.write(b"\r\n")
        await asyncio.sleep(0.02)
        board.pin("hello")
        assert (await client.receive()).body == b'["hello"]'
        await server.until(QUIET)  # and it is small again
        assert await client.ended()


async def test_next_request_runs_in_the_context_of_the_server() -> None:
    board = Board()
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


async def test_same_key_of_a_response_and_a_stream_shares_nothing(board: Board) -> None:
    board.key = lambda notes: "the same"
    async with serving(board.app) as server, connected(server) as one, connected(server) as other:
        await one.send("GET", "/look")
        await other.send("GET", "/events")
        await board.until_waiting(2)
        board.pin("hello")
        assert (await one.receive()).body == b'["hello"]'
        assert b"id: 1\ndata:hello\n\n" in await other.until(b"hello\n\n")


async def test_client_that_reads_steadily_is_kept_though_more_was_written(board: Board) -> None:
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


async def test_stream_of_a_client_that_takes_nothing_asks_for_no_operation(board: Board) -> None:
    board.render = lambda notes: Response(b"x" * 20_000_000)
    async with serving(board.app) as server, connected(server) as client:
        await client.send("GET", "/look?timeout=0.01")
        await server.until(QUIET)
        while not any(each.transport.get_write_buffer_size() for each in server.server_state.connections):
            await asyncio.sleep(0.005)
        looks = len(board.looks)
        await client.send("GET", "/events?timeout=0.01")
        await asyncio.sleep(0.2)
        assert len(board.looks) == looks


async def test_client_that_leaves_a_little_is_disconnected_at_last(board: Board) -> None:
    board.render = lambda notes: Response(b"x" * 50_000_000, headers={"Connection": "close"})
    async with serving(board.app, Quick) as server, connected(server) as client:
        await client.send("GET", "/look?timeout=0.01")
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await server.until()


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
            await server.until_no_task()
            await asyncio.sleep(0)
            gc.collect()
            protocols = [each for each in gc.get_objects() if isinstance(each, (ParkingProtocol, QuietConnection))]
            assert [each for each in protocols if each.shared is shared] == []
            assert (len(shared.timer), len(shared.settling)) == (0, 0)


class TestTheExtension:
    async def test_shutdown_that_raises_does_not_stop_the_others(self, caplog: pytest.LogCaptureFixture) -> None:
        told: list[str] = []

        class Listener:
            def returned(self) -> None: ...

            def __init__(self) -> None:
                self.parked: Any = None

            def disconnected(self) -> None: ...

            def shutdown(self) -> None:
                told.append("shutdown")
                raise ValueError("cannot")

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"][EXTENSION]["park"](send, Listener())

        async with (
            serving(app, lifespan="off") as server,
            connected(server) as one,
            connected(server) as other,
        ):
            for client in (one, other):
                await client.send("GET", "/")
            await server.until(QUIET, QUIET)
            server.should_exit = True
            assert await one.ended()
            assert await other.ended()
            await server.serve_task
        assert told == ["shutdown"] * 2
        assert "cannot" in caplog.text

    async def test_send_after_a_disconnect_does_nothing(self) -> None:
        parked: list[Any] = []
        gone = asyncio.Event()

        class Listener:
            def returned(self) -> None: ...

            def disconnected(self) -> None:
                gone.set()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            parked.append(scope["extensions"][EXTENSION]["park"](send, Listener()))

        async with serving(app, lifespan="off") as server, connected(server) as client:
            await client.send("GET", "/")
            await server.until(QUIET)
            client.writer.close()
            await gone.wait()
            parked[0].send({"type": "http.response.start", "status": 200})

    async def test_next_request_is_dropped_if_its_client_disconnects_before_it_runs(self) -> None:
        parked: list[Any] = []

        class Listener:
            def returned(self) -> None: ...

            def disconnected(self) -> None: ...

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            parked.append(scope["extensions"][EXTENSION]["park"](send, Listener()))

        async with serving(app, lifespan="off") as server, connected(server) as client:
            await client.send("GET", "/")
            await server.until(QUIET)
            await client.send("GET", "/next")
            while not parked[0].held:
                await asyncio.sleep(0.005)
            parked[0].send({"type": "http.response.start", "status": 204}, {"type": "http.response.body"})
            parked[0].transport.abort()
            await server.until()
            assert len(parked) == 1

    async def test_continue_is_not_sent_in_the_middle_of_a_response(self, board: Board) -> None:
        async def receiving_later(scope: Scope, receive: Receive, send: Send) -> None:
            await board.app(scope, receive, send)
            if scope["type"] == "http":
                await receive()

        board.render = lambda notes: JSONResponse(notes)
        async with serving(receiving_later) as server, connected(server) as client:
            head = "POST /look HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n12345"
            await client.write(head.encode())
            await board.until_waiting(1)
            board.pin("hello")
            assert b"100 Continue" not in await client.until(b'["hello"]')
