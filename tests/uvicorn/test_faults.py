"""Faults of handlers, operations and answers of parked requests."""

from typing import Any

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, Server, connected, serving

QUIET, BUSY = "QuietConnection", "ParkingProtocol"


class TestFaults:
    @pytest.mark.parametrize(
        "render",
        [
            lambda notes: 1 / 0,
            lambda notes: Response(headers={"X": "a\nb"}),
            lambda notes: Response(headers={"a b": "c"}),
            lambda notes: Response(b"long", headers={"Content-Length": "3"}),
            lambda notes: Response(b"short", headers={"Content-Length": "300"}),
            lambda notes: Response(status_code=99),
        ],
    )
    async def test_bad_answer_is_a_500_and_logged(
        self, board: Board, server: Server, client: Client, render: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        board.render = render
        response = await client.request("GET", "/look?timeout=0.01")
        assert (response.status, response.body) == (500, b"Internal Server Error")
        assert [record.name for record in caplog.records if record.exc_info] == ["purgatory.asgi"]
        assert (await client.request("GET", "/now")).status == 200

    @pytest.mark.parametrize(
        ("answer", "text"),
        [
            ({"a": 1}, "render must return a response, not a dict: JSONResponse(value)?"),
            ("text", "render must return a response, not a str: JSONResponse(value)?"),
            (None, "render must return a response, not a NoneType: JSONResponse(value)?"),
            (StreamingResponse([]), "must return a response that has its body at once, not a StreamingResponse"),
        ],
    )
    async def test_render_that_returns_no_response_is_told_what_to_return(
        self, board: Board, http: Any, answer: Any, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        board.render = lambda notes: answer
        async with serving(board.app, http) as server, connected(server) as client:
            response = await client.request("GET", "/look?timeout=0.01")
        assert response.status == 500
        assert text in response.body.decode()
        assert text in caplog.text

    async def test_exception_of_render_is_a_500_without_parking_too(
        self, board: Board, http: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        board.render = lambda notes: 1 / 0
        async with serving(board.app, http) as server, connected(server) as client:
            response = await client.request("GET", "/look?timeout=0.01")
        assert (response.status, response.body) == (500, b"Internal Server Error")
        assert [record.name for record in caplog.records if record.exc_info] == ["purgatory.asgi"]

    async def test_failed_operation_is_a_500_and_logged(
        self, board: Board, http: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            board.pin("fail")
            response = await client.receive()
        assert (response.status, response.body) == (500, b"Internal Server Error")
        assert "a bad note" in caplog.text

    async def test_cancelled_operation_is_a_503(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            board.purgatory.cancel_for_key("board")
            response = await client.receive()
        assert (response.status, response.body) == (503, b"Service Unavailable")

    @pytest.mark.parametrize("key", [lambda notes: 1 / 0, lambda notes: []])
    async def test_bad_key_is_a_500_and_logged(
        self, board: Board, client: Client, key: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        board.key = key
        assert (await client.request("GET", "/look?timeout=0.01")).status == 500
        assert [record.name for record in caplog.records if record.exc_info] == ["purgatory.asgi"]

    async def test_operation_that_cannot_be_awaited_is_refused(
        self, board: Board, server: Server, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        board.watch = lambda look: look  # type: ignore[method-assign]
        assert (await client.request("GET", "/look")).status == 500
        assert "hand it to try_complete_else_watch() first" in caplog.text

    async def test_exception_after_parking_is_logged_and_the_answer_comes(
        self, board: Board, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await board.app(scope, receive, send)
            if scope["type"] == "http":
                assert (await receive())["type"] == "http.disconnect"
                raise ValueError("too late")

        async with serving(app) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            await server.until(QUIET)
            board.pin("hello")
            assert (await client.receive()).body == b'["hello"]'
        assert "too late" in caplog.text
