"""`ThresholdPurgatory`: its methods, and that nothing is missed and nothing is left behind."""

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from purgatory import (
    DelayedOperationPurgatory,
    FinishedOperation,
    PurgatoryClosed,
    PurgatoryMisuse,
    ThresholdPurgatory,
)
from tests.support.operations import CallingClock, FaultLog, RefusingClock


@pytest.fixture
def index(clock: FaultLog) -> ThresholdPurgatory[int]:
    return ThresholdPurgatory(0, DelayedOperationPurgatory(clock=clock))


class TestReach:
    async def test_operation_can_be_awaited_or_left(self) -> None:
        async with ThresholdPurgatory(0) as index:
            asyncio.get_running_loop().call_soon(index.advance, 1)
            assert await index.reach(0, 30.0) == 1
            assert await index.reach(1, 0.001) == 1
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await index.reach(1, None)
            assert index.num_waiting == 0

    @pytest.mark.parametrize("value", [0.5, -math.inf, 10**400])
    def test_threshold_may_be_any_number(self, value: float, clock: FaultLog) -> None:
        level = ThresholdPurgatory(value, DelayedOperationPurgatory(clock=clock))
        reach = level.reach(value, None)
        assert level.advance(math.inf) == 1
        assert reach.result() == math.inf


class TestAdvance:
    def test_advance_soon_asks_a_clock_again_that_refused(self) -> None:
        clock = RefusingClock()
        index = ThresholdPurgatory(0, DelayedOperationPurgatory(clock=clock))
        wait = index.reach(0, None)
        clock.refuses = True
        with pytest.raises(RuntimeError, match="refused"):
            index.advance_soon(1)
        clock.refuses = False
        index.advance_soon(1)
        clock.advance(0.0)
        assert wait.result() == 1

    @pytest.mark.parametrize("thresholds", [1, 10_000])
    def test_advance_soon_works_in_slices(
        self, index: ThresholdPurgatory[int], clock: FaultLog, thresholds: int
    ) -> None:
        for n in range(10_000):
            index.reach(n % thresholds, None)
        index.advance_soon(thresholds // 2)
        index.advance_soon(thresholds)
        assert index.num_waiting == 10_000
        steps: list[int] = []

        def beat() -> None:
            steps.append(index.num_waiting)
            if index.num_waiting:
                clock.call_at(0.0, beat)

        clock.call_at(0.0, beat)
        clock.advance(0.0)
        assert max(before - after for before, after in pairwise(steps)) <= 1000
        assert len(steps) >= 10

    def test_a_listener_may_wait_again_and_advance(self, index: ThresholdPurgatory[int]) -> None:
        def go_on(finished: FinishedOperation) -> None:
            (threshold,) = finished.keys
            assert isinstance(threshold, int)
            if threshold < 50:
                index.reach(threshold + 1, None)
                index.advance(threshold + 2)

        index.purgatory.add_listener(go_on)
        index.reach(0, None)
        index.advance(1)
        assert (index.value, index.num_waiting) == (51, 0)

    def test_a_listener_that_advances_further_loses_no_wait(self, index: ThresholdPurgatory[int]) -> None:
        index.purgatory.add_listener(lambda finished: index.advance(2))
        waits = [index.reach(threshold, None) for threshold in (0, 1, 50, 60)]
        assert index.advance(1) == 1
        assert [wait.done() for wait in waits] == [True, True, False, False]
        index.advance(70)
        assert all(wait.done() for wait in waits)

    @pytest.mark.parametrize("nth", range(3))
    def test_an_advance_by_the_clock_that_times_a_wait_is_not_missed(self, nth: int) -> None:
        clock = CallingClock()
        index = ThresholdPurgatory(0, DelayedOperationPurgatory(clock=clock))
        clock.arm(nth, lambda: index.advance(9))
        wait = index.reach(8, 30.0)
        assert (wait.result(), len(index.purgatory.timer)) == (9, 0)


@pytest.mark.parametrize("soon", [False, True])
async def test_a_close_completes_every_wait(soon: bool) -> None:
    index = ThresholdPurgatory(3)
    async with index:
        reach = index.reach(5, None)
        if not soon:
            index.close()
            assert reach.done()
    assert await reach == 3
    with pytest.raises(PurgatoryClosed):
        index.reach(5, None)
    assert index.advance(6) == 0
    assert (index._heap, index._thresholds) == ([], set())


def test_threshold_or_value_that_is_no_number_is_refused(index: ThresholdPurgatory[Any]) -> None:
    text: Any = "5"
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: index.reach(text, None), TypeError, "threshold must be an int or a float"),
        (lambda: index.advance(None), TypeError, "value must be an int or a float"),
        (lambda: ThresholdPurgatory(text), TypeError, "value must be an int or a float"),
        (lambda: ThresholdPurgatory(0, text), TypeError, "must be a DelayedOperationPurgatory, not '5'"),
        (lambda: index.reach(math.nan, None), ValueError, "not NaN"),
        (lambda: index.advance_soon(math.nan), ValueError, "not NaN"),
        (lambda: index.advance_threadsafe(text), TypeError, "value must be an int or a float"),
        (lambda: index.advance_threadsafe(math.nan), ValueError, "not NaN"),
        (lambda: index.reach(5, -1.0), ValueError, "finite and not negative"),
    ]
    for call, error, message in calls:
        with pytest.raises(error, match=message):
            call()
    assert (index.value, index.num_waiting) == (0, 0)


