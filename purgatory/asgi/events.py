"""Server-sent events: an open stream is a connection and an operation, which is followed by the next one.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from purgatory import DelayedOperation, OperationCancelled, PurgatoryClosed
from purgatory.asgi.disconnects import ClientDisconnected, unless_disconnected
from purgatory.asgi.parking import Answers, Waiting, answers, count, park
from purgatory.asgi.protocol import BaseResponse, Message, Receive, Scope, Send, logger
from purgatory.lowlevel import check_callback, take_result

__all__ = ["Event", "EventStream"]

T = TypeVar("T")

_COMMENT: Final = b":\n\n"
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx passes each event on at once
]


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event."""

    data: str
    """The text that the client gets as `event.data`. Line ends become those of the format."""
    id: str | None = None
    """Sent back as `Last-Event-ID` when the client connects again. Not empty, without line ends and NUL."""
    event: str | None = None
    """The event's type, if it is not `message`. Not empty, without line ends."""
    retry: int | None = None
    """Milliseconds after which the client is to connect again when it has lost the connection."""

    def __post_init__(self) -> None:
        if self.id is not None and (not self.id or re.search("[\r\n\0]", self.id)):
            raise ValueError(f"id must neither be empty nor have a line end or NUL: {self.id!r}")
        if self.event is not None and (not self.event or re.search("[\r\n]", self.event)):
            raise ValueError(f"event must neither be empty nor have a line end: {self.event!r}")
        if self.retry is not None and self.retry < 0:
            raise ValueError(f"retry must not be negative: {self.retry!r}")

    def encode(self) -> bytes:
        """The event as it is sent."""
        lines = []
        if self.event is not None:
            lines.append(f"event: {self.event}")
        if self.id is not None:
            lines.append(f"id: {self.id}")
        if self.retry is not None:
            lines.append(f"retry: {self.retry}")
        # No loop over the lines: there may be millions. The format takes one space away.
        data = "\n" + self.data.replace("\r\n", "\n").replace("\r", "\n")
        lines.append(data.replace("\n", "\ndata:").replace("\ndata: ", "\ndata:  ").removeprefix("\n"))
        return "\n".join([*lines, "", ""]).encode()


