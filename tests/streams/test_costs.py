"""What one client's requests cost others: work is counted, and bytes, and never time."""

import asyncio
import gc
import json
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder

from purgatory.asgi import event
from purgatory.streams import admission
from purgatory.streams.core.commands import Append, Create
from purgatory.streams.core.errors import Invalid, NotFound
from purgatory.streams.core.state import Row, Stream
from purgatory.streams.core.subscriptions import Subscribe, TooManyLinks
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.engine.cache import LIVE, Cache
from purgatory.streams.engine.chunk import Chunk
from purgatory.streams.http import app, events, polls, requests
from purgatory.streams.http.addresses import Resolver
from purgatory.streams.http.events import Pieces
from purgatory.streams.http.replies import Reply
from purgatory.streams.settings import Settings
from purgatory.streams.storage import sqlite
from tests.streams.processes import ROOT, append, create, until_waiting
from tests.streams.serving import Server, opened, serving

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

SUBSCRIPTIONS = f"{ROOT}/__ds/subscriptions"


def is_path(text: str) -> bool:
    """Whether it may be a stream's path, character by character."""
    if not text or any(each in "\0\ufffd" or "\ud800" <= each <= "\udfff" for each in text):
        return False
    segments = text.split("/")
    return (
        len(text.encode()) <= 1024 and segments[0] != "__ds" and not any(each in ("", ".", "..") for each in segments)
    )


@given(st.one_of(st.text("./a\n\0\ud800\ufffdé_d", max_size=8), st.text(), st.text("aé\U0001f600/", min_size=250)))
@example("a/\n")
@example("__ds")
async def test_a_path_is_checked_in_one_go_as_by_its_characters(text: str) -> None:
    """A thousand of 1 KiB took 75 ms on the loop, a character at a time."""
    try:
        requests.stream_path.__wrapped__(text)
    except Invalid:
        assert not is_path(text)
    else:
        assert is_path(text)


async def test_an_ack_of_a_path_that_is_no_unicode_is_a_400(server: Server) -> None:
    """It was an exception in the writer, which then stored each command of its batch by itself."""
    async with httpx.AsyncClient(base_url=server.url) as client:
        await create(client, "acked", "acked-wakes", **{"Content-Type": "application/json"})
        config = {"type": "pull-wake", "wake_stream": "acked-wakes", "streams": ["acked"]}
        assert (await client.put(f"{SUBSCRIPTIONS}/acks", json=config)).status_code == 201
        await append(client, "acked", "1", **{"Content-Type": "application/json"})
        claimed = (await client.post(f"{SUBSCRIPTIONS}/acks/claim", json={"worker": "w"})).json()
        authorized = {"Authorization": f"Bearer {claimed['token']}"}
        for path in ("\ud800", "a\0", ".."):
            ack = {**claimed, "acks": [{"stream": path, "offset": "0"}]}
            content = json.dumps({name: ack[name] for name in ("wake_id", "generation", "acks")})
            refused = await client.post(f"{SUBSCRIPTIONS}/acks/ack", content=content, headers=authorized)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INVALID_REQUEST")


class Iterations:
    """Counts the iterations of a loop."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._count)

    def _count(self) -> None:
        self.count += 1
        self._loop.call_soon(self._count)


@pytest.mark.parametrize("what", ["bodies", "figures"])
async def test_what_takes_long_is_done_once_in_an_iteration_of_the_loop(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifteen clients with bodies of 1 MiB made others' reads 8.5 s."""
    application = app.Application(Settings(data=str(tmp_path)))
    async with application.lifespan(application):
        iterations = Iterations()
        done: list[int] = []

        def counted(made: Any) -> Any:
            def make(*arguments: Any) -> Any:
                done.append(iterations.count)
                return made(*arguments)

            return make

        encode, _ = choose_encoder("")
        monkeypatch.setattr(json, "loads", counted(json.loads))
        monkeypatch.setattr(app, "choose_encoder", lambda accept: (counted(encode), "text/plain"))
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            if what == "bodies":
                large = b'{"streams": ["a"], "x": [' + b"1," * 20_000 + b"1]}"
                asked = [client.put(f"{SUBSCRIPTIONS}/{number}", content=large) for number in range(20)]
                expected = 400
            else:
                asked = [client.get("/metrics") for _ in range(20)]
                expected = 200
            assert {answer.status_code for answer in await asyncio.gather(*asked)} == {expected}
        assert len(done) == len(set(done)) == 20


@pytest.mark.parametrize(("action", "most"), [("claim", admission.SMALL), ("streams", 256 * 1024)])
async def test_bodies_of_subscriptions_have_a_bound(server: Server, action: str, most: int) -> None:
    async with httpx.AsyncClient(base_url=server.url) as client:
        for size, status in ((most, 400), (most + 1, 413)):
            answer = await client.post(f"{SUBSCRIPTIONS}/bounds/{action}", content=b"x" * size)
            assert answer.status_code == status


