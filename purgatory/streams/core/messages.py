"""Messages: what is appended, in the units of its content type.

The unit of `application/json` is a message, a JSON value. Its text is kept as it came: no number is rounded. The unit
of every other content type is a byte.

An append is stored as rows of a bounded size, so that a read from the middle of a large append parses one row.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from purgatory.streams.core.errors import Full, Invalid

JSON: Final = "application/json"

MOST: Final = 2**14
"""Messages of JSON that an append may have. To split so many takes some 20 ms, and others' appends wait."""
ROW: Final = 64 * 1024
"""Bytes of a row, unless a single message of JSON has more."""
ROW_MESSAGES: Final = 1024
"""Messages of JSON in a row. To find one among so many takes less than a millisecond."""

_MEDIA_TYPE: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_SPACE: Final = re.compile(r"[ \t\r\n]*")


@lru_cache(256)
def media_type(content_type: str) -> str:
    """Return the media type, without parameters and in lower case. Raises `Invalid` if it is malformed."""
    name = content_type.partition(";")[0].strip()
    if _MEDIA_TYPE.fullmatch(name) is None:
        raise Invalid("Content-Type must be a media type like application/json")
    return name.lower()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _nothing(text: str) -> None:
    """Ignore the value of a number, which does not matter and may be too long to be parsed."""


_DECODER: Final = json.JSONDecoder(parse_float=_nothing, parse_int=_nothing, parse_constant=_no_constant)


def parse(media: str, body: bytes) -> tuple[list[tuple[bytes, int]], int]:
    """Return the rows of an append of `body` (their stored forms and numbers of units), and its number of units.

    Raises `Invalid` if it is no JSON where it has to be, and `Full` if it has too many messages.

    An array of JSON is flattened by one level: its elements are messages.
    """
    if media != JSON:
        return _cut(media, body), len(body)
    try:
        text = body.decode()
        begin, end = _value(text, 0)
        if _SPACE.fullmatch(text, end) is None:
            raise ValueError("data follows the JSON value")
        if text[begin] != "[":
            return [(text[begin:end].encode(), 1)], 1
        messages = list(islice(_elements(text, begin + 1, end - 1), MOST + 1))
    except RecursionError:
        raise Invalid("the JSON must not be nested so deeply") from None
    except ValueError as error:
        raise Invalid(f"the body must be JSON: {error}") from None
    if len(messages) > MOST:
        raise Full(f"an append must not have more than {MOST} messages")
    return _group(messages, len(body)), len(messages)


def split(media: str, data: bytes) -> list[tuple[bytes, int]]:
    """Return the rows of a stored form of any size, as of `parse`."""
    if media != JSON:
        return _cut(media, data)
    text = data.decode()
    return _group(list(_elements(text, 0, len(text))), len(data))


def _group(messages: list[str], size: int) -> list[tuple[bytes, int]]:
    """Return the rows of messages, of at most `size` bytes each."""
    if not messages:
        return []
    if size <= ROW and len(messages) <= ROW_MESSAGES:
        return [(",".join(messages).encode(), len(messages))]
    rows = []
    row: list[bytes] = []
    size = 0
    for message in messages:
        encoded = message.encode()
        if row and (size + len(encoded) > ROW or len(row) == ROW_MESSAGES):
            rows.append((b",".join(row), len(row)))
            row, size = [], 0
        row.append(encoded)
        size += len(encoded) + 1
    return [*rows, (b",".join(row), len(row))]


def _cut(media: str, data: bytes) -> list[tuple[bytes, int]]:
    """Return the rows of bytes."""
    if len(data) <= ROW:
        return [(data, len(data))]
    rows = []
    begin = 0
    while begin < len(data):
        end = begin + ROW
        if end < len(data) and media.startswith("text/"):
            end = _before_character(data, end)
        row = data[begin:end]
        rows.append((row, len(row)))
        begin = end
    return rows


def _before_character(data: bytes, end: int) -> int:
    """Return where to cut a text, at `end` or a little before, so that no character and no line end is divided."""
    for position in range(end, end - 4, -1):
        if data[position] & 0xC0 != 0x80:  # no byte within a character of UTF-8
            return position - 1 if data[position - 1 : position + 1] == b"\r\n" else position
    return end


def part(media: str, data: bytes, begin: int, end: int) -> bytes:
    """Return units `begin` to `end` of a stored form."""
    if media != JSON:
        return data[begin:end]
    text = data.decode()
    return ",".join(islice(_elements(text, 0, len(text)), begin, end)).encode()


def join(media: str, parts: list[bytes]) -> bytes:
    """Return the body of an answer with these parts of a stream."""
    if media != JSON:
        return parts[0] if len(parts) == 1 else b"".join(parts)
    return b"[%b]" % b",".join(parts)


def _value(text: str, begin: int) -> tuple[int, int]:
    """Return where the next value begins and ends."""
    space = _SPACE.match(text, begin)
    assert space is not None
    _: Any
    _, end = _DECODER.raw_decode(text, space.end())
    return space.end(), end


def _elements(text: str, position: int, end: int) -> Iterator[str]:
    """Yield the texts of the elements of an array, which is valid JSON, between its brackets."""
    if _SPACE.fullmatch(text, position, end) is not None:
        return
    while position < end:
        first, last = _value(text, position)
        yield text[first:last]
        space = _SPACE.match(text, last)
        assert space is not None
        position = space.end() + 1  # behind a comma, or the end
