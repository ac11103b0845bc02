"""The tasks of a timer."""

from abc import ABC, abstractmethod
from typing import NoReturn, TypeAlias

from purgatory._core.arguments import refuse_copy
from purgatory._speedups import compiled

__all__ = ["Bucket", "TimerEntry", "TimerTask"]


@compiled("TimerEntry")
class TimerEntry(ABC):
    """The part of an object by which it is in a timer. Its names begin with `_timer_`, for subclasses are users'."""

    __slots__ = ("_timer_bucket", "_timer_deadline")

    _timer_bucket: "Bucket | None"
    """The dict that the entry is in, if it is in a timer."""
    _timer_deadline: float

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_copy(self)

    @abstractmethod
    def _timer_expire(self) -> None:
        """The deadline has come. Called by the timer, with the entry taken out."""


Bucket: TypeAlias = dict[int, TimerEntry]
"""Entries of one bucket by `id`, mostly in the order in which they came."""


class TimerTask(TimerEntry):
    """Something that runs at a deadline unless it is cancelled first. Subclasses define it in `run`.

    A subclass that calls no `super().__init__()` cannot be put into a timer.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self._timer_bucket = None
        self._timer_deadline = 0.0

    @abstractmethod
    def run(self) -> None:
        """Called once by the timer, at the deadline or after it, never before."""

    def _timer_expire(self) -> None:
        if self._timer_bucket is None:  # else it was put into a timer again on the way here
            self.run()
