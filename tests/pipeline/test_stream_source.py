"""A stream as a source of Spark: every message once, in order, in spite of restarts."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.spark.errors import PipelineError
from purgatory.spark.source import StreamSource, register
from tests.pipeline.json_server import append, stream, waiting
from tests.streams.node import reference_server
from tests.streams.processes import ServerProcess, running
from tests.support.journals import until
from tests.support.paths import ROOT
from tests.support.servers import reserved_port

# Spark gives a stream's process of Python ten seconds to start, which no setting changes and a busy machine may exceed.
pytestmark = pytest.mark.flaky(reruns=20, only_rerun="Python worker failed to connect back")

Batches: TypeAlias = dict[int, list[tuple[Any, ...]]]
"""The rows given to a sink, by the number of the batch: a repeated batch is the same again."""
Sink: TypeAlias = Callable[[DataFrame, int], None]


@pytest.fixture
def source(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("data"), "--long-poll-timeout", "1", "--max-body", "4000000") as server:
        yield server


@pytest.fixture(params=["purgatory serve", "the reference server"])
def news(request: pytest.FixtureRequest) -> Iterator[str]:
    """A stream with the messages 0, 1 and 2, of our server and of the protocol's authors' own."""
    if request.param == "purgatory serve":
        yield stream(request.getfixturevalue("server"), "news", 0, 1, 2)
        return
    with reference_server() as base:
        url = f"{base}/v1/stream/news"
        httpx.put(url, json=[0, 1, 2], timeout=60).raise_for_status()
        yield url


@pytest.fixture(scope="module")
def long(server: ServerProcess) -> str:
    """A stream of 75,000 messages, each with its number."""
    url = stream(server, "long")
    for first in range(0, 75_000, 15_000):
        append(url, *({"number": number, "text": "x" * 60} for number in range(first, first + 15_000)))
    return url


def _into(batches: Batches) -> Sink:
    def collect(rows: DataFrame, batch: int) -> None:
        batches[batch] = [tuple(row) for row in rows.collect()]

    return collect


def _start(
    spark: SparkSession, url: str, checkpoint: Path, sink: Sink, trigger: dict[str, Any], **options: Any
) -> StreamingQuery:
    rows = spark.readStream.format("purgatory").options(url=url, **options).load()
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start()


@contextmanager
def _following(spark: SparkSession, url: str, checkpoint: Path, sink: Sink, **options: Any) -> Iterator[StreamingQuery]:
    """A query that follows the stream, without failing, for as long as the context lasts."""
    query = _start(spark, url, checkpoint, sink, {"processingTime": "0 seconds"}, **options)
    try:
        yield query
        assert query.exception() is None
    finally:
        query.stop()


def _until(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    """Return when `condition()` holds: the time-out of the test is the bound, unless the query fails."""
    pause = threading.Event()
    while not condition() and query.isActive:
        pause.wait(0.01)
    assert query.exception() is None


def _values(batches: Batches) -> list[Any]:
    """The values in order of arrival, with their positions checked."""
    rows = [row for _, batch in sorted(batches.items()) for row in batch]
    assert [position for _, position, _ in rows] == list(range(len(rows)))
    return [json.loads(value) for _, _, value in rows]


def _read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("purgatory").options(url=url, **options).load()


class TestStream:
    def test_each_message_comes_once_in_order_across_a_stop_and_a_lost_commit(
        self, source: SparkSession, news: str, tmp_path: Path
    ) -> None:
        batches: Batches = {}
        with _following(source, news, tmp_path, _into(batches)) as query:
            _until(query, lambda: _values(batches) == [0, 1, 2])
            append(news, 3)
            _until(query, (tmp_path / "commits" / "1").exists)
        # As if Spark had been killed between the sink and the checkpoint.
        for name in ("1", ".1.crc"):
            (tmp_path / "commits" / name).unlink()
        append(news, 4)  # now the response that has 3 has 4 too
        repeated: Batches = {}
        with _following(source, news, tmp_path, _into(repeated)) as query:
            _until(query, lambda: 2 in repeated)
        assert repeated[1] == batches[1]
        assert [len(batch) for batch in (batches | repeated).values()] == [3, 1, 1]
        assert _values(batches | repeated) == [0, 1, 2, 3, 4]
        assert [row.value for row in _read(source, news).collect()] == ["0", "1", "2", "3", "4"]

    def test_killed_query_reads_its_batch_again_as_it_was(
        self, source: SparkSession, server: ServerProcess, tmp_path: Path
    ) -> None:
        url = stream(server, "killed")
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
        # Batch 2 stays as it was.
        _start(source, url, tmp_path / "checkpoint", _into(batches), {"availableNow": True}).awaitTermination()
        assert sorted(batches) == [2, 3]
        assert batches[2] == killed[2]
        assert [value[:2] for value in _values(killed | batches)] == [
            *("0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b"),
            "4",
        ]

    def test_restart_of_the_server_does_not_end_the_query(self, source: SparkSession, tmp_path: Path) -> None:
        batches: Batches = {}
        port = "--port", str(reserved_port())
        with ExitStack() as stack:
            with running(tmp_path / "data", *port) as server:
                url = stream(server, "news", 0)
                query = stack.enter_context(_following(source, url, tmp_path / "checkpoint", _into(batches)))
                _until(query, lambda: _values(batches) == [0] and waiting(server) == 1)
            with running(tmp_path / "data", *port):
                append(url, 1, 2)
                _until(query, lambda: _values(batches) == [0, 1, 2])

    def test_waiting_query_can_be_stopped(self, source: SparkSession, tmp_path: Path) -> None:
        with running(tmp_path / "data", "--long-poll-timeout", "3000") as server:
            url = stream(server, "silent")
            with _following(source, url, tmp_path / "checkpoint", _into({}), wait=300) as query:
                _until(query, lambda: waiting(server) == 1)
            until(lambda: waiting(server) == 0)  # the server does not wait in vain


class TestAvailableNow:
    def test_long_stream_is_read_in_parallel_tasks_of_several_batches(
        self, source: SparkSession, long: str, tmp_path: Path
    ) -> None:
        found: Batches = {}

        def collect(rows: DataFrame, batch: int) -> None:
            columns = "spark_partition_id()", "position", "get_json_object(value, '$.number')"
            _into(found)(rows.selectExpr(*columns), batch)

        query = _start(source, long, tmp_path, collect, {"availableNow": True}, maxMessagesPerBatch=30_000)
        query.awaitTermination()
        rows = [row for _, batch in sorted(found.items()) for row in batch]
        assert [(position, int(number)) for _, position, number in rows] == [(each, each) for each in range(75_000)]
        assert len(found) == 3
        *long_batches, _ = found.values()
        assert all(len({task for task, _, _ in batch}) > 1 for batch in long_batches)
        sources = [json.loads(each.json)["sources"][0] for each in query.recentProgress if each["numInputRows"]]
        read, end = (
            [int(each[name]["offset"].partition("_")[2]) for each in sources] for name in ("endOffset", "latestOffset")
        )
        assert read == [batch[-1][1] + 1 for batch in found.values()]
        assert end == [75_000] * 3


class TestBatch:
    def test_long_stream_is_read_in_parallel_tasks(self, source: SparkSession, long: str) -> None:
        rows = _read(source, long)
        assert rows.rdd.getNumPartitions() > 1
        number = "CAST(get_json_object(value, '$.number') AS INT)"
        counted = rows.selectExpr("count(*)", "count(DISTINCT position)", f"count_if(position = {number})").first()
        assert counted == (75_000, 75_000, 75_000)

    def test_batch_has_every_json_text_as_the_server_has_it(self, source: SparkSession, server: ServerProcess) -> None:
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
        url = stream(server, "odd")
        httpx.post(url, content=f"[ {' , '.join(texts)} ]", headers={"Content-Type": "application/json"}, timeout=60)
        assert [tuple(row) for row in _read(source, url).collect()] == [
            (url, number, text) for number, text in enumerate(texts)
        ]

    def test_batch_starts_at_the_given_offset(self, source: SparkSession, server: ServerProcess) -> None:
        url = stream(server, "from")
        offset = append(url, "a", "b")
        append(url, "c")
        assert [tuple(row) for row in _read(source, url, startingOffset=offset).collect()] == [(url, 0, '"c"')]
        assert _read(source, url, startingOffset="latest").collect() == []


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

    def test_missing_stream_is_refused_before_the_query_starts(
        self, source: SparkSession, server: ServerProcess
    ) -> None:
        reader = source.readStream.format("purgatory").options(url=f"{server.url}/v1/stream/elsewhere")
        with pytest.raises(AnalysisException, match=r"elsewhere answers 404 at offset now: .*no such stream"):
            reader.load()

    def test_schema_other_than_that_of_the_source_is_refused(self, source: SparkSession, server: ServerProcess) -> None:
        reader = source.read.schema("value string").format("purgatory").options(url=stream(server, "empty"))
        with pytest.raises(PySparkException, match="the schema must be stream string, position bigint, value string"):
            reader.load().collect()


def test_readmes_query_prints_the_messages_of_a_stream(server: ServerProcess, tmp_path: Path) -> None:
    page = (ROOT / "purgatory" / "spark" / "README.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    for shown, here in (
        ("http://127.0.0.1:4437/v1/stream/news", stream(server, "news", "first", "second")),
        (".start().awaitTermination()", ".trigger(availableNow=True).start().awaitTermination()"),
    ):
        assert shown in program
        program = program.replace(shown, here)
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r'\| *1\|"second"\|', done.stdout), done.stdout
