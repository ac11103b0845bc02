"""A topic of the long-poll server as a source of Spark, for streams and for batches.

    register(spark)
    rows = spark.readStream.format("purgatory").option("url", "http://127.0.0.1:8000").option("topic", "news").load()

The columns are `topic`, `offset`, and `value`, which is JSON text. The options:

- `url` and `topic`: the server and the topic to read. They must be given.
- `startingOffset`: the first offset of a batch, or of a stream without a checkpoint: `earliest`, the default, `latest`,
  or a number, which must not be beyond the topic's end. Spark notes the offset with the first batch, and not before.
- `wait`: seconds that a poll waits for messages, at the most (10). An idle stream sends one request in that time.
- `maxMessagesPerBatch`: the most messages of a micro-batch (100000). A batch has a task for each so many.

A stream's offsets are the topic's. With a checkpoint, and a sink that skips the batches it has written already, each
message is read exactly once. Each poll begins with the last message that has been read: if the topic does not have it
any more, messages were lost, and the query fails. The query also fails if the server refuses a request. A server that
cannot be reached, is busy or is being restarted is tried again, for about two minutes.

A poll does not hold up the end of the query: `query.stop()` ends it, and the server forgets it.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType
from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import parse_url

from purgatory.spark.errors import PipelineError

__all__ = ["TopicSource", "register"]

Row: TypeAlias = tuple[str, int, str]

_SCHEMA: Final = "topic string, offset bigint, value string"

_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""The server's pattern of a topic's name. Other text might be taken for another path."""

_PAGE: Final = 10_000
"""Messages of a request: the most that the server takes."""

_MAX_OFFSET: Final = 2**62

_MAX_WAIT: Final = 300.0

_PATIENCE: Final = 10.0
"""The time limit of a connection, and of an answer beyond its `wait`, in seconds."""

_RETRIES: Final = Retry(total=30, backoff_factor=0.5, backoff_max=5, status_forcelist=(502, 503, 504))


def register(spark: SparkSession) -> None:
    """Make the format `purgatory` known to a session."""
    spark.dataSource.register(TopicSource)


class TopicSource(DataSource):
    """The format `purgatory`. Raises `PipelineError`, which names the option, for impossible options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._topic = _topic({name.lower(): value for name, value in options.items()})

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "purgatory"

    def schema(self) -> str:
        """The columns, in Spark's words."""
        return _SCHEMA

    def reader(self, schema: StructType) -> "TopicReader":
        """A reader up to the end that the topic has when the query is planned."""
        _check_schema(schema)
        return TopicReader(self._topic)

    def simpleStreamReader(self, schema: StructType) -> "TopicStreamReader":  # noqa: N802
        """A reader that follows the topic."""
        _check_schema(schema)
        return TopicStreamReader(self._topic)


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic, and the options for reading it."""

    url: str
    """The URL of the server."""
    name: str
    starting: str
    wait: float
    most: int
    """Messages of a micro-batch, or of a task."""

    def start(self) -> int:
        """The offset to begin at."""
        if self.starting == "latest":
            return self.end()
        return 0 if self.starting == "earliest" else int(self.starting)

    def end(self) -> int:
        """The offset that the next message will have."""
        # The server has no request for it. A search takes some sixty requests for one message, or none.
        return bisect_left(range(_MAX_OFFSET), True, key=lambda offset: not self._fetch(offset, 1, 0, 0.0))

    def poll(self, start: int) -> list[Row]:
        """The messages from `start` on, after a wait for the first of them; none if none comes in time."""
        before = min(start, 1)  # the last message that has been read already must still be there
        page = self._fetch(start - before, min(_PAGE, self.most + before), 1 + before, self.wait)
        if len(page) < before:
            raise PipelineError(f"the topic {self.name} of {self.url} ends before offset {start}: messages were lost")
        rows = page[before:]
        while len(page) == _PAGE and len(rows) < self.most:
            page = self._fetch(start + len(rows), min(_PAGE, self.most - len(rows)), 0, 0.0)
            rows += page
        return rows

    def between(self, start: int, end: int) -> Iterator[Row]:
        """Exactly the messages from `start` to before `end`."""
        while start < end:
            page = self._fetch(start, min(_PAGE, end - start), 0, 0.0)
            if not page:
                raise PipelineError(
                    f"the topic {self.name} of {self.url} ends at {start}, before {end}: messages were lost"
                )
            yield from page
            start += len(page)

    def _fetch(self, offset: int, most: int, least: int, wait: float) -> list[Row]:
        """Up to `most` messages from `offset`, and `least`, unless `wait` seconds have passed."""
        parameters = {"offset": offset, "max_messages": most, "min_messages": least, "wait": wait}
        url = f"{self.url}/topics/{self.name}/messages?{urlencode(parameters)}"
        try:
            response = _pool().request("GET", url, timeout=Timeout(_PATIENCE, wait + _PATIENCE))
        except HTTPError as error:
            raise PipelineError(f"{self.url} cannot be read from: {error}") from error
        try:
            answer: Any = response.json()
            if response.status != 200:
                raise PipelineError(f"{self.url} answers {response.status}: {answer['error']}")
            messages = [(message["offset"], message["value"]) for message in answer["messages"]]
        except (ValueError, KeyError, TypeError):
            raise PipelineError(
                f"{self.url} is no long-poll server: {response.status} {response.data[:200]!r}"
            ) from None
        if [number for number, _ in messages] != list(range(offset, offset + len(messages))):
            raise PipelineError(f"{self.url} does not have the messages from {offset} in their order")
        # As the server has it: with escapes, because not every string can be written in UTF-8.
        return [(self.name, number, json.dumps(value, separators=(",", ":"))) for number, value in messages]


class TopicStreamReader(SimpleDataSourceStreamReader):
    """Reads micro-batches. Spark calls it in a process of its own beside the driver."""

    def __init__(self, topic: _Topic) -> None:
        self._topic = topic
        self._start: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """The first offset of a stream without a checkpoint. Spark calls this until it has seen a message."""
        if self._start is None:
            self._start = self._topic.start()
        return {"offset": self._start}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
        """The messages from `start` on, and the offset of the next one. Waits for the first of them."""
        rows = self._topic.poll(start["offset"])
        return iter(rows), {"offset": start["offset"] + len(rows)}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        """The same messages once more."""
        return self._topic.between(start["offset"], end["offset"])


@dataclass(frozen=True, slots=True)
class _Range(InputPartition):
    start: int
    end: int


class TopicReader(DataSourceReader):
    """Reads a batch."""

    def __init__(self, topic: _Topic) -> None:
        self._topic = topic

    def partitions(self) -> Sequence[InputPartition]:
        """The range of offsets of each task."""
        most, first, end = self._topic.most, self._topic.start(), self._topic.end()
        if first > end:
            raise PipelineError(f"the option startingOffset is {first}, and the topic {self._topic.name} ends at {end}")
        parts = [_Range(start, min(start + most, end)) for start in range(first, end, most)]
        return parts or [_Range(end, end)]  # without any, Spark makes one that is `None`

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The messages of a task."""
        assert isinstance(partition, _Range)
        return self._topic.between(partition.start, partition.end)


