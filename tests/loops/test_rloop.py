"""rloop, whose transports keep their protocols: connections that would rest stay as they are, and the log says so."""

import asyncio
import importlib
import logging
import sys

import pytest

from purgatory.connections import QuietConnections
from tests.connections.pair import Noting

pytestmark = [
    pytest.mark.skipif(sys.implementation.name != "cpython", reason="rloop is for CPython"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # rloop leaves its sockets open
]


def test_connections_on_rloop_keep_their_transports(caplog: pytest.LogCaptureFixture) -> None:
    rloop = importlib.import_module("rloop")  # on CPython alone, and without types

    async def talk() -> None:
        connections = QuietConnections()
        protocols = [Noting(False, connections) for _ in range(2)]
        remaining = iter(protocols)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: next(remaining), "127.0.0.1", 0)
        for protocol in protocols:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"question")
            while protocol.received != b"question":
                await asyncio.sleep(0.001)
            protocol.transport.rest()
            await asyncio.sleep(0.01)
            assert protocol.transport.rest() is False
            protocol.transport.write(b"answer")
            assert await reader.readexactly(6) == b"answer"
            writer.close()  # after which rloop's own transport calls nothing either
        server.close()

    with asyncio.Runner(loop_factory=rloop.new_event_loop) as runner:
        runner.run(talk())
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the event loop rloop.loop.RLoop can't watch a descriptor or replace a protocol" in caplog.text
