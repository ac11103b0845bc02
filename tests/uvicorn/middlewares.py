"""Middlewares around an application whose requests wait: those that are parked behind, and others."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import FastAPI
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator.middleware import PrometheusInstrumentatorMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory import Delay, DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse, Event, EventStream, park_through
from tests.uvicorn.serving import Client, Server, connected, serving

NAME: ContextVar[str] = ContextVar("NAME")


def add(message: Message, name: bytes, value: bytes) -> None:
    """Add a header to the head of a response."""
    if message["type"] == "http.response.start":
        message["headers"] = [*message["headers"], (name, value)]


class AddsHeader:
    """A middleware that wraps `send` by a closure, and that nobody has declared."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            add(message, b"x-added", b"1")
            await send(message)

        await self.app(scope, receive, wrapped)


@park_through
class Declared(AddsHeader):
    """Reads a context variable of the request, as asgi-correlation-id does, and its scope."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        NAME.set(scope["path"])

        async def wrapped(message: Message) -> None:
            add(message, b"x-path", NAME.get("none").encode() + scope["path"].encode())
            await send(message)

        await self.app(scope, receive, wrapped)


class MarkedFunction(AddsHeader):
    """The wrapper says that it is safe."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            add(message, b"x-marked", b"function")
            await send(message)

        wrapped.purgatory_parking = True  # type: ignore[attr-defined]
        await self.app(scope, receive, wrapped)


class MarkedClass(AddsHeader):
    """The class says that it is safe, and the wrapper is found by its variable `self`."""

    purgatory_parking = True
    value = b"class"

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
    """Really wait before each message."""
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await asyncio.sleep(0.001)
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
    "marked function": Middleware(MarkedFunction),
    "marked class": Middleware(MarkedClass),
    "marked method": around(lambda send: Responder(send).sent),
    "callable object": around(Responder),
    "waits": wrapping(waits),
}
with contextlib.suppress(ImportError):  # it is not in the oldest Starlette
    from starlette.middleware.body_limit import RequestBodyLimitMiddleware

    PARKED["body limit"] = Middleware(RequestBodyLimitMiddleware, max_body_size=1000)

BEHIND = {
    "gzip": (Middleware(GZipMiddleware, minimum_size=1), "starlette.middleware.gzip.GZipResponder"),
    "base": (
        Middleware(BaseHTTPMiddleware, dispatch=passes_on),
        "starlette.middleware.base.BaseHTTPMiddleware",
    ),
    "unknown": (Middleware(AddsHeader), f"{__name__}.AddsHeader"),
    "tracing": (
        Middleware(OpenTelemetryMiddleware),
        "opentelemetry.instrumentation.asgi.OpenTelemetryMiddleware",
    ),
    "prometheus": (
        Middleware(PrometheusInstrumentatorMiddleware, registry=CollectorRegistry()),
        "prometheus_fastapi_instrumentator.middleware.PrometheusInstrumentatorMiddleware",
    ),
}


class Application:
    """`/poll` and `/events` wait for `publish`, in Starlette, in FastAPI, or in one that is mounted in another."""

    def __init__(self, kind: str, *middleware: Middleware) -> None:
        self.purgatory = DelayedOperationPurgatory("news")
        self.followed: list[str | None] = []
        self.app: Any
        inside = list(middleware)
        if kind == "fastapi":
            self.app = FastAPI(middleware=inside)
            self.app.get("/poll", response_model=None)(self.poll_in_fastapi)
            self.app.get("/events", response_model=None)(self.events_in_fastapi)
        else:
            routes = [Route("/poll", self.poll), Route("/events", self.events), Route("/tokens", self.tokens)]
            self.app = Starlette(routes=routes, middleware=inside)
        if kind == "mounted":
            self.app = Starlette(routes=[Mount("/", self.app)])

    async def poll(self, request: Request) -> Any:
        if "session" in request.scope:
            request.session["seen"] = "1"
        operation = self.purgatory.try_complete_else_watch(Delay(60.0), ["news"])
        return DelayedResponse(operation, lambda _: PlainTextResponse("news", headers={"vary": "accept"}))

    async def events(self, request: Request) -> Any:
        def follow(last_event_id: str | None) -> Delay | None:
            self.followed.append(last_event_id)
            return self.purgatory.try_complete_else_watch(Delay(60.0), ["news"]) if last_event_id != "3" else None

        return EventStream(follow, lambda _: [Event(f"é{number}", id=str(number)) for number in (1, 2, 3)])

    async def tokens(self, request: Request) -> Any:
        async def generate() -> AsyncGenerator[str, None]:
            yield "one"
            await asyncio.Event().wait()

        return EventStream(generate())

    async def poll_in_fastapi(self, request: Request) -> Any:
        return await self.poll(request)

    poll_in_fastapi.__annotations__["request"] = Request

    async def events_in_fastapi(self, request: Request) -> Any:
        return await self.events(request)

    async def until_waiting(self, count: int) -> None:
        while self.purgatory.num_delayed != count:
            await asyncio.sleep(0.005)


async def answer(client: Client, server: Server, application: Application, target: str) -> tuple[bytes, int]:
    """The bytes of an answer, and how many tasks have waited for it."""
    headers = "Origin: http://a.example", "Accept-Encoding: gzip", "User-Agent: a browser", "Connection: close"
    await client.send("GET", target, *headers)
    await application.until_waiting(1)
    for _ in range(5):
        await asyncio.sleep(0)
    tasks = len(server.server_state.tasks)
    application.purgatory.complete_all()
    # Older releases of Starlette write the time into what they compress.
    return re.sub(rb"(?s)\x1f\x8b\x08\0....", b"compressed", await client.reader.read()), tasks


async def answers(application: Application, protocol: Any) -> tuple[bytes, bytes, int]:
    """The bytes of the answers to both targets, and how many tasks have waited for them."""
    async with serving(application.app, protocol, date_header=False) as server:
        async with connected(server) as client:
            poll, waited = await answer(client, server, application, "/poll")
        async with connected(server) as client:
            events, more = await answer(client, server, application, "/events")
    return poll, events, waited + more
