"""A response that waits for an operation."""

import asyncio
import sys
from collections.abc import Callable, Hashable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from purgatory import DelayedOperation, OperationCancelled
from purgatory.asgi.disconnects import ClientDisconnected, unless_disconnected
from purgatory.asgi.interface import BaseResponse, Message, Receive, Scope, Send, logger
from purgatory.asgi.parking import Answers, Waiting, answers, count, may_return, park
from purgatory.lowlevel import abandon, check_callback, take_result

T = TypeVar("T")


class Answer(Protocol):
    """The object that `render` returns, for example Starlette's `Response`."""

    status_code: int
    raw_headers: list[tuple[bytes, bytes]]

    @property
    def body(self) -> bytes | memoryview: ...


class DelayedResponse(BaseResponse, Generic[T]):  # Starlette's, where that is installed
    """A response that is sent when an operation is done. A handler returns it like any other response.

        async def fetch(request):
            operation = purgatory.try_complete_else_watch(Fetch(...), ["topic"])
            return DelayedResponse(operation, JSONResponse)

    On a server with the ASGI extension `purgatory.parking` (`python -m purgatory.uvicorn`), the request is *parked*.
    Its task ends, and the server keeps only the connection and the operation. On another server, or behind a middleware
    that works after the application, the task waits, and the client gets the same response. When the client
    disconnects, or the response is dropped without being run, the operation is cancelled unless others await it.

    If the operation was cancelled, the response is a 503. If it has failed or `render` raises, the response is a 500
    and the exception is logged to `purgatory.asgi`.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _: object) -> "type[DelayedResponse]":
            """Return the class itself, because FastAPI accepts only a class as the annotation of a response."""
            return cls

    _was_run = True

    def __init__(
        self,
        operation: DelayedOperation[T],
        render: Callable[[T], Answer],
        *,
        key: Callable[[T], Hashable] | None = None,
    ) -> None:
        """Make a response from an operation.

        Args:
            operation: An operation that was handed to its purgatory.
            render: Called with the result, in an empty context. It returns an object with `status_code`, `raw_headers`
                and `body`, such as Starlette's `Response`.
            key: Called with the result. Results with equal keys get the same response, which is rendered once per loop
                iteration.

        Raises:
            TypeError: `operation` is not an operation, or `render` or `key` is not callable or is `async`.
        """
        if not isinstance(operation, DelayedOperation):
            raise TypeError(f"operation must be a DelayedOperation, not {operation!r}")
        check_callback("render", render)
        if key is not None:
            check_callback("key", key)
        self.operation = operation
        self.renderer = render
        self.key = key
        self.background: Any = None
        """A background task, which FastAPI sets. With one, the request is not parked."""
        self._was_run = False

    def __del__(self) -> None:
        if not self._was_run:  # by a framework that doesn't know this class
            abandon(self.operation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, as an ASGI application."""
        self._was_run = True
        operation = self.operation
        if not operation.done():
            if self.background is not None:
                count("background")
            elif await self._parks(scope, send, sys._getframe(1)):
                return
        try:
            await unless_disconnected(receive, operation)
        except ClientDisconnected:
            # Nobody gets it, except for a middleware that awaits a response. 499 is nginx's status for this.
            for message in _messages(_LEFT):
                await send(message)
            await self._finish()
            return
        except Exception as exception:
            if not _is_outcome(operation, exception):
                raise
        for message in _messages(_rendered(operation, self.renderer)):
            await send(message)
        await self._finish()

    async def _parks(self, scope: Scope, send: Send, frame: FrameType) -> bool:
        """Park the request, unless something is left to run between `frame` and the server. Return whether it is."""
        try:
            return await may_return(scope, frame) and self.waiting_response().begin(scope, send, self.operation)
        except BaseException:  # the task is cancelled
            abandon(self.operation)
            raise

    async def _finish(self) -> None:
        if self.background is not None:  # also if the client has left, as with Starlette's own responses
            await self.background()

    def waiting_response(self) -> "WaitingResponse[T]":
        """Return the state of the response while the request is parked."""
        return WaitingResponse(answers(), self.renderer, self.key)


