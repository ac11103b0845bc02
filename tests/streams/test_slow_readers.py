"""Clients that ask for much and read little. A real process, real sockets with small buffers."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path

import httpx
import pytest

from tests.streams.processes import (
    JSON,
    ROOT,
    Listening,
    ServerProcess,
    append,
    create,
    poll,
    running,
    slow_reader,
    until_waiting,
)
from tests.streams.serving import serving

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

MIB = 1024 * 1024
SIZE = 9 * MIB
MESSAGE = b'"%b"' % (b"x" * (SIZE - 2))
"""One message, which is not cut: more than the kernel takes."""


@contextmanager
def slow_readers(count: int, server: Listening, target: str = "big?offset=-1") -> Iterator[list[socket.socket]]:
    """Clients that have asked for a stream, and do not read the answer."""
    with ExitStack() as stack:
        addresses = [f"127.0.1.{number}" for number in range(count)]  # one alone may not have so much unread
        yield [stack.enter_context(slow_reader(server, target, address)) for address in addresses]


def until_begun(readers: list[socket.socket]) -> None:
    for reader in readers:
        assert reader.recv(1, socket.MSG_PEEK) == b"H"


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that waits a little for clients that take nothing."""
    options = ("--write-timeout", "1.5", "--max-body", str(SIZE), "--long-poll-timeout", "600")
    with running(tmp_path_factory.mktemp("data"), *options) as server:
        yield server


def in_the_kernel(port: int) -> list[int]:
    """For each connection that the server has, the bytes that its client has not taken."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(line[4].split(":")[0], 16) for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "01"]


def read_all(reader: socket.socket) -> bytes:
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
    response = HTTPResponse(reader)
    response.begin()
    return response.read()


async def test_clients_that_do_not_read_share_what_they_do_not_read_and_no_shutdown_waits_for_them(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "--max-body", str(SIZE)) as server:
        async with server.client() as client:
            await create(client, "big", **JSON)
            await append(client, "big", MESSAGE, **JSON)
            memory = server.memory
            with slow_readers(10, server) as readers:
                until_begun(readers)
                await client.get("/health")
                assert server.memory - memory < 4 * SIZE  # and not ten times
                assert max(in_the_kernel(server.port)) < 2 * MIB
                assert await asyncio.to_thread(read_all, readers[0]) == b"[%b]" % MESSAGE
                assert await asyncio.to_thread(server.stop, signal.SIGTERM, 60) == 0


@pytest.mark.parametrize(
    ("live", "is_parked"),
    [("", False), ("&live=long-poll", False), ("&live=sse", False), ("&live=long-poll", True), ("&live=sse", True)],
)
async def test_a_client_that_reads_nothing_for_so_long_is_disconnected(
    impatient: ServerProcess, live: str, is_parked: bool
) -> None:
    """Either it asks for what is there, or it waits first."""
    async with impatient.client() as client:
        await create(client, "news")
        await create(client, "big", **JSON)
        if not is_parked:
            await append(client, "big", MESSAGE, **JSON)
        waiting = asyncio.create_task(poll(client, "news"))
        await until_waiting(client, 1)
        files = impatient.files
        with slow_readers(3, impatient, f"big?offset=-1{live}") as readers:
            if is_parked:
                await until_waiting(client, 4)
                await append(client, "big", MESSAGE, **JSON)
            until_begun(readers)
            while impatient.files > files:
                await client.get("/health")
        assert not waiting.done(), "a wait is no failure to read"
        await append(client, "news", "still here")
        assert await waiting == "still here"
        for name in ("news", "big"):
            await client.delete(f"{ROOT}/{name}")


async def test_stream_of_events_ends_if_others_have_taken_its_place_meanwhile(tmp_path: Path) -> None:
    """A client that does not read has no operation. When it goes on, as many wait as may."""
    with serving(data=str(tmp_path), max_pending=2, max_body=SIZE) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            await create(client, "big", **JSON)
            with slow_readers(1, server, "big?offset=-1&live=sse") as (reader,):
                await until_waiting(client, 1)
                await append(client, "big", MESSAGE, **JSON)
                await until_waiting(client, 0)
                polls = [asyncio.create_task(client.get(f"{ROOT}/big?offset=now&live=long-poll")) for _ in range(2)]
                await until_waiting(client, 2)
                assert len(await asyncio.to_thread(read_all, reader)) > SIZE  # raises if it is broken off
            await append(client, "big", "1", **JSON)
            assert [each.text for each in await asyncio.gather(*polls)] == ["[1]"] * 2
