"""A stream as a source of Spark: every message once, in order, in spite of restarts."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.spark.errors import PipelineError
from purgatory.spark.source import StreamSource, register
from tests.pipeline.json_server import JsonServer, append, running
from tests.pipeline.test_reading import SCHEMA
from tests.streams.node import reference_server
from tests.support.journals import until
from tests.support.paths import ROOT

# Spark gives a stream's process of Python ten seconds to start, which no setting changes and a busy machine may exceed.
pytestmark = pytest.mark.flaky(reruns=20, only_rerun="Python worker failed to connect back")

Batches = dict[int, list[tuple[str, int, str]]]
"""The rows given to a sink, by the number of the batch: a repeated batch is the same again."""


@pytest.fixture
def source(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonServer]:
    with running(tmp_path_factory.mktemp("data"), "--long-poll-timeout", "1", "--max-body", "4000000") as server:
        yield server


@contextmanager
def _following(
    spark: SparkSession, url: str, batches: Batches, checkpoint: Path, **options: Any
) -> Iterator[StreamingQuery]:
    """A query that puts the stream into `batches`, without failing, for as long as the context lasts."""

    def collect(rows: DataFrame, batch: int) -> None:
        batches[batch] = [tuple(row) for row in rows.collect()]

    rows = spark.readStream.format("purgatory").options(url=url, **options).load()
    query = rows.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
        assert query.exception() is None
    finally:
        query.stop()


def _available_now(
    spark: SparkSession, url: str, checkpoint: Path, collect: Callable[[DataFrame, int], None], **options: Any
) -> StreamingQuery:
    """A query that has read all there was when it began."""
    rows = spark.readStream.format("purgatory").options(url=url, **options).load()
    writer = rows.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def _ends(progress: Any) -> tuple[int, int]:
    """The messages before the end of a micro-batch, and before that of the stream, as offsets of ours count them."""
    (source,) = json.loads(progress.json)["sources"]
    read, end = (source[name]["offset"].partition("_")[2] for name in ("endOffset", "latestOffset"))
    return int(read), int(end)


class _Silent(BaseHTTPRequestHandler):
    """Serves a stream with a message. Polls get no answer."""

    protocol_version = "HTTP/1.1"
    requests: ClassVar[list[tuple[float, str]]]

    def do_GET(self) -> None:
        parameters = urlsplit(self.path).query
        self.requests.append((time.monotonic(), parameters))
        if "live" in parameters:
            self.rfile.read(1)  # until the client is gone
            self.close_connection = True
            return
        body = b"[0]" if parameters == "offset=-1" else b"[]"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Stream-Next-Offset", "1")
        self.send_header("Stream-Up-To-Date", "true")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass


@contextmanager
def _silent() -> Iterator[tuple[str, list[tuple[float, str]]]]:
    """The URL of such a server, and the times and parameters of its requests."""
    requests: list[tuple[float, str]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Silent", (_Silent,), {"requests": requests})) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="silent")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/a", requests
        finally:
            server.shutdown()
            thread.join(60)


def _until(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    """Return when `condition()` holds: the time-out of the test is the bound, unless the query fails."""
    pause = threading.Event()
    while not condition() and query.isActive:
        pause.wait(0.01)
    assert query.exception() is None


def _uncommit(checkpoint: Path, batch: int = 0) -> None:
    """Remove the commit of a batch, as if Spark had been killed between the sink and the checkpoint."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink()


def _values(batches: Batches) -> list[Any]:
    """The values in order of arrival, with their positions checked."""
    rows = [row for _, batch in sorted(batches.items()) for row in batch]
    assert [position for _, position, _ in rows] == list(range(len(rows)))
    return [json.loads(value) for _, _, value in rows]


def _read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("purgatory").options(url=url, **options).load()


def _fails(spark: SparkSession, url: str, checkpoint: Path, message: str) -> None:
    """See that a query that goes on from the checkpoint fails."""
    rows = spark.readStream.schema(SCHEMA).format("purgatory").options(url=url, wait=1).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    with pytest.raises(StreamingQueryException, match=message):
        query.awaitTermination()


