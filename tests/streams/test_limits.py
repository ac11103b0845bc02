"""Requests that are refused because of limits, and what is counted for them."""

import asyncio
import select
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from purgatory import PurgatoryClosed
from purgatory.lowlevel import loop_for_threads
from purgatory.streams import admission
from purgatory.streams.admission import (
    SMALL,
    Budget,
    Clients,
    Hold,
    Quotas,
    Refusal,
    TooManyRequests,
    address,
    jittered,
)
from purgatory.streams.core.commands import Create
from purgatory.streams.http.replies import Reply
from purgatory.streams.http.streams import delayed
from purgatory.streams.settings import Settings
from purgatory.uvicorn import ParkingProtocol
from tests.streams.processes import ROOT, ZERO, append, create, poll, running, until_waiting
from tests.streams.serving import Server, opened, serving

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

BUSY = "the client has reached its limit of 3 waiting reads"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(data=str(tmp_path_factory.mktemp("data")), max_pending_client=3) as server:
        yield server


def client_of(server: Server, local: str = "127.0.0.1") -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(local_address=local)
    return httpx.AsyncClient(base_url=server.url, transport=transport, timeout=60)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(server) as client:
        yield client


class TestWaits:
    @given(st.floats(0.001, 3600), st.floats(0, 1, exclude_max=True))
    async def test_a_wait_is_shortened_by_up_to_a_sixteenth(self, most: float, drawn: float) -> None:
        wait = jittered(most, lambda: drawn)
        assert most * (15 / 16 if most >= 1 else 1) <= wait <= most

    async def test_readers_that_came_at_once_do_not_come_back_at_once(self) -> None:
        waits = sorted(jittered(48.0) for _ in range(1000))
        # Of a thousand in three seconds, hardly fifty come in any tenth of one.
        assert max(sum(begin <= wait < begin + 0.1 for wait in waits) for begin in waits) < 100


