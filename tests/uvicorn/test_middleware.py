"""Middlewares around handlers whose requests wait: which are parked, and that the answers are the same."""

import asyncio
import contextlib
import functools
import gc
import logging
import re
import tracemalloc
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

import itsdangerous
import pytest
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
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from purgatory import Delay, DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse, Event, EventStream, park_through, parking_statistics
from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, Server, connected, serving

NAME: ContextVar[str] = ContextVar("NAME")
SAMPLE = 200
"""Clients."""


class AddsHeader:
    """A middleware that wraps `send` by a closure."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-added", b"1")]
            await send(message)

        await self.app(scope, receive, wrapped)


class Declared(AddsHeader):
    """Is declared by the application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"]

        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-path", name.encode() + scope["path"].encode())]
            await send(message)

        await self.app(scope, receive, wrapped)


class MarkedFunction(AddsHeader):
    """The wrapper says that it is safe."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-marked", b"1")]
            await send(message)

        wrapped.purgatory_parking = True  # type: ignore[attr-defined]
        await self.app(scope, receive, wrapped)


class MarkedClass(AddsHeader):
    """The class says that it is safe, and the wrapper is found by its variable `self`."""

    purgatory_parking = True
    header = (b"x-marked", b"class")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], self.header]
            await send(message)

        await self.app(scope, receive, wrapped)


class MarkedMethod(AddsHeader):
    """The wrapper is a method of an object for each request."""

    class Responder:
        purgatory_parking = True

        def __init__(self, send: Send) -> None:
            self.send = send

        async def sent(self, message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-marked", b"method")]
            await self.send(message)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, self.Responder(send).sent)


class CallableObject(AddsHeader):
    """The wrapper is an object."""

    class Responder:
        purgatory_parking = True

        def __init__(self, send: Send) -> None:
            self.send = send

        async def __call__(self, message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-marked", b"object")]
            await self.send(message)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, self.Responder(send))


class ReadsContext(AddsHeader):
    """The wrapper reads a context variable of the request, as asgi-correlation-id does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        NAME.set(scope["path"])

        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-name", NAME.get("none").encode())]
            await send(message)

        await self.app(scope, receive, wrapped)


