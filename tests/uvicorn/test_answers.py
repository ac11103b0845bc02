"""The answers of parked requests, right and wrong. `test_same_bytes.py` has those that are the same without parking."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import Response, StreamingResponse

from tests.support.operations import raising
from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, Server, connected, serving


async def test_equal_answers_have_the_headers_of_their_time(board: Board) -> None:
    async with serving(board.app, date_header=False) as server, connected(server) as client:
        for number in (b"1", b"2"):
            await client.send("GET", "/look")
            await board.until_waiting(1)
            # As uvicorn does each second, for the date.
            server.server_state.default_headers = server.config.encoded_headers = [(b"x-number", number)]
            board.pin("hello")
            assert (await client.receive()).headers["x-number"] == number.decode()
            board.notes.clear()


async def test_response_of_status_304_may_have_a_length(board: Board, client: Client) -> None:
    board.render = lambda notes: Response(status_code=304, headers={"Content-Length": "5"})
    await client.send("GET", "/look?timeout=0.01")
    assert b"content-length: 5\r\n" in await client.until(b"\r\n\r\n")
    assert (await client.request("GET", "/now")).status == 200


async def test_much_data_behind_a_parked_request_is_held_back(board: Board, client: Client) -> None:
    await client.send("GET", "/look")
    await board.until_waiting(1)
    body = b"x" * 30_000_000
    sending = asyncio.create_task(client.send("POST", "/now", body=body))
    await asyncio.sleep(0.3)
    assert client.writer.transport.get_write_buffer_size() > 20_000_000
    board.pin("hello")
    assert (await client.receive()).body == b'["hello"]'
    assert (await client.receive()).body == b"now 30000000"
    await sending


@pytest.mark.parametrize("shares", [False, True])
async def test_answers_with_one_key_are_rendered_once_and_framed_for_each_request(
    board: Board, server: Server, shares: bool
) -> None:
    board.key = (lambda notes: "the same") if shares else None
    async with AsyncExitStack() as stack:
        polls, readers = [
            [await stack.enter_async_context(connected(server)) for _ in range(20)] for _ in ("/look", "/events")
        ]
        for number, (poll, reader) in enumerate(zip(polls, readers, strict=True)):
            await poll.send("HEAD" if number else "GET", "/look", *["Connection: close"] * (number > 0))
            await reader.send("GET", "/events")
            await board.until_waiting(2 * number + 2)
        board.pin("hello")
        response = await polls[0].receive()
        assert (response.body, "connection" in response.headers) == (b'["hello"]', False)
        for poll in polls[1:]:
            response = await poll.receive("HEAD")
            assert (response.headers["content-length"], response.headers["connection"]) == ("9", "close")
        for reader in readers:
            assert await reader.until(b"id: 1\ndata:hello\n\n\r\n")
        for kind in ("look", "events"):
            assert (board.rendered.count(kind) < 20) == shares
        await board.until_waiting(20)
        board.pin("again")
        for reader in readers:
            assert await reader.until(b"id: 2\ndata:again\n\n\r\n")


def _no_bytes(size: int) -> SimpleNamespace:
    return SimpleNamespace(status_code=200, raw_headers=[(b"content-length", b"%d" % size)], body="x" * size)


@pytest.mark.parametrize(
    ("part", "wrong", "text"),
    [
        ("render", raising(), "LookupError"),
        ("render", raising(asyncio.CancelledError), "CancelledError"),
        ("render", lambda notes: Response(headers={"X": "a\nb"}), "Invalid HTTP header value"),
        ("render", lambda notes: Response(headers={"a b": "c"}), "Invalid HTTP header name"),
        ("render", lambda notes: Response(b"long", headers={"Content-Length": "3"}), "longer than Content-Length"),
        ("render", lambda notes: Response(b"short", headers={"Content-Length": "300"}), "shorter than Content-Length"),
        ("render", lambda notes: Response(status_code=99), "KeyError"),
        ("render", lambda notes: _no_bytes(3), "body must be bytes"),
        ("render", lambda notes: _no_bytes(100_000), "body must be bytes"),
        ("key", raising(), "LookupError"),
        ("key", raising(asyncio.CancelledError), "CancelledError"),
        ("key", lambda notes: [], "unhashable"),
        ("watch", lambda look: look, "hand it to try_complete_else_watch() first"),
    ],
)
async def test_bad_answer_is_a_500_and_logged(
    board: Board, client: Client, part: str, wrong: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    setattr(board, part, wrong)
    response = await client.request("GET", "/look?timeout=0.01")
    assert (response.status, response.body) == (500, b"Internal Server Error")
    assert [record.name for record in caplog.records if record.exc_info] == ["purgatory.asgi"]
    assert text in caplog.text
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