class TestClients:
    async def test_a_request_beyond_the_limit_is_refused_until_one_has_ended(self, client: httpx.AsyncClient) -> None:
        async def refused() -> None:
            for live in ("long-poll", "sse"):
                response = await client.get(f"{ROOT}/room", params={"offset": end, "live": live})
                assert (response.status_code, response.headers["retry-after"]) == (429, "1")
                assert response.json() == {"error": {"message": BUSY}}

        await create(client, "room")
        end = ZERO
        for text in "abc":
            polls = [asyncio.create_task(poll(client, "room", end)) for _ in range(3)]
            await until_waiting(client, 3)
            await refused()
            polls.pop().cancel()  # its client disconnects
            await until_waiting(client, 2)
            polls.append(asyncio.create_task(poll(client, "room", end)))
            await until_waiting(client, 3)
            await refused()
            end = await append(client, "room", text)  # which does not wait
            assert await asyncio.gather(*polls) == [text] * 3

    @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.sampled_from(["come", "come", "stream", "leave", "append"]), max_size=12))
    async def test_reads_wait_as_in_a_list_however_clients_come_and_go(self, server: Server, steps: list[str]) -> None:
        async with client_of(server) as client, client_of(server, "127.0.0.2") as other:
            await create(other, "steps")
            end = (await other.head(f"{ROOT}/steps")).headers["stream-next-offset"]
            waiting: list[asyncio.Task[object]] = []
            for step in [*steps, "append"]:
                if step in ("come", "stream") and len(waiting) == 3:
                    assert (await client.get(f"{ROOT}/steps?offset=-1&live=sse")).status_code == 429
                elif step == "come":
                    waiting.append(asyncio.create_task(poll(client, "steps", end)))
                elif step == "stream":
                    waiting.append(asyncio.create_task(first_event(client, "steps", end)))
                elif step == "leave" and waiting:
                    waiting.pop().cancel()
                elif step == "append":
                    end = await append(other, "steps", "x")
                    assert await asyncio.gather(*waiting) == ["x"] * len(waiting)
                    waiting = []
                await until_waiting(other, len(waiting))
            assert len(server.application.streams.readers.clients) == 0

    async def test_a_read_that_fails_does_not_wait_any_more(self, server: Server, client: httpx.AsyncClient) -> None:
        await create(client, "fails")
        waiting = asyncio.create_task(poll(client, "fails"))
        await until_waiting(client, 1)
        streams = server.application.streams
        (read,) = streams.reads.watching("fails")
        loop = loop_for_threads(streams.reads)
        assert loop is not None
        loop.call_soon_threadsafe(read.fail, RuntimeError("its database is gone"))
        await until_waiting(client, 0)
        assert len(streams.readers.clients) == 0
        waiting.cancel()

    async def test_limit_of_one_client_does_not_concern_others(self, server: Server, client: httpx.AsyncClient) -> None:
        await create(client, "both")
        async with client_of(server, "127.0.0.2") as other, client_of(server, "127.0.0.3") as third:
            polls = [asyncio.create_task(poll(each, "both")) for each in (client, other) for _ in range(3)]
            await until_waiting(client, 6)
            assert (await other.get(f"{ROOT}/both?offset=-1&live=sse")).status_code == 429
            await append(third, "both", "x")
            assert await asyncio.gather(*polls) == ["x"] * 6

    @pytest.mark.parametrize("invented", ["x{}", "fe80::1%{}", "10.0.0.1.{}"])
    async def test_a_client_that_invents_addresses_is_one_client(
        self, server: Server, client: httpx.AsyncClient, invented: str
    ) -> None:
        await create(client, "invented")

        def polled(number: int) -> "asyncio.Task[httpx.Response]":
            headers = {"X-Forwarded-For": invented.format(number)}
            url = f"{ROOT}/invented?offset=-1&live=long-poll"
            return asyncio.create_task(client.get(url, headers=headers))

        polls = [polled(number) for number in range(3)]
        await until_waiting(client, 3)
        assert (await polled(3)).status_code == 429
        for task in polls:
            task.cancel()
        await until_waiting(client, 0)

    async def test_requests_count_once_behind_a_server_that_does_not_park(self, tmp_path: Path) -> None:
        for http in (HttpToolsProtocol, ParkingProtocol):
            with serving(http=http, data=str(tmp_path), max_pending_client=3) as server:
                async with client_of(server) as client, client_of(server, "127.0.0.2") as other:
                    await client.delete(f"{ROOT}/once")
                    await create(client, "once")
                    polls = [asyncio.create_task(poll(client, "once")) for _ in range(3)]
                    await until_waiting(other, 3)
                    assert server.application.streams.readers.clients._counts == {"127.0.0.1": 3}
                    assert (await client.get(f"{ROOT}/once?offset=-1&live=sse")).status_code == 429
                    await append(other, "once", "x")
                    assert await asyncio.gather(*polls) == ["x"] * 3

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())))
    async def test_requests_are_counted_as_in_a_list(self, steps: list[tuple[str, bool]]) -> None:
        clients = Clients(2, "requests")
        waiting: list[str] = []
        for name, comes in steps:
            if waiting.count(name) >= 2:
                with pytest.raises(TooManyRequests, match="the client has reached its limit of 2 requests"):
                    clients.check(name)
            else:
                clients.check(name)
            if comes:
                clients.enter(name)
                waiting.append(name)
            elif name in waiting:
                clients.leave(name)
                waiting.remove(name)
            assert len(clients) == len(set(waiting))

    async def test_address_of_a_client_is_empty_unless_it_is_an_ip_address(self) -> None:
        found = [address(client) for client in (None, ("::1", 5), ("10.0.0.1", 5), ("<b>", 5))]
        assert found == ["", "::1", "10.0.0.1", ""]


