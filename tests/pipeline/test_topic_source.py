"""A topic of the long-poll server as a source of Spark: every message once, in order, in spite of restarts."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.long_poll_server.log import SCHEMA
from purgatory.spark.source import register
from tests.support.journals import until
from tests.support.server_process import ServerProcess, running

Batches = dict[int, list[tuple[str, int, str]]]
"""The rows given to a sink, by the number of the batch: a repeated batch is the same again."""


@pytest.fixture
def source(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("data")) as server:
        yield server


def _publish(server: ServerProcess, topic: str, *values: Any) -> None:
    with httpx.Client(base_url=server.url) as client:
        for value in values:
            response = client.post(f"/topics/{topic}/messages", content=json.dumps({"value": value}))
            assert response.status_code == 201, response.text


def _fetches(server: ServerProcess) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/statistics").json()["fetch"]
    return found


@contextmanager
def _following(
    spark: SparkSession, server: ServerProcess, topic: str, batches: Batches, checkpoint: Path, **options: Any
) -> Iterator[StreamingQuery]:
    """A query that puts the topic into `batches`, without failing, for as long as the context lasts."""

    def collect(rows: DataFrame, batch: int) -> None:
        batches[batch] = [tuple(row) for row in rows.collect()]

    rows = spark.readStream.format("purgatory").options(url=server.url, topic=topic, **options).load()
    query = rows.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint)).start()
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


def _uncommit(checkpoint: Path) -> None:
    """Remove the commit of the first batch, as if Spark had been killed between the sink and the checkpoint."""
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()


def _values(batches: Batches) -> list[Any]:
    """The values in order of arrival, with their offsets checked."""
    rows = [row for _, batch in sorted(batches.items()) for row in batch]
    assert [offset for _, offset, _ in rows] == list(range(rows[0][1], rows[0][1] + len(rows))) if rows else True
    return [json.loads(value) for _, _, value in rows]


def _read(spark: SparkSession, server: ServerProcess, topic: str, **options: Any) -> DataFrame:
    return spark.read.format("purgatory").options(url=server.url, topic=topic, **options).load()


class TestStream:
    def test_each_message_comes_once_in_order_across_stop_and_restart(
        self, source: SparkSession, server: ServerProcess, tmp_path: Path
    ) -> None:
        batches: Batches = {}
        _publish(server, "kept", 0, 1, 2)
        with _following(source, server, "kept", batches, tmp_path, wait=1, maxMessagesPerBatch=2) as query:
            _until(query, lambda: _values(batches) == [0, 1, 2])
            assert max(map(len, batches.values())) == 2
            _publish(server, "kept", 3)
            _until(query, lambda: _values(batches) == [0, 1, 2, 3])
        _publish(server, "kept", 4, 5)
        with _following(source, server, "kept", batches, tmp_path, wait=1) as query:
            _until(query, lambda: len(_values(batches)) == 6)
            _publish(server, "kept", 6)
            _until(query, lambda: len(_values(batches)) == 7)
        assert _values(batches) == [0, 1, 2, 3, 4, 5, 6]

    def test_a_batch_that_was_not_committed_is_read_again_as_it_was(
        self, source: SparkSession, server: ServerProcess, tmp_path: Path
    ) -> None:
        batches: Batches = {}
        _publish(server, "again", "a", "b")
        with _following(source, server, "again", batches, tmp_path, wait=1) as query:
            _until(query, lambda: len(query.recentProgress) > 0)
        assert list(batches) == [0]
        _uncommit(tmp_path)
        _publish(server, "again", "c")
        repeated: Batches = {}
        with _following(source, server, "again", repeated, tmp_path, wait=1) as query:
            _until(query, lambda: len(_values(repeated)) == 3)
        assert repeated[0] == batches[0]

    def test_a_restart_of_the_server_does_not_end_it(self, source: SparkSession, tmp_path: Path) -> None:
        batches: Batches = {}
        with running(tmp_path / "data") as server:
            _publish(server, "news", 0)
            with _following(source, server, "news", batches, tmp_path / "checkpoint", wait=30) as query:
                _until(query, lambda: _values(batches) == [0] and _fetches(server)["num_delayed"] == 1)
                assert server.stop() == 0
                with running(tmp_path / "data", "--port", server.url.rpartition(":")[2]) as restarted:
                    assert restarted.url == server.url
                    _publish(restarted, "news", 1, 2)
                    _until(query, lambda: _values(batches) == [0, 1, 2])

    @pytest.mark.parametrize(
        ("committed", "message"),
        [(True, "ends before offset 2: messages were lost"), (False, "ends at 1, before 2: messages were lost")],
    )
    def test_messages_that_are_lost_end_it(
        self, source: SparkSession, tmp_path: Path, committed: bool, message: str
    ) -> None:
        commit = tmp_path / "checkpoint" / "commits" / "0"
        with running(tmp_path / "data") as server:
            _publish(server, "news", 0, 1)
            with _following(source, server, "news", {}, tmp_path / "checkpoint", wait=1) as query:
                _until(query, commit.exists)
        if not committed:
            _uncommit(tmp_path / "checkpoint")
        with running(tmp_path / "other", "--port", server.url.rpartition(":")[2]) as other:
            _publish(other, "news", "another")
            rows = source.readStream.format("purgatory").options(url=other.url, topic="news", wait=1).load()
            stream = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
            with pytest.raises(StreamingQueryException, match=message):
                stream.start().awaitTermination()

    def test_latest_skips_all_messages_and_a_number_those_before_it(self, source: SparkSession, tmp_path: Path) -> None:
        latest: Batches = {}
        third: Batches = {}
        with running(tmp_path / "data") as server:
            _publish(server, "news", *range(5))
            with _following(source, server, "news", latest, tmp_path / "a", wait=30, startingOffset="latest") as query:
                _until(query, lambda: _fetches(server)["num_delayed"] == 1)  # it knows where that is
                _publish(server, "news", 5)
                _until(query, lambda: bool(_values(latest)))
            with _following(source, server, "news", third, tmp_path / "b", wait=1, startingOffset=3) as query:
                _until(query, lambda: len(_values(third)) == 3)
        assert (_values(latest), _values(third)) == ([5], [3, 4, 5])

    def test_more_messages_than_a_request_may_ask_for(self, source: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        with closing(sqlite3.connect(tmp_path / "data" / "messages.sqlite3")) as database, database:
            database.executescript(SCHEMA)
            rows = (("many", number, str(number)) for number in range(25_000))
            database.executemany("INSERT INTO messages VALUES (?, ?, ?)", rows)
        batches: Batches = {}
        with running(tmp_path / "data") as server:
            with _following(
                source, server, "many", batches, tmp_path / "checkpoint", wait=1, maxMessagesPerBatch=15_000
            ) as query:
                _until(query, lambda: len(_values(batches)) == 25_000)
            assert _read(source, server, "many").agg({"offset": "sum"}).first() == (sum(range(25_000)),)
        assert _values(batches) == list(range(25_000))
        assert [len(batch) for batch in batches.values()] == [15_000, 10_000]

    def test_an_idle_one_polls_once_in_each_wait(self, source: SparkSession, tmp_path: Path) -> None:
        with (
            running(tmp_path / "data") as server,
            _following(source, server, "silent", {}, tmp_path / "checkpoint", wait=0.5) as query,
        ):
            _until(query, lambda: _fetches(server)["expired"] >= 1)
            before = _fetches(server)["expired"]
            began = time.monotonic()
            _until(query, lambda: _fetches(server)["expired"] >= before + 4)
            found = _fetches(server)
            elapsed = time.monotonic() - began
            assert found["expired"] - before <= elapsed / 0.5 + 1
            assert sum(found[outcome] for outcome in ("satisfied", "completed_at_once", "cancelled", "failed")) == 0

    def test_waiting_query_can_be_stopped(self, source: SparkSession, tmp_path: Path) -> None:
        with running(tmp_path / "data") as server:
            with _following(source, server, "silent", {}, tmp_path / "checkpoint", wait=100) as query:
                _until(query, lambda: _fetches(server)["num_delayed"] == 1)
                began = time.monotonic()
            assert time.monotonic() - began < 10
            until(lambda: _fetches(server)["num_delayed"] == 0)  # no client waits there any more


class TestBatch:
    def test_everything_up_to_the_end_in_tasks(self, source: SparkSession, server: ServerProcess) -> None:
        odd: list[Any] = [
            'quotes " and \\ and \u0000',
            "Größe 漢字 🦉",
            "\ud800",
            None,
            {"a": [1.5, 1e300, 2**70]},
            "",
            [],
        ]
        _publish(server, "odd.topic-1_A", *odd)
        rows = _read(source, server, "odd.topic-1_A", maxMessagesPerBatch=3)
        assert rows.rdd.getNumPartitions() == 3
        found = [tuple(row) for row in rows.collect()]
        assert [(topic, offset) for topic, offset, _ in found] == [("odd.topic-1_A", number) for number in range(7)]
        assert [json.loads(value) for _, _, value in found] == odd

    def test_a_start_beyond_the_end_is_refused(self, source: SparkSession, server: ServerProcess) -> None:
        with pytest.raises(PySparkException, match="startingOffset is 1, and the topic empty ends at 0"):
            _read(source, server, "empty", startingOffset=1).collect()

    def test_a_topic_without_messages_has_no_rows(self, source: SparkSession, server: ServerProcess) -> None:
        assert _read(source, server, "empty").collect() == []


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"url": ""}, "the option url is missing"),
            ({"topic": ""}, "the option topic is missing"),
            ({"url": "127.0.0.1:8000"}, "the option url must be like"),
            ({"topic": "Größe"}, "the option topic must be"),
            ({"topic": ".."}, "the option topic must be"),
            ({"startingOffset": "first"}, "the option startingOffset must be"),
            ({"wait": "0"}, "the option wait must be"),
            ({"wait": "long"}, "the option wait must be"),
            ({"maxMessagesPerBatch": "0"}, "the option maxMessagesPerBatch must be"),
            ({"offset": "3"}, "unknown option offset"),
        ],
    )
    def test_options_that_cannot_be(self, source: SparkSession, options: dict[str, str], message: str) -> None:
        given = {"url": "http://127.0.0.1:9", "topic": "news", **options}
        with pytest.raises(AnalysisException, match=message):
            source.readStream.format("purgatory").options(**given).load()

    def test_a_refusal_of_the_server_is_raised(self, source: SparkSession, server: ServerProcess) -> None:
        rows = source.read.format("purgatory").options(url=f"{server.url}/elsewhere", topic="news").load()
        with pytest.raises(PySparkException, match="elsewhere answers 404: Not Found"):
            rows.collect()

    def test_another_schema(self, source: SparkSession, server: ServerProcess) -> None:
        reader = source.read.schema("value string").format("purgatory").options(url=server.url, topic="news")
        with pytest.raises(PySparkException, match="the schema must be topic string, offset bigint, value string"):
            reader.load().collect()