async def test_a_refused_append_is_freed_at_once(tmp_path: Path) -> None:
    """Refused ones of 1 MiB took 420 MiB: their errors' frames kept them until the garbage was collected."""
    async with opened(Settings(data=str(tmp_path))) as streams:
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                with pytest.raises(NotFound):
                    await streams.run(Append("none", "text/plain", b"x"))
            kept = sum(isinstance(each, Append) for each in gc.get_objects())
        finally:
            gc.enable()
        assert kept <= 1  # the writer's last one


def stream(number: int, text: str = "") -> Stream:
    return Stream(number, f"{number}{text}", "text/plain", "text/plain", "")


async def test_the_writer_has_its_turn_while_the_loop_is_busy() -> None:
    """An append takes the interpreter some forty times, and waited 5 ms each time."""
    script = "import sys; from purgatory.streams import server, settings; server.application(settings.Settings())"
    command = [sys.executable, "-c", f"{script}; print(sys.getswitchinterval())"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert float(output) == pytest.approx(0.0002)


async def test_streams_with_long_texts_are_forgotten_before_others() -> None:
    """10,000 of them were 280 MiB: each may have four texts of 1 KiB, with four bytes a character."""
    cache = Cache()
    for number in range(10_100):
        cache.remember(stream(number))
    assert len(cache) == 10_000
    for number in range(10_000, 20_000):
        cache.remember(stream(number, "\U0001f600" * 4000))
    assert len(cache) == 64 * 1024 * 1024 // (1000 + 4 * (4000 + len("10000") + len("text/plain")))
    cache.clear()
    assert len(cache) == 0


async def test_the_data_of_recent_appends_counts_twice() -> None:
    """Once for a row, and once for the body of the chunk that was made of it last."""
    cache = Cache()
    for number in range(200):
        record = stream(number)
        record.tail = 1
        cache.remember(record, [Row(0, 1, bytes(1024 * 1024))])
    assert 30 <= len(cache) <= 32


async def test_live_reads_of_very_small_rows_are_short() -> None:
    """4,096 rows of a byte were 8,192 events, which took 35 ms on the loop for each place and cursor."""
    cache = Cache()
    record = stream(1)
    record.tail = 5000
    known = cache.remember(record, [Row(number, number + 1, b"x") for number in range(5000)])
    chunk = known.recent_chunk(0, LIVE)
    assert chunk is not None
    assert len(chunk.parts) == LIVE.rows == 64


async def test_the_writer_remembers_a_bounded_number_of_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_CACHED", 5)
    async with opened(Settings(data=str(tmp_path))) as streams:
        for number in range(20):
            await streams.run(Create(f"{number}", "text/plain"))
        await streams.run(Create("x" * 1001, "text/plain"))
        writer = streams.store._writing
        assert isinstance(writer, sqlite.WritingDatabase)
        assert list(writer._streams) == ["15", "16", "17", "18", "19"]
        await streams.run(Append("x" * 1001, "text/plain", b"hello"))
        assert (await streams.find("x" * 1001)).stream.tail == 5


async def test_a_wake_stream_that_is_shared_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand subscriptions with it, and a pattern that matches it too, made an append take 1.4 s."""
    looked: list[str] = []
    subscribers = Transaction.subscribers

    def counted(self: Transaction, path: str) -> Any:
        looked.append(path)
        return subscribers(self, path)

    async with opened(Settings(data=str(tmp_path))) as streams:
        for path in ("a", "w"):
            await streams.run(Create(path, "application/json"))
        for number in range(20):
            command = Subscribe(f"s{number}", "pull-wake", "**", (), None, "w", 30.0, None)
            await streams.run(command)
        monkeypatch.setattr(Transaction, "subscribers", counted)
        await streams.run(Append("a", "application/json", b"1"))
        assert looked == ["a", "w"]


async def test_a_new_subscription_has_a_bounded_length_of_paths(tmp_path: Path) -> None:
    """10,000 paths of 1 KiB took a second of the writer, in one transaction."""
    async with opened(Settings(data=str(tmp_path))) as streams:
        paths = tuple(f"{number:04}{'x' * 1000}" for number in range(2200))
        with pytest.raises(TooManyLinks, match="have 2097152 characters at most: use several"):
            await streams.run(Subscribe("s", "pull-wake", None, paths, None, "w", 30.0, None))
        await streams.run(Subscribe("s", "pull-wake", None, paths[:2000], None, "w", 30.0, None))


async def test_pieces_of_events_are_kept_up_to_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen may be of 6 MiB each: a message that is all line ends."""
    monkeypatch.setattr(events, "_SHARED_BYTES", 10_000)
    pieces = Pieces()
    for size, count in ((100, 16), (4_000, 2), (20_000, 1)):
        for number in range(20):
            row = Row(0, size, b"x" * size)
            record = stream(number)
            record.tail = size
            chunk = Chunk(record, 0, size, [(0, size, row)])  # type: ignore[list-item]
            assert pieces.of(chunk, "1") is pieces.of(chunk, "1")
        assert len(pieces._pieces) == count
        assert pieces._bytes == sum(len(piece.encode()) for piece in pieces._pieces.values())


async def test_long_events_are_not_kept_with_their_bytes() -> None:
    event._encode.cache_clear()
    for size, kept in ((event._KEPT, 1), (event._KEPT + 1, 1)):
        assert len(event.Event("x" * size).encode()) == size + len("data:\n\n")
        assert event._encode.cache_info().currsize == kept


async def test_readers_that_wait_prolong_their_stream_together(tmp_path: Path) -> None:
    """17,000 event streams of a stream that lives for a second took a core, each with a time-out of half of it."""
    async with opened(Settings(data=str(tmp_path))) as streams:
        await streams.run(Create("brief", "text/plain", ttl=1))
        known = await streams.find("brief")
        reads = [streams.wait(known, 0, 100.0) for _ in range(100)]
        assert len(streams._kept) == 1
        created = known.stream.deadline
        assert created is not None
        while (await streams.find("brief")).stream.deadline in (None, created):  # noqa: ASYNC110 - of another thread, or the store
            await asyncio.sleep(0.01)
        assert not any(read.done() for read in reads)
        await streams.run(Append("brief", "text/plain", b"x"))
        chunks = await asyncio.gather(*reads)
        assert all(isinstance(chunk, Chunk) and chunk.body() == b"x" for chunk in chunks)
        while streams._kept:  # noqa: ASYNC110 - of another thread, or the store
            await asyncio.sleep(0.01)


async def test_unread_long_polls_of_a_client_are_an_eighth_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 of them, each with a message of its own, were 530 MiB."""
    monkeypatch.setattr(admission, "_HELD", 8 * 20_000_000)
    json_type = {"Content-Type": "application/json"}
    with serving(data=str(tmp_path), max_body=9_000_000) as server:
        memory = server.application.limits.memory
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=server.url, timeout=60, transport=transport) as client:
            await create(client, *"abcd", **json_type)
            with ExitStack() as stack:
                readers = []
                for name in "abcd":
                    reader = stack.enter_context(socket.socket())
                    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    reader.settimeout(60)
                    reader.connect(("127.0.0.1", server.port))
                    query = "offset=now&live=long-poll"
                    reader.sendall(f"GET {ROOT}/{name}?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    readers.append(reader)
                await until_waiting(client, 4)
                body = f'"{"x" * 8_999_998}"'  # more than the kernel takes
                for name in "abcd":
                    await append(client, name, body, **json_type)
                begun = [await asyncio.to_thread(reader.recv, 12, socket.MSG_PEEK) for reader in readers]
                assert sorted(begun) == [b"HTTP/1.1 200"] * 2 + [b"HTTP/1.1 429"] * 2
                assert memory.bytes == 2 * 9_000_002
                # One is read to its end, and then it counts no longer. The other one's client leaves.
                first = readers[begun.index(b"HTTP/1.1 200")]
                received = b""
                while not received.endswith(b'x"]'):
                    received += await asyncio.to_thread(first.recv, 1 << 20)
                assert received.partition(b"\r\n\r\n")[2] == b"[%b]" % body.encode()
                while memory.bytes != 9_000_002:  # noqa: ASYNC110 - of another thread, or the store
                    await asyncio.sleep(0.01)
                first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # the connection goes on
                assert (await asyncio.to_thread(first.recv, 12)) == b"HTTP/1.1 200"
            while memory.bytes:  # noqa: ASYNC110 - of another thread, or the store
                await asyncio.sleep(0.01)


async def test_a_long_answer_that_is_wrong_holds_nothing(tmp_path: Path) -> None:
    async with opened(Settings(data=str(tmp_path))) as streams:
        await streams.run(Create("a", "text/plain"))
        budget = admission.Budget(8_000_000)
        sent: list[Any] = []

        class Parked:
            def send(self, *messages: Any) -> None:
                if messages[0].get("status") == 200:
                    raise RuntimeError("Invalid HTTP header name.")
                sent.extend(messages)

        read = streams.wait(await streams.find("a"), 0, 60.0, "127.0.0.1")
        response = polls.Poll(read, lambda _: Reply(200, [], b"x" * 100_000), lambda chunk: chunk, budget)
        waiting: Any = response.waiting_response()
        waiting.parked = Parked()
        waiting.wait(read)
        await streams.run(Append("a", "text/plain", b"x"))
        while not sent:  # noqa: ASYNC110 - of another callback
            await asyncio.sleep(0)
        assert sent[0]["status"] == 500
        assert budget.bytes == 0


async def test_webhooks_are_resolved_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty names that resolve slowly took all threads: others' deliveries waited for 100 s, and so did a shutdown."""
    loop = asyncio.get_running_loop()

    async def never(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a thread resolves")

    monkeypatch.setattr(loop, "getaddrinfo", never)
    resolver = Resolver(aiohttp.AsyncResolver())
    assert {each["host"] for each in await resolver.resolve("localhost", 80)} <= {"127.0.0.1", "::1"}
    await resolver.close()
