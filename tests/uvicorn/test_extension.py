"""The server's side of the ASGI extension `purgatory.parking`."""

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from purgatory.asgi.interface import EXTENSION
from tests.uvicorn.serving import connected, serving

START: Any = {"type": "http.response.start", "status": 200}


class Parks:
    """An application that parks each request and leaves its answer to the test, and its own listener."""

    def __init__(self) -> None:
        self.parked: list[Any] = []
        self.called: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        park = scope["extensions"][EXTENSION]["park"]
        assert park(receive, self) is None  # that is not its `send`
        self.parked.append(park(send, self))
        assert (await receive())["type"] == "http.disconnect"
        await send(START)

    async def until(self, count: int) -> None:
        """Return when so many requests have been parked."""
        while len(self.parked) < count:
            await asyncio.sleep(0.005)

    def returned(self) -> None: ...

    def disconnected(self) -> None:
        self.called.append("disconnected")

    def shutdown(self) -> None:
        self.called.append("shutdown")
        raise ValueError("cannot")


@pytest.fixture
def parks() -> Parks:
    return Parks()


async def test_wrong_messages_are_refused_and_change_nothing(parks: Parks) -> None:
    async with serving(parks, lifespan="off") as server, connected(server) as client:
        await client.send("POST", "/", "Expect: 100-continue", body=b"12345")
        await parks.until(1)
        (parked,) = parks.parked
        start = {**START, "headers": [(b"Transfer-Encoding", b"chunked")]}
        body = {"type": "http.response.body", "body": b"abc"}
        for wrong in ((body,), (start, start), (start, {"type": "other"}), (start, body, body)):
            with pytest.raises(RuntimeError, match="Unexpected ASGI message"):
                parked.send(*wrong)
        parked.send(start)
        parked.send({**body, "more_body": True}, {**body, "body": b"", "more_body": True})
        parked.send(body)
        received = await client.until(b"0\r\n\r\n")  # no 100, though the application has called `receive`
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert received.endswith(b"\r\n3\r\nabc\r\n3\r\nabc\r\n0\r\n\r\n")
        with pytest.raises(RuntimeError, match="the response is complete"):
            parked.send(body)


async def test_shutdown_that_raises_does_not_stop_the_others(parks: Parks, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(parks, lifespan="off") as server, connected(server) as one, connected(server) as other:
        for client in (one, other):
            await client.send("GET", "/")
        await parks.until(2)
        server.should_exit = True
        assert await one.ended()
        assert await other.ended()
        await server.serve_task
    assert parks.called == ["shutdown"] * 2
    assert "cannot" in caplog.text


async def test_send_after_a_disconnect_does_nothing(parks: Parks) -> None:
    async with serving(parks, lifespan="off") as server, connected(server) as client:
        await client.send("GET", "/")
        await parks.until(1)
        (parked,) = parks.parked
        parked.transport.abort()  # the listener is told later
        parked.send(START)
        await server.until()
        parked.send(START)
        assert parks.called == ["disconnected"]


async def test_next_request_is_dropped_if_its_client_disconnects_before_it_runs(parks: Parks) -> None:
    async with serving(parks, lifespan="off") as server, connected(server) as client:
        await client.send("GET", "/")
        await parks.until(1)
        await client.send("GET", "/next")
        (parked,) = parks.parked
        while not parked.held:
            await asyncio.sleep(0.005)
        parked.send({**START, "status": 204}, {"type": "http.response.body"})
        parked.transport.abort()
        await server.until()
        assert len(parks.parked) == 1
