"""FastAPI as people write it, parked and not: annotations, dependencies, background tasks, routers, errors, OpenAPI."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import fastapi
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryFull
from purgatory.asgi import DelayedResponse, Event, EventStream
from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.serving import connected, serving

CLOSES_BEFORE_THE_RESPONSE = tuple(map(int, fastapi.__version__.split(".")[:2])) < (0, 118)
"""Whether dependencies with `yield` are closed before the response is sent."""


class Item(BaseModel):
    name: str


class Fetch(DelayedOperation[list[Item]]):
    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> list[Item]:
        return [Item(name="news")]


purgatory = DelayedOperationPurgatory("items", max_pending=2)
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


def user(request: Request) -> str:
    if "user" not in request.query_params:
        raise HTTPException(401, "who are you?")
    return request.query_params["user"]


router = APIRouter(prefix="/items", dependencies=[Depends(user)])


@router.get("")
async def items() -> DelayedResponse[list[Item]]:
    return DelayedResponse(fetch(), render)


@router.get("/events")
async def events() -> EventStream[list[Item]]:
    def follow(last_event_id: str | None) -> Fetch | None:
        return None if last_event_id else fetch()

    return EventStream(follow, lambda found: [Event(item.name, id="1") for item in found])


@router.get("/tokens")
async def tokens() -> EventStream[str]:
    async def generate() -> AsyncGenerator[str, None]:
        await fetch()
        yield "one"
        yield "two"

    return EventStream(generate())


@router.get("/session/tokens")
async def tokens_with_session(opened: Annotated[str, Depends(session)]) -> EventStream[str]:
    async def generate() -> AsyncGenerator[str, None]:
        happened.append("begins")
        yield "one"
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


@router.get("/dict")
async def wrong_render() -> DelayedResponse[list[Item]]:
    return DelayedResponse(fetch(), lambda found: {"items": found})  # type: ignore[arg-type,return-value]


@router.get("/sync")
def synchronous() -> DelayedResponse[list[Item]]:
    return DelayedResponse(fetch(), render)


async def full(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 503)


def application() -> FastAPI:
    app = FastAPI(exception_handlers={PurgatoryFull: full})
    app.include_router(router)
    below = FastAPI(exception_handlers={PurgatoryFull: full})
    below.include_router(router)
    app.mount("/below", below)
    return app


async def until_waiting(count: int) -> None:
    while purgatory.num_delayed != count:
        await asyncio.sleep(0.005)


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("prefix", ["", "/below"])
class TestFastAPI:
    @pytest.fixture(autouse=True)
    def _fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{__name__}.purgatory", DelayedOperationPurgatory("items", max_pending=2))
        happened.clear()

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("", b'[{"name":"news"}]'),
            ("/model", b'[{"name":"news"}]'),
            ("/events", b"id: 1\ndata:news\n\n"),
            ("/tokens", b"data:one\n\ndata:two\n\n"),
            ("/session", b'[{"name":"news"}]'),
            ("/background", b'[{"name":"news"}]'),
        ],
    )
    async def test_answer_comes_when_the_operation_is_done(
        self, path: str, body: bytes, prefix: str, http: Any
    ) -> None:
        async with serving(application(), http) as server, connected(server) as client:
            await client.send("GET", f"{prefix}/items{path}?user=me")
            await until_waiting(1)
            if http is ParkingProtocol and path != "/background":
                await server.until("QuietConnection")
                if path != "/tokens":  # the task stays as long as the iterator
                    await server.until_no_task()
            assert purgatory.complete_all() == 1
            response = await client.receive()
            assert (response.status, response.body) == (200, body)
            if path == "/session":
                while "closed" not in happened:
                    await asyncio.sleep(0.005)
                assert happened == ["opened", "uses a session", "closed"]
            if path == "/background":
                while not happened:
                    await asyncio.sleep(0.005)

    async def test_dependency_with_yield_is_closed_when_the_request_is_parked(self, prefix: str) -> None:
        """So a thousand clients that wait do not hold a thousand connections of a database."""
        async with serving(application()) as server, connected(server) as client:
            await client.send("GET", f"{prefix}/items/session?user=me")
            await until_waiting(1)
            while "closed" not in happened:
                await asyncio.sleep(0.005)
            assert purgatory.num_delayed == 1

    async def test_dependency_with_yield_is_open_as_long_as_an_iterator_uses_it(self, prefix: str, http: Any) -> None:
        async with serving(application(), http) as server, connected(server) as client:
            await client.send("GET", f"{prefix}/items/session/tokens?user=me")
            await until_waiting(1)
            await asyncio.sleep(0.05)
            if not CLOSES_BEFORE_THE_RESPONSE:
                assert happened == ["opened", "begins"]
            purgatory.complete_all()
            assert b"a session" in (await client.receive()).body
            while "closed" not in happened:
                await asyncio.sleep(0.005)
            if not CLOSES_BEFORE_THE_RESPONSE:
                assert happened == ["opened", "begins", "ends", "closed"]

    async def test_handlers_of_exceptions_answer_what_a_handler_raises(self, prefix: str, http: Any) -> None:
        async with serving(application(), http) as server, connected(server) as client:
            refused = await client.request("GET", f"{prefix}/items")
            assert (refused.status, refused.body) == (401, b'{"detail":"who are you?"}')
            for count in (1, 2):
                async with connected(server) as another:
                    await another.send("GET", f"{prefix}/items?user=me")
                    await until_waiting(count)
                    if count == 2:
                        continue
                    async with connected(server) as third:
                        await third.send("GET", f"{prefix}/items?user=me")
                        await until_waiting(2)
                        response = await client.request("GET", f"{prefix}/items?user=me")
                        assert response.status == 503
                        assert b"2" in response.body
                break

    async def test_wrong_render_is_told_what_to_return(
        self, prefix: str, http: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with serving(application(), http) as server, connected(server) as client:
            await client.send("GET", f"{prefix}/items/dict?user=me")
            await until_waiting(1)
            purgatory.complete_all()
            response = await client.receive()
            assert response.status == 500
            for text in (response.body.decode(), caplog.text):
                assert "render must return a response, not a dict: JSONResponse(value)?" in text

    async def test_synchronous_handler_is_told_to_be_async(
        self, prefix: str, http: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with serving(application(), http) as server:
            for used in (False, True):  # without and with a loop that the purgatory belongs to already
                async with connected(server) as client:
                    if used:
                        fetch().cancel()
                    assert (await client.request("GET", f"{prefix}/items/sync?user=me")).status == 500
                    assert "make the handler async def" in caplog.text
                    caplog.clear()


def test_openapi_describes_the_routes() -> None:
    paths = application().openapi()["paths"]
    names = ["", "/events", "/tokens", "/session/tokens", "/session", "/background", "/model", "/dict", "/sync"]
    assert set(paths) == {f"/items{name}" for name in names}
    content = paths["/items/model"]["get"]["responses"]["200"]["content"]
    assert content["application/json"]["schema"]["items"] == {"$ref": "#/components/schemas/Item"}


def test_media_type_of_events_can_be_described() -> None:
    app = FastAPI()
    app.get("/events", response_class=Response, responses={200: {"content": {"text/event-stream": {}}}})(events)
    content = app.openapi()["paths"]["/events"]["get"]["responses"]["200"]["content"]
    assert list(content) == ["text/event-stream"]
