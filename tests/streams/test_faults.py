"""A database that fails at each statement in turn, of each kind of request."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import httpx
import psycopg
import pytest

from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import StorageUnavailable
from purgatory.streams.storage.opener import opener
from purgatory.streams.storage.postgresql import PostgresDatabase
from tests.streams.processes import TEXT
from tests.streams.serving import served, serving
from tests.support.servers import PostgresServer

STREAM = "/v1/stream"
SUBSCRIPTION = f"{STREAM}/__ds/subscriptions/s"


def producer(seq: int) -> dict[str, str]:
    return {**TEXT, "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(seq)}


def requests() -> dict[str, tuple[httpx.Request, set[int]]]:
    """Requests that each need the database, in this order, and the statuses with which they succeed."""
    made: dict[str, tuple[httpx.Request, set[int]]] = {}

    def add(name: str, method: str, path: str, statuses: set[int], **options: Any) -> None:
        made[name] = httpx.Request(method, f"http://localhost{path}", **options), statuses

    pulls = {"type": "pull-wake", "pattern": "a*", "wake_stream": "wakes"}
    add("create", "PUT", f"{STREAM}/a", {200, 201}, headers=TEXT, content="a")
    add("subscribe", "PUT", SUBSCRIPTION, {200, 201}, json=pulls)
    add("append", "POST", f"{STREAM}/a", {204}, headers=TEXT, content="b")
    add("produce", "POST", f"{STREAM}/a", {200, 204}, headers=producer(0), content="c")
    add("read", "GET", f"{STREAM}/a?offset=-1", {200})
    add("head", "HEAD", f"{STREAM}/a", {200})
    add("long poll", "GET", f"{STREAM}/a?offset=-1&live=long-poll", {200})
    add("claim", "POST", f"{SUBSCRIPTION}/claim", {200, 409}, json={"worker": "w"})
    add("look", "GET", SUBSCRIPTION, {200})
    add("fork", "PUT", f"{STREAM}/fork", {200, 201}, headers={"Stream-Forked-From": f"{STREAM}/a"})
    add("delete", "DELETE", f"{STREAM}/a", {204, 404, 410})
    add("read the fork", "GET", f"{STREAM}/fork?offset=-1", {200})
    add("close", "POST", f"{STREAM}/fork", {204}, headers={**TEXT, "Stream-Closed": "true"})
    add("list", "GET", "/v1/streams", {200})
    add("health", "GET", "/health", {200, 503})
    add("unsubscribe", "DELETE", SUBSCRIPTION, {204, 404})
    return made


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
        serving(database=postgres.create_database()) as server,
        httpx.Client(base_url=server.url, timeout=60, headers={"Host": "localhost"}) as http,
    ):
        faults = Faults(superuser)
        for name in ("execute", "execute_many"):
            faults.patch(monkeypatch, name)
        for name, (request, statuses) in requests().items():
            request.url = httpx.URL(server.url).join(request.url.raw_path.decode())
            for statement in range(100):
                faults.left = statement
                response = http.send(request)
                answered, faults.left = faults.left is not None, None
                if answered:
                    assert response.status_code in statuses, (name, statement, response.text)
                    break
                failures += 1
                # The fault may have hit what the server does by itself meanwhile.
                assert response.status_code in {503, *statuses}, (name, statement, response.text)
                if response.status_code == 503:
                    assert response.headers["retry-after"] == "1"
                    assert http.send(request).status_code in statuses, (name, statement)
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
        for name, (request, statuses) in requests().items():
            request.url = httpx.URL(server.url).join(request.url.raw_path.decode())
            step = 1
            while True:
                writing: Any = streams.store._writing
                if writing is not None:
                    with interrupted(writing.connection, step, times) as hits:
                        response = http.send(request)
                    if not hits:
                        assert response.status_code in statuses, (name, step, response.text)
                        break
                    assert response.status_code in {500, 503, *statuses}, (name, step, response.text)
                    statuses_of_failures.add(response.status_code)
                    step = step * 5 // 4 + 1
                assert http.send(request).status_code in statuses, (name, step)
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
