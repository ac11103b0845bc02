"""A response of server-sent events, made of operations or of an async iterator."""

import asyncio
import sys
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from inspect import isasyncgenfunction
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from purgatory import DelayedOperation, OperationCancelled, PurgatoryClosed
from purgatory.asgi.event import Event, chunk, encoded, end
from purgatory.asgi.interface import BaseResponse, Message, Receive, Scope, Send, logger
from purgatory.asgi.iterators import IteratedStream, chunks, send_chunks
from purgatory.asgi.parking import Waiting, answers, count, may_return, park
from purgatory.lowlevel import check_callback, seconds, take_result

T = TypeVar("T")

Follow: TypeAlias = Callable[[str | None], DelayedOperation[T] | None]
Render: TypeAlias = Callable[[T], Iterable[Event]]

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx passes each event on at once
]


class EventStream(BaseResponse, Generic[T]):  # Starlette's, where that is installed
    """A response of server-sent events. A handler returns it like any other response.

    It is made of operations, one after the other, or of an async iterator.

        async def events(request):
            def follow(last_event_id):
                operation = Fetch(log, offset=int(last_event_id or 0), timeout=15.0)
                return purgatory.try_complete_else_watch(operation, ["topic"])

            return EventStream(follow, to_events, request.headers.get("last-event-id"))

        async def tokens(request):
            return EventStream(model.generate(prompt))  # it yields strings, or events

    *Operations*: when an operation is done, its events are sent and `follow` is called for the next one. If there are
    no events, as at a deadline, a comment is sent, so the timeout is the interval of heartbeats. The stream ends when
    `follow` returns `None` or raises `PurgatoryClosed`. When the client disconnects, the operation is cancelled unless
    others await it.

    *An iterator* runs in the task of the request, which is cancelled when the client disconnects. The stream ends with
    the iterator.

    In both cases the request is parked as with `DelayedResponse`, and the stream pauses while the client doesn't read.
    When the server shuts down, the operation is closed, or the iterator's task is cancelled. The stream ends after
    their events. If `follow`, `render` or the iterator raises, or the operation has failed, the exception is logged to
    `purgatory.asgi`. Then the connection is closed, so that the client connects again.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _: object) -> "type[EventStream]":
            """Return the class itself, because FastAPI accepts only a class as the annotation of a response."""
            return cls

    def __init__(
        self,
        follow: Follow[T] | AsyncIterable[T],
        render: Render[T] | None = None,
        last_event_id: str | None = None,
        *,
        key: Callable[[T], Hashable] | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
        heartbeat: float = 15.0,
    ) -> None:
        """Make a stream from operations or from an iterator. Functions must not be `async`, and get an empty context.

        Args:
            follow: A function that hands an operation to its purgatory and returns it. It is called with
                `last_event_id` at first, and later with the id of the last event that had one. Or an async iterator.
            render: Returns the events of an operation's result, or of an item of the iterator. You can leave it out if
                the iterator yields events or strings.
            last_event_id: The request's header `Last-Event-ID`, for `follow`.
            key: Results with equal keys get the same events, which are rendered once per loop iteration. Only for
                operations, because equal events of iterators are encoded once anyway.
            headers: Pairs of a name in lower case and a value. They replace the usual headers of the same name.
            heartbeat: Seconds without an event after which a comment is sent. Only for iterators, because operations
                have their timeouts.

        Raises:
            TypeError: `follow` is neither of the two, `render` is missing, a function is not callable or is `async`, or
                a header is not a pair of bytes.
            ValueError: `heartbeat` is not positive and finite.
        """
        if render is not None:
            check_callback("render", render)
        if not isinstance(follow, AsyncIterable):
            if isasyncgenfunction(follow):
                raise TypeError(f"follow must be an async iterator, not the function that makes one: call {follow!r}")
            check_callback("follow", follow)
            if render is None:
                raise TypeError("render must be given for the results of operations: pass EventStream(follow, render)")
        elif key is not None:
            raise TypeError("key must be None for an iterator, because its equal events are shared anyway")
        if key is not None:
            check_callback("key", key)
        self.follow: Follow[T] | AsyncIterable[T] = follow
        self.renderer: Render[T] | None = render
        self.last_event_id: str | None = last_event_id
        self.key: Callable[[T], Hashable] | None = key
        self.extra_headers: list[tuple[bytes, bytes]] = list(headers)
        for header in self.extra_headers:
            if [type(part) for part in header] != [bytes, bytes]:
                raise TypeError(f'headers must be pairs of bytes, such as (b"x-name", b"value"), not {header!r}')
        self.heartbeat: float = seconds("heartbeat", heartbeat, "positive")
        self.background: Any = None
        """A background task, which FastAPI sets. With one, the request is not parked."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, as an ASGI application."""
        names = {name for name, _ in self.extra_headers}
        headers = [header for header in _HEADERS if header[0] not in names] + self.extra_headers
        start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
        if scope["method"] == "HEAD":
            await send(start)
            await send(end())
            return
        if self.background is not None:
            count("background")
        elif isinstance(self.follow, AsyncIterable):
            if await IteratedStream(chunks(self.follow, self.renderer), self.heartbeat).send(scope, send, start):
                return
        elif await may_return(scope, sys._getframe(1)) and self.waiting_stream(self.follow).begin(scope, send, start):
            return
        await send(start)
        await send(chunk(b""))
        if isinstance(self.follow, AsyncIterable):
            sent = await send_chunks(chunks(self.follow, self.renderer), receive, send, self.heartbeat)
        else:
            sent = await send_chunks(self._chunks(self.follow), receive, send)
        if sent:
            await send(end())
        if self.background is not None:  # also if the client has left, as with Starlette's own responses
            await self.background()

    def waiting_stream(self, follow: Follow[T]) -> "WaitingStream[T]":
        """Return the state of the response while the request is parked."""
        assert self.renderer is not None
        return _Following(follow, self.renderer, self.last_event_id, self.key)

    async def _chunks(self, follow: Follow[T]) -> AsyncGenerator[bytes, None]:
        """Yield the bytes for each operation, in a task that awaits it."""
        assert self.renderer is not None
        last_event_id = self.last_event_id
        with suppress(OperationCancelled):
            while (operation := _followed(partial(follow, last_event_id))) is not None:
                data, last = encoded(self.renderer(await operation))
                last_event_id = last_event_id if last is None else last
                yield data


