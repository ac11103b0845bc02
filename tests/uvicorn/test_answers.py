"""The answers of parked requests. `test_same_bytes.py` has those that are the same without parking."""

import asyncio
from contextlib import AsyncExitStack

from starlette.responses import Response

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
    assert not sending.done()
    board.pin("hello")
    assert (await client.receive()).body == b'["hello"]'
    assert (await client.receive()).body == b"now 30000000"
    await sending


class TestOneAnswerForMany:
    async def test_answers_with_one_key_are_rendered_once(self, board: Board, server: Server) -> None:
        board.key = tuple
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(server)) for _ in range(20)]
            for client in clients:
                await client.send("GET", "/look")
            await board.until_waiting(20)
            assert board.pin("hello") == 20
            assert [(await client.receive()).body for client in clients] == [b'["hello"]'] * 20
            assert len(board.rendered) < 20

    async def test_answers_with_one_key_are_framed_for_each_request(self, board: Board, server: Server) -> None:
        board.key = tuple
        async with connected(server) as one, connected(server) as other:
            await one.send("GET", "/look", "Connection: close")
            await other.send("HEAD", "/look")
            await board.until_waiting(2)
            board.pin("a")
            response = await one.receive()
            assert (response.body, response.headers["connection"]) == (b'["a"]', "close")
            response = await other.receive("HEAD")
            assert response.headers["content-length"] == "5"
            assert "connection" not in response.headers

    async def test_each_answer_without_a_key_is_rendered(self, board: Board, server: Server) -> None:
        async with connected(server) as one, connected(server) as other:
            for client in (one, other):
                await client.send("GET", "/look")
            await board.until_waiting(2)
            board.pin("hello")
            for client in (one, other):
                assert (await client.receive()).body == b'["hello"]'
            assert board.rendered == [["hello"], ["hello"]]
