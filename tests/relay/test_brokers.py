"""The relay over a real Redis and a real PostgreSQL, which are killed, between real processes."""

import asyncio
import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from redis import Redis

from purgatory.relay import PostgresBroker, RedisBroker, Relay, RelayError
from tests.relay.relays import Process, collect_faults
from tests.relay.writer import SharedNumbers, broker
from tests.support.operations import turn
from tests.support.paths import ROOT
from tests.support.servers import PostgresServer, RedisServer, reserved_port

ON_ASYNCIO = pytest.mark.asyncio(loop_factories=["asyncio"])
"""For what another loop would not change."""


class Server(ABC):
    """A real broker, and what a client may do there that does not use the relay."""

    def __init__(self, process: RedisServer | PostgresServer, url: str, name: str) -> None:
        self.process = process
        self.channel = f"test-{uuid4().hex}"
        # Connections bear the name of the channel, too.
        self.url = f"{url}?{name}={self.channel}"

    def url_by(self, port: int) -> str:
        return self.url.replace(str(self.process.port), str(port))

    def broker(self, url: str = "") -> Any:
        return broker(url or self.url, self.channel)

    @abstractmethod
    def publish(self, payload: str) -> None: ...

    @abstractmethod
    def hang_up(self) -> None:
        """Close the connections of all listening clients."""

    @abstractmethod
    def frozen(self) -> AbstractContextManager[None]:
        """The server takes connections, and never answers."""

    @abstractmethod
    def connections(self) -> int:
        """The number of connections of the relays."""


class OverRedis(Server):
    def __init__(self, process: RedisServer) -> None:
        super().__init__(process, process.url, "client_name")
        self._client: Any = Redis.from_url(process.url)

    def publish(self, payload: str) -> None:
        self._client.publish(self.channel, payload)

    def hang_up(self) -> None:
        self._client.client_kill_filter(_type="pubsub")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        process = self._client.info("server")["process_id"]
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def connections(self) -> int:
        return sum(client["name"] == self.channel for client in self._client.client_list())


class OverPostgres(Server):
    def __init__(self, process: PostgresServer) -> None:
        super().__init__(process, process.dsn(), "application_name")
        self._execute = process.execute
        self._frozen = process.frozen
        self._connections = f"FROM pg_stat_activity WHERE application_name = '{self.channel}'"

    def publish(self, payload: str) -> None:
        self._execute(f"SELECT pg_notify('{self.channel}', $${payload}$$)")

    def hang_up(self) -> None:
        self._execute(f"SELECT pg_terminate_backend(pid) {self._connections}")

    def frozen(self) -> AbstractContextManager[None]:
        return self._frozen()

    def connections(self) -> int:
        return int(self._execute(f"SELECT count(*) {self._connections}"))