class TestStream:
    def test_each_message_comes_once_in_order_across_stop_and_restart(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        batches: Batches = {}
        url = server.stream("kept", 0, 1, 2)
        with _following(source, url, batches, tmp_path) as query:
            _until(query, lambda: _values(batches) == [0, 1, 2])
            append(url, 3)
            _until(query, lambda: _values(batches) == [0, 1, 2, 3])
        append(url, 4, 5)
        with _following(source, url, batches, tmp_path) as query:
            _until(query, lambda: len(_values(batches)) == 6)
            append(url, 6)
            _until(query, lambda: len(_values(batches)) == 7)
        assert _values(batches) == [0, 1, 2, 3, 4, 5, 6]

    def test_batch_that_was_not_committed_is_read_again_as_it_was(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        batches: Batches = {}
        url = server.stream("again", "a", "b", "c")
        with _following(source, url, batches, tmp_path) as query:
            _until(query, lambda: (tmp_path / "commits" / "0").exists())
        _uncommit(tmp_path)
        append(url, "d")  # now the response that has c has d too
        repeated: Batches = {}
        with _following(source, url, repeated, tmp_path) as query:
            _until(query, lambda: 1 in repeated)
        assert repeated[0] == batches[0]
        assert [row[1:] for row in repeated[1]] == [(3, '"d"')]

    def test_latest_offset_stays_the_same_when_the_first_batch_is_repeated(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        batches: Batches = {}
        url = server.stream("latest-again", "a")
        with _following(source, url, {}, tmp_path, startingOffset="latest") as query:
            _until(query, lambda: (tmp_path / "commits" / "0").exists())
        _uncommit(tmp_path)
        append(url, "b", "c")
        with _following(source, url, batches, tmp_path, startingOffset="latest") as query:
            _until(query, lambda: 1 in batches)
        assert batches[0] == []
        assert [row[1:] for row in batches[1]] == [(0, '"b"'), (1, '"c"')]

    def test_restart_of_the_server_does_not_end_the_query(self, source: SparkSession, tmp_path: Path) -> None:
        batches: Batches = {}
        with running(tmp_path / "data") as server:
            url = server.stream("news", 0)
            with _following(source, url, batches, tmp_path / "checkpoint") as query:
                _until(query, lambda: _values(batches) == [0] and server.waiting() == 1)
                server.stop()
                server.start()
                append(url, 1, 2)
                _until(query, lambda: _values(batches) == [0, 1, 2])

    def test_deletion_of_the_stream_ends_the_query(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        url = server.stream("deleted", 0, 1)
        with _following(source, url, {}, tmp_path) as query:
            _until(query, (tmp_path / "commits" / "0").exists)
        assert httpx.delete(url, timeout=60).is_success
        _fails(source, url, tmp_path, r"deleted-\d+ answers 404 at offset 0000000000000000_0000000000000002")

    def test_start_at_latest_or_an_offset_skips_the_messages_before_it(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        latest: Batches = {}
        third: Batches = {}
        url = server.stream("starts", 0, 1, 2)
        offset = append(url, 3, 4)
        with _following(source, url, latest, tmp_path / "a", startingOffset="latest") as query:
            _until(query, lambda: server.waiting() == 1)  # it knows where that is
            append(url, 5)
            _until(query, lambda: bool(_values(latest)))
        with _following(source, url, third, tmp_path / "b", startingOffset=offset) as query:
            _until(query, lambda: bool(_values(third)))
        assert (_values(latest), _values(third)) == ([5], [5])

    def test_messages_of_several_responses_are_each_read_once(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        batches: Batches = {}
        url = server.stream("many")
        for first in range(0, 25_000, 5_000):
            append(url, *(f"{number:0150}" for number in range(first, first + 5_000)))
        with _following(source, url, batches, tmp_path, maxMessagesPerBatch=15_000) as query:
            _until(query, lambda: sum(map(len, batches.values())) == 25_000)
        assert list(map(int, _values(batches))) == list(range(25_000))
        # A batch ends with a response, which is of 1 MiB: of about 7,000 messages.
        first_batch, *rest = (len(batch) for batch in batches.values())
        assert 15_000 <= first_batch < 22_500
        assert sum(rest) == 25_000 - first_batch
        rows = _read(source, url)
        assert rows.rdd.getNumPartitions() == 2
        assert rows.selectExpr("count(*)", "sum(position)", "sum(int(substr(value, -6, 5)))").first() == (
            25_000,
            sum(range(25_000)),
            sum(range(25_000)),
        )

    def test_query_reads_several_streams(self, source: SparkSession, server: JsonServer, tmp_path: Path) -> None:
        urls = [server.stream(f"several-{number}") for number in range(2)]
        found: set[tuple[str, str]] = set()

        def collect(rows: DataFrame, batch: int) -> None:
            found.update((row.stream, row.value) for row in rows.collect())

        first, second = (source.readStream.format("purgatory").options(url=url, wait=0.1).load() for url in urls)
        query = (
            first.union(second).writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path)).start()
        )
        try:
            for url in urls:
                append(url, url)
                _until(query, partial(found.__contains__, (url, json.dumps(url))))
        finally:
            query.stop()
        assert len(found) == 2

    def test_waiting_query_can_be_stopped(self, source: SparkSession, tmp_path: Path) -> None:
        with running(tmp_path / "data", "--long-poll-timeout", "3000") as server:
            url = server.stream("silent")
            with _following(source, url, {}, tmp_path / "checkpoint", wait=300) as query:
                _until(query, lambda: server.waiting() == 1)
            until(lambda: server.waiting() == 0)  # the server does not wait in vain

    def test_closed_stream_does_not_end_the_query(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        batches: Batches = {}
        url = server.stream("closed", 1)
        httpx.post(url, headers={"Stream-Closed": "true"}, timeout=60).raise_for_status()
        with _following(source, url, batches, tmp_path) as query:
            _until(query, (tmp_path / "commits" / "0").exists)
        with _following(source, url, batches, tmp_path, wait=300) as query:
            _until(query, lambda: server.requests(url)[-1] == "offset=0000000000000000_0000000000000001")
        assert _values(batches) == [1]

    def test_idle_query_sends_one_request_in_each_wait(self, source: SparkSession, tmp_path: Path) -> None:
        with _silent() as (url, requests), _following(source, url, {}, tmp_path, wait=3) as query:
            polls: list[float] = []

            def polled() -> bool:
                polls[:] = [seconds for seconds, parameters in requests if "live" in parameters]
                return len(polls) == 4

            _until(query, polled)
            idle = [parameters for seconds, parameters in requests if polls[0] <= seconds <= polls[3]]
        assert polls[3] - polls[0] >= 3 * 3
        assert idle == ["live=long-poll&offset=1"] * 4


class TestAvailableNow:
    def test_long_stream_is_read_in_parallel_tasks_of_several_batches(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        url = server.stream("long")
        for first in range(0, 250_000, 5_000):
            append(url, *({"number": number, "text": "x" * 60} for number in range(first, first + 5_000)))
        found: dict[int, list[tuple[int, int, int]]] = {}

        def collect(rows: DataFrame, batch: int) -> None:
            columns = "spark_partition_id() AS task", "position", "get_json_object(value, '$.number') AS number"
            found[batch] = [(row.task, row.position, int(row.number)) for row in rows.selectExpr(*columns).collect()]

        query = _available_now(source, url, tmp_path, collect)
        rows = [row for _, batch in sorted(found.items()) for row in batch]
        assert [(position, number) for _, position, number in rows] == [(each, each) for each in range(250_000)]
        assert len(found) == 3
        assert all(len({task for task, _, _ in batch}) > 1 for batch in found.values())
        ends = [_ends(progress) for progress in query.recentProgress if progress["numInputRows"]]
        assert ends == [(batch[-1][1] + 1, 250_000) for batch in found.values()]

    def test_growing_stream_does_not_keep_available_now_from_ending(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        url = server.stream("growing", *range(3))
        batches: Batches = {}

        def collect(rows: DataFrame, batch: int) -> None:
            append(url, 3 + 2 * batch, 4 + 2 * batch)
            batches[batch] = [tuple(row) for row in rows.collect()]

        _available_now(source, url, tmp_path, collect)
        assert [len(batch) for batch in batches.values()] == [3]
        _available_now(source, url, tmp_path, collect)
        assert [len(batch) for batch in batches.values()] == [3, 2]
        assert _values(batches) == [0, 1, 2, 3, 4]

    def test_killed_query_reads_its_batch_again_as_it_was(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        url = server.stream("killed")
        for number in range(4):
            append(url, *(f"{number}{letter}{'x' * 1_000_000}" for letter in "ab"))  # a batch each
        output = tmp_path / "output"
        output.mkdir()
        command = [sys.executable, "-m", "tests.pipeline.killed", url, str(tmp_path / "checkpoint"), str(output)]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
        killed = {int(file.name): [tuple(row) for row in json.loads(file.read_text())] for file in output.iterdir()}
        assert sorted(killed) == [0, 1, 2]
        append(url, "4")
        batches: Batches = {}

        def collect(rows: DataFrame, batch: int) -> None:
            batches[batch] = [tuple(row) for row in rows.collect()]

        _available_now(
            source, url, tmp_path / "checkpoint", collect, maxMessagesPerBatch=100
        )  # batch 2 stays as it was
        assert sorted(batches) == [2, 3]
        assert batches[2] == killed[2]
        assert [value[:2] for value in _values(killed | batches)] == [
            *("0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b"),
            "4",
        ]

    def test_closed_and_empty_streams_end_available_now(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        closed, empty = server.stream("over", 0, 1), server.stream("none")
        httpx.post(closed, headers={"Stream-Closed": "true"}, timeout=60).raise_for_status()
        for number, (url, values) in enumerate(((closed, [0, 1]), (empty, []))):
            batches: Batches = {}

            def collect(rows: DataFrame, batch: int, batches: Batches = batches) -> None:
                batches[batch] = [tuple(row) for row in rows.collect()]

            for _ in range(2):
                _available_now(source, url, tmp_path / str(number), collect, wait=300)
            assert _values(batches) == values

    def test_deletion_of_the_stream_fails_available_now(
        self, source: SparkSession, server: JsonServer, tmp_path: Path
    ) -> None:
        url = server.stream("deleted-now")
        for number in range(2):
            append(url, f"{number}{'x' * 2_000_000}")

        def delete(rows: DataFrame, batch: int) -> None:
            assert rows.count() == 1
            httpx.delete(url, timeout=60).raise_for_status()

        with pytest.raises(StreamingQueryException, match=r"deleted-now-\d+ answers 404 at offset"):
            _available_now(source, url, tmp_path, delete, maxMessagesPerBatch=1)


class TestReferenceServer:
    def test_available_now_reads_everything_once(self, source: SparkSession, tmp_path: Path) -> None:
        batches: Batches = {}

        def collect(rows: DataFrame, batch: int) -> None:
            batches[batch] = [tuple(row) for row in rows.collect()]

        with reference_server() as base:
            url = f"{base}/v1/stream/now"
            httpx.put(url, json=list(range(20_000)), timeout=60).raise_for_status()
            _available_now(source, url, tmp_path, collect)
            append(url, 20_000, 20_001)
            _available_now(source, url, tmp_path, collect)
        assert [len(batch) for batch in batches.values()] == [20_000, 2]
        assert _values(batches) == list(range(20_002))

    def test_each_message_comes_once_in_order(self, source: SparkSession, tmp_path: Path) -> None:
        batches: Batches = {}
        with reference_server() as base:
            url = f"{base}/v1/stream/news"
            httpx.put(url, json=[0, 1, 2], timeout=60).raise_for_status()
            with _following(source, url, batches, tmp_path) as query:
                _until(query, lambda: _values(batches) == [0, 1, 2])
                append(url, 3)
                _until(query, lambda: _values(batches) == [0, 1, 2, 3] and (tmp_path / "commits" / "1").exists())
            _uncommit(tmp_path, 1)
            append(url, 4)
            with _following(source, url, batches, tmp_path) as query:
                _until(query, lambda: len(_values(batches)) == 5)
            assert [row[2] for row in _read(source, url).collect()] == ["0", "1", "2", "3", "4"]
            httpx.delete(url, timeout=60).raise_for_status()
            httpx.put(url, json=[0], timeout=60).raise_for_status()
            _fails(source, url, tmp_path, "ends at .*messages were lost")
        assert list(map(len, batches.values())) == [3, 1, 1]
        assert _values(batches) == [0, 1, 2, 3, 4]


class TestBatch:
    def test_batch_has_every_json_text_as_the_server_has_it(self, source: SparkSession, server: JsonServer) -> None:
        texts = [
            r'"quotes \" and \\ and \u0000"',
            '"Größe 漢字 🦉"',
            r'"\ud800"',
            "null",
            '{"a": [1.50, 1e4000, -0.0, 1' + "0" * 5000 + "]}",
            '{"a":1,\n "a":2}',
            '""',
            "[]",
        ]
        url = server.stream("odd")
        httpx.post(url, content=f"[ {' , '.join(texts)} ]", headers={"Content-Type": "application/json"}, timeout=60)
        assert [tuple(row) for row in _read(source, url).collect()] == [
            (url, number, text) for number, text in enumerate(texts)
        ]

    def test_batch_starts_at_the_given_offset(self, source: SparkSession, server: JsonServer) -> None:
        url = server.stream("from")
        offset = append(url, "a", "b")
        append(url, "c")
        assert [tuple(row) for row in _read(source, url, startingOffset=offset).collect()] == [(url, 0, '"c"')]
        assert _read(source, url, startingOffset="latest").collect() == []

    def test_start_beyond_the_end_is_refused(self, source: SparkSession, server: JsonServer) -> None:
        url, longer = server.stream("empty"), server.stream("longer")
        offset = append(longer, "a")
        with pytest.raises(PySparkException, match=r"answers 400 at offset \S+: .*startingOffset"):
            _read(source, url, startingOffset=offset).collect()

    def test_stream_without_messages_has_no_rows(self, source: SparkSession, server: JsonServer) -> None:
        assert _read(source, server.stream("empty")).collect() == []


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"url": ""}, "the option url is missing"),
            ({"url": "127.0.0.1:4437"}, "the option url must be like"),
            ({"url": "http://[/v1"}, "the option url must be like"),
            ({"url": "http://127.0.0.1:9/a?offset=-1"}, "the option url must be like"),
            ({"url": "http://me:secret@127.0.0.1:9/a"}, "the option url must have no user and no password"),
            ({"startingOffset": ""}, "the option startingOffset must be"),
            ({"startingOffset": "1&live=sse"}, "the option startingOffset must be"),
            ({"wait": "0"}, "the option wait must be"),
            ({"wait": "long"}, "the option wait must be"),
            ({"maxMessagesPerBatch": "0"}, "the option maxMessagesPerBatch must be"),
            ({"maxMessagesPerBatch": "many"}, "the option maxMessagesPerBatch must be"),
            ({"topic": "news"}, "unknown option topic"),
        ],
    )
    def test_bad_options_are_refused(self, options: dict[str, str], message: str) -> None:
        with pytest.raises(PipelineError, match=message) as raised:
            StreamSource({"url": "http://127.0.0.1:9/v1/stream/news", **options})
        assert "secret" not in str(raised.value)

    def test_options_are_refused_before_the_query_starts(self, source: SparkSession) -> None:
        reader = source.readStream.format("purgatory").options(url="http://127.0.0.1:9/a", startingOffset="?")
        with pytest.raises(AnalysisException, match="the option startingOffset must be earliest, latest or an offset"):
            reader.load()

    def test_stream_of_text_is_refused_before_the_query_starts(self, source: SparkSession, server: JsonServer) -> None:
        url = f"{server.url}/v1/stream/text"
        httpx.put(url, headers={"Content-Type": "text/plain"}, timeout=60).raise_for_status()
        message = "the option url must name a stream of application/json, not of 'text/plain'"
        with pytest.raises(AnalysisException, match=message):
            source.readStream.format("purgatory").options(url=url).load()

    def test_stream_that_is_not_there_is_refused_before_the_query_starts(
        self, source: SparkSession, server: JsonServer
    ) -> None:
        with pytest.raises(AnalysisException, match=r"elsewhere answers 404 at offset now: .*no such stream"):
            _read(source, f"{server.url}/v1/stream/elsewhere")

    def test_schema_other_than_that_of_the_source_is_refused(self, source: SparkSession, server: JsonServer) -> None:
        reader = source.read.schema("value string").format("purgatory").options(url=server.stream("empty"))
        with pytest.raises(PySparkException, match="the schema must be stream string, position bigint, value string"):
            reader.load().collect()


def test_readmes_query_prints_the_messages_of_a_stream(server: JsonServer, tmp_path: Path) -> None:
    page = (ROOT / "purgatory" / "spark" / "README.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    for shown, here in (
        ("http://127.0.0.1:4437/v1/stream/news", server.stream("news", "first", "second")),
        (".start().awaitTermination()", ".trigger(availableNow=True).start().awaitTermination()"),
    ):
        assert shown in program
        program = program.replace(shown, here)
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r'\| *1\|"second"\|', done.stdout), done.stdout
