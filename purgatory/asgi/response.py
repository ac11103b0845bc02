"""A response that waits for an operation."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from purgatory._checks import check_callback
from purgatory.asgi.disconnects import ClientDisconnected, unless_disconnected
from purgatory.asgi.parking import (
    INTERNAL_SERVER_ERROR,
    Answers,
    BaseResponse,
    Message,
    Receive,
    Scope,
    Send,
    Waiting,
    answers,
    logger,
    park,
    plain,
)
from purgatory.errors import OperationCancelled
from purgatory.operation import DelayedOperation

__all__ = ["Answer", "DelayedResponse", "check_operation"]

T = TypeVar("T")


class Answer(Protocol):
    """The object that `render` returns: Starlette's `Response`, for one."""

    status_code: int
    raw_headers: list[tuple[bytes, bytes]]

    @property
    def body(self) -> bytes | memoryview: ...


class DelayedResponse(BaseResponse, Generic[T]):  # type: ignore[misc]  # Starlette's, where that is installed
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
        check_operation(operation)
        check_callback("render", render)
        if key is not None:
            check_callback("key", key)
        self.operation = operation
        self.renderer = render
        self.key = key
        self.background: Callable[[], Any] | None = None
        """A background task, which FastAPI sets. With one, the request is not parked."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, as an ASGI application."""
        operation = self.operation
        if self.background is None and not operation.done():
            waiting = _WaitingResponse(answers(), self.renderer, self.key)
            if waiting.begin(scope, send, operation):
                return
        try:
            await unless_disconnected(receive, operation)
        except ClientDisconnected:
            return
        except Exception as exception:
            if not _is_outcome(operation, exception):
                raise
        for message in _rendered(operation, self.renderer):
            await send(message)
        if self.background is not None:
            await self.background()


class _WaitingResponse(Waiting, Generic[T]):
    """A parked request that gets one response."""

    __slots__ = ("key", "render")

    def __init__(self, answers: Answers, render: Callable[[T], Answer], key: Callable[[T], Hashable] | None) -> None:
        super().__init__(answers)
        self.render = render
        self.key = key

    def begin(self, scope: Scope, send: Send, operation: DelayedOperation[T]) -> bool:
        """Park the request. Returns whether the server could."""
        parked = park(scope, send, self)
        if parked is None:
            return False
        self.parked = parked
        try:
            self.wait(operation)
        except BaseException:
            self.parked = None
            logger.exception("a parked request cannot wait for %r", operation)
            parked.send(*INTERNAL_SERVER_ERROR)
        return True

    def answer(self) -> None:
        parked, self.parked = self.parked, None
        if parked is None or self.operation is None:
            return  # disconnected meanwhile
        operation = self.take()
        messages = self._messages(operation)
        try:
            parked.send(*messages)
        except Exception:
            logger.exception("the response of %r cannot be sent", self.render)
            parked.send(*INTERNAL_SERVER_ERROR)

    def pause_writing(self) -> None:
        """Nothing more is sent anyway."""

    def resume_writing(self) -> None:
        """Nothing more is sent anyway."""

    def _messages(self, operation: DelayedOperation[T]) -> tuple[Message, Message]:
        if self.key is None or not operation.done() or operation.cancelled() or operation.exception() is not None:
            return _rendered(operation, self.render)
        try:
            key = self.key(operation.result())
            return self.answers.shared(key, lambda: _rendered(operation, self.render))
        except Exception:
            logger.exception("key raised")
            return INTERNAL_SERVER_ERROR


def _rendered(operation: DelayedOperation[T], render: Callable[[T], Answer]) -> tuple[Message, Message]:
    """The messages of the response for the outcome of `operation`, which is done."""
    try:
        answer = render(operation.result())
        return (
            {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers},
            {"type": "http.response.body", "body": answer.body},
        )
    except OperationCancelled:
        return plain(503, "Service Unavailable")
    except Exception:
        logger.exception("no response for %r", operation)
        return INTERNAL_SERVER_ERROR


def _is_outcome(operation: DelayedOperation[Any], exception: Exception) -> bool:
    """Whether awaiting `operation` has raised `exception`, and not `receive`."""
    if operation.cancelled():
        return isinstance(exception, OperationCancelled)
    return operation.done() and operation.exception() is exception


def check_operation(operation: object) -> None:
    """Raise `TypeError` unless `operation` is one."""
    if not isinstance(operation, DelayedOperation):
        raise TypeError(f"operation must be a DelayedOperation, not {operation!r}")
