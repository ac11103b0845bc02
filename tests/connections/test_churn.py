"""Thousands of clients who come, talk, fall silent and leave in every way, while their connections rest in between."""

import asyncio
import random
import socket
import struct
from contextlib import suppress
from typing import Any

import psutil
import pytest

from purgatory.connections import QuietConnections
from tests.connections.pair import pattern

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

CLIENTS = 2500


class Echo(asyncio.Protocol):
    def __init__(self, churn: "Churn") -> None:
        self.churn = churn
        self.transport: Any = None
        self.lost = 0
        churn.protocols.append(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = self.churn.connections.add(transport)
        self.rest()

    def rest(self) -> None:
        self.transport.rest(self.churn.chance.choice([0.0, 0.0, 0.002, 0.02]))

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        self.rest()

    def eof_received(self) -> bool:
        self.churn.connections._watch.loop.call_later(0.001, self.transport.close)
        return True

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()
        self.rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


class Churn:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.connections = QuietConnections(rest_after=0.02)
        self.protocols: list[Echo] = []
        self.most_cold = 0
        self.at_once = asyncio.Semaphore(250)

    async def client(self, address: Any) -> None:
        async with self.at_once:
            reader, writer = await asyncio.open_connection(*address[:2])
            sent = 0
            for _ in range(self.chance.randrange(5)):
                size = self.chance.choice([1, 10, 1000, 70_000])
                writer.write(pattern(sent + size)[sent:])
                assert await reader.readexactly(size) == pattern(sent + size)[sent:]
                sent += size
                await asyncio.sleep(self.chance.choice([0.0, 0.001, 0.01, 0.05]))
                self.most_cold = max(self.most_cold, self.connections.num_cold)
            way = self.chance.choice(["close", "reset", "half", "talks to the end"])
            if way == "half":
                writer.write(b"bye")
                writer.write_eof()
                assert await reader.read() == b"bye"
            elif way == "reset":
                own = writer.get_extra_info("socket")
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif way == "talks to the end":
                writer.write(pattern(5000))
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def test_clients_come_and_go() -> None:
    churn = Churn(1)
    server = await asyncio.get_running_loop().create_server(lambda: Echo(churn), "127.0.0.1", 0, backlog=1024)
    before = psutil.Process().num_fds()
    address = server.sockets[0].getsockname()
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(churn.client(address))
    await churn.connections.wait_closed()
    server.close()
    assert [protocol.lost for protocol in churn.protocols] == [1] * CLIENTS
    assert (len(churn.connections), churn.connections.num_resting_soon) == (0, 0)
    assert churn.most_cold > 50
    while psutil.Process().num_fds() > before:  # the clients' are closed in the next turns
        await asyncio.sleep(0.01)
