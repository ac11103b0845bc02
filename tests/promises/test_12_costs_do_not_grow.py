"""Promise 12: registering, completing, purging and waking cost by what they touch, not by what is pending.

Costs are counted, and no time is measured: the lines of Python that run, the bytes that are allocated, the entries that
are scanned, the tries.
"""

import tracemalloc
from collections import deque
from collections.abc import Callable

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    IdleTracker,
    ThresholdPurgatory,
    VersionedValues,
    WheelTimer,
)
from tests.support.costs import lines
from tests.support.operations import FaultLog, Flag

IDLE = 4_000
TAKERS = 10_000


def allocated(work: Callable[[], object]) -> int:
    """The most bytes that `work` has allocated at a time."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        work()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return most - before


def idle(purgatory: DelayedOperationPurgatory, count: int) -> None:
    for n in range(count):
        purgatory.try_complete_else_watch(Flag(3600.0), [f"idle {n}"])


class TestBesideIdleOperations:
    """A short operation costs the same, however many others wait."""

    @pytest.mark.parametrize("count", [0, IDLE])
    def test_operations_that_a_check_completes_start_no_purge(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, count: int
    ) -> None:
        idle(purgatory, count)
        for _ in range(2000):
            operation = purgatory.try_complete_else_watch(Flag(30.0), ["hot"])
            operation.ready = True
            assert purgatory.check_and_complete("hot") == 1
        clock.advance(0)
        statistics = purgatory.statistics()
        assert (statistics.purges, statistics.scanned) == (0, 0), "no dead entry is left behind"
        assert purgatory.watched == count

    @pytest.mark.parametrize("count", [0, IDLE])
    def test_a_purge_costs_by_the_operations_that_have_finished(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, count: int
    ) -> None:
        idle(purgatory, count)
        finished = 5 * IDLE
        for n in range(finished):
            purgatory.try_complete_else_watch(Flag(30.0), [f"key {n % 10}"]).force_complete()
            if n % 10 == 0:
                clock.advance(0)
        statistics = purgatory.statistics()
        # At least about half of the entries that a purge looks at are dead.
        assert statistics.scanned <= 2.1 * finished + 2 * count
        assert statistics.purges <= finished / max(1000, count)
        assert purgatory.watched - purgatory.num_delayed <= max(1000, count) + 20

    def test_registering_and_completing_costs_the_same(self, clock: FaultLog) -> None:
        def prepare(count: int) -> Callable[[], None]:
            purgatory = DelayedOperationPurgatory(clock=clock)
            idle(purgatory, count)

            def work() -> None:
                for n in range(100):
                    operation = purgatory.try_complete_else_watch(Flag(30.0), ["hot", f"key {n}"])
                    operation.ready = True
                    purgatory.check_and_complete("hot")
                clock.advance(0)

            return work

        assert lines(prepare(5000)) <= 1.1 * lines(prepare(10))

    def test_waking_the_timer_costs_the_same(self, clock: FaultLog) -> None:
        def prepare(count: int) -> Callable[[], None]:
            timer = WheelTimer(clock)
            for n in range(count):
                timer.call_later(3600.0 + n % 60, int)

            def work() -> None:
                for n in range(100):
                    timer.call_later(0.001 * (n % 7), int)
                clock.advance(0.010)

            return work

        assert lines(prepare(5000)) <= 1.1 * lines(prepare(10))

    def test_thresholds_values_and_idle_trackers_cost_the_same(self, clock: FaultLog) -> None:
        def prepare(count: int) -> Callable[[], None]:
            thresholds = ThresholdPurgatory(0, DelayedOperationPurgatory(clock=clock))
            values: VersionedValues[object, int] = VersionedValues(0, DelayedOperationPurgatory(clock=clock))
            tracker: IdleTracker[object] = IdleTracker(60.0, id, clock=clock)
            for n in range(count):
                thresholds.reach(1_000_000 + n, None)
                values.changed({n: 0, f"another {n}": 0}, None)
                tracker.touch(n)

            def work() -> None:
                for n in range(1, 100):
                    thresholds.reach(n, 30.0)
                    thresholds.advance(n + 1)
                    values.changed({"hot": values.set("hot", n)}, 30.0)
                    tracker.touch(f"key {n}")
                    tracker.discard(f"key {n}")

            return work

        assert lines(prepare(5000)) <= 1.1 * lines(prepare(10))


class Take(DelayedOperation[int]):
    """Takes an item, if there is one."""

    __slots__ = ("items", "tries")

    def __init__(self, items: deque[int], tries: list[int]) -> None:
        super().__init__(None)
        self.items = items
        self.tries = tries

    def try_complete(self) -> bool:
        self.tries[0] += 1
        return bool(self.items) and self.force_complete()

    def on_complete(self) -> int:
        return self.items.popleft() if self.items else -1


class Takers:
    """Many operations that wait for items of one queue."""

    def __init__(self, clock: FaultLog, count: int) -> None:
        self.purgatory = DelayedOperationPurgatory(clock=clock)
        self.clock = clock
        self.items: deque[int] = deque()
        self.tries = [0]
        self.takers = [
            self.purgatory.try_complete_else_watch(Take(self.items, self.tries), ("q",)) for _ in range(count)
        ]
        self.tries[0] = 0

    def put(self, count: int) -> None:
        for n in range(count):
            self.items.append(n)
            if self.purgatory.check_and_complete("q", limit=1) != 1:
                raise AssertionError("no taker completed")

    def put_soon(self, count: int) -> None:
        for n in range(count):
            self.items.append(n)
            self.purgatory.check_and_complete_soon("q", limit=1)
            self.clock.advance(0)
            if self.items:
                raise AssertionError("no taker completed")

    @property
    def served(self) -> list[int]:
        return [n for n, taker in enumerate(self.takers) if taker.done()]


PUT = [Takers.put, Takers.put_soon]


@pytest.mark.parametrize("put", PUT)
class TestOneItemForOneOfManyTakers:
    def test_item_for_many_takers_copies_no_list_of_them(
        self, clock: FaultLog, put: Callable[[Takers, int], None]
    ) -> None:
        takers = Takers(clock, TAKERS)
        put(takers, 2)
        assert allocated(lambda: put(takers, 20)) < 8 * TAKERS / 4, "a list of all would be 8 bytes for each"

    def test_item_for_many_takers_runs_as_many_lines_as_for_few(
        self, clock: FaultLog, put: Callable[[Takers, int], None]
    ) -> None:
        few, many = Takers(clock, 200), Takers(clock, TAKERS)
        for takers in (few, many):
            put(takers, 2)
        assert lines(lambda: put(many, 100)) <= 1.1 * lines(lambda: put(few, 100))

    def test_served_takers_leave_no_dead_entries_in_the_way(
        self, clock: FaultLog, put: Callable[[Takers, int], None]
    ) -> None:
        takers = Takers(clock, 5000)
        costs = [lines(lambda: put(takers, 490)) for _ in range(10)]
        assert max(costs) <= 1.3 * min(costs), "the last ones cost what the first ones did"
        assert takers.tries == [4900], "one for each item"
        assert takers.served == list(range(4900)), "first come, first served"
        clock.advance(0)
        assert takers.purgatory.watched - takers.purgatory.num_delayed <= 1000

    def test_cancelled_takers_are_skipped_without_a_try(
        self, clock: FaultLog, put: Callable[[Takers, int], None]
    ) -> None:
        takers = Takers(clock, 2000)
        for taker in takers.takers[::2]:
            taker.cancel()
        put(takers, 1000)
        assert takers.tries == [1000]
        assert takers.purgatory.num_delayed == 0


def test_cascade_costs_each_task_the_same_however_many_there_are(clock: FaultLog) -> None:
    def cascade(count: int) -> float:
        timer = WheelTimer(clock)
        when = clock.time() + 9.0
        for _ in range(count):
            timer.call_at(when, print)
        cascaded = timer.statistics().cascaded
        ran = lines(lambda: clock.advance_to(when - 0.001))
        cascaded = timer.statistics().cascaded - cascaded
        assert cascaded >= count
        timer.close()
        return ran / cascaded

    assert cascade(5_000) < 1.1 * cascade(1_000)
