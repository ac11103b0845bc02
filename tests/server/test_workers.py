"""Several workers on a shared PostgreSQL: real processes, killed and ended, and a database that goes away."""

import asyncio
import os
import random
import signal
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.figures import show
from tests.support.journals import partitions
from tests.support.paths import ROOT
from tests.support.server_process import ServerProcess, fetch, publish, running, statistics, until_waiting
from tests.support.servers import LOOPBACK, PostgresServer, free_port, running_postgres

Clients = dict[str, list[httpx.AsyncClient]]
"""Each with one connection, by the worker that it leads to."""


TLS = ssl.create_default_context()
"""It is not used, but httpx would make one for each client."""


@asynccontextmanager
async def connected(server: ServerProcess, workers: int, each: int) -> AsyncIterator[Clients]:
    """So many clients of each worker."""
    clients: Clients = {}
    async with AsyncExitStack() as stack:
        while len(clients) < workers or min(map(len, clients.values())) < each:
            client = _pinned(server)
            stack.push_async_callback(client.aclose)
            name = (await client.get("/statistics")).headers["x-instance"]
            if len(clients.setdefault(name, [])) < each:
                clients[name].append(client)
                client.event_hooks = {"response": [partial(_check, name)]}
        yield clients


def _pinned(server: ServerProcess) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
    return httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits, verify=TLS)


async def _check(name: str, response: httpx.Response) -> None:
    assert response.headers["x-instance"] == name


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> Iterator[ServerProcess]:
    """One for all that do it no harm."""
    with running(None, "--database", postgres.create_database(), "--workers", "3") as server:
        yield server