@lru_cache(maxsize=1)
def _pool() -> PoolManager:
    """The connections of this process."""
    return PoolManager(retries=_RETRIES)


def _check_schema(schema: StructType) -> None:
    found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    if found != _SCHEMA:
        raise PipelineError(f"the schema must be {_SCHEMA}, and not {found}")


def _topic(options: Mapping[str, str]) -> _Topic:
    """The topic of the options, whose names are in lower case."""
    known = ("url", "topic", "startingOffset", "wait", "maxMessagesPerBatch")
    for name in options:
        if name not in map(str.lower, known):
            raise PipelineError(f"unknown option {name}; there are {', '.join(known)}")
    for name in ("url", "topic"):
        if not options.get(name):
            raise PipelineError(f"the option {name} is missing")
    url, topic = options["url"].rstrip("/"), options["topic"]
    if not _is_http(url):
        raise PipelineError(f"the option url must be like http://127.0.0.1:8000, not {url!r}")
    if not _NAME.fullmatch(topic):
        raise PipelineError(
            f"the option topic must be 1 to 249 of the characters A-Z a-z 0-9 . _ - and not . or .., not {topic!r}"
        )
    starting = options.get("startingoffset", "earliest")
    if starting not in ("earliest", "latest") and not _is_number(starting, 0, _MAX_OFFSET):
        raise PipelineError(f"the option startingOffset must be earliest, latest or a number, not {starting!r}")
    most = options.get("maxmessagesperbatch", "100000")
    if not _is_number(most, 1, _MAX_OFFSET):
        raise PipelineError(f"the option maxMessagesPerBatch must be a number of at least 1, not {most!r}")
    return _Topic(url, topic, starting, _seconds(options.get("wait", "10")), int(most))


def _is_http(url: str) -> bool:
    try:
        parsed = parse_url(url)
    except LocationParseError:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host) and not (parsed.query or parsed.fragment)


def _is_number(text: str, least: int, most: int) -> bool:
    return re.fullmatch(r"[0-9]{1,19}", text) is not None and least <= int(text) <= most


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= _MAX_WAIT:
        raise PipelineError(f"the option wait must be a number of seconds from 0.1 to {_MAX_WAIT:g}, not {text!r}")
    return seconds