class EventStream(BaseResponse, Generic[T]):  # Starlette's, where that is installed
    """A response of server-sent events. A handler returns it like any other response.

        async def events(request):
            def follow(last_event_id):
                operation = Fetch(log, offset=int(last_event_id or 0), timeout=15.0)
                return purgatory.try_complete_else_watch(operation, ["topic"])

            return EventStream(follow, to_events, request.headers.get("last-event-id"))

    The stream has one operation at a time. When it is done, its events are sent and the next one is asked for. If there
    are none, as at the operation's deadline, a comment is sent: the operation's timeout is the interval of heartbeats.
    While the client does not take what was sent, no operation is asked for.

    The stream ends when `follow` returns `None` or raises `PurgatoryClosed`, and when the server shuts down. The
    request is parked as with `DelayedResponse`. When the client disconnects, the operation is left as by an awaiting
    task that is cancelled. If `follow` or `render` raises, or the operation has failed, the exception is logged to
    `purgatory.asgi` and the connection closed: the client connects again.
    """

    def __init__(
        self,
        follow: Callable[[str | None], DelayedOperation[T] | None],
        render: Callable[[T], Iterable[Event]],
        last_event_id: str | None = None,
        *,
        key: Callable[[T], Hashable] | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Send the events of the operations that `follow(last_event_id)` hands to their purgatory and returns.

        It is called with `last_event_id` at first, which is the request's header, and later with the id of the last
        event that had one. `render` makes the events of a result. Both are plain functions, called in an empty context.

        `key(result)` is equal for results of which the events are equal, among all that have a key: the events of many
        streams that are sent in one iteration of the loop are rendered once.

        `headers` are names, in lower case, and values. Those with the name of a usual one take its place.

        Raises `TypeError` if `follow`, `render` or `key` cannot be called or is async.
        """
        check_callback("follow", follow)
        check_callback("render", render)
        if key is not None:
            check_callback("key", key)
        self.follow = follow
        self.renderer = render
        self.last_event_id = last_event_id
        self.key = key
        self.extra_headers: list[tuple[bytes, bytes]] = list(headers)
        self.background: Any = None
        """A background task, which FastAPI sets. With one, the request is not parked."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, as an ASGI application."""
        names = {name for name, _ in self.extra_headers}
        headers = [header for header in _HEADERS if header[0] not in names] + self.extra_headers
        start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
        if scope["method"] == "HEAD":
            await send(start)
            await send(_end())
            return
        if self.background is not None:
            count("background")
        else:
            stream = _WaitingStream(answers(), self.follow, self.renderer, self.last_event_id, self.key)
            if stream.begin(scope, send, start):
                return
        await send(start)
        await send(_chunk(b""))
        last_event_id = self.last_event_id
        try:
            while (operation := _followed(self.follow, last_event_id)) is not None:
                result = await unless_disconnected(receive, operation)
                chunk, last = _encoded(self.renderer(result))
                last_event_id = last_event_id if last is None else last
                await send(_chunk(chunk))
        except ClientDisconnected:
            return
        except OperationCancelled:
            pass
        await send(_end())
        if self.background is not None:
            await self.background()


class _WaitingStream(Waiting, Generic[T]):
    """A parked request that gets a stream of events."""

    __slots__ = ("ending", "follow", "key", "last_event_id", "pauses", "render")

    def __init__(
        self,
        answers: Answers,
        follow: Callable[[str | None], DelayedOperation[T] | None],
        render: Callable[[T], Iterable[Event]],
        last_event_id: str | None,
        key: Callable[[T], Hashable] | None,
    ) -> None:
        super().__init__(answers)
        self.follow = follow
        self.render = render
        self.last_event_id = last_event_id
        self.key = key
        self.pauses = 0
        """How many have paused the stream: the server, and a middleware that waits."""
        self.ending = False

    def begin(self, scope: Scope, send: Send, start: Message) -> bool:
        """Park the request and send the head. Returns whether the server could park it."""
        parked = park(scope, send, self)
        if parked is None:
            return False
        self.parked = parked
        try:
            parked.send(start, _chunk(b""))
        except Exception:
            self.log_and_fail()
        self.advance()
        return True

    def advance(self) -> None:
        """Wait for the next operation, or end the stream."""
        if self.parked is None or self.pauses or self.operation is not None:
            return
        try:
            operation = None if self.ending else _followed(self.follow, self.last_event_id)
            if operation is not None:
                self.wait(operation)
                return
        except (Exception, asyncio.CancelledError):
            self.log_and_fail()
            return
        self.end()

    def end(self) -> None:
        """Complete the response."""
        parked, self.parked = self.parked, None
        if parked is not None:
            parked.send(_end())

    def answer(self) -> None:
        if self.parked is None or self.operation is None:
            return  # disconnected meanwhile
        operation = self.take()
        try:
            result = take_result(operation)
            if self.key is None:
                chunk, last = _encoded(self.render(result))
            else:
                chunk, last = self.answers.shared(
                    (EventStream, self.key(result)), lambda: _encoded(self.render(result))
                )
            if last is not None:
                self.last_event_id = last
            self.parked.send(_chunk(chunk))
        except OperationCancelled:
            self.ending = True
        except (Exception, asyncio.CancelledError):
            self.log_and_fail()
            return
        self.advance()

    def log_and_fail(self) -> None:
        """Log the exception that is being handled, and close the connection."""
        logger.exception("an event stream fails")
        self.fail()

    def shutdown(self) -> None:
        self.ending = True
        if self.operation is None:
            self.end()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        self.pauses += 1

    def resume_writing(self) -> None:
        self.pauses -= 1
        self.advance()


# New messages each time: a middleware may change them in place.


def _end() -> Message:
    return {"type": "http.response.body", "body": b""}


def _chunk(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _followed(follow: Callable[[str | None], Any], last_event_id: str | None) -> DelayedOperation[Any] | None:
    """The next operation of a stream. `None` ends the stream."""
    try:
        operation = follow(last_event_id)
    except PurgatoryClosed:
        return None
    if operation is None:
        return None
    if not isinstance(operation, DelayedOperation):
        raise TypeError(f"follow must return a DelayedOperation or None, not {operation!r}")
    return operation


def _encoded(events: Iterable[Event]) -> tuple[bytes, str | None]:
    """The bytes that are sent for `events`, and the last id that they have."""
    chunks = []
    last_event_id = None
    for event in events:
        chunks.append(event.encode())
        if event.id is not None:
            last_event_id = event.id
    return b"".join(chunks) or _COMMENT, last_event_id
