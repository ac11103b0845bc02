"""The server of the idle connections, with real sockets on a loop whose time is virtual."""

import asyncio

import pytest

from examples.idle_connections.server import EchoServer


async def test_silent_connection_is_closed_and_a_busy_one_is_not() -> None:
    loop = asyncio.get_running_loop()
    async with EchoServer(30.0, "127.0.0.1", 0) as server:
        busy, sending = await asyncio.open_connection(*server.address)
        silent, closing = await asyncio.open_connection(*server.address)
        opened = loop.time()

        async def send() -> None:
            for _ in range(10):
                await asyncio.sleep(20.0)
                sending.write(b"hello\n")
                assert await busy.readline() == b"hello\n"

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            assert await silent.read() == b""
            assert loop.time() - opened == pytest.approx(30.0, abs=0.1)
        assert loop.time() - opened == pytest.approx(200.0, abs=0.1)
        assert server.closed == 1
        for writer in (sending, closing):
            writer.close()
