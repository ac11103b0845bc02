"""Outcomes, waits and lateness with any number of timeouts, without a simulation.

The timer comes to a deadline at the first tick that is not before it. So an operation expires with a timeout if the
deadline is not after the last tick before its end: with all timeouts up to some length. Its place among the sorted
timeouts is enough to count it for each of them.

The lateness of an expired operation depends on its timeout and on the part of a tick at which it arrived. One table
counts operations by both. For each timeout, the rows from there on have those that expire.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from purgatory.spark.simulate import LATE_BINS, OUTCOMES, Floats

__all__ = ["Counted", "Endings", "Outcomes", "Recorded", "ends", "percentiles"]

Integers: TypeAlias = npt.NDArray[np.int64]
Endings: TypeAlias = npt.NDArray[np.int8]

_EXPIRED: Final = OUTCOMES.index("expired")
_AT_ONCE: Final = OUTCOMES.index("completed_at_once")
_CLOSED: Final = OUTCOMES.index("closed")

_SHARES: Final = (0.5, 0.99, 1.0)


def percentiles(counts: Integers, values: npt.NDArray[np.floating[Any]]) -> tuple[float | None, ...]:
    """The median, 99th percentile and maximum of ascending `values`, weighted by `counts`; `None` for no values."""
    reached = np.cumsum(counts)
    if not reached[-1]:
        return (None,) * len(_SHARES)
    return tuple(float(values[np.searchsorted(reached, share * reached[-1])]) for share in _SHARES)


class Counted(NamedTuple):
    """The operations with one timeout."""

    operations: int
    outcomes: dict[str, int]
    """The number of operations with each outcome."""
    unknown: int
    """The number of operations whose end with this timeout is unknown."""
    waited: float
    """The sum of all waits, in seconds."""
    late: tuple[float | None, ...]
    """The median, the 99th percentile and the maximum, in seconds, to a thousandth of a tick; `None` without any."""


def ends(tick: float, arrived: Floats, timeout: Floats, end: Floats, ending: Endings) -> tuple[Endings, Floats, Floats]:
    """The outcome of each operation, as its place in `OUTCOMES` or -1 for none, the seconds that it waits, and its
    lateness. Arguments are as in `Rows`.
    """
    rate = 1 / tick
    deadline = arrived + timeout
    with np.errstate(invalid="ignore"):
        rings = np.floor(deadline * rate)
        rings += rings / rate < deadline
        rings /= rate
        expired = (ending != _AT_ONCE) & (deadline < inf) & (rings <= arrived + end)
        outcome = np.where(expired, _EXPIRED, np.where(end < inf, ending, -1)).astype(np.int8)
        return outcome, np.where(expired, rings - arrived, end), np.maximum(rings - deadline, 0.0)


class Recorded:
    """Counts operations, some at a time, for one tick and the timeouts of the trace."""

    def __init__(self, tick: float) -> None:
        """Count for a tick of so many seconds."""
        self._tick = tick
        self._ended: Integers = np.zeros(len(OUTCOMES) + 1, np.int64)
        self._late: Integers = np.zeros(LATE_BINS, np.int64)
        self._unknown = 0
        self._waited = 0.0

    def add(self, arrived: Floats, timeout: Floats, end: Floats, ending: Endings) -> None:
        """Count operations. Arguments are as in `Rows`."""
        outcome, waited, late = ends(self._tick, arrived, timeout, end, ending)
        self._ended += np.bincount(outcome + 1, minlength=len(self._ended))
        self._waited += float(waited[outcome >= 0].sum())
        parts = np.floor(late[outcome == _EXPIRED] / self._tick * LATE_BINS).astype(np.int64)
        self._late += np.bincount(np.minimum(parts, LATE_BINS - 1), minlength=LATE_BINS)
        self._unknown += int(np.count_nonzero((ending == _CLOSED) & (timeout > end)))

    def counted(self) -> Counted:
        """The counts."""
        outcomes = dict(zip(OUTCOMES, self._ended[1:].tolist(), strict=True))
        late = percentiles(self._late, np.arange(1, LATE_BINS + 1) * (self._tick / LATE_BINS))
        return Counted(int(self._ended.sum()), outcomes, self._unknown, self._waited, late)


class Outcomes:
    """Counts operations, some at a time, for one tick and many timeouts."""

    def __init__(self, tick: float, timeouts: Sequence[float]) -> None:
        """Count for `timeouts`, in ascending order. All times are in seconds."""
        self._tick = tick
        self._rate = 1 / tick
        self._timeouts: Floats = np.array(timeouts)
        # All are by the number of timeouts with which an operation expires, which are the shortest ones.
        size = len(timeouts) + 1
        self._ended: Integers = np.zeros((len(OUTCOMES), size), np.int64)
        self._waited: Floats = np.zeros(size)
        self._phases: Integers = np.zeros((size, LATE_BINS), np.int64)
        self._unknown: Integers = np.zeros(size, np.int64)
        """By the number of timeouts with which the end is known."""

    def add(self, arrived: Floats, timeout: Floats, end: Floats, ending: Endings) -> None:
        """Count operations. Arguments are as in `Rows`."""
        size = len(self._timeouts) + 1
        waits = ending != _AT_ONCE
        expire = np.where(waits, self._expiring(arrived, end), 0)
        np.add.at(self._ended, (ending, expire), 1)
        self._waited += np.bincount(expire, np.where(end < inf, end, 0.0), size)
        phase = np.rint((arrived * self._rate) % 1.0 * LATE_BINS).astype(np.int64) % LATE_BINS
        np.add.at(self._phases, (expire[waits], phase[waits]), 1)
        watched = np.where(ending == _CLOSED, end, np.where(end == inf, timeout, inf))
        self._unknown += np.bincount(np.searchsorted(self._timeouts, watched, side="right"), minlength=size)

    def counted(self) -> list[Counted]:
        """The counts for each timeout."""
        ended = np.cumsum(self._ended, axis=1)
        waited, unknown = np.cumsum(self._waited), np.cumsum(self._unknown)
        phases = self._phases.sum(axis=0)
        operations = int(self._ended.sum())
        found = []
        for number, timeout in enumerate(self._timeouts.tolist()):
            phases -= self._phases[number]
            outcomes = dict(zip(OUTCOMES, ended[:, number].tolist(), strict=True))
            outcomes["expired"] = expired = int(phases.sum())
            total, late = self._late(phases, timeout)
            total += float(waited[number]) + expired * timeout
            found.append(Counted(operations, outcomes, int(unknown[number]), total, late))
        return found

    def _expiring(self, arrived: Floats, end: Floats) -> Integers:
        """With how many timeouts each operation expires."""
        ended = arrived + end
        with np.errstate(invalid="ignore"):
            last = np.floor(ended * self._rate)
            last -= last / self._rate > ended
            last += (last + 1) / self._rate <= ended
            last /= self._rate
        last = np.where(ended < inf, last, inf)  # the last tick until its end
        places = np.searchsorted(self._timeouts, last - arrived, side="right")
        # The difference is rounded: the sum decides, as in the timer.
        padded = np.concatenate(([-inf], self._timeouts, [inf]))
        places = np.where((arrived + padded[places + 1] <= last) & (last < inf), places + 1, places)
        return np.where(arrived + padded[places] > last, places - 1, places)

    def _late(self, phases: Integers, timeout: float) -> tuple[float, tuple[float | None, ...]]:
        """The lateness of operations that arrive at parts of a tick: in seconds, all together, and its percentiles."""
        whole, part = divmod(round(-timeout * self._rate % 1.0 * LATE_BINS, 6), 1.0)
        counts = phases[(int(whole) - np.arange(LATE_BINS)) % LATE_BINS]
        late = (np.arange(LATE_BINS) + part) * (self._tick / LATE_BINS)
        return float(counts @ late), percentiles(counts, late)
