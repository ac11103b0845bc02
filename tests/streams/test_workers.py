"""Several workers on a shared PostgreSQL: real processes that are killed and ended."""

import asyncio
import os
import pickle
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from purgatory.streams.server import OwnSocket, bound
from tests.streams.processes import ServerProcess, append, create, poll, running, waiting
from tests.streams.test_command import refused
from tests.support.journals import partitions
from tests.support.servers import PostgresServer

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

WORKERS = 3


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[ServerProcess]:
    options = "--workers", str(WORKERS), "--long-poll-timeout", "600"  # a busy machine takes long to start a worker
    with running(None, "--database", postgres.create_database(), *options) as server:
        yield server


async def pinned(server: ServerProcess, stack: AsyncExitStack, workers: int) -> dict[int, httpx.AsyncClient]:
    """A client with one connection for each worker, by its process id."""
    found: dict[int, httpx.AsyncClient] = {}
    while len(found) < workers:
        limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits))
        with suppress(httpx.TransportError):  # of the connections of one that is killed
            instance = (await client.get("/health")).json()["instance"]
            found.setdefault(int(instance.rpartition("-")[2]), client)
    return found


def until_written(server: ServerProcess, text: str) -> None:
    assert server.process.stdout is not None
    assert any(text in line for line in server.process.stdout), f"the server ends without {text!r}"


async def test_connections_are_spread_over_all_workers(server: ServerProcess) -> None:
    async with server.client(Connection="close") as client:
        found = Counter([(await client.get("/health")).json()["instance"] for _ in range(200)])
    assert len(found) == WORKERS
    # By chance a worker has so few once in 10^14 runs.
    assert min(found.values()) > 15


async def waiting_at(clients: Iterable[httpx.AsyncClient], server: ServerProcess) -> "list[asyncio.Task[str]]":
    """Polls of a new stream that wait, one by each client."""
    clients = list(clients)
    await create(clients[0], "news")
    polls = [asyncio.create_task(poll(each, "news")) for each in clients]
    async with AsyncExitStack() as stack:
        others = (await pinned(server, stack, WORKERS)).values()
        while sum([await waiting(each) for each in others]) != len(polls):
            pass
    return polls


async def test_a_worker_that_is_killed_loses_its_connections_and_is_replaced(server: ServerProcess) -> None:
    async with AsyncExitStack() as stack:
        clients = await pinned(server, stack, WORKERS)
        doomed, spared, _ = clients
        lost, kept = await waiting_at((clients[doomed], clients[spared]), server)
        os.kill(doomed, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await lost
        after = await pinned(server, stack, WORKERS)
        (new,) = after.keys() - clients.keys()
        assert new != doomed
        await append(after[new], "news", "at last")
        assert await kept == "at last"


@asynccontextmanager
async def without_database(postgres: PostgresServer) -> AsyncIterator[tuple[ServerProcess, int]]:
    """A server of which one worker waits for its database, and the process id of the other one."""
    server = ServerProcess("--database", postgres.create_database(), "--workers", "2")
    try:
        async with AsyncExitStack() as stack:
            doomed, spared = await pinned(server, stack, 2)
            postgres.kill()
            os.kill(doomed, signal.SIGKILL)
            await asyncio.to_thread(until_written, server, "a worker cannot start yet")
        yield server, spared
    finally:
        code = await asyncio.to_thread(server.stop)
        postgres.restart()
    assert code == 0


async def test_a_worker_that_is_replaced_waits_for_the_database(postgres: PostgresServer) -> None:
    instances: set[str] = set()
    async with without_database(postgres) as (server, spared), server.client(Connection="close") as client:
        postgres.restart()
        while len(instances) < 2:
            with suppress(httpx.TransportError):  # of the connections of one that is killed
                response = await client.get("/health")
                if response.status_code == 200:  # else the database is away
                    instances.add(response.json()["instance"])
    assert any(each.endswith(f"-{spared}") for each in instances)


async def test_a_worker_that_waits_for_the_database_can_be_stopped(postgres: PostgresServer) -> None:
    async with without_database(postgres):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_answers_all_that_wait_and_exits(server: ServerProcess, number: signal.Signals) -> None:
    async with AsyncExitStack() as stack:
        polls = await waiting_at((await pinned(server, stack, WORKERS)).values(), server)
        stopping = asyncio.create_task(asyncio.to_thread(server.stop, number))
        assert await asyncio.gather(*polls) == [""] * WORKERS
        assert await stopping in (0, -number)


async def test_workers_do_not_outlive_their_supervisor(postgres: PostgresServer) -> None:
    server = ServerProcess("--database", postgres.create_database(), "--workers", "2")
    workers = psutil.Process(server.process.pid).children(recursive=True)
    assert len(workers) >= 2
    server.kill()
    gone, left = psutil.wait_procs(workers, timeout=60)
    assert (len(gone), left) == (len(workers), [])


async def test_each_worker_writes_its_own_journal(postgres: PostgresServer, tmp_path: Path) -> None:
    options = ("--database", postgres.create_database(), "--workers", "2", "--journal", str(tmp_path))
    with running(None, *options, "--long-poll-timeout", "0.1", "--instance", "streams") as server:
        async with AsyncExitStack() as stack:
            clients = await pinned(server, stack, 2)
            await create(next(iter(clients.values())), "news")
            for each in clients.values():
                await poll(each, "news")
            names = {f"streams-{process}" for process in clients}
    assert {instance for _, instance, _ in partitions(tmp_path)} == names


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_an_address_that_is_in_use_is_refused(postgres: PostgresServer, workers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        options = "--database", postgres.create_database(), "--workers", workers, "--port", str(held.getsockname()[1])
        message = await asyncio.to_thread(refused, *options)
    assert message == f"cannot listen on 127.0.0.1:{options[-1]}: Address already in use"


async def test_an_address_is_in_use_before_workers_listen() -> None:
    with OwnSocket.bound("127.0.0.1", 0, 1.0) as held, pytest.raises(SystemExit, match="Address already in use"):
        bound("127.0.0.1", held.getsockname()[1])


async def test_an_address_of_ipv6_takes_no_ipv4() -> None:
    """As with one process. A client of IPv4 would be one of `::ffff:127.0.0.1`, and no proxy there is believed."""
    with OwnSocket.bound("::", 0, 1.0) as held, pickle.loads(pickle.dumps(held)) as listening:
        listening.listen()
        with socket.create_connection(("::1", listening.getsockname()[1])):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listening.getsockname()[1]))
