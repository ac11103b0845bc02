"""The handle of a call that a timer was asked for."""

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from purgatory._speedups import compiled, provide
from purgatory._timer.entry import TimerEntry

__all__ = ["TimerHandle"]


@compiled("TimerHandle")
class TimerHandle(TimerEntry):
    """A callback asked for by `WheelTimer.call_at` or `call_later`, with the methods of `asyncio.TimerHandle`."""

    __slots__ = ("__weakref__", "_args", "_callback", "_context")

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._timer_bucket = None
        self._timer_deadline = when
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = copy_context() if context is None else context

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else f"when={self._timer_deadline!r}"
        return f"<TimerHandle {state}>"

    def when(self) -> float:
        """The time asked for, in seconds of the clock."""
        return self._timer_deadline

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._callback is None

    def cancel(self) -> None:
        """Forget the callback, at once. Harmless when it has run or has been cancelled before."""
        number = id(self)
        # As WheelTimer.cancel(), without its call: 5 % of a timer that is set and cancelled. No call from here.
        bucket = self._timer_bucket
        if bucket is not None:
            self._timer_bucket = None
            del bucket[number]
        # To here.
        self._callback = None
        self._args = ()

    def _timer_expire(self) -> None:
        callback = self._callback
        if callback is not None and self._timer_bucket is None:  # else cancelled or moved on the way here
            self._context.run(callback, *self._args)


provide(TimerHandle=TimerHandle)
