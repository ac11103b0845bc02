"""A stream of a Durable Streams server as a source of Spark, for streams and for batches.

    register(spark)
    rows = spark.readStream.format("purgatory").option("url", "http://127.0.0.1:4437/v1/stream/news").load()

The server is `purgatory serve` or any other server of the protocol, and the stream has the type `application/json`. The
columns:

- `stream`: the option `url`.
- `position`: the number of messages between `startingOffset` and this one. With `earliest`, it numbers the messages of
  the stream from 0.
- `value`: the message as JSON text, as the server stores it.

The options:

- `url`: the stream to read. It is required.
- `startingOffset`: the first offset of a batch, or of a stream without a checkpoint: `earliest` (the default),
  `latest`, or an offset from the server. Spark notes it with the first batch.
- `wait`: the most seconds that a micro-batch waits for messages (10). If a query has several streams, Spark waits for
  one after the other.
- `maxMessagesPerBatch`: a micro-batch ends with the response in which it reaches so many messages (100000), or 64 MiB.

A micro-batch consists of whole responses, and each of its tasks of about 2 MiB of them. The driver reads each response
to count its messages, because offsets are opaque, and the executors read it again to make rows of it.

With a checkpoint, and a sink that skips the batches it has already written, each message is read exactly once. The
checkpoint stores where each task begins and how many messages it has. The trigger `availableNow` reads all messages
that the stream has when the query begins.

In the progress of a query, the query is behind unless `endOffset` and `latestOffset` have the same `offset`.

The query fails if the server refuses a request, for example because the stream was deleted, or if the stream ends
before a place that was read. A new stream at the same URL, with at least as many messages, looks like the old one. If
the server is away or busy, requests are repeated for about two minutes. While no message comes, there is one request in
each `wait`. `query.stop()` ends a poll at once.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from purgatory._extras import missing
from purgatory.spark.errors import PipelineError
from purgatory.spark.reading import BEGINNING, NOW, JsonStream, Page, Place, Plan

try:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType
    from urllib3.exceptions import LocationParseError
    from urllib3.util import parse_url
except ModuleNotFoundError as _error:
    raise missing(_error, "spark") from None

__all__ = ["StreamSource", "register"]

_SCHEMA: Final = "stream string, position bigint, value string"

_NAMED: Final = {"earliest": BEGINNING, "latest": NOW}

_OFFSET: Final = re.compile(r"[^,&=?/]{1,1000}")
"""The protocol has no other offsets, and recommends fewer characters."""

_MAX_MESSAGES: Final = 2**62

_MAX_WAIT: Final = 300.0

_SILENCE: Final = 60.0
"""Seconds of polls without an answer, after which a read without a wait shows whether the server is alive."""

_SILENT_WAITS: Final = 10
"""The same in waits, because with a short wait, a poll may be given up although its answer comes."""


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of a source."""

    stream: JsonStream
    starting: str
    """An offset, or the protocol's name of one."""
    wait: float
    max_messages: int
    """Messages of a micro-batch."""

    def start(self) -> Place:
        """Return the place to begin at."""
        return Place(self.stream.end() if self.starting == NOW else self.starting, 0)


def register(spark: SparkSession) -> None:
    """Register the format `purgatory` with a session."""
    spark.dataSource.register(StreamSource)


