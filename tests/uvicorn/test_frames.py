"""What other people's code between the server and a response does happens when it happens on uvicorn alone."""

import asyncio
import functools
import subprocess
import sys
import sysconfig
import types
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextvars import ContextVar
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import anyio
import pytest
from brotli_asgi import BrotliMiddleware, BrotliResponder
from fastapi import Depends, FastAPI
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator.middleware import PrometheusInstrumentatorMiddleware
from slowapi import Limiter
from slowapi.middleware import SlowAPIASGIMiddleware, _ASGIMiddlewareResponder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from purgatory import DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse, Event, EventStream, frames, middleware, park_through
from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.serving import connected, serving
from tests.uvicorn.test_fastapi import CLOSES_BEFORE_THE_RESPONSE

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

VARIABLE: ContextVar[int] = ContextVar("VARIABLE", default=0)
LIMIT = functools.partial(asyncio.timeout, 60.0)
journal: list[str] = []


class Around:
    """A middleware that awaits the application in one of many ways."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app


class Times(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        finally:
            journal.append("time noted")


class Works(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
        journal.append("worked")


class Limits(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.Semaphore(1) as _:
            await self.app(scope, receive, send)


class Session:
    """A session of a database."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        journal.append("session closed")


class HoldsSession(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with Session():
            return await self.app(scope, receive, send)


class Commits(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except Exception:
            journal.append("rolled back")
            raise
        else:
            journal.append("committed")


class ResetsVariable(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = VARIABLE.set(1)
        try:
            await self.app(scope, receive, send)
        finally:
            VARIABLE.reset(token)


class Counts(Around):
    """Keeps a count in an enclosing function, which is a store and no call."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        running = 0

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal running
            running += 1
            await app(scope, receive, send)
            running -= 1

        self.call = call

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        return self.call(scope, receive, send)


class Sets(Around):
    done = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
        self.done = True


class Repeats(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for app in (self.app,):
            await app(scope, receive, send)


class RunsTask(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.ensure_future(self.app(scope, receive, send))


class RunsEagerTask(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.Task(self.app(scope, receive, send), loop=loop, eager_start=True)  # type: ignore[call-arg, arg-type]


class LimitsTime(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.timeout(60.0):
            await self.app(scope, receive, send)


class WaitsFor(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.wait_for(self.app(scope, receive, send), 60.0)


class GroupsTasks(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self.app, scope, receive, send)  # type: ignore[arg-type]


class IsGenerator(Around):
    @types.coroutine
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        result = yield from self.app(scope, receive, send)  # type: ignore[misc]
        journal.append("generated")
        return result


class IsAwaitable(Around):
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        class Call:
            def __await__(call) -> Any:  # noqa: N805
                yield from self.app(scope, receive, send).__await__()
                journal.append("awaited")

        return Call()


def traces(app: ASGIApp) -> Any:
    class Exporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            served = (span.attributes or {} for span in spans if span.kind is SpanKind.SERVER)
            journal.extend(f"span with status {attributes.get('http.status_code')}" for attributes in served)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Exporter()))
    return OpenTelemetryMiddleware(app, tracer_provider=provider)


def measures(app: ASGIApp) -> Any:
    def note(info: Any) -> None:
        journal.append(f"measured a response with status {info.response.status_code}")

    options: Any = {"registry": CollectorRegistry(), "instrumentations": [note]}
    middleware = Middleware(PrometheusInstrumentatorMiddleware, **options)
    return Starlette(routes=[Route("/", app)], middleware=[middleware])


WORKING: list[Callable[[ASGIApp], Any]] = [
    *(traces, measures),
    *(Times, Works, Limits, HoldsSession, Commits, ResetsVariable, Counts, Sets, Repeats, RunsTask, LimitsTime),
    *(WaitsFor, GroupsTasks, IsGenerator, IsAwaitable),
]
if sys.version_info >= (3, 12):
    WORKING.append(RunsEagerTask)


class Passes(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Returns(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        result: Any = await self.app(scope, receive, send)  # type: ignore[func-returns-value]
        return result


class Chooses(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.app(scope, receive, send)
        else:
            raise ValueError


class RollsBack(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except Exception:
            journal.append("rolled back")
            raise


class ReturnsInLoop(Around):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for app in (self.app,):
            return await app(scope, receive, send)
        return None


class IsNoCoroutine(Around):
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        return self.app(scope, receive, send)


def wraps(app: ASGIApp) -> Any:
    @functools.wraps(app)
    async def call(scope: Scope, *arguments: Any) -> None:
        await app(scope, *arguments)

    return call


IDLE: list[Callable[[ASGIApp], Any]] = [
    *(Passes, Returns, Chooses, RollsBack, ReturnsInLoop, IsNoCoroutine, wraps),
    functools.partial(functools.partial, wraps),
]


class App:
    """Answers when it is told to. With `stream`, by an event stream that ends then."""

    def __init__(self, stream: bool = False) -> None:
        self.purgatory = DelayedOperationPurgatory("app")
        self.ready = False
        self.stream = stream

    def response(self) -> Any:
        if not self.stream:
            return DelayedResponse(self.wait(), lambda _: PlainTextResponse("done"))
        return EventStream(lambda seen: None if self.ready else self.wait(), lambda _: [Event("done")])

    def wait(self) -> Any:
        return self.purgatory.wait_for(lambda: self.ready, "key")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.response()(scope, receive, send)

    def answer(self) -> None:
        self.ready = True
        self.purgatory.check_and_complete("key")

    def pause(self) -> None:
        self.ready = False


@pytest.fixture(autouse=True)
def nobody_was_warned() -> None:
    """Applications without a framework are warned of once in all."""
    middleware._warned.clear()


async def observed(app: Any, told: App, http: Any, paths: tuple[str, ...] = ("/", "/")) -> tuple[list[str], list[bool]]:
    """What is noted during requests one after the other and their answers, and whether each was parked."""
    journal.clear()
    parked = []
    async with serving(app, http, lifespan="off", interface="asgi3") as server, connected(server) as client, LIMIT():
        for path in paths:
            await client.send("GET", path)
            while not told.purgatory.num_delayed:
                await asyncio.sleep(0.001)
            for _ in range(10):
                await asyncio.sleep(0)
            parked.append(not server.server_state.tasks)
            journal.append("answers")
            told.answer()
            response = await client.receive()
            assert response.status == 200, response
            assert b"done" in response.body
            await server.until_no_task()
            journal.append("answered")
            told.pause()
    return journal.copy(), parked


@pytest.mark.parametrize("stream", [False, True], ids=["response", "stream"])
class TestEverythingHappensInTime:
    async def compare(self, make: Callable[[ASGIApp], Any], stream: bool) -> list[bool]:
        told = App(stream)
        plain, _ = await observed(make(told), told, HttpToolsProtocol)
        noted, parked = await observed(make(told), told, ParkingProtocol)
        assert noted == plain
        return parked

    @pytest.mark.parametrize("make", WORKING, ids=lambda make: make.__name__)
    async def test_behind_what_works_afterwards_a_task_waits(
        self, make: Any, stream: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert await self.compare(make, stream) == [False, False]
        assert "leave it so" in caplog.text
        assert "park_through" not in caplog.text

    @pytest.mark.parametrize("make", IDLE, ids=lambda make: getattr(make, "__name__", "partial"))
    async def test_behind_what_only_returns_requests_are_parked(self, make: Any, stream: bool) -> None:
        assert await self.compare(make, stream) == [True, True]

    @pytest.mark.parametrize("scope", ["function", "request"])
    async def test_dependencies_with_yield_are_closed_in_time(
        self, scope: Any, stream: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        chosen = {"scope": scope} if "scope" in signature(Depends).parameters else {}
        closes_before = scope == "function" if chosen else CLOSES_BEFORE_THE_RESPONSE

        def make(app: Any) -> FastAPI:
            async def dependency() -> AsyncIterator[int]:
                journal.append("opened")
                yield 1
                journal.append("closed")

            async def handler(value: int = Depends(dependency, **chosen)) -> Any:
                return app.response()

            made = FastAPI()
            made.add_api_route("/", handler, response_model=None)
            return made

        assert await self.compare(make, stream) == [closes_before] * 2
        assert ('scope="function"' in caplog.text) != closes_before


async def test_handler_that_runs_the_response_and_works_on_is_not_parked() -> None:
    """FastAPI's function awaits the handler, too, before it has a response."""
    told = App()

    def make(app: Any) -> FastAPI:
        async def handler(request: Any) -> Any:
            sent: list[Message] = []

            async def keep(message: Message) -> None:
                sent.append(message)

            await app.response()(request.scope, request.receive, keep)
            journal.append("handler goes on")
            return PlainTextResponse("done")

        made = FastAPI()
        made.router.add_route("/", handler)
        return made

    plain, _ = await observed(make(told), told, HttpToolsProtocol)
    noted, parked = await observed(make(told), told, ParkingProtocol)
    assert (noted, parked) == (plain, [False, False])


def limits_rate(app: Any) -> Any:
    async def handler(request: Any) -> Any:
        return app.response()

    made = Starlette(routes=[Route("/", handler)], middleware=[Middleware(SlowAPIASGIMiddleware)])
    made.state.limiter = Limiter(key_func=lambda: "a client", default_limits=["100/minute"], headers_enabled=True)
    return made


def compresses(app: ASGIApp) -> Any:
    return BrotliMiddleware(app, minimum_size=1)


@pytest.fixture
def declarations() -> Iterator[None]:
    """What is declared meanwhile is undeclared afterwards."""
    before = middleware._codes.copy()
    yield
    middleware._codes.clear()
    middleware._codes.update(before)
    middleware._add_known.cache_clear()


@pytest.mark.usefixtures("declarations")
@pytest.mark.parametrize(
    ("make", "wrapper", "headers"),
    [
        (limits_rate, _ASGIMiddlewareResponder, {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}),
        (compresses, BrotliResponder, {"content-encoding", "vary"}),
    ],
)
async def test_undeclared_wrapper_keeps_the_task_and_a_declared_one_gives_the_same_answer(
    make: Callable[[ASGIApp], Any],
    wrapper: type,
    headers: set[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = App()
    seen = []
    for http, declared in ((HttpToolsProtocol, False), (ParkingProtocol, False), (ParkingProtocol, True)):
        if declared:
            assert f"park_through({wrapper.__name__})" in caplog.text
            park_through(wrapper)
        made = serving(make(told), http, date_header=False, lifespan="off", interface="asgi3")
        async with made as server, connected(server) as client, LIMIT():
            await client.send("GET", "/", "Accept-Encoding: br")
            while not told.purgatory.num_delayed:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            assert bool(server.server_state.tasks) != declared
            told.answer()
            response = await client.receive()
            told.pause()
            assert headers <= set(response.headers)
            seen.append((response.status, {*response.headers}, response.body))
    assert seen[1:] == seen[:1] * 2


async def test_a_client_cannot_fill_memory_by_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """`root_path` is what it writes there."""
    monkeypatch.setattr(frames, "_MOST_CHAINS", 10)
    told = App()
    app = Starlette(routes=[Mount("/{tenant}", told)])
    paths = tuple(f"/{number}/" for number in range(30))
    _, parked = await observed(app, told, ParkingProtocol, paths)
    assert parked == [True] * 30
    assert len(frames._chains) <= 10


async def test_task_that_is_cancelled_before_its_response_parks_cancels_the_operation() -> None:
    told = App()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)  # while its frames are looked at from outside
        await told.response()(scope, receive, send)

    async with serving(app, lifespan="off", interface="asgi3") as server, connected(server) as client:
        await client.send("GET", "/")
        while not told.purgatory.statistics().cancelled:
            await asyncio.sleep(0.001)
        assert told.purgatory.num_delayed == 0


COMPILED = """
from typing import Any

class Timer:
    def __init__(self, app: Any, journal: Any) -> None:
        self.app = app
        self.journal = journal

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)
        self.journal.append("compiled")
"""


@pytest.mark.slow
class TestCompiledCode:
    async def test_it_has_no_frame_and_a_task_waits(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        name = f"compiled_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(COMPILED)
        command = [sys.executable, "-m", "mypyc", f"{name}.py"]
        built = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert built.returncode == 0, built.stdout + built.stderr
        monkeypatch.syspath_prepend(str(tmp_path))
        module = import_module(name)
        assert str(module.__file__).endswith(sysconfig.get_config_var("EXT_SUFFIX"))
        timer = module.Timer
        for make in (lambda app: timer(app, journal), lambda app: Passes(timer(Passes(app), journal))):
            told = App()
            plain, _ = await observed(make(told), told, HttpToolsProtocol)
            await observed(Passes(told), told, ParkingProtocol)  # whose frames are the same
            noted, parked = await observed(make(told), told, ParkingProtocol)
            assert (noted, parked) == (plain, [False, False])

        told = App()
        app = Starlette(routes=[Mount("/timed", timer(told, journal)), Mount("/", told)])
        _, parked = await observed(app, told, ParkingProtocol, ("/", "/timed/", "/", "/timed/"))
        assert parked == [True, False, True, False]
