"""The parts of a request: path, headers, query parameters and body, each checked."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, unquote_to_bytes

from starlette.types import Receive, Scope

from purgatory.streams.admission import RETRY, Hold, Refusal
from purgatory.streams.core.commands import Fork, Identity
from purgatory.streams.core.errors import Invalid
from purgatory.streams.core.offsets import parse

ROOT: Final = "/v1/stream/"
RESERVED: Final = "__ds"
"""The first segment of paths that are not streams."""

MAX_PAGE: Final = 1000
"""Streams in an answer, at most."""
_PATH: Final = 1024
_TEXT: Final = 1024
_UNFIT: Final = re.compile("[\0\ufffd\ud800-\udfff]")
"""What a path must not have. JSON can have halves of surrogate pairs, which are no Unicode."""
_ODD_SEGMENT: Final = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)")
_DOTS: Final = re.compile(r"/\.{1,2}(?:/|\Z)")
_REMEMBERED: Final = 256
"""Paths, and queries, that are remembered with what they mean."""
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_LARGEST: Final = 2**53 - 1
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)  # RFC 3339


def relative(scope: Scope) -> Scope:
    """The scope with `path` and `raw_path` as they would be without a prefix, which stays in `root_path`.

    It is the path at which another application has mounted this one, or of which a proxy takes away a part.

    By ASGI's specification `path` begins with `root_path`. Some frameworks take it away, from `raw_path` too or not.
    With hypercorn's `--root-path`, and with the `root_path` of FastAPI, `path` lacks what the proxy takes away. So it
    begins with the end of `root_path` alone: `/api/streams` is the prefix of `/streams/v1/stream/a`.
    """
    prefix: str = scope.get("root_path", "").rstrip("/")
    if not prefix:
        return scope
    path: str = scope["path"]
    included = prefix
    while included and not f"{path}/".startswith(f"{included}/"):
        _, slash, rest = included[1:].partition("/")
        included = slash + rest
    route = path[len(included) :]
    raw = _raw_path(scope, route, included, prefix)
    return {**scope, "root_path": prefix, "path": route, "raw_path": raw.encode("latin-1")}


def below_root(scope: Scope) -> Scope:
    """A relative scope as ASGI's specification has it: Starlette finds its routes by that."""
    return {**scope, "path": scope.get("root_path", "") + scope["path"]}


def _raw_path(scope: Scope, route: str, *prefixes: str) -> str:
    """The part of `raw_path` that is `route`, as the client has encoded it: it may have encoded slashes."""
    raw = (scope.get("raw_path") or b"").decode("latin-1")
    for prefix in (*prefixes, ""):
        parts = raw.split("/", prefix.count("/") + 1)
        found = f"/{parts[-1]}"
        if unquote(found) == route:
            return found
    return quote(route)


def check_path(scope: Scope) -> None:
    """Raise `Refusal` for a path that a proxy's rules may understand in another way: with `.`, `..` or encoded slashes.

    Below `__ds` a stream's path may have encoded slashes, as the protocol's clients encode it (`segments`).
    """
    path: str = scope["path"]
    has_encoded = b"%2f" in (scope.get("raw_path") or b"").lower() and not path.startswith(f"{ROOT}{RESERVED}/")
    if has_encoded or _DOTS.search(path):
        raise Refusal(400, "the segments of a path must not be . or .., and have no encoded slashes")
    if "\n" in path and not path.startswith(ROOT):  # Starlette's routes end before it
        raise Refusal(404, "the server has no resource at this path")


class Headers:
    """The headers of a request, by name."""

    __slots__ = ("_all", "_values")

    def __init__(self, scope: Scope) -> None:
        """Raises `Invalid` if one of those that matter is there twice."""
        values: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in values and name.startswith((b"stream-", b"producer-", b"content-type")):
                raise Invalid(f"the header {name.decode('latin-1')} must not be repeated")
            values[name] = value
        self._all = scope["headers"]
        self._values = values

    @property
    def size(self) -> int:
        """Bytes of names and values."""
        return sum(len(name) + len(value) for name, value in self._all)

    def get(self, name: bytes) -> str | None:
        """The value of a header."""
        value = self._values.get(name)
        return None if value is None else value.decode("latin-1").strip()

    def text(self, name: bytes) -> str | None:
        """The value of a header that is kept. Raises `Invalid` if it is too long."""
        value = self.get(name)
        if value is not None and len(value) > _TEXT:
            raise Invalid(f"{name.decode()} must have at most {_TEXT} characters, not {len(value)}")
        return value

    def is_true(self, name: bytes) -> bool:
        """Whether a header says `true`. All else counts as if it was not there."""
        return (self.get(name) or "").lower() == "true"


@lru_cache(_REMEMBERED)
def stream_path(path: str) -> str:
    """The path of a stream, relative to the root. Raises `Invalid`."""
    # Not by loops over characters: a request may have a thousand paths.
    if _UNFIT.search(path):
        raise Invalid("a stream's path must be UTF-8 without NUL")
    if not path or len(path.encode()) > _PATH:
        raise Invalid(f"a stream's path must have 1 to {_PATH} bytes")
    if _ODD_SEGMENT.search(path):
        raise Invalid("the segments of a stream's path must not be empty, . or ..")
    if path.partition("/")[0] == RESERVED:
        raise Invalid(f"a stream's path must not begin with {RESERVED}, which is reserved")
    return path


