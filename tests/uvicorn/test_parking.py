"""The remains of a parked request, and the extension that parks it."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from purgatory.asgi.interface import EXTENSION
from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, Server, connected, serving

QUIET, BUSY = "QuietConnection", "ParkingProtocol"


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Objects are freed by their counts of references alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class TestWhatRemains:
    @pytest.mark.usefixtures("no_collector")
    async def test_a_request_that_is_answered_is_freed_at_once(self) -> None:
        """Its headers were in a cycle, and a client with many of them filled the memory of a server."""
        cycles: list[weakref.ref[object]] = []

        class Recorded(ParkingProtocol):
            def on_headers_complete(self) -> None:
                super().on_headers_complete()
                cycles.append(weakref.ref(self.cycle))

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        async with serving(app, Recorded, lifespan="off") as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for _ in range(5):
                writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
            await server.until_no_task()
            assert [cycle() is None for cycle in cycles] == [True] * 4 + [False]  # the connection has the last one
            writer.close()
            await writer.wait_closed()
            await server.until()
            await asyncio.sleep(0)
            assert cycles[-1]() is None

    @pytest.mark.usefixtures("no_collector")
    async def test_parked_request_keeps_neither_task_nor_request_nor_parser(
        self, board: Board, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alive: list[weakref.ref[object]] = []
        run_asgi = RequestResponseCycle.run_asgi

        async def noted(cycle: RequestResponseCycle, app: Any) -> None:
            protocol: Any = cycle.on_response.__self__  # type: ignore[attr-defined]
            alive.extend(map(weakref.ref, (cycle, protocol, protocol.flow, cycle.message_event)))
            task = asyncio.current_task()
            assert task is not None
            alive.append(weakref.ref(task))
            await run_asgi(cycle, app)

        monkeypatch.setattr(RequestResponseCycle, "run_asgi", noted)
        tasks = asyncio.all_tasks()
        await client.send("GET", "/look")
        await board.until_waiting(1)
        await server.until(QUIET)
        await asyncio.sleep(0)
        assert len(alive) == 5
        assert [ref() for ref in alive] == [None] * 5
        assert asyncio.all_tasks() == tasks
        await server.until_no_task()

    async def test_the_connection_goes_on_after_the_answer(self, board: Board, server: Server, client: Client) -> None:
        for number in range(3):
            await client.send("GET", f"/look?seen={number}")
            await board.until_waiting(1)
            assert server.connections == [QUIET]
            board.pin(f"note {number}")
            response = await client.receive()
            assert (response.status, response.body) == (200, f'["note {number}"]'.encode())
            assert (await client.request("GET", "/now")).body == b"now 0"
        assert server.server_state.total_requests == 6

    async def test_an_idle_connection_becomes_small(self, server: Server, client: Client) -> None:
        await server.until(QUIET)  # it has not sent anything yet
        assert (await client.request("GET", "/now")).status == 200
        assert server.connections == [BUSY]
        await server.until(QUIET)
        assert (await client.request("GET", "/now")).status == 200

    async def test_a_connection_with_half_a_request_stays_as_it_is(self, server: Server, client: Client) -> None:
        await client.write(b"GET /now HT")
        await asyncio.sleep(5 * ParkingProtocol.settle_after)
        assert server.connections == [BUSY]
        await client.write(b"TP/1.1\r\nHost: localhost\r\n\r\nGET /n")
        assert (await client.receive()).body == b"now 0"
        await asyncio.sleep(5 * ParkingProtocol.settle_after)
        assert server.connections == [BUSY]
        await client.write(b"ow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await client.receive()).body == b"now 0"
        await server.until(QUIET)

    @pytest.mark.parametrize("path", ["/now", "/look?timeout=0.01"])
    async def test_keep_alive_timeout_closes_the_connection(self, board: Board, path: str) -> None:
        async with serving(board.app, timeout_keep_alive=1) as server, connected(server) as client:
            began = asyncio.get_running_loop().time()
            assert (await client.request("GET", path)).status == 200
            assert await client.ended()
            assert asyncio.get_running_loop().time() - began >= 1
            assert server.connections == []

    async def test_a_connection_that_never_sends_has_no_timeout(self, board: Board) -> None:
        async with serving(board.app, timeout_keep_alive=0) as server, connected(server) as client:
            await server.until(QUIET)
            await asyncio.sleep(0.2)
            assert (await client.request("GET", "/now")).status == 200


class TestTheExtension:
    async def test_wrong_messages_are_refused_and_change_nothing(self) -> None:
        parked: list[Any] = []

        class Listener:
            def returned(self) -> None: ...

            def disconnected(self) -> None: ...

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            park = scope["extensions"][EXTENSION]["park"]
            assert park(receive, Listener()) is None
            parked.append(park(send, Listener()))
            assert (await receive())["type"] == "http.disconnect"
            await send({"type": "http.response.start", "status": 200})

        async with serving(app, lifespan="off") as server, connected(server) as client:
            await client.send("GET", "/")
            await server.until(QUIET)
            start = {"type": "http.response.start", "status": 200, "headers": [(b"Transfer-Encoding", b"chunked")]}
            body = {"type": "http.response.body", "body": b"abc"}
            for wrong in ((body,), (start, start), (start, {"type": "other"}), (start, body, body)):
                with pytest.raises(RuntimeError, match="Unexpected ASGI message"):
                    parked[0].send(*wrong)
            parked[0].send(start)
            parked[0].send({**body, "more_body": True}, {**body, "body": b"", "more_body": True})
            parked[0].send(body)
            assert (await client.receive()).body == b"abcabc"
            with pytest.raises(RuntimeError, match="the response is complete"):
                parked[0].send(body)

    async def test_messages_after_a_disconnect_are_dropped(self, board: Board, server: Server, client: Client) -> None:
        await client.send("GET", "/look")
        await board.until_waiting(1)
        (quiet,) = server.server_state.connections
        board.pin("hello")
        quiet.transport.abort()  # its protocol is told after the answer
        await server.until()
        assert board.rendered == [["hello"]]
