"""The long-poll server: a real process, real HTTP."""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server_process import ServerProcess, fetch, publish, running, statistics, until_waiting

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running(tmp_path) as server:
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client() as client:
        yield client


async def test_a_published_message_is_fetched(client: httpx.AsyncClient) -> None:
    values = ["text", 7, -1.5, None, True, [], {"nested": [{"a": 1}]}, "ünïcödé \U0001f600", "\ud800", 10**30]
    for offset, value in enumerate(values):
        # Escaped, for half a surrogate pair has no bytes of its own.
        response = await client.post("/topics/news/messages", content=json.dumps({"value": value}))
        assert response.status_code == 201
        assert response.json() == {"topic": "news", "offset": offset}
    assert await fetch(client, "news") == (values, len(values))
    assert await fetch(client, "news", offset=3) == (values[3:], len(values))


async def test_a_poll_is_answered_by_a_publish(client: httpx.AsyncClient) -> None:
    poll = asyncio.create_task(fetch(client, "news", wait=300))
    await until_waiting(client, 1)
    await publish(client, "other", "not this")
    assert not poll.done()
    await publish(client, "news", "this")
    assert await poll == (["this"], 1)
    assert (await statistics(client))["satisfied"] == 1


async def test_a_poll_is_answered_by_its_deadline_with_what_there_is(client: httpx.AsyncClient) -> None:
    assert await fetch(client, "news", wait=0.05) == ([], 0)
    await publish(client, "news", "only one")
    assert await fetch(client, "news", min_messages=2, wait=0.05) == (["only one"], 1)
    assert await fetch(client, "news", offset=5, wait=0) == ([], 5)
    assert (await statistics(client))["expired"] == 3


async def test_min_messages(client: httpx.AsyncClient) -> None:
    poll = asyncio.create_task(fetch(client, "news", min_messages=3, wait=300))
    await until_waiting(client, 1)
    for value in range(3):
        assert not poll.done()
        await publish(client, "news", value)
    assert await poll == ([0, 1, 2], 3)


async def test_a_topic_without_messages_is_empty(client: httpx.AsyncClient) -> None:
    assert await fetch(client, "nothing", min_messages=0) == ([], 0)


async def test_max_messages_and_next_offset_lead_through_the_topic(client: httpx.AsyncClient) -> None:
    await asyncio.gather(*(publish(client, "news", n) for n in range(25)))
    values: list[Any] = []
    offset = 0
    for size in (10, 10, 5):
        part, offset = await fetch(client, "news", offset=offset, max_messages=10)
        assert len(part) == size
        values += part
    assert sorted(values) == list(range(25))


async def test_a_large_answer_is_cut_short(client: httpx.AsyncClient) -> None:
    for _ in range(10):
        await publish(client, "news", "x" * 1_000_000)
    values, offset = await fetch(client, "news")
    assert len(values) == 9
    assert len((await fetch(client, "news", offset=offset))[0]) == 1


async def test_a_thousand_waiters_on_a_hundred_topics_are_all_answered_right(server: ServerProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    async with AsyncExitStack() as stack:
        # A client's pool of connections gets slow with many: twenty of fifty.
        clients = [await stack.enter_async_context(server.client()) for _ in range(20)]
        polls = [asyncio.create_task(fetch(clients[n % 20], f"topic-{n // 10}", wait=300)) for n in range(1000)]
        await until_waiting(clients[0], 1000)
        await asyncio.gather(*(publish(clients[n % 20], f"topic-{n}", f"for {n}") for n in range(100)))
        assert await asyncio.gather(*polls) == [([f"for {n // 10}"], 1) for n in range(1000)]
        after = await statistics(clients[0])
        assert (after["satisfied"], after["expired"], after["num_delayed"]) == (1000, 0, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_client_that_disconnects_is_removed_at_once(client: httpx.AsyncClient) -> None:
    polls = [asyncio.create_task(fetch(client, "news", wait=300)) for _ in range(5)]
    produce = asyncio.create_task(
        client.post("/topics/other/messages", params={"acks": 1, "timeout": 300}, json={"value": 1})
    )
    await until_waiting(client, 5)
    await until_waiting(client, 1, "produce")
    for task in (*polls[:3], produce):
        task.cancel()
    await until_waiting(client, 2)
    await until_waiting(client, 0, "produce")
    assert (await statistics(client))["cancelled"] == 3
    await publish(client, "news", "for the others")
    assert await asyncio.gather(*polls[3:]) == [(["for the others"], 1)] * 2


async def test_a_client_that_disconnects_in_the_middle_of_its_body_harms_no_other(
    server: ServerProcess, client: httpx.AsyncClient
) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":")[-1]))) as connection:
            connection.sendall(b"POST /topics/news/messages HTTP/1.1\r\nHost: 0.0.0.0\r\nContent-Length: 100\r\n\r\n{")
    assert await publish(client, "news", 1) == 0


