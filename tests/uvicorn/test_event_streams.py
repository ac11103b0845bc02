"""`EventStream`, parked and not."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest

from purgatory.asgi import Event, EventStream
from purgatory.uvicorn import ParkingProtocol
from tests.support.operations import turn
from tests.uvicorn.board import Board
from tests.uvicorn.serving import Client, Server, connected, serving

QUIET = "QuietConnection"


class Impatient(ParkingProtocol):
    write_timeout = 0.5


@pytest.fixture
async def server(board: Board, http: Any) -> AsyncIterator[Server]:
    """With parking, and without."""
    async with serving(board.app, http) as server:
        yield server


async def chunk(client: Client) -> bytes:
    """The next chunk of the response."""
    size = int(await client.until(b"\r\n"), 16)
    data = b""
    while len(data) < size + 2:
        if not client.left:
            client.left = await client.reader.read(2**20)
            if not client.left:
                raise ConnectionResetError
        part, client.left = client.left[: size + 2 - len(data)], client.left[size + 2 - len(data) :]
        data += part
    return data[:-2]


async def open_stream(board: Board, client: Client, *headers: str, target: str = "/events") -> bytes:
    """Open a stream. Returns the head of the response."""
    await client.send("GET", target, *headers)
    return await client.until(b"\r\n\r\n")


class TestStreams:
    async def test_events_come_as_they_happen(self, board: Board, server: Server, client: Client) -> None:
        board.notes.append("before")
        await open_stream(board, client)
        assert await chunk(client) == b"id: 1\ndata:before\n\n"
        for number in range(2, 5):
            await board.until_waiting(1)
            board.pin(f"note {number}")
            assert await chunk(client) == f"id: {number}\ndata:note {number}\n\n".encode()
        await board.until_waiting(1)
        if server.config.http is ParkingProtocol:
            await server.until(QUIET)
            await server.until_no_task()

    async def test_heartbeats_of_a_stream_are_comments(self, board: Board, client: Client) -> None:
        await open_stream(board, client, target="/events?timeout=0.01")
        assert [await chunk(client) for _ in range(3)] == [b":\n\n"] * 3
        board.pin("hello")
        while (data := await chunk(client)) == b":\n\n":
            pass
        assert data == b"id: 1\ndata:hello\n\n"

    @pytest.mark.parametrize(
        ("end", "chunks"),
        [
            (lambda board: board.pin("end"), [b"id: 1\ndata:end\n\n"]),
            (lambda board: board.purgatory.cancel_for_key("board"), []),
            (lambda board: board.purgatory.close(), [b":\n\n"]),
        ],
        ids=["follow", "cancelled", "closed"],
    )
    async def test_stream_ends_and_the_connection_goes_on(
        self, board: Board, client: Client, end: Callable[[Board], None], chunks: list[bytes]
    ) -> None:
        await open_stream(board, client)
        await board.until_waiting(1)
        end(board)
        for expected in (*chunks, b""):
            assert await chunk(client) == expected
        assert (await client.request("GET", "/now")).body == b"now 0"

    async def test_head_request_opens_no_stream(self, board: Board, client: Client) -> None:
        await client.send("HEAD", "/events")
        assert (await client.receive("HEAD")).headers["content-type"].startswith("text/event-stream")
        assert board.looks == []
        assert (await client.request("GET", "/now")).body == b"now 0"

    async def test_stream_for_http_1_0_ends_with_the_connection(self, board: Board) -> None:
        async with serving(board.app) as server, connected(server) as client:
            await client.send("GET", "/events", version="1.0")
            assert b"chunked" not in await client.until(b"\r\n\r\n")
            await board.until_waiting(1)
            board.pin("end")
            assert await client.until(b"\n\n") == b"id: 1\ndata:end\n\n"
            assert await client.ended()

    @pytest.mark.parametrize(
        ("watch", "text"),
        [
            (lambda look: 1 / 0, "division by zero"),
            (lambda look: "no operation", "follow must return a DelayedOperation or None, not 'no operation'"),
        ],
    )
    async def test_wrong_follow_closes_the_connection(
        self, board: Board, client: Client, watch: Any, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        board.watch = watch  # type: ignore[method-assign]
        await open_stream(board, client)
        assert await client.ended()
        assert text in caplog.text

    @pytest.mark.parametrize(
        ("events", "text"),
        [
            (None, "a bad note"),
            ("text", "render must return a list of events, not a str: return [Event(text)]"),
            (Event("a"), "render must return a list of events, not a Event: return [event]"),
            (5, "render must return a list of events, not a int: return [Event(json.dumps(value))]"),
            ([{"a": 1}], "render must return a list of events, not of a dict: return [Event(json.dumps(value)), …]"),
        ],
    )
    async def test_failing_operation_or_wrong_events_close_the_connection(
        self, board: Board, client: Client, events: Any, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        board._to_events = lambda notes: events  # type: ignore[method-assign]
        await open_stream(board, client)
        await board.until_waiting(1)
        board.pin("fail" if events is None else "hello")
        assert await client.ended()
        assert text in caplog.text


class TestParkedStreams:
    async def test_reader_that_takes_no_events_is_dropped_and_holds_little(self, board: Board) -> None:
        async with serving(board.app, Impatient) as server, connected(server) as client:
            await open_stream(board, client)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            held = 0
            for _ in range(300):
                board.pin("x" * 100_000)
                await turn()
                for connection in server.server_state.connections:
                    held = max(held, connection.transport.get_write_buffer_size())
            assert 0 < held < 400_000  # a batch more than the transport's high-water mark
            await server.until()
            assert board.purgatory.num_delayed == 0

    async def test_reader_that_takes_events_late_gets_all(self, board: Board) -> None:
        async with serving(board.app) as server, connected(server) as client:
            await open_stream(board, client)
            for number in range(200):
                board.pin(f"{number} " + "x" * 100_000)
                await turn()
            received = await client.until(b"id: 200\n") + await client.until(b"\n\n")
            assert re.findall(rb"data:(\d+) ", received) == [b"%d" % number for number in range(200)]

    async def test_paused_stream_ends_at_shutdown(self, board: Board) -> None:
        async with serving(board.app, Impatient) as server, connected(server) as client:
            await open_stream(board, client)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            while board.purgatory.num_delayed or not board.looks[0].done():
                board.pin("x" * 1_000_000)
                await turn()
            server.should_exit = True
            await server.serve_task


def test_event_is_encoded_as_fields_and_lines_of_data() -> None:
    event = Event("a\nb\r\nc\rd", id="7", event="news", retry=1000)
    assert event.encode() == b"event: news\nid: 7\nretry: 1000\ndata:a\ndata:b\ndata:c\ndata:d\n\n"
    assert Event("").encode() == b"data:\n\n"
    assert Event(" a\n b").encode() == b"data:  a\ndata:  b\n\n"


def test_equal_events_are_encoded_once_unless_they_are_large() -> None:
    """So the events of very many iterators are shared."""
    small, large = [Event("news"), Event("news")], [Event("x" * 100_000), Event("x" * 100_000)]
    assert small[0].encode() is small[1].encode()
    assert large[0].encode() is not large[1].encode()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"data": {"a": 1}}, TypeError),
        ({"id": 1}, TypeError),
        ({"event": b"a"}, TypeError),
        ({"id": ""}, ValueError),
        ({"id": "a\nb"}, ValueError),
        ({"id": "a\0"}, ValueError),
        ({"event": "a\rb"}, ValueError),
        ({"event": ""}, ValueError),
        ({"retry": -1}, ValueError),
    ],
)
def test_bad_fields_of_an_event_are_refused(fields: Any, error: type[Exception]) -> None:
    (name,) = fields
    with pytest.raises(error, match=f"{name} must "):
        Event(**{"data": "text", **fields})


async def _async(value: object) -> Any: ...


async def _items() -> AsyncGenerator[str, None]:
    yield "never"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"follow": 5}, "follow must be callable, not 5"),
        ({"follow": _async}, "follow must not be async"),
        ({"follow": _items}, "must be an async iterator, not the function that makes one: call"),
        ({"render": 5}, "render must be callable, not 5"),
        ({"render": _async}, "render must not be async"),
        ({"render": None}, "render must be given for the results of operations"),
        ({"key": 5}, "key must be callable, not 5"),
        ({"key": _async}, "key must not be async"),
        ({"follow": _items(), "key": hash}, "key must be None for an iterator"),
        ({"headers": {"x-a": "b"}}, "headers must be pairs of bytes, such as"),
        ({"headers": [("x-a", "b")]}, "headers must be pairs of bytes, such as"),
        ({"headers": [(b"x-a", b"b", b"c")]}, "headers must be pairs of bytes, such as"),
        ({"heartbeat": 0}, "heartbeat must be finite and positive, not 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        EventStream(**{"follow": id, "render": id, **arguments})
