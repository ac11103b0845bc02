"""Requests that the long-poll server refuses, and bytes that it does not even read. A real process, real sockets."""

import asyncio
import json
import select
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from examples.long_poll_server import openapi, requests
from examples.long_poll_server.limits import Held, PendingByClient, Room, bounded, jittered
from examples.long_poll_server.log import MessageLog
from examples.long_poll_server.settings import Settings
from tests.support.server_process import ServerProcess, fetch, in_this_process, publish, raw, running, until_waiting

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("data"), "--max-pending-client", "3", "--max-wait", "20") as server:
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client() as client:
        yield client


class TestWaits:
    @given(st.floats(0, allow_infinity=False), st.floats(0.001, 3600), st.floats(0, 1, exclude_max=True))
    async def test_a_wait_is_cut_and_shortened_by_up_to_a_sixteenth(
        self, asked: float, most: float, drawn: float
    ) -> None:
        wait = jittered(bounded(asked, most), lambda: drawn)
        least = min(asked, most)
        assert least * (15 / 16 if least >= 1 else 1) <= wait <= least

    async def test_clients_that_came_at_once_do_not_come_back_at_once(self) -> None:
        waits = sorted(jittered(48.0) for _ in range(1000))
        # Of a thousand in three seconds, hardly fifty come in any tenth of one.
        assert max(sum(begin <= wait < begin + 0.1 for wait in waits) for begin in waits) < 100

    async def test_any_wait_is_taken_and_cut(self, tmp_path: Path) -> None:
        with running(tmp_path, "--max-wait", "0.05") as server:
            async with server.client() as client:
                for wait in ("0.01", "300", "1e308", "9" * 300):
                    assert await fetch(client, "news", wait=wait) == ([], 0)
                response = await client.post("/topics/news/messages?acks=1&timeout=1e9", json={"value": 1})
                assert response.status_code == 504


