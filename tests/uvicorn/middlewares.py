"""Middlewares around an application whose requests wait: those that are parked behind, and others."""

import asyncio
import contextlib
import inspect
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from asgi_correlation_id import CorrelationIdMiddleware
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator.middleware import PrometheusInstrumentatorMiddleware
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware, GZipResponder
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.asgi import park_through
from tests.uvicorn.board import Board
from tests.uvicorn.serving import Server, connected, serving

NAME: ContextVar[str] = ContextVar("NAME")


def add(message: Message, name: bytes, value: bytes) -> None:
    """Add a header to the head of a response, in place as Starlette's own middlewares do."""
    if message["type"] == "http.response.start":
        message["headers"].append((name, value))


@park_through
class Declared:
    """Reads a context variable of the request, as asgi-correlation-id does, and its scope."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        NAME.set(scope["path"])

        async def wrapped(message: Message) -> None:
            add(message, b"x-path", NAME.get("none").encode() + scope["path"].encode())
            await send(message)

        await self.app(scope, receive, wrapped)


class MarkedClass:
    """The class says that it is safe, and the wrapper is found by its variable `self`."""

    purgatory_parking = True
    value = b"class"

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            add(message, b"x-marked", self.value)
            await send(message)

        await self.app(scope, receive, wrapped)


class Responder:
    """A wrapper of `send` for each request."""

    purgatory_parking = True

    def __init__(self, send: Send) -> None:
        self.send = send

    async def __call__(self, message: Message) -> None:
        add(message, b"x-marked", b"object")
        await self.send(message)

    async def sent(self, message: Message) -> None:
        add(message, b"x-marked", b"method")
        await self.send(message)


def adding(send: Send) -> Send:
    """A wrapper by a closure, which nobody has declared."""

    async def wrapped(message: Message) -> None:
        add(message, b"x-added", b"1")
        await send(message)

    return wrapped


def marked(send: Send) -> Send:
    """The wrapper says that it is safe."""
    wrapped = adding(send)
    wrapped.purgatory_parking = True  # type: ignore[attr-defined]
    return wrapped


def around(wrap: Callable[[Send], Send]) -> Middleware:
    """A middleware with this wrapper of `send`."""

    def middleware(app: ASGIApp) -> ASGIApp:
        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            await app(scope, receive, wrap(send))

        return call

    return Middleware(middleware)


def wrapping(wrapped: Callable[[Message, Send], Awaitable[None]]) -> Middleware:
    """A declared middleware with this wrapper of `send`."""

    @park_through
    def wrap(send: Send) -> Send:
        async def call(message: Message) -> None:
            await wrapped(message, send)

        return call

    return around(wrap)


async def waits(message: Message, send: Send) -> None:
    """Really wait before each message: for what raises, if this is outside of a task, and until a time limit."""
    if asyncio.current_task() is None:  # where a time limit is refused
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, ValueError("awaited"))
        with contextlib.suppress(ValueError):
            await future
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.sleep(60)
    await send(message)


async def passes_on(request: Any, call_next: Any) -> Any:
    response = await call_next(request)
    response.headers["x-added"] = "1"
    return response


PARKED = {
    "cors": Middleware(CORSMiddleware, allow_origins=["*"], expose_headers=["x-exposed"]),
    "cors with credentials": Middleware(CORSMiddleware, allow_origins=["http://a.example"], allow_credentials=True),
    "session": Middleware(SessionMiddleware, secret_key="secret"),
    "trusted host": Middleware(TrustedHostMiddleware, allowed_hosts=["localhost"]),
    "correlation id": Middleware(CorrelationIdMiddleware, generator=lambda: "an-id", validator=None),
    "declared": Middleware(Declared),
    "marked function": around(marked),
    "marked class": Middleware(MarkedClass),
    "marked method": around(lambda send: Responder(send).sent),
    "callable object": around(Responder),
    "waits": wrapping(waits),
}
if "with self" not in inspect.getsource(GZipResponder.__call__):  # else it works after the application, in old releases
    PARKED["gzip"] = Middleware(GZipMiddleware, minimum_size=1)
with contextlib.suppress(ImportError):  # it is not in the oldest Starlette
    from starlette.middleware.body_limit import RequestBodyLimitMiddleware

    PARKED["body limit"] = Middleware(RequestBodyLimitMiddleware, max_body_size=1000)

BEHIND = {
    "base": (
        Middleware(BaseHTTPMiddleware, dispatch=passes_on),
        "starlette.middleware.base.BaseHTTPMiddleware",
    ),
    "unknown": (around(adding), f"{__name__}.adding"),
    "tracing": (
        Middleware(OpenTelemetryMiddleware),
        "opentelemetry.instrumentation.asgi.OpenTelemetryMiddleware",
    ),
    "prometheus": (
        Middleware(PrometheusInstrumentatorMiddleware, registry=CollectorRegistry()),
        "prometheus_fastapi_instrumentator.middleware.PrometheusInstrumentatorMiddleware",
    ),
}


async def answer(board: Board, server: Server, target: str) -> tuple[bytes, int]:
    """The bytes of an answer, and how many tasks have waited for it."""
    headers = "Origin: http://a.example", "Accept-Encoding: gzip", "User-Agent: a browser", "Connection: close"
    board.notes.clear()
    async with connected(server) as client:
        await client.send("GET", target, *headers)
        await board.until_waiting(1)
        for _ in range(5):
            await asyncio.sleep(0)
        tasks = len(server.server_state.tasks)
        board.notes += ["é1", "é2"]
        board.pin("end")
        # Older releases of Starlette write the time into what they compress.
        return re.sub(rb"(?s)\x1f\x8b\x08\0....", b"compressed", await client.reader.read()), tasks


async def answers(board: Board, protocol: Any) -> tuple[bytes, bytes, int]:
    """The bytes of a response and of an event stream, and how many tasks have waited for them."""
    board.render = lambda notes: JSONResponse(notes, headers={"vary": "accept"})
    async with serving(board.app, protocol, date_header=False) as server:
        response, waited = await answer(board, server, "/look")
        events, more = await answer(board, server, "/events")
    return response, events, waited + more
