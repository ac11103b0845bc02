"""Clients that ask for much and read little: a real process, real sockets with small buffers."""

import asyncio
import json
import signal
import socket
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.long_poll_server import answers
from examples.long_poll_server.limits import PendingByClient
from examples.long_poll_server.log import MessageLog
from examples.long_poll_server.store import PAGE_BYTES, StoreUnavailable
from tests.support.server_process import ServerProcess, fetch, publish, running, statistics, until_waiting

asyncio_alone = pytest.mark.asyncio(loop_factories=["asyncio"])

READERS = 20
MIB = 1024 * 1024


def _port(server: ServerProcess) -> int:
    return int(server.url.rsplit(":")[-1])


@contextmanager
def slow_readers(count: int, server: ServerProcess, topic: str = "big") -> Iterator[list[socket.socket]]:
    """So many have asked for all of the topic; the answer begins to come, and they do not read it."""
    with ExitStack() as stack:
        readers = []
        for _ in range(count):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.settimeout(60)
            reader.connect(("127.0.0.1", _port(server)))
            reader.sendall(f"GET /topics/{topic}/messages HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            readers.append(reader)
        for reader in readers:
            assert reader.recv(1, socket.MSG_PEEK) == b"H"
        yield readers


async def fill(client: httpx.AsyncClient) -> None:
    """`big` has as much as an answer may have."""
    for _ in range(9):
        await publish(client, "big", "x" * 1_000_000)
    assert (await fetch(client, "big"))[1] == 9


def in_the_kernel(port: int) -> list[int]:
    """For each connection that the server has, the bytes that its client has not taken."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(line[4].split(":")[0], 16) for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "01"]


@asyncio_alone
async def test_a_client_that_does_not_read_harms_no_other_and_costs_a_message_and_not_an_answer(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        async with server.client() as client:
            await fill(client)
            process = psutil.Process(server.process.pid)
            files, memory = process.num_fds(), process.memory_info().rss
            with slow_readers(READERS, server) as readers:
                for offset in range(50):
                    poll = asyncio.create_task(fetch(client, "news", offset=offset, wait=40))
                    await publish(client, "news", offset)
                    assert await poll == ([offset], offset + 1)
                assert (process.memory_info().rss - memory) / READERS < 4 * MIB
                assert max(in_the_kernel(_port(server))) < MIB
                assert process.num_fds() >= files + READERS
                answer = await asyncio.to_thread(_read_all, readers[0])
                assert (len(answer["messages"]), answer["next_offset"]) == (9, 9)
            while process.num_fds() > files + 1:  # the client has two connections now
                await statistics(client)


def _read_all(reader: socket.socket) -> dict[str, Any]:
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
    response = HTTPResponse(reader)
    response.begin()
    answer: dict[str, Any] = json.load(response)
    return answer


@asyncio_alone
@pytest.mark.parametrize("count", [1, 9])
async def test_a_long_answer_counts_as_a_fetch_until_it_has_been_taken(tmp_path: Path, count: int) -> None:
    with running(tmp_path, "--max-pending-client", "3") as server:
        async with server.client() as client:
            for _ in range(count):
                await publish(client, "big", "x" * 1_000_000)
            with slow_readers(3, server) as readers:
                response = await client.get("/topics/big/messages")
                assert (response.status_code, response.headers["retry-after"]) == (429, "1")
                assert await fetch(client, "news", min_messages=0) == ([], 0)
                assert len((await asyncio.to_thread(_read_all, readers[0]))["messages"]) == count
                assert (await fetch(client, "big"))[1] == count
            for _ in range(3):
                while (await client.get("/topics/big/messages")).status_code == 429:
                    pass


@asyncio_alone
async def test_long_answers_are_bounded_together(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        async with server.client() as client:
            await publish(client, "big", "é" * 500_000)  # three million bytes
            process = psutil.Process(server.process.pid)
            memory = process.memory_info().rss
            with slow_readers(250, server) as readers:
                answered = [reader.recv(12, socket.MSG_PEEK) for reader in readers]
                most = answers.MAX_SENDING_BYTES // 3_000_000
                assert answered.count(b"HTTP/1.1 200") == most
                assert answered.count(b"HTTP/1.1 503") == 250 - most
                # Of the others nothing is kept: they would be 700 MiB.
                assert process.memory_info().rss - memory < 4 * answers.MAX_SENDING_BYTES
                assert await fetch(client, "news", min_messages=0) == ([], 0)
            while (await client.get("/topics/big/messages")).status_code == 503:
                pass


@asyncio_alone
async def test_an_answer_that_cannot_go_on_is_broken_off_and_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MessageLog(tmp_path, lambda topic: None)
    for _ in range(2):
        await log.append("big", f'"{"x" * PAGE_BYTES}"')
    sending = answers.Sending(PendingByClient(1))
    response = await answers.messages(sending, log, "big", 0, 2, 2)

    async def unavailable(*arguments: object) -> tuple[str, int]:
        raise StoreUnavailable

    monkeypatch.setattr(log, "read", unavailable)
    sent = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    await response({"type": "http", "client": ("127.0.0.1", 1)}, receive, send)
    assert len(sent) == 3
    assert sent[-1]["more_body"]
    assert (sending.held.bytes, len(sending.fetching)) == (0, 0)
    await log.close()


@asyncio_alone
async def test_a_client_that_reads_nothing_for_so_long_is_disconnected(tmp_path: Path) -> None:
    with running(tmp_path, "--write-timeout", "1.5") as server:
        async with server.client() as client:
            await fill(client)
            process = psutil.Process(server.process.pid)
            waiting = asyncio.create_task(fetch(client, "news", wait=40))
            await until_waiting(client, 1)
            files = process.num_fds()
            with slow_readers(READERS, server):
                while process.num_fds() > files:
                    await statistics(client)
            assert not waiting.done(), "to wait is not to take nothing"
            await publish(client, "news", "still here")
            assert await waiting == (["still here"], 1)


@asyncio_alone
async def test_shutdown_does_not_wait_for_them(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        async with server.client() as client:
            await fill(client)
        with slow_readers(READERS, server):
            assert await asyncio.to_thread(server.stop, signal.SIGTERM, 30) == 0


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A log of 12 MiB in one topic, and the sizes of its values."""
    directory = tmp_path_factory.mktemp("data")
    sizes = [(1, 100, 10_000, PAGE_BYTES - 20, PAGE_BYTES + 1, 250_000)[n * 7 % 11 % 6] for n in range(200)]

    async def write() -> None:
        log = MessageLog(directory, lambda topic: None)
        await asyncio.gather(*(log.append("big", f'"{"x" * size}"') for size in sizes))
        await log.close()

    asyncio.run(write())
    return directory, sizes


@given(st.integers(0, 210), st.integers(0, 200), st.integers(1, 250))
def test_an_answer_in_pages_has_each_message_once(
    sizes: tuple[Path, list[int]], offset: int, end: int, limit: int
) -> None:
    directory, written = sizes

    async def ask() -> dict[str, Any]:
        log = MessageLog(directory, lambda topic: None)
        response = await answers.messages(answers.Sending(PendingByClient(1)), log, "big", offset, end, limit)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=response), base_url="http://x") as client:
            answer: dict[str, Any] = (await client.get("/")).json()
        await log.close()
        return answer

    answer = asyncio.run(ask())
    got = [(message["offset"], len(message["value"])) for message in answer["messages"]]
    last = offset + len(got)
    assert got == list(enumerate(written[offset:last], offset))
    assert answer["next_offset"] == last
    if last != max(offset, min(end, offset + limit)):
        assert answers.MAX_RESPONSE_BYTES < sum(written[offset:last]) < answers.MAX_RESPONSE_BYTES + MIB


@asyncio_alone
async def test_the_head_of_a_long_answer_is_complete_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        async with server.client() as client:
            await fill(client)

        def look() -> None:
            connection = HTTPConnection("127.0.0.1", _port(server), timeout=30)
            for _ in range(10):
                for method, path in (("HEAD", "/topics/big/messages"), ("GET", "/statistics")):
                    connection.request(method, path)
                    response = connection.getresponse()
                    response.read()
                    assert response.status == 200
            connection.close()

        await asyncio.to_thread(look)
