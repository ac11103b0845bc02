"""Several servers on one PostgreSQL: each request may meet another one."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from purgatory.relay import Relay
from purgatory.streams.core.commands import Append, Create, Delete
from purgatory.streams.core.errors import NotFound
from purgatory.streams.core.state import Row, Stream
from purgatory.streams.core.subscriptions import Subscribe
from purgatory.streams.engine.chunk import Chunk
from purgatory.streams.engine.live import Live
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http import app
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import Database, StorageConflict, StorageError, StorageFull, StorageUnavailable
from purgatory.streams.storage.opener import opener
from purgatory.streams.storage.postgresql import errors
from tests.relay.relays import Proxy
from tests.streams.serving import Server, opened, serving
from tests.streams.test_rows import check_sizes
from tests.support.servers import PostgresServer

TEXT = {"Content-Type": "text/plain"}


@asynccontextmanager
async def serving_elsewhere(**settings: Any) -> AsyncIterator[Server]:
    """The same as `serving`, where the loop of the test goes on meanwhile."""
    context = serving(**settings)
    server = await asyncio.to_thread(context.__enter__)
    try:
        yield server
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


@contextmanager
def two(postgres: PostgresServer, **settings: Any) -> Iterator[tuple[httpx.Client, httpx.Client, list[Streams]]]:
    """Clients of two servers that share a database."""
    database = postgres.create_database()
    with (
        serving(database=database, **settings) as one,
        serving(database=database, **settings) as other,
        httpx.Client(base_url=one.url, timeout=60) as here,
        httpx.Client(base_url=other.url, timeout=60) as there,
    ):
        yield here, there, [one.application.streams, other.application.streams]


def test_answers_of_one_server_hold_for_the_other(postgres: PostgresServer) -> None:
    with two(postgres) as (here, there, _):
        for number in range(30):
            path = f"/v1/stream/{number}"
            assert here.put(path, headers=TEXT).status_code == 201
            assert there.put(path, headers=TEXT).status_code == 200
            assert there.post(path, headers=TEXT, content="a").status_code == 204
            assert here.get(path).text == "a"
            assert here.post(path, headers=TEXT, content="b").status_code == 204
            assert there.get(path).text == "ab"
            assert here.delete(path).status_code == 204
            assert there.get(path).status_code == 404


async def test_waiting_reads_are_told_of_appends_to_another_server(postgres: PostgresServer) -> None:
    with two(postgres) as (here, there, streams):
        here.put("/v1/stream/a", headers=TEXT)
        async with httpx.AsyncClient(base_url=str(there.base_url), timeout=60) as reader:
            polls = [reader.get("/v1/stream/a?offset=now&live=long-poll") for _ in range(20)]
            waiting = asyncio.gather(*polls)
            while streams[1].reads.num_delayed < 20:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.01)
            await asyncio.to_thread(here.post, "/v1/stream/a", headers=TEXT, content="x")
            assert {each.text for each in await waiting} == {"x"}


async def test_readers_miss_nothing_and_see_nothing_twice(postgres: PostgresServer) -> None:
    with two(postgres, long_poll_timeout=20.0) as (here, there, _):
        here.put("/v1/stream/a", headers={"Content-Type": "application/json"})

        async def write(url: str, name: int) -> None:
            async with httpx.AsyncClient(base_url=url, timeout=60) as writer:
                for number in range(40):
                    response = await writer.post("/v1/stream/a", json=[name, number])
                    assert response.status_code == 204

        async def read(url: str) -> list[Any]:
            found: list[Any] = []
            offset = "-1"
            async with httpx.AsyncClient(base_url=url, timeout=60) as reader:
                while len(found) < 160:
                    response = await reader.get(f"/v1/stream/a?offset={offset}&live=long-poll")
                    offset = response.headers["stream-next-offset"]
                    if response.status_code == 200:
                        found += response.json()
            return found

        urls = [str(each.base_url) for each in (here, there)]
        # The array of one is flattened into two messages: name and number.
        writes = [write(url, name) for name, url in enumerate(urls)]
        reads = asyncio.gather(*map(read, urls))
        await asyncio.gather(*writes)
        one, other = await reads
        assert one == other
        assert len(one) == 160


def test_time_to_live_is_prolonged_by_reads_from_any_server(postgres: PostgresServer) -> None:
    with two(postgres) as (here, there, _):
        here.put("/v1/stream/a", headers={"Stream-TTL": "2"})
        here.put("/v1/stream/b", headers={"Stream-TTL": "2"})
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert there.get("/v1/stream/a").status_code == 200
            time.sleep(0.2)
        assert here.get("/v1/stream/a").status_code == 200
        assert [client.get("/v1/stream/b").status_code for client in (here, there)] == [404, 404]


def test_streams_created_by_two_servers_at_once_are_new_once(postgres: PostgresServer) -> None:
    async def create() -> None:
        database = postgres.create_database()
        async with opened(Settings(database=database)) as one, opened(Settings(database=database)) as other:
            for number in range(20):
                commands = [each.run(Create(f"{number}", "text/plain")) for each in (one, other)]
                results = await asyncio.gather(*commands)
                assert sorted(each.new for each in results) == [False, True]
                subscribe = Subscribe(f"{number}", "pull-wake", "*", ("nothing",), None, "w", 1.0, None)
                views = await asyncio.gather(*(each.run(subscribe) for each in (one, other)))
                assert sorted(each.new for each in views) == [False, True]

    asyncio.run(create())


async def test_newer_change_prevails_over_an_older_look_up(postgres: PostgresServer) -> None:
    """The notification of a commit may be heard before the answer of a look that began earlier."""
    async with opened(Settings(database=postgres.create_database())) as streams:
        await streams.run(Create("a", "text/plain"))
        looking = asyncio.ensure_future(streams.find("a"))
        await asyncio.sleep(0)
        streams.invalidate()
        known = await looking
        # Another process appends twice, and its first notification is lost.
        stream = known.stream.copy()
        stream.tail, stream.version = 1, known.stream.version + 1
        streams.publish("a", stream, [Row(0, 1, b"x")])
        late = stream.copy()
        late.tail, late.version = 3, stream.version + 2
        streams.publish("a", late, [Row(2, 3, b"z")])
        assert not known.size or known.recent[0].begin == 2
        streams.publish("a", stream)
        assert streams.cache._known["a"].stream.tail == 3
        looking = asyncio.ensure_future(streams.find("a"))
        await asyncio.sleep(0)
        await streams.refresh(["a", "b"])
        await looking


async def test_look_up_does_not_hide_a_change_from_another_one(postgres: PostgresServer) -> None:
    """The answer of the first one is on its way while another process appends, and while a second one begins."""
    database = postgres.create_database()
    async with opened(Settings(database=database)) as here, opened(Settings(database=database)) as there:
        await there.run(Create("a", "text/plain"))
        read = here.store.read
        answers: asyncio.Queue[asyncio.Event] = asyncio.Queue()

        async def read_late(wanted: Callable[[Database], Any]) -> Any:
            found = await read(wanted)
            arrived = asyncio.Event()
            answers.put_nowait(arrived)
            await arrived.wait()
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(here.store, "read", read_late)
            first = asyncio.create_task(here.find("a"))
            first_answer = await answers.get()
            await there.run(Append("a", "text/plain", b"x"))
            await here.refresh(["a"])
            second = asyncio.create_task(here.find("a"))
            second_answer = await answers.get()
        first_answer.set()
        assert (await first).stream.tail == 1
        second_answer.set()
        assert (await second).stream.tail == 1


def test_streams_are_listed_in_the_order_of_their_bytes(postgres: PostgresServer) -> None:
    with two(postgres) as (here, there, _):
        names = ["b", "B", "a-b", "a/b", "aa", "é", "_"]
        for name in names:
            here.put(f"/v1/stream/{name}", headers=TEXT)
        for prefix, after in (("", ""), ("a", ""), ("a", "a-b"), ("", "_"), ("x", ""), ("B", "aa")):
            found = there.get("/v1/streams", params={"prefix": prefix, "after": after}).json()["streams"]
            expected = sorted(name for name in names if name.startswith(prefix) and name > after)
            assert [each["path"] for each in found] == expected


async def test_a_read_is_little_more_than_was_asked_for(postgres: PostgresServer) -> None:
    async with opened(Settings(database=postgres.create_database())) as streams:
        await streams.run(Create("a", "application/octet-stream"))
        await check_sizes(streams)


def test_max_streams_holds_for_all_servers_together(postgres: PostgresServer) -> None:
    with two(postgres, max_streams=3) as (here, there, _):
        statuses = [here.put(f"/v1/stream/{number}", headers=TEXT).status_code for number in range(5)]
        assert statuses == [201, 201, 201, 403, 403]
        assert there.put("/v1/stream/x", headers=TEXT).status_code == 403
        here.delete("/v1/stream/0")
        assert here.put("/v1/stream/x", headers=TEXT).status_code == 201


def test_killed_database_causes_503_until_it_is_back(postgres: PostgresServer, tmp_path: Path) -> None:
    with serving(database=postgres.create_database()) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        http.put("/v1/stream/a", headers=TEXT, content="a")
        for _ in range(3):
            postgres.kill()
            try:
                for _ in range(3):
                    responses = [http.get("/v1/stream/a"), http.post("/v1/stream/a", headers=TEXT, content="lost?")]
                    responses += [http.get("/health"), http.get("/v1/streams")]
                    assert {each.status_code for each in responses} == {503}
                    assert "postgres@" not in "".join(each.text for each in responses)
            finally:
                postgres.restart()
            end = time.monotonic() + 30
            while http.post("/v1/stream/a", headers=TEXT, content="b").status_code != 204:
                assert time.monotonic() < end
        text = http.get("/v1/stream/a").text
        assert text.replace("lost?", "").startswith("abb")


async def test_look_up_does_not_begin_anew_with_each_append(postgres: PostgresServer) -> None:
    async with opened(Settings(database=postgres.create_database())) as streams:
        await streams.run(Create("a", "text/plain"))
        await streams.find("a")
        read = streams.store.read

        async def read_and_append(wanted: Callable[[Database], Any]) -> Any:
            found = await read(wanted)
            await streams.run(Append("a", "text/plain", b"x"))
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams.store, "read", read_and_append)
            async with asyncio.timeout(60):
                assert (await streams.find("a")).stream.tail == 1


def test_connections_that_are_lost_while_idle_cost_no_request(postgres: PostgresServer) -> None:
    database = postgres.create_database()
    with serving(database=database) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        http.put("/v1/stream/a", headers=TEXT)
        for number in range(3):
            name = database.rpartition("/")[2]
            postgres.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                f" WHERE datname = '{name}' AND pid <> pg_backend_pid()"
            )
            for _ in range(3):  # by each of the threads that read
                assert http.get("/v1/stream/a").status_code == 200
            assert http.post("/v1/stream/a", headers=TEXT, content=f"{number}").status_code == 204
        assert http.get("/v1/stream/a").text == "012"


async def test_changes_of_other_processes_become_known(postgres: PostgresServer) -> None:
    database = postgres.create_database()
    async with opened(Settings(database=database)) as here, opened(Settings(database=database)) as there:
        await here.run(Create("a", "text/plain"))
        await here.refresh(["a"])
        assert "a" not in here.cache  # nothing waits for it: it is looked up when it is asked for
        read = here.wait(await here.find("a"), 0, 60.0)
        await there.run(Append("a", "text/plain", b"x"))
        await here.refresh(["a"])
        here.reads.check_and_complete("a")
        chunk = await read
        assert not isinstance(chunk, Exception)
        assert chunk.body() == b"x"
        # It is deleted there, and created here while that is looked up.
        read = here.wait(await here.find("a"), 1, 60.0)
        await there.run(Delete("a"))
        refreshing = asyncio.ensure_future(here.refresh(["a"]))
        await asyncio.sleep(0)
        stream = here.cache._known["a"].stream.copy()
        stream.id += 1
        here.publish("a", stream)
        await refreshing
        assert not here.cache._known["a"].gone
        assert isinstance(await read, NotFound)


def test_database_that_does_not_answer_causes_503(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory.streams.engine.store.PATIENCE", 1.0)
    with serving(database=postgres.create_database()) as server, httpx.Client(base_url=server.url, timeout=60) as http:
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
def test_lost_connection_tells_whether_a_transaction_may_be_stored(postgres: PostgresServer, moment: str) -> None:
    found = opener(Settings(database=postgres.create_database()))
    database = found.writer()
    ((process,),) = database.execute("SELECT pg_backend_pid()")
    with pytest.raises(StorageUnavailable) as caught, database.transaction(["a"]):
        postgres.execute(f"SELECT pg_terminate_backend({process})")
        if moment == "before":
            database.stream("b")
    assert caught.value.may_be_stored is (moment != "before")
    database.close()
    found.close()


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
    with pytest.raises(kind), errors():
        raise error


async def test_a_poll_is_told_of_nothing_new_after_a_look_at_the_database(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notifications are lost without a word, as on a connection that is silent."""
    database = postgres.create_database()
    async with opened(Settings(database=database)) as here, opened(Settings(database=database)) as there:
        await here.run(Create("a", "text/plain"))
        await here.run(Create("b", "text/plain"))
        looks: list[str] = []
        look_up = here.readers._look_up

        async def counted(path: str) -> Stream | None:
            looks.append(path)
            return await look_up(path)

        monkeypatch.setattr(here.readers, "_look_up", counted)
        reads = [here.wait(await here.find("a"), 0, 0.3) for _ in range(50)]
        (idle,) = [here.wait(await here.find("b"), 0, 0.3)]
        await there.run(Append("a", "text/plain", b"new"))
        chunks = [await read for read in reads]
        assert {chunk.body() for chunk in chunks if isinstance(chunk, Chunk)} == {b"new"}
        assert len(chunks) == 50
        nothing = await idle
        assert isinstance(nothing, Chunk)
        assert nothing.begin == nothing.end
        assert idle.outcome == "expired"
        assert looks == ["a", "b"]  # once for all fifty
        # Another read that ends within a second does without.
        assert (await here.wait(await here.find("b"), 0, 0.01)).begin == 0  # type: ignore[union-attr]
        assert looks == ["a", "b"]


