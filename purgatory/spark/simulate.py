"""Operations of a trace run through a purgatory: the library's own, on a `VirtualClock`.

A trace has the arrival of each operation, its keys, its timeout and its end. An operation here has the same life: it is
watched at its arrival and, unless its timeout comes first or at the same time, it is completed, cancelled or made to
fail after as long as in the trace. As in the benchmark of Kafka's purgatory redesign proposal, the operation is
completed and its key is not checked, because a trace has no checks.

A closed operation ends at the time of its close, as a cancelled one does. Its true end is not known: with a timeout
longer than it had waited it is counted as *unknown*, like an expired one with a longer timeout than its own.

Operations come as columns, many at a time. The arrivals and ends of each lot are sorted in one go. Then one loop
replays them, which does little but call the purgatory.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import inf
from typing import ClassVar, Final, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from purgatory import DelayedOperation, DelayedOperationPurgatory, VirtualClock
from purgatory.lowlevel import Outcome, seconds
from purgatory.spark.errors import PipelineError

__all__ = [
    "COUNTS",
    "LATE_BINS",
    "OUTCOMES",
    "Configuration",
    "Ended",
    "Rows",
    "Simulation",
    "simulate",
]

Floats: TypeAlias = npt.NDArray[np.float64]

OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
"""The outcomes of operations. Their places are the numbers of `Rows.ending`."""

COUNTS: Final = (
    "operations",
    "unknown",
    *OUTCOMES,
    "pending",
    "wake_ups",
    "inserts",
    "cascaded",
    "buckets",
    "purges",
    "scanned",
    "purged",
)
"""The counts of a simulation, which can be added up."""

LATE_BINS: Final = 1000
"""The number of bins of lateness in a tick."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of a purgatory, and the timeout of its operations. Times are in seconds."""

    tick: float = 0.001
    wheel_size: int = 20
    purge_interval: int = 1000
    timeout: float | None = None
    """The timeout of all operations; `None` is each operation's own, as recorded."""

    def __post_init__(self) -> None:
        """Raise `PipelineError` if no purgatory can have these settings."""
        try:
            DelayedOperationPurgatory(
                tick=self.tick, wheel_size=self.wheel_size, purge_interval=self.purge_interval, clock=VirtualClock()
            )
        except (ValueError, TypeError) as error:
            raise PipelineError(str(error)) from None
        if self.timeout is not None:
            try:
                seconds("timeout", self.timeout, none=True)
            except (ValueError, TypeError) as error:
                raise PipelineError(str(error)) from None


class Rows(NamedTuple):
    """Operations of a trace, column by column, in order of their arrivals."""

    arrived: Floats
    """Seconds from the beginning of the trace."""
    keys: Sequence[tuple[str, ...]]
    timeout: Floats
    """The recorded timeouts, in seconds; infinite is for ever."""
    end: Floats
    """Seconds from the arrival until the end, other than by the timeout; infinite if that is not known."""
    ending: npt.NDArray[np.int8]
    """The outcome at that end, as its place in `OUTCOMES`; "expired" if that is not known."""
    references: Sequence[object]
    """An object for each operation, handed back in its `Ended`."""

    def part(self, start: int, stop: int | None = None) -> "Rows":
        """The operations from one place to before another one."""
        some = slice(start, stop)
        return Rows(
            self.arrived[some],
            self.keys[some],
            self.timeout[some],
            self.end[some],
            self.ending[some],
            self.references[some],
        )


class Ended(NamedTuple):
    """The end of an operation in a simulation."""

    reference: object
    outcome: Outcome
    timeout: float | None
    waited: float
    late: float | None


class _Failed(Exception):
    """Raised by an operation that had failed in the trace."""


class _Replayed(DelayedOperation[None]):
    """An operation that is satisfied at its end, if that is known."""

    __slots__ = ("arrived", "entries", "reference", "simulation", "timeout")

    ending: ClassVar[Outcome] = "satisfied"

    def __init__(self, timeout: float | None, arrived: float, reference: object, simulation: "Simulation") -> None:
        super().__init__(timeout)
        self.timeout: float | None = timeout
        self.arrived: float = arrived
        self.reference: object = reference
        self.simulation: Simulation = simulation
        self.entries: int = 0
        """Its entries in watcher lists."""

    def try_complete(self) -> bool:
        # The last try at its deadline completes nothing: `play` completes an operation whose end comes before that.
        return False

    def on_complete(self) -> None:
        pass

    def on_expiration(self) -> None:
        self.simulation.has_expired(self)

    def end(self) -> bool:
        """End as in the trace. Returns whether the operation was still pending."""
        return self.force_complete()


class _CompletedAtOnce(_Replayed):
    __slots__ = ()

    ending = "completed_at_once"

    def try_complete(self) -> bool:
        return self.force_complete()


class _Closed(_Replayed):
    __slots__ = ()

    ending = "closed"

    def end(self) -> bool:
        pending = self.force_complete()
        self.simulation.closed += pending
        return pending


class _Cancelled(_Replayed):
    __slots__ = ()

    ending = "cancelled"

    def end(self) -> bool:
        return self.cancel()


