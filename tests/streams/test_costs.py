"""What one client's requests cost others: work is counted, and bytes, and never time."""

import asyncio
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from prometheus_client.exposition import choose_encoder

from purgatory.streams import admission
from purgatory.streams.core.commands import Append, Create
from purgatory.streams.core.errors import Invalid, NotFound
from purgatory.streams.core.state import Part, Row, Stream
from purgatory.streams.core.subscriptions import Subscribe, TooManyLinks
from purgatory.streams.core.transaction import Transaction
from purgatory.streams.engine.cache import LIVE, Cache, Chunk
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http import app, events, requests
from purgatory.streams.http.events import Pieces
from purgatory.streams.http.webhooks import Resolver
from purgatory.streams.settings import Settings
from purgatory.streams.storage import sqlite
from tests.streams.processes import ROOT
from tests.streams.serving import until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

SUBSCRIPTIONS = f"{ROOT}/__ds/subscriptions"


PATHS = ("a" * 1024, "é" * 512, "...", ".a", "a/..b", "a/\n", "_d", "__dsx", "a/__ds")
NO_PATHS = (
    *("", ".", "..", "./a", "a/.", "a/../b", "/a", "a/", "a//b", "a\0", "\ufffd", "\ud800", "a\udfff"),
    *("a" * 1025, "é" * 513, "__ds", "__ds/a"),
)


async def test_a_path_is_checked_in_one_go() -> None:
    """A thousand of 1 KiB took 75 ms on the loop, a character at a time."""
    for path in PATHS:
        assert requests.stream_path.__wrapped__(path) == path
    for path in NO_PATHS:
        with pytest.raises(Invalid):
            requests.stream_path.__wrapped__(path)