class WaitingStream(Waiting, Generic[T]):
    """A parked request that gets a stream of events."""

    __slots__ = ("ending", "pauses", "sent")

    def __init__(self) -> None:
        super().__init__(answers())
        self.pauses: int = 0
        """The number of pauses: of the server, and of a middleware that waits."""
        self.ending: bool = False
        self.sent: int = 0
        """Bytes of the last events. If the stream is paused, the client has not read these yet."""

    @abstractmethod
    def follow(self) -> DelayedOperation[T] | None:
        """Return the next operation, or `None` to end the stream."""

    @abstractmethod
    def render(self, result: T) -> bytes:
        """Return the events of an operation's result as they are sent."""

    def begin(self, scope: Scope, send: Send, start: Message) -> bool:
        """Park the request and send the head. Return whether the server could park it."""
        parked = park(scope, send, self)
        if parked is None:
            return False
        self.parked = parked
        try:
            parked.send(start, chunk(b""))
        except Exception:
            self.log_and_fail()
        self.advance()
        return True

    def advance(self) -> None:
        """Wait for the next operation, or end the stream."""
        if self.parked is None or self.pauses or self.operation is not None:
            return
        try:
            operation = None if self.ending else _followed(self.follow)
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
        assert parked is not None
        parked.send(end())

    def answer(self) -> None:
        if self.parked is None or self.operation is None:
            return  # disconnected meanwhile
        operation = self.take()
        try:
            data = self.render(take_result(operation))
            self.sent = len(data)
            self.parked.send(chunk(data))
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
            if self.parked is not None:  # otherwise a middleware still delays the end
                self.end()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        self.pauses += 1

    def resume_writing(self) -> None:
        self.pauses -= 1
        self.advance()


class _Following(WaitingStream[T]):
    """The stream of the functions of an `EventStream`."""

    __slots__ = ("_follow", "_key", "_last_event_id", "_render")

    def __init__(
        self, follow: Follow[T], render: Render[T], last_event_id: str | None, key: Callable[[T], Hashable] | None
    ) -> None:
        super().__init__()
        self._follow: Follow[T] = follow
        self._render: Render[T] = render
        self._last_event_id: str | None = last_event_id
        self._key: Callable[[T], Hashable] | None = key

    def follow(self) -> DelayedOperation[T] | None:
        return self._follow(self._last_event_id)

    def render(self, result: T) -> bytes:
        if self._key is None:
            data, last = encoded(self._render(result))
        else:
            key = (EventStream, self._key(result))
            data, last = self.answers.shared(key, lambda: encoded(self._render(result)))
        if last is not None:
            self._last_event_id = last
        return data


def _followed(follow: Callable[[], Any]) -> DelayedOperation[Any] | None:
    """Return the next operation of a stream, or `None` at its end."""
    try:
        operation = follow()
    except PurgatoryClosed:
        return None
    if operation is None:
        return None
    if not isinstance(operation, DelayedOperation):
        raise TypeError(f"follow must return a DelayedOperation or None, not {operation!r}")
    return operation
