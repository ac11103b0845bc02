"""Requests behind CORS and GZip: they share the wrappers, and the answers are the same as without parking."""

import asyncio
import gc
import gzip
import inspect
import json
import random
import re
from contextvars import ContextVar
from typing import Any

import pytest
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware, GZipResponder
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from purgatory.asgi import park_through
from purgatory.asgi.through import Through
from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.board import Board
from tests.uvicorn.serving import connected, serving

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

CORS = Middleware(CORSMiddleware, allow_origins=["http://a.example", "http://b.example"], allow_credentials=True)
GZIP = Middleware(GZipMiddleware, minimum_size=40)
SESSION = Middleware(SessionMiddleware, secret_key="secret")  # its wrappers aren't shared
IS_OLD = "with self" in inspect.getsource(GZipResponder.__call__)  # it works after the application then


async def received(http: Any, middleware: list[Middleware], seed: int) -> list[bytes]:
    """The bytes that clients of several kinds get, who wait for the same notes or for fewer of them."""
    chance = random.Random(seed)
    board = Board(*middleware, kind=chance.choice(["starlette", "fastapi"]))
    board.render = lambda notes: JSONResponse(notes, headers={"vary": "accept"})
    board.notes = ["x" * chance.randrange(60)]
    got = []
    async with serving(board.app, http, date_header=False) as server:
        clients = []
        on = 0  # clients who still wait after the first of the two notes
        for _ in range(20):
            opened = connected(server)
            client = await opened.__aenter__()
            clients.append((opened, client))
            headers = [f"Origin: http://{chance.choice('abc')}.example"] if chance.random() < 0.8 else []
            headers += ["Accept-Encoding: gzip"] if chance.random() < 0.6 else []
            path = chance.choice(["/look?seen=1", "/look?seen=1", "/look?seen=2", "/events"])
            await client.send("GET", path, *headers, "Connection: close", "Last-Event-ID: 1")
            on += path != "/look?seen=1"
        await board.until_waiting(len(clients))
        board.pin("y" * chance.randrange(60))
        await board.until_waiting(on)
        board.pin("end")
        for opened, client in clients:
            # Older releases of Starlette write the time into what they compress.
            got.append(re.sub(rb"(?s)\x1f\x8b\x08\0....", b"compressed", await client.reader.read()))
            await opened.__aexit__(None, None, None)
    return got


@pytest.mark.parametrize(
    "middleware", [[CORS], [GZIP], [CORS, GZIP], [GZIP, CORS]], ids=["cors", "gzip", "both", "turned"]
)
@pytest.mark.parametrize("seed", range(3))
async def test_each_client_gets_the_same_bytes_as_without_parking(middleware: list[Middleware], seed: int) -> None:
    plain = await received(HttpToolsProtocol, middleware, seed)
    assert await received(ParkingProtocol, middleware, seed) == plain
    assert len(set(plain)) > 3


@pytest.mark.skipif(IS_OLD, reason="this GZip works after the application")
async def test_equal_answers_are_compressed_once_and_no_request_keeps_a_wrapper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compressed = []
    compress = GZipResponder.apply_compression

    async def counted(self: Any, body: bytes, *, more_body: bool) -> bytes:
        compressed.append(body)
        return await compress(self, body, more_body=more_body)

    monkeypatch.setattr(GZipResponder, "apply_compression", counted)
    board = Board(CORS, GZIP)
    async with serving(board.app) as server:
        clients = [connected(server) for _ in range(100)]
        opened = [await each.__aenter__() for each in clients]
        for client in opened:
            await client.send("GET", "/look", "Accept-Encoding: gzip", "Origin: http://a.example")
        await board.until_waiting(100)
        await server.until_no_task()
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, (GZipResponder, Through))]
        assert len(kept) <= 1
        board.pin("x" * 100)
        answers = [await client.receive() for client in opened]
        assert {answer.body for answer in answers} == {answers[0].body}
        assert answers[0].headers["content-encoding"] == "gzip"
        assert answers[0].headers["access-control-allow-origin"] == "http://a.example"
        assert len(compressed) == 1
        for each in clients:
            await each.__aexit__(None, None, None)


@pytest.mark.skipif(IS_OLD, reason="this GZip works after the application")
@pytest.mark.parametrize("middleware", [[GZIP], [SESSION, GZIP], [GZIP, SESSION]], ids=len)
async def test_a_large_answer_is_compressed_in_a_thread(middleware: list[Middleware]) -> None:
    """Which really waits, so that a task does the rest."""
    board = Board(*middleware)
    large = "x" * 500_000
    board.render = lambda notes: JSONResponse(large)
    async with serving(board.app) as server, connected(server) as client, connected(server) as other:
        for each in (client, other):
            await each.send("GET", "/look", "Accept-Encoding: gzip")
        await board.until_waiting(2)
        await server.until_no_task()
        board.pin("now")
        first, second = await client.receive(), await other.receive()
        assert [(each.status, json.loads(gzip.decompress(each.body))) for each in (first, second)] == [(200, large)] * 2


async def test_few_requests_begin_in_an_iteration() -> None:
    """Else thousands of parsers and tasks were alive at once when all clients come back."""
    board = Board()
    most = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal most
        if scope["type"] == "http":
            most = max(most, len(server.server_state.tasks))
        await board.app(scope, receive, send)

    async with serving(app, lifespan="off") as server:
        clients = [connected(server) for _ in range(400)]
        opened = [await each.__aenter__() for each in clients]
        while len(server.connections) < len(clients):
            await asyncio.sleep(0.001)
        for client in opened:
            client.writer.write(b"GET /look HTTP/1.1\r\nHost: a\r\n\r\n")
        await board.until_waiting(400)
        assert most <= 100
        board.pin("hello")
        assert {(await client.receive()).body for client in opened} == {b'["hello"]'}
        for each in clients:
            await each.__aexit__(None, None, None)


TENANT: ContextVar[str] = ContextVar("TENANT", default="none")


class ByTenant(CORSMiddleware):
    """Decides by more than the origin."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        TENANT.set(scope.get("query_string", b"").decode())
        await super().__call__(scope, receive, send)

    def is_allowed_origin(self, origin: str) -> bool:
        return TENANT.get() == "friend"


async def test_class_derived_from_a_known_one_is_not_shared(http: Any) -> None:
    board = Board(Middleware(park_through(ByTenant), allow_origins=["http://x.example"]))
    async with serving(board.app, http) as server, connected(server) as friend, connected(server) as foe:
        await friend.send("GET", "/look?friend", "Origin: http://a.example")
        await foe.send("GET", "/look?foe", "Origin: http://a.example")
        await board.until_waiting(2)
        board.pin("hello")
        allowed = ["access-control-allow-origin" in (await each.receive()).headers for each in (friend, foe)]
        assert allowed == [True, False]
