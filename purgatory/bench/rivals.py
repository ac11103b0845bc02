"""The implementations that ours is compared with: the usual ones on asyncio.

They have no statistics, no checks of arguments and no containment of faults.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

from purgatory import Clock, Handle

__all__ = ["CallLaterPurgatory", "EventWaiters", "Never", "Request"]


class Request(ABC):
    """An operation of the rivals: completed once, by the first call that tries."""

    __slots__ = ("completed", "handle", "owner", "timeout", "watched")

    def __init__(self, timeout: float) -> None:
        self.timeout: float = timeout
        self.completed: bool = False
        self.handle: Handle | None = None
        self.owner: CallLaterPurgatory | None = None
        self.watched: int = 0
        """The number of keys that it is watched on."""

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


class Never:
    """The methods of an operation, of ours or of the rivals, whose condition never holds."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Do nothing."""

    def on_expiration(self) -> None:
        """Do nothing."""


class _Watchers:
    """For each key, the list of its requests. Completed ones stay until a check or a purge removes them."""

    def __init__(self) -> None:
        self.lists: defaultdict[Hashable, list[Request]] = defaultdict(list)
        self.watched = 0

    def watch(self, request: Request, keys: Iterable[Hashable]) -> None:
        watched = self.watched
        for key in keys:
            self.lists[key].append(request)
            watched += 1
        self.watched = watched

    def check_and_complete(self, key: Hashable) -> int:
        """Try the requests that watch `key`, and remove the completed ones. Returns how many that completed."""
        completed = sum(not request.completed and request.try_complete() for request in self.lists[key])
        requests = self.lists[key]  # once more: a completion may have started a purge
        self.lists[key] = [request for request in requests if not request.completed]
        self.watched -= len(requests) - len(self.lists[key])
        return completed

    def purge(self) -> None:
        """Remove the completed requests from all lists, in one go."""
        pending = {
            key: alive
            for key, requests in self.lists.items()
            if (alive := [request for request in requests if not request.completed])
        }
        self.lists = defaultdict(list, pending)  # without the keys on which nothing is pending
        self.watched = sum(map(len, self.lists.values()))


class CallLaterPurgatory:
    """The same watcher lists, purged by the same estimate as ours, and a `call_at` of the loop for each request."""

    def __init__(self, clock: Clock, purge_interval: int = 1000) -> None:
        self.purges: int = 0
        self._clock = clock
        self._purge_interval = purge_interval
        self._watchers = _Watchers()
        self._living = 0
        """Entries of pending requests."""
        self.check_and_complete: Callable[[Hashable], int] = self._watchers.check_and_complete

    def try_complete_else_watch(self, request: Request, keys: Iterable[Hashable]) -> None:
        """Complete `request` if its condition holds, else keep it."""
        if request.try_complete():
            return
        before = self._watchers.watched
        self._watchers.watch(request, keys)
        if request.try_complete():
            return
        request.watched = self._watchers.watched - before
        self._living += request.watched
        request.owner = self
        request.handle = self._clock.call_at(self._clock.time() + request.timeout, request.expire)

    def completed(self, request: Request) -> None:
        """Count a request that waited and is complete. Called by the request."""
        self._living -= request.watched
        dead = self._watchers.watched - self._living
        if dead > self._purge_interval and dead > self._living:
            self.purges += 1
            self._watchers.purge()


class EventWaiters:
    """A task for each request, which waits for its `asyncio.Event` under `asyncio.timeout`."""

    def __init__(self) -> None:
        self.keys: defaultdict[Hashable, set[asyncio.Event]] = defaultdict(set)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, keys: Iterable[Hashable], timeout: float, done: Callable[[bool], object]) -> asyncio.Event:
        """Start a task that calls `done(expired)` once. Setting the event completes it."""
        event = asyncio.Event()
        task = asyncio.create_task(self._wait(event, keys, timeout, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return event

    async def _wait(
        self, event: asyncio.Event, keys: Iterable[Hashable], timeout: float, done: Callable[[bool], object]
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
