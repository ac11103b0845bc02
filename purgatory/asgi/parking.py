"""Parked requests, on the application's side of the ASGI extension `purgatory.parking`.

A request that waits for an operation keeps no task: the server drops it, and the operation notifies an object of this
module when it is done. Answers are written in slices, so that a change that completes very many operations holds up the
loop no longer than others.
"""

import asyncio
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections import Counter, deque
from collections.abc import Callable, Hashable
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import FrameType
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar, get_args
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from purgatory import DelayedOperation
from purgatory.asgi.frames import check_frames
from purgatory.asgi.interface import EXTENSION, NotParked, Parked, Scope, Send
from purgatory.asgi.middleware import Wrappers, warn_once
from purgatory.asgi.through import Alike, OneOfAlike, Through
from purgatory.lowlevel import Slice, add_waiter, close_operation, remove_waiter, report

T = TypeVar("T")

Way: TypeAlias = Literal["parked", "background", "middleware", "request", "server"]


@dataclass(frozen=True, slots=True)
class ParkingStatistics:
    """The waiting requests of this process since its start, by how they were handled: parked, or by a task that waits.

    For example:

        assert parking_statistics().not_parked == 0
    """

    parked: int
    """Requests that wait without a task."""
    background: int
    """Requests that keep a task because the response has a background task."""
    middleware: int
    """Requests that keep a task because of what is between the server and the response: it works after the application,
    or wraps `send` and is not known to be safe. The log names it."""
    request: int
    """Requests that keep a task because they were not complete, or the client's next one had come with them."""
    server: int
    """Requests that keep a task because the server cannot park them. `python -m purgatory.uvicorn` can."""

    @property
    def not_parked(self) -> int:
        """Requests that keep a task, for any reason."""
        return self.background + self.middleware + self.request + self.server


_counts: Final[Counter[Way]] = Counter()


def parking_statistics() -> ParkingStatistics:
    """Return how the waiting requests of this process were handled so far."""
    return ParkingStatistics(**{way: _counts[way] for way in get_args(Way)})


def count(way: Way) -> None:
    """Count a waiting request."""
    _counts[way] += 1


async def may_return(scope: Scope, frame: FrameType) -> bool:
    """Return whether the application may return now, and be answered later. Otherwise count the request.

    Args:
        scope: The request's scope.
        frame: The frame that awaits the response.
    """
    offered = (scope.get("extensions") or {}).get(EXTENSION)
    if not offered:
        count("server")
        return False
    try:
        await check_frames(frame, offered["code"], scope)
    except NotParked as why:
        count("middleware")
        warn_once(scope.get("app"), why)
        return False
    return True


def park(scope: Scope, send: Send, listener: "Answering") -> Parked | None:
    """Park the request of `scope`, and count it. Return `None` if the server or a middleware doesn't allow that."""
    offered = (scope.get("extensions") or {}).get(EXTENSION)
    if not offered:
        count("server")
        return None
    own = offered["send"]
    try:
        wrappers = Wrappers(send, own)
    except NotParked as why:
        count("middleware")
        warn_once(scope.get("app"), why)
        return None
    parked: Parked | None = offered["park"](own, listener)
    if parked is None:
        count("request")
        return None
    count("parked")
    if wrappers.outer is own:
        return parked
    key = wrappers.key(listener.is_stream)
    if key is not None:
        return OneOfAlike(parked, listener, answers().alike(key, wrappers))
    return Through(parked, listener, wrappers.outer, copy_context(), wrappers)


class Answering(ABC):
    """The application's side of a parked request: a `ParkedApplication` of the server."""

    __slots__ = ("parked",)

    is_stream: ClassVar[bool] = True
    parked: Parked | None
    """`None` when nothing more must be sent."""

    def __init__(self) -> None:
        self.parked = None

    def fail(self) -> None:
        """Close the connection, because no response can be sent."""
        parked, self.parked = self.parked, None
        if parked is not None:
            parked.close()

    def returned(self) -> None:
        if isinstance(self.parked, Through):
            self.parked.release()

    @abstractmethod
    def disconnected(self) -> None: ...

    @abstractmethod
    def shutdown(self) -> None: ...

    @abstractmethod
    def pause_writing(self) -> None: ...

    @abstractmethod
    def resume_writing(self) -> None: ...


class Waiting(Answering):
    """A parked request that waits for an operation. It is also a `Waiter` of the operation."""

    __slots__ = ("answers", "operation")

    operation: DelayedOperation[Any] | None
    parked: Parked | None

    def __init__(self, answers: "Answers") -> None:
        super().__init__()
        self.answers: Answers = answers
        self.operation = None

    @abstractmethod
    def answer(self) -> None:
        """Send the result of the operation, which is done."""

    def wait(self, operation: DelayedOperation[Any]) -> None:
        """Call `answer` when `operation` is done. Raise `PurgatoryMisuse` if it cannot be awaited here."""
        self.operation = operation
        if not add_waiter(operation, self):
            self.answers.add(self)

    def take(self) -> DelayedOperation[Any]:
        """Return the operation, which is done. Its result counts as delivered after `take_result`."""
        operation, self.operation = self.operation, None
        assert operation is not None
        return operation

    def leave(self) -> None:
        """Stop waiting, as a cancelled task does."""
        operation, self.operation = self.operation, None
        if operation is not None:
            remove_waiter(operation, self)

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


class Answers:
    """The parked requests of an event loop whose operations are done, in order."""

    __slots__ = ("_alike", "_due", "_loop", "_shared")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._due: deque[Waiting] = deque()
        self._loop = ref(loop)
        self._shared: dict[Hashable, Any] = {}
        self._alike: WeakValueDictionary[Hashable, Alike] = WeakValueDictionary()

    def get_loop(self) -> AbstractEventLoop:
        """Return the event loop."""
        loop = self._loop()
        assert loop is not None, "the connection holds its loop"
        return loop

    def add(self, waiting: Waiting) -> None:
        """Call `waiting.answer()` on one of the next iterations."""
        if not self._due:
            self.get_loop().call_soon(self._answer, context=Context())
        self._due.append(waiting)

    def alike(self, key: Hashable, wrappers: Wrappers) -> Alike:
        """Return the wrappers that the requests with `key` share. If there are none yet, make them like these."""
        try:
            return self._alike[key]
        except KeyError:
            made = self._alike[key] = Alike(wrappers)
            return made

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object that `make()` made for the first request with `key` in this slice."""
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
    """Return the answers of the running event loop."""
    loop = asyncio.get_running_loop()
    try:
        return _OF_LOOP[loop]
    except KeyError:
        return _OF_LOOP.setdefault(loop, Answers(loop))