class Waits(AddsHeader):
    """The wrapper really waits before each message."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await asyncio.sleep(0.001)
            await send(message)

        await self.app(scope, receive, wrapped)


for each in (Declared, ReadsContext, Waits):
    park_through(each)


class WorksAfterwards(AddsHeader):
    """A middleware that nobody has declared."""


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
    "marked method": Middleware(MarkedMethod),
    "callable object": Middleware(CallableObject),
    "context": Middleware(ReadsContext),
    "waits": Middleware(Waits),
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
    "unknown": (Middleware(WorksAfterwards), f"{__name__}.AddsHeader"),
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


@pytest.fixture
def same_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are signed with the time."""
    monkeypatch.setattr(itsdangerous.TimestampSigner, "get_timestamp", lambda self: 1_700_000_000)


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.usefixtures("same_second")
@pytest.mark.parametrize("kind", ["starlette", "fastapi", "mounted"])
class TestTheAnswerIsTheSame:
    @pytest.mark.parametrize("name", PARKED)
    async def test_and_no_task_waits(self, name: str, kind: str) -> None:
        *with_tasks, tasks = await answers(Application(kind, PARKED[name]), HttpToolsProtocol)
        assert tasks == 2
        assert await answers(Application(kind, PARKED[name]), ParkingProtocol) == (*with_tasks, 0)

    async def test_behind_several(self, kind: str) -> None:
        several = [PARKED[name] for name in PARKED if name != "waits"]
        *with_tasks, tasks = await answers(Application(kind, *several), HttpToolsProtocol)
        assert tasks == 2
        assert await answers(Application(kind, *several), ParkingProtocol) == (*with_tasks, 0)
        for part in (b"access-control-allow-origin", b"x-path", b"an-id", b"x-marked: method", b"x-name: /"):
            assert all(part in each.lower() for each in with_tasks)

    @pytest.mark.parametrize("name", BEHIND)
    async def test_and_a_task_waits_behind_others(self, name: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
        middleware, wrapper = BEHIND[name]
        *with_tasks, _ = await answers(Application(kind, middleware), HttpToolsProtocol)
        before = parking_statistics()
        for _ in range(2):
            application = Application(kind, middleware)
            assert await answers(application, ParkingProtocol) == (*with_tasks, 2)
        records = [record for record in caplog.records if record.name == "purgatory.asgi"]
        assert len(records) == 2  # once for each application
        assert all(record.levelno == logging.WARNING for record in records)
        assert f"because {wrapper} wraps send" in records[0].getMessage()
        advice = "a pure ASGI one" if name == "base" else f"park_through({wrapper.rpartition('.')[2]})"
        assert advice in records[0].getMessage()
        assert parking_statistics().middleware == before.middleware + 4


class TestThrough:
    async def test_connection_goes_on_after_the_answer(self) -> None:
        application = Application("starlette", PARKED["cors"], PARKED["session"])
        async with serving(application.app) as server, connected(server) as client:
            for _ in range(3):
                await client.send("GET", "/poll", "Origin: http://a.example")
                await application.until_waiting(1)
                await server.until("QuietConnection")
                application.purgatory.complete_all()
                assert (await client.receive()).headers["access-control-allow-origin"] == "*"

    async def test_client_that_disconnects_leaves_its_operation(self) -> None:
        application = Application("fastapi", PARKED["cors"])
        for target in ("/poll", "/events"):
            async with serving(application.app) as server, connected(server) as client:
                await client.send("GET", target)
                await application.until_waiting(1)
                await server.until("QuietConnection")
                client.writer.close()
                await application.until_waiting(0)

    @pytest.mark.parametrize("sends", ["start", "body"])
    async def test_middleware_that_raises_is_logged_and_the_client_gets_an_error(
        self, sends: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        @park_through
        class Raises(AddsHeader):
            raised = 0

            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    if message["type"] == f"http.response.{sends}" and not Raises.raised:
                        Raises.raised += 1
                        raise ValueError("a bad middleware")
                    await send(message)

                await self.app(scope, receive, wrapped)

        application = Application("starlette", Middleware(Raises))
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/poll")
            await application.until_waiting(1)
            application.purgatory.complete_all()
            assert (await client.receive()).status == 500
            assert "a bad middleware" in caplog.text

    async def test_middleware_that_raises_after_it_has_waited_closes_the_connection(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        @park_through
        class Raises(AddsHeader):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    await asyncio.sleep(0.001)
                    if message:
                        raise ValueError("a bad middleware")
                    await send(message)

                await self.app(scope, receive, wrapped)

        application = Application("starlette", Middleware(Raises))
        for target in ("/poll", "/events", "/tokens"):
            async with serving(application.app) as server, connected(server) as client:
                await client.send("GET", target)
                await application.until_waiting(1 if target == "/poll" else 0)
                application.purgatory.complete_all()
                assert await client.ended()
                await server.until_no_task()
                assert "a bad middleware" in caplog.text
                caplog.clear()

    async def test_middleware_that_raises_when_all_is_sent_leaves_the_connection(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        @park_through
        class RaisesAtTheEnd(AddsHeader):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    await send(message)
                    if message["type"] == "http.response.body":
                        await asyncio.sleep(0.001)
                        raise ValueError("a bad middleware")

                await self.app(scope, receive, wrapped)

        application = Application("starlette", Middleware(RaisesAtTheEnd))
        async with serving(application.app) as server, connected(server) as client:
            for _ in range(2):
                await client.send("GET", "/poll")
                await application.until_waiting(1)
                application.purgatory.complete_all()
                assert (await client.receive()).body == b"news"
                while "a bad middleware" not in caplog.text:
                    await asyncio.sleep(0.005)
                caplog.clear()

    async def test_callable_object_that_is_not_declared_is_not_safe(self) -> None:
        class Object:
            def __init__(self, send: Send) -> None:
                self.send = send

            async def __call__(self, message: Message) -> None:
                await self.send(message)

        def middleware(app: ASGIApp) -> ASGIApp:
            async def call(scope: Scope, receive: Receive, send: Send) -> None:
                await app(scope, receive, Object(send))

            return call

        *_, tasks = await answers(Application("starlette", Middleware(middleware)), ParkingProtocol)
        assert tasks == 2

    async def test_exception_of_what_a_middleware_awaits_reaches_it(self) -> None:
        @park_through
        class Recovers(AddsHeader):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    future = asyncio.get_running_loop().create_future()
                    asyncio.get_running_loop().call_soon(future.set_exception, ValueError("awaited"))
                    with contextlib.suppress(ValueError):
                        await future
                    await send(message)

                await self.app(scope, receive, wrapped)

        application = Application("starlette", Middleware(Recovers))
        assert (await answers(application, ParkingProtocol))[2] == 0

    async def test_server_that_cancels_the_task_of_a_waiting_middleware_closes_the_connection(self) -> None:
        @park_through
        class WaitsForever(AddsHeader):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    if message["type"].startswith("http."):
                        await asyncio.Event().wait()
                    await send(message)

                await self.app(scope, receive, wrapped)

        application = Application("starlette", Middleware(WaitsForever))
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/poll")
            await application.until_waiting(1)
            await server.until_no_task()
            before = asyncio.all_tasks()
            application.purgatory.complete_all()
            while not (new := asyncio.all_tasks() - before):
                await asyncio.sleep(0)
            for task in new:
                task.cancel()
            assert await client.ended()

    async def test_scope_is_left_to_tasks_that_the_handler_has_started(self) -> None:
        application = Application("fastapi", PARKED["cors"], PARKED["session"])
        seen: list[Any] = []

        async def look(request: Request) -> None:
            await application.until_waiting(1)
            await asyncio.sleep(0.05)
            seen.append((request.url.path, dict(request.session), "origin" in request.headers))

        poll = application.poll

        async def poll_and_look(request: Request) -> Any:
            tasks.append(asyncio.create_task(look(request)))
            return await poll(request)

        tasks: list[asyncio.Task[None]] = []
        application.poll = poll_and_look  # type: ignore[method-assign]
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/poll", "Origin: http://a.example")
            await application.until_waiting(1)
            await server.until("QuietConnection")
            await asyncio.wait(tasks)
            assert seen == [("/poll", {"seen": "1"}, True)]

    async def test_nothing_is_lost_between_a_wait_and_its_end(self) -> None:
        @park_through
        class Yields(AddsHeader):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    await asyncio.sleep(0)
                    await send(message)

                await self.app(scope, receive, wrapped)

        for pauses in range(6):
            for items in (0, 2):

                async def generate(pauses: int = pauses, items: int = items) -> AsyncGenerator[str, None]:
                    for number in range(items):
                        for _ in range(pauses):
                            await asyncio.sleep(0)
                        yield str(number)
                    for _ in range(pauses):
                        await asyncio.sleep(0)

                async def handler(request: Request, generate: Any = generate) -> Any:
                    return EventStream(generate())

                app = Starlette(routes=[Route("/", handler)], middleware=[Middleware(Yields)])
                async with serving(app) as server, connected(server) as client:
                    response = await client.request("GET", "/")
                    assert response.body == b"".join(b"data:%d\n\n" % number for number in range(items))

    async def test_time_limit_of_a_middleware_is_its_own(self) -> None:
        @park_through
        class Limits(AddsHeader):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.01):
                            await asyncio.sleep(60)
                    await send(message)

                await self.app(scope, receive, wrapped)

        async def generate() -> AsyncGenerator[str, None]:
            yield "one"
            yield "two"

        async def handler(request: Request) -> Any:
            return EventStream(generate())

        app = Starlette(routes=[Route("/", handler)], middleware=[Middleware(Limits)])
        async with serving(app) as server, connected(server) as client:
            assert (await client.request("GET", "/")).body == b"data:one\n\ndata:two\n\n"

    async def test_shutdown_while_a_middleware_waits_with_the_end_cuts_nothing_off(self) -> None:
        may_go_on = asyncio.Event()

        @park_through
        class HoldsTheEnd(AddsHeader):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    if message["type"] == "http.response.body" and not message.get("more_body"):
                        await may_go_on.wait()
                    await send(message)

                await self.app(scope, receive, wrapped)

        application = Application("starlette", Middleware(HoldsTheEnd))
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/events")
            await application.until_waiting(1)
            application.purgatory.complete_all()
            await client.until("data:é3".encode())
            server.should_exit = True
            await asyncio.sleep(0.3)
            may_go_on.set()
            await client.until(b"0\r\n\r\n")

    async def test_middleware_that_raises_at_a_heartbeat_closes_the_connection(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        @park_through
        class Raises(AddsHeader):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    if message.get("body") == b":\n\n":
                        raise ValueError("a bad middleware")
                    await send(message)

                await self.app(scope, receive, wrapped)

        async def generate() -> AsyncGenerator[str, None]:
            await asyncio.Event().wait()
            yield "never"

        async def handler(request: Request) -> Any:
            return EventStream(generate(), heartbeat=0.02)

        app = Starlette(routes=[Route("/", handler)], middleware=[Middleware(Raises)])
        async with serving(app) as server, connected(server) as client:
            await client.send("GET", "/")
            await client.until(b"\r\n\r\n")
            assert await client.ended()
            assert "a bad middleware" in caplog.text
            await server.until_no_task()

    async def test_stream_asks_for_nothing_while_a_middleware_waits(self) -> None:
        may_go_on = asyncio.Event()
        may_go_on.set()

        @park_through
        class Holds(AddsHeader):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    await may_go_on.wait()
                    await send(message)

                await self.app(scope, receive, wrapped)

        application = Application("starlette", Middleware(Holds))
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/events")
            await application.until_waiting(1)
            may_go_on.clear()
            application.purgatory.complete_all()
            await server.until_no_task()
            for _ in range(5):
                await asyncio.sleep(0)
            assert application.purgatory.num_delayed == 0
            assert application.followed == [None]
            may_go_on.set()
            await client.until(b"0\r\n\r\n")
            assert application.followed == [None, "3"]

    async def test_stream_that_is_shut_down_while_a_middleware_waits_ends_after_it(self) -> None:
        may_go_on = asyncio.Event()
        may_go_on.set()

        @park_through
        class Holds(AddsHeader):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    await may_go_on.wait()
                    await send(message)

                await self.app(scope, receive, wrapped)

        application = Application("starlette", Middleware(Holds))
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/events")
            await application.until_waiting(1)
            may_go_on.clear()
            application.purgatory.complete_all()
            await asyncio.sleep(0.05)
            server.should_exit = True
            await asyncio.sleep(0.3)
            may_go_on.set()
            data = await client.until(b"0\r\n\r\n")
            assert "data:é3".encode() in data

    async def test_what_the_wrappers_do_not_need_is_let_go(self) -> None:
        """A client takes two KiB more, whatever its headers are, and the request's objects are freed."""

        async def size(*middleware: Middleware) -> float:
            application = Application("fastapi", *middleware)
            headers = [f"X-Header-{number}: {'x' * 100}" for number in range(20)]
            async with serving(application.app) as server, contextlib.AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(connected(server)) for _ in range(SAMPLE + 20)]
                sizes = []
                for some in (clients[:20], clients[20:]):
                    for client in some:
                        await client.send("GET", "/poll", "Origin: http://a.example", *headers)
                    await server.until(*["QuietConnection"] * len(clients))
                    await application.until_waiting(20 if some == clients[:20] else len(clients))
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
                application.purgatory.cancel_all()
            return (sizes[1] - sizes[0]) / SAMPLE

        tracemalloc.start()
        try:
            await size()
            alone = await size()
            behind = await size(PARKED["cors"], PARKED["session"])
        finally:
            tracemalloc.stop()
        assert behind - alone < 2500


class TestWhichAreSafe:
    def test_class_or_function_is_needed(self) -> None:
        with pytest.raises(TypeError, match=r"the class or function of a middleware is needed, not 5"):
            park_through(5)  # type: ignore[type-var]

    def test_base_http_middleware_is_refused(self) -> None:
        class Mine(BaseHTTPMiddleware):
            pass

        with pytest.raises(TypeError, match="write it as a pure ASGI middleware"):
            park_through(Mine)

    async def test_function_can_be_declared(self) -> None:
        @park_through
        def adds_header(app: ASGIApp) -> ASGIApp:
            async def call(scope: Scope, receive: Receive, send: Send) -> None:
                async def wrapped(message: Message) -> None:
                    await send(message)

                await app(scope, receive, wrapped)

            return call

        application = Application("starlette", Middleware(adds_header))
        *_, tasks = await answers(application, ParkingProtocol)
        assert tasks == 0

    async def test_class_that_is_derived_from_a_safe_one_is_not_known(self, caplog: pytest.LogCaptureFixture) -> None:
        class WorksAfterSessions(SessionMiddleware):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                await super().__call__(scope, receive, send)

        class WorksAfterCORS(CORSMiddleware):
            async def simple_response(self, *arguments: Any, **keywords: Any) -> None:
                await super().simple_response(*arguments, **keywords)

        for derived, options in ((WorksAfterSessions, {"secret_key": "a"}), (WorksAfterCORS, {"allow_origins": ["*"]})):
            for expected in (2, 0):
                application = Application("starlette", Middleware(derived, **options))
                *_, tasks = await answers(application, ParkingProtocol)
                assert tasks == expected
                park_through(derived)
            assert f"park_through({derived.__qualname__})" in caplog.text

    async def test_wrapper_that_hides_the_next_one_is_not_safe(self, caplog: pytest.LogCaptureFixture) -> None:
        def middleware(app: ASGIApp) -> ASGIApp:
            async def call(scope: Scope, receive: Receive, send: Send) -> None:
                another_name = send

                async def wrapped(message: Message) -> None:
                    await another_name(message)

                wrapped.purgatory_parking = True  # type: ignore[attr-defined]
                await app(scope, receive, wrapped)

            return call

        *_, tasks = await answers(Application("starlette", Middleware(middleware)), ParkingProtocol)
        assert tasks == 2
        assert f"{__name__}.TestWhichAreSafe.test_wrapper_that_hides" in caplog.text
        assert "what it wraps isn't found: let it have that by the name `send`" in caplog.text

    async def test_mark_is_not_inherited_by_functools_wraps(self) -> None:
        def traces(app: ASGIApp) -> ASGIApp:
            async def call(scope: Scope, receive: Receive, send: Send) -> None:
                @functools.wraps(send)
                async def wrapped(message: Message) -> None:
                    await send(message)

                await app(scope, receive, wrapped)

            return call

        application = Application("starlette", Middleware(MarkedFunction), Middleware(traces))
        *_, tasks = await answers(application, ParkingProtocol)
        assert tasks == 2

    async def test_application_without_a_scopes_app_is_warned_of_too(self, caplog: pytest.LogCaptureFixture) -> None:
        purgatory = DelayedOperationPurgatory("news")

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            async def wrapped(message: Message) -> None:
                await send(message)

            name = f"wrapped for {id(purgatory)}"  # another one in the next test
            wrapped.__code__ = wrapped.__code__.replace(co_qualname=name)
            operation = purgatory.try_complete_else_watch(Delay(0.01), ["news"])
            await DelayedResponse(operation, lambda _: PlainTextResponse("news"))(scope, receive, wrapped)

        async with serving(app, lifespan="off") as server, connected(server) as client:
            for _ in range(2):
                assert (await client.request("GET", "/")).body == b"news"
        assert caplog.text.count("wraps send") == 1


class TestStatistics:
    async def test_each_way_is_counted(self) -> None:
        def difference() -> dict[str, int]:
            now = asdict(parking_statistics())
            return {way: now[way] - count for way, count in before.items() if now[way] != count}

        before = asdict(parking_statistics())
        board = Board()
        for target, headers, http, way in (
            ("/look", [], ParkingProtocol, "parked"),
            ("/events", [], ParkingProtocol, "parked"),
            ("/look?background", [], ParkingProtocol, "background"),
            ("/look", ["Content-Length: 5"], ParkingProtocol, "request"),  # the body does not come
            ("/look", [], HttpToolsProtocol, "server"),
        ):
            async with serving(board.app, http) as server, connected(server) as client:
                await client.send("POST" if headers else "GET", target, *headers)
                await board.until_waiting(1)
                assert difference() == {way: 1}
                before = asdict(parking_statistics())
                client.writer.close()
                await board.until_waiting(0)