class TestPendingByClient:
    async def test_request_beyond_limit_is_refused_until_waiting_request_ends(
        self, server: ServerProcess, client: httpx.AsyncClient
    ) -> None:
        async def refused() -> None:
            response = await client.get("/topics/room/messages?offset=99&wait=300")
            assert (response.status_code, response.headers["retry-after"]) == (429, "1")
            assert response.json() == {"error": "the client has 3 waiting requests, as many as it may"}

        for offset in range(3):
            polls = [asyncio.create_task(fetch(client, "room", offset=offset, wait=300)) for _ in range(3)]
            await until_waiting(client, 3)
            await refused()
            # By its client's disconnect.
            polls.pop().cancel()
            await until_waiting(client, 2)
            # By its deadline, or at once: a request that need not wait is let in anyway.
            assert await fetch(client, "room", offset=99, wait=0.01) == ([], 99)
            polls.append(asyncio.create_task(fetch(client, "room", offset=offset, wait=300)))
            await until_waiting(client, 3)
            await refused()
            assert await fetch(client, "room", offset=0, min_messages=0) == (list(range(offset)), offset)
            assert (await client.get("/topics/room/messages?wait=-1")).status_code == 400
            # By what it has waited for.
            await publish(client, "room", offset)
            assert await asyncio.gather(*polls) == [([offset], offset + 1)] * 3

    @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.sampled_from(["come", "come", "leave", "publish"]), max_size=12))
    async def test_as_many_wait_as_a_list_says_however_clients_come_and_go(
        self, server: ServerProcess, steps: list[str]
    ) -> None:
        async with server.client() as client:
            _, end = await fetch(client, "steps", wait=0)
            waiting: list[asyncio.Task[tuple[list[object], int]]] = []
            for step in [*steps, "publish"]:
                if step == "come" and len(waiting) == 3:
                    assert (await client.get(f"/topics/steps/messages?offset={end}")).status_code == 429
                elif step == "come":
                    waiting.append(asyncio.create_task(fetch(client, "steps", offset=end, wait=300)))
                elif step == "leave" and waiting:
                    waiting.pop().cancel()
                elif step == "publish":
                    await publish(client, "steps", step)
                    end += 1
                    assert await asyncio.gather(*waiting) == [([step], end)] * len(waiting)
                    waiting = []
                await until_waiting(client, len(waiting))

    async def test_other_clients_are_not_concerned(self, server: ServerProcess, client: httpx.AsyncClient) -> None:
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=server.url, transport=transport, timeout=60) as other:
            polls = [asyncio.create_task(fetch(each, "both", wait=300)) for each in (client, other) for _ in range(3)]
            await until_waiting(client, 6)
            assert (await other.get("/topics/both/messages")).status_code == 429
            await publish(client, "both", 1)
            assert await asyncio.gather(*polls) == [([1], 1)] * 6

    @pytest.mark.parametrize("invented", ["x{}", "fe80::1%{}", "10.0.0.1.{}"])
    async def test_a_client_that_invents_names_is_one_client(
        self, server: ServerProcess, client: httpx.AsyncClient, invented: str
    ) -> None:
        def poll(n: int) -> Any:
            headers = {"X-Forwarded-For": invented.format(n)}
            return client.get("/topics/invented/messages?offset=99&wait=300", headers=headers)

        polls = [asyncio.create_task(poll(n)) for n in range(3)]
        await until_waiting(client, 3)
        assert (await poll(3)).status_code == 429
        for task in polls:
            task.cancel()
        await until_waiting(client, 0)

    async def test_publishers_are_counted_by_themselves(self, client: httpx.AsyncClient) -> None:
        url = "/topics/acked/messages"
        polls = [asyncio.create_task(fetch(client, "news", wait=300)) for _ in range(3)]
        posts = [asyncio.create_task(client.post(f"{url}?acks=1&timeout=300", json={"value": n})) for n in range(3)]
        await until_waiting(client, 3)
        await until_waiting(client, 3, "produce")
        response = await client.post(url, json={"value": "not stored"})
        assert response.status_code == 429
        posts.pop().cancel()
        await until_waiting(client, 2, "produce")
        await publish(client, "news", "for all")
        await asyncio.gather(*polls)
        _, end = await fetch(client, "acked")
        assert end == 3
        await fetch(client, "acked", offset=3, replica="r1", wait=0)
        assert [response.status_code for response in await asyncio.gather(*posts)] == [201, 201]

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())))
    async def test_waiting_requests_are_counted_as_in_a_list(self, steps: list[tuple[str, bool]]) -> None:
        pending = PendingByClient(2)
        waiting: list[tuple[str, ExitStack]] = []
        for client, comes in steps:
            count = sum(other == client for other, _ in waiting)
            if comes and count == 2:
                with pytest.raises(HTTPException, match="as many as it may"), pending.one_more(client):
                    pass
            elif comes:
                stack = ExitStack()
                stack.enter_context(pending.one_more(client))
                waiting.append((client, stack))
            elif count:
                leaving = next(each for each in waiting if each[0] == client)
                waiting.remove(leaving)
                leaving[1].close()
            assert len(pending) == len({client for client, _ in waiting})
        for _, stack in waiting:
            stack.close()
        assert len(pending) == 0


