"""Operations of a trace run through a purgatory: the library's own, on a `VirtualClock` or on an event loop.

A trace has the arrival of each operation, its keys, its timeout and its end. An operation here has the same life: it is
watched at its arrival and, unless its timeout comes first or at the same time, it is completed, cancelled or made to
fail after as long as in the trace. As in the benchmark of Kafka's purgatory redesign proposal, the operation is
completed and its key is not checked, because a trace has no checks.

A closed operation ends at the time of its close, as a cancelled one does. Its true end is not known: with a timeout
longer than it had waited it is counted as *unknown*, like an expired one with a longer timeout than its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf, isfinite
from typing import Final, NamedTuple

from purgatory import DelayedOperation, DelayedOperationPurgatory, VirtualClock
from purgatory._checks import seconds
from purgatory.clock import Clock
from purgatory.listeners import Outcome
from purgatory.spark.errors import PipelineError

__all__ = ["COUNTS", "LATE_BINS", "Arrival", "Configuration", "Ended", "Simulation", "late_percentile", "simulate"]

COUNTS: Final = (
    "operations",
    "unknown",
    "completed_at_once",
    "satisfied",
    "expired",
    "closed",
    "cancelled",
    "failed",
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


class Arrival(NamedTuple):
    """An operation of a trace."""

    arrived: float
    """Seconds from the beginning of the trace."""
    keys: tuple[str, ...]
    timeout: float | None
    """The recorded timeout; `None` is for ever."""
    end: float
    """Seconds from its arrival until its end, other than by its timeout; infinite if that is not known."""
    ending: Outcome
    """The outcome at that end; "expired" if that is not known."""
    reference: object = None
    """Any object, handed back in the operation's `Ended`."""


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
    __slots__ = ("arrival", "arrived", "simulation", "timeout")

    def __init__(self, timeout: float | None, arrival: Arrival, arrived: float, simulation: "Simulation") -> None:
        super().__init__(timeout)
        self.timeout: float | None = timeout
        self.arrival: Arrival = arrival
        self.arrived: float = arrived
        self.simulation: Simulation = simulation

    def try_complete(self) -> bool:
        # The last try at its deadline completes nothing: `play` completes an operation whose end comes before that.
        return self.arrival.ending == "completed_at_once" and self.force_complete()

    def on_complete(self) -> None:
        if self.expired():
            self.simulation.has_ended(self, "expired")
        else:
            self.simulation.has_ended(self, self.arrival.ending)
            if self.arrival.ending == "failed":
                raise _Failed


