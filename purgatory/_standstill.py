"""A warning where a task awaits an operation on a `VirtualClock` that no code moves: it would hang without a word.

Two mistakes lead there, and look the same: no code calls `advance`, or it was called before the task had begun. The
check looks once a second, each time in another iteration of the loop: a test that is merely slow moves the clock
meanwhile. It measures real time. On a loop whose own time is virtual it finds that the seconds were none, and ends.
"""

import warnings
from asyncio import AbstractEventLoop, Future
from contextvars import Context
from time import monotonic
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, ref

if TYPE_CHECKING:
    from purgatory.clock import VirtualClock

__all__ = ["Standstill"]

_SECONDS: Final = 1.0
"""Between two checks."""

_CHECKS: Final = 5
"""The warning comes with this check in a row for which the clock has not moved."""


class Standstill:
    """The check of one clock on one loop, while there is something to check; and afterwards the sign that it warned."""

    __slots__ = ("__weakref__", "_clock", "_since", "loop", "waiters")

    def __init__(self, clock: "VirtualClock", loop: AbstractEventLoop) -> None:
        self._clock = ref(clock)
        self._since = 0.0
        """When the first check in a row was made, by `time.monotonic`."""
        self.loop: AbstractEventLoop = loop
        self.waiters: WeakSet[Future[None]] = WeakSet()
        """The futures of tasks that await operations on the clock."""
        self._check_later()

    def _check_later(self) -> None:
        self.loop.call_later(_SECONDS, self._check, context=Context())

    def _check(self) -> None:
        clock = self._clock()
        if clock is None or clock._standstill is not self:
            return
        pending = [waiter for waiter in self.waiters if not waiter.done()]
        if not pending or not clock._is_scheduled():
            clock._standstill = None
            return
        clock._stood += 1
        if clock._stood == 1:
            self._since = monotonic()
        elif clock._stood == _CHECKS:
            if monotonic() - self._since > (_CHECKS - 1.5) * _SECONDS:
                _warn(clock, pending)
            return
        self._check_later()


def _warn(clock: "VirtualClock", pending: list[Future[None]]) -> None:
    """Warn; where warnings are errors, the tasks get it."""
    try:
        warnings.warn(
            f"a task awaits an operation, and {clock!r} has not been moved for {_CHECKS * _SECONDS:g} seconds: no code "
            "calls advance(), or it was called before the task had begun. Let the task begin first: "
            "task = asyncio.create_task(...); await asyncio.sleep(0); clock.advance(seconds); await task",
            RuntimeWarning,
            stacklevel=2,
        )
    except RuntimeWarning as warning:
        for waiter in pending:
            waiter.set_exception(warning)
