"""Requests that are refused because of limits, and what is counted for them."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from purgatory import PurgatoryClosed
from purgatory.streams import admission
from purgatory.streams.admission import Clients, Quotas, TooManyRequests, address, jittered
from purgatory.streams.core.commands import Create
from purgatory.streams.engine.cache import Chunk
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http import events
from purgatory.streams.http.protocol import BoundedProtocol
from purgatory.streams.http.replies import Reply
from purgatory.streams.http.streams import delayed
from purgatory.uvicorn import ParkingProtocol
from tests.streams.processes import JSON, ROOT, TEXT, ZERO, append, client_of, create, poll, slow_reader, until_waiting
from tests.streams.serving import Server, serving, until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

MIB = 1024 * 1024


SETTINGS = {"max_pending_client": 3}


def check_refusal(response: httpx.Response, status: int, message: str) -> None:
    answer = response.status_code, response.headers["retry-after"], response.json()
    assert answer == (status, "1", {"error": {"message": message}})


class TestWaits:
    async def test_readers_that_came_at_once_do_not_come_back_at_once(self) -> None:
        waits = sorted(jittered(48.0) for _ in range(1000))
        assert 45.0 <= waits[0] <= waits[-1] <= 48.0
        # Of a thousand in three seconds, hardly fifty come in any tenth of one.
        assert max(sum(begin <= wait < begin + 0.1 for wait in waits) for begin in waits) < 100
        assert jittered(0.999) == 0.999


class TestClients:
    @pytest.mark.parametrize("http", [BoundedProtocol, ParkingProtocol, HttpToolsProtocol])
    async def test_a_request_beyond_the_limit_is_refused_until_one_has_ended(
        self, tmp_path: Path, http: type[Any]
    ) -> None:
        """Also on servers that do not park, where a request is counted once."""
        with serving(http=http, data=str(tmp_path), max_pending_client=3) as server:
            async with client_of(server.url) as client, client_of(server.url, "127.0.0.2") as other:

                async def refused() -> None:
                    for live in ("long-poll", "sse"):
                        response = await client.get(f"{ROOT}/room", params={"offset": end, "live": live})
                        check_refusal(response, 429, "the client has reached its limit of 3 waiting reads")

                await create(client, "room")
                end = ZERO
                polls = [asyncio.create_task(poll(client, "room", end)) for _ in range(3)]
                await until_waiting(other, 3)
                await refused()
                polls.pop().cancel()  # its client disconnects
                await until_waiting(other, 2)
                polls += [asyncio.create_task(poll(each, "room", end)) for each in (client, other)]
                await until_waiting(other, 4)
                await refused()
                end = await append(client, "room", "x")  # which does not wait
                assert await asyncio.gather(*polls) == ["x"] * 4
                assert len(server.application.streams.readers.clients) == 0

    @pytest.mark.parametrize(
        ("host", "counted"),
        [
            ("10.0.0.1", "10.0.0.1"),
            ("::1", "::1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("2001:db8::1:2:3:4", "2001:db8::"),
            ("fe80::1%invented", "fe80::"),
            ("10.0.0.1.5", ""),
            ("<b>", ""),
        ],
    )
    async def test_a_client_is_an_ip_address_or_a_network_of_ipv6(self, host: str, counted: str) -> None:
        assert (address((host, 5)), address(None)) == (counted, "")

    async def test_no_more_reads_wait_than_may_and_the_database_is_not_asked(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), max_pending=2) as server:
            async with client_of(server.url) as client:
                await create(client, "full")
                polls = [asyncio.create_task(poll(client, "full")) for _ in range(2)]
                await until_waiting(client, 2)
                for path in ("full", "missing"):  # for a stream that is not there too
                    response = await client.get(f"{ROOT}/{path}?offset=-1&live=long-poll")
                    check_refusal(response, 503, "the server has too many waiting requests")
                assert (await client.get(f"{ROOT}/full?offset=-1")).status_code == 200
                await append(client, "full", "x")
                assert await asyncio.gather(*polls) == ["x"] * 2

    async def test_no_more_requests_of_a_client_are_in_progress_than_may(self, server: Server) -> None:
        """Half of a body keeps a request in progress."""
        head = b"POST /v1/stream/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"
        busy = server.application.limits.clients
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(
                    socket.create_connection(("127.0.0.1", server.port), 60, source_address=("127.0.0.9", 0))
                ).sendall(head)
            async with client_of(server.url, "127.0.0.9") as client, client_of(server.url) as other:
                await until(lambda: busy._counts.get("127.0.0.9", 0) == 3)
                for path in (f"{ROOT}/none", "/v1/streams"):
                    message = "the client has reached its limit of 3 requests in progress"
                    check_refusal(await client.get(path), 429, message)
                assert (await other.get(f"{ROOT}/none")).status_code == 404
            assert server.application.limits.memory.bytes == 0, "they are small"
        await until(lambda: not len(busy))

    async def test_reads_that_have_ended_or_cannot_wait_are_not_counted(self, streams: Streams) -> None:
        clients = streams.readers.clients = Clients(2, "waiting reads")
        await streams.run(Create("a", "text/plain"))
        known = await streams.find("a")
        streams.readers.check_room("127.0.0.1")
        reads = [streams.wait(known, 0, 60.0, "127.0.0.1") for _ in range(2)]
        assert len(clients) == 1
        with pytest.raises(TooManyRequests):  # which had room when it was admitted, before the others waited
            streams.wait(known, 0, 60.0, "127.0.0.1")
        assert [reads[0].cancel(), reads[0].cancel()] == [True, False]
        reads[1].fail(RuntimeError("its database is gone"))
        assert len(clients) == 0
        streams.reads.close()
        with pytest.raises(PurgatoryClosed):
            streams.wait(known, 0, 60.0, "127.0.0.1")
        assert len(clients) == 0


class TestBytes:
    async def test_a_body_that_is_too_large_is_refused(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), max_body=10) as server:
            async with client_of(server.url) as client:
                for body in (b"x" * 11, chunks(b"x" * 6, b"x" * 5)):
                    response = await client.put(f"{ROOT}/large", content=body)
                    assert response.status_code == 413
                    assert response.json()["error"]["message"] == "the body must not have more than 10 bytes"
                assert (await client.put(f"{ROOT}/large", content=b"x" * 10)).status_code == 201
                assert server.application.limits.memory.bytes == 0

    async def test_bodies_are_bounded_together_and_free_their_room(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "_HELD", 0)
        with serving(data=str(tmp_path), max_body=10_000) as server:
            memory = server.application.limits.memory
            head = b"POST /v1/stream/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9500\r\n\r\n"
            with ExitStack() as stack:
                bodies = [
                    stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60, (f"127.0.1.{n}", 0)))
                    for n in range(9)
                ]
                for body in bodies:
                    body.sendall(head + b" " * 8_700)
                await until(lambda: memory.bytes > 78_300)
                async with client_of(server.url) as client:
                    refused = await client.post(f"{ROOT}/none", content=b" " * 9_000)
                    check_refusal(refused, 503, "the server has reached its limit of 80000 bytes in memory")
                    assert (await client.post(f"{ROOT}/none", content=b" " * 4_000)).status_code == 404  # it is small
                bodies[0].sendall(b" " * 800)  # what has come of it counts once
                assert await asyncio.to_thread(bodies[0].recv, 12) == b"HTTP/1.1 404"
            await until(lambda: not memory.bytes)

    @pytest.mark.parametrize("live", ["", "&live=long-poll"])
    async def test_unread_answers_of_a_client_are_an_eighth_of_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: str
    ) -> None:
        """400 long polls, each with a message of its own, were 530 MiB."""
        monkeypatch.setattr(admission, "_HELD", 8 * 20_000_000)
        body = f'"{"x" * 8_999_998}"'  # one message, more than the kernel takes
        with serving(data=str(tmp_path), max_body=9_000_000) as server:
            memory = server.application.limits.memory
            async with client_of(server.url, "127.0.0.2") as other:
                await create(other, *"abcd", **JSON)
                with ExitStack() as stack:
                    names = "abcd" if live else ""
                    readers = [stack.enter_context(slow_reader(server, f"{name}?offset=-1{live}")) for name in names]
                    await until_waiting(other, len(readers))
                    for name in "abcd":
                        await append(other, name, body, **JSON)
                    if not live:
                        readers = [stack.enter_context(slow_reader(server, "a?offset=-1")) for _ in range(4)]
                    begun = [await asyncio.to_thread(reader.recv, 12, socket.MSG_PEEK) for reader in readers]
                    assert Counter(begun) == {b"HTTP/1.1 200": 2, b"HTTP/1.1 429": 2}
                    one = memory.bytes // 2
                    assert 9_000_002 <= one < 9_000_010
                    assert len((await other.get(f"{ROOT}/a?offset=-1")).content) == 9_000_002
                    # One is read to its end, and then it counts no longer. The other one's client leaves.
                    first = readers[begun.index(b"HTTP/1.1 200")]
                    first.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
                    received = b""
                    while not received.endswith(b'x"]'):
                        received += await asyncio.to_thread(first.recv, 1 << 20)
                    assert received.partition(b"\r\n\r\n")[2] == b"[%b]" % body.encode()
                    await until(lambda: memory.bytes <= one)
                    first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # the connection goes on
                    assert await asyncio.to_thread(first.recv, 12) == b"HTTP/1.1 200"
                await until(lambda: not memory.bytes)

    async def test_unread_event_streams_of_a_client_are_an_eighth_of_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "_HELD", 8 * 8 * MIB)
        with serving(data=str(tmp_path)) as server:
            memory = server.application.limits.memory
            async with client_of(server.url) as client, client_of(server.url, "127.0.0.2") as other:
                await create(client, "lines")
                for _ in range(8):
                    await append(client, "lines", "\n" * MIB)
                with ExitStack() as stack:
                    for _ in range(40):
                        stack.enter_context(slow_reader(server, "lines?offset=-1&live=sse"))
                    await until(lambda: memory.bytes >= 8 * MIB)
                    refused = await client.get(f"{ROOT}/lines?offset=-1&live=sse")
                    check_refusal(refused, 429, f"the client has reached its limit of {8 * MIB} bytes in memory")
                    assert memory.bytes < 9 * MIB
                    async with other.stream("GET", f"{ROOT}/lines?offset=-1&live=sse") as unread:
                        assert unread.status_code == 200
                        assert await anext(unread.aiter_lines()) == "event: data"
                await until(lambda: not memory.bytes)

    async def test_events_of_a_long_append_are_made_in_pieces(
        self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[int] = []
        encoded = events._encoded

        def counted(chunk: Chunk, cursor: str) -> bytes:
            piece = encoded(chunk, cursor)
            made.append(len(piece))
            return piece

        monkeypatch.setattr(events, "_encoded", counted)
        text = "\n" * 512 * 1024 + "ä€\n" * 70_000
        sent = text.replace("€\n", "€\r\n").encode()
        created = await client.put(f"{ROOT}/long", headers={**TEXT, "Stream-Closed": "true"}, content=sent)
        assert created.status_code == 201
        response = await client.get(f"{ROOT}/long?offset=-1&live=sse")
        data = [
            "\n".join(line.removeprefix("data:") for line in event.split("\n")[1:])
            for event in response.text.split("\n\n")
            if event.startswith("event: data\n")
        ]
        assert "".join(data) == text
        assert max(made) < 512 * 1024
        assert len(made) > 10


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class TestQuotas:
    async def test_an_append_of_which_the_answer_is_delayed_is_there_at_once(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), append_rate=0.1) as server:
            async with client_of(server.url) as client, client_of(server.url, "127.0.0.2") as other:
                await create(client, "quota")
                await append(client, "quota", "x")
                delayed = asyncio.create_task(append(client, "quota", "y"))
                await until_waiting(other, 1, "throttle")
                assert await poll(other, "quota") == "xy"
                await append(other, "quota", "z")  # whose own first one it is
                assert not delayed.done()
                server.should_exit = True  # a shutdown answers all requests that wait
                assert (await delayed).endswith("2")

    async def test_a_client_that_is_far_ahead_is_refused(self, tmp_path: Path) -> None:
        with serving(data=str(tmp_path), append_rate=0.01) as server:
            async with client_of(server.url) as client:
                await create(client, "quota")
                await append(client, "quota", "x")
                response = await client.post(f"{ROOT}/quota", content="y")
                assert response.status_code == 429
                assert 100 < int(response.headers["retry-after"]) <= 169
                assert response.json()["error"]["message"] == "a client must not append more than 0.01 times a second"
                assert await poll(client, "quota") == "x"

    async def test_delays_are_those_of_the_generic_cell_rate_algorithm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        quotas = Quotas(2.0, 1)
        monkeypatch.setattr(quotas, "_loop", SimpleNamespace(time=lambda: 1000.0))
        assert [quotas.take("a") - 1000.0 for _ in range(6)] == [0.0, 0.0, 0.5, 1.0, 1.5, 2.0]
        assert len(quotas) == 1
        now = asyncio.get_running_loop().time()
        reply = Reply(204)
        # One answer may wait. The next is not lost: it is sent at once.
        responses = [delayed(reply, due, quotas) for due in (now, now + 9, now + 9)]
        assert [response is reply for response in responses] == [True, False, True]
        assert quotas.purgatory.num_delayed == 1
        quotas.purgatory.close()
        assert delayed(reply, now + 9, quotas) is reply
        quotas.close()