async def first_event(client: httpx.AsyncClient, name: str, offset: str) -> str:
    """The data of the first event."""
    async with client.stream("GET", f"{ROOT}/{name}", params={"offset": offset, "live": "sse"}) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data:") and not line.startswith("data:{"):
                return line.removeprefix("data:")
    raise AssertionError


async def test_no_more_reads_wait_than_may_and_the_database_is_not_asked(tmp_path: Path) -> None:
    with serving(data=str(tmp_path), max_pending=2) as server:
        async with client_of(server) as client:
            await create(client, "full")
            polls = [asyncio.create_task(poll(client, "full")) for _ in range(2)]
            await until_waiting(client, 2)
            for path in ("full", "missing"):  # for a stream that is not there too
                response = await client.get(f"{ROOT}/{path}?offset=-1&live=long-poll")
                assert (response.status_code, response.headers["retry-after"]) == (503, "1")
                assert response.json()["error"]["message"] == "the server has too many waiting requests"
            assert (await client.get(f"{ROOT}/full?offset=-1")).status_code == 200
            await append(client, "full", "x")
            assert await asyncio.gather(*polls) == ["x"] * 2


async def test_no_more_requests_of_a_client_are_in_progress_than_may(server: Server) -> None:
    """Half of a body keeps a request in progress."""
    head = b"POST /v1/stream/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"
    busy = server.application._endpoint.limits.clients
    with ExitStack() as stack:
        for _ in range(3):
            address = ("127.0.0.9", 0)
            stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), 60, source_address=address)
            ).sendall(head)
        async with client_of(server, "127.0.0.9") as client, client_of(server) as other:
            while busy._counts.get("127.0.0.9", 0) < 3:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.01)
            for path in (f"{ROOT}/none", "/v1/streams"):
                refused = await client.get(path)
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                assert "3 requests in progress" in refused.text
            assert (await other.get(f"{ROOT}/none")).status_code == 404
    while len(busy):  # noqa: ASYNC110 - another thread's
        await asyncio.sleep(0.01)


async def test_reads_that_cannot_wait_are_not_counted(tmp_path: Path) -> None:
    async with opened(Settings(data=str(tmp_path))) as streams:
        await streams.run(Create("a", "text/plain"))
        known = await streams.find("a")
        read = streams.wait(known, 0, 60.0, "127.0.0.1")
        assert len(streams.readers.clients) == 1
        assert [read.cancel(), read.cancel()] == [True, False]
        assert len(streams.readers.clients) == 0
        streams.reads.close()
        with pytest.raises(PurgatoryClosed):
            streams.wait(known, 0, 60.0, "127.0.0.1")
        assert len(streams.readers.clients) == 0


async def test_no_more_reads_of_a_client_wait_than_may_if_they_are_admitted_at_once(tmp_path: Path) -> None:
    async with opened(Settings(data=str(tmp_path))) as streams:
        streams.readers.clients = Clients(2, "waiting reads")
        await streams.run(Create("a", "text/plain"))
        for _ in range(3):
            streams.check_room("127.0.0.1")
        known = await streams.find("a")
        reads = [streams.wait(known, 0, 60.0, "127.0.0.1") for _ in range(2)]
        with pytest.raises(TooManyRequests):
            streams.wait(known, 0, 60.0, "127.0.0.1")
        for read in reads:
            read.cancel()
        assert len(streams.readers.clients) == 0