async def test_polls_that_end_during_a_look_share_it(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(Settings(database=postgres.create_database())) as here:
        await here.run(Create("a", "text/plain"))
        known = await here.find("a")
        may_look = asyncio.Event()
        looks: list[str] = []
        look_up = here.readers._look_up

        async def slowly(path: str) -> Stream | None:
            looks.append(path)
            await may_look.wait()
            return await look_up(path)

        monkeypatch.setattr(here.readers, "_look_up", slowly)
        reads = [here.wait(known, 0, timeout) for timeout in (0.01, 0.02, 0.03)]
        while len(here.readers._ending.get("a", ())) < 3:  # noqa: ASYNC110 - a timer's
            await asyncio.sleep(0.01)
        may_look.set()
        assert {(await read).begin for read in reads} == {0}  # type: ignore[union-attr]
        assert looks == ["a"]


async def test_a_poll_is_told_if_the_database_cannot_be_looked_at(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(Settings(database=postgres.create_database())) as here:
        await here.run(Create("a", "text/plain"))
        read = here.wait(await here.find("a"), 0, 0.01)

        async def fail(path: str) -> Stream | None:
            raise StorageUnavailable("away")

        monkeypatch.setattr(here.readers, "_look_up", fail)
        assert isinstance(await read, StorageUnavailable)


async def test_a_database_that_is_away_is_one_line_of_the_log(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("purgatory.streams.engine.streams._AGAIN", 0.0)
    database = postgres.create_database()
    async with opened(Settings(database=database)) as here, opened(Settings(database=database)) as there:
        await here.run(Create("a", "text/plain"))
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
    assert [record.getMessage() for record in caplog.records] == [
        "streams that others have changed cannot be read yet: away"
    ]


async def test_polls_miss_nothing_while_the_connection_that_listens_is_silent(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay_of = app._relay
    async with Proxy(postgres.port) as proxy:

        def proxied(streams: Streams, database: str, live: Live) -> Relay:
            return relay_of(streams, database.replace(f":{postgres.port}/", f":{proxy.port}/"), live)

        database = postgres.create_database()
        with serving(database=database) as there:
            monkeypatch.setattr(app, "_relay", proxied)
            monkeypatch.setattr(app, "HEARTBEAT", 0.5)
            async with (
                serving_elsewhere(database=database, long_poll_timeout=3.0) as here,
                httpx.AsyncClient(base_url=here.url, timeout=60) as reader,
                httpx.AsyncClient(base_url=there.url, timeout=60) as writer,
            ):

                async def poll(path: str) -> tuple[int, str]:
                    response = await reader.get(path, params={"live": "long-poll", "offset": "-1"})
                    return response.status_code, response.text

                paths = [f"/v1/stream/{number}" for number in range(30)]
                for path in paths:
                    await writer.put(path, headers=TEXT)
                polls = [asyncio.create_task(poll(path)) for path in paths]
                while here.application.streams.reads.num_delayed < 30:  # noqa: ASYNC110 - another thread's
                    await asyncio.sleep(0.01)
                proxy.freeze()
                for path in paths:
                    await writer.post(path, headers=TEXT, content=path)
                assert await asyncio.gather(*polls) == [(200, path) for path in paths]
                proxy.cut()


async def test_a_database_that_restarts_loses_nothing_and_floods_no_log(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(database=postgres.create_database()) as server:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
            statuses: set[int] = set()
            acknowledged: list[str] = []
            numbers = itertools.count()

            async def read() -> str:
                offset, text = "-1", ""
                while not text.endswith("end"):
                    response = await http.get("/v1/stream/a", params={"live": "long-poll", "offset": offset})
                    statuses.add(response.status_code)
                    if response.status_code != 503:
                        offset, text = response.headers["stream-next-offset"], text + response.text
                return text

            async def append(text: str) -> bool:
                response = await http.post("/v1/stream/a", headers=TEXT, content=text)
                statuses.add(response.status_code)
                if response.status_code == 204:
                    acknowledged.append(text)
                return response.status_code == 204

            await http.put("/v1/stream/a", headers=TEXT)
            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(read()) for _ in range(50)]
                for _ in range(3):
                    enough = len(acknowledged) + 10
                    while len(acknowledged) < enough:
                        await append(f"{next(numbers)},")
                    postgres.kill()
                    restarting = tasks.create_task(asyncio.to_thread(postgres.restart))
                    while not restarting.done():
                        await append(f"{next(numbers)},")
                while not await append("end"):
                    pass
            texts = {await each for each in readers}
        assert statuses <= {200, 204, 503}
        assert len(texts) == 1
        stored = [int(each) for each in texts.pop().replace("end", "").split(",")[:-1]]
        assert stored == sorted(set(stored))
        assert {int(each[:-1]) for each in acknowledged[:-1]} <= set(stored)
    assert not any(record.exc_info for record in caplog.records)
    assert len(caplog.records) < len(readers), [record.getMessage() for record in caplog.records]
