"""The relay over a real Redis and a real PostgreSQL, which are killed, between real processes."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from redis.asyncio import Redis

from purgatory import DelayedOperationPurgatory
from purgatory.relay import Relay, RelayError
from purgatory.relay.postgres import PostgresBroker
from purgatory.relay.redis import RedisBroker
from tests.relay.relays import Grown, Process, Proxy
from tests.relay.writer import SharedNumbers, broker
from tests.support.operations import turn
from tests.support.paths import ROOT
from tests.support.servers import PostgresServer, RedisServer, reserved_port

ON_ASYNCIO = pytest.mark.asyncio(loop_factories=["asyncio"])


class Server:
    """A real broker."""

    def __init__(self, process: RedisServer | PostgresServer) -> None:
        self.process = process
        self.channel = f"test-{uuid4().hex}"
        # Connections bear the name of the channel, too.
        if isinstance(process, RedisServer):
            self.url = f"{process.url}?client_name={self.channel}"
        else:
            self.url = f"{process.dsn()}?application_name={self.channel}"

    def url_by(self, port: int) -> str:
        return self.url.replace(str(self.process.port), str(port))

    def broker(self, url: str = "") -> Any:
        return broker(url or self.url, self.channel)

    @asynccontextmanager
    async def outside(self) -> AsyncIterator["Outside"]:
        """A connection of a client that does not use the relay."""
        if isinstance(self.process, RedisServer):
            async with Redis.from_url(self.process.url) as redis:
                yield Outside(self.channel, redis, None)
        else:
            connection = await asyncpg.connect(self.process.dsn())
            yield Outside(self.channel, None, connection)
            await connection.close()


class Outside:
    def __init__(self, channel: str, redis: Any, postgres: Any) -> None:
        self.channel = channel
        self.redis = redis
        self.postgres = postgres

    async def publish(self, payload: str) -> None:
        if self.redis is not None:
            await self.redis.publish(self.channel, payload)
        else:
            await self.postgres.execute("SELECT pg_notify($1, $2)", self.channel, payload)

    async def hang_up(self) -> None:
        """Close the connections of all listening clients."""
        if self.redis is not None:
            await self.redis.client_kill_filter(_type="pubsub")
        else:
            await self.postgres.execute(f"SELECT pg_terminate_backend(pid) {CONNECTIONS}", self.channel)

    async def connections(self) -> int:
        """The number of connections of the relays."""
        if self.redis is not None:
            return sum(client["name"] == self.channel for client in await self.redis.client_list())
        return int(await self.postgres.fetchval(f"SELECT count(*) {CONNECTIONS}", self.channel))


CONNECTIONS = "FROM pg_stat_activity WHERE application_name = $1"


@pytest.fixture(params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.getfixturevalue(request.param))
    yield server
    server.process.restart()  # for the others, if it has been killed


async def until(relay: Relay, **wanted: Any) -> None:
    """Return when the statistics say so; the time-out of the test is the bound."""
    while any(getattr(relay.statistics(), name) != value for name, value in wanted.items()):
        await turn()


async def test_keys_of_any_text_arrive_as_they_are(server: Server) -> None:
    keys = ["", "\0", "a\0b", "é", "日本", "🜂" * 600, "\ud800", "\"\\'", "null", "x" * 7933, "\r\n", "  ", "%s{}"]
    async with Process({}, server.broker()) as there, Relay(broker=server.broker()) as relay:
        relay.notify(*keys)
        await relay.flush()
        while sum(map(len, there.refreshed)) < len(keys):
            await turn()
        assert [key for some in there.refreshed for key in some] == keys


async def test_other_clients_may_notify_in_json_and_do_no_harm_by_anything_else(server: Server) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    state: dict[str, int] = {}
    async with Process(state, server.broker()) as here, server.outside() as outside:
        for payload in ("topic-1", "{", "[]", '{"keys": 7}'):
            await outside.publish(payload)
        await until(here.relay, malformed=4)
        waiting = [here.watch("é"), here.watch("b")]
        state["é"] = 1
        await outside.publish(json.dumps({"keys": ["é"]}, ensure_ascii=False))
        await waiting[0]
        state["b"] = 1
        await outside.publish('{"keys": null}')
        await waiting[1]
    assert len(faults) == 4


async def test_a_relay_whose_connection_was_closed_makes_up_for_missed_messages(server: Server) -> None:
    state: dict[str, int] = {}
    async with Process(state, server.broker()) as here, server.outside() as outside:
        for times in range(1, 4):
            waiting = here.watch("key")
            await outside.hang_up()
            state["key"] = times
            assert await waiting == times
            await until(here.relay, connected=True, reconnects=times)


async def test_ping_is_answered_by_a_connection_that_listens(server: Server) -> None:
    async with server.broker().connect(str) as connection:
        listening = asyncio.create_task(connection.listen())
        for _ in range(2):
            await connection.ping()
        assert not listening.done()
        listening.cancel()


async def test_relay_that_is_left_keeps_no_connection_and_no_task(server: Server) -> None:
    async with server.outside() as outside:
        async with Process({}, server.broker()) as here:
            here.grow("key")
            assert await outside.connections() > 0
        while await outside.connections() > 0:
            pass
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_broker_that_is_not_there_is_an_error_at_the_start(server: Server) -> None:
    with pytest.raises(RelayError, match="the broker cannot be reached: Conn"):
        await Relay(broker=server.broker(server.url_by(reserved_port()))).__aenter__()
    async with Proxy(server.process.port) as proxy:
        proxy.freeze()
        with pytest.raises(RelayError, match=r"the broker has not answered for 0\.2 seconds"):
            await Relay(broker=server.broker(server.url_by(proxy.port)), heartbeat=0.2).__aenter__()


async def test_a_peer_that_has_vanished_without_a_word_is_noticed(server: Server) -> None:
    state: dict[str, int] = {}
    async with Proxy(server.process.port) as proxy:
        far = server.broker(server.url_by(proxy.port))
        async with Process(state, server.broker()) as here, Process(state, far, heartbeat=2.0) as there:
            proxy.freeze()
            waiting = [there.watch("news"), here.watch("answer")]
            here.grow("news")
            there.grow("answer")
            await here.relay.flush()
            await until(there.relay, connected=False)
            assert not any(operation.done() for operation in waiting)
            # The new connections go through; bytes held back on the old ones arrive late or never.
            proxy.cut()
            proxy.thaw()
            assert [await operation for operation in waiting] == [1, 1]


class Writer:
    """A process that writes and notifies when told to."""

    def __init__(self, url: str, path: Path, name: str) -> None:
        command = [sys.executable, "-m", "tests.relay.writer", url, str(path), name]
        self.process = subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin = self.process.stdin
        self._stdout = self.process.stdout

    def write(self, number: int) -> None:
        self._stdin.write(f"{number}\n")
        self._stdin.flush()

    async def has_written(self, number: int) -> None:
        assert await asyncio.to_thread(self._stdout.readline) == f"{number}\n"

    async def end(self) -> None:
        """Close the input of the process and wait for its end. Its errors may only be lost connections."""
        _, errors = await asyncio.to_thread(self.process.communicate)
        assert self.process.returncode == 0, errors
        assert all("the relay has no connection to its broker" in line for line in errors.splitlines()), errors


@contextmanager
def writer(url: str, path: Path, name: str) -> Iterator[Writer]:
    writer = Writer(url, path, name)
    with writer.process as process:
        try:
            yield writer
        finally:
            process.kill()


@ON_ASYNCIO
async def test_no_wake_up_is_lost_when_the_broker_is_killed_again_and_again(server: Server, tmp_path: Path) -> None:
    """Two other processes write each key once, so a wake-up that is lost is made up for by no other."""
    share, times = 100, 3
    numbers = SharedNumbers(tmp_path / "numbers")
    async with AsyncExitStack() as stack:
        names = ["first", "second"]
        url = server.url
        writers = [stack.enter_context(writer(url, tmp_path / "numbers", name)) for name in names]
        for each in writers:
            await each.has_written(0)
        here = await stack.enter_async_context(Process(numbers, broker(url), heartbeat=2))

        for number in range(0, 4 * share * times, 4 * share):
            keys = [f"{name}-{number + more}" for name in names for more in range(4 * share)]
            waiting = [
                here.purgatory.try_complete_else_watch(Grown(here.known, key, 1, timeout=600.0), [key]) for key in keys
            ]
            # Keys are written while the broker runs and dies, while it is away, and while all clients connect again.
            for each in writers:
                each.write(share)
            await asyncio.to_thread(server.process.kill)
            for each in writers:
                await each.has_written(number + share)
                each.write(share)
            for each in writers:
                await each.has_written(number + 2 * share)
            await until(here.relay, connected=False)
            await asyncio.to_thread(server.process.restart)
            for each in writers:
                each.write(share)
            for each in writers:
                await each.has_written(number + 3 * share)
            await until(here.relay, connected=True)
            # The check of all keys has made up for the earlier keys. The following keys need notifications.
            for each in writers:
                each.write(share)
            for operation in waiting:
                assert await operation == 1
                assert not operation.expired()
            for each in writers:
                await each.has_written(number + 4 * share)
        for each in writers:
            await each.end()
        assert here.relay.statistics().reconnects >= times
    numbers.close()


class TestRedis:
    @pytest.mark.parametrize("option", ["protocol=3", "decode_responses=true", "socket_timeout=0.01", "db=3"])
    async def test_options_in_the_url_do_not_matter(self, redis: RedisServer, option: str) -> None:
        state: dict[str, int] = {}
        channel = uuid4().hex
        here = Process(state, RedisBroker(redis.url, channel))
        # The heartbeat is the limit of an answer too, and a busy machine may need a second.
        there = Process(state, RedisBroker(f"{redis.url}?{option}", channel), heartbeat=4.0)
        async with here, there, Redis.from_url(redis.url) as client:

            async def pings() -> int:
                return int((await client.info("commandstats")).get("cmdstat_ping", {}).get("calls", 0))

            waiting = there.watch("é")
            here.grow("é")
            assert await waiting == 1
            waiting = here.watch("é")
            there.grow("é")
            assert await waiting == 2
            enough = await pings() + 1
            while await pings() < enough:
                pass
            assert there.relay.statistics().reconnects == 0

    @pytest.mark.parametrize(
        ("url", "channel", "error"),
        [
            (b"redis://", "c", TypeError),
            ("redis://", b"c", TypeError),
            ("redis://", "", ValueError),
            ("http://localhost", "c", ValueError),
            ("redis://localhost:port", "c", ValueError),
        ],
    )
    def test_a_wrong_argument_is_refused_and_no_password_told(
        self, url: Any, channel: Any, error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            RedisBroker(url, channel)
        assert repr(RedisBroker("redis://:secret@localhost", "news")) == "<RedisBroker 'news'>"


class TestPostgres:
    async def test_a_notification_of_a_transaction_arrives_if_and_only_if_it_commits(
        self, postgres: PostgresServer
    ) -> None:
        dsn = postgres.create_database()
        state: dict[str, int] = {}
        async with Process(state, PostgresBroker(dsn)) as here, Process(state, PostgresBroker(dsn)) as there:
            waiting = [here.watch("key"), there.watch("key")]
            connection = await asyncpg.connect(dsn)
            for end in ("ROLLBACK", "COMMIT"):
                assert not any(operation.done() for operation in waiting)
                await connection.execute("BEGIN")
                for payload in here.relay.payloads(["key", end]):
                    await connection.execute("SELECT pg_notify('purgatory', $1)", payload)
                state["key"] = 1
                await connection.execute(end)
            await connection.close()
            assert [await operation for operation in waiting] == [1, 1]
            assert [list(keys) for keys in there.refreshed] == [["key", "COMMIT"]]

    async def test_a_trigger_of_the_database_may_notify(self, postgres: PostgresServer) -> None:
        dsn = postgres.create_database()
        connection = await asyncpg.connect(dsn)
        await connection.execute("""
            CREATE TABLE messages (topic text, value text);
            CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM pg_notify('purgatory', json_build_object('keys', json_build_array(NEW.topic))::text);
                RETURN NULL;
            END $$;
            CREATE TRIGGER tell AFTER INSERT ON messages FOR EACH ROW EXECUTE FUNCTION tell();
        """)
        state: dict[str, int] = {}
        async with Process(state, PostgresBroker(dsn)) as here:
            waiting = here.watch('né"ws')
            state['né"ws'] = 1
            await connection.execute("INSERT INTO messages VALUES ($1, 'hello')", 'né"ws')
            assert await waiting == 1
        await connection.close()

    @pytest.mark.parametrize("channel", ["UPPER and spaces", 'quo"ted', "é" * 31, "select"])
    async def test_a_channel_is_taken_as_it_is(self, postgres: PostgresServer, channel: str) -> None:
        dsn = postgres.dsn()
        state: dict[str, int] = {}
        here, there = (Process(state, PostgresBroker(dsn, channel)) for _ in range(2))
        async with here, there:
            waiting = there.watch("key")
            here.grow("key")
            assert await waiting == 1

    @pytest.mark.parametrize(
        ("dsn", "channel", "error"),
        [
            (None, "c", TypeError),
            ("", None, TypeError),
            ("", "", ValueError),
            ("", "a\0b", ValueError),
            ("", "é" * 32, ValueError),
        ],
    )
    def test_a_wrong_argument_is_refused_and_no_password_told(
        self, dsn: Any, channel: Any, error: type[Exception]
    ) -> None:
        with pytest.raises(error, match=r"dsn|channel"):
            PostgresBroker(dsn, channel)
        assert repr(PostgresBroker("postgresql://me:secret@localhost", "news")) == "<PostgresBroker 'news'>"

    async def test_a_database_that_refuses_is_an_error_at_the_start(self, postgres: PostgresServer) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            with pytest.raises(RelayError, match='database "nowhere" does not exist'):
                await Relay(purgatory, broker=PostgresBroker(postgres.dsn("nowhere"))).__aenter__()
