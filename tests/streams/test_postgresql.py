"""Several servers on one PostgreSQL: each request may meet another one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import httpx
import psycopg
import pytest

from purgatory.streams.core.commands import Append, Create, Delete
from purgatory.streams.core.errors import NotFound
from purgatory.streams.core.state import Row, Stream
from purgatory.streams.core.subscriptions import Subscribe
from purgatory.streams.engine.cache import Cache, Chunk
from purgatory.streams.engine.streams import Streams
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import Database, StorageConflict, StorageError, StorageFull, StorageUnavailable
from purgatory.streams.storage.opener import opener
from purgatory.streams.storage.postgresql import errors
from tests.streams.processes import TEXT
from tests.streams.serving import answers_held, applied, opened, served, serving
from tests.support.servers import PostgresServer


@pytest.fixture
async def here(database: str) -> AsyncIterator[Streams]:
    async with opened(Settings(database=database)) as streams:
        await streams.run(Create("a", "text/plain"))
        yield streams


@pytest.fixture
async def there(here: Streams, database: str) -> AsyncIterator[Streams]:
    """The same streams in another process."""
    async with opened(Settings(database=database)) as streams:
        yield streams


async def test_readers_miss_nothing_and_see_nothing_twice(database: str) -> None:
    with served(database=database) as (here, http), serving(database=database) as there:
        http.put("/v1/stream/a", json=[])

        async def write(url: str, name: int) -> None:
            async with httpx.AsyncClient(base_url=url, timeout=60) as writer:
                for number in range(40):
                    response = await writer.post("/v1/stream/a", json=[[name, number]])
                    assert response.status_code == 204

        async def read(url: str) -> list[Any]:
            found: list[Any] = []
            offset = "-1"
            async with httpx.AsyncClient(base_url=url, timeout=60) as reader:
                while len(found) < 80:
                    response = await reader.get(f"/v1/stream/a?offset={offset}&live=long-poll")
                    offset = response.headers["stream-next-offset"]
                    if response.status_code == 200:
                        found += response.json()
            return found

        urls = [here.url, there.url]
        one, other, *_ = await asyncio.gather(*map(read, urls), *map(write, urls, (0, 1)))
        assert one == other
        assert sorted(one) == [[name, number] for name in (0, 1) for number in range(40)]


async def test_time_to_live_is_prolonged_by_reads_from_any_server(
    here: Streams, there: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = here.now()
    for streams in (here, there):
        monkeypatch.setattr(streams._opener, "now", lambda: now)
    for path in ("read", "unread"):
        await here.run(Create(path, "text/plain", 10))
    for _ in range(3):
        now += 9
        there.touch(await there.find("read"))
        await there._background.join()
    for streams in (here, there):
        assert (await streams.find("read")).stream.path == "read"
        with pytest.raises(NotFound):
            await streams.find("unread")


async def test_streams_and_subscriptions_created_by_two_servers_at_once_are_new_once(
    here: Streams, there: Streams
) -> None:
    for number in range(20):
        created = await asyncio.gather(*(each.run(Create(f"{number}", "text/plain")) for each in (here, there)))
        subscribe = Subscribe(f"{number}", "pull-wake", "*", ("nothing",), None, "w", 1.0, None)
        subscribed = await asyncio.gather(*(each.run(subscribe) for each in (here, there)))
        assert sorted(each.new for each in created) == sorted(each.new for each in subscribed) == [False, True]


def test_an_older_stream_does_not_replace_a_newer_one_and_rows_have_no_gap() -> None:
    """The notification of a commit may be heard before the answer of a look that began earlier."""

    def stream(tail: int) -> Stream:
        return Stream(1, "a", "text/plain", "text/plain", "", tail=tail, version=tail)

    cache = Cache()
    known = cache.remember(stream(1), [Row(0, 1, b"x")])
    cache.remember(stream(3), [Row(2, 3, b"z")])  # that of the second byte is lost
    assert list(known.recent) == [Row(2, 3, b"z")]
    assert cache.remember(stream(2)) is known
    assert known.stream.tail == 3


@pytest.mark.parametrize("heard", [True, False])
async def test_look_up_does_not_hide_a_change_from_another_one(here: Streams, there: Streams, heard: bool) -> None:
    """The answer of the first one is on its way while another process appends, and while a second one begins."""
    with answers_held(here.store) as answers:
        first = asyncio.create_task(here.find("a"))
        first_answer = await answers.get()
        await there.run(Append("a", "text/plain", b"x"))
        if heard:
            await here.refresh(["a"])
        else:
            here.invalidate()  # notifications were lost
        second = asyncio.create_task(here.find("a"))
        second_answer = await answers.get()
    first_answer.set()
    assert (await first).stream.tail == 1
    second_answer.set()
    assert (await second).stream.tail == 1


async def test_look_up_does_not_begin_anew_with_each_append(here: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    await here.find("a")
    read = here.store.read

    async def read_and_append(wanted: Callable[[Database], Any]) -> Any:
        found = await read(wanted)
        await here.run(Append("a", "text/plain", b"x"))
        return found

    monkeypatch.setattr(here.store, "read", read_and_append)
    async with asyncio.timeout(60):
        assert (await here.find("a")).stream.tail == 1


def test_pages_are_in_the_order_of_their_bytes_whatever_the_database_sorts_by(postgres: PostgresServer) -> None:
    postgres.execute("CREATE DATABASE dictionary TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'")
    names = sorted(["b", "B", "a-b", "a/b", "aa", "é", "_"])
    with closing(opener(Settings(database=postgres.dsn("dictionary"))).writer()) as database:
        applied(database, Subscribe("s", "pull-wake", None, tuple(names), None, "w", 1.0, None))
        applied(database, *(Create(name, "text/plain", body=b"x") for name in names))
        assert [each.path for each in database.pending("s", 3)] == names[:3]
        for after in ("", "B", "_", "aa", "é"):
            expected = [name for name in names if name > after][:4]
            assert [each.path for each in database.listed("", after, 4)] == expected
            assert [each.path for each in database.linked("s", after, 4)] == expected


def test_max_streams_holds_for_all_servers_together(database: str) -> None:
    settings: dict[str, Any] = {"database": database, "max_streams": 3}
    with served(**settings) as (_, here), served(**settings) as (_, there):
        statuses = [here.put(f"/v1/stream/{number}", headers=TEXT).status_code for number in range(5)]
        assert statuses == [201, 201, 201, 403, 403]
        assert there.put("/v1/stream/x", headers=TEXT).status_code == 403
        here.delete("/v1/stream/0")
        assert here.put("/v1/stream/x", headers=TEXT).status_code == 201


def test_killed_database_causes_503_and_few_lines_of_the_log(
    postgres: PostgresServer, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with served(database=database) as (_, http):
        http.put("/v1/stream/a", headers=TEXT, content="a")
        postgres.kill()
        try:
            responses = []
            for _ in range(20):
                responses += [http.get(path) for path in ("/v1/stream/a", "/health", "/v1/streams")]
                responses += [http.post("/v1/stream/a", headers=TEXT, content="lost?")]
        finally:
            postgres.restart()
        assert {each.status_code for each in responses} == {503}
        assert "postgres@" not in "".join(each.text for each in responses)
        while http.post("/v1/stream/a", headers=TEXT, content="b").status_code != 204:
            pass
        assert http.get("/v1/stream/a").text.replace("lost?", "") == "ab"
    assert len(caplog.records) < 20, caplog.messages
    assert not any(record.exc_info for record in caplog.records)


def test_connections_that_are_lost_while_idle_cost_no_request(postgres: PostgresServer, database: str) -> None:
    with served(database=database) as (_, http):
        http.put("/v1/stream/a", headers=TEXT)
        postgres.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            f" WHERE datname = '{database.rpartition('/')[2]}' AND pid <> pg_backend_pid()"
        )
        for _ in range(3):  # by each of the threads that read
            assert http.get("/v1/stream/a").status_code == 200
        assert http.post("/v1/stream/a", headers=TEXT, content="x").status_code == 204


async def test_a_stream_that_is_created_again_here_is_not_hidden_by_its_deletion_there(
    here: Streams, there: Streams
) -> None:
    read = here.wait(await here.find("a"), 0, 60.0)
    await there.run(Delete("a"))
    refreshing = asyncio.ensure_future(here.refresh(["a"]))
    await asyncio.sleep(0)
    stream = here.cache._cached["a"].stream.copy()
    stream.id += 1
    here.publish("a", stream)
    await refreshing
    assert not here.cache._cached["a"].gone
    assert isinstance(await read, NotFound)


def test_database_that_does_not_answer_causes_503(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purgatory.streams.engine.store.PATIENCE", 1.0)
    with served(database=database) as (server, http):
        http.put("/v1/stream/a", headers=TEXT)
        with postgres.frozen():
            assert http.get("/v1/stream/a").status_code == 503
            response = http.post("/v1/stream/a", headers=TEXT, content="x")
            assert (response.status_code, "may be stored" in response.text) == (503, True)
            server.should_exit = True
            server.thread.join(60)
            assert not server.thread.is_alive()
    for thread in threading.enumerate():
        if thread.name == "streams-closing":
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("moment", ["before", "at the commit"])
def test_lost_connection_tells_whether_a_transaction_may_be_stored(
    postgres: PostgresServer, database: str, moment: str
) -> None:
    with closing(opener(Settings(database=database)).writer()) as writer:
        ((process,),) = writer.execute("SELECT pg_backend_pid()")
        with pytest.raises(StorageUnavailable) as caught, writer.transaction(["a"]):
            postgres.execute(f"SELECT pg_terminate_backend({process})")
            if moment == "before":
                writer.stream("b")
    assert caught.value.may_be_stored is (moment != "before")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.DeadlockDetected("x"), StorageConflict),
        (psycopg.errors.DiskFull("x"), StorageFull),
        (psycopg.errors.QueryCanceled("x"), StorageUnavailable),
        (psycopg.errors.ReadOnlySqlTransaction("x"), StorageUnavailable),
        (psycopg.errors.AdminShutdown("x"), StorageUnavailable),
        (psycopg.errors.UndefinedTable("x"), StorageError),
    ],
)
def test_errors_of_the_driver_become_errors_of_the_storage(error: psycopg.Error, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, errors():
        raise error
    assert type(caught.value) is kind


async def test_a_poll_is_told_of_nothing_new_after_a_look_at_the_database(
    here: Streams, there: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notifications are lost without a word, as on a connection that is silent."""
    monkeypatch.setattr("purgatory.streams.engine.readers._FRESH", 300.0)
    await here.run(Create("b", "text/plain"))
    looks: list[str] = []
    appended = asyncio.Event()
    look_up = here.readers._look_up

    async def counted(path: str) -> Stream | None:
        looks.append(path)
        await appended.wait()
        return await look_up(path)

    monkeypatch.setattr(here.readers, "_look_up", counted)
    known, nothing_new = await here.find("a"), await here.find("b")
    reads = [here.wait(known, 0, 0.1) for _ in range(50)]
    idle = here.wait(nothing_new, 0, 0.1)
    await there.run(Append("a", "text/plain", b"new"))
    appended.set()
    chunks = [await read for read in reads]
    assert [chunk.body() for chunk in chunks if isinstance(chunk, Chunk)] == [b"new"] * 50
    nothing = await idle
    assert isinstance(nothing, Chunk)
    assert (nothing.begin, nothing.end, idle.outcome) == (0, 0, "expired")
    assert looks == ["a", "b"]  # once for all fifty
    # Another read that ends soon after does without.
    assert (await here.wait(nothing_new, 0, 0.01)).begin == 0  # type: ignore[union-attr]
    assert looks == ["a", "b"]


async def test_a_poll_is_told_if_the_database_cannot_be_looked_at(
    here: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = here.wait(await here.find("a"), 0, 0.01)

    async def fail(path: str) -> Stream | None:
        raise StorageUnavailable("away")

    monkeypatch.setattr(here.readers, "_look_up", fail)
    assert isinstance(await read, StorageUnavailable)


async def test_a_database_that_is_away_is_one_line_of_the_log(
    here: Streams, there: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("purgatory.streams.engine.streams._AGAIN", 0.0)
    await here.refresh(["a"])
    assert "a" not in here.cache  # nothing waits for it: it is looked up when it is asked for
    read = here.wait(await here.find("a"), 0, 60.0)
    await there.run(Append("a", "text/plain", b"new"))
    failures = [StorageUnavailable("away")] * 100
    store_read = here.store.read

    async def fail(reading: Any) -> Any:
        if failures:
            raise failures.pop()
        return await store_read(reading)

    monkeypatch.setattr(here.store, "read", fail)
    await here.refresh(["a"])
    chunk = await read
    assert isinstance(chunk, Chunk)
    assert chunk.body() == b"new"
    assert caplog.messages == ["streams that others have changed cannot be read yet: away"]
