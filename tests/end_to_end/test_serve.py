"""`purgatory serve` on SQLite, as a process: an append answers the reads that wait, and a restart keeps it."""

import asyncio
from pathlib import Path

import pytest

from tests.streams.processes import append, create, poll, running, until_waiting

CLIENTS = 50


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_appends_answer_the_reads_that_wait_and_survive_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        async with server.client() as client:
            await create(client, "news")
            polls = [asyncio.create_task(poll(client, "news")) for _ in range(CLIENTS)]
            await until_waiting(client, CLIENTS)
            await append(client, "news", "hello")
            assert set(await asyncio.gather(*polls)) == {"hello"}
    with running(tmp_path) as server:
        async with server.client() as client:
            assert await poll(client, "news") == "hello"
            waiting = asyncio.create_task(poll(client, "news", await append(client, "news", " again")))
            await until_waiting(client, 1)
            assert await asyncio.to_thread(server.stop) == 0
            assert await waiting == ""