class Iterations:
    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._count)

    def _count(self) -> None:
        self.count += 1
        self._loop.call_soon(self._count)


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("PUT", f"{SUBSCRIPTIONS}/large", b'{"streams": ["a"], "x": [' + b"1," * 20_000 + b"1]}", 400),
        ("GET", "/metrics", b"", 200),
    ],
    ids=["bodies", "figures"],
)
async def test_what_takes_long_is_done_once_in_an_iteration_of_the_loop(
    method: str, target: str, body: bytes, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
            asked = [client.request(method, target, content=body) for _ in range(20)]
            assert {answer.status_code for answer in await asyncio.gather(*asked)} == {status}
        assert len(done) == len(set(done)) == 20


@pytest.mark.parametrize(("action", "most"), [("claim", admission.SMALL), ("streams", 256 * 1024)])
async def test_bodies_of_subscriptions_have_a_bound(client: httpx.AsyncClient, action: str, most: int) -> None:
    for size, status in ((most, 400), (most + 1, 413)):
        answer = await client.post(f"{SUBSCRIPTIONS}/bounds/{action}", content=b"x" * size)
        assert answer.status_code == status


async def test_a_refused_append_is_freed_at_once(streams: Streams) -> None:
    """Refused ones of 1 MiB took 420 MiB: their errors' frames kept them until the garbage was collected."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            with pytest.raises(NotFound):
                await streams.run(Append("none", "text/plain", b"x"))
        kept = sum(isinstance(each, Append) and each.path == "none" for each in gc.get_objects())
    finally:
        gc.enable()
    assert kept <= 1  # the writer's last one


def stream(number: int, text: str = "") -> Stream:
    return Stream(number, f"{number}{text}", "text/plain", "text/plain", "")


async def test_the_writer_has_its_turn_while_the_loop_is_busy() -> None:
    """An append takes the interpreter some forty times, and waited 5 ms each time."""
    script = "import sys; from purgatory.streams import server, settings; server.application(settings.Settings())"
    command = [sys.executable, "-c", f"{script}; print(sys.getswitchinterval())"]
    output = await asyncio.to_thread(subprocess.check_output, command)
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
    record = stream(1)
    record.tail = 5000
    known = Cache().remember(record, [Row(number, number + 1, b"x") for number in range(5000)])
    chunk = known.recent_chunk(0, LIVE)
    assert chunk is not None
    assert len(chunk.parts) == LIVE.rows == 64


async def test_the_writer_remembers_a_bounded_number_of_streams(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_CACHED", 5)
    for name in [*map(str, range(20)), "x" * 1001]:
        await streams.run(Create(name, "text/plain"))
    writer = streams.store._writing
    assert isinstance(writer, sqlite.WritingDatabase)
    assert list(writer._streams) == ["15", "16", "17", "18", "19"]
    assert (await streams.run(Append("x" * 1001, "text/plain", b"hello"))).tail == 5


async def test_a_wake_stream_that_is_shared_is_looked_at_once(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand subscriptions with it, and a pattern that matches it too, made an append take 1.4 s."""
    looked: list[str] = []
    subscribers = Transaction.subscribers

    def counted(self: Transaction, path: str) -> Any:
        looked.append(path)
        return subscribers(self, path)

    for path in ("a", "w"):
        await streams.run(Create(path, "application/json"))
    for number in range(20):
        await streams.run(Subscribe(f"s{number}", "pull-wake", "**", (), None, "w", 30.0, None))
    monkeypatch.setattr(Transaction, "subscribers", counted)
    await streams.run(Append("a", "application/json", b"1"))
    assert looked == ["a", "w"]


async def test_a_new_subscription_has_a_bounded_length_of_paths(streams: Streams) -> None:
    """10,000 paths of 1 KiB took a second of the writer, in one transaction."""
    paths = tuple(f"{number:04}{'x' * 1000}" for number in range(2200))
    with pytest.raises(TooManyLinks, match="not have more than 2097152 characters: use several"):
        await streams.run(Subscribe("s", "pull-wake", None, paths, None, "w", 30.0, None))
    await streams.run(Subscribe("s", "pull-wake", None, paths[:2000], None, "w", 30.0, None))


async def test_pieces_of_events_are_kept_up_to_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen may be of 6 MiB each: a message that is all line ends."""
    monkeypatch.setattr(events, "_SHARED_BYTES", 10_000)
    pieces = Pieces()
    for size, count in ((100, 16), (4_000, 2), (20_000, 1)):
        for number in range(20):
            record = stream(number)
            record.tail = size
            chunk = Chunk(record, 0, size, [Part(0, size, Row(0, size, b"x" * size))])
            assert pieces.of(chunk, "1") is pieces.of(chunk, "1")
        assert len(pieces._pieces) == count
        assert pieces._bytes == sum(len(piece.encode()) for piece in pieces._pieces.values())


async def test_readers_that_wait_prolong_their_stream_together(streams: Streams) -> None:
    """17,000 event streams of a stream that lives for a second took a core, each with a time-out of half of it."""
    await streams.run(Create("brief", "text/plain", ttl=1))
    known = await streams.find("brief")
    reads = [streams.wait(known, 0, 100.0) for _ in range(100)]
    assert len(streams._kept) == 1
    deadlines = {known.stream.deadline}
    while len(deadlines) < 4:  # again and again
        await asyncio.sleep(0.01)
        deadlines.add((await streams.find("brief")).stream.deadline)
    assert not any(read.done() for read in reads)
    await streams.run(Append("brief", "text/plain", b"x"))
    chunks = await asyncio.gather(*reads)
    assert all(isinstance(chunk, Chunk) and chunk.body() == b"x" for chunk in chunks)
    await until(lambda: not streams._kept)


async def test_webhooks_are_resolved_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty names that resolve slowly took all threads: others' deliveries waited for 100 s, and so did a shutdown."""
    loop = asyncio.get_running_loop()

    async def never(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a thread resolves")

    monkeypatch.setattr(loop, "getaddrinfo", never)
    resolver = Resolver(aiohttp.AsyncResolver())
    assert {each["host"] for each in await resolver.resolve("localhost", 80)} <= {"127.0.0.1", "::1"}
    await resolver.close()