class TestEachWorker:
    """The promises while nothing breaks."""

    pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

    async def test_a_message_published_to_one_answers_a_poll_in_another(self, server: ServerProcess) -> None:
        async with connected(server, 3, 2) as clients:
            for here, there in product(clients, clients):
                topic = f"from-{here}-to-{there}"
                poll = asyncio.create_task(fetch(clients[there][0], topic, wait=50))
                await until_waiting(clients[there][1], 1)
                await publish(clients[here][1], topic, "hello")
                assert await poll == (["hello"], 1)

    async def test_each_poll_is_answered_once(self, server: ServerProcess) -> None:
        async with connected(server, 3, 21) as clients:
            before = {name: (await statistics(some[0]))["satisfied"] for name, some in clients.items()}
            polls = [
                asyncio.create_task(fetch(client, f"many-{number}", wait=50))
                for some in clients.values()
                for number, client in enumerate(some[1:])
            ]
            for some in clients.values():
                await until_waiting(some[0], 20)
            first = next(iter(clients.values()))[0]
            await asyncio.gather(*(publish(first, f"many-{number}", number) for number in range(20)))
            assert await asyncio.gather(*polls) == [([number], 1) for _ in clients for number in range(20)]
            for name, some in clients.items():
                after = await statistics(some[0])
                assert (after["satisfied"] - before[name], after["num_delayed"]) == (20, 0)

    async def test_all_see_the_messages_in_the_same_order_without_gaps(self, server: ServerProcess) -> None:
        topics = ["first", "second", "third"]

        async def publish_all(client: httpx.AsyncClient, publisher: int) -> None:
            draw = random.Random(publisher)
            for number in range(12):
                for topic in draw.sample(topics, len(topics)):
                    await publish(client, topic, [publisher, number])

        async def follow(client: httpx.AsyncClient, topic: str) -> list[Any]:
            values: list[Any] = []
            while len(values) < 12 * len(publishers):
                more, _ = await fetch(client, topic, offset=len(values), wait=50)  # which looks at the offsets
                values += more
            return values

        async with connected(server, 3, 5) as clients:
            publishers = [client for some in clients.values() for client in some[:2]]
            following = [
                asyncio.create_task(follow(some[2 + at], topic))
                for some in clients.values()
                for at, topic in enumerate(topics)
            ]
            await asyncio.gather(*(publish_all(client, number) for number, client in enumerate(publishers)))
            followed = await asyncio.gather(*following)
            for at in range(len(topics)):
                same = followed[at :: len(topics)]
                assert same[0] == same[1] == same[2]
                for publisher in range(len(publishers)):
                    assert [number for by, number in same[0] if by == publisher] == list(range(12))

    async def test_a_message_reported_as_stored_is_found_in_every_worker(self, server: ServerProcess) -> None:
        async with connected(server, 3, 1) as clients:
            for number in range(30):
                here = list(clients)[number % 3]
                offset = await publish(clients[here][0], "own", number)
                for some in clients.values():
                    assert await fetch(some[0], "own", offset=offset, wait=0) == ([number], offset + 1)
                    everything = await fetch(some[0], "own", min_messages=0)
                    assert everything == (list(range(number + 1)), number + 1)

    async def test_a_replica_at_one_acknowledges_what_waits_in_another(self, server: ServerProcess) -> None:
        async with connected(server, 3, 2) as clients:
            first, second, third = clients.values()
            produce = asyncio.create_task(
                first[0].post("/topics/acked/messages", params={"acks": 2, "timeout": 50}, json={"value": 1})
            )
            await until_waiting(first[1], 1, "produce")
            assert await fetch(second[0], "acked", replica="r1", wait=50) == ([1], 1)
            await fetch(second[0], "acked", offset=1, replica="r1", wait=0)
            await fetch(third[0], "acked", offset=1, replica="r1", wait=0)
            assert not produce.done()
            await fetch(third[0], "acked", offset=1, replica="r2", wait=0)
            assert (await produce).status_code == 201
            ahead = await third[0].get("/topics/acked/messages?offset=2&replica=r2&wait=0")
            assert ahead.status_code == 409

    async def test_connections_are_spread_over_all(self, server: ServerProcess) -> None:
        found: Counter[str] = Counter()
        for _ in range(300):
            reader, writer = await asyncio.open_connection(LOOPBACK, int(server.url.rpartition(":")[2]))
            writer.write(b"GET /statistics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            found[next(line for line in head.splitlines() if line.startswith("x-instance: "))] += 1
            writer.close()
            await writer.wait_closed()
        spread = sorted(found.values())
        assert len(spread) == 3
        # By chance one has so few once in 10^17 runs.
        assert spread[0] > 30
        show(f"300 connections to three workers: {', '.join(map(str, spread))}")


class Load:
    """Publishers of unique numbers, and what they were told of each."""

    def __init__(self, topics: list[str]) -> None:
        self.topics = topics
        self.acknowledged: dict[str, dict[int, int]] = {topic: {} for topic in topics}
        self.uncertain: set[int] = set()
        self.refused: set[int] = set()
        self.stopping = False
        self._numbers = count()
        self._progress = asyncio.Event()

    @property
    def stored(self) -> int:
        """Messages that are, as far as the publishers know."""
        return sum(map(len, self.acknowledged.values()))

    async def publish(self, client: httpx.AsyncClient) -> None:
        """Publish until `stopping` is set, in spite of errors."""
        while not self.stopping:
            number = next(self._numbers)
            topic = self.topics[number % len(self.topics)]
            try:
                response = await client.post(f"/topics/{topic}/messages", json={"value": number})
            except httpx.TransportError:
                self.uncertain.add(number)
                continue
            if response.status_code == 503:
                assert response.headers["Retry-After"] == "1"
                error = response.json()["error"]
                (self.uncertain if error.endswith("may be stored, or may not") else self.refused).add(number)
                continue
            assert response.status_code == 201, response.text
            offset = response.json()["offset"]
            assert offset not in self.acknowledged[topic]
            self.acknowledged[topic][offset] = number
            self._progress.set()

    async def until(self, stored: int) -> None:
        """Return when so many more are stored."""
        enough = self.stored + stored
        while self.stored < enough:
            self._progress.clear()
            await self._progress.wait()

    async def check(self, client: httpx.AsyncClient) -> None:
        """Nothing acknowledged is lost, nothing is there twice, and nothing that was refused is there."""
        for topic, messages in self.acknowledged.items():
            values: list[int] = []
            while True:
                # fetch() itself looks for gaps and repeats.
                more, after = await fetch(client, topic, offset=len(values), max_messages=10_000, wait=0)
                values += more
                if not more:
                    break
                assert after == len(values)
            assert {offset: values[offset] for offset in messages} == messages
            assert len({*values}) == len(values)
            assert {*values} <= {*messages.values()} | self.uncertain


class TestTrouble:
    """Each of these tests starts the servers that it kills."""

    pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

    async def test_a_worker_that_is_killed_loses_its_connections_and_nothing_else(
        self, postgres: PostgresServer
    ) -> None:
        with running(None, "--database", postgres.create_database(), "--workers", "2") as server:
            async with connected(server, 2, 4) as clients, server.client() as any_client:
                doomed, spared = clients
                load = Load(["a", "b"])
                publishing = [
                    asyncio.create_task(load.publish(client))
                    for client in (any_client, clients[spared][0], clients[spared][1])
                ]
                lost = asyncio.create_task(fetch(clients[doomed][2], "quiet", wait=50))
                kept = asyncio.create_task(fetch(clients[spared][2], "quiet", wait=50))
                for name in clients:
                    await until_waiting(clients[name][3], 1)
                await load.until(100)
                os.kill(int(doomed.rpartition("-")[2]), signal.SIGKILL)
                with pytest.raises(httpx.TransportError):
                    await lost
                await load.until(100)
                # Another takes its place.
                async with connected(server, 2, 2) as after:
                    assert spared in after
                    (new,) = after.keys() - {spared}
                    assert new != doomed
                    poll = asyncio.create_task(fetch(after[new][0], "quiet", wait=50))
                    await until_waiting(after[new][1], 1)
                    await load.until(50)
                    load.stopping = True
                    await asyncio.gather(*publishing)
                    assert await publish(clients[spared][3], "quiet", "at last") == 0
                    assert await kept == await poll == (["at last"], 1)
                    for some in after.values():
                        await load.check(some[0])

    async def test_a_database_that_is_killed_and_comes_back_loses_nothing_that_was_acknowledged(self) -> None:
        with (
            running_postgres() as postgres,
            running(None, "--database", postgres.create_database(), "--workers", "2") as server,
        ):
            async with connected(server, 2, 8) as clients:
                load = Load(["a", "b"])
                publishing = [
                    asyncio.create_task(load.publish(client)) for some in clients.values() for client in some[:2]
                ]
                polls = [asyncio.create_task(fetch(some[2], "quiet", wait=50)) for some in clients.values()]
                due = [asyncio.create_task(fetch(some[3], "due", wait=0.9)) for some in clients.values()]
                acked = asyncio.create_task(
                    next(iter(clients.values()))[4].post("/topics/acked/messages?acks=1&timeout=50", json={"value": 1})
                )
                for some in clients.values():
                    await until_waiting(some[7], 2)
                await load.until(100)
                await asyncio.to_thread(postgres.kill)
                for some in clients.values():
                    for asking in (
                        some[5].post("/topics/c/messages", json={"value": 1}),
                        some[5].post("/topics/c/messages?acks=1", json={"value": 1}),
                        some[5].get("/topics/c/messages?wait=0"),
                        some[5].get("/topics/c/messages?wait=0&replica=r1"),
                    ):
                        response = await asking
                        assert response.status_code == 503
                        assert response.headers["Retry-After"] == "1"
                        assert response.json()["error"].startswith("the database cannot be reached")
                # Pending fetches go on waiting until their deadlines, which are kept.
                assert await asyncio.gather(*due) == [([], 0)] * 2
                assert not any(poll.done() for poll in polls)
                await asyncio.to_thread(postgres.restart)
                await load.until(100)
                load.stopping = True
                await asyncio.gather(*publishing)
                assert load.refused
                for some in clients.values():
                    await load.check(some[5])
                assert await publish(next(iter(clients.values()))[5], "quiet", "at last") == 0
                assert await asyncio.gather(*polls) == [(["at last"], 1)] * 2
                for some in clients.values():
                    await fetch(some[5], "acked", offset=1, replica="r1", wait=0)
                assert (await acked).status_code == 201
            assert await asyncio.to_thread(server.stop) == 0

    async def test_a_signal_answers_all_waiting_clients_of_all_workers_and_exits_0(
        self, postgres: PostgresServer, tmp_path: Path
    ) -> None:
        arguments = ["--database", postgres.create_database(), "--workers", "2", "--journal", str(tmp_path)]
        with running(None, *arguments, "--instance", "web") as server:
            async with connected(server, 2, 12) as clients:
                await publish(next(iter(clients.values()))[0], "news", "old")
                polls = [
                    asyncio.create_task(fetch(client, "news", min_messages=2, wait=50))
                    for some in clients.values()
                    for client in some[:10]
                ]
                produces = [
                    asyncio.create_task(some[10].post("/topics/other/messages?acks=1&timeout=50", json={"value": 1}))
                    for some in clients.values()
                ]
                for some in clients.values():
                    await until_waiting(some[11], 10)
                    await until_waiting(some[11], 1, "produce")
                stopped = asyncio.create_task(asyncio.to_thread(server.stop, signal.SIGTERM, 20))
                assert await asyncio.gather(*polls) == [(["old"], 1)] * 20
                assert [(await produce).status_code for produce in produces] == [504, 504]
                assert await stopped == 0
        # Each has a journal of its own.
        assert {instance for _, instance, _ in partitions(tmp_path)} == {*clients}
        assert all(name.startswith("web-") for name in clients)
        assert sum(rows for *_, rows in partitions(tmp_path)) == 22

    async def test_workers_do_not_outlive_their_supervisor(self, postgres: PostgresServer) -> None:
        server = ServerProcess(None, "--database", postgres.create_database(), "--workers", "2")
        async with connected(server, 2, 2) as clients:
            polls = [asyncio.create_task(fetch(some[0], "news", wait=50)) for some in clients.values()]
            for some in clients.values():
                await until_waiting(some[1], 1)
            server.process.kill()
            assert await asyncio.gather(*polls) == [([], 0)] * 2
        # Its output ends when the last of them has.
        await asyncio.to_thread(server.process.communicate)


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "examples.long_poll_server", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


class TestCommand:
    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (["--workers", "2"], "--workers needs a --database: SQLite is for one process"),
            (["--workers", "0"], "must be at least 1, not 0"),
            (["--data", "x", "--database", "postgresql://secret@x/y"], "--database: not allowed with argument --data"),
            (["--database", "mysql://user:secret@host/db"], "must be like postgresql://user@host:5432/database"),
            (["--database", "user:secret@host/db"], "must be like postgresql://user@host:5432/database"),
        ],
    )
    def test_impossible_options_are_refused(self, arguments: list[str], error: str) -> None:
        refused = _run(*arguments)
        assert refused.returncode == 2
        assert error in refused.stderr
        assert "secret" not in refused.stderr

    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_without_its_database_it_does_not_start_and_the_password_is_not_told(self, workers: str) -> None:
        at = f"{LOOPBACK}:{free_port()}"
        refused = _run("--workers", workers, "--database", f"postgresql://user:secret@{at}/none")
        assert refused.returncode == 1
        assert refused.stderr.startswith("cannot use the database: ")
        assert refused.stderr.count("\n") == 1
        assert "secret" not in refused.stderr
        refused = _run("--workers", workers, "--database", f"postgresql://user:sec/ret@{at}/none")
        assert refused.returncode == 1
        assert refused.stderr.startswith("--database must be like postgresql://user@host:5432/database")
        assert "sec/" not in refused.stderr

    def test_a_database_that_is_not_there(self, postgres: PostgresServer) -> None:
        refused = _run("--workers", "2", "--database", postgres.dsn("none"))
        assert (refused.returncode, refused.stderr) == (1, 'cannot use the database: database "none" does not exist\n')

    def test_single_process_sends_instance_name_and_port_is_used_by_one_server(self, postgres: PostgresServer) -> None:
        dsn = postgres.create_database()
        with running(None, "--database", dsn, "--instance", "web") as server:
            assert httpx.get(f"{server.url}/statistics").headers["x-instance"] == "web"
            port = server.url.rpartition(":")[2]
            second = _run("--workers", "2", "--database", dsn, "--port", port)
        assert (second.returncode, second.stderr.splitlines()[-1]) == (
            1,
            f"cannot listen on {LOOPBACK}:{port}: Address already in use",
        )
