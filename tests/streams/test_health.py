"""`/health` tells what requests would meet."""

import math
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from purgatory.streams.storage.database import Database
from tests.streams.serving import served


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