def segments(scope: Scope) -> list[str]:
    """The segments of the path, each decoded on its own. Raises `Invalid` if they are no UTF-8."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    try:
        return [unquote_to_bytes(each).decode() for each in raw.split(b"/")]
    except UnicodeDecodeError:
        raise Invalid("the path must be UTF-8") from None


def query(scope: Scope) -> Mapping[str, Sequence[str]]:
    """The query parameters. Raises `Invalid` if they are too many."""
    text = scope["query_string"]
    return _query(text) if len(text) <= _TEXT else _query.__wrapped__(text)


@lru_cache(_REMEMBERED)  # the readers of a stream ask for the same
def _query(text: bytes) -> Mapping[str, Sequence[str]]:
    try:
        pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise Invalid("a request must not have more than 100 query parameters") from None
    parameters: dict[str, list[str]] = {}
    for name, value in pairs:
        parameters.setdefault(name, []).append(value)
    return parameters


def page_limit(parameters: Mapping[str, Sequence[str]]) -> int:
    """`limit`: how many streams an answer has. Raises `Invalid`."""
    text = parameters.get("limit", ["100"])[-1]
    if not text.isdecimal() or not 0 < len(text) < 9 or not 0 < int(text) <= MAX_PAGE:
        raise Invalid(f"limit must be an integer from 1 to {MAX_PAGE}, not {text[:20]!r}")
    return int(text)


def time_to_live(headers: Headers) -> int | None:
    """`Stream-TTL`, in seconds. Raises `Invalid`."""
    text = headers.get(b"stream-ttl")
    return None if text is None else _integer("Stream-TTL", text)


def expiry(headers: Headers) -> tuple[str, float] | None:
    """`Stream-Expires-At`, as it is and in seconds since 1970. Raises `Invalid`."""
    text = headers.get(b"stream-expires-at")
    if text is None:
        return None
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        day, time, fraction, zone = found.groups()
        moment = datetime.fromisoformat(f"{day}T{time}{(fraction or '')[:7]}{zone.upper().replace('Z', '+00:00')}")
        return text, moment.timestamp()
    except (ValueError, OverflowError):
        raise Invalid(f"Stream-Expires-At must be a time like 2030-01-01T00:00:00Z, not {text[:40]!r}") from None


def producer(headers: Headers) -> Identity | None:
    """The headers of an idempotent producer. Raises `Invalid`."""
    name, epoch, seq = map(headers.text, (b"producer-id", b"producer-epoch", b"producer-seq"))
    if name is None and epoch is None and seq is None:
        return None
    if name is None or epoch is None or seq is None:
        raise Invalid("Producer-Id, Producer-Epoch and Producer-Seq must be sent together")
    if not name:
        raise Invalid("Producer-Id must not be empty")
    return Identity(name, _integer("Producer-Epoch", epoch), _integer("Producer-Seq", seq))


def fork(headers: Headers, prefix: str = "") -> Fork | None:
    """The headers of a fork. Raises `Invalid`.

    The path of the source may begin with `prefix`, as the client knows it, or not, as the protocol has it.
    """
    source = headers.get(b"stream-forked-from")
    offset, sub = headers.get(b"stream-fork-offset"), headers.get(b"stream-fork-sub-offset")
    if source is None:
        if offset is not None or sub is not None:
            raise Invalid("Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From")
        return None
    path = unquote(source.encode("latin-1").decode("utf-8", "replace"), errors="replace")
    if path.startswith(f"{prefix}{ROOT}"):
        path = path.removeprefix(prefix)
    if not path.startswith(ROOT):
        raise Invalid(f"Stream-Forked-From must be the path of a stream: {prefix}{ROOT}…")
    units = 0 if sub is None else _integer("Stream-Fork-Sub-Offset", sub)
    if units and offset is None:
        raise Invalid("Stream-Fork-Sub-Offset needs Stream-Fork-Offset")
    return Fork(stream_path(path[len(ROOT) :]), None if offset is None else parse(offset), units)


async def body(receive: Receive, headers: Headers, limit: int, hold: Hold) -> bytes:
    """The body of the request, which is held while it comes. So are its headers, if it does not come at once.

    Raises `Refusal` if it is too large, or the client's share or all memory for bodies is used up, and if the client
    disconnects.
    """
    length = headers.get(b"content-length")
    if length is not None and length.isdecimal() and int(length) > limit:
        raise Refusal(413, f"the body must not have more than {limit} bytes")
    chunks: list[bytes] = []
    size = head = 0
    while True:
        try:
            message: Any = await receive()
        except asyncio.CancelledError:  # at the end of a shutdown's patience
            raise Refusal(503, "the server is shutting down", [RETRY]) from None
        if message["type"] == "http.disconnect":
            raise Refusal(499, "the client has disconnected")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise Refusal(413, f"the body must not have more than {limit} bytes")
        if message.get("more_body", False):
            head = head or headers.size
        hold.resize(head + size)
        if chunk:
            chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _integer(name: str, text: str) -> int:
    if _INTEGER.fullmatch(text) is None or int(text) > _LARGEST:
        raise Invalid(f"{name} must be an integer from 0 to {_LARGEST}, not {text[:20]!r}")
    return int(text)