class TestAdvanceThreadsafe:
    async def test_every_wait_completes_while_threads_advance_and_the_value_never_falls(self) -> None:
        async with ThresholdPurgatory(0) as index:
            threads, values = 4, 2000

            def advance(thread: int) -> None:
                for value in range(thread, values + 1, threads):
                    index.advance_threadsafe(value)

            with ThreadPoolExecutor(threads) as pool:
                advancing = [pool.submit(advance, thread) for thread in range(threads)]
                before = 0
                for threshold in range(values):
                    value = await index.reach(threshold, None)
                    assert value > threshold
                    assert value >= before
                    before = value
                for each in advancing:
                    each.result()
            assert index.value == values

    async def test_the_highest_of_the_values_counts(self) -> None:
        async with ThresholdPurgatory(0) as index:
            waits = [index.reach(threshold, None) for threshold in (5, 9)]
            for value in (3, 9, 7):
                index.advance_threadsafe(value)
            assert await waits[0] == 9
            index.advance_threadsafe(8)
            for _ in range(3):
                await asyncio.sleep(0)
            assert (index.value, waits[1].done()) == (9, False)

    @pytest.mark.parametrize("entered", [False, True])
    async def test_value_from_a_time_without_a_loop_is_there_with_the_first_wait(self, entered: bool) -> None:
        index = ThresholdPurgatory(0)
        for value in (7, 6):
            index.advance_threadsafe(value)
        if entered:
            await index.__aenter__()
            assert index.value == 7
        assert await index.reach(6, None) == 7
        await index.aclose()

    async def test_value_after_a_close_has_no_effect(self) -> None:
        index = ThresholdPurgatory(0)
        index.reach(0, None)
        await index.aclose()
        index.advance_threadsafe(1)
        await asyncio.sleep(0)
        assert (index.value, len(index._mailbox)) == (0, 0)

    @pytest.mark.parametrize("on_its_way", [False, True])
    def test_value_after_the_loop_is_closed_is_refused_each_time(self, on_its_way: bool) -> None:
        index = ThresholdPurgatory(0)
        loop = asyncio.new_event_loop()

        async def main() -> None:
            index.reach(0, None)

        loop.run_until_complete(main())
        if on_its_way:
            index.advance_threadsafe(1)
        loop.close()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="closed"):
                index.advance_threadsafe(2)

    def test_clock_that_is_no_event_loop_is_refused(self, index: ThresholdPurgatory[int]) -> None:
        with pytest.raises(PurgatoryMisuse, match="has no event loop that another thread could call"):
            index.advance_threadsafe(1)


class TestAbandonedThresholds:
    def test_abandoned_thresholds_do_not_pile_up(self, index: ThresholdPurgatory[int], clock: FaultLog) -> None:
        forever = index.reach(0, None)
        longest = 0
        for threshold in range(1, 20_001):
            index.reach(threshold, 0.1)
            if threshold % 100 == 0:
                clock.advance(1.0)
            longest = max(longest, len(index._heap) + len(index._old))
            assert len(index._thresholds) == len(index._heap) + len(index._old)
        assert longest < 6000, "of 20,000"
        assert not forever.done()
        index.advance(60_000)
        assert forever.done()

    def test_a_lower_threshold_is_not_missed_while_old_ones_are_swept(self, clock: FaultLog) -> None:
        index = ThresholdPurgatory(0, DelayedOperationPurgatory(purge_interval=0, clock=clock))
        for threshold in range(1_000_000, 1_003_000):
            index.reach(threshold, 0.01)
        clock.advance(1.0)
        low = [index.reach(threshold, None) for threshold in (7, 5)]
        assert index._old, "it is being swept"
        assert index.advance(6) == 1
        assert [wait.done() for wait in low] == [False, True]
        index.advance_soon(8)
        clock.advance(0.0)
        assert low[0].done()


def test_repr_of_threshold_purgatory_shows_value_and_number_of_waits(index: ThresholdPurgatory[int]) -> None:
    index.reach(5, None)
    assert repr(index) == "<ThresholdPurgatory 'purgatory' value=0 waiting=1>"
    assert repr(ThresholdPurgatory(1)) == "<ThresholdPurgatory 'threshold' value=1 waiting=0>"
