"""Streams of JSON, read from places: servers that cut their responses differently, hang, or answer nonsense."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructType
from urllib3 import BaseHTTPResponse, PoolManager

from purgatory.spark import reading
from purgatory.spark.errors import PipelineError
from purgatory.spark.reading import JsonStream, Page, Place, Plan
from purgatory.spark.source import BatchReader, Range, StreamReader, StreamSource
from tests.pipeline.json_server import append, stream, waiting
from tests.streams.processes import ServerProcess, running
from tests.support.journals import until

SCHEMA = StructType().add("stream", StringType()).add("position", LongType()).add("value", StringType())
BEGINNING = Place("-1", 0)
Query = dict[str, str]
Answer = tuple[int, dict[str, str], bytes]
OFFSET = "0000000000000000_{:016d}".format
"""An offset of `purgatory serve`."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("data"), "--long-poll-timeout", "0.2") as server:
        yield server


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries of the test's requests, in order."""
    queries: list[str] = []
    request = PoolManager.request

    def noted(pool: PoolManager, method: str, url: str, **options: Any) -> BaseHTTPResponse:
        queries.append(urlsplit(url).query)
        return request(pool, method, url, **options)

    monkeypatch.setattr(PoolManager, "request", noted)
    return queries


def _source(url: str, **options: Any) -> StreamSource:
    return StreamSource({"url": url, **{name: str(value) for name, value in options.items()}})


def _stream_reader(url: str, **options: Any) -> StreamReader:
    return _source(url, **options).streamReader(SCHEMA)


def _rows(stream: JsonStream, start: Place, end: int) -> list[tuple[str, int, str]]:
    """The rows between a place and a position."""
    return [tuple(row.values()) for batch in stream.between(start, end) for row in batch.to_pylist()]


def _values(reader: StreamReader | BatchReader, part: Any) -> list[Any]:
    """The values of a task."""
    return [json.loads(row["value"]) for batch in reader.read(part) for row in batch.to_pylist()]


