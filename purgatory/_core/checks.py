"""Checks of keys on the next iterations of the loop, each in slices, and the keys that come from other threads."""

import math
from collections import deque
from collections.abc import Hashable, Iterator

from purgatory._core.owner import CHUNK, Owner
from purgatory._core.watchers import skip_dead
from purgatory._loop.slices import SLICE_SECONDS, SlicedWork
from purgatory._loop.threads import Mailbox


class Check:
    """A check of one key in slices."""

    __slots__ = ("key", "queued", "requested", "steps")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.requested: float = 0
        """The limit of the next pass: the sum of the limits requested since the last pass began, or infinity."""
        self.steps: Iterator[int] | None = None
        """The rest of the pass, if it has begun."""
        self.queued = False
        """Whether it is in the queue."""

    def run(self, owner: Owner) -> Iterator[int]:
        """Try the operations that watch the key now. After each part, yield how many entries it had.

        A request to exit ends the pass. What it has not tried is requested again, with the limit that is left.
        """
        left, self.requested = self.requested, 0
        watchers = owner.lists.find(self.key)
        if watchers is None:
            return
        entries = watchers.entries
        at, end = watchers.head, len(entries)
        seconds = SLICE_SECONDS / 10 if owner.live else math.inf  # a simulation takes the same steps in each run
        while at < end and left > 0:
            start = at
            limit = int(min(left, CHUNK))
            at, completed, exit_request = owner.try_each(entries, at, min(at + CHUNK, end), limit, seconds)
            left -= completed
            if exit_request is not None:
                self.requested += left if at < end else 0
                try:
                    raise exit_request
                finally:
                    del exit_request  # its traceback holds this frame
            yield at - start
        if at == end or skip_dead(watchers, entries):
            yield from owner.compact_in_slices(watchers)


class CheckQueue:
    """The keys to check on the next iterations of the loop, each in slices."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        # The requested checks, in the order in which they go on, and by key.
        self._queue: deque[Check] = deque()
        self._checks: dict[Hashable, Check] = {}
        self._mail: deque[Hashable] = deque()
        """Keys that were taken out of the mailbox and not requested yet."""
        self._work = SlicedWork(owner.timer, self._slice)
        self.mailbox: Mailbox[Hashable] = Mailbox(self._take_mail)
        """Keys from `check_and_complete_threadsafe`."""

    def request(self, key: Hashable, limit: int | None = None) -> None:
        """Check `key` on the next iteration. Calls for the same key make one pass with the sum of their limits."""
        check = self._checks.get(key)
        if check is None:
            if self._owner.lists.find(key) is None:
                return
            check = self._checks[key] = Check(key)
        check.requested += math.inf if limit is None else limit
        if not check.queued:
            self._queue.append(check)
            check.queued = True
        self._work.schedule()

    def close(self) -> None:
        """Forget all requests."""
        self._queue.clear()
        self._checks.clear()
        self._mail.clear()
        self._work.cancel()

    def _take_mail(self) -> None:
        self._mail.extend(self.mailbox.take())
        self._work.schedule()

    def _slice(self) -> Iterator[int]:
        """Request the keys of the mailbox, and go on with the checks, so that a long one does not hold up the others.

        Checks that are requested meanwhile come after this slice.
        """
        while self._mail:
            try:
                self.request(self._mail.popleft())
            except Exception as exception:
                self._owner.report_key(exception)
            yield 1
        for _ in range(len(self._queue)):
            if not self._queue:
                return  # closed meanwhile
            check = self._queue[0]
            if check.steps is None:
                check.steps = check.run(self._owner)
            try:
                for entries in check.steps:  # noqa: UP028 - not `yield from`: the end of the slice would end the pass
                    yield entries
                check.steps = None
            except GeneratorExit:  # the slice is over, and the check is not
                raise
            except BaseException as exception:
                check.steps = None
                if not isinstance(exception, Exception):
                    raise
                self._owner.report_key(exception)
            finally:
                self._next(check)
        if self._queue:
            self._work.schedule()

    def _next(self, check: Check) -> None:
        """Put the check at the end of the queue if it is not over or was requested again, else forget it."""
        if not self._queue or self._queue[0] is not check:
            return  # closed meanwhile
        if check.steps is not None or check.requested:
            self._queue.rotate(-1)
            return
        check.queued = False
        self._queue.popleft()
        try:
            self._checks.pop(check.key, None)
        except Exception as exception:
            self._owner.report_key(exception)
