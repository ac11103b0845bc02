"""Checks of one key in slices or with a limit, and the queue of the checks for the next iteration."""

import math
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Final

from purgatory._core.owner import Owner
from purgatory._core.watchers import compact_in_slices, skip_dead
from purgatory._loop.clock import Handle
from purgatory._loop.slices import ExitRequests, Slice, call_next
from purgatory._loop.threads import Mailbox

_NO_LIMIT: Final = math.inf
_TRIES: Final = 50
"""Tries between two looks at the time. A try takes well under a microsecond, unless it completes the operation."""


class Check:
    """A check of one key, in slices or with a limit."""

    __slots__ = ("completed", "key", "limit", "queued", "requested", "steps")

    def __init__(self, key: Hashable, limit: float = 0) -> None:
        self.key = key
        self.limit = limit
        """The most operations that may complete in this pass, or infinity."""
        self.completed = 0
        """The operations that have completed in this pass."""
        self.steps: Iterator[int] | None = None
        """The rest of the pass, if it has begun."""
        self.requested: float = 0
        """The limit of the next pass: the sum of the limits requested since the last pass began."""
        self.queued = False
        """Whether it is in the queue."""

    def run(self, owner: Owner) -> Iterator[int]:
        """Try the operations that watch the key now. After each part, yield how many entries it had.

        A request to exit is raised at the end.
        """
        watchers = owner.lists.find(self.key)
        if watchers is None:
            return
        entries = watchers.entries
        length = len(entries)
        at = head = watchers.head
        size = _TRIES if self.limit == _NO_LIMIT else 1
        has_dead = False
        exits = ExitRequests()
        while at < length and self.completed < self.limit:
            part = entries[at : min(at + size, length)]
            self.completed += owner.try_each(part, exits)
            alive = sum(entry.operation is not None for entry in part)
            has_dead = has_dead or alive < len(part)
            if head == at and not alive:
                head += len(part)  # dead at the front: skipped from now on
            at += len(part)
            yield len(part)
        if skip_dead(watchers, entries, head) or (has_dead and at == length):
            yield from compact_in_slices(owner, watchers)
        exits.raise_first()


class CheckQueue:
    """The keys to check on the next iterations of the loop, each in slices."""

    __slots__ = ("_checks", "_handle", "_is_due", "_owner", "_queue", "mailbox")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        # The requested checks, in the order in which they go on, and by key.
        self._queue: deque[Check] = deque()
        self._checks: dict[Hashable, Check] = {}
        self._is_due = False
        """Whether the clock will call back to go on with the queue."""
        self._handle: Handle | None = None
        self.mailbox: Mailbox[Hashable] = Mailbox(self._take_mail)
        """Keys from `check_and_complete_threadsafe`."""

    def request(self, key: Hashable, limit: int | None = None) -> None:
        """Check `key` on the next iteration. Calls for the same key make one pass with the sum of their limits."""
        check = self._checks.get(key)
        if check is None:
            if self._owner.lists.find(key) is None:
                return
            check = self._checks[key] = Check(key)
        check.requested += _NO_LIMIT if limit is None else limit
        if not check.queued:
            check.queued = True
            self._queue.append(check)
        if not self._is_due:
            self._schedule()

    def close(self) -> None:
        """Forget all requests."""
        self._queue.clear()
        self._checks.clear()
        handle, self._handle = self._handle, None
        self._is_due = False
        if handle is not None:
            handle.cancel()

    def _schedule(self) -> None:
        self._is_due = True
        try:
            self._handle = call_next(self._owner.timer.clock, self._run)
        except BaseException:
            self._is_due = False
            raise

    def _run(self) -> None:
        """Go on with the checks, a slice of each, so that a long check does not hold up the others."""
        self._is_due = False
        self._handle = None
        slice_ = self._owner.timer.new_slice()
        left = len(self._queue)  # checks that are requested meanwhile come after this slice
        exits = ExitRequests()
        is_over = False
        try:
            while left > 0 and self._queue and not is_over:
                left -= 1
                with exits:
                    self._continue(self._queue.popleft(), slice_)
                is_over = slice_.is_over()
        finally:
            if self._owner.closed:
                self._queue.clear()
            if self._queue and not self._is_due:
                self._schedule()
        self._owner.timer.note_slice(slice_)
        exits.raise_first()

    def _continue(self, check: Check, slice_: Slice) -> None:
        """Go on with a check, until it or the slice ends."""
        try:
            if check.steps is None:
                check.limit, check.requested = check.requested, 0
                check.completed = 0
                check.steps = check.run(self._owner)
            for entries in check.steps:
                if slice_.is_over(entries):
                    self._queue.append(check)
                    return
        except Exception as exception:  # of the key's own __hash__ or __eq__
            self._owner.report_key(exception)
        except BaseException:
            self._end(check)
            raise
        self._end(check)

    def _end(self, check: Check) -> None:
        """Put a check at the end of the queue if it was requested again, else forget it."""
        check.steps = None
        check.queued = check.requested > 0
        if check.queued:
            self._queue.append(check)
            return
        try:
            self._checks.pop(check.key, None)
        except Exception as exception:
            self._owner.report_key(exception)

    def _take_mail(self) -> None:
        """Take the keys of `check_and_complete_threadsafe`, in slices."""
        keys = self.mailbox.values
        slice_ = self._owner.timer.new_slice()
        exits = ExitRequests()
        is_over = False
        while keys and not is_over:
            with exits:
                try:
                    self.request(keys.popleft())
                except Exception as exception:
                    self._owner.report_key(exception)
            is_over = slice_.is_over_cheaply()
        if keys and self._owner.loop is not None:
            self.mailbox.take_rest(self._owner.loop)
        self._owner.timer.note_slice(slice_)
        exits.raise_first()