class Simulation:
    """A simulation of one purgatory, and its counts."""

    def __init__(
        self, clock: Clock, configuration: Configuration, record: Callable[[Ended], object] | None = None
    ) -> None:
        """Simulate on `clock`. `record` is called with each operation that has ended."""
        self._clock = clock
        self._configuration = configuration
        self._record = record
        self.purgatory: DelayedOperationPurgatory = DelayedOperationPurgatory(
            tick=configuration.tick,
            wheel_size=configuration.wheel_size,
            purge_interval=configuration.purge_interval,
            clock=clock,
        )
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self.late: list[int] = [0] * (LATE_BINS + 1)
        """Expired operations by the parts of a tick that they were late; the last bin has the rest."""
        self.late_max: float = 0.0
        self.peak_dead: int = 0
        self.peak_delayed: int = 0
        self._closed = 0
        """Operations that ended as a close had ended them. The purgatory counts them as satisfied."""
        self._ends: list[tuple[float, int, _Replayed]] = []
        self._live = 0
        """Entries in the watcher lists that are not dead."""
        self._counting = False
        self._horizon = 0.0
        """The time by which all operations have arrived, and have ended if they ever do."""

    def play(self, arrivals: Iterable[Arrival], start: float = -inf, stop: float = inf) -> Iterator[float]:
        """Let `arrivals`, which are in order, come and end. Yields the times until which to wait, in the trace's time.

        Arrivals and ends before `start` are not counted: these operations are there to be pending at `start`. The
        simulation ends at `stop`, or without it when all operations have ended that ever do.
        """
        ends = self._ends
        before = self._totals()
        if isfinite(start):
            self._horizon = start
        for number, arrival in enumerate(arrivals):
            arrived = arrival.arrived
            if not self._counting and arrived >= start:
                yield from self._until(start)
                before = self._begin()
            # As in _until(), which costs more than the work that it finds to do here.
            while ends and ends[0][0] <= arrived:
                yield ends[0][0]
                self._end(heappop(ends)[2])
            yield arrived
            self._arrive(arrival, number)
        if not self._counting:
            yield from self._until(start)
            before = self._begin()
        if stop < inf:
            yield from self._until(stop)
        else:
            yield from self._until(inf)
            yield self._horizon
        for name, total in self._totals().items():
            self.counts[name] += total - before[name]
        self.peak_delayed = self.purgatory.statistics().peak_delayed
        if stop == inf:
            self.counts["pending"] = self.purgatory.num_delayed

    def has_ended(self, operation: _Replayed, outcome: Outcome) -> None:
        """Called by an operation at its end."""
        if outcome == "closed":
            self._closed += 1
        if outcome == "completed_at_once":
            waited = 0.0
        else:
            waited = self._clock.time() - operation.arrived
            self._live -= len(operation.arrival.keys)
        if not self._counting:
            return
        dead = self.purgatory.watched - self._live
        if dead > self.peak_dead:
            self.peak_dead = dead
        timeout = operation.timeout
        late = None
        if outcome == "expired":
            assert timeout is not None, "an operation without a deadline does not expire"
            late = max(0.0, self._clock.time() - (operation.arrived + timeout))
            self.late[min(int(late / self._configuration.tick * LATE_BINS), LATE_BINS)] += 1
            self.late_max = max(self.late_max, late)
        if self._record is not None:
            self._record(Ended(operation.arrival.reference, outcome, timeout, waited, late))

    def _until(self, when: float) -> Iterator[float]:
        """End the operations that end until `when`, and wait until then if that is not for ever."""
        ends = self._ends
        while ends and ends[0][0] <= when:
            yield ends[0][0]
            self._end(heappop(ends)[2])
        if isfinite(when):
            yield when

    def _arrive(self, arrival: Arrival, number: int) -> None:
        timeout = arrival.timeout if self._configuration.timeout is None else self._configuration.timeout
        operation = _Replayed(timeout, arrival, self._clock.time(), self)
        at_once = arrival.ending == "completed_at_once"
        if not at_once:
            self._live += len(arrival.keys)
        self.purgatory.try_complete_else_watch(operation, arrival.keys)
        if self._counting:
            counts = self.counts
            counts["operations"] += 1
            if not at_once and timeout is not None:
                counts["inserts"] += 1
            if _is_unknown(arrival, timeout):
                counts["unknown"] += 1
        gone = arrival.arrived
        if timeout is not None:
            gone += timeout + self._configuration.tick
        # An operation that ends later has expired by then: it must not be kept for so long.
        if not at_once and arrival.end < inf and (timeout is None or arrival.arrived + arrival.end <= gone):
            ends = arrival.arrived + arrival.end
            heappush(self._ends, (ends, number, operation))
            gone = max(gone, ends)
        if gone > self._horizon:
            self._horizon = gone

    def _end(self, operation: _Replayed) -> None:
        if operation.arrival.ending == "cancelled":
            if operation.cancel():
                self.has_ended(operation, "cancelled")
        elif operation.force_complete() and operation.arrival.ending == "failed":
            operation.exception()  # retrieved, so that it is not reported

    def _begin(self) -> dict[str, int]:
        """Count arrivals and ends from now on. Returns the totals of the purgatory and its timer so far."""
        self._counting = True
        self.peak_dead = self.purgatory.watched - self._live
        return self._totals()

    def _totals(self) -> dict[str, int]:
        purgatory = self.purgatory.statistics()
        timer = self.purgatory.timer.statistics()
        return {
            "completed_at_once": purgatory.completed_at_once,
            "satisfied": purgatory.satisfied - self._closed,
            "expired": purgatory.expired,
            "closed": self._closed,
            "cancelled": purgatory.cancelled,
            "failed": purgatory.failed,
            "wake_ups": timer.wake_ups,
            "cascaded": timer.cascaded,
            "buckets": timer.buckets,
            "purges": purgatory.purges,
            "scanned": purgatory.scanned,
            "purged": purgatory.purged,
        }


def simulate(
    configuration: Configuration,
    arrivals: Iterable[Arrival],
    start: float = -inf,
    stop: float = inf,
    record: Callable[[Ended], object] | None = None,
) -> Simulation:
    """Play `arrivals` in virtual time, to the end. Returns the simulation, for its counts."""
    clock = VirtualClock()
    simulation = Simulation(clock, configuration, record)
    for when in simulation.play(arrivals, start, stop):
        clock.advance_to(when)
    return simulation


def _is_unknown(arrival: Arrival, timeout: float | None) -> bool:
    """Whether the end of the operation with `timeout` is unknown from the trace."""
    if arrival.ending == "closed":
        return timeout is None or timeout > arrival.end
    return arrival.end == inf and arrival.timeout is not None and timeout is not None and timeout > arrival.timeout


def late_percentile(late: Sequence[int], share: float, tick: float) -> float | None:
    """The lateness that a `share` of all do not exceed, rounded up to a thousandth of a tick; `None` without any."""
    wanted = share * sum(late)
    reached = 0
    for part, count in enumerate(late):
        reached += count
        if count and reached >= wanted:
            return (part + 1) / LATE_BINS * tick
    return None
