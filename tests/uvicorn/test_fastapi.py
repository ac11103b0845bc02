"""FastAPI as people write it, parked and not: annotations, dependencies, background tasks, routers."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import fastapi
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.asgi import DelayedResponse, Event, EventStream
from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.serving import connected, serving

CLOSES_BEFORE_THE_RESPONSE = tuple(map(int, fastapi.__version__.split(".")[:2])) < (0, 118)
"""Whether dependencies with `yield` are closed before the response is sent."""

NOT_PARKED = ["/background"] if CLOSES_BEFORE_THE_RESPONSE else ["/background", "/session"]


class Item(BaseModel):
    name: str


class Fetch(DelayedOperation[list[Item]]):
    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> list[Item]:
        return [Item(name="news")]


purgatory = DelayedOperationPurgatory("items")
happened: list[str] = []


def fetch() -> Fetch:
    return purgatory.try_complete_else_watch(Fetch(60.0), ["items"])


def render(items: list[Item]) -> Response:
    return JSONResponse([item.model_dump() for item in items])


async def session() -> AsyncIterator[str]:
    happened.append("opened")
    try:
        yield "a session"
    finally:
        happened.append("closed")


router = APIRouter(prefix="/items")


@router.get("")
async def items() -> DelayedResponse[list[Item]]:
    return DelayedResponse(fetch(), render)


@router.get("/events")
async def events() -> EventStream[list[Item]]:
    def follow(last_event_id: str | None) -> Fetch | None:
        return None if last_event_id else fetch()

    return EventStream(follow, lambda found: [Event(item.name, id="1") for item in found])


@router.get("/tokens")
async def tokens(opened: Annotated[str, Depends(session)]) -> EventStream[str]:
    async def generate() -> AsyncGenerator[str, None]:
        happened.append("begins")
        await fetch()
        yield opened
        happened.append("ends")

    return EventStream(generate())


@router.get("/session")
async def with_session(opened: Annotated[str, Depends(session)]) -> DelayedResponse[list[Item]]:
    happened.append(f"uses {opened}")
    return DelayedResponse(fetch(), render)


@router.get("/background")
async def with_background(tasks: BackgroundTasks) -> DelayedResponse[list[Item]]:
    tasks.add_task(happened.append, "background")
    return DelayedResponse(fetch(), render)


@router.get("/model", response_model=list[Item])
async def with_model() -> Any:
    return DelayedResponse(fetch(), render)


@router.get("/sync")
def synchronous() -> DelayedResponse[list[Item]]:
    return DelayedResponse(fetch(), render)


app = FastAPI()
app.include_router(router)


async def until_waiting(count: int) -> None:
    while purgatory.num_delayed != count:
        await asyncio.sleep(0.005)


async def until_happened(event: str) -> None:
    while event not in happened:
        await asyncio.sleep(0.005)


@pytest.mark.asyncio(loop_factories=["uvloop"])
class TestFastAPI:
    @pytest.fixture(autouse=True)
    def _fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{__name__}.purgatory", DelayedOperationPurgatory("items"))
        happened.clear()

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("", b'[{"name":"news"}]'),
            ("/model", b'[{"name":"news"}]'),
            ("/events", b"id: 1\ndata:news\n\n"),
            ("/tokens", b"data:a session\n\n"),
            ("/session", b'[{"name":"news"}]'),
            ("/background", b'[{"name":"news"}]'),
        ],
    )
    async def test_answer_comes_when_the_operation_is_done(self, path: str, body: bytes, http: Any) -> None:
        async with serving(app, http) as server, connected(server) as client:
            await client.send("GET", f"/items{path}")
            await until_waiting(1)
            if http is ParkingProtocol and path not in NOT_PARKED:
                await server.until("QuietConnection")
                if path != "/tokens":  # the task stays as long as the iterator
                    await server.until_no_task()
            assert purgatory.complete_all() == 1
            response = await client.receive()
            assert (response.status, response.body) == (200, body)
            if path == "/background":
                await until_happened("background")

    async def test_dependency_with_yield_is_closed_when_fastapi_closes_it(self, http: Any) -> None:
        async with serving(app, http) as server, connected(server) as client:
            await client.send("GET", "/items/session")
            await until_waiting(1)
            await asyncio.sleep(0.05)
            before = ["closed"] if CLOSES_BEFORE_THE_RESPONSE else []
            assert happened == ["opened", "uses a session", *before]
            purgatory.complete_all()
            assert (await client.receive()).status == 200
            await until_happened("closed")

    async def test_dependency_with_yield_is_open_as_long_as_an_iterator_uses_it(self, http: Any) -> None:
        async with serving(app, http) as server, connected(server) as client:
            await client.send("GET", "/items/tokens")
            await until_waiting(1)
            await asyncio.sleep(0.05)
            if not CLOSES_BEFORE_THE_RESPONSE:
                assert happened == ["opened", "begins"]
            purgatory.complete_all()
            assert b"a session" in (await client.receive()).body
            await until_happened("closed")
            if not CLOSES_BEFORE_THE_RESPONSE:
                assert happened == ["opened", "begins", "ends", "closed"]

    @pytest.mark.parametrize("used", [False, True], ids=["new", "belongs to a loop"])
    async def test_synchronous_handler_is_told_to_be_async(
        self, http: Any, used: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with serving(app, http) as server, connected(server) as client:
            if used:
                fetch().cancel()
            assert (await client.request("GET", "/items/sync")).status == 500
        assert "make the handler async def" in caplog.text
