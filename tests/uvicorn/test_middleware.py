"""Which middlewares requests are parked behind, and that the answers are the same."""

import asyncio
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
from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.board import Board
from tests.uvicorn.middlewares import BEHIND, PARKED, Responder, answers, around, marked
from tests.uvicorn.serving import connected, serving

SEVERAL = [name for name in PARKED if name != "waits"]


def hides(send: Send) -> Send:
    """A wrapper that is marked, and hides the next one."""
    another_name = send

    async def wrapped(message: Message) -> None:
        await another_name(message)

    wrapped.purgatory_parking = True  # type: ignore[attr-defined]
    return wrapped


def traces(send: Send) -> Send:
    """A wrapper that gets the mark of the next one, which it is not to have."""

    @functools.wraps(send)
    async def wrapped(message: Message) -> None:
        await send(message)

    return wrapped


class Undeclared(Responder):
    purgatory_parking = False


@pytest.fixture
def same_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are signed with the time."""
    monkeypatch.setattr(itsdangerous.TimestampSigner, "get_timestamp", lambda self: 1_700_000_000)


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.usefixtures("same_second")
class TestTheAnswerIsTheSame:
    @pytest.mark.parametrize(
        ("kind", "names"),
        [("fastapi", [name]) for name in PARKED] + [(kind, SEVERAL) for kind in ("starlette", "fastapi", "mounted")],
        ids=str,
    )
    async def test_and_no_task_waits(self, kind: str, names: list[str]) -> None:
        middleware = [PARKED[name] for name in names]
        *with_tasks, tasks = await answers(Board(*middleware, kind=kind), HttpToolsProtocol)
        assert tasks == 2
        assert await answers(Board(*middleware, kind=kind), ParkingProtocol) == (*with_tasks, 0)
        if names == SEVERAL:
            for part in (b"access-control-allow-origin", b"x-path: /", b"an-id", b"x-marked: method"):
                assert all(part in each.lower() for each in with_tasks)

    @pytest.mark.parametrize("name", BEHIND)
    async def test_and_a_task_waits_behind_others(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        middleware, wrapper = BEHIND[name]
        *with_tasks, _ = await answers(Board(middleware, kind="mounted"), HttpToolsProtocol)
        before = parking_statistics()
        for _ in range(2):
            assert await answers(Board(middleware, kind="mounted"), ParkingProtocol) == (*with_tasks, 2)
        records = [record for record in caplog.records if record.name == "purgatory.asgi"]
        assert len(records) == 2  # once for each application
        assert all(record.levelno == logging.WARNING for record in records)
        reason, advice = f"because {wrapper} works after the application (line ", "leave it so"
        if name == "unknown":
            reason, advice = f"because {wrapper} wraps send", f"park_through({wrapper.rpartition('.')[2]})"
        assert reason in records[0].getMessage()
        assert advice in records[0].getMessage()
        assert parking_statistics().middleware == before.middleware + 4


async def test_application_without_a_framework_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
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
    assert caplog.text.count("the waiting requests of an application are not parked") == 1


class TestWhichAreSafe:
    @pytest.mark.parametrize(
        ("wrong", "match"),
        [
            (5, "middleware must be a class or a function, not 5"),
            (type("Mine", (BaseHTTPMiddleware,), {}), "write it as a pure ASGI middleware"),
        ],
    )
    def test_wrong_ones_are_refused(self, wrong: Any, match: str) -> None:
        with pytest.raises(TypeError, match=match):
            park_through(wrong)

    async def test_class_that_is_derived_from_a_safe_one_is_not_known(self, caplog: pytest.LogCaptureFixture) -> None:
        class WorksAfterSessions(SessionMiddleware):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                await super().__call__(scope, receive, send)

        class WorksAfterCORS(CORSMiddleware):
            async def simple_response(self, *arguments: Any, **keywords: Any) -> None:
                await super().simple_response(*arguments, **keywords)

        for derived, options in ((WorksAfterSessions, {"secret_key": "a"}), (WorksAfterCORS, {"allow_origins": ["*"]})):
            for expected in (2, 0):
                *_, tasks = await answers(Board(Middleware(derived, **options)), ParkingProtocol)
                assert tasks == expected
                park_through(derived)
            assert f"park_through({derived.__qualname__})" in caplog.text

    @pytest.mark.parametrize(
        ("middleware", "text"),
        [
            ([around(hides)], "hides wraps send, so each keeps its task: it is declared, but the `send`"),
            ([around(marked), around(traces)], f"park_through({traces.__name__})"),
            ([around(Undeclared)], f"park_through({Undeclared.__name__})"),
        ],
    )
    async def test_others_are_not(
        self, middleware: list[Middleware], text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        *_, tasks = await answers(Board(*middleware), ParkingProtocol)
        assert tasks == 2
        assert text in caplog.text


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
                while not difference():  # the request is handed over only when the application has returned
                    await asyncio.sleep(0.005)
                assert difference() == {way: 1}
                before = asdict(parking_statistics())
                client.writer.close()
                await board.until_waiting(0)
