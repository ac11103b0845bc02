"""Which middlewares requests are parked behind, and that the answers are the same."""

import functools
import logging
from dataclasses import asdict
from typing import Any

import itsdangerous
import pytest
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from purgatory import Delay, DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse, park_through, parking_statistics
from purgatory.asgi.middleware import UnsafeWrapper, warn_once
from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.board import Board
from tests.uvicorn.middlewares import BEHIND, PARKED, Application, MarkedFunction, Responder, answers, around
from tests.uvicorn.serving import connected, serving


@pytest.fixture
def same_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are signed with the time."""
    monkeypatch.setattr(itsdangerous.TimestampSigner, "get_timestamp", lambda self: 1_700_000_000)


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.usefixtures("same_second")
class TestTheAnswerIsTheSame:
    @pytest.mark.parametrize("name", PARKED)
    async def test_and_no_task_waits(self, name: str) -> None:
        *with_tasks, tasks = await answers(Application("fastapi", PARKED[name]), HttpToolsProtocol)
        assert tasks == 2
        assert await answers(Application("fastapi", PARKED[name]), ParkingProtocol) == (*with_tasks, 0)

    @pytest.mark.parametrize("kind", ["starlette", "fastapi", "mounted"])
    async def test_behind_several(self, kind: str) -> None:
        several = [PARKED[name] for name in PARKED if name != "waits"]
        *with_tasks, tasks = await answers(Application(kind, *several), HttpToolsProtocol)
        assert tasks == 2
        assert await answers(Application(kind, *several), ParkingProtocol) == (*with_tasks, 0)
        for part in (b"access-control-allow-origin", b"x-path: /", b"an-id", b"x-marked: method"):
            assert all(part in each.lower() for each in with_tasks)

    @pytest.mark.parametrize("name", BEHIND)
    async def test_and_a_task_waits_behind_others(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        middleware, wrapper = BEHIND[name]
        *with_tasks, _ = await answers(Application("mounted", middleware), HttpToolsProtocol)
        before = parking_statistics()
        for _ in range(2):
            application = Application("mounted", middleware)
            assert await answers(application, ParkingProtocol) == (*with_tasks, 2)
        records = [record for record in caplog.records if record.name == "purgatory.asgi"]
        assert len(records) == 2  # once for each application
        assert all(record.levelno == logging.WARNING for record in records)
        assert f"because {wrapper} wraps send" in records[0].getMessage()
        advice = "a pure ASGI one" if name == "base" else f"park_through({wrapper.rpartition('.')[2]})"
        assert advice in records[0].getMessage()
        assert parking_statistics().middleware == before.middleware + 4


async def test_client_that_leaves_behind_base_http_middleware_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    application = Application("starlette", BEHIND["base"][0])
    async with serving(application.app) as server, connected(server) as client:
        await client.send("GET", "/poll")
        await application.until_waiting(1)
        client.writer.transport.abort()
        await application.until_waiting(0)
    assert "Traceback" not in caplog.text
    assert "No response returned" not in caplog.text


def test_an_application_without_a_framework_is_warned_of(
    caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    def wrapper() -> None: ...

    wrapper.__code__ = wrapper.__code__.replace(co_qualname=request.node.name)  # another one than in the test before
    for _ in range(2):
        warn_once(None, UnsafeWrapper(wrapper, None, is_declared=False))
    (record,) = caplog.records
    assert record.getMessage().startswith("the waiting requests of an application are not parked")


class TestWhichAreSafe:
    def test_class_or_function_is_needed(self) -> None:
        with pytest.raises(TypeError, match=r"middleware must be a class or a function, not 5"):
            park_through(5)  # type: ignore[type-var]

    def test_base_http_middleware_is_refused(self) -> None:
        class Mine(BaseHTTPMiddleware):
            pass

        with pytest.raises(TypeError, match="write it as a pure ASGI middleware"):
            park_through(Mine)

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
        def hides(send: Send) -> Send:
            another_name = send

            async def wrapped(message: Message) -> None:
                await another_name(message)

            wrapped.purgatory_parking = True  # type: ignore[attr-defined]
            return wrapped

        *_, tasks = await answers(Application("starlette", around(hides)), ParkingProtocol)
        assert tasks == 2
        assert f"{__name__}.TestWhichAreSafe.test_wrapper_that_hides" in caplog.text
        assert "the `send` that it wraps isn't found: store that by the name `send`" in caplog.text

    async def test_mark_is_not_inherited_by_functools_wraps(self) -> None:
        def traces(send: Send) -> Send:
            @functools.wraps(send)
            async def wrapped(message: Message) -> None:
                await send(message)

            return wrapped

        *_, tasks = await answers(Application("starlette", Middleware(MarkedFunction), around(traces)), ParkingProtocol)
        assert tasks == 2

    async def test_callable_object_that_is_not_declared_is_not_safe(self) -> None:
        class Object(Responder):
            purgatory_parking = False

        *_, tasks = await answers(Application("starlette", around(Object)), ParkingProtocol)
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