class _Failing(_Replayed):
    __slots__ = ()

    ending = "failed"

    def on_complete(self) -> None:
        if not self.expired():
            raise _Failed

    def end(self) -> bool:
        pending = self.force_complete()
        if pending:
            self.exception()  # retrieved, so that it is not reported
        return pending


_CLASSES: Final = (_CompletedAtOnce, _Replayed, _Replayed, _Closed, _Cancelled, _Failing)
"""The class for each of `OUTCOMES`."""

_AT_ONCE: Final = OUTCOMES.index("completed_at_once")
_CLOSED: Final = OUTCOMES.index("closed")


class Simulation:
    """A simulation of one purgatory, and its counts."""

    def __init__(
        self,
        configuration: Configuration,
        start: float = -inf,
        stop: float = inf,
        record: Callable[[Ended], object] | None = None,
    ) -> None:
        """Simulate from `start` to `stop`, in seconds of the trace's time.

        Arrivals and ends before `start` are not counted: these operations are there to be pending at `start`. Without a
        `stop` the simulation ends when all operations have ended that ever do. `record` is called with each operation
        that has ended.
        """
        self._configuration = configuration
        self._start = start
        self._stop = stop
        self._record = record
        self._clock = VirtualClock()
        self.purgatory: DelayedOperationPurgatory = DelayedOperationPurgatory(
            tick=configuration.tick,
            wheel_size=configuration.wheel_size,
            purge_interval=configuration.purge_interval,
            clock=self._clock,
        )
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self.late: list[int] = [0] * (LATE_BINS + 1)
        """Expired operations by the parts of a tick that they were late; the last bin has the rest."""
        self.late_max: float = 0.0
        self.peak_dead: int = 0
        self.peak_delayed: int = 0
        self.waited: float = 0.0
        """Seconds that operations have waited, all together."""
        self.closed: int = 0
        """Operations that ended as a close had ended them. The purgatory counts them as satisfied."""
        self._living = 0
        """The entries of pending operations."""
        self._counting = False
        self._before: dict[str, int] = {}
        """The totals when counting began."""
        self._horizon = max(start, 0.0)
        """The time by which all operations have arrived, and have ended if they ever do."""
        self._arrivals = 0
        self._held: list[_Replayed] = []
        """Operations that have arrived and whose end is after the last arrival."""
        self._ends: Floats = np.empty(0)
        """The times of these ends."""
        self._numbers: npt.NDArray[np.int64] = np.empty(0, np.int64)
        """The numbers of these operations, in order of arrival."""

    def play(self, rows: Rows) -> None:
        """Let `rows` come, after those before, and end. The last ends that are known come with later rows."""
        if not self._counting:
            early = int(np.searchsorted(rows.arrived, self._start))
            self._play(rows.part(0, early))
            if early == len(rows.arrived):
                return
            self._begin()
            rows = rows.part(early)
        self._play(rows)

    def finish(self) -> None:
        """Come to the end, when all rows have been played."""
        if not self._counting:
            self._begin()
        self._end_until(self._stop)
        self._clock.advance_to(self._stop if self._stop < inf else self._horizon)
        self._look()
        for name, total in self._totals().items():
            self.counts[name] += total - self._before[name]
        self.peak_delayed = self.purgatory.statistics().peak_delayed
        if self._stop == inf:
            self.counts["pending"] = self.purgatory.num_delayed

    def has_expired(self, operation: _Replayed) -> None:
        """Called by an operation that has expired."""
        self._living -= operation.entries
        if not self._counting:
            return
        self._look()
        now = self._clock.time()
        assert operation.timeout is not None, "an operation without a deadline does not expire"
        late = max(0.0, now - (operation.arrived + operation.timeout))
        self.waited += now - operation.arrived
        self.late[min(int(late / self._configuration.tick * LATE_BINS), LATE_BINS)] += 1
        self.late_max = max(self.late_max, late)
        if self._record is not None:
            self._record(Ended(operation.reference, "expired", operation.timeout, now - operation.arrived, late))

    def _look(self) -> None:
        """Note how many entries are dead: to be called before they may become fewer."""
        self.peak_dead = max(self.peak_dead, self.purgatory.watched - self._living)

    def _play(self, rows: Rows) -> None:
        count = len(rows.arrived)
        if not count:
            return
        timeouts, ends = self._known(rows)
        held: list[_Replayed | None] = [*self._held, *repeat(None, count)]
        (known,) = np.nonzero(ends < inf)
        places = np.concatenate((np.arange(len(self._held)), known + len(self._held)))
        times = np.concatenate((self._ends, ends[known]))
        numbers = np.concatenate((self._numbers, known + self._arrivals))
        due = times <= rows.arrived[-1]
        # Of events at the same time, an end comes after the arrival of its own operation, and before later arrivals.
        order = np.lexsort(
            (
                np.concatenate((2 * np.arange(self._arrivals, self._arrivals + count), 2 * numbers[due] + 1)),
                np.concatenate((rows.arrived, times[due])),
            )
        )
        events = np.concatenate((np.arange(count), ~places[due]))[order].tolist()
        whens = np.concatenate((rows.arrived, times[due]))[order].tolist()
        self._loop(zip(whens, events, strict=True), rows, timeouts, held)
        self._held = [operation for place in places[~due].tolist() if (operation := held[place]) is not None]
        self._ends, self._numbers = times[~due], numbers[~due]
        self._arrivals += count

    def _known(self, rows: Rows) -> tuple[Sequence[float | None], Floats]:
        """The timeout of each operation, and the time of its end: infinite if that is later than its timeout.

        Counts what can be counted without a purgatory.
        """
        fixed = self._configuration.timeout
        timeout = rows.timeout if fixed is None else np.full(len(rows.timeout), fixed)
        waits = rows.ending != _AT_ONCE
        gone = rows.arrived + (timeout + self._configuration.tick)
        ends = rows.arrived + rows.end
        # An operation that ends later has expired by then: it must not be kept for so long.
        ends = np.where(waits & (ends <= gone), ends, inf)
        last = np.fmax(np.where(np.isfinite(gone), gone, rows.arrived), np.where(ends < inf, ends, 0.0))
        self._horizon = max(self._horizon, float(last.max()))
        if self._counting:
            self.counts["operations"] += len(timeout)
            self.counts["inserts"] += int(np.count_nonzero(waits & (timeout < inf)))
            unknown = (rows.end == inf) & (rows.timeout < timeout) & (timeout < inf)
            unknown = np.where(rows.ending == _CLOSED, timeout > rows.end, unknown)
            self.counts["unknown"] += int(np.count_nonzero(unknown))
        if fixed is not None:
            return [float(fixed)] * len(timeout), ends
        return [None if each == inf else each for each in timeout.tolist()], ends

    def _loop(
        self,
        events: Iterable[tuple[float, int]],
        rows: Rows,
        timeouts: Sequence[float | None],
        held: list[_Replayed | None],
    ) -> None:
        """Let the events happen in their order: a number is an arrival, the inverse of a place in `held` is an end."""
        clock, watch, record = self._clock, self.purgatory.try_complete_else_watch, self._record
        if not self._counting:
            record = None
        before = len(held) - len(rows.arrived)
        kinds = [_CLASSES[ending] for ending in rows.ending.tolist()]
        keys, references = rows.keys, rows.references
        waited = 0.0
        for when, event in events:
            self._look()
            clock.advance_to(when)
            if event >= 0:
                operation = kinds[event](timeouts[event], when, references[event], self)
                watch(operation, keys[event])
                held[before + event] = operation
                if operation.outcome is None:
                    operation.entries = len(set(keys[event]))
                    self._living += operation.entries
                if record is not None and operation.outcome is not None:
                    record(Ended(operation.reference, operation.ending, operation.timeout, 0.0, None))
            else:
                ended = held[~event]
                held[~event] = None
                if ended is None or not ended.end():
                    continue
                self._living -= ended.entries
                waited += when - ended.arrived
                if record is not None:
                    record(Ended(ended.reference, ended.ending, ended.timeout, when - ended.arrived, None))
        if self._counting:
            self.waited += waited

    def _end_until(self, when: float) -> None:
        """End the operations that have arrived and end until `when`."""
        order = np.lexsort((self._numbers, self._ends))
        order = order[self._ends[order] <= when]
        held: list[_Replayed | None] = [*self._held]
        self._loop(zip(self._ends[order].tolist(), (~order).tolist(), strict=True), _NONE, (), held)
        left = np.ones(len(held), np.bool_)
        left[order] = False
        self._held = [operation for operation in held if operation is not None]
        self._ends, self._numbers = self._ends[left], self._numbers[left]

    def _begin(self) -> None:
        """Count arrivals and ends from now on."""
        self._end_until(self._start)
        if self._start > self._clock.time():
            self._clock.advance_to(self._start)
        self._counting = True
        self.peak_dead = self.purgatory.watched - self._living
        self._before = self._totals()

    def _totals(self) -> dict[str, int]:
        """The totals of the purgatory and its timer so far."""
        purgatory = self.purgatory.statistics()
        timer = self.purgatory.timer.statistics()
        return {
            "completed_at_once": purgatory.completed_at_once,
            "satisfied": purgatory.satisfied - self.closed,
            "expired": purgatory.expired,
            "closed": self.closed,
            "cancelled": purgatory.cancelled,
            "failed": purgatory.failed,
            "wake_ups": timer.wake_ups,
            "cascaded": timer.cascaded,
            "buckets": timer.buckets,
            "purges": purgatory.purges,
            "scanned": purgatory.scanned,
            "purged": purgatory.purged,
        }


_NONE: Final = Rows(np.empty(0), (), np.empty(0), np.empty(0), np.empty(0, np.int8), ())


def simulate(
    configuration: Configuration,
    rows: Rows,
    start: float = -inf,
    stop: float = inf,
    record: Callable[[Ended], object] | None = None,
) -> Simulation:
    """Play `rows` in virtual time, to the end. Returns the simulation, for its counts."""
    simulation = Simulation(configuration, start, stop, record)
    simulation.play(rows)
    simulation.finish()
    return simulation
