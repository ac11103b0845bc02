"""Hold operations that wait for a condition or a deadline, on asyncio: a purgatory on hierarchical timing wheels."""

from purgatory.clock import Clock, Handle, VirtualClock
from purgatory.errors import OperationCancelled, PurgatoryClosed, PurgatoryError, PurgatoryFull
from purgatory.listeners import FinishedOperation, Listener, Outcome
from purgatory.operation import DelayedOperation
from purgatory.purgatory import DelayedOperationPurgatory, PurgatoryStatistics
from purgatory.timer import TimerStatistics, TimerTask, TimingWheel, WheelTimer

__all__ = [
    "Clock",
    "DelayedOperation",
    "DelayedOperationPurgatory",
    "FinishedOperation",
    "Handle",
    "Listener",
    "OperationCancelled",
    "Outcome",
    "PurgatoryClosed",
    "PurgatoryError",
    "PurgatoryFull",
    "PurgatoryStatistics",
    "TimerStatistics",
    "TimerTask",
    "TimingWheel",
    "VirtualClock",
    "WheelTimer",
]
