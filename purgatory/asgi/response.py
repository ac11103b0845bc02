"""A response that waits for an operation."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from purgatory import DelayedOperation, OperationCancelled
from purgatory.asgi.disconnects import ClientDisconnected, unless_disconnected
from purgatory.asgi.interface import BaseResponse, Message, Receive, Scope, Send, logger
from purgatory.asgi.parking import Answers, Waiting, answers, count, park
from purgatory.lowlevel import check_callback, take_result

__all__ = ["Answer", "DelayedResponse", "Rendered", "WaitingResponse"]

T = TypeVar("T")


class Answer(Protocol):
    """The object that `render` returns: Starlette's `Response`, for one."""

    status_code: int
    raw_headers: list[tuple[bytes, bytes]]

    @property
    def body(self) -> bytes | memoryview: ...


class DelayedResponse(BaseResponse, Generic[T]):  # Starlette's, where that is installed
    """A response that is sent when an operation is done. A handler returns it like any other response.

        async def fetch(request):
            operation = purgatory.try_complete_else_watch(Fetch(...), ["topic"])
            return DelayedResponse(operation, JSONResponse)

    Behind a server with the ASGI extension `purgatory.parking` (`python -m purgatory.uvicorn`) the request is *parked*:
    its task ends, and with it everything that is tied to the request. The server keeps the connection and the
    operation. Behind another server, or a middleware that wraps `send`, the task waits: the client gets the same
    response. When the client disconnects, the operation is left as by an awaiting task that is cancelled.

    If the operation was cancelled, the response is a 503; if it has failed or `render` raises, a 500, and the exception
    is logged to `purgatory.asgi`.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _: object) -> "type[DelayedResponse]":
            """The class itself, because FastAPI takes an annotation for a response only if it is a class."""
            return cls

    def __init__(
        self,
        operation: DelayedOperation[T],
        render: Callable[[T], Answer],
        *,
        key: Callable[[T], Hashable] | None = None,
    ) -> None:
        """Send `render(result)` when `operation` is done, which was handed to its purgatory.

        `render` is a plain function that returns an object with `status_code`, `raw_headers` and `body`, as Starlette's
        `Response` has them. It is called in an empty context.

        `key(result)` is equal for results of which the responses are equal, among all that have a key: of many parked
        requests that are answered in one iteration of the loop, the first one with a key is rendered for all.

        Raises `TypeError` if `operation` is no operation, and if `render` or `key` cannot be called or is async.
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, as an ASGI application."""
        operation = self.operation
        if not operation.done():
            if self.background is not None:
                count("background")
            elif self.waiting_response().begin(scope, send, operation):
                return
        try:
            await unless_disconnected(receive, operation)
        except ClientDisconnected:
            # Nobody gets it, but a middleware that awaits a response has one: nginx's status for this.
            for message in _messages(_LEFT):
                await send(message)
            return
        except Exception as exception:
            if not _is_outcome(operation, exception):
                raise
        for message in _messages(_rendered(operation, self.renderer)):
            await send(message)
        if self.background is not None:
            await self.background()

    def waiting_response(self) -> "WaitingResponse[T]":
        """The state of the response while the request is parked."""
        return WaitingResponse(answers(), self.renderer, self.key)


Rendered: TypeAlias = tuple[int, Sequence[tuple[bytes, bytes]], bytes | memoryview]
"""Status, headers and body of a response. It is never changed: many may be sent the same one."""

_FAULTS: Final = (Exception, asyncio.CancelledError)
"""The latter is raised by `result()` of a cancelled future, for one, and would end no task here."""


def _text(status: int, text: str) -> Rendered:
    body = text.encode()
    return status, ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))), body


_FAILED: Final = _text(500, "Internal Server Error")
_CANCELLED: Final = _text(503, "Service Unavailable")
_LEFT: Final = _text(499, "Client Closed Request")


def _rendered(operation: DelayedOperation[T], render: Callable[[T], Answer]) -> Rendered:
    """The response for the outcome of `operation`, which is done."""
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
    return f"render must return a response, not a {type(answer).__name__}: JSONResponse(value)?"


def _messages(rendered: Rendered) -> tuple[Message, Message]:
    """The messages of a response, new ones: a middleware may change them in place."""
    status, headers, body = rendered
    return (
        {"type": "http.response.start", "status": status, "headers": list(headers)},
        {"type": "http.response.body", "body": body},
    )


class WaitingResponse(Waiting, Generic[T]):
    """A parked request that gets one response."""

    __slots__ = ("key", "render")

    def __init__(self, answers: Answers, render: Callable[[T], Answer], key: Callable[[T], Hashable] | None) -> None:
        super().__init__(answers)
        self.render: Callable[[T], Answer] = render
        self.key: Callable[[T], Hashable] | None = key

    def begin(self, scope: Scope, send: Send, operation: DelayedOperation[T]) -> bool:
        """Park the request. Returns whether the server could."""
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
        """Send the response, or close the connection and raise if that is wrong."""
        assert self.parked is not None
        try:
            self.parked.send(*_messages(rendered))
        except BaseException:
            if rendered is _FAILED:
                self.fail()
            raise
        self.parked = None

    def pause_writing(self) -> None:
        """Nothing more is sent anyway."""

    def resume_writing(self) -> None:
        """Nothing more is sent anyway."""

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
    """Whether awaiting `operation` has raised `exception`, and not `receive`."""
    if operation.cancelled():
        return isinstance(exception, OperationCancelled)
    return operation.done() and operation.exception() is exception
