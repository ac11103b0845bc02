"""The answers of parked requests, which are those of requests that are not."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, Server, connected, serving

QUIET, BUSY = "QuietConnection", "ParkingProtocol"


class TestAnswers:
    """Each of these holds without parking too, but for what is parked."""

    async def test_head_has_no_body(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.send("HEAD", "/look?timeout=0.01")
            response = await client.receive("HEAD")
            assert (response.status, response.body, response.headers["content-length"]) == (200, b"", "2")
            assert (await client.request("GET", "/now")).body == b"now 0"

    async def test_equal_answers_have_the_headers_of_their_time(self, board: Board) -> None:
        async with serving(board.app, date_header=False) as server, connected(server) as client:
            for number in (b"1", b"2"):
                await client.send("GET", "/look")
                await board.until_waiting(1)
                # As uvicorn does each second, for the date.
                server.server_state.default_headers = server.config.encoded_headers = [(b"x-number", number)]
                board.pin("hello")
                assert (await client.receive()).headers["x-number"] == number.decode()
                board.notes.clear()

    @pytest.mark.parametrize("close", ["HTTP/1.0", "Connection: close"])
    async def test_connection_closes_when_the_client_asks_for_it(self, board: Board, http: Any, close: str) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            if close == "HTTP/1.0":
                await client.send("GET", "/look", version="1.0")
            else:
                await client.send("GET", "/look", close)
            await board.until_waiting(1)
            board.pin("hello")
            response = await client.receive()
            assert (response.body, response.headers["connection"]) == (b'["hello"]', "close")
            assert await client.ended()

    async def test_connection_closes_when_the_answer_says_so(self, board: Board, http: Any) -> None:
        board.render = lambda notes: JSONResponse(notes, headers={"Connection": "Close"})
        async with serving(board.app, http) as server, connected(server) as client:
            response = await client.request("GET", "/look?timeout=0.01")
            assert (response.body, response.headers["connection"]) == (b"[]", "Close")
            assert await client.ended()

    async def test_answer_has_headers_of_the_server_and_its_own(self, board: Board, http: Any) -> None:
        board.render = lambda notes: Response(b"x", 203, {"X-Own": "1"}, "image/own")
        async with serving(board.app, http, headers=[("x-server", "2")]) as server, connected(server) as client:
            response = await client.request("GET", "/look?timeout=0.01")
            del response.headers["date"]
            assert response.status == 203
            assert response.headers == {
                "server": "uvicorn",
                "x-server": "2",
                "x-own": "1",
                "content-length": "1",
                "content-type": "image/own",
            }

    @pytest.mark.parametrize("status", [204, 304])
    async def test_status_without_a_body_keeps_the_connection(self, board: Board, http: Any, status: int) -> None:
        board.render = lambda notes: Response(status_code=status)
        async with serving(board.app, http) as server, connected(server) as client:
            assert (await client.request("GET", "/look?timeout=0.01")).status == status
            assert (await client.request("GET", "/now")).status == 200

    async def test_answer_without_a_length_is_chunked(self, board: Board, http: Any) -> None:
        def render(notes: list[str]) -> Response:
            response = Response(b"unknown")
            del response.headers["content-length"]
            return response

        board.render = render
        async with serving(board.app, http) as server, connected(server) as client:
            response = await client.request("GET", "/look?timeout=0.01")
            assert (response.headers["transfer-encoding"], response.body) == ("chunked", b"unknown")
            assert (await client.request("GET", "/now")).status == 200

    async def test_large_answer_arrives_whole(self, board: Board, http: Any) -> None:
        board.render = lambda notes: Response(bytes(range(256)) * 20_000)
        async with serving(board.app, http) as server, connected(server) as client:
            assert (await client.request("GET", "/look?timeout=0.01")).body == bytes(range(256)) * 20_000
            assert (await client.request("GET", "/now")).status == 200

    async def test_request_bodies_are_accepted_whether_read_or_left(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            for body in (b"small", b"x" * 300_000):
                for read in ("read", "left"):
                    response = await client.request("POST", f"/look?timeout=0.01&body={read}", body=body)
                    assert response.body == b"[]"
            assert (await client.request("POST", "/now", body=b"12345")).body == b"now 5"

    async def test_body_that_comes_while_the_handler_waits_is_accepted(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.write(b"POST /look HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12")
            await board.until_waiting(1)
            assert server.connections == [http.__name__]
            await client.write(b"345")
            await asyncio.sleep(0.05)
            board.pin("hello")
            assert (await client.receive()).body == b'["hello"]'
            assert (await client.request("POST", "/now", body=b"12345")).body == b"now 5"

    @pytest.mark.parametrize("read", ["read", "left"])
    async def test_request_that_expects_100_continue_is_answered(self, board: Board, http: Any, read: str) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            head = f"POST /look?timeout=0.2&body={read} HTTP/1.1\r\nHost: localhost\r\n"
            await client.write((head + "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n").encode())
            if read == "read":
                await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
                await client.write(b"12345")
            else:
                await client.write(b"12345")
            assert b"200 OK" in await client.until(b"\r\n\r\n[]")

    async def test_pipelined_requests_stay_behind_one_that_waits(self, board: Board, http: Any) -> None:
        look, now = (f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in ("/look", "/now"))
        for together in (True, False):
            board.notes.clear()
            async with serving(board.app, http) as server, connected(server) as client:
                if together:
                    await client.write(look + now + now)
                    await board.until_waiting(1)
                else:
                    await client.write(look)
                    await board.until_waiting(1)
                    await client.write(now[:9])
                    await asyncio.sleep(0.02)
                    await client.write(now[9:] + now)
                assert await client.is_silent()
                board.pin("hello")
                assert [(await client.receive()).body for _ in range(3)] == [b'["hello"]', b"now 0", b"now 0"]
                assert (await client.request("GET", "/now")).status == 200

    async def test_next_request_that_begins_in_the_same_packet_is_answered(self, board: Board, http: Any) -> None:
        async with serving(board.app, http) as server, connected(server) as client:
            await client.write(b"GET /look HTTP/1.1\r\nHost: localhost\r\n\r\nPOST /now HTTP/1.1\r\nHost: localh")
            await board.until_waiting(1)
            board.pin("hello")
            assert (await client.receive()).body == b'["hello"]'
            await client.write(b"ost\r\nContent-Length: 3\r\n\r\n123")
            assert (await client.receive()).body == b"now 3"

    async def test_much_data_behind_a_parked_request_is_held_back(self, board: Board, client: Client) -> None:
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

    async def test_answers_with_other_keys_differ(self, board: Board, server: Server) -> None:
        board.key = tuple
        board.notes += ["a", "b"]
        async with connected(server) as one, connected(server) as other:
            await one.send("GET", "/look?seen=2")
            await other.send("HEAD", "/look?seen=2")
            await board.until_waiting(2)
            board.pin("c")
            assert (await one.receive()).body == b'["c"]'
            assert (await other.receive("HEAD")).headers["content-length"] == "5"
            await one.send("GET", "/look?seen=3", "Connection: close")
            await other.send("GET", "/look?seen=3")
            await board.until_waiting(2)
            board.pin("d")
            assert (await one.receive()).headers["connection"] == "close"
            assert "connection" not in (await other.receive()).headers

    async def test_each_answer_without_a_key_is_rendered(self, board: Board, server: Server) -> None:
        async with connected(server) as one, connected(server) as other:
            for client in (one, other):
                await client.send("GET", "/look")
            await board.until_waiting(2)
            board.pin("hello")
            for client in (one, other):
                assert (await client.receive()).body == b'["hello"]'
            assert board.rendered == [["hello"], ["hello"]]
