"""Passes over the operations that watch a key, and the queue of those that are due on the next iteration."""

import math
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from contextvars import Context
from typing import Final

from purgatory import _speedups
from purgatory._core.clock import Handle, report
from purgatory._core.operation import PENDING
from purgatory._core.owner import Owned, Owner
from purgatory._core.slices import Slice, call_next
from purgatory._core.watchers import Entry, Watchers

__all__ = ["CheckQueue", "Pass", "try_all", "walk"]

_NEVER: Final = math.inf
_TRIES: Final = 50
"""Tries between two looks at the time: one takes a fraction of a microsecond, unless it completes the operation."""


class Pass:
    """A check of one key in slices, or with a limit."""

    __slots__ = ("completed", "key", "limit", "queued", "requested", "walk")

    def __init__(self, key: Hashable, limit: float = 0) -> None:
        self.key = key
        self.limit = limit
        """The most operations that may complete in this pass; infinity without a limit."""
        self.completed = 0
        """The operations that have completed in this pass."""
        self.walk: Iterator[int] | None = None
        """The rest of the pass, if it has begun."""
        self.requested: float = 0
        """The limit of the next pass: the sum of those requested since the last one began."""
        self.queued = False
        """Whether it is in the queue."""


class CheckQueue:
    """The keys that are to be checked on the next iterations of the loop, each in slices."""

    __slots__ = ("_foreign", "_foreign_due", "_handle", "_is_due", "_owner", "_passes", "_queue")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        # The passes that were requested, in the order in which they go on, and by key.
        self._queue: deque[Pass] = deque()
        self._passes: dict[Hashable, Pass] = {}
        self._is_due = False
        """Whether the clock will call back to go on with the queue."""
        self._handle: Handle | None = None
        self._foreign: deque[Hashable] = deque()
        """Keys from check_and_complete_threadsafe."""
        self._foreign_due = False
        """Whether the loop will call back to take them."""

    def request(self, key: Hashable, limit: int | None = None) -> None:
        """Check `key` on the next iteration. Calls for the same key make one pass, whose limit is the sum of theirs."""
        wanted = self._passes.get(key)
        if wanted is None:
            if key not in self._owner.lists:
                return
            wanted = self._passes[key] = Pass(key)
        # No call from here: it is in the queue, which alone matters, or this call puts it there.
        wanted.requested += _NEVER if limit is None else limit
        is_queued = wanted.queued
        wanted.queued = True
        # To here.
        if not is_queued:
            self._queue.append(wanted)
        if not self._is_due:
            self._schedule_check()

    def request_threadsafe(self, key: Hashable, loop: AbstractEventLoop) -> None:
        """`request`, for other threads. Many calls wake the loop once."""
        foreign = self._foreign
        with suppress(IndexError):
            if foreign[-1] is key:
                return  # not taken yet: it will be checked after this call
        foreign.append(key)
        # The flag is set before the loop is called, and reset before keys are taken: no key is left behind.
        if not self._foreign_due or loop.is_closed():
            self._foreign_due = True
            try:
                loop.call_soon_threadsafe(self._take_foreign, context=Context())
            except BaseException:
                self._foreign_due = False
                foreign.clear()
                raise

    def close(self) -> None:
        """Forget all requests."""
        self._queue.clear()
        self._passes = {}  # clear() inside a key's own __eq__ breaks a dict of CPython 3.13.0
        handle, self._handle = self._handle, None
        self._is_due = False
        if handle is not None:
            handle.cancel()

    def _schedule_check(self) -> None:
        self._is_due = True
        try:
            self._handle = call_next(self._owner.timer.clock, self._check_queue)
        except BaseException:
            self._is_due = False
            raise

    def _check_queue(self) -> None:
        """Go on with the passes, a slice of each, so that a long one does not hold up the others."""
        self._is_due = False
        self._handle = None
        queue = self._queue
        part = self._owner.timer.new_slice()
        left = len(queue)  # those requested meanwhile come after this slice
        leaving: BaseException | None = None
        try:
            while left > 0 and queue:
                left -= 1
                try:
                    over = self._continue_pass(queue.popleft(), part)
                except (SystemExit, KeyboardInterrupt) as exception:
                    leaving = leaving or exception
                    over = part.is_over()
                if over:
                    break
        finally:
            if self._owner.closed:
                queue.clear()
            if queue and not self._is_due:
                self._schedule_check()
            self._owner.timer.note_slice(part)
        if leaving is not None:
            raise leaving

    def _continue_pass(self, current: Pass, part: Slice) -> bool:
        """Go on with a pass, until it or the slice ends. Returns whether the slice is over."""
        try:
            if current.walk is None:
                current.limit, current.requested = current.requested, 0
                watchers = self._owner.lists.find(current.key)
                length = 0 if watchers is None else len(watchers.entries)
                if length <= _TRIES and current.limit == _NEVER:
                    if watchers is not None:
                        try_all(self._owner, watchers)
                    part.left -= length
                else:
                    current.completed = 0
                    current.walk = walk(self._owner, current)
            for entries in current.walk or ():
                if part.is_over(entries):
                    self._queue.append(current)
                    return True
        except Exception as exception:  # from the key's own __hash__ or __eq__
            report(self._owner.timer.clock, "a watch key cannot be looked up", exception)
        except BaseException:
            self._end_pass(current)
            raise
        self._end_pass(current)
        return part.is_over()

    def _end_pass(self, current: Pass) -> None:
        """Put a pass at the end of the queue if it was requested again, else forget it."""
        current.walk = None
        # No call from here: a request finds it in the queue, or puts it there.
        again = current.requested > 0
        current.queued = again
        # To here.
        if again:
            self._queue.append(current)
        else:
            try:
                self._passes.pop(current.key, None)
            except Exception as exception:
                report(self._owner.timer.clock, "a watch key cannot be looked up", exception)

    def _take_foreign(self) -> None:
        """Take the keys of `check_and_complete_threadsafe`, in slices."""
        self._foreign_due = False
        foreign = self._foreign
        part = self._owner.timer.new_slice()
        leaving: BaseException | None = None
        while foreign:
            try:
                self.request(foreign.popleft())
            except (SystemExit, KeyboardInterrupt) as exception:
                leaving = leaving or exception
            except Exception as exception:
                report(self._owner.timer.clock, "a watch key cannot be looked up", exception)
            if part.is_over_cheaply() and foreign:
                self._foreign_due = True
                call_next(self._owner.timer.clock, self._take_foreign)
                break
        self._owner.timer.note_slice(part)
        if leaving is not None:
            raise leaving


