"""Reads a stream of JSON from a Durable Streams server, so that each part of it can be read again exactly.

Offsets of the protocol do not suffice for that. They are opaque, so they count nothing. And at each offset a server may
answer with more or fewer messages than before: a stream grows, and a server may cut its responses differently after a
restart. A `Place` is an offset and the number of messages before it. The number of messages between two places is the
difference of their positions, however responses are cut, because messages never change.

A `Plan` finds such places. It reads responses, counts their messages, and keeps none of them. Without the counts, a
task could not tell which of its messages belong to the next task.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from urllib3 import BaseHTTPResponse, PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError, ReadTimeoutError

from purgatory.spark.errors import PipelineError

BEGINNING: Final = "-1"
NOW: Final = "now"
"""The protocol's names of a stream's beginning, and of its end."""

_TASK: Final = 2 * 1024 * 1024
"""Bytes of responses after which the next response goes to another task."""

_SIZE: Final = 64 * 1024 * 1024
"""Bytes of responses after which a micro-batch ends."""

_PATIENCE: Final = 10.0
"""The timeout of connecting, and of an answer that does not wait, in seconds."""

_RETRYING: Final[dict[str, Any]] = {
    "total": 30,
    "backoff_factor": 0.5,
    "backoff_max": 5,
    "status_forcelist": (429, 502, 503, 504),
    "respect_retry_after_header": False,  # with a header of one second, 30 retries would last half a minute
}
"""Retries for about two minutes."""


class _PollRetry(Retry):
    """The retries of a long poll, which is not repeated after its timeout."""

    def increment(self, *arguments: Any, **named: Any) -> Self:
        """Return the remaining retries. Raise `ReadTimeoutError` if that was the error."""
        if isinstance(named.get("error"), ReadTimeoutError):
            raise named["error"]
        return super().increment(*arguments, **named)


class Place(NamedTuple):
    """A place between the messages of a stream."""

    offset: str
    """An offset from the server."""
    position: int
    """The number of messages between the first place and this one."""


@dataclass(frozen=True, slots=True)
class Page:
    """A response of the server."""

    body: bytes
    """An array of JSON."""
    cuts: NDArray[np.int32]
    """The indexes in `body` at which its messages begin, and at which the last message ends."""
    end: str
    """The offset after the messages."""
    up_to_date: bool
    """Whether that was the end of the stream."""
    closed: bool
    """Whether the stream is closed, so that this is its final end."""
    cursor: str | None

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def messages(self) -> pa.StringArray:
        """Return the texts of the messages as the server sent them, so that no number is rounded."""
        texts = pa.StringArray.from_buffers(len(self), pa.py_buffer(self.cuts), pa.py_buffer(self.body))
        texts.validate(full=True)  # is it UTF-8?
        return pc.ascii_trim(texts, characters=" \t\r\n,")


@dataclass(frozen=True, slots=True)
class JsonStream:
    """A stream of `application/json`. Its methods raise `PipelineError` for unusable answers.

    If the server is away or busy, requests are repeated for about two minutes.
    """

    url: str

    def end(self) -> str:
        """Return the offset at the end."""
        return self.get(NOW).end

    def get(self, offset: str) -> Page:
        """Return messages after an offset, from the first one on."""
        return self._page(offset, self._request({"offset": offset}, _PATIENCE, Retry(**_RETRYING)))

    def poll(self, offset: str, cursor: str | None, wait: float) -> Page | None:
        """Do the same as `get`, but wait for a message. Return `None` if there is no answer in `wait` seconds."""
        parameters = {"offset": offset, "live": "long-poll"}
        if cursor is not None:
            parameters["cursor"] = cursor
        try:
            return self._page(offset, self._request(parameters, wait, _PollRetry(**_RETRYING)))
        except ReadTimeoutError:
            return None

    def between(self, start: Place, end: int) -> Iterator[pa.RecordBatch]:
        """Yield exactly the messages from a place to a position: the URL, their positions, and their texts."""
        offset, position = start
        while (left := end - position) > 0:
            page = self.get(offset)
            count = min(left, len(page))
            if count < left and page.up_to_date:
                raise self.lost(f"{left - count} messages before position {end}")
            try:
                texts = page.messages()[:count]
            except ValueError as error:
                raise self._no_array(offset, error) from None
            columns = [pa.repeat(self.url, count), pa.array(np.arange(position, position + count)), texts]
            yield pa.RecordBatch.from_arrays(columns, names=["stream", "position", "value"])
            offset, position = page.end, position + count

    def _request(self, parameters: dict[str, str], limit: float, retries: Retry) -> BaseHTTPResponse:
        url = f"{self.url}?{urlencode(sorted(parameters.items()))}"  # in this order, a cache has it once
        try:
            return _pool().request("GET", url, timeout=Timeout(connect=_PATIENCE, read=limit), retries=retries)
        except ReadTimeoutError:
            raise
        except HTTPError as error:
            raise PipelineError(f"{self.url} cannot be read from: {error}") from error

    def _page(self, offset: str, response: BaseHTTPResponse) -> Page:
        body = b"[]"
        if response.status == 200:
            kind = response.headers.get("Content-Type", "")
            if kind.partition(";")[0].strip().lower() != "application/json":
                raise PipelineError(f"the option url must name a stream of application/json, not of {kind!r}")
            body = response.data
        elif response.status != 204:
            reason = response.data[:200].decode("utf-8", "replace")
            if response.status in (400, 404, 410):
                reason += " (do startingOffset and the checkpoint belong to this stream?)"
            raise PipelineError(f"{self.url} answers {response.status} at offset {offset}: {reason}")
        end = response.headers.get("Stream-Next-Offset")
        if end is None:
            raise PipelineError(f"{self.url} is not a stream: its answer has no Stream-Next-Offset")
        try:
            cuts = _cuts(body)
        except ValueError as error:
            raise self._no_array(offset, error) from None
        closed = _is_true(response.headers.get("Stream-Closed"))
        up_to_date = closed or _is_true(response.headers.get("Stream-Up-To-Date"))
        page = Page(body, cuts, end, up_to_date, closed, response.headers.get("Stream-Cursor"))
        if offset not in (BEGINNING, NOW) and end < offset:  # offsets compare as strings
            raise self.lost(f"at {end}, before {offset}")
        if end == offset and (len(page) or not up_to_date):
            raise PipelineError(f"{self.url} is not a stream: its answers do not go on from {offset}")
        return page

    def _no_array(self, offset: str, error: ValueError) -> PipelineError:
        return PipelineError(f"{self.url} must answer with an array of JSON at offset {offset}: {error}")

    def lost(self, where: str) -> PipelineError:
        """Return the error for a stream that ends too early."""
        return PipelineError(f"{self.url} ends {where}: messages were lost")


@dataclass(slots=True)
class Plan:
    """The tasks that read a part of a stream. Each reads whole responses, as they are cut when it is planned."""

    end: Place
    """The place behind all messages."""
    tasks: list[Place] = field(default_factory=list)
    """The place at which each task begins."""

    def fill(self, stream: JsonStream, page: Page, max_messages: int | None, until: str | None) -> Page:
        """Plan tasks for the response `page`, at the offset of `end`, and the responses after it. Return the last one.

        The last response reaches the offset `until` (the end of the stream if it is `None`), or completes 64 MiB or
        `max_messages` messages, unless that is `None`.
        """
        first = self.end.position
        size = task = 0
        while True:
            if len(page):
                if task == 0:
                    self.tasks.append(self.end)
                size += len(page.body)
                task += len(page.body)
                if task >= _TASK:
                    task = 0
            self.end = Place(page.end, self.end.position + len(page))
            full = max_messages is not None and (self.end.position - first >= max_messages or size >= _SIZE)
            if full or (page.up_to_date if until is None else page.end >= until):
                return page
            offset = page.end
            page = stream.get(offset)
            if until is not None and page.end == offset:
                raise stream.lost(f"at {offset}, before {until}")


@lru_cache(maxsize=1)
def _pool() -> PoolManager:
    """Return the connections of this process."""
    return PoolManager()


def _is_true(header: str | None) -> bool:
    return header is not None and header.lower() == "true"


_LONGEST: Final = 2**31 - 1
_SPACE: Final = b" \t\r\n"
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_QUOTE, _COMMA, _OPEN, _CLOSE = range(1, 5)
_MARKS: Final = {'"': _QUOTE, ",": _COMMA, "[": _OPEN, "{": _OPEN, "]": _CLOSE, "}": _CLOSE}
_KINDS: Final = bytes(_MARKS.get(chr(byte), 0) for byte in range(256))
"""The kind of each byte."""
_DEPTHS: Final = np.array([0, 0, 0, 1, -1], np.int8)
"""The change of the depth at each kind."""


def _cuts(body: bytes) -> NDArray[np.int32]:
    """Return the indexes at which the elements of an array of JSON begin, and at which the last one ends.

    They are behind the commas at depth 1. The elements are not parsed, because the protocol says that the server has
    checked them. In NumPy that takes 6 ns a byte. A decoder that is called for each element takes 20 to 180.
    """
    if len(body) > _LONGEST:
        raise ValueError(f"the response has {len(body)} bytes, and Arrow takes at most {_LONGEST}")
    first, last = len(body) - len(body.lstrip(_SPACE)), len(body.rstrip(_SPACE)) - 1
    if body[first : first + 1] != b"[":
        raise ValueError(f"the response begins with {body[:100].decode('utf-8', 'replace')!r}")
    text = _ESCAPE.sub(b"..", body) if b"\\" in body else body
    kinds = np.frombuffer(text.translate(_KINDS), np.uint8)
    places = np.flatnonzero(kinds)
    kinds = kinds[places]
    quotes = kinds == _QUOTE
    outside = ~(np.logical_xor.accumulate(quotes) | quotes)
    kinds, places = kinds[outside], places[outside]
    depths = np.cumsum(_DEPTHS[kinds], dtype=np.int32)
    if places[-1] != last or depths[-1] != 0 or not depths[:-1].all():
        ending = body[-100:].decode("utf-8", "replace")
        raise ValueError(f"the response ends with {ending!r}, not with the array's last bracket")
    commas = places[(kinds == _COMMA) & (depths == 1)] + 1
    empty = not len(commas) and not body[first + 1 : last].strip(_SPACE)
    return np.concatenate(([first + 1], commas, [] if empty else [last])).astype(np.int32)
