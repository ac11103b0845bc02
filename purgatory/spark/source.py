"""A stream of a Durable Streams server as a source of Spark, for streams and for batches.

    register(spark)
    rows = spark.readStream.format("purgatory").option("url", "http://127.0.0.1:4437/v1/stream/news").load()

The server is `purgatory serve`, or any other of the protocol. The stream is one of `application/json`. The columns:

- `stream`: the option `url`.
- `position`: how many messages are between `startingOffset` and this one. With `earliest`, it numbers the stream's
  messages from 0 on, in every query alike.
- `value`: the message, which is JSON text, as the server has it.

The options:

- `url`: the stream to read. It must be given.
- `startingOffset`: the first offset of a batch, or of a stream without a checkpoint: `earliest`, the default, `latest`,
  or an offset that the server has given. Spark notes it with the first batch, and not before.
- `wait`: seconds that a micro-batch waits for messages, at the most (10). If a query has several streams, Spark waits
  for one after the other.
- `maxMessagesPerBatch`: the most messages of a micro-batch (100000). A micro-batch also ends with the response in which
  it exceeds 64 Mi characters. A batch has a task for each so many messages, or for a response with more.

With a checkpoint, and a sink that skips the batches it has written already, each message is read exactly once. An
offset of Spark's is a `Place` of `purgatory.spark.reading`, which has the reasons. The columns of a batch follow from
its two offsets and from the stream: a repeated batch has the same rows.

The query fails if the server refuses a request, as it does if the stream was deleted, and if the stream ends before a
place that was read. A stream that was made anew, with at least as many messages, cannot be told from the old one. A
server that cannot be reached, is busy or is being restarted is tried again, for about two minutes. When all messages of
a closed stream are read, there are no more requests.

A poll does not hold up the end of the query: `query.stop()` ends it, and the server forgets it. With the triggers
`once` and `availableNow`, a query reads one micro-batch.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from purgatory.spark.errors import PipelineError
from purgatory.spark.reading import BEGINNING, NOW, JsonStream, Place, Reading

__all__ = ["StreamSource", "register"]

_SCHEMA: Final = "stream string, position bigint, value string"

_NAMED: Final = {"earliest": BEGINNING, "latest": NOW}

_OFFSET: Final = re.compile(r"[^,&=?/]{1,1000}")
"""The protocol has no other offsets, and recommends fewer characters."""

_MAX_MESSAGES: Final = 2**62

_MAX_WAIT: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of a source."""

    stream: JsonStream
    starting: str
    """An offset, or the protocol's name of one."""
    wait: float
    most: int
    """Messages of a micro-batch, or of a task."""

    def start(self) -> Place:
        """The place to begin at."""
        return Place(self.stream.end() if self.starting == NOW else self.starting, 0, 0)


def register(spark: SparkSession) -> None:
    """Make the format `purgatory` known to a session."""
    spark.dataSource.register(StreamSource)


class StreamSource(DataSource):
    """The format `purgatory`. Raises `PipelineError`, which names the option, for impossible options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = _options({name.lower(): value for name, value in options.items()})

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "purgatory"

    def schema(self) -> str:
        """The columns, in Spark's words. Raises `PipelineError` if there is no such stream, or none of JSON."""
        self._options.stream.end()
        return _SCHEMA

    def reader(self, schema: StructType) -> "BatchReader":
        """A reader up to the end that the stream has when the query is planned."""
        _check_schema(schema)
        return BatchReader(self._options)

    def simpleStreamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802
        """A reader that follows the stream."""
        _check_schema(schema)
        return StreamReader(self._options)


class StreamReader(SimpleDataSourceStreamReader):
    """Reads micro-batches. Spark calls it in a process of its own beside the driver."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._start: Place | None = None
        self._reading: Reading | None = None
        self._end: dict[str, Any] | None = None
        """Where Spark is when `_reading` is there."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The first place of a stream without a checkpoint. Spark calls this until it has seen a message."""
        if self._start is None:
            self._start = self._options.start()
        return self._start._asdict()

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        """The messages from `start` on, and the place behind them. Waits for the first of them."""
        if self._reading is None or start != self._end:
            self._reading = Reading(self._options.stream, _place(start))
        rows = self._reading.read(self._options.most, self._options.wait)
        # Without messages the place must stay as it is: Spark would make a batch of a change.
        self._end = self._reading.place._asdict() if rows else start
        if not rows and self._reading.closed:
            time.sleep(self._options.wait)  # Spark asks again at once
        return iter(rows), self._end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        """The same messages once more."""
        return self._options.stream.between(_place(start), _place(end).position)


@dataclass(frozen=True, slots=True)
class Range(InputPartition):
    """The messages of a task."""

    start: Place
    end: int
    """A position."""


class BatchReader(DataSourceReader):
    """Reads a batch."""

    def __init__(self, options: _Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The range of each task. They are found by reading the stream, as offsets are opaque."""
        reading = Reading(self._options.stream, self._options.start())
        end = self._options.stream.end()
        places = [reading.place]
        while reading.has_more():
            reading.take()  # ranges end with responses: no task reads one to skip a part of it
            if reading.place.position - places[-1].position >= self._options.most:
                places.append(reading.place)
            if reading.place.offset >= end:  # the protocol's offsets compare as strings
                break
        if len(places) == 1 or places[-1] != reading.place:
            places.append(reading.place)
        return [Range(start, following.position) for start, following in pairwise(places)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The messages of a task."""
        assert isinstance(partition, Range)
        return self._options.stream.between(partition.start, partition.end)


def _place(offset: dict[str, Any]) -> Place:
    try:
        return Place(**offset)
    except TypeError:
        raise PipelineError(f"the checkpoint is of another source: its offset is {offset}") from None


def _check_schema(schema: StructType) -> None:
    found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    if found != _SCHEMA:
        raise PipelineError(f"the schema must be {_SCHEMA}, and not {found}")


def _options(options: Mapping[str, str]) -> _Options:
    """The options, checked. Their names are in lower case."""
    known = ("url", "startingOffset", "wait", "maxMessagesPerBatch")
    for name in options:
        if name not in map(str.lower, known):
            raise PipelineError(f"unknown option {name}; there are {', '.join(known)}")
    url = options.get("url")
    if not url:
        raise PipelineError("the option url is missing")
    _check_url(url)
    starting = options.get("startingoffset", "earliest")
    starting = _NAMED.get(starting, starting)
    if not _OFFSET.fullmatch(starting):
        raise PipelineError(
            f"the option startingOffset must be earliest, latest or an offset of the stream, not {starting!r}"
        )
    most = options.get("maxmessagesperbatch", "100000")
    if not re.fullmatch(r"[0-9]{1,19}", most) or not 1 <= int(most) <= _MAX_MESSAGES:
        raise PipelineError(f"the option maxMessagesPerBatch must be a number of at least 1, not {most!r}")
    return _Options(JsonStream(url), starting, _seconds(options.get("wait", "10")), int(most))


def _check_url(url: str) -> None:
    try:
        parsed = parse_url(url)
    except LocationParseError:
        parsed = parse_url("")
    if parsed.auth is not None:
        raise PipelineError("the option url must have no user and no password")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise PipelineError(f"the option url must be like http://127.0.0.1:4437/v1/stream/news, not {url!r}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= _MAX_WAIT:
        raise PipelineError(f"the option wait must be a number of seconds from 0.1 to {_MAX_WAIT:g}, not {text!r}")
    return seconds
