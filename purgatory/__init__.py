"""Hold operations that wait for a condition or a deadline, on asyncio: a purgatory on hierarchical timing wheels."""

__version__ = "0.3.0.dev0"
__distribution__ = "asyncio-purgatory"

from purgatory._core import __core__ as __core__
from purgatory.clock import Clock, Handle, VirtualClock
from purgatory.delay import Delay
from purgatory.errors import OperationCancelled, PurgatoryClosed, PurgatoryError, PurgatoryFull, PurgatoryMisuse
from purgatory.futures import DelayedFutures
from purgatory.idle import IdleTracker
from purgatory.listeners import FinishedOperation
from purgatory.operation import DelayedOperation
from purgatory.purgatory import DelayedOperationPurgatory
from purgatory.statistics import PurgatoryStatistics
from purgatory.threshold import ThresholdPurgatory
from purgatory.timer import TimerStatistics, TimerTask, TimingWheel, WheelTimer
from purgatory.versions import VersionedValues

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
