"""Messages: what is appended, in the units of its content type.

The unit of `application/json` is a message, a JSON value. Its text is kept as it came: no number is rounded. The unit
of every other content type is a byte.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from purgatory.streams.core.errors import Full, Invalid

__all__ = ["JSON", "MOST", "join", "media_type", "parse", "part"]

JSON: Final = "application/json"

MOST: Final = 2**18
"""Messages of JSON that an append may have. To split so many takes half a second, and others' appends wait."""

_MEDIA_TYPE: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_SPACE: Final = re.compile(r"[ \t\r\n]*")


@lru_cache(256)
def media_type(content_type: str) -> str:
    """The media type, without parameters and in lower case. Raises `Invalid` if it is none."""
    name = content_type.partition(";")[0].strip()
    if _MEDIA_TYPE.fullmatch(name) is None:
        raise Invalid("Content-Type must be a media type like application/json")
    return name.lower()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _nothing(text: str) -> None:
    """The value of a number does not matter, and may be too long for one."""


_DECODER: Final = json.JSONDecoder(parse_float=_nothing, parse_int=_nothing, parse_constant=_no_constant)


def parse(media: str, body: bytes) -> tuple[bytes, int]:
    """The stored form of `body`, and how many units it has.

    Raises `Invalid` if it is no JSON where it has to be, and `Full` if it has too many messages.

    An array of JSON is flattened by one level: its elements are messages.
    """
    if media != JSON:
        return body, len(body)
    try:
        text = body.decode()
        begin, end = _value(text, 0)
        if _SPACE.fullmatch(text, end) is None:
            raise ValueError("data follows the JSON value")
        if text[begin] != "[":
            return text[begin:end].encode(), 1
        messages = list(islice(_elements(text, begin), MOST + 1))
    except RecursionError:
        raise Invalid("the JSON is nested too deeply") from None
    except ValueError as error:
        raise Invalid(f"the body is not JSON: {error}") from None
    if len(messages) > MOST:
        raise Full(f"an append must not have more than {MOST} messages")
    return ",".join(messages).encode(), len(messages)


def part(media: str, data: bytes, begin: int, end: int) -> bytes:
    """Units `begin` to `end` of a stored form."""
    if media != JSON:
        return data[begin:end]
    return ",".join(islice(_elements(f"[{data.decode()}]", 0), begin, end)).encode()


def join(media: str, parts: list[bytes]) -> bytes:
    """The body of an answer with these parts of a stream."""
    if media != JSON:
        return parts[0] if len(parts) == 1 else b"".join(parts)
    return b"[%b]" % b",".join(parts)


def _value(text: str, begin: int) -> tuple[int, int]:
    """Where the next value begins and ends."""
    space = _SPACE.match(text, begin)
    assert space is not None
    _: Any
    _, end = _DECODER.raw_decode(text, space.end())
    return space.end(), end


def _elements(text: str, begin: int) -> Iterator[str]:
    """The texts of the elements of an array. Raises `ValueError` unless it is valid."""
    _, end = _value(text, begin)
    position = begin + 1
    if _SPACE.fullmatch(text, position, end - 1) is not None:
        return
    while position < end:
        first, last = _value(text, position)
        yield text[first:last]
        space = _SPACE.match(text, last)
        assert space is not None
        position = space.end() + 1  # behind a comma, or the end