class TestBodies:
    async def test_bodies_are_bounded_together_and_free_their_room(self, tmp_path: Path) -> None:
        with running(tmp_path, "--demo") as server:
            async with server.client() as client:
                port = httpx.URL(server.url).port
                head = b"POST /topics/news/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000001\r\n\r\n"
                memory = psutil.Process(server.process.pid).memory_info().rss
                with ExitStack() as stack:
                    bodies = [
                        stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(200)
                    ]
                    for body in bodies:
                        await asyncio.to_thread(body.sendall, head + b" " * 1_000_000)
                    (one, *_), _, _ = await asyncio.to_thread(select.select, bodies, [], [], 60)
                    refused = b""
                    while not refused.endswith(b"}"):
                        refused += await asyncio.to_thread(one.recv, 10_000)
                    assert refused.startswith(b"HTTP/1.1 503 ")
                    assert b"retry-after: 1\r\n" in refused
                    assert refused.endswith(b'{"error":"the server reads as many bodies as it may"}')
                    assert psutil.Process(server.process.pid).memory_info().rss - memory < 150 * 1024 * 1024
                while (await client.post("/topics/news/messages", json={"value": "x" * 1_000_000})).status_code == 503:
                    pass
                assert (await fetch(client, "news"))[1] == 1

    async def test_the_demos_are_small(self, tmp_path: Path) -> None:
        with running(tmp_path, "--demo") as server:
            async with server.client() as client:
                assert (await client.put("/demo", content=b'{"pending": 0}'.ljust(1024))).status_code == 200
                for size in (1025, 1_000_000):
                    response = await client.put("/demo", content=b'{"pending": 0}'.ljust(size))
                    assert response.status_code == 413
                    assert response.json() == {"error": "the body must not be longer than 1024 bytes"}

    @given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["hold", "leave", "fail"]), st.integers(0, 12))))
    async def test_bytes_are_counted_as_a_list_does(self, steps: list[tuple[int, str, int]]) -> None:
        held = Held(10, "too many")
        there: dict[int, tuple[ExitStack, Callable[[int], None], int]] = {}
        for request, step, size in steps:
            if request not in there:
                stack = ExitStack()
                there[request] = stack, stack.enter_context(held.some()), 0
            stack, hold, before = there[request]
            others = sum(each for _, _, each in there.values()) - before
            if step == "leave":
                stack.close()
                del there[request]
            elif step == "fail":
                with pytest.raises(KeyError), stack:
                    raise KeyError
                del there[request]
            elif others + size > 10:
                with pytest.raises(HTTPException) as raised:
                    hold(size)
                assert (raised.value.status_code, raised.value.detail) == (503, "too many")
                assert raised.value.headers == {"Retry-After": "1"}
            else:
                hold(size)
                there[request] = stack, hold, size
            assert held.bytes == sum(each for _, _, each in there.values())
        for stack, _, _ in there.values():
            stack.close()
        assert held.bytes == 0

    @settings(max_examples=30)
    @given(st.lists(st.binary(max_size=8), max_size=6), st.sampled_from(["end", "gone", "late", "cancelled"]))
    async def test_whatever_ends_a_body_it_is_not_counted_any_more(self, parts: list[bytes], end: str) -> None:
        bodies = Held(30, "too many")
        received = Counter[str]()

        async def receive() -> dict[str, Any]:
            received["parts"] += 1
            if received["parts"] <= len(parts):
                return {"type": "http.request", "body": parts[received["parts"] - 1], "more_body": True}
            if end == "end":
                return {"type": "http.request", "body": b"", "more_body": False}
            if end == "gone":
                return {"type": "http.disconnect"}
            if end == "late":
                raise TimeoutError
            raise asyncio.CancelledError

        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        with pytest.raises((HTTPException, ClientDisconnect, asyncio.CancelledError)):
            await requests.member(request, "value", bodies, 20)
        assert bodies.bytes == 0