def try_each(owner: Owner, entries: Iterable[Entry[Owned]]) -> int:
    """Try the operations of `entries` that are alive. Returns how many of them that completed.

    A request to exit is raised at the end.
    """
    completed = 0
    leaving: BaseException | None = None
    operation: Owned | None = None
    try:
        for entry in entries:
            if entry:
                operation = entry[0]
                # As _purgatory_attempt, without its call: a third of a try.
                try:
                    if (claimed := operation.try_complete()) and operation._purgatory_state is PENDING:
                        operation._purgatory_fail_false_claim(claimed)
                except BaseException as exception:
                    claimed = False
                    try:
                        operation._purgatory_fail_attempt(exception, owner)
                    except (SystemExit, KeyboardInterrupt) as request:
                        leaving = leaving or request
                if not entry and (claimed or operation.outcome == "satisfied"):  # completed, and has not said so
                    completed += 1
    finally:
        operation = None  # a traceback that is kept holds this frame
    if leaving is not None:
        raise leaving
    return completed


def try_all(owner: Owner, watchers: Watchers[Owned]) -> int:
    """Try the operations of a list in one go, and compact it. Returns how many of them that completed."""
    entries = watchers.entries.copy()
    try:
        return try_each(owner, entries)
    finally:
        if not all(entries):
            owner.compact(watchers)


if _speedups.c is not None:  # pragma: no cover - where that was built
    try_each, try_all = _speedups.c.try_each, _speedups.c.try_all


def walk(owner: Owner, current: Pass) -> Iterator[int]:
    """Try the operations that watch a key now; yield after each piece of work how many entries it had.

    A request to exit is raised at the end.
    """
    watchers = owner.lists.find(current.key)
    if watchers is None:
        return
    entries = watchers.entries
    length = len(entries)
    at = head = watchers.head
    size = _TRIES if current.limit == _NEVER else 1
    is_dead = False
    leaving: BaseException | None = None
    while at < length and current.completed < current.limit:
        part = entries[at : min(at + size, length)]
        try:
            current.completed += try_each(owner, part)
        except (SystemExit, KeyboardInterrupt) as exception:
            leaving = leaving or exception
            current.completed += not all(part)  # with a limit, each part is one entry
        if not all(part):
            is_dead = True
            if head == at and not any(part):
                head += len(part)  # dead at the front: skipped from now on
        at += len(part)
        yield len(part)
    if owner.lists.skip(watchers, entries, head) or (is_dead and at == length):
        yield from owner.compact_in_slices(watchers)
    if leaving is not None:
        raise leaving
