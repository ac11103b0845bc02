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
from purgatory.uvicorn import ParkingProtocol
from purgatory.uvicorn.cold import ColdTransport
from tests.uvicorn.middlewares import PARKED, Application, answers, wrapping
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
    return isinstance(connection.transport, ColdTransport)


class TestThrough:
    async def test_connection_goes_on_after_the_answer(self) -> None:
        application = Application("starlette", PARKED["cors"], PARKED["session"])
        async with serving(application.app) as server, connected(server) as client:
            for _ in range(3):
                await client.send("GET", "/poll", "Origin: http://a.example")
                await application.until_waiting(1)
                await server.until("QuietConnection")
                application.purgatory.complete_all()
                assert (await client.receive()).headers["access-control-allow-origin"] == "*"

    async def test_client_that_disconnects_leaves_its_operation(self) -> None:
        application = Application("fastapi", PARKED["cors"])
        for target in ("/poll", "/events"):
            async with serving(application.app) as server, connected(server) as client:
                await client.send("GET", target)
                await application.until_waiting(1)
                await server.until("QuietConnection")
                client.writer.close()
                await application.until_waiting(0)

    @pytest.mark.parametrize("sends", ["start", "body"])
    async def test_middleware_that_raises_is_logged_and_the_client_gets_an_error(
        self, sends: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        faults = [ValueError("a bad middleware")]

        async def raises(message: Message, send: Send) -> None:
            if message["type"] == f"http.response.{sends}" and faults:
                raise faults.pop()
            await send(message)

        application = Application("starlette", wrapping(raises))
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/poll")
            await application.until_waiting(1)
            application.purgatory.complete_all()
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

        application = Application("starlette", wrapping(raises))
        for target in ("/poll", "/events", "/tokens"):
            async with serving(application.app) as server, connected(server) as client:
                await client.send("GET", target)
                await application.until_waiting(1 if target == "/poll" else 0)
                application.purgatory.complete_all()
                assert await client.ended()
                await server.until_no_task()
                assert "a bad middleware" in caplog.text
                caplog.clear()

    async def test_middleware_that_raises_when_all_is_sent_leaves_the_connection(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def raises_at_the_end(message: Message, send: Send) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                await asyncio.sleep(0.001)
                raise ValueError("a bad middleware")

        application = Application("starlette", wrapping(raises_at_the_end))
        async with serving(application.app) as server, connected(server) as client:
            for _ in range(2):
                await client.send("GET", "/poll")
                await application.until_waiting(1)
                application.purgatory.complete_all()
                assert (await client.receive()).body == b"news"
                while "a bad middleware" not in caplog.text:
                    await asyncio.sleep(0.005)
                caplog.clear()

    async def test_exception_of_what_a_middleware_awaits_reaches_it(self) -> None:
        async def recovers(message: Message, send: Send) -> None:
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_exception, ValueError("awaited"))
            with contextlib.suppress(ValueError):
                await future
            await send(message)

        application = Application("starlette", wrapping(recovers))
        assert (await answers(application, ParkingProtocol))[2] == 0

    async def test_server_that_cancels_the_task_of_a_waiting_middleware_closes_the_connection(self) -> None:
        application = Application("starlette", Gate().middleware)
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/poll")
            await application.until_waiting(1)
            await server.until_no_task()
            before = asyncio.all_tasks()
            application.purgatory.complete_all()
            while not (new := asyncio.all_tasks() - before):
                await asyncio.sleep(0)
            for task in new:
                task.cancel()
            assert await client.ended()

    async def test_scope_is_left_to_tasks_that_the_handler_has_started(self) -> None:
        application = Application("fastapi", PARKED["cors"], PARKED["session"])
        seen: list[Any] = []

        async def look(request: Request) -> None:
            await application.until_waiting(1)
            await asyncio.sleep(0.05)
            seen.append((request.url.path, dict(request.session), "origin" in request.headers))

        poll = application.poll

        async def poll_and_look(request: Request) -> Any:
            tasks.append(asyncio.create_task(look(request)))
            return await poll(request)

        tasks: list[asyncio.Task[None]] = []
        application.poll = poll_and_look  # type: ignore[method-assign]
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/poll", "Origin: http://a.example")
            await application.until_waiting(1)
            await server.until("QuietConnection")
            await asyncio.wait(tasks)
            assert seen == [("/poll", {"seen": "1"}, True)]

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

    async def test_time_limit_of_a_middleware_is_its_own(self) -> None:
        async def limits(message: Message, send: Send) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60)
            await send(message)

        async def generate() -> AsyncGenerator[str, None]:
            yield "one"
            yield "two"

        async with serving(iterated(generate, wrapping(limits))) as server, connected(server) as client:
            assert (await client.request("GET", "/")).body.replace(b":\n\n", b"") == b"data:one\n\ndata:two\n\n"

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
        application = Application("starlette", gate.middleware)
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/events")
            await application.until_waiting(1)
            gate.open.clear()
            application.purgatory.complete_all()
            await server.until_no_task()
            for _ in range(5):
                await asyncio.sleep(0)
            assert application.purgatory.num_delayed == 0
            assert application.followed == [None]
            gate.open.set()
            await client.until(b"0\r\n\r\n")
            assert application.followed == [None, "3"]

    @pytest.mark.parametrize("held", ["events", "end"])
    async def test_shutdown_while_a_middleware_waits_cuts_nothing_off(self, held: str) -> None:
        def holds(message: Message) -> bool:
            is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
            return is_end if held == "end" else "é3".encode() in message.get("body", b"")

        gate = Gate(holds)
        application = Application("starlette", gate.middleware)
        async with serving(application.app) as server, connected(server) as client:
            await client.send("GET", "/events")
            await application.until_waiting(1)
            application.purgatory.complete_all()
            await asyncio.sleep(0.05)
            server.should_exit = True
            await asyncio.sleep(0.3)
            gate.open.set()
            assert "data:é3".encode() in await client.until(b"0\r\n\r\n")

    @pytest.mark.asyncio(loop_factories=["uvloop"])
    async def test_what_the_wrappers_do_not_need_is_let_go(self, temperature: str) -> None:
        """A client takes two KiB more, whatever its headers are, and the request's objects are freed."""

        async def size(*middleware: Middleware) -> float:
            application = Application("fastapi", *middleware)
            headers = [f"X-Header-{number}: {'x' * 100}" for number in range(20)]
            async with serving(application.app) as server, contextlib.AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(connected(server)) for _ in range(SAMPLE + 20)]
                sizes = []
                for some in (clients[:20], clients[20:]):
                    for client in some:
                        await client.send("GET", "/poll", "Origin: http://a.example", *headers)
                    await server.until(*["QuietConnection"] * len(clients))
                    await application.until_waiting(20 if some == clients[:20] else len(clients))
                    while temperature == "cold" and not all(map(is_cold, server.server_state.connections)):
                        await asyncio.sleep(0.005)
                    await asyncio.sleep(0.01)
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
                application.purgatory.cancel_all()
            return (sizes[1] - sizes[0]) / SAMPLE

        tracemalloc.start()
        try:
            await size()
            alone = await size()
            behind = await size(PARKED["cors"], PARKED["session"])
        finally:
            tracemalloc.stop()
        assert behind - alone < 2500