def _read(reader: StreamReader, start: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The values of the next micro-batch, and the offset behind it."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return [value for part in reader.partitions(start, end) for value in _values(reader, part)], end


def _offset(offset: str, position: int, **tasks: int) -> dict[str, Any]:
    """An offset of Spark's, with tasks at offsets whose names begin with a letter."""
    return {"offset": offset, "position": position, "tasks": tasks}


@contextmanager
def _serving(answer: Callable[[Query], Answer]) -> Iterator[str]:
    """The URL of a stream whose server answers each query so."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            status, headers, body = answer(dict(parse_qsl(urlsplit(self.path).query)))
            self.close_connection = "Content-Length" in headers
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/a"
        finally:
            server.shutdown()
            thread.join(60)


@dataclass
class _Cut:
    """A stream that ends its responses after `size` messages. Its offsets are not numbers."""

    messages: list[int]
    size: int

    def answer(self, query: Query) -> Answer:
        named = {"-1": 0, "now": len(self.messages)}
        first = named.get(query["offset"], ord(query["offset"][0]) - ord("a"))
        found = self.messages[first : first + self.size]
        end = first + len(found) if found else len(self.messages)
        headers = {"Content-Type": "Application/JSON; charset=utf-8", "Stream-Next-Offset": chr(ord("a") + end)}
        if end == len(self.messages):
            headers["Stream-Up-To-Date"] = "true"
        return 200, headers, json.dumps(found, indent=1).encode()


@contextmanager
def _scripted(*answers: Answer) -> Iterator[tuple[str, list[Query]]]:
    """The URL of a server that gives these answers, the last one again and again; and the queries that it has got."""
    queries: list[Query] = []
    left = list(answers)

    def answer(query: Query) -> Answer:
        queries.append(query)
        return left.pop(0) if len(left) > 1 else left[0]

    with _serving(answer) as url:
        yield url, queries


def _page(end: str, body: bytes = b"[]", **more: str) -> Answer:
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    return 200, {"Content-Type": "application/json", "Stream-Next-Offset": end, **headers}, body


class TestPlaces:
    def test_batches_are_the_same_again_however_responses_are_cut(self) -> None:
        numbers = list(range(7))
        for size, most in product((1, 2, 3, 20), (1, 2, 3, 5)):
            cut = _Cut(numbers, size)
            with _serving(cut.answer) as url:
                stream = JsonStream(url)
                places = [BEGINNING]
                while places[-1].position < 7:
                    plan = Plan(places[-1])
                    plan.fill(stream, stream.get(plan.end.offset), most, None)
                    places.append(plan.end)
                counts = [other.position - one.position for one, other in pairwise(places)]
                assert all(most <= each < most + size for each in counts[:-1])
                batches = [_rows(stream, one, other.position) for one, other in pairwise(places)]
                assert [row for batch in batches for row in batch] == [(url, each, str(each)) for each in numbers]
                cut.messages = [*numbers, 7, 8]
                for cut.size in (1, 2, 20):
                    assert [_rows(stream, one, other.position) for one, other in pairwise(places)] == batches
                    assert _rows(stream, places[-1], 9) == [(url, 7, "7"), (url, 8, "8")]

    def test_stream_that_ends_before_a_place_is_another_one(self) -> None:
        with _serving(_Cut([0, 1], 1).answer) as url:
            stream = JsonStream(url)
            assert _rows(stream, Place("a", 2), 2) == []
            with pytest.raises(PipelineError, match="ends 1 messages before position 3: messages were lost"):
                _rows(stream, BEGINNING, 3)
            with pytest.raises(PipelineError, match="ends at c, before d: messages were lost"):
                stream.get("d")

    def test_checkpoint_of_another_source_is_refused(self) -> None:
        with pytest.raises(PipelineError, match=r"belongs to another source: its offset is \{'offset': 2\}"):
            _read(_stream_reader("http://127.0.0.1:9/a"), {"offset": 2})


class TestMicroBatches:
    def test_tasks_are_in_the_checkpoint_and_take_no_request_to_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_TASK", len(b"[1, 2]") + 1)
        answers = _page("b", b"[1, 2]"), _page("c", b"[3]"), _page("d", b"[4]", Stream_Up_To_Date="true")
        with _scripted(*answers) as (url, queries):
            end = _stream_reader(url).latestOffset(_offset("a", 5), ReadMaxRows(10))
            assert end == _offset("d", 9, a=5, c=8)
            parts = _stream_reader(url).partitions(_offset("another, as startingOffset is latest", 0), end)
            assert [query["offset"] for query in queries] == ["a", "b", "c"]
        assert parts == [Range(Place("a", 5), 8), Range(Place("c", 8), 9)]
        assert _stream_reader(url).partitions(end, end) == []

    def test_batch_ends_with_the_response_that_makes_it_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_SIZE", len(b"[\n 0\n]") + 1)
        with _serving(_Cut(list(range(7)), 1).answer) as url:
            reader = _stream_reader(url)
            start = reader.initialOffset()
            assert _read(reader, start)[0] == [0, 1]
            assert reader.latestOffset(start, ReadAllAvailable())["position"] == 7

    def test_offset_that_is_not_the_last_one_is_read_from(self, server: ServerProcess) -> None:
        reader = _stream_reader(stream(server, "twice", 0, 1))
        start = reader.initialOffset()
        assert _read(reader, start)[0] == [0, 1]
        assert _read(reader, start)[0] == [0, 1]

    def test_latest_offset_stays_where_it_was_at_first(self, server: ServerProcess) -> None:
        url = stream(server, "latest", 0)
        reader = _stream_reader(url, startingOffset="latest")
        start = reader.initialOffset()
        append(url, 1)
        assert reader.initialOffset() == start
        assert _read(reader, start)[0] == [1]

    def test_trigger_once_ends_where_the_stream_did_when_it_was_planned(self) -> None:
        answers = _page("c"), _page("b", b"[1]"), _page("c", b"[2]"), _page("d", b"[3]")
        with _scripted(*answers) as (url, queries):
            end = _stream_reader(url, maxMessagesPerBatch=1).latestOffset(_offset("a", 0), ReadAllAvailable())
        assert (end["offset"], end["position"]) == ("c", 2)
        assert len(queries) == 3


class TestAvailableNow:
    def test_query_ends_with_the_messages_of_its_beginning(self) -> None:
        cut = _Cut(list(range(7)), 2)
        with _serving(cut.answer) as url:
            reader = _stream_reader(url, maxMessagesPerBatch=3)
            reader.prepareForTriggerAvailableNow()
            offset = reader.initialOffset()
            batches = []
            for more in range(7, 20):
                cut.messages.append(more)  # the stream grows with each micro-batch
                values, following = _read(reader, offset)
                if following == offset:
                    break
                batches.append(values)
                offset = following
        assert batches == [[0, 1, 2, 3], [4, 5, 6, 7]]  # 7 was in the last response

    def test_stream_that_was_read_is_neither_read_nor_polled(self, server: ServerProcess, sent: list[str]) -> None:
        url = stream(server, "read", 0)
        reader = _stream_reader(url, wait=300)
        _, end = _read(reader, reader.initialOffset())
        reader = _stream_reader(url, wait=300)
        reader.prepareForTriggerAvailableNow()
        assert _read(reader, end) == ([], end)
        assert sent == ["offset=-1", "offset=-1", "offset=now"]

    def test_stream_without_messages_ends_available_now_at_once(self, server: ServerProcess) -> None:
        reader = _stream_reader(stream(server, "without"), wait=300)
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        assert _read(reader, start) == ([], start)

    def test_response_of_a_cache_is_not_the_end(self) -> None:
        answers = _page("d"), _page("b", b"[1]", Stream_Up_To_Date="true"), _page("d", b"[2, 3]")
        with _scripted(*answers) as (url, _):
            reader = _stream_reader(url)
            reader.prepareForTriggerAvailableNow()
            end = reader.latestOffset(_offset("a", 0), ReadMaxRows(5))
        assert (end["offset"], end["position"]) == ("d", 3)

    def test_stream_that_becomes_shorter_is_refused(self) -> None:
        answers = _page("d"), _page("b", b"[1]"), _page("b", Stream_Up_To_Date="true")
        with _scripted(*answers) as (url, _):
            reader = _stream_reader(url)
            reader.prepareForTriggerAvailableNow()
            with pytest.raises(PipelineError, match="ends at b, before d: messages were lost"):
                reader.latestOffset(_offset("a", 0), ReadMaxRows(5))


class TestBatches:
    def test_batch_ends_where_the_stream_did_when_it_was_planned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_TASK", 1)
        # In the order of the requests: the end, and three responses of a stream that grows meanwhile.
        answers = _page("d"), _page("b", b"[1]"), _page("d", b"[2, 3]"), _page("e", b"[4]")
        with _scripted(*answers) as (url, queries):
            parts = _source(url).reader(SCHEMA).partitions()
        assert parts == [Range(BEGINNING, 1), Range(Place("b", 1), 3)]
        assert queries == [{"offset": "now"}, {"offset": "-1"}, {"offset": "b"}]


class TestPolls:
    def test_idle_stream_is_polled_with_the_cursor_and_not_read(self, server: ServerProcess, sent: list[str]) -> None:
        url = stream(server, "idle", 0)
        reader = _stream_reader(url, wait=300)
        values, end = _read(reader, reader.initialOffset())
        assert values == [0]
        for _ in range(3):
            assert _read(reader, end) == ([], end)
            assert reader.reportLatestOffset() == {"offset": OFFSET(1)}
        first, again, second, *others = sent
        assert (first, again) == ("offset=-1", "offset=-1")  # of the planner, and of the task
        assert second == f"live=long-poll&offset={OFFSET(1)}"
        assert [each.partition("cursor=")[0] for each in others] == [""] * 2
        cursors = [int(each.split("&")[0].removeprefix("cursor=")) for each in others]
        assert cursors == sorted(set(cursors))
        assert _stream_reader(url).reportLatestOffset() == {"offset": OFFSET(1)}  # nothing was read

    def test_empty_stream_is_polled_from_an_offset(self, server: ServerProcess, sent: list[str]) -> None:
        url = stream(server, "empty")
        reader = _stream_reader(url, wait=300)
        start = reader.initialOffset()
        assert start == {"offset": "-1", "position": 0, "tasks": {}}
        assert _read(reader, start) == ([], start)
        assert _read(reader, start) == ([], start)
        assert sent == ["offset=-1", f"live=long-poll&offset={OFFSET(0)}"]
        append(url, 0)
        assert _read(reader, start) == ([0], {"offset": OFFSET(1), "position": 1, "tasks": {"-1": 0}})

    def test_poll_may_take_longer_than_other_requests(
        self, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "_PATIENCE", 0.1)
        patient = JsonStream(stream(server, "patient"))
        page = patient.poll(patient.end(), None, 300.0)
        assert page is not None
        assert page.up_to_date

    def test_poll_that_takes_longer_than_the_wait_is_given_up(self, tmp_path: Path) -> None:
        with running(tmp_path, "--long-poll-timeout", "3000") as server:
            url = stream(server, "slow", 0)
            reader = _stream_reader(url, wait=0.1)
            _, end = _read(reader, reader.initialOffset())
            assert _read(reader, end) == ([], end)
            until(lambda: waiting(server) == 0)
            append(url, 1)
            values: list[Any] = []
            while not values:  # perhaps a poll was given up that had an answer
                values, end = _read(reader, end)
            assert values == [1]

    def test_read_that_does_not_wait_comes_after_many_polls_without_answer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        times: list[float] = []
        monkeypatch.setattr(time, "monotonic", lambda: times[-1])
        polled: list[str] = []
        monkeypatch.setattr(JsonStream, "poll", lambda stream, offset, cursor, wait: polled.append(offset))
        with _scripted(_page("a", Stream_Up_To_Date="true")) as (url, queries):
            reader = _stream_reader(url, wait=1)
            start = _offset("a", 0)
            for seconds in (0.0, 5.0, 10.0, 10.1, 15.0):
                times.append(seconds)
                assert _read(reader, start) == ([], start)
        assert (len(polled), len(queries)) == (3, 2)

    def test_closed_stream_that_was_read_gets_no_requests(self, server: ServerProcess, sent: list[str]) -> None:
        url = stream(server, "closed", 0)
        reader = _stream_reader(url, wait=1)
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        httpx.post(url, headers={"Stream-Closed": "true"}, timeout=60).raise_for_status()
        began = time.monotonic()
        for _ in range(2):  # the first one learns of that
            assert _read(reader, end) == ([], end)
            assert reader.reportLatestOffset() == {"offset": OFFSET(1)}
        assert time.monotonic() - began >= 1  # Spark asks again at once
        assert sent == ["offset=-1", f"live=long-poll&offset={OFFSET(1)}"]


class TestRetries:
    @pytest.mark.parametrize("status", [429, 503])
    def test_busy_and_broken_answers_are_repeated(self, status: int) -> None:
        busy = (status, {"Retry-After": "100000"}, b"")
        cut = (200, {"Content-Length": "10"}, b"[")
        with _scripted(busy, cut, _page("b", b'["a"]')) as (url, queries):
            page = JsonStream(url).poll("a", None, 60.0)
        assert page is not None
        assert page.messages().to_pylist() == ['"a"']
        assert queries == [{"live": "long-poll", "offset": "a"}] * 3

    def test_server_that_stays_busy_or_away_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_RETRYING", {**reading._RETRYING, "total": 1})
        with (
            _scripted((503, {}, b"")) as (url, queries),
            pytest.raises(PipelineError, match=r"cannot be read from: .*too many 503 error responses"),
        ):
            JsonStream(url).poll("a", None, 60.0)
        assert len(queries) == 2
        with pytest.raises(PipelineError, match=r"http://127.0.0.1:9/a cannot be read from: .*refused"):
            JsonStream("http://127.0.0.1:9/a").end()


class TestNonsense:
    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            ((200, {"Content-Type": "application/json"}, b"[]"), "not a stream: its answer has no Stream-Next-Offset"),
            ((200, {"Stream-Next-Offset": "b"}, b"[]"), "must name a stream of application/json, not of ''"),
            ((500, {}, b"x" * 300), f"answers 500 at offset a: {'x' * 200}$"),
            ((401, {}, b"no password"), "answers 401 at offset a: no password$"),
            *(
                (
                    (status, {}, b"gone"),
                    rf"answers {status} at offset a: gone \(do startingOffset and the checkpoint bel",
                )
                for status in (400, 404, 410)
            ),
            (_page("b", b"{}"), "an array of JSON at offset a: the response begins with '{}'"),
            (_page("b", b""), "an array of JSON at offset a: the response begins with ''"),
            (_page("b", b"[1], [2]"), r"the response ends with '\[1\], \[2\]', not with the array's last bracket"),
            (_page("b", b"[[1]"), r"the response ends with '\[\[1\]', not with the array's last bracket"),
            (_page("b", b'["1]'), r"the response ends with '\[\"1\]', not with the array's last bracket"),
            (_page("b", b"[\xff]"), "an array of JSON at offset a: Invalid UTF8"),
            (_page("a", b"[1]", Stream_Up_To_Date="true"), "not a stream: its answers do not go on from a"),
            (_page("a"), "not a stream: its answers do not go on from a"),
            (_page("Z", Stream_Closed="true"), "ends at Z, before a: messages were lost"),
        ],
    )
    def test_answers_that_cannot_be_used_are_refused(self, answer: Answer, message: str) -> None:
        with _scripted(answer) as (url, _), pytest.raises(PipelineError, match=message):
            _rows(JsonStream(url), Place("a", 0), 1)

    def test_response_that_is_too_long_for_arrow_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "_LONGEST", 5)
        with (
            _scripted(_page("b", b"[1, 2]")) as (url, _),
            pytest.raises(PipelineError, match="the response has 6 bytes, and Arrow takes at most 5"),
        ):
            JsonStream(url).get("a")

    def test_response_without_messages_is_not_the_end(self) -> None:
        answers = _page("b"), _page("c", b' [ 1 ,\n"b" ] ', Stream_Closed="TRUE")
        with _scripted(*answers) as (url, queries):
            end = _stream_reader(url).latestOffset(_offset("a", 0), ReadMaxRows(5))
        assert end == _offset("c", 2, b=0)
        assert queries == [{"offset": "a"}, {"offset": "b"}]


_SPACE = st.text(" \t\r\n", max_size=2)
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text() | st.text('\\"[]{},'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


class TestMessages:
    @given(values=st.lists(_JSON, max_size=5), space=_SPACE, escaped=st.booleans(), indent=st.none() | st.just(1))
    def test_messages_are_the_elements_of_any_array(
        self, values: list[Any], space: str, escaped: bool, indent: int | None
    ) -> None:
        texts = [json.dumps(value, ensure_ascii=escaped, indent=indent) for value in values]
        body = f"{space}[{space}{f'{space},{space}'.join(texts)}{space}]{space}".encode()
        page = Page(body, reading._cuts(body), "a", up_to_date=True, closed=False, cursor=None)
        assert (len(page), page.messages().to_pylist()) == (len(texts), texts)