class StreamSource(DataSource):
    """The format `purgatory`, which Spark makes. Impossible options raise `PipelineError`, which names the option.

    For example:

        register(spark)
        rows = spark.read.format("purgatory").option("url", "http://127.0.0.1:4437/v1/stream/news").load()
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = _options({name.lower(): value for name, value in options.items()})

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "purgatory"

    def schema(self) -> str:
        """Return the columns as Spark's DDL. Raise `PipelineError` if there is no such stream, or it isn't JSON."""
        self._options.stream.end()
        return _SCHEMA

    def reader(self, schema: StructType) -> "BatchReader":
        """Return a reader up to the end that the stream has when the query is planned."""
        _check_schema(schema)
        return BatchReader(self._options)

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802
        """Return a reader that follows the stream."""
        _check_schema(schema)
        return StreamReader(self._options)


@dataclass(frozen=True, slots=True)
class Range(InputPartition):
    """The messages of a task."""

    start: Place
    end: int
    """A position."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches, in a separate process next to the driver, and reads their tasks in the executors.

    An offset of Spark contains the place behind a micro-batch, and the places at which its tasks begin. So the
    checkpoint stores everything that is needed to read the micro-batch again.
    """

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._stream = options.stream
        self._start: dict[str, Any] | None = None
        self._until: str | None = None
        """The offset behind which the query ends."""
        self._page: Page | None = None
        """The last response."""
        self._at = ""
        """The offset from which Spark goes on after it."""
        self._answered = 0.0
        """When it came."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the first place of a stream without a checkpoint. Spark calls it until it has noted a batch."""
        if self._start is None:
            self._start = _offset(Plan(self._options.start()))
        return self._start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the option `maxMessagesPerBatch`."""
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query where the stream ends now."""
        self._until = self._stream.end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the place behind the next micro-batch, or `start` if no message comes within the wait."""
        place = _place(start)
        max_messages, until = None, self._until
        if isinstance(limit, ReadMaxRows):
            max_messages = limit.max_rows
        elif until is None:  # the trigger is `once`
            until = self._stream.end()
        if place.offset == until:
            return start
        page = self._next(place.offset) if until is None else self._stream.get(place.offset)
        if page is None:
            return start
        plan = Plan(place)
        self._page = plan.fill(self._stream, page, max_messages, until)
        # Without messages the offset must stay the same, because Spark would make a batch of a change.
        end = _offset(plan) if plan.tasks else start
        self._at = end["offset"]
        if self._until is not None:
            self._until = max(self._until, self._at)
        return end

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the stream, from the last response or, if that did not reach it, from the server."""
        page = self._page
        return {"offset": page.end if page is not None and page.up_to_date else self._stream.end()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        if start == end:
            return []
        place = _place(end)
        return _ranges([Place(*task) for task in end["tasks"].items()], place)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the messages of a task."""
        assert isinstance(partition, Range)
        return self._stream.between(partition.start, partition.end)

    def _next(self, offset: str) -> Page | None:
        """Return the next response, with one request, or `None` if there is none within the wait."""
        last = self._page if offset == self._at else None
        if last is not None and last.closed:
            time.sleep(self._options.wait)  # Spark asks again at once
            return None
        silence = min(_SILENT_WAITS * self._options.wait, _SILENCE)
        if last is None or not last.up_to_date or time.monotonic() - self._answered > silence:
            page: Page | None = self._stream.get(offset if last is None else last.end)
        else:
            page = self._stream.poll(last.end, last.cursor, self._options.wait)
        if page is not None:
            self._answered = time.monotonic()
        return page


class BatchReader(DataSourceReader):
    """Reads a batch."""

    def __init__(self, options: _Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        stream = self._options.stream
        plan = Plan(self._options.start())
        until = stream.end()
        plan.fill(stream, stream.get(plan.end.offset), None, until)
        return _ranges(plan.tasks or [plan.end], plan.end)  # Spark doesn't accept a batch without a task

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the messages of a task."""
        assert isinstance(partition, Range)
        return self._options.stream.between(partition.start, partition.end)


def _ranges(tasks: list[Place], end: Place) -> list[Range]:
    return [Range(start, following.position) for start, following in pairwise([*tasks, end])]


def _offset(plan: Plan) -> dict[str, Any]:
    """Return the offset of a plan that Spark notes in the checkpoint."""
    return {**plan.end._asdict(), "tasks": dict(plan.tasks)}


def _place(offset: dict[str, Any]) -> Place:
    if offset.keys() != {"offset", "position", "tasks"}:
        raise PipelineError(f"the checkpoint belongs to another source: its offset is {offset}")
    return Place(offset["offset"], offset["position"])


def _check_schema(schema: StructType) -> None:
    found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    if found != _SCHEMA:
        raise PipelineError(f"the schema must be {_SCHEMA}, not {found}")


def _options(options: Mapping[str, str]) -> _Options:
    """Check the options, whose names are in lower case."""
    supported = ("url", "startingOffset", "wait", "maxMessagesPerBatch")
    for name in options:
        if name not in map(str.lower, supported):
            raise PipelineError(f"unknown option {name}: use {', '.join(supported)}")
    url = options.get("url")
    if not url:
        raise PipelineError('the option url is missing: call .option("url", "http://127.0.0.1:4437/v1/stream/news")')
    _check_url(url)
    starting = options.get("startingoffset", "earliest")
    starting = _NAMED.get(starting, starting)
    if not _OFFSET.fullmatch(starting):
        raise PipelineError(
            f"the option startingOffset must be earliest, latest or an offset of the stream, not {starting!r}"
        )
    max_messages = options.get("maxmessagesperbatch", "100000")
    if not re.fullmatch(r"[0-9]{1,19}", max_messages) or not 1 <= int(max_messages) <= _MAX_MESSAGES:
        raise PipelineError(f"the option maxMessagesPerBatch must be a number of at least 1, not {max_messages!r}")
    return _Options(JsonStream(url), starting, _seconds(options.get("wait", "10")), int(max_messages))


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
