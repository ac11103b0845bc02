"""Upgrades to WebSockets that begin late, or whose protocols fail, and what is left of a connection afterwards."""

import asyncio
import gc
from typing import Any

import pytest

from purgatory.uvicorn import ParkingProtocol
from purgatory.uvicorn.parked import QuietConnection
from tests.uvicorn.serving import connected, serving

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
CLIENTS = 60


@pytest.mark.parametrize("how", ["reset", "closed"])
async def test_upgrades_whose_clients_leave_before_they_begin_end(how: str) -> None:
    running = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal running
        running += 1
        while (await receive())["type"] != "websocket.disconnect":
            pass
        running -= 1

    async with serving(app, lifespan="off", ws="websockets-sansio", backlog=500) as server:
        contexts = [connected(server) for _ in range(CLIENTS)]
        clients = [await each.__aenter__() for each in contexts]
        await server.until(*["QuietConnection"] * CLIENTS)
        for client in clients:
            await client.send("GET", "/", *UPGRADE)
            if how == "reset":
                client.reset()
            else:
                client.writer.close()
        await server.until()
        while running or server.server_state.tasks:
            await asyncio.sleep(0.005)
        for each in contexts:
            await each.__aexit__(None, None, None)


async def test_a_protocol_that_fails_leaves_no_connection_open() -> None:
    failed = []

    def failing(**options: Any) -> Any:
        raise ZeroDivisionError

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context.get("exception")))
    async with serving(lambda *_: None, lifespan="off", ws=failing, backlog=500) as server:
        contexts = [connected(server) for _ in range(CLIENTS)]
        clients = [await each.__aenter__() for each in contexts]
        await server.until(*["QuietConnection"] * CLIENTS)
        for client in clients:
            client.writer.write("\r\n".join(["GET / HTTP/1.1", "Host: a", *UPGRADE, "", ""]).encode())
        for client in clients:
            assert await client.ended()
        await server.until()
        for each in contexts:
            await each.__aexit__(None, None, None)
    assert [type(error) for error in failed] == [ZeroDivisionError] * CLIENTS


@pytest.mark.parametrize("what", ["websocket", "pipeline"])
async def test_nothing_waits_for_the_garbage_collector(what: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while "disconnect" not in (message := await receive())["type"]:
            if message["type"] == "websocket.connect":
                await send({"type": "websocket.accept"})

    gc.collect()
    gc.disable()
    try:
        async with serving(app, lifespan="off", ws="websockets-sansio") as server:
            async with connected(server) as client:
                if what == "websocket":
                    await client.send("GET", "/", *UPGRADE)
                    await client.until(b"101 ")
                else:
                    await client.write(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n")
                    while not server.server_state.tasks:
                        await asyncio.sleep(0.005)
            await server.until()
            while server.server_state.tasks:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            shared = server.server_state.purgatory  # type: ignore[attr-defined]
            protocols = [each for each in gc.get_objects() if isinstance(each, (ParkingProtocol, QuietConnection))]
            assert [each for each in protocols if each.shared is shared] == []
    finally:
        gc.enable()
