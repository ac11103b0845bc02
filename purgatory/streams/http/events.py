"""Event streams: the data of a stream as server-sent events, a piece at a time.

A piece is made when the client has taken the one before, and its size is bounded. So a client that takes nothing holds
one piece, which counts as the response that it is.
"""

import asyncio
import base64
import json
import math
from collections.abc import Iterable
from functools import lru_cache

from purgatory import DelayedOperation, PurgatoryFull
from purgatory.asgi import Event, EventStream
from purgatory.asgi.event_stream import Follow, WaitingStream
from purgatory.asgi.parking import answers
from purgatory.lowlevel import take_result
from purgatory.streams.admission import SMALL, Budget, Hold, Refusal, TooManyRequests, jittered
from purgatory.streams.core import messages, offsets
from purgatory.streams.core.cursors import next_cursor
from purgatory.streams.core.state import Stream
from purgatory.streams.engine.cache import Known
from purgatory.streams.engine.chunk import Chunk
from purgatory.streams.engine.readers import Read
from purgatory.streams.engine.streams import Streams
from purgatory.streams.http.replies import ALWAYS
from purgatory.streams.settings import Settings

__all__ = ["Events", "unread"]


class Events:
    """The state of an open stream of events."""

    __slots__ = (
        "address",
        "budget",
        "cursor",
        "end",
        "heartbeat",
        "is_binary",
        "known",
        "operation",
        "position",
        "streams",
    )

    def __init__(
        self,
        streams: Streams,
        settings: Settings,
        budget: Budget,
        known: Known,
        position: int,
        cursor: str | None,
        address: str,
    ) -> None:
        self.streams = streams
        self.budget = budget
        self.heartbeat = settings.heartbeat
        self.address = address
        self.known = known
        self.position = position
        self.cursor = cursor
        self.operation: Read | None = None
        self.end = asyncio.get_running_loop().time() + jittered(settings.event_stream_timeout)
        media = known.stream.media_type
        self.is_binary = not media.startswith("text/") and media != messages.JSON

    def response(self) -> EventStream[Chunk | Exception]:
        """The response that has them."""
        headers = [*ALWAYS, (b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        if self.is_binary:
            headers.append((b"stream-sse-data-encoding", b"base64"))
        return _Response(self, headers)

    def follow(self, last_event_id: str | None) -> Read | None:
        """The next operation; `None` ends the stream."""
        left = self.end - asyncio.get_running_loop().time()
        if self.operation is not None:
            chunk = self.operation.result()
            if isinstance(chunk, Exception) or chunk.is_last or left <= 0:
                return None
            self.position = chunk.end
            self.streams.touch(self.known)
        timeout = min(self.heartbeat, max(left, 0.0), unread(self.known.stream))
        now = self.operation is None
        wait = self.streams.wait
        try:
            self.operation = wait(self.known, self.position, timeout, self.address, now=now)
        except (PurgatoryFull, TooManyRequests):
            return None  # since the last operation, others have come: the client may connect again
        return self.operation

    def render(self, chunk: Chunk | Exception) -> Iterable[Event]:
        """The events of a chunk."""
        if isinstance(chunk, Exception):
            return []
        return [_piece(chunk, next_cursor(self.cursor, self.streams.now()), self.is_binary)]


class _Response(EventStream["Chunk | Exception"]):
    """The response with the events."""

    def __init__(self, events: Events, headers: Iterable[tuple[bytes, bytes]]) -> None:
        super().__init__(events.follow, events.render, headers=headers)
        self._events = events

    def waiting_stream(self, follow: Follow["Chunk | Exception"]) -> "_Counted":
        return _Counted(follow, self._events)


class _Counted(WaitingStream["Chunk | Exception"]):
    """A parked event stream. What its client doesn't take is counted."""

    __slots__ = ("hold",)

    def __init__(self, follow: Follow["Chunk | Exception"], events: Events) -> None:
        super().__init__(answers(), follow, events.render, None, None)
        self.hold: Hold = events.budget.of(events.address)

    def answer(self) -> None:
        operation = self.operation
        if operation is not None and not self._has_room(operation):
            take_result(self.take())
            self.end()  # the client connects again, at its offset
            return
        super().answer()

    def _has_room(self, operation: DelayedOperation["Chunk | Exception"]) -> bool:
        try:
            chunk = operation.result()
            if isinstance(chunk, Chunk) and chunk.size > SMALL:
                self.hold.check()
        except Refusal:
            return False
        except Exception:
            return True  # it has failed, which is seen to as in any event stream
        return True

    def pause_writing(self) -> None:
        if self.parked is not None:  # else it has just ended
            self.hold.count(self.sent)
        super().pause_writing()

    def resume_writing(self) -> None:
        self.hold.count(0)
        super().resume_writing()

    def disconnected(self) -> None:
        self.hold.count(0)
        super().disconnected()


class _Piece(Event):
    """Events that are encoded already."""

    __slots__ = ("_encoded",)

    _encoded: bytes

    def __init__(self, events: Iterable[Event]) -> None:
        super().__init__("")
        object.__setattr__(self, "_encoded", b"".join(event.encode() for event in events))

    def encode(self) -> bytes:
        """The events as they are sent."""
        return self._encoded


@lru_cache(16)  # readers that are at the same place share the bytes, too
def _piece(chunk: Chunk, cursor: str, is_binary: bool) -> _Piece:
    """After each append's data, where the reader is then."""
    events = []
    for (_, end, _), data in zip(chunk.parts, chunk.data(), strict=True):
        text = base64.b64encode(data) if is_binary else messages.join(chunk.stream.media_type, [data])
        events.append(Event(text.decode("utf-8", "replace"), event="data"))
        events.append(_control(end, chunk, cursor))
    return _Piece(events or [_control(chunk.end, chunk, cursor)])


def unread(stream: Stream) -> float:
    """Seconds for which a live read may wait: a stream with readers does not expire, as each read prolongs it."""
    return math.inf if stream.ttl is None else stream.ttl / 2


def _control(position: int, chunk: Chunk, cursor: str) -> Event:
    control: dict[str, str | bool] = {"streamNextOffset": offsets.encode(position)}
    at_tail = position >= chunk.stream.tail
    if at_tail and chunk.stream.closed:
        control["streamClosed"] = True
    else:
        control["streamCursor"] = cursor
    if at_tail:
        control["upToDate"] = True
    return Event(json.dumps(control, separators=(",", ":")), event="control")