class TestReplication:
    """`acks` and `replica`, as Kafka does it."""

    async def test_a_produce_waits_for_that_many_distinct_replicas(self, client: httpx.AsyncClient) -> None:
        await publish(client, "news", "before")
        produce = asyncio.create_task(
            client.post("/topics/news/messages", params={"acks": 2, "timeout": 300}, json={"value": "important"})
        )
        await until_waiting(client, 1, "produce")
        assert await fetch(client, "news", min_messages=2, replica="r1", wait=300) == (["before", "important"], 2)
        assert await fetch(client, "news", offset=2, replica="r1", wait=0) == ([], 2)
        assert await fetch(client, "news", offset=2, replica="r1", wait=0) == ([], 2)
        assert await fetch(client, "news", offset=1, replica="r2", wait=0) == (["important"], 2)
        assert not produce.done()
        await fetch(client, "news", offset=2, replica="r2", wait=0)
        response = await produce
        assert (response.status_code, response.json()) == (201, {"topic": "news", "offset": 1})
        assert (await statistics(client, "produce"))["satisfied"] == 1

    async def test_followers_that_long_poll_acknowledge_as_they_go(self, client: httpx.AsyncClient) -> None:
        async def follow(replica: str) -> list[Any]:
            values: list[Any] = []
            while len(values) < 20:
                part, _ = await fetch(client, "news", offset=len(values), replica=replica, wait=300)
                values += part
            await fetch(client, "news", offset=20, replica=replica, wait=0)
            return values

        followers = [asyncio.create_task(follow(replica)) for replica in ("r1", "r2", "r3")]
        for n in range(20):
            response = await client.post("/topics/news/messages?acks=3&timeout=60", json={"value": n})
            assert response.json() == {"topic": "news", "offset": n}
        assert await asyncio.gather(*followers) == [list(range(20))] * 3

    async def test_too_few_replicas_in_time_are_a_504_and_the_message_stays(self, client: httpx.AsyncClient) -> None:
        response = await client.post("/topics/news/messages?acks=1&timeout=0.05", json={"value": "kept"})
        assert response.status_code == 504
        assert response.json()["offset"] == 0
        assert "too few replicas have acknowledged" in response.json()["error"]
        assert await fetch(client, "news") == (["kept"], 1)

    async def test_a_replica_cannot_acknowledge_a_message_that_is_not_there(self, client: httpx.AsyncClient) -> None:
        response = await client.get("/topics/news/messages?offset=1&replica=r1&wait=0")
        assert response.status_code == 409
        assert "ahead of the topic's end 0" in response.json()["error"]

    async def test_there_may_be_a_hundred(self, client: httpx.AsyncClient) -> None:
        await publish(client, "news", "for all")
        for n in range(100):
            await fetch(client, "news", replica=f"r{n}", wait=0)
        assert (await client.get("/topics/news/messages?replica=one-more&wait=0")).status_code == 409
        await fetch(client, "news", replica="r7", wait=0)


async def test_statistics_of_each_purgatory(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/statistics")).json()
    assert list(answer) == ["fetch", "produce", "throttle"]
    assert answer["produce"]["num_delayed"] == answer["fetch"]["peak_watched"] == 0


async def test_a_full_purgatory_is_a_503_that_says_when_to_come_back(tmp_path: Path) -> None:
    with running(tmp_path, "--max-pending", "2") as server:
        async with server.client() as client:
            polls = [asyncio.create_task(fetch(client, "news", wait=300)) for _ in range(2)]
            waiting = [client.post("/topics/other/messages?acks=1", json={"value": n}) for n in range(2)]
            produces = [asyncio.create_task(request) for request in waiting]
            await until_waiting(client, 2)
            await until_waiting(client, 2, "produce")
            for refused in (
                await client.get("/topics/news/messages"),
                await client.post("/topics/news/messages?acks=1", json={"value": "not stored"}),
            ):
                assert refused.status_code == 503
                assert refused.headers["Retry-After"] == "1"
                assert "as many waiting requests as it may" in refused.json()["error"]
            # A request that need not wait is let in, and no refused message was stored.
            await publish(client, "news", "first")
            assert await asyncio.gather(*polls) == [(["first"], 1)] * 2
            await fetch(client, "other", offset=2, replica="r1", wait=0)
            assert [response.status_code for response in await asyncio.gather(*produces)] == [201, 201]


GET = "/topics/news/messages"


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        (f"{GET}?offset=-1", 400, "offset must be a whole number from 0"),
        (f"{GET}?offset=1.5", 400, "offset must be a whole number"),
        (f"{GET}?offset=", 400, "offset must be a whole number"),
        (f"{GET}?offset=nan", 400, "offset must be a whole number"),
        (f"{GET}?offset=%C2%B2", 400, "offset must be a whole number"),
        (f"{GET}?offset=99999999999999999999999", 400, "offset must be a whole number"),
        (f"{GET}?min_messages=-1", 400, "min_messages must be a whole number from 0 to 10000, not '-1'"),
        (f"{GET}?min_messages=10001", 400, "min_messages must be a whole number from 0 to 10000"),
        (f"{GET}?max_messages=0", 400, "max_messages must be a whole number from 1 to 10000, not '0'"),
        (f"{GET}?max_messages=10001", 400, "max_messages must be"),
        (f"{GET}?wait=-1", 400, "wait must be a number of seconds, 0 or more, not '-1'"),
        (f"{GET}?wait=nan", 400, "wait must be a number of seconds"),
        (f"{GET}?wait=inf", 400, "wait must be a number of seconds"),
        (f"{GET}?wait=1_0", 400, "wait must be a number of seconds"),
        (f"{GET}?wait=soon", 400, "wait must be a number of seconds, 0 or more, not 'soon'"),
        (f"{GET}?wait=1&wait=2", 400, "wait is given twice"),
        (f"{GET}?timeout=1", 400, "unknown parameter 'timeout'"),
        (f"{GET}?replica=", 400, "a replica is named by"),
        (f"{GET}?replica=a%20b", 400, "a replica is named by"),
        ("/topics/a%20b/messages", 400, "a topic is named by"),
        ("/topics/../messages", 400, "a topic is named by"),
        ("/topics/%2E%2E/messages", 400, "a topic is named by"),
        ("/topics/%00/messages", 400, "a topic is named by"),
        ("/topics/caf%C3%A9/messages", 400, "a topic is named by"),
        (f"/topics/{'x' * 250}/messages", 400, "a topic is named by 1 to 249"),
        ("/topics//messages", 404, "Not Found"),
        ("/topics/a%2Fb/messages", 404, "Not Found"),
        ("/nothing", 404, "Not Found"),
    ],
)
async def test_bad_fetches(lasting: ServerProcess, path: str, status: int, error: str) -> None:
    await _refused(lasting, "GET", path, b"", status, error)


