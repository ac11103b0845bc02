"""Rows: an append is stored as rows of a bounded size, and a reader is given little more than it has asked for."""

import json
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from purgatory.streams.core import messages
from purgatory.streams.core.commands import Append, Create
from purgatory.streams.core.messages import JSON, ROW
from purgatory.streams.core.state import Piece, Row, Stream
from purgatory.streams.engine.cache import LIVE, Cache, Chunk
from purgatory.streams.engine.streams import Streams
from purgatory.streams.settings import Settings
from purgatory.streams.storage.database import Database, Extent
from tests.streams.serving import opened

BINARY = "application/octet-stream"
TEXT = "text/plain"


async def stored(streams: Streams, path: str) -> list[bytes]:
    number = (await streams.find(path)).stream.id
    sql = "SELECT data FROM data WHERE stream = ? ORDER BY first"
    return [data for (data,) in await streams.store.read(lambda database: database.execute(sql, [number]))]


async def read(streams: Streams, path: str, position: int = 0) -> bytes:
    found = b""
    known = await streams.find(path)
    while position < known.stream.tail:
        chunk = await streams.chunk(known, position)
        found += b"".join(chunk.data())
        position = chunk.end
    return found


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (BINARY, bytes(range(256)) * 1000),
        (TEXT, ("x" + 150_000 * "é").encode()),
        (TEXT, (150_000 * "€").encode()),
        (TEXT, b"x" + 100_000 * b"\r\n"),
        (TEXT, b"\r" + 100_000 * b"\r\n"),
        (TEXT, 200_000 * b"\x80"),
    ],
)
async def test_bytes_are_stored_as_rows_of_a_bounded_size(streams: Streams, content_type: str, body: bytes) -> None:
    await streams.run(Create("a", content_type, body=body[:100]))
    await streams.run(Append("a", content_type, body))
    rows = await stored(streams, "a")
    assert b"".join(rows) == body[:100] + body
    assert len(rows) == 2 + len(body) // ROW
    assert max(map(len, rows)) <= ROW
    if content_type == TEXT and body[0] != 0x80:
        for row, following in pairwise(rows[1:]):
            row.decode()
            assert not (row.endswith(b"\r") and following.startswith(b"\n"))
    for _ in range(2):  # from memory, and from the database
        assert await read(streams, "a") == body[:100] + body
        assert await read(streams, "a", ROW + 77) == (body[:100] + body)[ROW + 77 :]
        streams.cache.drop_recent(await streams.find("a"))


async def test_messages_are_stored_as_rows_of_a_bounded_size(streams: Streams) -> None:
    large = json.dumps("x" * 3 * ROW)
    messages = [*map(str, range(5000)), large, *[json.dumps("é" * 1000, ensure_ascii=False)] * 100]
    created = await streams.run(Create("a", JSON, body=f"[ {' , '.join(messages)} ]".encode()))
    assert created.stream.tail == 5101
    rows = await stored(streams, "a")
    assert b",".join(rows) == ",".join(messages).encode()
    assert large.encode() in rows
    assert max(len(row) for row in rows if row != large.encode()) <= ROW
    assert max(len(json.loads(b"[%b]" % row)) for row in rows) == 1024


async def test_a_read_from_the_middle_of_an_append_parses_one_row(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    split = messages.part

    def counted(media: str, data: bytes, begin: int, end: int) -> bytes:
        parsed.append(len(data))
        assert threading.current_thread().name.startswith("streams-reader")
        return split(media, data, begin, end)

    monkeypatch.setattr(messages, "part", counted)
    await streams.run(Create("a", JSON))
    for _ in range(2):
        await streams.run(Append("a", JSON, json.dumps(["x" * 100] * 10_000).encode()))
    known = await streams.find("a")
    for position in (1, 777, 9_999, 10_001, 19_999):
        parsed.clear()
        for chunk in (await streams.chunk(known, position), await streams.wait(known, position, 60.0)):
            assert isinstance(chunk, Chunk)
            assert json.loads(chunk.body()) == ["x" * 100] * (chunk.end - position)
        assert len(parsed) == 2
        assert max(parsed) <= ROW


async def test_a_read_is_little_more_than_was_asked_for(settings: Settings) -> None:
    """It has less than a row more, and no more comes from the database."""
    fetched: list[int] = []

    def fetch(database: Database, begin: int, most: Extent) -> int:
        rows = database.rows

        def counted(piece: Piece, most: int) -> Iterator[Row]:
            found = rows(piece, most)
            if isinstance(found, list):  # of PostgreSQL
                fetched.append(sum(len(row.data) for row in found))
            for row in found:
                if not isinstance(found, list):
                    fetched.append(len(row.data))
                yield row

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database, "rows", counted)
            return sum(part.end - part.begin for part in database.read(known.stream.pieces(begin), most))

    async with opened(settings) as streams:
        await streams.run(Create("a", BINARY))
        for size in (10, 1000, ROW, 20 * ROW, 70_000):
            for _ in range(3):
                await streams.run(Append("a", BINARY, bytes(size)))
        known = await streams.find("a")
        for position in range(0, known.stream.tail, 100_003):
            left = known.stream.tail - position
            for most in (Extent(1, 100), LIVE, Extent(5 * ROW, 100)):
                fetched.clear()
                size = await streams.store.read(lambda database: fetch(database, position, most))  # noqa: B023 - awaited
                assert min(left, most.size - ROW) <= size <= sum(fetched) < most.size + ROW
            for _ in range(2):  # the second time from the database
                chunk = await streams.wait(known, position, 60.0)
                assert isinstance(chunk, Chunk)
                assert chunk.end - chunk.begin <= len(chunk.body()) < LIVE.size + ROW
                streams.cache.drop_recent(known)


async def test_the_same_chunk_is_made_once_for_each_limit(streams: Streams) -> None:
    await streams.run(Create("a", BINARY, body=bytes(3 * ROW)))
    known = await streams.find("a")
    chunk = await streams.chunk(known, 0, LIVE)
    assert (chunk.end, await streams.chunk(known, 0, LIVE) is chunk) == (ROW, True)
    assert (await streams.chunk(known, 0)).end == 3 * ROW


@pytest.mark.parametrize("parts", [3, 100])
def test_recent_rows_are_found_from_both_ends(parts: int) -> None:
    rows = [Row(2 * number, 2 * number + 2, b"xx") for number in range(20)]
    known = Cache().remember(Stream(1, "a", BINARY, BINARY, "", tail=40), rows)
    for position in range(40):
        chunk = known.recent_chunk(position, Extent(1000, parts))
        assert chunk is not None
        assert [part.row for part in chunk.parts] == rows[position // 2 :][:parts]
        assert (chunk.begin, chunk.parts[0].begin) == (position, position)
