"""A clock that moves only by `advance`, and a warning if a task waits for one that nothing advances.

A task that awaits an operation on such a clock would hang silently. Two mistakes look the same here: no code calls
`advance`, or it was called before the task had begun to wait. The check for them runs once a second, each time in
another iteration of the loop. So a test that is merely slow moves the clock between two checks. It measures real time.
On a loop whose own time is virtual, less than a second of real time has passed, and the check ends.
"""

import warnings
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from time import monotonic
from typing import Any, Final, TypeVarTuple, Unpack
from weakref import WeakKeyDictionary, ref

from purgatory._loop.arguments import check_callable, check_time
from purgatory._loop.arguments import seconds as check_seconds
from purgatory._loop.clock import Handle, log
from purgatory._loop.closing import Unique

Ts = TypeVarTuple("Ts")

_SECONDS: Final = 1.0
"""Between two checks."""

_CHECKS: Final = 5
"""The warning comes with this check in a row that finds a waiting task and a clock that has not moved."""


class _VirtualHandle:
    __slots__ = ("__weakref__", "args", "callback", "clock", "context")

    def __init__(
        self, clock: "VirtualClock", callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self.clock = clock
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context: Context | None = context

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.args = ()
            self.context = None
            self.clock._forget()


class VirtualClock(Unique):
    """A `Clock` whose time moves only by `advance` and `advance_to`, for tests, simulation and replay.

    Callbacks run inside the call that moves the time, each at its own time and in the order of their `when` (first
    come, first served among equals). A callback for a time that has passed runs at the next move, even at `advance(0)`.

    A task that awaits an operation waits until other code moves the time. After five real seconds without a move there
    is a `RuntimeWarning`, once for each clock. If warnings are errors, it is raised in the task.

        clock = VirtualClock()
        delay = DelayedOperationPurgatory(clock=clock).try_complete_else_watch(Delay(60.0), ["client 1"])
        clock.advance(60.0)
        assert delay.expired()
    """

    __slots__ = (
        "__weakref__",
        "_advancing",
        "_calls",
        "_cancelled",
        "_heap",
        "_mail",
        "_moves",
        "_now",
        "_standstill",
        "_warned",
    )

    def __init__(self, start: float = 0.0) -> None:
        """Start at the time `start`, in seconds. Raises `ValueError` if it is not finite."""
        self._now = check_seconds("start", start, "")
        self._heap: list[tuple[float, int, _VirtualHandle]] = []
        self._calls = 0
        """Calls of `call_at` so far: the order of callbacks with the same time."""
        self._cancelled = 0
        """Entries of the heap that have been cancelled."""
        self._advancing = False
        self._mail: deque[Callable[[], object]] = deque()
        """Calls for the next move."""
        self._standstill: _Standstill | None = None
        """Set by the first `await` of an operation."""
        self._moves = 0
        """Moves so far."""
        self._warned = False
        """Whether there was a warning."""

    def _purgatory_describe(self) -> str:
        return f"time={self._now!r} scheduled={len(self._heap) - self._cancelled}"

    def time(self) -> float:
        """Return the time in seconds."""
        return self._now

    def call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
        """Call `callback(*args)` when the time reaches `when`, in a copy of the present context, as event loops do.

        Raises:
            ValueError: `when` is NaN.
            TypeError: `when` is not a number, or `callback` is not callable.
        """
        check_time("when", when)
        check_callable("callback", callback)
        handle = _VirtualHandle(self, callback, args, copy_context())
        self._calls += 1
        heappush(self._heap, (when, self._calls, handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an exception that has no caller. Override it to see such exceptions, for example in a test."""
        log.error(context["message"], exc_info=context["exception"])

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, at least 0, and run the callbacks of that time. Raises as `advance_to`."""
        self.advance_to(self._now + check_seconds("seconds", seconds, ""))

    def advance_to(self, when: float) -> None:
        """Move the time to `when`, in seconds, and run the callbacks up to that time.

        If a callback raises, the exception comes out of this call, the time stays at that callback and the other
        callbacks stay scheduled.

        Raises:
            ValueError: `when` is in the past, NaN or infinite.
            TypeError: `when` is not a number.
            RuntimeError: A callback of this clock made the call.
        """
        when = check_seconds("when", when, "")
        if when < self._now:
            raise ValueError(f"when must be at least {self._now!r}, not {when!r}: time does not move backwards")
        if self._advancing:
            raise RuntimeError(f"{self!r} is being advanced already: its callbacks must not move the time")
        self._advancing = True
        self._moves += 1
        try:
            while self._mail:
                self._mail.popleft()()
            while self._heap and self._heap[0][0] <= when:
                at, _, handle = heappop(self._heap)
                callback, args, context = handle.callback, handle.args, handle.context
                handle.callback = handle.context = None
                handle.args = ()
                if callback is None or context is None:
                    self._cancelled -= 1
                    continue
                self._now = max(self._now, at)
                context.run(callback, *args)
                # A traceback that is kept would keep this frame, and these objects with it.
                del handle, callback, args, context
            self._now = when
        finally:
            self._advancing = False

    def _is_scheduled(self) -> bool:
        return len(self._heap) > self._cancelled

    def _call_at_next_move(self, callback: Callable[[], object]) -> None:
        """Call `callback()` at the next move. A finalizer may make this call, in the middle of any other one."""
        self._mail.append(callback)

    def _await(self, waiter: Future[None], loop: AbstractEventLoop) -> None:
        """Check from now on that the clock moves, because a task awaits an operation with `waiter`."""
        if self._warned:
            return
        check = self._standstill
        if check is None or check.loop() is not loop:
            self._standstill = check = _Standstill(self, loop)
        check.waiters[waiter] = check.checks

    def _forget(self) -> None:
        """Count an entry that was cancelled, and drop these entries when they are most of the heap."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            # In place, because `advance_to` may be in the middle of this very list.
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapify(self._heap)
            self._cancelled = 0


class _Standstill:
    """The check of one clock on one loop, as long as tasks wait."""

    __slots__ = ("__weakref__", "_clock", "_last", "_moves", "_since", "checks", "loop", "waiters")

    def __init__(self, clock: VirtualClock, loop: AbstractEventLoop) -> None:
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


def _warn(clock: VirtualClock, pending: list[Future[None]]) -> None:
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
