"""What goes over the wire: JSON with the keys, and who has sent it.

It is plain ASCII, so its length is the same in characters and in bytes, whatever the keys are made of; JSON escapes
what PostgreSQL cannot store (NUL) and what no encoding can (half of a surrogate pair).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

__all__ = ["MAX_PAYLOAD", "check_key", "decode", "encode"]

MAX_PAYLOAD: Final = 7999
"""Bytes. PostgreSQL's NOTIFY takes less than 8000, and no other broker has reason to take less."""

MAX_KEY: Final = MAX_PAYLOAD - 64
"""Bytes of a key in JSON, its quotes included; the rest is for what is around it."""

_quote = json.JSONEncoder().encode


def check_key(key: object) -> None:
    """Raise `TypeError` unless `key` is a `str`, `ValueError` if it is too long to be sent."""
    if not isinstance(key, str):
        raise TypeError(f"a key that goes to other processes must be a str, not {key!r}")
    # A character takes at most twelve bytes: an escaped surrogate pair.
    if len(key) * 12 > MAX_KEY - 2 and len(_quote(key)) > MAX_KEY:
        raise ValueError(f"a key must take at most {MAX_KEY} bytes as JSON, not {len(_quote(key))}: {key[:20]!r}…")


def encode(keys: Iterable[str] | None, sender: str | None = None) -> Iterator[str]:
    """The payloads that say that `keys` have changed; as few as the limit allows. `None` is every key."""
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
    """Who has sent a payload, if it says so, and its keys; `None` is every key. Raises `ValueError` if it is none."""
    try:
        message = json.loads(payload)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(message, dict) or "keys" not in message:
        raise ValueError('a JSON object with "keys" is needed')
    sender = message.get("from")
    keys = message["keys"]
    if sender is not None and not isinstance(sender, str):
        raise ValueError('"from" must be a string')
    if keys is not None and not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        raise ValueError('"keys" must be a list of strings, or null')
    return sender, keys
