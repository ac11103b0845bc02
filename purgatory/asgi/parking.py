"""Parked requests, on the application's side of the ASGI extension `purgatory.parking`.

A request that waits for an operation keeps no task: the server drops it, and the operation tells an object of this
module when it is done. Answers are written in slices, so that a change which completes very many operations holds up
the loop no longer than others do.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, ref

from purgatory import DelayedOperation
from purgatory.lowlevel import Slice, add_waiter, close_operation, remove_waiter, report

__all__ = [
    "EXTENSION",
    "Answers",
    "BaseResponse",
    "Listener",
    "Message",
    "Parked",
    "Receive",
    "Scope",
    "Send",
    "Waiting",
    "logger",
    "park",
]

T = TypeVar("T")

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

EXTENSION: Final = "purgatory.parking"
"""The extension's name in `scope["extensions"]`."""

logger: Final = logging.getLogger("purgatory.asgi")

if TYPE_CHECKING:
    from starlette.responses import Response as BaseResponse
else:
    try:  # FastAPI takes an object for a response only if it is one of Starlette's
        from starlette.responses import Response as BaseResponse
    except ImportError:

        class BaseResponse:
            """Nothing is needed of it."""


class Parked(Protocol):
    """A parked request, on the server's side."""

    def send(self, *messages: Message) -> None:
        """Write messages of ASGI's `send`, those of one call together. Raises an exception for a wrong message."""

    def close(self) -> None:
        """Close the connection without the rest of the response."""


class Listener(Protocol):
    """The application's side of a parked request. Nothing is called any more after the last message."""

    def disconnected(self) -> None:
        """The client has disconnected."""

    def shutdown(self) -> None:
        """The server shuts down: the response is to be sent now."""

    def pause_writing(self) -> None:
        """The client does not take what was sent: no more is to be sent."""

    def resume_writing(self) -> None:
        """More may be sent."""


def park(scope: Scope, send: Send, listener: Listener) -> Parked | None:
    """Park the request of `scope`. Returns `None`, and nothing has changed, if the server cannot.

    It cannot if a middleware has wrapped `send`: that waits for messages which would pass it by.
    """
    extension = (scope.get("extensions") or {}).get(EXTENSION)
    if extension is None:
        return None
    parked: Parked | None = extension["park"](_unwrapped(send), listener)
    return parked


_NOTES_ONLY: Final = {
    ("starlette._exception_handler", "wrap_app_handling_exceptions.<locals>.wrapped_app.<locals>.sender"),
    ("starlette.middleware.errors", "ServerErrorMiddleware.__call__.<locals>._send"),
}
"""Starlette's own wrappers of `send`, of which every application has three. They note that the response has started,
for a handler of exceptions, and pass each message on as it is: after parking nothing is lost without them."""


def _unwrapped(send: Any) -> Any:
    while (getattr(send, "__module__", None), getattr(send, "__qualname__", None)) in _NOTES_ONLY:
        try:
            send = send.__closure__[send.__code__.co_freevars.index("send")].cell_contents
        except ValueError:  # another version of Starlette
            break
    return send


class Waiting(ABC):
    """A parked request that waits for an operation: a `Waiter` of the operation, a `Listener` of the server."""

    __slots__ = ("answers", "operation", "parked")

    operation: DelayedOperation[Any] | None
    parked: Parked | None
    """`None` when nothing more is to be sent."""

    def __init__(self, answers: "Answers") -> None:
        self.answers: Answers = answers
        self.operation = None
        self.parked = None

    @abstractmethod
    def answer(self) -> None:
        """The operation is done: send what it yields."""

    def wait(self, operation: DelayedOperation[Any]) -> None:
        """Let `answer` be called when `operation` is done. Raises `PurgatoryMisuse` if it cannot be awaited here."""
        self.operation = operation
        if not add_waiter(operation, self):
            self.answers.add(self)

    def take(self) -> DelayedOperation[Any]:
        """The operation, which is done. Its result counts as delivered when `take_result` was called."""
        operation, self.operation = self.operation, None
        assert operation is not None
        return operation

    def leave(self) -> None:
        """Stop waiting, as a task does that is cancelled."""
        operation, self.operation = self.operation, None
        if operation is not None:
            remove_waiter(operation, self)

    def fail(self) -> None:
        """Close the connection, as no response can be sent."""
        parked, self.parked = self.parked, None
        if parked is not None:
            parked.close()

    # As the operation's waiter.

    def done(self) -> bool:
        return False

    def set_result(self, result: None, /) -> None:
        self.answers.add(self)

    def get_loop(self) -> AbstractEventLoop:
        return self.answers.get_loop()

    # As the server's listener.

    def disconnected(self) -> None:
        self.parked = None
        self.leave()

    def shutdown(self) -> None:
        if self.operation is not None:
            close_operation(self.operation)

    @abstractmethod
    def pause_writing(self) -> None: ...

    @abstractmethod
    def resume_writing(self) -> None: ...


class Answers:
    """The parked requests of an event loop whose operations are done, the first one first."""

    __slots__ = ("_due", "_loop", "_shared")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._due: deque[Waiting] = deque()
        self._loop = ref(loop)
        self._shared: dict[Hashable, Any] = {}

    def get_loop(self) -> AbstractEventLoop:
        """The event loop."""
        loop = self._loop()
        assert loop is not None, "the connection holds its loop"
        return loop

    def add(self, waiting: Waiting) -> None:
        """Call `waiting.answer()` on one of the next iterations."""
        if not self._due:
            self.get_loop().call_soon(self._answer, context=Context())
        self._due.append(waiting)

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """The object that `make()` returned for the first one with `key` in this slice."""
        try:
            made: T = self._shared[key]
        except KeyError:
            made = self._shared[key] = make()
        return made

    def _answer(self) -> None:
        due = self._due
        slice_ = Slice(bounded=True)
        try:
            while due:
                waiting = due[0]
                try:
                    waiting.answer()
                except BaseException as exception:
                    waiting.fail()
                    if isinstance(exception, (SystemExit, KeyboardInterrupt)):
                        raise
                    report(self._loop(), "the answer of a parked request could not be sent", exception, request=waiting)
                finally:
                    due.popleft()
                if slice_.is_over():
                    break
        finally:
            self._shared = {}
            if due:
                self.get_loop().call_soon(self._answer, context=Context())


_OF_LOOP: Final[WeakKeyDictionary[AbstractEventLoop, Answers]] = WeakKeyDictionary()


def answers() -> Answers:
    """Those of the running event loop."""
    loop = asyncio.get_running_loop()
    try:
        return _OF_LOOP[loop]
    except KeyError:
        return _OF_LOOP.setdefault(loop, Answers(loop))