@pytest.fixture(params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    process = request.getfixturevalue(request.param)
    yield OverRedis(process) if request.param == "redis" else OverPostgres(process)
    process.restart()  # for the others, if it has been killed


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


@ON_ASYNCIO
async def test_other_clients_may_notify_in_json_and_do_no_harm_by_anything_else(server: Server) -> None:
    faults = collect_faults()
    async with Process({}, server.broker()) as here:
        for payload in ("topic-1", "{", "[]", '{"keys": 7}'):
            server.publish(payload)
        await until(here.relay, malformed=4)
        waiting = [here.watch("é"), here.watch("b")]
        here.state["é"] = 1
        server.publish(json.dumps({"keys": ["é"]}, ensure_ascii=False))
        await waiting[0]
        here.state["b"] = 1
        server.publish('{"keys": null}')
        await waiting[1]
    assert len(faults) == 4


@ON_ASYNCIO
async def test_a_relay_whose_connection_was_closed_makes_up_for_missed_messages(server: Server) -> None:
    async with Process({}, server.broker()) as here:
        for times in range(1, 3):
            waiting = here.watch("key")
            server.hang_up()
            here.state["key"] = times
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
    async with Process({}, server.broker()) as here:
        here.grow("key")
        assert server.connections() > 0
    while server.connections() > 0:
        pass
    assert asyncio.all_tasks() == {asyncio.current_task()}


@ON_ASYNCIO
async def test_a_broker_that_is_not_there_is_an_error_at_the_start(server: Server) -> None:
    with pytest.raises(RelayError, match="the broker cannot be reached: Conn"):
        await Relay(broker=server.broker(server.url_by(reserved_port()))).__aenter__()
    with server.frozen(), pytest.raises(RelayError, match=r"the broker has not answered for 0\.2 seconds"):
        await Relay(broker=server.broker(), heartbeat=0.2).__aenter__()


@ON_ASYNCIO
async def test_a_peer_that_has_vanished_without_a_word_is_noticed(server: Server) -> None:
    state: dict[str, int] = {}
    here, there = (Process(state, server.broker(), heartbeat=2.0) for _ in range(2))
    async with here, there:
        with server.frozen():
            waiting = there.watch("news")
            here.grow("news")  # and the other one has nothing to send but a ping
            for process in (here, there):
                await until(process.relay, connected=False)
            assert not waiting.done()
        assert await waiting == 1


class Writer:
    """A process that writes and notifies when told to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._stdin = process.stdin
        self._stdout = process.stdout

    def write(self, number: int) -> None:
        self._stdin.write(f"{number}\n".encode())

    async def has_written(self, number: int) -> None:
        assert await self._stdout.readline() == f"{number}\n".encode()

    async def end(self) -> None:
        """Close the input of the process and wait for its end. Its errors may only be lost connections."""
        _, errors = await self.process.communicate(b"")
        assert self.process.returncode == 0, errors
        assert all(b"the relay has no connection to its broker" in line for line in errors.splitlines()), errors


@asynccontextmanager
async def running_writer(url: str, folder: Path, name: str) -> AsyncIterator[Writer]:
    command = [sys.executable, "-m", "tests.relay.writer", url, str(folder), name]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        yield Writer(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@ON_ASYNCIO
async def test_no_wake_up_is_lost_when_the_broker_is_killed_again_and_again(server: Server, tmp_path: Path) -> None:
    """Two other processes write each key once, so a wake-up that is lost is made up for by no other."""
    share, times = 100, 2
    names = ["first", "second"]
    async with AsyncExitStack() as stack:
        writers = [await stack.enter_async_context(running_writer(server.url, tmp_path, name)) for name in names]
        for each in writers:
            await each.has_written(0)
        here = await stack.enter_async_context(Process(SharedNumbers(tmp_path), broker(server.url), heartbeat=2))

        for number in range(0, 4 * share * times, 4 * share):
            waiting = [here.watch(f"{name}-{number + more}") for name in names for more in range(4 * share)]
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
            for each in writers:
                await each.has_written(number + 4 * share)
        for each in writers:
            await each.end()
        assert here.relay.statistics().reconnects >= times


@pytest.mark.parametrize("option", ["protocol=3", "decode_responses=true", "socket_timeout=0.01", "db=3"])
async def test_options_in_the_url_of_redis_do_not_matter(redis: RedisServer, option: str) -> None:
    heard: list[str | bytes] = []
    async with RedisBroker(f"{redis.url}?{option}", uuid4().hex).connect(heard.append) as connection:
        listening = asyncio.create_task(connection.listen())
        await connection.publish(["payload"])
        await asyncio.sleep(0.1)  # real time, in which that socket_timeout would have ended the connection
        await connection.ping()
        assert heard == [b"payload"]
        assert not listening.done()
        listening.cancel()


@ON_ASYNCIO
async def test_a_notification_of_a_transaction_arrives_if_and_only_if_it_commits(postgres: PostgresServer) -> None:
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


@pytest.mark.parametrize("channel", ["UPPER and spaces", 'quo"ted', "é" * 31, "select"])
@ON_ASYNCIO
async def test_a_channel_of_postgresql_is_taken_as_it_is(postgres: PostgresServer, channel: str) -> None:
    state: dict[str, int] = {}
    here, there = (Process(state, PostgresBroker(postgres.dsn(), channel)) for _ in range(2))
    async with here, there:
        waiting = there.watch("key")
        here.grow("key")
        assert await waiting == 1


@pytest.mark.parametrize(
    ("type_", "url", "channel", "error"),
    [
        (RedisBroker, b"redis://", "c", TypeError),
        (RedisBroker, "redis://", b"c", TypeError),
        (RedisBroker, "redis://", "", ValueError),
        (RedisBroker, "http://localhost", "c", ValueError),
        (RedisBroker, "redis://localhost:port", "c", ValueError),
        (PostgresBroker, None, "c", TypeError),
        (PostgresBroker, "", None, TypeError),
        (PostgresBroker, "", "", ValueError),
        (PostgresBroker, "", "a\0b", ValueError),
        (PostgresBroker, "", "é" * 32, ValueError),
    ],
)
def test_a_wrong_argument_is_refused(type_: Any, url: Any, channel: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        type_(url, channel)


def test_no_password_is_told() -> None:
    assert repr(RedisBroker("redis://:secret@localhost", "news")) == "<RedisBroker 'news'>"
    assert repr(PostgresBroker("postgresql://me:secret@localhost", "news")) == "<PostgresBroker 'news'>"
