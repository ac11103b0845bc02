"""What remains of a parked request, and of an idle connection."""

import asyncio
import weakref
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from purgatory.uvicorn import ParkingProtocol
from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, Server, connected, serving

QUIET, BUSY = "QuietConnection", "ParkingProtocol"


@pytest.mark.usefixtures("by_reference_count_alone")
async def test_a_request_that_is_answered_is_freed_at_once() -> None:
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
        async with connected(server) as client:
            for _ in range(5):
                await client.request("GET", "/")
            await server.until_no_task()
            assert [cycle() is None for cycle in cycles] == [True] * 4 + [False]  # the connection has the last one
        await server.until()
        await asyncio.sleep(0)
        assert cycles[-1]() is None


@pytest.mark.usefixtures("by_reference_count_alone")
async def test_parked_request_keeps_neither_task_nor_request_nor_parser(
    board: Board, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref[object]] = []
    run_asgi = RequestResponseCycle.run_asgi

    async def noted(cycle: RequestResponseCycle, app: Any) -> None:
        protocol: Any = cycle.on_response.__self__  # type: ignore[attr-defined]
        task = asyncio.current_task()
        assert task is not None
        alive.extend(map(weakref.ref, (cycle, protocol, protocol.flow, cycle.message_event, task)))
        await run_asgi(cycle, app)

    monkeypatch.setattr(RequestResponseCycle, "run_asgi", noted)
    tasks = asyncio.all_tasks()
    await client.send("GET", "/look")
    await board.until_waiting(1)
    await server.until(QUIET)
    await asyncio.sleep(0)
    assert [ref() for ref in alive] == [None] * 5
    assert asyncio.all_tasks() == tasks
    await server.until_no_task()


async def test_an_idle_connection_becomes_small(server: Server, client: Client) -> None:
    await server.until(QUIET)  # it has not sent anything yet
    assert (await client.request("GET", "/now")).status == 200
    assert server.connections == [BUSY]
    await server.until(QUIET)
    assert (await client.request("GET", "/now")).status == 200


async def test_a_connection_becomes_small_when_its_last_request_is_long_ago_and_not_before(board: Board) -> None:
    class Later(ParkingProtocol):
        settle_after = 0.3

    async with serving(board.app, Later) as server, connected(server) as client:
        clock = asyncio.get_running_loop()
        assert (await client.request("GET", "/now")).status == 200
        await asyncio.sleep(0.2)
        began = clock.time()
        assert (await client.request("GET", "/now")).status == 200
        await server.until(QUIET)
        assert clock.time() - began >= Later.settle_after - 0.001  # uvloop's clock counts whole milliseconds


async def test_a_connection_with_half_a_request_stays_as_it_is(server: Server, client: Client) -> None:
    client.writer.write(b"GET /now HT")
    await asyncio.sleep(3 * ParkingProtocol.settle_after)
    assert server.connections == [BUSY]
    client.writer.write(b"TP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await client.receive()).body == b"now 0"
    await server.until(QUIET)


@pytest.mark.parametrize(
    ("path", "behind"), [("/now", b""), ("/look?timeout=0.1", b""), ("/look?timeout=0.1", b"\r\n")]
)
async def test_keep_alive_timeout_closes_the_connection(board: Board, path: str, behind: bytes) -> None:
    async with serving(board.app, timeout_keep_alive=0.3) as server, connected(server) as client:
        began = asyncio.get_running_loop().time()
        await client.send("GET", path)
        if behind:
            await board.until_waiting(1)
            await client.write(behind)
        assert (await client.receive()).status == 200
        assert await client.ended()
        assert asyncio.get_running_loop().time() - began >= 0.3
        await server.until()


async def test_a_connection_that_never_sends_has_no_timeout(board: Board) -> None:
    async with serving(board.app, timeout_keep_alive=0) as server, connected(server) as client:
        await server.until(QUIET)
        await asyncio.sleep(0.2)
        assert (await client.request("GET", "/now")).status == 200
