"""The implementations that ours is compared with: the usual ones on asyncio, and the smallest operation of ours.

They have no statistics, no checks of arguments and no containment of faults.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from purgatory import Clock, DelayedOperation, Handle

__all__ = ["Call", "CallLaterPurgatory", "EventWaiters", "Operation"]


class Operation(DelayedOperation[None]):
    """The smallest one of ours: its condition never holds."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Do nothing."""


class Call:
    """An operation of the rivals, with the same methods. It is completed once, by the first call that tries."""

    __slots__ = ("completed", "handle", "keys", "owner", "timeout")

    def __init__(self, timeout: float) -> None:
        self.timeout: float = timeout
        self.completed: bool = False
        self.handle: Handle | None = None
        self.owner: CallLaterPurgatory | None = None
        self.keys: Sequence[Hashable] = ()

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Do nothing."""

    def force_complete(self) -> bool:
        """Complete the call, unless it is complete. Returns whether it was not."""
        if self.completed:
            return False
        self.completed = True
        if self.handle is not None:
            self.handle.cancel()
        self.on_complete()
        if self.owner is not None:
            self.owner.forget(self)
        return True


class CallLaterPurgatory:
    """A set of pending calls for each key, and a `call_at` of the loop for each call."""

    def __init__(self, clock: Clock) -> None:
        self.watching: defaultdict[Hashable, set[Call]] = defaultdict(set)
        self._clock = clock

    def try_complete_else_watch(self, call: Call, keys: Sequence[Hashable]) -> None:
        """Complete `call` if its condition holds, else keep it."""
        if call.try_complete():
            return
        for key in keys:
            self.watching[key].add(call)
        call.keys = keys
        call.owner = self
        call.handle = self._clock.call_at(self._clock.time() + call.timeout, call.force_complete)

    def forget(self, call: Call) -> None:
        """Remove what waited and is complete. Called by the call."""
        for key in call.keys:
            self.watching[key].discard(call)


class EventWaiters:
    """A task for each waiter, which waits for its `asyncio.Event` under `asyncio.timeout`."""

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