class TestRoom:
    async def test_a_topic_takes_so_many_messages_also_of_clients_that_publish_at_once(self, tmp_path: Path) -> None:
        for taken in (5, 0):
            with running(tmp_path, "--max-messages", "5", "--max-topics", "3") as server:
                async with server.client() as client:
                    posts = [client.post("/topics/news/messages", json={"value": n}) for n in range(20)]
                    answers = await asyncio.gather(*posts)
                    assert (await fetch(client, "news"))[1] == 5
                    refused = [answer for answer in answers if answer.status_code == 403]
                    assert {answer.text for answer in refused} == {
                        '{"error":"the topic has 5 messages, as many as it may"}'
                    }
                    assert len(refused) == 20 - taken

    async def test_there_are_so_many_topics_also_of_those_that_come_at_once(self, tmp_path: Path) -> None:
        async def topics(client: httpx.AsyncClient) -> list[str]:
            answers = [(await fetch(client, f"topic-{n}", wait=0))[1] for n in range(20)]
            return [f"topic-{n}" for n, end in enumerate(answers) if end]

        with running(tmp_path, "--max-topics", "3") as server:
            async with server.client() as client:
                posts = [client.post(f"/topics/topic-{n % 20}/messages", json={"value": n}) for n in range(40)]
                answers = await asyncio.gather(*posts)
                assert Counter(answer.status_code for answer in answers) == {201: 6, 403: 34}
                assert {answer.text for answer in answers if answer.status_code == 403} == {
                    '{"error":"there are 3 topics, as many as there may be"}'
                }
                there = await topics(client)
                assert len(there) == 3
                await publish(client, there[0], "goes on")

    async def test_a_produce_that_finds_no_room_does_not_wait(self, tmp_path: Path) -> None:
        with running(tmp_path, "--max-messages", "1") as server:
            async with server.client() as client:
                await publish(client, "news", 1)
                response = await client.post("/topics/news/messages?acks=1&timeout=300", json={"value": 2})
                assert response.status_code == 403
                await until_waiting(client, 0, "produce")

    async def test_replicas_of_an_empty_topic_are_not_kept(self, client: httpx.AsyncClient) -> None:
        for n in range(101):
            await fetch(client, "empty", replica=f"r{n}", wait=0)

    async def test_messages_in_flight_are_counted(self, tmp_path: Path) -> None:
        log = MessageLog(tmp_path, lambda topic: None)
        room = Room(log, max_topics=2, max_messages=2)

        def refusal(topic: str) -> str:
            with pytest.raises(HTTPException) as raised, room.one_more(topic):
                pass
            assert raised.value.status_code == 403
            return raised.value.detail

        with room.one_more("a"), room.one_more("b"), room.one_more("b"):
            assert "2 topics" in refusal("c")
            assert "2 messages" in refusal("b")
        with room.one_more("a"):
            await log.append("a", "1")
            # It is there, and still on its way: that is one topic, not two.
            with room.one_more("c"):
                assert "2 topics" in refusal("b")
        with pytest.raises(KeyError), room.one_more("b"):
            raise KeyError
        with room.one_more("b"):
            await log.append("b", "1")
        assert "2 topics" in refusal("c")
        await log.close()


