"""Payloads: JSON with the keys and the sender.

They are plain ASCII, so that their length is the same in characters and in bytes for any keys. JSON escapes NUL, which
PostgreSQL cannot store, and halves of surrogate pairs, which no encoding can store.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

MAX_PAYLOAD: Final = 7999
"""The largest payload in bytes. PostgreSQL's NOTIFY accepts less than 8000, and no other broker needs less."""

MAX_KEY: Final = MAX_PAYLOAD - 64
"""The largest key in bytes of JSON, including its quotes. The rest is for the JSON around it."""

_quote = json.JSONEncoder().encode


def check_key(key: object) -> None:
    """Raise `TypeError` unless `key` is a `str`, `ValueError` if it is too long for a payload."""
    if not isinstance(key, str):
        raise TypeError(f"a key of a relay must be a str, not {key!r}")
    # A character takes at most twelve bytes: an escaped surrogate pair.
    if len(key) * 12 > MAX_KEY - 2 and len(_quote(key)) > MAX_KEY:
        raise ValueError(f"a key must take at most {MAX_KEY} bytes as JSON, not {len(_quote(key))}: {key[:20]!r}…")


def encode(keys: Iterable[str] | None, sender: str | None = None) -> Iterator[str]:
    """Yield the payloads with `keys`, as few as the limit allows. `None` means every key."""
    start = "{" if sender is None else f'{{"from":{_quote(sender)},'
    if keys is None:
        yield f'{start}"keys":null}}'
        return
    start += '"keys":['
    parts: list[str] = []
    length = fixed = len(start) + len("]}")
    for key in keys:
        quoted = _quote(key)
        if length + len(quoted) + 1 > MAX_PAYLOAD and parts:
            yield f"{start}{','.join(parts)}]}}"
            parts = []
            length = fixed
        parts.append(quoted)
        length += len(quoted) + 1
    if parts:
        yield f"{start}{','.join(parts)}]}}"


def decode(payload: str | bytes) -> tuple[str | None, Sequence[str] | None]:
    """Return the sender of a payload or `None`, and its keys or `None` for every key.

    Raises:
        ValueError: The payload is malformed.
    """
    try:
        message = json.loads(payload)
    except RecursionError:
        raise ValueError("the payload is nested too deeply") from None
    if not isinstance(message, dict) or "keys" not in message:
        raise ValueError('the payload must be a JSON object with "keys"')
    sender = message.get("from")
    keys = message["keys"]
    if sender is not None and not isinstance(sender, str):
        raise ValueError(f'"from" must be a string, not a {type(sender).__name__}')
    if keys is not None and not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        raise ValueError('"keys" must be a list of strings, or null')
    return sender, keys