class TestBodies:
    async def test_bodies_are_bounded_together_and_free_their_room(self, tmp_path: Path) -> None:
        with running(tmp_path, "--max-body", "10000001") as server:
            async with server.client() as client:
                await create(client, "news")
                size = 10_000_000
                head = (
                    b"POST /v1/stream/news HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
                    b"Content-Length: %d\r\n\r\n" % (size + 1)
                )
                with ExitStack() as stack:
                    bodies = [stack.enter_context(
                        socket.create_connection(("127.0.0.1", server.port), 60, (f"127.0.1.{number}", 0))
                    ) for number in range(20)]  # fmt: skip
                    for body in bodies:
                        await asyncio.to_thread(body.sendall, head + b" " * size)
                    (one, *_), _, _ = await asyncio.to_thread(select.select, bodies, [], [], 60)
                    refused = b""
                    while not refused.endswith(b"}"):
                        refused += await asyncio.to_thread(one.recv, 10_000)
                    assert refused.startswith(b"HTTP/1.1 503 ")
                    assert b"retry-after: 1\r\n" in refused
                    assert b"the server has reached its limit of 100663296 bytes in memory" in refused
                while (await client.post(f"{ROOT}/news", content=b"x" * size, headers={
                    "Content-Type": "text/plain"})).status_code == 503:  # fmt: skip
                    pass
                assert (await client.head(f"{ROOT}/news")).headers["stream-next-offset"].endswith(str(size))

    async def test_a_body_that_is_too_large_is_refused(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), max_body=10) as server:
            async with client_of(server) as client:
                for body in (b"x" * 11, chunks(b"x" * 6, b"x" * 5)):
                    response = await client.put(f"{ROOT}/large", content=body)
                    assert response.status_code == 413
                assert (await client.put(f"{ROOT}/large", content=b"x" * 10)).status_code == 201
                limits = server.application._endpoint.limits
                assert limits.memory.bytes == 0

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b", "c"]),
                st.integers(0, 3),
                st.sampled_from(["resize", "count", "check", "leave"]),
                st.sampled_from([0, 5, SMALL, SMALL + 1, 2 * SMALL, 4 * SMALL, 5 * SMALL]),
            ),
            max_size=60,
        )
    )
    async def test_bytes_are_counted_as_a_table_of_clients_does(self, steps: list[tuple[str, int, str, int]]) -> None:
        whole, share = 8 * 4 * SMALL, 4 * SMALL
        budget = Budget(whole)
        holds: dict[tuple[str, int], tuple[Hold, int]] = {}

        def held(of: str | None = None) -> int:
            return sum(size for (client, _), (_, size) in holds.items() if of is None or of == client)

        for client, request, step, size in steps:
            hold, before = holds.setdefault((client, request), (budget.hold(client), 0))
            counted = size if size > SMALL else 0
            if step == "leave":
                hold.count(0)
                del holds[client, request]
            elif step == "count":
                hold.count(size)
                holds[client, request] = hold, counted
            else:
                more = 1 if step == "check" else counted - before
                act = partial(hold.resize, size) if step == "resize" else hold.check
                status = 429 if held(client) + more > share else 503 if held() + more > whole else None
                if status is None or more <= 0:
                    act()
                    if step == "resize":
                        holds[client, request] = hold, counted
                else:
                    with pytest.raises(Refusal, match="limit of") as raised:
                        act()
                    assert (raised.value.status, raised.value.headers) == (status, [(b"retry-after", b"1")])
            assert budget.bytes == held()
        for hold, _ in holds.values():
            hold.count(0)
        assert budget.bytes == 0


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class TestQuotas:
    async def test_answers_to_more_appends_are_delayed(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), append_rate=50.0) as server:
            async with client_of(server) as client, client_of(server, "127.0.0.2") as other:
                await create(client, "quota")
                loop = asyncio.get_running_loop()
                began = loop.time()
                for _ in range(75):
                    await append(client, "quota", "x")
                # A second's worth is free; the rest is at the rate. The answers of another client are not delayed.
                assert loop.time() - began > 0.4
                assert (await other.get("/v1/stream/quota")).text == "x" * 75

    async def test_an_append_of_which_the_answer_is_delayed_is_there_at_once(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), append_rate=0.1) as server:
            async with client_of(server) as client, client_of(server, "127.0.0.2") as other:
                await create(client, "quota")
                await append(client, "quota", "x")
                delayed = asyncio.create_task(append(client, "quota", "y"))
                await until_waiting(other, 1, "throttle")
                assert await poll(other, "quota") == "xy"
                assert not delayed.done()
                server.should_exit = True  # a shutdown answers all requests that wait
                assert (await delayed).endswith("2")

    async def test_a_client_that_is_far_ahead_is_refused(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), append_rate=0.01) as server:
            async with client_of(server) as client:
                await create(client, "quota")
                await append(client, "quota", "x")
                response = await client.post(f"{ROOT}/quota", content="y")
                assert response.status_code == 429
                assert 100 < int(response.headers["retry-after"]) <= 169
                assert response.json()["error"]["message"] == "the client appends more than 0.01 times a second"
                assert await poll(client, "quota") == "x"

    async def test_delays_are_those_of_the_generic_cell_rate_algorithm(self) -> None:
        quotas = Quotas(2.0, 1)
        loop = asyncio.get_running_loop()
        now = loop.time()
        delays = [quotas.take("a") - now for _ in range(6)]
        assert [round(delay, 1) for delay in delays] == [0.0, 0.0, 0.5, 1.0, 1.5, 2.0]
        assert len(quotas) == 1
        reply = Reply(204)
        # One answer may wait. The next is not lost: it is sent at once.
        responses = [delayed(reply, due, quotas) for due in (now, now + 9, now + 9)]
        assert [response is reply for response in responses] == [True, False, True]
        assert quotas.purgatory.num_delayed == 1
        quotas.purgatory.close()
        assert delayed(reply, now + 9, quotas) is reply
        quotas.close()
        assert len(quotas) == 1