BODY = b'{"value": 1}'


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        (GET, b"", 400, "the body is not JSON"),
        (GET, b"{", 400, "the body is not JSON"),
        (GET, b"\xff", 400, "the body is not JSON"),
        (GET, b'{"value": NaN}', 400, "NaN is no JSON"),
        (GET, b'{"value": -Infinity}', 400, "-Infinity is no JSON"),
        (GET, b'{"value": 1e999}', 400, "not JSON"),
        (GET, b'{"value": ' + b"1" * 5000 + b"}", 400, "not JSON"),
        (GET, b'{"value": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400, "nested too deeply"),
        (GET, b"[]", 400, "a JSON object of one member"),
        (GET, b"{}", 400, "a JSON object of one member"),
        (GET, b'{"value": 1, "key": 2}', 400, "a JSON object of one member"),
        (GET, b'{"value": "' + b"x" * 1_048_576 + b'"}', 413, "must not be longer than 1048576 bytes"),
        (f"{GET}?acks=-1", BODY, 400, "acks must be a whole number from 0 to 100"),
        (f"{GET}?acks=101", BODY, 400, "acks must be a whole number"),
        (f"{GET}?acks=all", BODY, 400, "acks must be a whole number from 0 to 100, not 'all'"),
        (f"{GET}?acks=1&timeout=-1", BODY, 400, "timeout must be a number of seconds"),
        (f"{GET}?acks=1&timeout=nan", BODY, 400, "timeout must be a number of seconds"),
        (f"{GET}?acks=1&timeout=1e1000", BODY, 400, "timeout must be a number of seconds"),
        (f"{GET}?offset=1", BODY, 400, "unknown parameter 'offset'; there are acks, timeout"),
        ("/topics/a%20b/messages", BODY, 400, "a topic is named by"),
        ("/statistics", BODY, 405, "Method Not Allowed"),
    ],
)
async def test_bad_publishes(lasting: ServerProcess, path: str, body: bytes, status: int, error: str) -> None:
    await _refused(lasting, "POST", path, body, status, error)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all the requests that it refuses."""
    with running(tmp_path_factory.mktemp("data")) as server:
        yield server


async def _refused(server: ServerProcess, method: str, path: str, body: bytes, status: int, error: str) -> None:
    # Not through httpx's own idea of a path, which resolves dots.
    port = int(server.url.rsplit(":")[-1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    response_head, _, response_body = answer.decode().partition("\r\n\r\n")
    assert f"HTTP/1.1 {status} " in response_head
    assert "content-type: application/json" in response_head
    assert response_body.startswith('{"error":')
    assert error in response_body.encode().decode("unicode_escape")
    async with server.client() as client:
        assert await fetch(client, "news", wait=0) == ([], 0)
        assert (await statistics(client))["num_delayed"] == 0


async def test_a_fetch_of_no_message_does_not_wait_beyond_the_end_either(tmp_path: Path) -> None:
    with running(tmp_path, "--max-wait", "3600") as server:
        async with server.client() as client:
            assert await fetch(client, "news", offset=9, min_messages=0, wait=3600) == ([], 9)
