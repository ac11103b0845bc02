"""What a timer runs."""

from abc import ABC, abstractmethod
from typing import TypeAlias

__all__ = ["Bucket", "TimerTask"]

Bucket: TypeAlias = "dict[int, TimerTask]"
"""The tasks of one bucket by `id`, in the order in which they came."""


class TimerTask(ABC):
    """Something that runs at a deadline unless it is cancelled first. Subclasses say what, in `run`.

    A subclass that calls no `super().__init__()` cannot be put into a timer.
    """

    __slots__ = ("_bucket", "_deadline")

    def __init__(self) -> None:
        self._bucket: Bucket | None = None
        self._deadline = 0.0

    @abstractmethod
    def run(self) -> None:
        """Called once by the timer, at the deadline or after it, never before."""
