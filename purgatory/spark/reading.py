"""Reads a stream of JSON from a Durable Streams server, so that each part of it can be read again exactly.

Offsets of the protocol do not suffice for that. They are opaque, so they count nothing, and at each offset a server may
answer with more or fewer messages than before. A `Place` has an offset and the number of messages after it, as
`Stream-Fork-Sub-Offset` counts them: it is the same place however the responses are cut, because the messages of a
stream never change. It also has a position, which counts messages from where the first reader began: between two places
are as many messages as their positions differ by.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self, TypeAlias
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse, PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError, ReadTimeoutError

from purgatory.spark.errors import PipelineError

__all__ = ["BEGINNING", "NOW", "JsonStream", "Place", "Reading", "Row"]

Row: TypeAlias = tuple[str, int, str]
"""The stream's URL, the message's position, and its text."""

BEGINNING: Final = "-1"
NOW: Final = "now"
"""The protocol's names of a stream's beginning, and of its end."""

_SIZE: Final = 64 * 1024 * 1024
"""Characters of messages after which a batch takes no further response: a process has them in memory."""

_PATIENCE: Final = 10.0
"""The time limit of a connection, and of an answer that does not wait, in seconds."""

_RETRYING: Final[dict[str, Any]] = {
    "total": 30,
    "backoff_factor": 0.5,
    "backoff_max": 5,
    "status_forcelist": (429, 502, 503, 504),
    "respect_retry_after_header": False,  # a server that says a second would have half a minute
}
"""About two minutes."""


class _PollRetry(Retry):
    """The retries of a long poll, which is not repeated when its time is over."""

    def increment(self, *arguments: Any, **named: Any) -> Self:
        """The retries that are left. Raises `ReadTimeoutError` if that was the error."""
        if isinstance(named.get("error"), ReadTimeoutError):
            raise named["error"]
        return super().increment(*arguments, **named)


class Place(NamedTuple):
    """A place between the messages of a stream."""

    offset: str
    """An offset of the server's."""
    skip: int
    """Messages between that and the place."""
    position: int
    """Messages between the first place of all and this one."""


class _Page(NamedTuple):
    """A response of the server."""

    messages: list[str]
    end: str
    """The offset after the messages."""
    up_to_date: bool
    """Whether that was the end of the stream."""
    closed: bool
    """Whether it is the end for ever."""
    cursor: str | None


@dataclass(frozen=True, slots=True)
class JsonStream:
    """A stream of `application/json`. Its methods raise `PipelineError` for answers that cannot be used.

    A server that cannot be reached, is busy or is being restarted is tried again, for about two minutes.
    """

    url: str

    def end(self) -> str:
        """The offset at the end."""
        return self.get(NOW).end

    def get(self, offset: str) -> _Page:
        """The messages after an offset, or the first ones of them."""
        return self._page(offset, self._request({"offset": offset}, _PATIENCE, Retry(**_RETRYING)))

    def poll(self, offset: str, cursor: str | None, wait: float) -> _Page | None:
        """The same after a wait for the first message; `None` if there is no answer in `wait` seconds."""
        parameters = {"offset": offset, "live": "long-poll"}
        if cursor is not None:
            parameters["cursor"] = cursor
        try:
            return self._page(offset, self._request(parameters, wait, _PollRetry(**_RETRYING)))
        except ReadTimeoutError:
            return None

    def between(self, start: Place, end: int) -> Iterator[Row]:
        """Exactly the messages from a place to before a position."""
        reading = Reading(self, start)
        while (left := end - reading.place.position) > 0:
            if not reading.has_more():
                raise PipelineError(f"{self.url} ends {left} messages before position {end}: messages were lost")
            yield from reading.take(left)

    def _request(self, parameters: dict[str, str], limit: float, retries: Retry) -> BaseHTTPResponse:
        url = f"{self.url}?{urlencode(sorted(parameters.items()))}"  # in this order, a cache has it once
        try:
            return _pool().request("GET", url, timeout=Timeout(connect=_PATIENCE, read=limit), retries=retries)
        except ReadTimeoutError:
            raise
        except HTTPError as error:
            raise PipelineError(f"{self.url} cannot be read from: {error}") from error

    def _page(self, offset: str, response: BaseHTTPResponse) -> _Page:
        messages: list[str] = []
        if response.status == 200:
            kind = response.headers.get("Content-Type", "")
            if kind.partition(";")[0].strip().lower() != "application/json":
                raise PipelineError(f"the option url must be of a stream of application/json, not of {kind!r}")
            try:
                messages = _split(response.data.decode())
            except (ValueError, RecursionError) as error:
                raise PipelineError(f"{self.url} answers no array of JSON at offset {offset}: {error}") from None
        elif response.status != 204:
            reason = response.data[:200].decode("utf-8", "replace")
            if response.status in (400, 404, 410):
                reason += " (is it the stream that startingOffset or the checkpoint is of?)"
            raise PipelineError(f"{self.url} answers {response.status} at offset {offset}: {reason}")
        end = response.headers.get("Stream-Next-Offset")
        if end is None:
            raise PipelineError(f"{self.url} is no stream: its answer has no Stream-Next-Offset")
        closed = _is_true(response.headers.get("Stream-Closed"))
        up_to_date = closed or _is_true(response.headers.get("Stream-Up-To-Date"))
        return _Page(messages, end, up_to_date, closed, response.headers.get("Stream-Cursor"))


