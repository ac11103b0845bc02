"""The endpoint of streams: PUT, POST, DELETE, HEAD and GET of their URLs."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope

from purgatory import Delay, PurgatoryClosed, PurgatoryFull
from purgatory.asgi import DelayedResponse
from purgatory.streams.admission import SHORT, Limits, Quotas, jittered
from purgatory.streams.core import errors, offsets
from purgatory.streams.core.commands import Append, Appended, Create, Delete
from purgatory.streams.core.state import Stream
from purgatory.streams.engine.cache import CHUNK, LIVE, Chunk
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http import requests
from purgatory.streams.http.endpoint import Endpoint, refuse
from purgatory.streams.http.events import Events, Pieces
from purgatory.streams.http.polls import Poll
from purgatory.streams.http.replies import LongReply, Reply, error
from purgatory.streams.http.requests import Headers
from purgatory.streams.settings import Settings

Header = tuple[bytes, bytes]

_NO_STORE: Final = (b"cache-control", b"no-store")
_UP_TO_DATE: Final = (b"stream-up-to-date", b"true")
_CLOSED: Final = (b"stream-closed", b"true")
_PREFLIGHT: Final = [
    (b"access-control-allow-methods", b"GET, HEAD, PUT, POST, DELETE, OPTIONS"),
    (
        b"access-control-allow-headers",
        b"authorization, content-type, if-none-match, producer-epoch, producer-id, producer-seq, stream-closed,"
        b" stream-expires-at, stream-fork-offset, stream-fork-sub-offset, stream-forked-from, stream-seq, stream-ttl",
    ),
    (b"access-control-max-age", b"600"),
]
_CURSORS: Final = 1000
METHODS: Final = b"GET, HEAD, PUT, POST, DELETE, OPTIONS"


class StreamEndpoint(Endpoint):
    """Answers requests to streams, as PROTOCOL.md says."""

    def __init__(self, streams: Streams, settings: Settings, limits: Limits, quotas: Quotas | None = None) -> None:
        super().__init__(streams, settings, limits)
        self._quotas = quotas
        self._cache = (b"cache-control", settings.caching.encode())
        self._polls = Polls(streams, self._cache)
        self._pieces = Pieces()
        self._methods: dict[str, Callable[[Scope, Receive, str], Awaitable[Response]]] = {
            "GET": self.read,
            "HEAD": self.head,
            "POST": self.append,
            "PUT": self.create,
            "DELETE": self.delete,
        }

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        method = scope["method"]
        if method == "OPTIONS":
            return Reply(204, _PREFLIGHT)
        answer = self._methods.get(method)
        if answer is None:
            return error(405, f"method {method} is not allowed", [(b"allow", METHODS)])
        return await answer(scope, receive, requests.stream_path(scope["path"][len(requests.ROOT) :]))

    async def create(self, scope: Scope, receive: Receive, path: str) -> Response:
        """PUT: create a stream, or confirm that there is the same one."""
        headers = Headers(scope)
        ttl, expires_at = requests.time_to_live(headers), requests.expiry(headers)
        if ttl is not None and expires_at is not None:
            raise errors.Invalid("Stream-TTL and Stream-Expires-At exclude each other")
        with self.limits.memory.hold(scope["purgatory.client"]) as hold:
            command = Create(
                path,
                headers.text(b"content-type") or None,
                ttl,
                expires_at,
                headers.is_true(b"stream-closed"),
                fork=requests.fork(headers, scope.get("root_path", "")),
                limit=self.settings.max_streams,
                body=await requests.body(receive, headers, self.settings.max_body, hold),
            )
            created = await self.streams.run(command)
        stream = created.stream
        answer = [(b"content-type", stream.content_type.encode("latin-1")), _offset(stream.tail)]
        if stream.closed:
            answer.append(_CLOSED)
        if not created.new:
            return Reply(200, answer, b"")
        return Reply(201, [*answer, (b"location", _url(scope).encode("latin-1"))], b"")

    async def append(self, scope: Scope, receive: Receive, path: str) -> Response:
        """POST: append, close, or both."""
        headers = Headers(scope)
        producer = requests.producer(headers)
        # A refusal comes before the body is read.
        due = None if self._quotas is None else self._quotas.take(scope["purgatory.client"])
        with self.limits.memory.hold(scope["purgatory.client"]) as hold:
            command = Append(
                path,
                headers.get(b"content-type") or None,
                await requests.body(receive, headers, self.settings.max_body, hold),
                headers.text(b"stream-seq"),
                producer,
                headers.is_true(b"stream-closed"),
                self.settings.max_units,
            )
            appended = await self.streams.run(command)
        reply = _appended(command, appended)
        return reply if self._quotas is None or due is None else delayed(reply, due, self._quotas)

    async def delete(self, scope: Scope, receive: Receive, path: str) -> Response:
        """DELETE: delete a stream."""
        await self.streams.run(Delete(path))
        return Reply(204)

    async def head(self, scope: Scope, receive: Receive, path: str) -> Response:
        """HEAD: the state of a stream. It does not count as a read."""
        stream = (await self.streams.find(path)).stream
        answer = [(b"content-type", stream.content_type.encode("latin-1")), _offset(stream.tail), _NO_STORE]
        if stream.ttl is not None:
            answer.append((b"stream-ttl", b"%d" % stream.ttl))
        if stream.expires_at is not None:
            answer.append((b"stream-expires-at", stream.expires_at.encode("latin-1")))
        if stream.closed:
            answer.append(_CLOSED)
        return Reply(200, answer)

    async def read(self, scope: Scope, receive: Receive, path: str) -> Response:
        """GET: what follows an offset, at once or when there is something."""
        parameters = requests.query(scope)
        live = parameters.get("live", [""])[0]
        if live not in ("", "long-poll", "sse"):
            raise errors.Invalid(f"live must be long-poll or sse, not {live[:20]!r}")
        given = parameters.get("offset")
        if given is not None and len(given) > 1:
            raise errors.Invalid("the parameter offset must not be repeated")
        if live and given is None:
            raise errors.Invalid("a live read must have an offset: -1 for the beginning, or now")
        offset = offsets.BEFORE_ALL if given is None else given[0]
        position = None if offset == offsets.NOW else 0 if offset == offsets.BEFORE_ALL else offsets.parse(offset)
        cursor = offsets.known_cursor(parameters.get("cursor", [None])[0])

        address = scope["purgatory.client"]
        if live:
            self.streams.readers.check_room(address)
        cached = await self.streams.find(path)
        stream = cached.stream
        if position is not None and position > stream.tail:
            raise errors.Invalid(
                "the offset must not be beyond the end of the stream: pass one that this stream has returned"
            )
        self.streams.touch(cached)
        if position is None and not live:
            tail = Chunk(stream, stream.tail, stream.tail)
            return Reply(200, [*_headers(tail), _NO_STORE], tail.body())
        if position is None:
            position = stream.tail
        if live == "sse":
            if position < stream.tail:
                self.limits.memory.check(address)
            pieces, memory = self._pieces, self.limits.memory
            return Events(self.streams, self.settings, memory, pieces, cached, position, cursor, address).response()
        if live and position == stream.tail:
            if stream.closed:
                return _nothing(Chunk(stream, position, position), None)
            operation = self.streams.wait(cached, position, jittered(self.settings.long_poll_timeout), address)
            render, key = self._polls.of(cursor)
            return Poll(operation, render, key, self.limits.memory)
        chunk = await self.streams.chunk(cached, position, LIVE if live else CHUNK)
        if live:
            return _polled(chunk, offsets.next_cursor(cursor, self.streams.now()), self._cache)
        return _caught_up(chunk, offset, Headers(scope).get(b"if-none-match"), self._cache)


class Polls:
    """The functions that make the answers of long polls. Very many of these wait: they share them."""

    def __init__(self, streams: Streams, cache: Header) -> None:
        self._streams = streams
        self._cache = cache
        self._functions: dict[str | None, _Functions] = {}

    def of(self, cursor: str | None) -> "_Functions":
        """Those of long polls with this cursor."""
        functions = self._functions.get(cursor)
        if functions is None:
            if len(self._functions) >= _CURSORS:
                self._functions.clear()
            functions = self._functions[cursor] = partial(self._render, cursor), partial(_key, cursor)
        return functions

    def _render(self, cursor: str | None, chunk: Chunk | Exception) -> Reply:
        if isinstance(chunk, Exception):
            return _failed(chunk)
        if chunk.begin == chunk.end:
            return _nothing(chunk, None if chunk.is_last else offsets.next_cursor(cursor, self._streams.now()))
        return _polled(chunk, offsets.next_cursor(cursor, self._streams.now()), self._cache)


def _key(cursor: str | None, chunk: Chunk | Exception) -> tuple[Chunk | Exception, str | None]:
    return chunk, cursor


_Functions = tuple[
    Callable[[Chunk | Exception], Reply], Callable[[Chunk | Exception], tuple[Chunk | Exception, str | None]]
]


def delayed(reply: Reply, due: float, quotas: Quotas) -> Response:
    """The response that is sent when it is due. The append is stored: if no more may wait, it is sent at once."""
    delay = due - asyncio.get_running_loop().time()
    if delay <= 0:
        return reply
    try:
        operation = quotas.purgatory.try_complete_else_watch(Delay(delay), ["append"])
    except (PurgatoryFull, PurgatoryClosed):
        return reply
    return DelayedResponse(operation, lambda _: reply)


def _appended(command: Append, appended: Appended) -> Reply:
    answer = [_offset(appended.tail)]
    if appended.closed:
        answer.append(_CLOSED)
    if command.producer is not None:
        answer.append((b"producer-epoch", b"%d" % command.producer.epoch))
        answer.append((b"producer-seq", b"%d" % (appended.seq or 0)))
        if appended.new and command.body:
            return Reply(200, answer, b"")
    return Reply(204, answer)


def _offset(position: int) -> Header:
    return b"stream-next-offset", offsets.encode(position).encode()


def _nothing(chunk: Chunk, cursor: str | None) -> Reply:
    answer = [_offset(chunk.end), _UP_TO_DATE, _NO_STORE]
    if cursor is not None:
        answer.append((b"stream-cursor", cursor.encode()))
    if chunk.is_last:
        answer.append(_CLOSED)
    return Reply(204, answer)


def _headers(chunk: Chunk) -> list[Header]:
    answer = [(b"content-type", chunk.stream.content_type.encode("latin-1")), _offset(chunk.end)]
    if chunk.up_to_date:
        answer.append(_UP_TO_DATE)
    if chunk.is_last:
        answer.append(_CLOSED)
    return answer


def _tag(chunk: Chunk, offset: str) -> bytes:
    suffix = ":c" if chunk.is_last else ""
    return f'"{chunk.stream.id}:{offset}:{offsets.encode(chunk.end)}{suffix}"'.encode()


def _polled(chunk: Chunk, cursor: str, cache: Header) -> Reply:
    tag = _tag(chunk, offsets.encode(chunk.begin))
    answer = [*_headers(chunk), (b"stream-cursor", cursor.encode()), (b"etag", tag), _cached(chunk.stream, cache)]
    return Reply(200, answer, chunk.body())


def _cached(stream: Stream, cache: Header) -> Header:
    """Caches may keep data as `cache` says, but not the data of a stream that expires."""
    return cache if stream.deadline is None else _NO_STORE


def _caught_up(chunk: Chunk, offset: str, if_none_match: str | None, cache: Header) -> Reply:
    if if_none_match is None and (answer := chunk.answers.get(offset)) is not None:
        made: Reply = answer
        return made
    tag = _tag(chunk, offset)
    if if_none_match is not None and tag.decode() in [
        each.strip().removeprefix("W/") for each in if_none_match.split(",")
    ]:
        return Reply(304, [(b"etag", tag), _cached(chunk.stream, cache)])
    # At the tail there may be more in a moment.
    cached = _cached(chunk.stream, cache) if chunk.parts else _NO_STORE
    headers = [*_headers(chunk), (b"etag", tag), cached]
    if chunk.size <= SHORT:
        reply = chunk.answers[offset] = Reply(200, headers, chunk.body())
        return reply
    return LongReply(200, headers, chunk.size, chunk.body)


def _url(scope: Scope) -> str:
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), None)
    path = quote(scope.get("root_path", "")) + scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    return path if host is None else f"{scope['scheme']}://{host}{path}"


def _failed(exception: Exception) -> Reply:
    reply = refuse(exception)
    if reply is None:
        raise exception
    return reply
