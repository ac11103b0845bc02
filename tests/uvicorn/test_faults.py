"""Faults of handlers, operations and answers of parked requests."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, connected, serving


def _cancelled(notes: list[str]) -> Any:
    raise asyncio.CancelledError


def _no_bytes(size: int) -> SimpleNamespace:
    return SimpleNamespace(status_code=200, raw_headers=[(b"content-length", b"%d" % size)], body="x" * size)


@pytest.mark.parametrize(
    "render",
    [
        lambda notes: 1 / 0,
        _cancelled,
        lambda notes: Response(headers={"X": "a\nb"}),
        lambda notes: Response(headers={"a b": "c"}),
        lambda notes: Response(b"long", headers={"Content-Length": "3"}),
        lambda notes: Response(b"short", headers={"Content-Length": "300"}),
        lambda notes: Response(status_code=99),
        lambda notes: _no_bytes(3),
        lambda notes: _no_bytes(100_000),
    ],
)
async def test_bad_answer_is_a_500_and_logged(
    board: Board, client: Client, render: Any, caplog: pytest.LogCaptureFixture
) -> None:
    board.render = render
    response = await client.request("GET", "/look?timeout=0.01")
    assert (response.status, response.body) == (500, b"Internal Server Error")
    assert [record.name for record in caplog.records if record.exc_info] == ["purgatory.asgi"]
    assert (await client.request("GET", "/now")).status == 200


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"a": 1}, "render must return a response, not a dict: return JSONResponse(value)"),
        (StreamingResponse([]), "must return a response that has its body at once, not a StreamingResponse"),
    ],
)
async def test_render_that_returns_no_response_is_told_what_to_return(
    board: Board, client: Client, answer: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    board.render = lambda notes: answer
    response = await client.request("GET", "/look?timeout=0.01")
    assert response.status == 500
    assert text in response.body.decode()
    assert text in caplog.text


@pytest.mark.parametrize(
    ("end", "answer", "logged"),
    [
        (lambda board: board.pin("hello"), (500, b"Internal Server Error"), ["division by zero"]),
        (lambda board: board.pin("fail"), (500, b"Internal Server Error"), ["a bad note"]),
        (lambda board: board.purgatory.cancel_for_key("board"), (503, b"Service Unavailable"), []),
    ],
    ids=["render raises", "operation fails", "operation is cancelled"],
)
async def test_faults_have_the_same_answers_without_parking(
    board: Board, http: Any, end: Any, answer: Any, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    board.render = lambda notes: 1 / 0
    async with serving(board.app, http) as server, connected(server) as client:
        await client.send("GET", "/look")
        await board.until_waiting(1)
        end(board)
        response = await client.receive()
    assert (response.status, response.body) == answer
    records = [record for record in caplog.records if record.name == "purgatory.asgi"]
    assert [str(record.exc_info[1]) for record in records if record.exc_info] == logged


@pytest.mark.parametrize("key", [lambda notes: 1 / 0, lambda notes: [], _cancelled])
async def test_bad_key_is_a_500_and_logged(
    board: Board, client: Client, key: Any, caplog: pytest.LogCaptureFixture
) -> None:
    board.key = key
    assert (await client.request("GET", "/look?timeout=0.01")).status == 500
    assert [record.name for record in caplog.records if record.exc_info] == ["purgatory.asgi"]


async def test_operation_that_cannot_be_awaited_is_refused(
    board: Board, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    board.watch = lambda look: look  # type: ignore[method-assign]
    assert (await client.request("GET", "/look")).status == 500
    assert "hand it to try_complete_else_watch() first" in caplog.text


async def test_exception_after_parking_is_logged_and_the_answer_comes(
    board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await board.app(scope, receive, send)
        if scope["type"] == "http":
            assert (await receive())["type"] == "http.disconnect"
            raise ValueError("too late")

    async with serving(app) as server, connected(server) as client:
        await client.send("GET", "/look")
        await board.until_waiting(1)
        await server.until("QuietConnection")
        board.pin("hello")
        assert (await client.receive()).body == b'["hello"]'
    assert "too late" in caplog.text
