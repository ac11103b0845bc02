"""Middleware around handlers whose requests are parked."""

import asyncio
from typing import Any

import pytest
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.asgi.parking import EXTENSION, park
from tests.uvicorn.board import Board
from tests.uvicorn.serving import connected, serving

QUIET, BUSY = "QuietConnection", "ParkingProtocol"


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