class Reading:
    """Reads a stream on from a place. It keeps the rest of the last response."""

    def __init__(self, stream: JsonStream, place: Place) -> None:
        self._stream = stream
        self._offset, self._skip, self._position = place
        self._page = _Page([], place.offset, up_to_date=False, closed=False, cursor=None)
        """The response at `_offset`, which is empty before the first."""

    @property
    def place(self) -> Place:
        """The place after the last message that was taken."""
        return Place(self._offset, self._skip, self._position)

    @property
    def closed(self) -> bool:
        """Whether no messages come after those of the last response."""
        return self._page.closed

    def read(self, most: int, wait: float) -> list[Row]:
        """The next messages, after up to `wait` seconds for the first of them; none if none comes in time."""
        rows: list[Row] = []
        size = 0
        while len(rows) < most and size < _SIZE and self.has_more(0.0 if rows else wait):
            taken = self.take(most - len(rows))
            size += sum(len(text) for _, _, text in taken)
            rows += taken
        return rows

    def has_more(self, wait: float = 0.0) -> bool:
        """Whether a message follows, perhaps after a poll of up to `wait` seconds. Raises `PipelineError`."""
        while self._skip >= len(self._page.messages):
            self._turn()
            if not self._page.up_to_date:
                self._accept(self._stream.get(self._offset))
            elif self._skip:
                raise PipelineError(
                    f"{self._stream.url} ends {self._skip} messages before position {self._position}: "
                    "messages were lost"
                )
            elif self.closed or not wait:
                return False
            else:
                page = self._stream.poll(self._offset, self._page.cursor, wait)
                wait = 0.0
                if page is None:  # the server may hang: a read that does not wait comes next
                    self._page = self._page._replace(up_to_date=False)
                else:
                    self._accept(page)
        return True

    def take(self, most: int | None = None) -> list[Row]:
        """The rest of the response, or `most` messages of it. Call `has_more` first."""
        texts = self._page.messages[self._skip : None if most is None else self._skip + most]
        rows = [(self._stream.url, number, text) for number, text in enumerate(texts, self._position)]
        self._position += len(rows)
        self._skip += len(rows)
        if self._skip == len(self._page.messages):
            self._turn()
        return rows

    def _turn(self) -> None:
        """Go on to the offset after the response, of which all messages are behind."""
        self._skip -= len(self._page.messages)
        self._offset = self._page.end
        self._page = self._page._replace(messages=[])

    def _accept(self, page: _Page) -> None:
        if page.end < self._offset != BEGINNING:  # offsets compare as strings
            raise PipelineError(f"{self._stream.url} ends at {page.end}, before {self._offset}: messages were lost")
        if page.end == self._offset and (page.messages or not page.up_to_date):
            raise PipelineError(f"{self._stream.url} is no stream: its answers do not go on from {self._offset}")
        self._page = page


@lru_cache(maxsize=1)
def _pool() -> PoolManager:
    """The connections of this process."""
    return PoolManager()


def _is_true(header: str | None) -> bool:
    return header is not None and header.lower() == "true"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _nothing(text: str) -> None:
    """The value of a number does not matter, and may be too long for one."""


_DECODER: Final = json.JSONDecoder(parse_float=_nothing, parse_int=_nothing, parse_constant=_no_constant)
_ARRAY: Final = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*(.*)\][ \t\r\n]*", re.DOTALL)
_COMMA: Final = re.compile(r"[ \t\r\n]*(?:,[ \t\r\n]*|\Z)")


def _split(text: str) -> list[str]:
    """The texts of an array's elements, as the server has them: no number is rounded. Raises `ValueError`."""
    array = _ARRAY.fullmatch(text)
    if array is None:
        raise ValueError(f"it begins with {text[:100]!r}")
    content = array[1]
    texts: list[str] = []
    position = 0
    while position < len(content):
        _, end = _DECODER.raw_decode(content, position)
        comma = _COMMA.match(content, end)
        if comma is None:
            raise ValueError(f"no comma follows message {len(texts)}")
        texts.append(content[position:end])
        position = comma.end()
    return texts