Rendered: TypeAlias = tuple[int, Sequence[tuple[bytes, bytes]], bytes | memoryview]
"""Status, headers and body of a response. It is never changed, because many requests may share it."""

_FAULTS: Final = (Exception, asyncio.CancelledError)
"""`result()` of a cancelled future raises the latter, for example, and it would end no task here."""


def _text(status: int, text: str) -> Rendered:
    body = text.encode()
    return status, ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))), body


_FAILED: Final = _text(500, "Internal Server Error")
_CANCELLED: Final = _text(503, "Service Unavailable")
_LEFT: Final = _text(499, "Client Closed Request")


def _rendered(operation: DelayedOperation[T], render: Callable[[T], Answer]) -> Rendered:
    """Return the response for the outcome of `operation`, which is done."""
    try:
        answer = render(take_result(operation))
        try:
            return answer.status_code, tuple(answer.raw_headers), answer.body
        except AttributeError:
            wrong = _wrong(answer)
            logger.error("no response for %r: %s", operation, wrong)
            return _text(500, f"Internal Server Error: {wrong}")
    except OperationCancelled:
        return _CANCELLED
    except _FAULTS:
        logger.exception("no response for %r", operation)
        return _FAILED


def _wrong(answer: object) -> str:
    if isinstance(answer, BaseResponse):
        return f"render must return a response that has its body at once, not a {type(answer).__name__}"
    return f"render must return a response, not a {type(answer).__name__}: return JSONResponse(value)"


def _messages(rendered: Rendered) -> tuple[Message, Message]:
    """Return the messages of a response, new each time because a middleware may change them in place."""
    status, headers, body = rendered
    return (
        {"type": "http.response.start", "status": status, "headers": list(headers)},
        {"type": "http.response.body", "body": body},
    )


class WaitingResponse(Waiting, Generic[T]):
    """A parked request that gets one response."""

    __slots__ = ("key", "render")

    is_stream = False

    def __init__(self, answers: Answers, render: Callable[[T], Answer], key: Callable[[T], Hashable] | None) -> None:
        super().__init__(answers)
        self.render: Callable[[T], Answer] = render
        self.key: Callable[[T], Hashable] | None = key

    def begin(self, scope: Scope, send: Send, operation: DelayedOperation[T]) -> bool:
        """Park the request. Return whether the server could."""
        parked = park(scope, send, self)
        if parked is None:
            return False
        self.parked = parked
        try:
            self.wait(operation)
        except Exception:
            logger.exception("a parked request cannot wait for %r", operation)
            self.send(_FAILED)
        return True

    def answer(self) -> None:
        if self.parked is None or self.operation is None:
            return  # disconnected meanwhile
        operation = self.take()
        try:
            self.send(self._rendered(operation))
        except Exception:
            logger.exception("the response of %r cannot be sent", self.render)
            self.send(_FAILED)

    def send(self, rendered: Rendered) -> None:
        """Send the response, or close the connection and raise if the response is wrong."""
        assert self.parked is not None
        try:
            self.parked.send(*_messages(rendered))
        except BaseException:
            if rendered is _FAILED:
                self.fail()
            raise
        self.parked = None

    def pause_writing(self) -> None:
        """Do nothing, because nothing more is sent."""

    def resume_writing(self) -> None:
        """Do nothing, because nothing more is sent."""

    def _rendered(self, operation: DelayedOperation[T]) -> Rendered:
        if self.key is None or operation.cancelled() or operation.exception() is not None:
            return _rendered(operation, self.render)
        try:
            key = (DelayedResponse, self.key(take_result(operation)))
            return self.answers.shared(key, lambda: _rendered(operation, self.render))
        except _FAULTS:
            logger.exception("key raised")
            return _FAILED


def _is_outcome(operation: DelayedOperation[Any], exception: Exception) -> bool:
    """Return whether `exception` comes from awaiting `operation`, and not from `receive`."""
    if operation.cancelled():
        return isinstance(exception, OperationCancelled)
    return operation.done() and operation.exception() is exception
