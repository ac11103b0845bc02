"""Answers of parked requests that go through middlewares, at odd moments."""

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Send

from purgatory.asgi import EventStream
from purgatory.connections import QuietTransport
from tests.uvicorn.board import Board
from tests.uvicorn.middlewares import PARKED, wrapping
from tests.uvicorn.serving import connected, serving

SAMPLE = 60
"""Clients."""


def iterated(generate: Callable[[], AsyncGenerator[str, None]], middleware: Middleware) -> Starlette:
    """An application with a stream of what `generate` yields."""

    async def handler(request: Request) -> Any:
        return EventStream(generate(), heartbeat=0.02)

    return Starlette(routes=[Route("/", handler)], middleware=[middleware])


class Gate:
    """A declared middleware that lets pass the messages of responses while it is open."""

    def __init__(self, holds: Callable[[Message], bool] = lambda message: True) -> None:
        self.open = asyncio.Event()
        self.holds = holds
        self.middleware = wrapping(self._pass)

    async def _pass(self, message: Message, send: Send) -> None:
        if message["type"].startswith("http.") and self.holds(message):
            await self.open.wait()
        await send(message)


def is_cold(connection: Any) -> bool:
    return isinstance(connection.transport, QuietTransport) and connection.transport.is_cold()


class TestThrough:
    @pytest.mark.parametrize("sends", ["start", "body"])
    async def test_middleware_that_raises_is_logged_and_the_client_gets_an_error(
        self, sends: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        faults = [ValueError("a bad middleware")]

        async def raises(message: Message, send: Send) -> None:
            if message["type"] == f"http.response.{sends}" and faults:
                raise faults.pop()
            await send(message)

        board = Board(wrapping(raises))
        async with serving(board.app) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            board.pin("hello")
            assert (await client.receive()).status == 500
            assert "a bad middleware" in caplog.text

    async def test_middleware_that_raises_after_it_has_waited_closes_the_connection(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def raises(message: Message, send: Send) -> None:
            await asyncio.sleep(0.001)
            if message:
                raise ValueError("a bad middleware")
            await send(message)

        board = Board(wrapping(raises))
        for target in ("/look?timeout=0.01", "/events", "/tokens"):
            async with serving(board.app) as server, connected(server) as client:
                await client.send("GET", target)
                assert await client.ended()
                await server.until_no_task()
                assert "a bad middleware" in caplog.text
                caplog.clear()

    async def test_connection_goes_on_though_a_middleware_raises_when_all_is_sent(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def raises_at_the_end(message: Message, send: Send) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                await asyncio.sleep(0.001)
                raise ValueError("a bad middleware")

        board = Board(wrapping(raises_at_the_end))
        async with serving(board.app) as server, connected(server) as client:
            for _ in range(2):
                assert (await client.request("GET", "/look?timeout=0.01")).body == b"[]"
                while "a bad middleware" not in caplog.text:
                    await asyncio.sleep(0.005)
                caplog.clear()

    async def test_server_that_cancels_the_task_of_a_waiting_middleware_closes_the_connection(self) -> None:
        board = Board(Gate().middleware)
        async with serving(board.app) as server, connected(server) as client:
            await client.send("GET", "/look")
            await board.until_waiting(1)
            await server.until_no_task()
            before = asyncio.all_tasks()
            board.pin("hello")
            while not (new := asyncio.all_tasks() - before):
                await asyncio.sleep(0)
            for task in new:
                task.cancel()
            assert await client.ended()

    async def test_scope_is_left_to_tasks_that_the_handler_has_started(self) -> None:
        board = Board(PARKED["cors"], PARKED["session"], kind="fastapi")

        async def read(request: Request) -> tuple[Any, ...]:
            await board.until_waiting(1)
            await asyncio.sleep(0.05)
            return request.url.path, dict(request.session), "origin" in request.headers

        async def look_and_read(request: Request) -> Any:
            tasks.append(asyncio.create_task(read(request)))
            return await board.look(request)

        tasks: list[asyncio.Task[Any]] = []
        board.app.get("/read", response_model=None)(look_and_read)
        async with serving(board.app) as server, connected(server) as client:
            await client.send("GET", "/read", "Origin: http://a.example")
            await board.until_waiting(1)
            await server.until("QuietConnection")
            assert await tasks[0] == ("/read", {"seen": "1"}, True)

    @pytest.mark.parametrize("pauses", range(6))
    @pytest.mark.parametrize("items", [0, 2])
    async def test_nothing_is_lost_between_a_wait_and_its_end(self, pauses: int, items: int) -> None:
        async def yields(message: Message, send: Send) -> None:
            await asyncio.sleep(0)
            await send(message)

        async def generate() -> AsyncGenerator[str, None]:
            for number in range(items):
                for _ in range(pauses):
                    await asyncio.sleep(0)
                yield str(number)
            for _ in range(pauses):
                await asyncio.sleep(0)

        async with serving(iterated(generate, wrapping(yields))) as server, connected(server) as client:
            response = await client.request("GET", "/")
            assert response.body.replace(b":\n\n", b"") == b"".join(b"data:%d\n\n" % each for each in range(items))

    async def test_middleware_that_raises_at_a_heartbeat_closes_the_connection(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def raises(message: Message, send: Send) -> None:
            if message.get("body") == b":\n\n":
                raise ValueError("a bad middleware")
            await send(message)

        async def generate() -> AsyncGenerator[str, None]:
            await asyncio.Event().wait()
            yield "never"

        async with serving(iterated(generate, wrapping(raises))) as server, connected(server) as client:
            await client.send("GET", "/")
            await client.until(b"\r\n\r\n")
            assert await client.ended()
            assert "a bad middleware" in caplog.text
            await server.until_no_task()

    async def test_stream_asks_for_nothing_while_a_middleware_waits(self) -> None:
        gate = Gate()
        gate.open.set()
        board = Board(gate.middleware)
        async with serving(board.app) as server, connected(server) as client:
            await client.send("GET", "/events")
            await board.until_waiting(1)
            gate.open.clear()
            board.pin("hello")
            await server.until_no_task()
            for _ in range(5):
                await asyncio.sleep(0)
            assert (board.purgatory.num_delayed, len(board.looks)) == (0, 1)
            gate.open.set()
            await board.until_waiting(1)

    @pytest.mark.parametrize("held", ["events", "end"])
    async def test_shutdown_while_a_middleware_waits_cuts_nothing_off(self, held: str) -> None:
        def holds(message: Message) -> bool:
            is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
            return is_end if held == "end" else b"data:end" in message.get("body", b"")

        gate = Gate(holds)
        board = Board(gate.middleware)
        async with serving(board.app) as server, connected(server) as client:
            await client.send("GET", "/events")
            await board.until_waiting(1)
            board.pin("end")
            await asyncio.sleep(0.05)
            server.should_exit = True
            await asyncio.sleep(0.3)
            gate.open.set()
            assert b"data:end" in await client.until(b"0\r\n\r\n")

    @pytest.mark.asyncio(loop_factories=["uvloop"])
    async def test_what_the_wrappers_do_not_need_is_let_go(self, temperature: str) -> None:
        """A client takes two KiB more, whatever its headers are, and the request's objects are freed."""

        async def size(*middleware: Middleware) -> float:
            board = Board(*middleware, kind="fastapi")
            headers = [f"X-Header-{number}: {'x' * 100}" for number in range(20)]
            async with serving(board.app) as server, contextlib.AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(connected(server)) for _ in range(SAMPLE + 20)]
                sizes = []
                for some in (clients[:20], clients[20:]):
                    for client in some:
                        await client.send("GET", "/look", "Origin: http://a.example", *headers)
                    await server.until(*["QuietConnection"] * len(clients))
                    await board.until_waiting(20 if some == clients[:20] else len(clients))
                    while temperature == "cold" and not all(map(is_cold, server.server_state.connections)):
                        await asyncio.sleep(0.005)
                    await asyncio.sleep(0.01)
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
                board.purgatory.cancel_all()
            return (sizes[1] - sizes[0]) / SAMPLE

        tracemalloc.start()
        try:
            await size()
            alone = await size()
            behind = await size(PARKED["cors"], PARKED["session"])
        finally:
            tracemalloc.stop()
        assert behind - alone < 2500
