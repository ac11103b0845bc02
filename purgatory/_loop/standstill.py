"""A warning if a task awaits an operation on a `VirtualClock` that nothing advances, because it would hang silently.

Two mistakes look the same here: no code calls `advance`, or it was called before the task had begun to wait. The check
runs once a second, each time in another iteration of the loop. So a test that is merely slow moves the clock between
two checks. It measures real time. On a loop whose own time is virtual, less than a second of real time has passed, and
the check ends.
"""

import warnings
from asyncio import AbstractEventLoop, Future
from contextvars import Context
from time import monotonic
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    from purgatory._loop.clock import VirtualClock

_SECONDS: Final = 1.0
"""Between two checks."""

_CHECKS: Final = 5
"""The warning comes with this check in a row that finds a waiting task and a clock that has not moved."""


class Standstill:
    """The check of one clock on one loop, as long as tasks wait."""

    __slots__ = ("__weakref__", "_clock", "_last", "_moves", "_since", "checks", "loop", "waiters")

    def __init__(self, clock: "VirtualClock", loop: AbstractEventLoop) -> None:
        self._clock = ref(clock)
        self._last = monotonic()
        """The real time of the last check."""
        self._moves = clock._moves
        """The moves of the clock up to then."""
        self._since = 0
        """The number of the check that found the last move."""
        self.checks: int = 0
        """Checks so far."""
        self.loop: ref[AbstractEventLoop] = ref(loop)
        self.waiters: WeakKeyDictionary[Future[None], int] = WeakKeyDictionary()
        """The futures of tasks that await operations on the clock, and the last check before they began."""
        self._check_later(loop)

    def _check_later(self, loop: AbstractEventLoop) -> None:
        loop.call_later(_SECONDS, self._check, context=Context())

    def _check(self) -> None:
        clock, loop = self._clock(), self.loop()
        if clock is None or loop is None or clock._standstill is not self:
            return
        self.checks += 1
        if clock._moves != self._moves:
            self._moves, self._since = clock._moves, self.checks
        last, self._last = self._last, monotonic()
        is_virtual = self._last - last < _SECONDS / 2
        pending = {waiter: began for waiter, began in self.waiters.items() if not waiter.done()}
        if is_virtual or not pending or not clock._is_scheduled():
            clock._standstill = None
            return
        still = [waiter for waiter, began in pending.items() if self.checks - max(began, self._since) >= _CHECKS]
        if still:
            clock._warned = True
            clock._standstill = None
            _warn(clock, still)
        else:
            self._check_later(loop)


def _warn(clock: "VirtualClock", pending: list[Future[None]]) -> None:
    """Warn. If warnings are errors, raise this one in the tasks."""
    try:
        warnings.warn(
            f"a task awaits an operation, and {clock!r} has not been moved for {_CHECKS * _SECONDS:g} seconds: no code "
            "calls advance(), or it was called before the task had begun to wait. Let it wait first: "
            "while not purgatory.num_delayed: await asyncio.sleep(0)",
            RuntimeWarning,
            stacklevel=2,
        )
    except RuntimeWarning as warning:
        for waiter in pending:
            waiter.set_exception(warning)
