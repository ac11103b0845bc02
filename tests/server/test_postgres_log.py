"""The long-poll server's log in PostgreSQL: several processes at once, and a database that is slow, silent or away."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from examples.long_poll_server import postgres as postgres_log
from examples.long_poll_server.operations import DelayedFetch, DelayedProduce
from examples.long_poll_server.postgres import BATCH, CHANNEL, CONNECTIONS, PostgresLog, prepare
from examples.long_poll_server.store import StoreFailed, StoreUnavailable, StoreUncertain
from purgatory import DelayedOperationPurgatory
from tests.support.servers import LOOPBACK, PostgresServer, free_port

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


class Log(PostgresLog):
    """With its purgatories."""

    def __init__(self, dsn: str) -> None:
        self.fetches = DelayedOperationPurgatory("fetch")
        self.produces = DelayedOperationPurgatory("produce")
        super().__init__(dsn, self.fetches, self.produces)

    def watch(self, topic: str, offset: int) -> DelayedFetch:
        """Wait for a message, for as long as the test may take."""
        return self.fetches.try_complete_else_watch(DelayedFetch(self, topic, offset, 1, 300), [topic])

    async def fetch(self, topic: str, offset: int) -> DelayedFetch:
        """As the server does: watched first, then asked for."""
        fetch = self.watch(topic, offset)
        await self.refresh([topic])
        if not fetch.done():
            fetch.try_complete()
        return fetch

    async def values(self, topic: str) -> list[Any]:
        """All there are."""
        await self.refresh([topic])
        values: list[Any] = []
        while len(values) < self.end(topic):
            page, after = await self.read(topic, len(values), self.end(topic), 10_000)
            messages = json.loads(page)
            assert [message["offset"] for message in messages] == list(range(len(values), after))
            values += [message["value"] for message in messages]
        return values


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
async def dsn(database: str) -> str:
    """A database without messages."""
    connection = await asyncpg.connect(database)
    await connection.execute("DROP SCHEMA IF EXISTS long_poll CASCADE")
    await connection.close()
    await prepare(database)
    return database


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[Log]:
    log = Log(dsn)
    await log.start()
    try:
        yield log
    finally:
        await log.close()
        await log.fetches.aclose()
        await log.produces.aclose()


class Way:
    """The way to a database, on which an answer may be held up, and lost."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._held_up: bytes | None = None
        self.holds = asyncio.Event()
        """Set when an answer is held up."""
        self._goes_on = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._connections: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Way":
        await self.open(0)
        port = self._server.sockets[0].getsockname()[1]
        self.dsn = self._dsn.replace(f":{urlsplit(self._dsn).port}/", f":{port}/")
        return self

    async def open(self, port: int | None) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, LOOPBACK, port)

    async def __aexit__(self, *_: object) -> None:
        self._goes_on.set()
        self.close()
        await asyncio.gather(*self._connections)

    def close(self) -> None:
        """Cut all connections, and take no more."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    def hold_up(self, value: bytes) -> None:
        """Hold up what the database says on the connection on which `value` is sent, from its answer to that on."""
        self._held_up = value

    def go_on(self) -> None:
        """Let it through."""
        self._goes_on.set()

    def cut(self) -> None:
        """Cut that connection."""
        assert self._writer is not None
        self._writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._connections.append(asyncio.create_task(self._connect(reader, writer)))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(LOOPBACK, urlsplit(self._dsn).port)
        goes_on: asyncio.Event | None = None

        async def ask() -> None:
            nonlocal goes_on
            while data := await reader.read(65536):
                if self._held_up is not None and self._held_up in data:
                    self._held_up = None
                    self._writer = writer
                    goes_on = self._goes_on
                    self.holds.set()
                there[1].write(data)

        async def answer() -> None:
            while data := await there[0].read(65536):
                if goes_on is not None:
                    await goes_on.wait()
                writer.write(data)

        asking, answering = asyncio.create_task(ask()), asyncio.create_task(answer())
        await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
        for task in (asking, answering):
            task.cancel()
        await asyncio.gather(asking, answering, return_exceptions=True)
        for one in (writer, there[1]):
            one.close()
            with suppress(ConnectionError):
                await one.wait_closed()


async def stored(dsn: str) -> int:
    """How many messages there are."""
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval("SELECT count(*) FROM long_poll.messages")
        return found
    finally:
        await connection.close()


class TestSeveralProcesses:
    async def test_concurrent_publishers_share_a_transaction(self, dsn: str) -> None:
        async with opened(dsn) as log:
            assert await asyncio.gather(*(log.append("news", str(n)) for n in range(500))) == list(range(500))
        connection = await asyncpg.connect(dsn)
        transactions = await connection.fetchval("SELECT count(DISTINCT xmin::text) FROM long_poll.messages")
        assert transactions <= 500 / BATCH + 1
        await connection.close()

    async def test_a_reader_never_sees_a_gap_and_no_writer_waits_for_another(self, dsn: str) -> None:
        topics = [f"topic-{n}" for n in range(BATCH)]
        draw = random.Random(7)

        async def publish(log: Log, writer: int) -> None:
            for number in range(12):
                await asyncio.gather(
                    *(log.append(topic, f"[{writer},{number}]") for topic in draw.sample(topics, len(topics)))
                )

        async with opened(dsn) as a, opened(dsn) as b, opened(dsn) as c, opened(dsn) as reader:
            publishing = asyncio.gather(*(publish(log, n) for n, log in enumerate((a, b, c))))
            seen: dict[str, list[Any]] = {topic: [] for topic in topics}
            while not publishing.done():
                for topic in topics[:10]:
                    values = await reader.values(topic)  # which looks at the offsets
                    assert values[: len(seen[topic])] == seen[topic], "what was read once does not change"
                    seen[topic] = values
            await publishing
            for topic in topics:
                values = await reader.values(topic)
                assert sorted(values) == [[writer, number] for writer in range(3) for number in range(12)]
                for writer in range(3):
                    assert [number for at, number in values if at == writer] == list(range(12))

    async def test_a_fetch_is_woken_by_a_message_of_another_process(self, dsn: str) -> None:
        async with opened(dsn) as a, opened(dsn) as b:
            for offset in range(20):
                fetch = await a.fetch("news", offset)
                assert not fetch.done()
                await b.append("news", "1")
                assert await fetch == offset + 1

    @pytest.mark.parametrize("bad", [r"\u0000", r"\ud800", "no topic", "a/b"])
    async def test_a_notification_of_no_topic_does_no_harm(self, dsn: str, bad: str) -> None:
        async with opened(dsn) as a, opened(dsn) as b:
            fetch = await a.fetch("news", 0)
            await b.append("news", "0")
            await fetch  # it listens
            connection = await asyncpg.connect(dsn)
            await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, f'{{"keys":["{bad}"]}}')
            await connection.close()
            for offset in (1, 2, 3):
                fetch = await a.fetch("news", offset)
                await b.append("news", "1")
                assert await fetch == offset + 1
            assert a._relay.statistics().failures == 0

    async def test_a_produce_is_woken_by_a_replica_at_another_process(self, dsn: str) -> None:
        async with opened(dsn) as a, opened(dsn) as b:
            produce = a.produces.try_complete_else_watch(DelayedProduce(a, "news", 2, 300), ["news"])
            produce.offset = await a.append("news", "1")
            await b.acknowledge("news", "r1", 1)
            await b.acknowledge("news", "r1", 1)
            await a.acknowledge("news", "r2", 0)
            assert not produce.try_complete()
            await b.acknowledge("news", "r2", 1)
            assert await produce is True

    async def test_a_known_end_does_not_go_backwards_when_answers_overtake_each_other(self, dsn: str) -> None:
        async with Way(dsn) as way, opened(way.dsn) as log, opened(dsn) as other:
            fetch = await log.fetch("news", 0)
            await other.append("news", "0")
            await fetch  # it listens, and knows of all topics: from now on it asks for some
            way.hold_up(b"mark")
            asking = asyncio.create_task(log.refresh(["news", "mark"]))
            await way.holds.wait()
            while log.end("news") < 5:
                await log.append("news", "1")
            way.go_on()
            await asking
            assert log.end("news") == 5
            assert await other.append("news", "1") == 5

    async def test_topics_that_others_make_are_counted(self, dsn: str) -> None:
        async with opened(dsn) as a:
            for n in range(3):
                await a.append(f"topic-{n}", "1")
            async with opened(dsn) as b:
                await b.refresh(["any"])
                assert b.topics == 3
                fetch = await b.fetch("another", 0)
                await a.append("another", "1")
                await fetch
                assert b.topics == a.topics == 4


class TestTrouble:
    async def test_the_answer_waits_for_the_disk_whatever_the_database_does_by_default(self, dsn: str) -> None:
        async with opened(dsn) as log:
            assert await log._execute("SHOW synchronous_commit") == [("on",)]

    async def test_a_refused_message_leaves_no_gap_and_is_never_read(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute("ALTER TABLE long_poll.messages ADD CHECK (value <> '13')")
        await connection.close()
        async with opened(dsn) as log, opened(dsn) as other:
            assert await log.append("news", "0") == 0
            await other.refresh(["news"])
            with pytest.raises(StoreFailed, match="violates check constraint"):
                await log.append("news", "13")
            assert log.end("news") == 1
            assert await log.append("news", "1") == 1
            assert await other.values("news") == [0, 1]

    async def test_a_database_that_takes_too_long_is_not_waited_for(
        self, dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_log, "WORKING", 0.2)
        async with opened(dsn) as log:
            await log.append("news", "0")
            connection = await asyncpg.connect(dsn)
            async with connection.transaction():
                await connection.execute("SELECT FROM long_poll.topics FOR UPDATE")
                with pytest.raises(StoreUnavailable, match="takes too long") as raised:
                    await log.append("news", "lost")
                assert not isinstance(raised.value, StoreUncertain)
            await connection.close()
            assert await log.append("news", "1") == 1
            assert await log.values("news") == [0, 1]

    async def test_a_database_that_says_nothing_is_given_up(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres_log, "HANGING", 0.5)
        async with Way(dsn) as way, opened(way.dsn) as log:
            way.hold_up(b'"mark"')
            with pytest.raises(StoreUncertain):
                await log.append("news", '"mark"')
            assert await stored(dsn) == 1
            assert await log.append("news", "1") == 1

    async def test_a_database_that_hangs_holds_up_no_request_however_many_come(
        self, dsn: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_log, "HANGING", 300)  # requests with a connection wait as long as it hangs
        async with opened(dsn) as log:
            await log.append("news", "0")
            await asyncio.gather(*(log.read("news", 0, 1, 10) for _ in range(60)))  # it has all its connections
            # Short while the database hangs, and no shorter than usual before and after: a busy machine may be slow.
            with postgres.frozen(), monkeypatch.context() as patch:
                patch.setattr(postgres_log, "CONNECTING", 0.2)
                patch.setattr(postgres_log, "PATIENCE", 0.2)
                reads = [asyncio.create_task(log.read("news", 0, 1, 10)) for _ in range(60)]
                while sum(read.done() for read in reads) < 60 - CONNECTIONS:
                    await asyncio.wait([read for read in reads if not read.done()], return_when=asyncio.FIRST_COMPLETED)
                others = await asyncio.gather(
                    *(log.append("news", '"late"') for _ in range(3 * BATCH)),
                    *(log.refresh(["news"]) for _ in range(60)),
                    return_exceptions=True,
                )
                assert {type(error) for error in others} <= {StoreUnavailable, StoreUncertain}
            for error in await asyncio.gather(*reads, return_exceptions=True):
                assert isinstance(error, (StoreUnavailable, tuple))
            assert await log.append("news", "1") <= 1 + BATCH, "a message whose publisher has gone is not stored"

    async def test_a_fetch_is_woken_even_if_the_answer_to_the_publisher_is_lost(self, dsn: str) -> None:
        async with Way(dsn) as way, opened(way.dsn) as log, opened(dsn) as other:
            here, there = await log.fetch("news", 0), await other.fetch("news", 0)
            # Both hear of it: they listen.
            await other.append("news", "0")
            assert (await here, await there) == (1, 1)
            here, there = await log.fetch("news", 1), await other.fetch("news", 1)
            way.hold_up(b'"mark"')
            appending = asyncio.create_task(log.append("news", '"mark"'))
            await way.holds.wait()
            assert (await here, await there) == (2, 2)
            assert not appending.done()
            way.cut()
            with pytest.raises(StoreUncertain):
                await appending
            assert await log.append("news", "1") == 2
            assert await log.values("news") == [0, "mark", 1]

    async def test_a_connection_that_is_ended_before_the_commit_stores_nothing(self, dsn: str) -> None:
        async with opened(dsn) as log:
            await log.append("news", "0")
            connection = await asyncpg.connect(dsn)
            async with connection.transaction():
                await connection.execute("SELECT FROM long_poll.topics FOR UPDATE")
                appending = asyncio.create_task(log.append("news", "lost"))
                while (process := await connection.fetchval("SELECT pid FROM pg_locks WHERE NOT granted")) is None:
                    pass
                await connection.execute("SELECT pg_terminate_backend($1)", process)
                with pytest.raises(StoreUncertain):
                    await appending
            await connection.close()
            assert await log.append("news", "1") == 1
            assert await log.values("news") == [0, 1]

    async def test_a_database_that_is_away_is_told_of_at_once_and_nothing_is_stored(self) -> None:
        async with opened(f"postgresql://postgres@{LOOPBACK}:{free_port()}/none") as log:
            for asking in (log.append("news", "0"), log.refresh(["news"]), log.acknowledge("news", "r1", 0)):
                with pytest.raises(StoreUnavailable, match="cannot be reached") as raised:
                    await asking
                assert not isinstance(raised.value, StoreUncertain)
            # Requests that need no database are answered.
            assert await log.read("news", 0, 0, 10) == ("[]", 0)

    async def test_a_log_that_began_without_its_database_catches_up(self, dsn: str) -> None:
        async with Way(dsn) as way, opened(dsn) as other:
            way.close()
            async with opened(way.dsn) as log:
                fetch = log.watch("news", 0)
                with pytest.raises(StoreUnavailable):
                    await log.refresh(["news"])
                await other.append("news", "0")
                await way.open(urlsplit(way.dsn).port)
                assert await fetch == 1

    async def test_a_message_stored_while_the_connection_was_lost_is_known_afterwards(self, dsn: str) -> None:
        async with Way(dsn) as way, opened(way.dsn) as log, opened(dsn) as other:
            fetch = await log.fetch("news", 0)
            await other.append("news", "0")
            assert await fetch == 1  # it listens
            fetch = await log.fetch("news", 1)
            way.close()
            await other.append("another", "0")
            await other.append("news", "1")
            assert not fetch.done()
            await way.open(urlsplit(way.dsn).port)
            assert await fetch == 2
            assert log.topics == 2
            assert log.end("another") == 1


class TestPrepare:
    async def test_many_may_do_it_at_once(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute("DROP SCHEMA long_poll CASCADE")
        await connection.close()
        await asyncio.gather(*(prepare(dsn) for _ in range(10)))
        async with opened(dsn) as log:
            assert await log.append("news", "0") == 0
        await prepare(dsn)
        assert await stored(dsn) == 1

    async def test_a_user_that_may_not_make_tables_may_use_them(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        role = f"user_of_{urlsplit(dsn).path[1:]}"
        await connection.execute(
            f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA long_poll TO {role};"
            f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA long_poll TO {role}"
        )
        await connection.close()
        theirs = dsn.replace("postgres@", f"{role}@")
        await prepare(theirs)
        async with opened(theirs) as log:
            assert await log.append("news", "0") == 0
            await log.acknowledge("news", "r1", 1)
            assert log.count("news", 0) == 1

    async def test_a_bad_address_of_a_database_is_refused(self) -> None:
        for dsn in ("postgresql://u:secret/word@host/db", "mysql://host/db", "postgresql://host:port/db"):
            with pytest.raises(ValueError, match="no address of a PostgreSQL database"):
                await prepare(dsn)
        with pytest.raises(StoreUnavailable, match="Connect call failed"):
            await prepare(f"postgresql://{LOOPBACK}:{free_port()}/none")
