"""The implementations that ours is compared with: the usual ones on asyncio.

They have no statistics, no checks of arguments and no containment of faults.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from purgatory import Clock, DelayedOperation, Handle

__all__ = ["Call", "CallLaterPurgatory", "EventWaiters", "Operation", "Request"]


class Request(ABC):
    """An operation of the rivals: completed once, by the first call that tries."""

    __slots__ = ("completed", "handle", "keys", "owner", "timeout")

    def __init__(self, timeout: float) -> None:
        self.timeout: float = timeout
        self.completed: bool = False
        self.handle: Handle | None = None
        self.owner: CallLaterPurgatory | None = None
        self.keys: Sequence[Hashable] = ()

    @abstractmethod
    def try_complete(self) -> bool:
        """Call `force_complete` if the condition holds."""

    @abstractmethod
    def on_complete(self) -> None:
        """Called once, when the request completes."""

    @abstractmethod
    def on_expiration(self) -> None:
        """Called after `on_complete` if the deadline has completed the request."""

    def force_complete(self) -> bool:
        """Complete the request, unless it is complete. Returns whether this call did."""
        if self.completed:
            return False
        self.completed = True
        if self.handle is not None:
            self.handle.cancel()
        self.on_complete()
        if self.owner is not None:
            self.owner.completed(self)
        return True

    def expire(self) -> None:
        """Complete the request at its deadline."""
        if self.force_complete():
            self.on_expiration()


class _Never:
    """The methods of an operation, of ours or of the rivals, whose condition never holds."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Do nothing."""

    def on_expiration(self) -> None:
        """Do nothing."""


class Operation(_Never, DelayedOperation[None]):
    """The smallest one of ours."""

    __slots__ = ()


class Call(_Never, Request):
    """The smallest one of the rivals."""

    __slots__ = ()


class CallLaterPurgatory:
    """A set of pending requests for each key, and a `call_at` of the loop for each request."""

    def __init__(self, clock: Clock) -> None:
        self.watching: defaultdict[Hashable, set[Request]] = defaultdict(set)
        self._clock = clock

    def try_complete_else_watch(self, request: Request, keys: Sequence[Hashable]) -> None:
        """Complete `request` if its condition holds, else keep it."""
        if request.try_complete():
            return
        for key in keys:
            self.watching[key].add(request)
        request.keys = keys
        request.owner = self
        request.handle = self._clock.call_at(self._clock.time() + request.timeout, request.expire)

    def check_and_complete(self, key: Hashable) -> int:
        """Try the requests that watch `key`. Returns how many that completed."""
        return sum(request.try_complete() for request in list(self.watching[key]))

    def completed(self, request: Request) -> None:
        """Forget a request that waited and is complete. Called by the request."""
        for key in request.keys:
            self.watching[key].discard(request)


class EventWaiters:
    """A task for each request, which waits for its `asyncio.Event` under `asyncio.timeout`."""

    def __init__(self) -> None:
        self.keys: defaultdict[Hashable, set[asyncio.Event]] = defaultdict(set)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, keys: Sequence[Hashable], timeout: float, done: Callable[[bool], object]) -> asyncio.Event:
        """Start a task that calls `done(expired)` once. Setting the event completes it."""
        event = asyncio.Event()
        task = asyncio.create_task(self._wait(event, keys, timeout, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return event

    async def _wait(
        self, event: asyncio.Event, keys: Sequence[Hashable], timeout: float, done: Callable[[bool], object]
    ) -> None:
        for key in keys:
            self.keys[key].add(event)
        expired = False
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            expired = True
        finally:
            for key in keys:
                self.keys[key].discard(event)
        done(expired)
