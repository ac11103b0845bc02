"""The messages that the long-poll server keeps when it is stopped, killed or overloaded."""

import asyncio
import signal
import socket
import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.long_poll_server.log import MessageLog
from tests.support.server_process import fetch, publish, running, until_waiting

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


async def test_messages_and_offsets_go_on_after_a_restart(tmp_path: Path) -> None:
    for start in (0, 2, 4):
        with running(tmp_path) as server:
            async with server.client() as client:
                for offset in (start, start + 1):
                    assert await publish(client, "news", offset) == offset
                    assert await publish(client, "more.news", -offset) == offset
                assert await fetch(client, "news") == (list(range(start + 2)), start + 2)
            assert server.stop() == 0


async def test_kill_9_in_the_middle_of_publishing_loses_no_acknowledged_message(tmp_path: Path) -> None:
    acknowledged: dict[str, dict[int, Any]] = {"a": {}, "b": {}}
    numbers = count()

    async def publish_until_killed(client: httpx.AsyncClient, topic: str, enough: asyncio.Event) -> None:
        while True:
            value = next(numbers)
            try:
                offset = await publish(client, topic, value)
            except httpx.TransportError:
                return
            assert offset not in acknowledged[topic]
            acknowledged[topic][offset] = value
            if len(acknowledged["a"]) + len(acknowledged["b"]) >= enough_messages:
                enough.set()

    enough_messages = 0
    for _ in range(3):
        enough_messages += 300
        with running(tmp_path) as server:
            async with server.client() as client:
                enough = asyncio.Event()
                publishers = [asyncio.create_task(publish_until_killed(client, "ab"[n % 2], enough)) for n in range(20)]
                await enough.wait()
                assert server.stop(signal.SIGKILL) == -signal.SIGKILL
                await asyncio.gather(*publishers)

    with running(tmp_path) as server:
        async with server.client() as client:
            for topic, messages in acknowledged.items():
                # fetch() itself looks for gaps and repeats.
                stored, end = await fetch(client, topic, max_messages=10_000)
                assert {offset: stored[offset] for offset in messages} == messages
                assert len(set(stored)) == len(stored)
                assert await publish(client, topic, "after") == end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_answers_every_waiting_poll_and_exits_0_within_two_seconds(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running(tmp_path) as server:
        async with server.client() as client:
            await publish(client, "news", "old")
            polls = [asyncio.create_task(fetch(client, "news", min_messages=2, wait=300)) for _ in range(100)]
            produce = asyncio.create_task(client.post("/topics/other/messages?acks=1&timeout=300", json={"value": 1}))
            await until_waiting(client, 100)
            await until_waiting(client, 1, "produce")
            stopped = asyncio.create_task(asyncio.to_thread(server.stop, number, 2))
            assert await asyncio.gather(*polls) == [(["old"], 1)] * 100
            assert (await produce).status_code == 504
            assert await stopped == 0


async def test_clients_that_dawdle_do_not_hold_up_the_exit(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        port = int(server.url.rsplit(":")[-1])
        with (
            socket.create_connection(("127.0.0.1", port)) as idle,
            socket.create_connection(("127.0.0.1", port)) as half,
        ):
            idle.sendall(b"GET /statistics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(1000).startswith(b"HTTP/1.1 200")
            half.sendall(b"POST /topics/news/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert await asyncio.to_thread(server.stop, signal.SIGTERM) == 0
        server.output.clear()  # uvicorn tells of the request that it has cut off, with a traceback


class TestLog:
    """The log by itself."""

    async def test_concurrent_publishers_share_a_transaction(self, tmp_path: Path) -> None:
        grown: list[str] = []
        log = MessageLog(tmp_path, grown.append)
        statements: list[str] = []
        log._write_connection.set_trace_callback(statements.append)
        assert await asyncio.gather(*(log.append("topic", str(n)) for n in range(500))) == list(range(500))
        assert statements.count("COMMIT") <= 2
        assert len(grown) == statements.count("COMMIT")
        await log.close()

    async def test_log_writes_through_to_disk(self, tmp_path: Path) -> None:
        log = MessageLog(tmp_path, print)
        pragmas = [
            log._write_connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
        ]
        assert pragmas == ["wal", 2]
        await log.close()

    async def test_a_message_that_is_not_stored_leaves_no_gap(self, tmp_path: Path) -> None:
        log = MessageLog(tmp_path, lambda topic: None)
        assert await log.append("topic", "0") == 0
        log._write_connection.execute("PRAGMA query_only = ON")
        with pytest.raises(sqlite3.OperationalError):
            await log.append("topic", "lost")
        log._write_connection.execute("PRAGMA query_only = OFF")
        assert await log.append("topic", "1") == 1
        assert await log.read("topic", 0, 2, 10) == ('[{"offset":0,"value":0},{"offset":1,"value":1}]', 2)
        await log.close()

    async def test_closing_stores_all_given_messages(self, tmp_path: Path) -> None:
        log = MessageLog(tmp_path, lambda topic: None)
        appending = asyncio.ensure_future(log.append("topic", "0"))
        await asyncio.wait([appending], timeout=0)
        await log.close()
        assert await appending == 0
