"""The tasks of a timer, and the handle that `call_at` and `call_later` return."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from purgatory._loop.closing import Unique
from purgatory._loop.threads import check_loop

if TYPE_CHECKING:
    from purgatory._timer.wheels import Bucket, TimerBase


class TimerEntry:
    """An object that can wait in a timer. Its names begin with `_timer_`, because users write subclasses.

        _timer_bucket      the bucket that contains it, as far as subclasses know an object or `None`
        _timer_deadline    its deadline, in seconds of the clock
        _timer_leave()     leave the timer, at once

    It defines `_timer_expire()`, which the timer calls.
    """

    __slots__ = ("_timer_bucket", "_timer_deadline")

    _timer_is_task = True
    """Whether users may put it into a timer, or only its owner."""

    def __init__(self) -> None:
        self._timer_bucket: Bucket | None = None
        """The bucket that contains it, if it is in a timer."""
        self._timer_deadline: float = math.inf

    def _timer_leave(self) -> bool:
        """Leave the timer, at once. Return whether it was in one."""
        bucket, key = self._timer_bucket, id(self)
        if bucket is None:
            return False
        self._timer_bucket = None
        del bucket[key]
        return True

    def _timer_expire(self) -> None:
        """Run the entry at its deadline. It leaves the timer, unless it is given a new deadline."""
        raise NotImplementedError


if not TYPE_CHECKING:
    with suppress(ImportError):
        from purgatory._speedups import TimerEntry


class TimerTask(TimerEntry, Unique, ABC):
    """A task that runs at a deadline unless it is cancelled first. Subclasses define `run`.

    For example:

        class Ping(TimerTask):
            def run(self) -> None:
                print("ping")

        timer.add_later(Ping(), 5.0)
    """

    __slots__ = ()

    def _purgatory_describe(self) -> str:
        return f"deadline={self._timer_deadline!r}"

    @abstractmethod
    def run(self) -> None:
        """Do the work of the task. The timer calls it once, at the deadline or after it, and never before."""

    def _timer_expire(self) -> None:
        self._timer_leave()
        self.run()


class TimerHandle(TimerEntry, Unique):
    """The handle returned by `WheelTimer.call_at` and `call_later`, with the methods of `asyncio.TimerHandle`."""

    __slots__ = ("__weakref__", "_args", "_callback", "_context", "_timer")

    def __init__(
        self, timer: "TimerBase", callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        super().__init__()
        self._timer = timer
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = copy_context() if context is None else context

    def _purgatory_describe(self) -> str:
        return "cancelled" if self.cancelled() else f"when={self._timer_deadline!r}"

    def when(self) -> float:
        """Return the time of the call, in seconds of the clock."""
        return self._timer_deadline

    def cancelled(self) -> bool:
        """Return whether the call was cancelled."""
        return self._callback is None

    def cancel(self) -> None:
        """Cancel the call and drop the callback at once. Does nothing if it has run or was cancelled before."""
        check_loop(self, self._timer._loop, "handle.cancel()")
        self._timer_leave()
        self._callback = None
        self._args = ()

    def _timer_expire(self) -> None:
        self._timer_leave()
        if self._callback is not None:
            self._context.run(self._callback, *self._args)