class TestOtherOrigins:
    """A page of another site has no business here."""

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({}, 201),
            ({"Origin": "http://127.0.0.1:1"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "{own}"}, 201),
            ({"Sec-Fetch-Site": "same-origin", "Origin": "{own}"}, 201),
            ({"Sec-Fetch-Site": "none"}, 201),
            ({"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, 403),
            ({"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"}, 403),
            ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),
        ],
    )
    async def test_page_of_other_origin_cannot_publish(
        self, client: httpx.AsyncClient, headers: dict[str, str], status: int
    ) -> None:
        own = str(client.base_url).rstrip("/")
        headers = {name: value.format(own=own) for name, value in headers.items()}
        # As a form sends it, without asking first.
        headers["Content-Type"] = "text/plain"
        response = await client.post("/topics/site/messages", content='{"value": 1}', headers=headers)
        assert response.status_code == status
        assert not [name for name in response.headers if name.startswith("access-control")]

    async def test_page_of_other_origin_cannot_fetch_but_may_link_here(self, client: httpx.AsyncClient) -> None:
        other = {"Sec-Fetch-Site": "cross-site"}
        assert (await client.get("/topics/site/messages?wait=0", headers=other)).status_code == 403
        link = {**other, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await client.get("/", headers=link)).status_code == 200
        frame = {**other, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
        assert (await client.get("/", headers=frame)).status_code == 403

    async def test_no_link_of_its_own_acknowledges(self, client: httpx.AsyncClient) -> None:
        await publish(client, "linked", 1)
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        for query, status in (("offset=0", 200), ("replica=r&offset=1", 403), ("offset=1&%72eplica=", 403)):
            response = await client.get(f"/topics/linked/messages?{query}&wait=0", headers=link)
            assert response.status_code == status, query

    async def test_preflight_of_other_origin_is_refused(self, client: httpx.AsyncClient) -> None:
        asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        response = await client.options("/topics/site/messages", headers=asked)
        assert response.status_code == 403
        assert not [name for name in response.headers if name.startswith("access-control")]

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("localhost", 200),
            ("LOCALHOST:1", 200),
            ("127.0.0.1", 200),
            ("[::1]:8000", 200),
            ("192.168.1.7:80", 200),
            ("evil.example", 400),
            ("localhost.evil.example:8000", 400),
            ("127.0.0.1.evil.example", 400),
            ("<script>", 400),
            ("", 400),
        ],
    )
    async def test_a_name_of_its_own_that_leads_here_does_not_help_it(
        self, server: ServerProcess, host: str, status: int
    ) -> None:
        sent = f"GET /statistics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        answered, headers, body = await raw(server, sent.encode())
        assert answered == status
        assert headers["content-type"] == "application/json"
        if status == 400:
            assert "--allowed-host" in json.loads(body)["error"]

    async def test_names_may_be_allowed(self, tmp_path: Path) -> None:
        async def statuses(*options: str) -> list[int]:
            with running(tmp_path, *options) as server:
                async with server.client() as client:
                    hosts = ("a.example", "A.Example:80", "b.example", "c.example")
                    return [(await client.get("/statistics", headers={"Host": host})).status_code for host in hosts]

        assert await statuses("--allowed-host", "a.example", "--allowed-host", "b.example") == [200, 200, 200, 400]
        assert await statuses("--allowed-host", "*") == [200] * 4


async def test_server_listens_on_loopback_alone(server: ServerProcess) -> None:
    connections = psutil.Process(server.process.pid).net_connections()
    assert {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


async def test_no_answer_is_taken_for_html_and_none_may_be_read_elsewhere(client: httpx.AsyncClient) -> None:
    hostile = "<script>alert(1)</script>"
    await publish(client, "hostile", hostile)
    for method, path in (
        ("GET", "/topics/hostile/messages"),
        ("GET", f"/topics/{hostile}/messages"),
        ("GET", f"/topics/x/messages?{hostile}={hostile}"),
        ("GET", f"/topics/x/messages?offset={hostile}"),
        ("POST", f"/topics/{hostile}/messages"),
        ("POST", "/topics/x/messages"),
        ("PUT", f"/demo?{hostile}"),
        ("SCRIPT", "/"),
        ("GET", f"/{hostile}"),
        ("GET", f"/page/{hostile}"),
        ("GET", "/page"),
        ("GET", "/statistics/"),
        ("POST", "/topics/x/messages/"),
        ("POST", "/page/main.js"),
    ):
        response = await client.request(method, path, content=hostile)
        assert response.status_code == 200 or response.json()["error"], path
        assert response.headers["content-type"] == "application/json", path
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in response.headers


async def test_a_mistake_of_the_server_is_told_as_json_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(settings: Settings) -> None:
        raise KeyError("mistake")

    monkeypatch.setattr(openapi, "describe", mistaken)
    async with in_this_process(tmp_path) as port, httpx.AsyncClient() as client:
        response = await client.get(f"http://127.0.0.1:{port}/openapi.json")
    assert (response.status_code, response.json()) == (500, {"error": "the server has made a mistake"})
    assert "KeyError: 'mistake'" in caplog.text


async def test_the_files_of_the_page_have_two_methods_and_no_ranges(client: httpx.AsyncClient) -> None:
    refused = await client.post("/page/main.js")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    for path in ("/", "/page/main.js"):
        for wanted in ("bytes=99999999-", "x", "bytes=0-1"):
            response = await client.get(path, headers={"Range": wanted})
            assert (response.status_code, response.headers["accept-ranges"]) == (200, "none")
