"""Hold operations that wait for a condition or a deadline, on asyncio: a purgatory on hierarchical timing wheels."""

__version__ = "0.3.0.dev0"
__distribution__ = "asyncio-purgatory"

from purgatory._core.listeners import FinishedOperation
from purgatory._core.operation import DelayedOperation
from purgatory._core.purgatory import DelayedOperationPurgatory
from purgatory._core.statistics import PurgatoryStatistics
from purgatory._delay import Delay
from purgatory._futures import DelayedFutures
from purgatory._idle import IdleTracker
from purgatory._loop.clock import Clock, Handle
from purgatory._loop.errors import OperationCancelled, PurgatoryClosed, PurgatoryError, PurgatoryFull, PurgatoryMisuse
from purgatory._threshold import ThresholdPurgatory
from purgatory._timer import TimerStatistics, TimerTask, TimingWheel, WheelTimer
from purgatory._versions import VersionedValues
from purgatory._virtual import VirtualClock

__core__ = "C" if TimerTask.__mro__[1].__module__.startswith("purgatory._speedups") else "Python"
"""The language of the core that is used."""

__all__ = [
    "Clock",
    "Delay",
    "DelayedFutures",
    "DelayedOperation",
    "DelayedOperationPurgatory",
    "FinishedOperation",
    "Handle",
    "IdleTracker",
    "OperationCancelled",
    "PurgatoryClosed",
    "PurgatoryError",
    "PurgatoryFull",
    "PurgatoryMisuse",
    "PurgatoryStatistics",
    "ThresholdPurgatory",
    "TimerStatistics",
    "TimerTask",
    "TimingWheel",
    "VersionedValues",
    "VirtualClock",
    "WheelTimer",
]
