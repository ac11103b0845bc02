"""The health, the metrics, the journal and the shutdown of a server, for its operator."""

import asyncio
import math
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from purgatory.streams.storage.database import Database
from tests.streams.processes import append, create, metric, poll, running
from tests.streams.serving import served, serving

ASYNC = pytest.mark.asyncio(loop_factories=["asyncio"])


def test_health_is_of_all_that_requests_need(tmp_path: Path) -> None:
    with served(data=str(tmp_path)) as (server, http):
        http.put("/v1/stream/a", content="x", headers={"Content-Type": "text/plain"})
        assert http.get("/health").json()["streams"] == 1
        writing: Any = server.application.streams.store._writing
        for table in ("data", "producers", "subscriptions", "links"):
            writing.connection.execute(f"ALTER TABLE {table} RENAME TO hidden")
            server.application._looks._fresh_until = -math.inf
            sick = http.get("/health")
            assert (sick.status_code, sick.headers["retry-after"]) == (503, "1")
            assert f"no such table: {table}" in sick.text
            writing.connection.execute(f"ALTER TABLE hidden RENAME TO {table}")
        server.application._looks._fresh_until = -math.inf
        assert http.get("/health").status_code == 200


def test_health_is_sick_if_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory.streams.http.health._PATIENCE", 1.0)
    with (
        served(data=str(tmp_path)) as (_, http),
        closing(sqlite3.connect(tmp_path / "streams.sqlite", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(3) as pool:  # they share a look
            answers = list(pool.map(http.get, ["/health"] * 3))
        assert {each.status_code for each in answers} == {503}
        assert {each.json()["error"]["message"] for each in answers} == {"the database does not answer"}
        other.execute("ROLLBACK")


def test_health_that_is_asked_often_looks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    probe = Database.probe
    monkeypatch.setattr("purgatory.streams.http.health._FRESH", 1000.0)

    def counted(database: Database) -> int:
        looks.append(1)
        return probe(database)

    monkeypatch.setattr(Database, "probe", counted)
    with served(data=str(tmp_path)) as (_, http):
        assert {http.get("/health").status_code for _ in range(50)} == {200}
    assert looks == [1]


@ASYNC
async def test_the_journal_has_each_read_that_has_waited_with_its_outcome(tmp_path: Path) -> None:
    data, journal = str(tmp_path / "data"), str(tmp_path / "journal")
    with serving(data=data, journal=journal, instance="here", append_rate=0.1, long_poll_timeout=0.3) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            await create(client, "news")
            assert await poll(client, "news") == ""  # the deadline
            await append(client, "news", "x")
            assert await metric(client, 'purgatory_operations_total{outcome="expired",purgatory="read"}') == 1
            assert await metric(client, 'purgatory_journal_dropped_rows_total{instance="here"}') == 0
            assert (await client.get("/health")).json() == {"status": "ok", "instance": "here", "streams": 1}
    rows = pq.read_table(tmp_path / "journal").to_pylist()
    found = [(row["instance"], row["purgatory"], row["operation"], row["outcome"]) for row in rows]
    assert ("here", "read", "Read", "expired") in found


@ASYNC
async def test_shutdown_answers_a_client_of_which_the_body_does_not_come(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        head = b"POST /v1/stream/news HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"the server is shutting down" in answer
        assert await stopping == 0
