"""The implementations that ours is compared with: the usual ones on asyncio, and the smallest operation of ours.

The rivals have no statistics, no checks of arguments and no containment of faults.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from purgatory import Clock, DelayedOperation, DelayedOperationPurgatory, Handle
from purgatory.bench.case import OURS

TIMEOUT: Final = 3600.0


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

    def try_complete_else_watch(self, call: Call, keys: Sequence[Hashable]) -> Call:
        """Complete `call` if its condition holds, else keep it. Returns it."""
        if call.try_complete():
            return call
        for key in keys:
            self.watching[key].add(call)
        call.keys = keys
        call.owner = self
        call.handle = self._clock.call_at(self._clock.time() + call.timeout, call.force_complete)
        return call

    def forget(self, call: Call) -> None:
        """Remove what waited and is complete. Called by the call."""
        for key in call.keys:
            self.watching[key].discard(call)


class EventWaiters:
    """A task for each waiter, which waits for its `asyncio.Event` under `asyncio.timeout`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, timeout: float, done: Callable[[bool], object]) -> asyncio.Event:
        """Start a task that calls `done(expired)` once. Setting the event completes it."""
        event = asyncio.Event()
        task = asyncio.create_task(self._wait(event, timeout, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return event

    async def _wait(self, event: asyncio.Event, timeout: float, done: Callable[[bool], object]) -> None:
        expired = False
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            expired = True
        done(expired)


Start = Callable[[int, Sequence[Hashable]], list[Any]]
"""Starts so many waits for those keys, of a task or without one, and returns what completes them."""


def _ours() -> Start:
    watch = DelayedOperationPurgatory().try_complete_else_watch
    return lambda count, keys: [watch(Operation(TIMEOUT), keys) for _ in range(count)]


def _call_later() -> Start:
    watch = CallLaterPurgatory(asyncio.get_running_loop()).try_complete_else_watch
    return lambda count, keys: [watch(Call(TIMEOUT), keys) for _ in range(count)]


def _event() -> Start:
    start = EventWaiters().start
    return lambda count, keys: [start(TIMEOUT, id) for _ in range(count)]


PENDING: "Final[dict[str, tuple[Callable[[], Start], Callable[[Any], object]]]]" = {
    OURS: (_ours, Operation.force_complete),
    "call_later": (_call_later, Call.force_complete),
    "Event + timeout": (_event, asyncio.Event.set),
}
"""For each implementation, what starts many at once, and what completes one of them."""
