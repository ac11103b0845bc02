"""The example that speaks Redis's protocol: real clients, the same requests to Redis itself, and memory."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.redis_server.server import Client, Server
from tests.support.paths import ROOT
from tests.support.servers import RedisServer, program, reserved_port


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


@contextmanager
def served(module: str = "server") -> Iterator[int]:
    port = reserved_port()
    command = [sys.executable, "-m", f"examples.redis_server.{module}", str(port)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            while True:
                try:
                    with closing(redis.Redis(port=port, protocol=2)) as client:
                        client.ping()
                    break
                except redis.ConnectionError:
                    assert process.poll() is None
                    time.sleep(0.05)
            yield port
        finally:
            process.kill()


@pytest.fixture(scope="module", params=["server", "with_tasks"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with served(request.param) as served_at:
        yield served_at


@pytest.fixture
def client(port: int) -> Iterator[redis.Redis]:
    with closing(redis.Redis(port=port, protocol=2)) as connected:
        yield connected


class TestBlockingClient:
    def test_plain_commands(self, client: Any) -> None:
        assert client.set("plain", "value")
        assert client.get("plain") == b"value"
        assert client.get("absent") is None
        assert client.rpush("list", "b", "c") == 2
        assert client.lpush("list", "a", "0") == 4
        assert client.lrange("list", 0, -1) == [b"0", b"a", b"b", b"c"]
        assert client.lrange("list", 1, 2) == [b"a", b"b"]
        assert (client.lpop("list"), client.rpop("list"), client.llen("list")) == (b"0", b"c", 2)
        assert client.lpop("absent") is None

    def test_wrong_commands_are_told_and_the_connection_goes_on(self, client: Any) -> None:
        client.set("text", "value")
        for fault, *command in [
            ("unknown command", "NONSENSE"),
            ("wrong number of arguments", "GET"),
            ("holding the wrong kind", "RPUSH", "text", "a"),
            ("holding the wrong kind", "BLPOP", "text", "1"),
            ("not a number or out of range", "LRANGE", "absent", "a", "b"),
            ("not a number or out of range", "BLPOP", "absent", "-1"),
            ("not a number or out of range", "BLPOP", "absent", "inf"),
            ("not a number or out of range", "XREAD", "BLOCK", "nan", "STREAMS", "absent", "$"),
            ("syntax error", "XREAD", "BLOCK", "0", "absent", "$"),
            ("out of range", "XREAD", "BLOCK", "9" * 400, "STREAMS", "absent", "$"),
            ("wrong number of arguments", "BLPOP", "1"),
        ]:
            with pytest.raises(redis.ResponseError, match=fault):
                client.execute_command(*command)
        assert client.ping()

    def test_block_ends_at_its_timeout(self, client: Any) -> None:
        began = time.monotonic()
        assert client.blpop(["absent"], timeout=0.2) is None
        assert client.brpop(["absent"], timeout=0.2) is None
        assert client.xread({"absent": "$"}, block=200) in ({}, [])
        assert time.monotonic() - began >= 0.6


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, Any]]:
    """A server on this loop, and a client of it."""
    server = Server()
    listening = await asyncio.get_running_loop().create_server(lambda: Client(server), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with redis.asyncio.Redis(port=port, protocol=2) as client:
        yield server, client
    listening.close()
    await server.connections.wait_closed()
    assert server.waiting.num_delayed == 0


class TestAsyncClient:
    async def test_those_who_block_are_served_in_their_order(self) -> None:
        async with serving() as (server, client):
            waiting = []
            for number, command in enumerate((client.blpop, client.brpop, client.blpop, client.blpop), 1):
                waiting.append(asyncio.ensure_future(command(["other", "jobs"], timeout=0)))
                await until(lambda number=number: server.waiting.num_delayed == number)  # type: ignore[misc]
            assert await client.rpush("jobs", "a", "b", "c") == 3
            served = [await waiter for waiter in waiting[:3]]
            assert served == [(b"jobs", b"a"), (b"jobs", b"c"), (b"jobs", b"b")]
            await client.lpush("other", "d")
            assert await waiting[3] == (b"other", b"d")
            assert await client.llen("jobs") == 0

    async def test_stream_is_read_by_all_who_wait_for_it(self) -> None:
        async with serving() as (server, client):
            first = await client.xadd("log", {"n": "1"})
            readers = [asyncio.ensure_future(client.xread({"none": "0", "log": "$"}, block=0)) for _ in range(3)]
            await until(lambda: server.waiting.num_delayed == 3)
            second = await client.xadd("log", {"n": "2"})
            for reader in readers:
                assert await reader == [[b"log", [(second, {b"n": b"2"})]]]
            everything = await client.xread({"log": "0"}, count=5)
            assert everything == [[b"log", [(first, {b"n": b"1"}), (second, {b"n": b"2"})]]]
            assert await client.xread({"log": "0"}, count=1) == [[b"log", [(first, {b"n": b"1"})]]]
            assert await client.xread({"log": first}) == [[b"log", [(second, {b"n": b"2"})]]]

    async def test_subscribers_get_messages_on_a_connection_that_rests(self) -> None:
        async with serving() as (server, client), client.pubsub() as channel:
            await channel.subscribe("news", "sport")
            for _ in range(2):
                assert (await channel.get_message(timeout=60))["type"] == "subscribe"
            await until(lambda: server.connections.num_cold == 1)
            assert await client.publish("news", "hello") == 1
            message = await channel.get_message(timeout=60)
            assert (message["channel"], message["data"]) == (b"news", b"hello")
            await channel.unsubscribe()
            assert (await channel.get_message(timeout=60))["type"] == "unsubscribe"
            assert await client.publish("news", "nobody") == 0

    async def test_pipeline_waits_behind_a_command_that_blocks(self) -> None:
        async with serving() as (server, client):
            pipeline = (
                client.pipeline(transaction=False).blpop(["behind"], 0).ping().rpush("behind", "x").lpop("behind")
            )
            waiting = asyncio.ensure_future(pipeline.execute())
            await until(lambda: server.waiting.num_delayed == 1)
            await client.rpush("behind", "first")
            assert await waiting == [(b"behind", b"first"), True, 1, b"x"]

    async def test_channels_that_nobody_has_subscribed_to_are_gone(self) -> None:
        async with serving() as (server, client), client.pubsub() as first, client.pubsub() as second:
            for _ in range(2):
                await first.execute_command("SUBSCRIBE", "a", "b")
                assert [(await first.get_message(timeout=60))["data"] for _ in range(2)] in ([1, 2], [2, 2])
            await second.execute_command("SUBSCRIBE", "b")
            await second.get_message(timeout=60)
            assert await client.publish("b", "hello") == 2
            await first.execute_command("UNSUBSCRIBE", "b")
            assert await client.publish("b", "hello") == 1
            await first.execute_command("UNSUBSCRIBE")
            assert set(server.channels) == {b"b"}
            await second.aclose()
            await until(lambda: not server.channels)
            with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
                await client.execute_command("SUBSCRIBE")

    async def test_client_that_leaves_while_it_blocks_gets_no_item(self) -> None:
        async with serving() as (server, client):
            leaving = asyncio.ensure_future(client.blpop(["jobs"], timeout=0))
            await until(lambda: server.connections.num_cold == 1)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            await until(lambda: server.waiting.num_delayed == 0)
            assert await client.rpush("jobs", "a") == 1
            assert await client.blpop(["jobs"], timeout=0) == (b"jobs", b"a")

    @pytest.mark.parametrize(
        "garbage", [b"+simple\r\n", b"*1\r\n:5\r\n", b"*1\r\n*1\r\n$1\r\na\r\n", b"*0\r\n", b"$-1\r\n"]
    )
    async def test_garbage_is_an_error(self, garbage: bytes) -> None:
        async with serving() as (_, client):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.get_connection_kwargs()["port"])
            writer.write(garbage + b"\r\n")
            assert (await reader.readline()).startswith(b"-ERR")
            writer.write(b"nonsense\r\n")
            assert await reader.read() == b""
            writer.close()


@pytest.fixture(scope="module")
def redis_itself() -> Iterator[RedisServer]:
    itself = RedisServer()
    yield itself
    itself.kill()


keys = st.sampled_from(["a", "b"])
values = st.sampled_from(["x", "y", "1"])
numbers = st.integers(-3, 3)
commands = st.one_of(
    st.tuples(st.just("SET"), keys, values),
    st.tuples(st.just("GET"), keys),
    st.tuples(st.sampled_from(["LPUSH", "RPUSH"]), keys, values, values),
    st.tuples(st.sampled_from(["LPOP", "RPOP", "LLEN"]), keys),
    st.tuples(st.just("LRANGE"), keys, numbers, numbers),
    st.tuples(st.sampled_from(["BLPOP", "BRPOP"]), keys, keys, st.just("0.001")),
    st.tuples(st.sampled_from(["GET", "LLEN", "LPOP"])),
)


@given(st.lists(commands, max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_are_those_of_redis_itself(
    client: Any, redis_itself: RedisServer, sequence: list[tuple[Any, ...]]
) -> None:
    def answers(asked: Any) -> list[Any]:
        given: list[Any] = []
        for command in sequence:
            try:
                given.append(asked.execute_command(*command))
            except redis.ResponseError as error:
                given.append("WRONGTYPE" in str(error))
        for key in ("a", "b"):
            asked.set(key, "")  # of any type
        return given

    with closing(redis.Redis(port=redis_itself.port, protocol=2)) as itself:
        assert answers(client) == answers(itself)


def test_redis_cli(port: int) -> None:
    def cli(*command: str) -> "subprocess.Popen[str]":
        name = program("redis-cli", "redis-tools")
        return subprocess.Popen([name, "-p", str(port), *command], stdout=subprocess.PIPE, text=True)

    def said(*command: str) -> str:
        with cli(*command) as asked:
            return asked.communicate()[0]

    assert said("PING") == "PONG\n"
    assert said("GET", "absent") == "\n"
    with cli("BLPOP", "cli", "0") as blocked, cli("XREAD", "BLOCK", "0", "STREAMS", "stream", "0") as reading:
        assert said("RPUSH", "cli", "one") == "1\n"
        assert blocked.communicate()[0] == "cli\none\n"
        assert said("XADD", "stream", "*", "field", "value") == "1-0\n"
        assert reading.communicate()[0] == "stream\n1-0\nfield\nvalue\n"
    with cli("SUBSCRIBE", "channel") as subscribed:
        assert subscribed.stdout is not None
        assert [subscribed.stdout.readline() for _ in range(3)] == ["subscribe\n", "channel\n", "1\n"]
        assert said("PUBLISH", "channel", "hello") == "1\n"
        assert [subscribed.stdout.readline() for _ in range(3)] == ["message\n", "channel\n", "hello\n"]
        subscribed.kill()


def test_blocked_client_takes_less_than_in_redis_itself() -> None:
    program("redis-server", "redis-server")
    command = [sys.executable, "-m", "examples.redis_server.memory", "--seconds", "5"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    own, with_tasks, itself = map(float, re.findall(r"([\d.]+) KiB", printed))
    assert own <= 1.1, printed
    assert own < itself, printed
    assert 4 * own < with_tasks, printed
