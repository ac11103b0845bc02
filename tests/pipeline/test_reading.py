"""Streams of JSON, read from places: servers that cut their responses differently, hang, or answer nonsense."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise, product
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from purgatory.spark import reading
from purgatory.spark.errors import PipelineError
from purgatory.spark.reading import JsonStream, Place, Reading
from purgatory.spark.source import Range, StreamReader, StreamSource
from tests.pipeline.json_server import JsonServer, append, running
from tests.support.journals import until

SCHEMA = StructType().add("stream", StringType()).add("position", LongType()).add("value", StringType())
BEGINNING = Place("-1", 0, 0)
OFFSET = "0000000000000000_{:016d}".format
"""An offset of `purgatory serve`, as it is in the queries of its access log."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonServer]:
    with running(tmp_path_factory.mktemp("data"), "--long-poll-timeout", "0.2") as server:
        yield server


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_RETRYING", {**reading._RETRYING, "total": 1})


def _stream_reader(url: str, **options: Any) -> StreamReader:
    source = StreamSource({"url": url, **{name: str(value) for name, value in options.items()}})
    return source.simpleStreamReader(SCHEMA)


def _read(reader: StreamReader, start: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """A micro-batch's values, and the offset behind it."""
    rows, end = reader.read(start)
    return [json.loads(row[2]) for row in rows], end


class _Script(BaseHTTPRequestHandler):
    """Answers each request with the next of the script's answers, the last one again and again."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    answers: ClassVar[list[tuple[int, dict[str, str], bytes]]]
    queries: ClassVar[list[dict[str, list[str]]]]

    def do_GET(self) -> None:
        self.queries.append(parse_qs(urlsplit(self.path).query))
        self.answer(*(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]))

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" in headers:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass


@dataclass
class _Cut:
    """A stream that ends its responses after `size` messages."""

    messages: list[int]
    size: int


class _Cutting(_Script):
    """Serves one. Its offsets are not numbers."""

    cut: ClassVar[_Cut]

    def do_GET(self) -> None:
        (offset,) = parse_qs(urlsplit(self.path).query)["offset"]
        first = 0 if offset == "-1" else ord(offset) - ord("a")
        found = self.cut.messages[first : first + self.cut.size]
        end = first + len(found) if found else len(self.cut.messages)
        headers = {"Content-Type": "Application/JSON; charset=utf-8", "Stream-Next-Offset": chr(ord("a") + end)}
        if end == len(self.cut.messages):
            headers["Stream-Up-To-Date"] = "true"
        self.answer(200, headers, json.dumps(found, indent=1).encode())


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="script")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/a"
        finally:
            server.shutdown()
            thread.join(60)


def _cutting(cut: _Cut) -> AbstractContextManager[str]:
    """The URL of the stream."""
    return _serving(type("Cutting", (_Cutting,), {"cut": cut}))


@contextmanager
def _scripted(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """The URL of a server that answers so, and the queries that it has got."""
    queries: list[dict[str, list[str]]] = []
    with _serving(type("Script", (_Script,), {"answers": list(answers), "queries": queries})) as url:
        yield url, queries


def _page(end: str, body: bytes = b"[]", **more: str) -> tuple[int, dict[str, str], bytes]:
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    return 200, {"Content-Type": "application/json", "Stream-Next-Offset": end, **headers}, body


class TestPlaces:
    def test_batches_are_the_same_again_however_responses_are_cut(self) -> None:
        numbers = list(range(7))
        for size, most in product((1, 2, 3, 20), (1, 2, 3, 5)):
            cut = _Cut(numbers, size)
            with _cutting(cut) as url:
                reader = Reading(JsonStream(url), BEGINNING)
                places, batches = [BEGINNING], []
                while batch := reader.read(most, 0.0):
                    batches.append(batch)
                    places.append(reader.place)
                assert [row for batch in batches for row in batch] == [(url, each, str(each)) for each in numbers]
                assert {len(batch) for batch in batches[:-1]} <= {most}
                cut.messages = [*numbers, 7, 8]
                for cut.size in (1, 2, 20):
                    again = [list(JsonStream(url).between(one, other.position)) for one, other in pairwise(places)]
                    assert again == batches
                    assert list(JsonStream(url).between(places[-1], 9)) == [(url, 7, "7"), (url, 8, "8")]

    def test_stream_that_ends_before_a_place_is_another_one(self) -> None:
        with _cutting(_Cut([0, 1], 1)) as url:
            stream = JsonStream(url)
            assert list(stream.between(Place("a", 2, 2), 2)) == []
            with pytest.raises(PipelineError, match="ends 1 messages before position 2: messages were lost"):
                list(stream.between(Place("a", 1, 0), 2))
            with pytest.raises(PipelineError, match="ends 3 messages before position 7: messages were lost"):
                Reading(stream, Place("a", 5, 7)).has_more()
            with pytest.raises(PipelineError, match="ends at c, before d: messages were lost"):
                Reading(stream, Place("d", 0, 3)).has_more()

    def test_stream_that_was_made_anew_is_refused(self, server: JsonServer) -> None:
        url = server.stream("anew", 0, 1)
        reader = _stream_reader(url)
        start = reader.initialOffset()
        _, end = _read(reader, start)
        assert httpx.delete(url, timeout=60).is_success
        server.stream("anew", "another")
        with pytest.raises(PipelineError, match=f"answers 400 at offset {OFFSET(2)}: .*beyond the end of the stream"):
            _read(_stream_reader(url), end)
        with pytest.raises(PipelineError, match="ends 1 messages before position 2: messages were lost"):
            list(_stream_reader(url).readBetweenOffsets(start, end))

    def test_checkpoint_of_another_source_is_refused(self, server: JsonServer) -> None:
        reader = _stream_reader(server.stream("other-source"))
        with pytest.raises(PipelineError, match=r"is of another source: its offset is \{'offset': 2\}"):
            reader.read({"offset": 2})

    def test_batch_ends_with_the_response_that_makes_it_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_SIZE", 2)
        with _cutting(_Cut(list(range(7)), 1)) as url:
            assert len(Reading(JsonStream(url), BEGINNING).read(7, 0.0)) == 2


class TestBatches:
    def test_batch_ends_where_the_stream_did_when_it_was_planned(self) -> None:
        # In the order of the requests: the end, and three responses of a stream that grows meanwhile.
        answers = _page("d"), _page("b", b"[1]"), _page("d", b"[2, 3]"), _page("e", b"[4]")
        with _scripted(*answers) as (url, queries):
            parts = StreamSource({"url": url, "maxMessagesPerBatch": "1"}).reader(SCHEMA).partitions()
        assert [(part.start, part.end) for part in parts if isinstance(part, Range)] == [
            (BEGINNING, 1),
            (Place("b", 0, 1), 3),
        ]
        assert queries == [{"offset": ["now"]}, {"offset": ["-1"]}, {"offset": ["b"]}]

    def test_batch_of_a_stream_without_messages_has_an_empty_task(self, server: JsonServer) -> None:
        url = server.stream("nothing")
        reader = StreamSource({"url": url}).reader(SCHEMA)
        (part,) = reader.partitions()
        assert list(reader.read(part)) == []


class TestPolls:
    def test_idle_stream_is_polled_with_the_cursor_and_not_read(self, server: JsonServer) -> None:
        url = server.stream("idle", 0)
        reader = _stream_reader(url, wait=300)
        values, end = _read(reader, reader.initialOffset())
        assert values == [0]
        for _ in range(3):
            assert _read(reader, end) == ([], end)
        first, second, *others = server.requests(url)
        assert first == "offset=-1"
        assert second == f"live=long-poll&offset={OFFSET(1)}"
        assert [each.partition("cursor=")[0] for each in others] == [""] * 2
        cursors = [int(each.split("&")[0].removeprefix("cursor=")) for each in others]
        assert cursors == sorted(set(cursors))

    def test_empty_stream_is_polled_from_an_offset(self, server: JsonServer) -> None:
        url = server.stream("empty")
        reader = _stream_reader(url, wait=300)
        start = reader.initialOffset()
        assert start == {"offset": "-1", "skip": 0, "position": 0}
        assert _read(reader, start) == ([], start)
        assert server.requests(url) == ["offset=-1", f"live=long-poll&offset={OFFSET(0)}"]
        append(url, 0)
        assert _read(reader, start) == ([0], {"offset": OFFSET(1), "skip": 0, "position": 1})

    def test_poll_may_take_longer_than_other_requests(
        self, server: JsonServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "_PATIENCE", 0.1)
        stream = JsonStream(server.stream("patient"))
        page = stream.poll(stream.end(), None, 300.0)
        assert page is not None
        assert page.up_to_date

    def test_poll_that_takes_longer_than_the_wait_is_given_up(self, tmp_path: Path) -> None:
        with running(tmp_path, "--long-poll-timeout", "3000") as server:
            url = server.stream("slow", 0)
            reader = _stream_reader(url, wait=0.1)
            _, end = _read(reader, reader.initialOffset())
            assert _read(reader, end) == ([], end)
            until(lambda: server.waiting() == 0)
            append(url, 1)
            values, end = _read(reader, end)
            assert values == [1]
            reads = [each for each in server.requests(url) if "live" not in each]
            # The one after the poll shows that the server is there.
            assert reads == ["offset=-1", f"offset={OFFSET(1)}"]

    def test_closed_stream_that_was_read_gets_no_requests(self, server: JsonServer) -> None:
        url = server.stream("closed", 0)
        httpx.post(url, headers={"Stream-Closed": "true"}, timeout=60).raise_for_status()
        reader = _stream_reader(url, wait=0.1)
        values, end = _read(reader, reader.initialOffset())
        assert values == [0]
        began = time.monotonic()
        for _ in range(3):
            assert _read(reader, end) == ([], end)
        assert time.monotonic() - began >= 0.3  # Spark asks again at once
        assert server.requests(url) == ["offset=-1"]

    def test_stream_that_is_closed_meanwhile_is_polled_once_more(self, server: JsonServer) -> None:
        url = server.stream("closing", 0)
        reader = _stream_reader(url, wait=1)
        _, end = _read(reader, reader.initialOffset())
        httpx.post(url, headers={"Stream-Closed": "true"}, timeout=60).raise_for_status()
        for _ in range(2):
            assert _read(reader, end) == ([], end)
        assert server.requests(url) == ["offset=-1", f"live=long-poll&offset={OFFSET(1)}"]

    def test_offset_that_is_not_the_last_one_is_read_from(self, server: JsonServer) -> None:
        url = server.stream("twice", 0, 1)
        reader = _stream_reader(url, maxMessagesPerBatch=1)
        start = reader.initialOffset()
        assert _read(reader, start)[0] == [0]
        assert _read(reader, start)[0] == [0]

    def test_latest_stays_where_it_was_at_first(self, server: JsonServer) -> None:
        url = server.stream("latest", 0)
        reader = _stream_reader(url, startingOffset="latest")
        start = reader.initialOffset()
        append(url, 1)
        assert reader.initialOffset() == start
        assert _read(reader, start)[0] == [1]


class TestRetries:
    def test_server_with_as_many_readers_as_it_may_have_is_tried_again(self, tmp_path: Path) -> None:
        with running(tmp_path, "--max-pending", "1", "--long-poll-timeout", "3000") as server:
            url, other = server.stream("busy", 0), server.stream("other")
            reader = _stream_reader(url, wait=300)
            _, end = _read(reader, reader.initialOffset())
            blocking = threading.Thread(
                target=httpx.get, args=(f"{other}?offset=now&live=long-poll",), kwargs={"timeout": None}
            )
            blocking.start()
            until(lambda: server.waiting() == 1)
            found: list[Any] = []
            polling = threading.Thread(target=lambda: found.extend(_read(reader, end)[0]))
            polling.start()
            until(lambda: any("live" in each for each in server.requests(url)))  # it was refused
            append(other, 0)
            blocking.join(60)
            until(lambda: server.waiting() == 1)
            append(url, 1)
            polling.join(60)
        assert found == [1]

    def test_busy_and_broken_answers_are_repeated(self) -> None:
        busy = (429, {"Retry-After": "100000"}, b"")
        cut = (200, {"Content-Length": "10"}, b"[")
        with _scripted(busy, cut, _page("b", b'["a"]')) as (url, queries):
            page = JsonStream(url).poll("a", None, 60.0)
        assert page is not None
        assert page.messages == ['"a"']
        assert queries == [{"live": ["long-poll"], "offset": ["a"]}] * 3

    @pytest.mark.usefixtures("_impatient")
    def test_server_that_stays_busy_is_given_up(self) -> None:
        with (
            _scripted((503, {}, b"")) as (url, queries),
            pytest.raises(PipelineError, match=r"cannot be read from: .*too many 503 error responses"),
        ):
            JsonStream(url).poll("a", None, 60.0)
        assert len(queries) == 2

    @pytest.mark.usefixtures("_impatient")
    def test_server_that_stays_away_is_given_up(self) -> None:
        with pytest.raises(PipelineError, match=r"http://127.0.0.1:9/a cannot be read from: .*refused"):
            JsonStream("http://127.0.0.1:9/a").end()


class TestNonsense:
    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            ((200, {"Content-Type": "application/json"}, b"[]"), "no stream: its answer has no Stream-Next-Offset"),
            ((200, {"Stream-Next-Offset": "b"}, b"[]"), "of a stream of application/json, not of ''"),
            ((500, {}, b"x" * 300), f"answers 500 at offset a: {'x' * 200}$"),
            ((401, {}, b"no password"), "answers 401 at offset a: no password$"),
            ((410, {}, b"gone"), r"answers 410 at offset a: gone \(is it the stream that startingOffset or"),
            (_page("b", b"{}"), "no array of JSON at offset a: it begins with '{}'"),
            (_page("b", b""), "no array of JSON at offset a: it begins with ''"),
            (_page("b", b"[1, NaN]"), "no array of JSON at offset a: NaN is not JSON"),
            (_page("b", b"[1 2]"), "no array of JSON at offset a: no comma follows message 0"),
            (_page("b", b"[1, , 2]"), "no array of JSON at offset a: Expecting value"),
            (_page("b", b"[\xff]"), "no array of JSON at offset a: 'utf-8' codec"),
            (_page("b", b"[" * 100_000 + b"]" * 100_000), "no array of JSON at offset a: maximum recursion"),
            (_page("a", b"[1]", Stream_Up_To_Date="true"), "no stream: its answers do not go on from a"),
            (_page("a"), "no stream: its answers do not go on from a"),
            (_page("Z", Stream_Closed="true"), "ends at Z, before a: messages were lost"),
        ],
    )
    def test_answers_that_cannot_be_used_are_refused(
        self, answer: tuple[int, dict[str, str], bytes], message: str
    ) -> None:
        with _scripted(answer) as (url, _), pytest.raises(PipelineError, match=message):
            Reading(JsonStream(url), Place("a", 0, 0)).has_more()

    def test_response_without_messages_is_not_the_end(self) -> None:
        answers = _page("b"), _page("c", b' [ 1 ,\n"b" ] ', Stream_Closed="TRUE")
        with _scripted(*answers) as (url, queries):
            found = Reading(JsonStream(url), BEGINNING).read(5, 300.0)
        assert [row[2] for row in found] == ["1", '"b"']
        assert queries == [{"offset": ["-1"]}, {"offset": ["b"]}]