async def test_unread_responses_of_a_client_are_an_eighth_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_HELD", 8 * 20_000_000)
    with serving(data=str(tmp_path), max_body=9_000_000) as server:
        async with client_of(server) as client, client_of(server, "127.0.0.2") as other:
            json = {"Content-Type": "application/json"}
            await create(client, "big", **json)
            await append(client, "big", f'"{"x" * 8_999_998}"', **json)  # one message, more than the kernel takes
            with ExitStack() as stack:
                readers = [stack.enter_context(slow_reader(server.port, "big")) for _ in range(4)]
                begun = [await asyncio.to_thread(reader.recv, 12, socket.MSG_PEEK) for reader in readers]
                assert Counter(begun) == {b"HTTP/1.1 200": 2, b"HTTP/1.1 429": 2}
                assert len((await other.get(f"{ROOT}/big?offset=-1")).content) == 9_000_002
            while (await client.get(f"{ROOT}/big?offset=-1")).status_code == 429:
                pass
            limits = server.application._endpoint.limits
            assert limits.memory.bytes == 0


async def test_unread_event_streams_of_a_client_are_an_eighth_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_HELD", 8 * 8 * 1024 * 1024)
    with serving(data=str(tmp_path)) as server:
        limits = server.application._endpoint.limits
        async with client_of(server) as client, client_of(server, "127.0.0.2") as other:
            await create(client, "lines")
            for _ in range(8):
                await append(client, "lines", "\n" * 1024 * 1024)
            with ExitStack() as stack:
                for _ in range(40):
                    stack.enter_context(slow_reader(server.port, "lines", "&live=sse"))
                while limits.memory.bytes < 8 * 1024 * 1024:  # noqa: ASYNC110 - of another thread
                    await asyncio.sleep(0.01)
                refused = await client.get(f"{ROOT}/lines?offset=-1&live=sse")
                assert refused.status_code == 429
                assert limits.memory.bytes < 9 * 1024 * 1024
                async with other.stream("GET", f"{ROOT}/lines?offset=-1&live=sse") as events:
                    assert events.status_code == 200
                    assert await anext(events.aiter_lines()) == "event: data"
            while limits.memory.bytes:  # noqa: ASYNC110 - of another thread
                await asyncio.sleep(0.01)


def slow_reader(port: int, name: str, query: str = "") -> socket.socket:
    """A connection with a small buffer that has asked for a stream, and does not read."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(60)
    reader.connect(("127.0.0.1", port))
    reader.sendall(f"GET {ROOT}/{name}?offset=-1{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader
