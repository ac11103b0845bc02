"""Event streams: the data of a stream as server-sent events, a piece at a time.

A piece is made when the client has taken the one before, and its size is bounded. So a client that takes nothing holds
one piece, which counts as the response that it is.
"""

import asyncio
import base64
from collections.abc import Hashable, Iterable
from typing import Final

from purgatory import DelayedOperation, PurgatoryFull
from purgatory.asgi import Event, EventStream
from purgatory.asgi.event import data_lines, encoded
from purgatory.asgi.event_stream import WaitingStream
from purgatory.lowlevel import take_result
from purgatory.streams.admission import SMALL, Budget, Hold, Refusal, TooManyRequests, jittered
from purgatory.streams.core import messages, offsets
from purgatory.streams.core.state import Stream
from purgatory.streams.engine.cache import CachedStream, Chunk
from purgatory.streams.engine.readers import Read
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http.replies import ALWAYS
from purgatory.streams.settings import Settings

_SHARED: Final = 16
_SHARED_BYTES: Final = 8 * 1024 * 1024
"""Pieces that are kept for others, and their bytes: the last one is kept anyway."""


class Events(WaitingStream["Chunk | Exception"]):
    """The state of an open stream of events. If it is parked, what its client doesn't take is counted."""

    __slots__ = (
        "address",
        "budget",
        "cached",
        "cursor",
        "deadline",
        "heartbeat",
        "hold",
        "last",
        "pieces",
        "position",
        "streams",
    )

    def __init__(
        self,
        streams: Streams,
        settings: Settings,
        budget: Budget,
        pieces: "Pieces",
        cached: CachedStream,
        position: int,
        cursor: str | None,
        address: str,
    ) -> None:
        super().__init__()
        self.streams: Streams = streams
        self.budget: Budget = budget
        self.pieces: Pieces = pieces
        self.heartbeat: float = settings.heartbeat
        self.address: str = address
        self.cached: CachedStream = cached
        self.position: int = position
        self.cursor: str | None = cursor
        self.last: Read | None = None
        """The last operation."""
        self.hold: Hold | None = None
        self.deadline: float = asyncio.get_running_loop().time() + jittered(settings.event_stream_timeout)

    def response(self) -> EventStream[Chunk | Exception]:
        """The response that has them."""
        headers = [*ALWAYS, (b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        if is_binary(self.cached.stream):
            headers.append((b"stream-sse-data-encoding", b"base64"))
        return _Response(self, headers)

    def follow(self) -> Read | None:
        left = self.deadline - asyncio.get_running_loop().time()
        if self.last is not None:
            chunk = self.last.result()
            if isinstance(chunk, Exception) or chunk.is_last or left <= 0:
                return None
            self.position = chunk.end
        timeout = min(self.heartbeat, max(left, 0.0))
        now = self.last is None
        try:
            self.last = self.streams.wait(self.cached, self.position, timeout, self.address, now=now)
        except (PurgatoryFull, TooManyRequests):
            return None  # since the last operation, others have come: the client may connect again
        return self.last

    def of(self, chunk: Chunk | Exception) -> Iterable[Event]:
        """The events of a chunk."""
        if isinstance(chunk, Exception):
            return []
        return [self.pieces.of(chunk, offsets.next_cursor(self.cursor, self.streams.now()))]

    def render(self, chunk: Chunk | Exception) -> bytes:
        data, _ = encoded(self.of(chunk))
        return data

    def answer(self) -> None:
        operation = self.operation
        if operation is not None and not self._has_room(operation):
            take_result(self.take())
            self.end()  # the client connects again, at its offset
            return
        super().answer()

    def _has_room(self, operation: DelayedOperation["Chunk | Exception"]) -> bool:
        assert isinstance(operation, Read)
        if isinstance(operation.chunk, Chunk) and operation.chunk.size > SMALL:
            try:
                self.budget.check(self.address)
            except Refusal:
                return False
        return True

    def _count(self, size: int) -> None:
        """Count what the client has not taken: few streams ever have any, and need a `Hold`."""
        if self.hold is None:
            if not size:
                return
            self.hold = self.budget.hold(self.address)
        self.hold.count(size)

    def pause_writing(self) -> None:
        self._count(0 if self.parked is None else self.sent)  # it may just have ended
        super().pause_writing()

    def resume_writing(self) -> None:
        self._count(0)
        super().resume_writing()

    def disconnected(self) -> None:
        self._count(0)
        super().disconnected()


class _Response(EventStream["Chunk | Exception"]):
    """The response with the events."""

    def __init__(self, events: Events, headers: Iterable[tuple[bytes, bytes]]) -> None:
        super().__init__(lambda _: events.follow(), events.of, headers=headers)
        self._events = events

    def waiting_stream(self, follow: object) -> Events:
        return self._events


class Piece(Event):
    """Events that are encoded already."""

    __slots__ = ("_encoded",)

    _encoded: bytes

    def __init__(self, encoded: bytes) -> None:
        super().__init__("")
        object.__setattr__(self, "_encoded", encoded)

    def encode(self) -> bytes:
        """The events as they are sent."""
        return self._encoded


class Pieces:
    """The pieces that were made last: readers that are at the same place share them."""

    def __init__(self) -> None:
        self._pieces: dict[Hashable, Piece] = {}
        self._bytes = 0

    def of(self, chunk: Chunk, cursor: str) -> Piece:
        """The events of a chunk: after each append's data, where the reader is then."""
        key = chunk.stream.id, chunk.begin, chunk.end, chunk.up_to_date, chunk.is_last, cursor
        piece = self._pieces.get(key)
        if piece is None:
            piece = Piece(_encoded(chunk, cursor))
            self._bytes += len(piece.encode())
            while self._pieces and (len(self._pieces) >= _SHARED or self._bytes > _SHARED_BYTES):
                self._bytes -= len(self._pieces.pop(next(iter(self._pieces))).encode())
            self._pieces[key] = piece
        return piece


def _encoded(chunk: Chunk, cursor: str) -> bytes:
    binary = is_binary(chunk.stream)
    events = []
    for (_, end, _), data in zip(chunk.parts, chunk.data(), strict=True):
        text = base64.b64encode(data) if binary else messages.join(chunk.stream.media_type, [data])
        # Not by way of `Event` and `json.dumps`, which took longer than all else: each row has an event and a control.
        events.append(f"event: data\n{data_lines(text.decode('utf-8', 'replace'))}\n\n{_control(end, chunk, cursor)}")
    return "".join(events or [_control(chunk.end, chunk, cursor)]).encode()


def is_binary(stream: Stream) -> bool:
    """Whether the data of a stream is no text, and is sent in base64."""
    return not stream.media_type.startswith("text/") and stream.media_type != messages.JSON


def _control(position: int, chunk: Chunk, cursor: str) -> str:
    at_tail = position >= chunk.stream.tail
    control = '"streamClosed":true' if at_tail and chunk.stream.closed else f'"streamCursor":"{cursor}"'
    more = ',"upToDate":true' if at_tail else ""
    return f'event: control\ndata:{{"streamNextOffset":"{offsets.encode(position)}",{control}{more}}}\n\n'
