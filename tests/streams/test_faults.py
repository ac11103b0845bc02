"""A database that fails at each statement in turn, of each kind of request, and a disk that is full."""

import errno
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import httpx
import psycopg
import pytest

from purgatory.streams.settings import Settings
from purgatory.streams.storage import sqlite
from purgatory.streams.storage.database import StorageUnavailable
from purgatory.streams.storage.opener import opener
from purgatory.streams.storage.postgresql import PostgresDatabase
from purgatory.streams.storage.sqlite import RESERVED, Reserve, WritingDatabase
from tests.streams.processes import TEXT
from tests.streams.serving import served
from tests.support.servers import PostgresServer

STREAM = "/v1/stream"
SUBSCRIPTION = f"{STREAM}/__ds/subscriptions/s"
PULLS = {"type": "pull-wake", "pattern": "a*", "wake_stream": "wakes"}
BINARY = {"Content-Type": "application/octet-stream"}
MEBIBYTE = 1024 * 1024
PRODUCER = {**TEXT, "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
REQUESTS: dict[str, tuple[str, str, set[int], dict[str, Any]]] = {
    "create": ("PUT", f"{STREAM}/a", {200, 201}, {"headers": TEXT, "content": "a"}),
    "subscribe": ("PUT", SUBSCRIPTION, {200, 201}, {"json": PULLS}),
    "append": ("POST", f"{STREAM}/a", {204}, {"headers": TEXT, "content": "b"}),
    "produce": ("POST", f"{STREAM}/a", {200, 204}, {"headers": PRODUCER, "content": "c"}),
    "read": ("GET", f"{STREAM}/a?offset=-1", {200}, {}),
    "head": ("HEAD", f"{STREAM}/a", {200}, {}),
    "long poll": ("GET", f"{STREAM}/a?offset=-1&live=long-poll", {200}, {}),
    "claim": ("POST", f"{SUBSCRIPTION}/claim", {200, 409}, {"json": {"worker": "w"}}),
    "look": ("GET", SUBSCRIPTION, {200}, {}),
    "fork": ("PUT", f"{STREAM}/fork", {200, 201}, {"headers": {"Stream-Forked-From": f"{STREAM}/a"}}),
    "delete": ("DELETE", f"{STREAM}/a", {204, 404, 410}, {}),
    "read the fork": ("GET", f"{STREAM}/fork?offset=-1", {200}, {}),
    "close": ("POST", f"{STREAM}/fork", {204}, {"headers": {**TEXT, "Stream-Closed": "true"}}),
    "list": ("GET", "/v1/streams", {200}, {}),
    "health": ("GET", "/health", {200, 503}, {}),
    "unsubscribe": ("DELETE", SUBSCRIPTION, {204, 404}, {}),
}
"""Requests that each need the database, in this order, and the statuses with which they succeed."""


class Faults:
    """Ends the connection of a database before its next statement but so many."""

    def __init__(self, superuser: "psycopg.Connection[Any]") -> None:
        self.superuser = superuser
        self.left: int | None = None
        self.lock = threading.Lock()

    def patch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        method = getattr(PostgresDatabase, name)

        def call(database: PostgresDatabase, *arguments: Any) -> Any:
            self.look(database)
            return method(database, *arguments)

        monkeypatch.setattr(PostgresDatabase, name, call)

    def look(self, database: PostgresDatabase) -> None:
        with self.lock:
            if self.left is None:
                return
            self.left -= 1
            if self.left >= 0:
                return
            self.left = None
        process = database._connection.info.backend_pid
        self.superuser.execute("SELECT pg_terminate_backend(%s, 10000)", [process])


def test_a_connection_that_is_lost_at_any_statement_is_a_503_and_the_next_request_succeeds(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    with (
        psycopg.connect(postgres.dsn(), autocommit=True) as superuser,
        served(database=postgres.create_database()) as (_, http),
    ):
        faults = Faults(superuser)
        for name in ("execute", "execute_many"):
            faults.patch(monkeypatch, name)
        for name, (method, path, statuses, options) in REQUESTS.items():
            request = partial(http.request, method, path, **options)
            for statement in range(100):
                faults.left = statement
                response = request()
                answered, faults.left = faults.left is not None, None
                if answered:
                    assert response.status_code in statuses, (name, statement, response.text)
                    break
                failures += 1
                # The fault may have hit what the server does by itself meanwhile.
                assert response.status_code in {503, *statuses}, (name, statement, response.text)
                if response.status_code == 503:
                    assert response.headers["retry-after"] == "1"
                    assert request().status_code in statuses, (name, statement)
            else:
                raise AssertionError(f"{name} has no end")
        # The idempotent producer has stored its message once, whatever was lost.
        assert http.get(f"{STREAM}/fork?offset=-1").text.count("c") == 1
    assert failures > 60


def test_a_session_that_was_idle_in_its_transaction_for_too_long_is_opened_again(postgres: PostgresServer) -> None:
    writer = opener(Settings(database=postgres.create_database())).writer()
    with closing(writer) as database, pytest.raises(StorageUnavailable), database.transaction(["a"]):
        database.execute("SET idle_in_transaction_session_timeout = 1")
        threading.Event().wait(0.5)
        database.execute("SELECT 1")


@pytest.mark.parametrize("times", [1, 1000])
def test_an_sqlite_that_fails_at_any_step_changes_nothing_and_goes_on(tmp_path: Path, times: int) -> None:
    """With many failures in a row the rollback fails too, and the database is opened again."""
    statuses_of_failures = set()
    with served(data=str(tmp_path)) as (server, http):
        streams = server.application.streams
        for name, (method, path, statuses, options) in REQUESTS.items():
            request = partial(http.request, method, path, **options)
            step = 1
            while True:
                writing: Any = streams.store._writing
                if writing is not None:
                    with interrupted(writing.connection, step, times) as hits:
                        response = request()
                    if not hits:
                        assert response.status_code in statuses, (name, step, response.text)
                        break
                    assert response.status_code in {500, 503, *statuses}, (name, step, response.text)
                    statuses_of_failures.add(response.status_code)
                    step = step * 5 // 4 + 1
                assert request().status_code in statuses, (name, step)
        assert http.get(f"{STREAM}/fork?offset=-1").text.count("c") == 1
    assert (500 if times == 1 else 503) in statuses_of_failures


@contextmanager
def interrupted(connection: sqlite3.Connection, step: int, times: int) -> Iterator[list[int]]:
    """Interrupt SQLite's virtual machine after each so many instructions, so many times."""
    hits: list[int] = []

    def interrupt() -> int:
        hits.append(step)
        return len(hits) <= times

    connection.set_progress_handler(interrupt, step)
    try:
        yield hits
    finally:
        with suppress(sqlite3.ProgrammingError):  # it is closed
            connection.set_progress_handler(None, 0)


class FailingWrites:
    """A connection of SQLite to a disk that fails: at the first row, before a commit, or after it."""

    def __init__(self, connection: sqlite3.Connection, moment: str) -> None:
        self.connection = connection
        self.moment = moment
        self.is_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def executemany(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        if self.moment == "write":
            self.fail(sqlite3.SQLITE_IOERR_WRITE)
        return self.connection.executemany(sql, parameters)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.moment == "before":
            self.fail(sqlite3.SQLITE_IOERR_FSYNC)
        done = self.connection.execute(sql, *parameters)
        if sql == "COMMIT":
            self.fail(sqlite3.SQLITE_IOERR_FSYNC)
        return done

    def fail(self, code: int) -> NoReturn:
        failure = sqlite3.OperationalError("disk I/O error")
        failure.sqlite_errorcode = code
        raise failure

    def close(self) -> None:
        self.is_closed = True
        self.connection.close()


@pytest.mark.parametrize(
    ("moment", "message", "text"),
    [
        ("write", "the database is away", "ac"),
        ("before", "may be stored, or may not", "ac"),
        ("after", "may be stored, or may not", "abc"),
    ],
)
def test_an_append_that_meets_an_io_error_says_whether_it_may_be_stored_and_the_database_is_opened_again(
    tmp_path: Path, moment: str, message: str, text: str
) -> None:
    with served(data=str(tmp_path)) as (server, http):
        http.put(f"{STREAM}/a", headers=TEXT, content="a")
        store: Any = server.application.streams.store
        database = store._writing
        failing = database.connection = FailingWrites(database.connection, moment)
        response = http.post(f"{STREAM}/a", headers=TEXT, content="b")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert message in response.json()["error"]["message"]
        assert failing.is_closed
        # What is stored is read from the database, not from memory, when the database is open again.
        assert http.put(f"{STREAM}/b", headers=TEXT).status_code == 201
        assert store._writing is not database
        assert http.head(f"{STREAM}/a").headers["stream-next-offset"].endswith(f"{len(text) - 1}")
        assert http.post(f"{STREAM}/a", headers=TEXT, content="c").status_code == 204
        assert http.get(f"{STREAM}/a").text == text


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as opened, pytest.raises(OSError, match="No space"):
        while opened.write(bytes(4096)):
            pass


def append(http: httpx.Client, name: str, size: int = MEBIBYTE) -> int:
    return http.post(f"{STREAM}/{name}", headers=BINARY, content=bytes(size)).status_code


def append_until_full(http: httpx.Client) -> list[str]:
    """Create streams until the disk is full. Returns their names."""
    names: list[str] = []
    while True:
        name = f"{len(names)}"
        status = http.put(f"{STREAM}/{name}", headers=BINARY, content=bytes(MEBIBYTE)).status_code
        if status == 507:
            return names
        assert status == 201
        names.append(name)


def until_appended(http: httpx.Client, name: str) -> None:
    """Return when there is room again: the time-out of the test is the bound."""
    while (status := append(http, name)) == 507:
        time.sleep(0.05)
    assert status == 204


@pytest.mark.parametrize("is_filled", [False, True], ids=["by the server", "by another program"])
def test_streams_are_deleted_on_a_full_disk_and_then_appends_go_on(disk: Path, is_filled: bool) -> None:
    with served(data=str(disk / "data")) as (_, http):
        names = append_until_full(http)
        assert len(names) > 15
        if is_filled:
            fill(disk / "other")
        assert [append(http, name) for name in names[:3]] == [507] * 3
        for name in names[:-3]:
            assert http.delete(f"{STREAM}/{name}").status_code == 204
            assert http.get(f"{STREAM}/{name}").status_code == 404
        if is_filled:
            (disk / "other").unlink()
        until_appended(http, names[-1])
        ends = [int(http.head(f"{STREAM}/{name}").headers["stream-next-offset"][-16:]) for name in names[-2:]]
        assert ends == [MEBIBYTE, 2 * MEBIBYTE]
        assert (disk / "data" / "reserve").stat().st_size == RESERVED
        assert len(append_until_full(http)) > 5


def test_a_server_starts_on_a_full_disk_and_deletes(disk: Path) -> None:
    with served(data=str(disk / "data")) as (_, http):
        names = append_until_full(http)
    fill(disk / "other")
    with served(data=str(disk / "data")) as (_, http):
        assert append(http, names[0], 1) == 507
        assert [http.delete(f"{STREAM}/{name}").status_code for name in names] == [204] * len(names)


def test_a_large_append_leaves_room_for_its_way_from_the_log_to_the_file(disk: Path) -> None:
    with served(data=str(disk / "data"), max_body=64 * MEBIBYTE) as (_, http):
        http.put(f"{STREAM}/a", headers=BINARY)
        assert append(http, "a", 40 * MEBIBYTE) == 507
        assert append(http, "a", 20 * MEBIBYTE) == 204
        assert append(http, "a", 20 * MEBIBYTE) == 507
        assert http.delete(f"{STREAM}/a").status_code == 204


def test_new_subscriptions_are_refused_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(data=str(tmp_path)) as (_, http):
        monkeypatch.setattr(sqlite, "_MARGIN", 2**62)
        assert http.put(SUBSCRIPTION, json=PULLS).status_code == 507
        monkeypatch.undo()
        assert http.put(SUBSCRIPTION, json=PULLS).status_code == 201
        monkeypatch.setattr(sqlite, "_MARGIN", 2**62)
        assert http.delete(SUBSCRIPTION).status_code == 204


def test_a_reserve_that_finds_no_room_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no")

    assert not Reserve(tmp_path / "none" / "reserve").make()
    reserve = Reserve(tmp_path / "reserve")
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", fail)
        assert not reserve.make()
    assert (tmp_path / "reserve").stat().st_size == 0
    assert not reserve.release()
    monkeypatch.delattr("os.posix_fallocate", raising=False)
    assert reserve.make()
    assert Reserve(tmp_path / "reserve").is_made


def test_a_file_system_that_does_not_say_what_is_free_has_no_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Reserve(tmp_path / "reserve")
    assert 0 < reserve.free() < sys.maxsize
    monkeypatch.setattr("os.statvfs", lambda path: os.statvfs_result([4096, 4096, *[0] * 8]))
    assert reserve.free() == sys.maxsize


def test_a_database_that_cannot_be_opened_releases_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: WritingDatabase) -> None:
        raise StorageUnavailable("no room for the index of the log")

    monkeypatch.setattr(WritingDatabase, "_prepare", fail)
    with pytest.raises(StorageUnavailable):
        WritingDatabase(tmp_path / "streams.sqlite")  # there is no reserve yet
    Reserve(tmp_path / "reserve").make()
    with pytest.raises(StorageUnavailable):
        WritingDatabase(tmp_path / "streams.sqlite")
    assert not Reserve(tmp_path / "reserve").is_made
