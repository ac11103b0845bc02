"""`ThresholdPurgatory`: its methods, and their costs, which are by the number of waits completed."""

import asyncio
import gc
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple, Unpack

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    OperationCancelled,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    PurgatoryMisuse,
    ThresholdPurgatory,
)
from purgatory._core.listeners import FinishedOperation
from tests.support.injection import each_step
from tests.support.operations import FaultLog, RefusingClock

Ts = TypeVarTuple("Ts")


class Counted(int):
    """A number that counts how often numbers like it are compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > int(other)

    __hash__ = int.__hash__


class NotLeader(Exception):
    """Its message is more than its argument."""

    def __init__(self, leader: int) -> None:
        super().__init__(f"not leader, ask {leader}")
        self.leader = leader


class Keyed(Exception):
    """Cannot be made again from its arguments by calling it."""

    def __init__(self, *, leader: int) -> None:
        super().__init__(f"the leader is {leader}")
        self.leader = leader


class Fickle(Exception):
    """Its message differs from that of any other."""

    def __str__(self) -> str:
        return str(id(self))


class Unmade(Exception):
    """Can be made once."""

    made = False

    def __new__(cls, *arguments: object) -> "Unmade":
        if cls.made:
            raise LookupError
        cls.made = True
        return super().__new__(cls, *arguments)


@pytest.fixture
def index(clock: FaultLog) -> ThresholdPurgatory[int]:
    return ThresholdPurgatory(0, DelayedOperationPurgatory(clock=clock))


class TestReach:
    def test_operation_completes_when_value_exceeds_threshold(self, index: ThresholdPurgatory[int]) -> None:
        reach = index.reach(5, None)
        assert index.advance(5) == 0
        assert (reach.done(), index.num_waiting) == (False, 1)
        assert index.advance(7) == 1
        assert (reach.result(), index.num_waiting, index.value) == (7, 0, 7)

    def test_operation_completes_at_once_when_value_already_exceeds_threshold(
        self, index: ThresholdPurgatory[int]
    ) -> None:
        index.advance(6)
        assert index.reach(5, None).result() == 6
        assert not index.reach(6, None).done()

    def test_wait_yields_the_value_as_it_is_at_its_deadline(
        self, index: ThresholdPurgatory[int], clock: FaultLog
    ) -> None:
        reach = index.reach(5, timeout=2.0)
        index.advance(3)
        clock.advance(2.0)
        assert (reach.expired(), reach.result()) == (True, 3)
        assert index.advance(6) == 0

    async def test_operation_can_be_awaited(self) -> None:
        async with ThresholdPurgatory(0) as index:
            asyncio.get_running_loop().call_soon(index.advance, 1)
            assert await index.reach(0, 30.0) == 1
            assert await index.reach(1, 0.001) == 1

    async def test_cancelled_awaiting_task_removes_its_wait(self) -> None:
        async with ThresholdPurgatory(0) as index:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await index.reach(0, None)
            assert index.num_waiting == 0

    def test_operation_can_be_cancelled_by_its_threshold(self, index: ThresholdPurgatory[int]) -> None:
        reach = index.reach(5, None)
        assert index.purgatory.cancel_for_key(5) == [reach]
        with pytest.raises(OperationCancelled):
            reach.result()

    @pytest.mark.parametrize("value", [0.5, -math.inf, 10**400])
    def test_threshold_may_be_any_number(self, value: float, clock: FaultLog) -> None:
        level = ThresholdPurgatory(value, DelayedOperationPurgatory(clock=clock))
        reach = level.reach(value, None)
        assert level.advance(math.inf) == 1
        assert reach.result() == math.inf


class TestAdvance:
    def test_the_lowest_thresholds_complete_first_and_each_in_the_order_of_coming(
        self, index: ThresholdPurgatory[int]
    ) -> None:
        heard: list[FinishedOperation] = []
        index.purgatory.add_listener(heard.append)
        for threshold in (3, 1, 2, 1, 9):
            index.reach(threshold, float(len(heard) + index.num_waiting))
        assert index.advance(4) == 4
        assert [each.keys for each in heard] == [(1,), (1,), (2,), (3,)]
        assert [each.timeout for each in heard] == [1.0, 3.0, 2.0, 0.0]

    def test_the_value_never_falls(self, index: ThresholdPurgatory[int]) -> None:
        index.advance(5)
        assert index.advance(3) == 0
        assert index.value == 5

    def test_advance_soon_completes_from_the_next_iteration_on(
        self, index: ThresholdPurgatory[int], clock: FaultLog
    ) -> None:
        waits = [index.reach(threshold, None) for threshold in (0, 1, 2)]
        index.advance_soon(2)
        assert (index.value, index.num_waiting) == (2, 3)
        clock.advance(0.0)
        assert [wait.done() for wait in waits] == [True, True, False]
        assert index.advance(3) == 1

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

    def test_advance_soon_works_in_slices(self, clock: FaultLog) -> None:
        index = ThresholdPurgatory(0, DelayedOperationPurgatory(clock=clock))
        for _ in range(10_000):
            index.reach(0, None)
        index.advance_soon(1)
        iterations = 0
        while index.num_waiting:
            before = index.num_waiting
            clock.armed.clear()
            _one_call(clock)
            assert before - index.num_waiting <= 1000
            iterations += 1
        assert iterations >= 10

    def test_advance_soon_works_in_slices_over_many_thresholds_too(self, clock: FaultLog) -> None:
        index = ThresholdPurgatory(0, DelayedOperationPurgatory(clock=clock))
        for threshold in range(10_000):
            index.reach(threshold, None)
        index.advance_soon(5000)
        index.advance_soon(9000)
        assert len(index._heap) == 10_000
        before = index.num_waiting
        for _ in range(2):
            _one_call(clock)
        assert before - 1000 <= index.num_waiting
        clock.advance(0.0)
        assert index.num_waiting == 1000
        assert index._heap[0] == 9000

    def test_an_advance_that_completes_one_of_many_touches_no_other(self, clock: FaultLog) -> None:
        index = ThresholdPurgatory(Counted(-1), DelayedOperationPurgatory(clock=clock))
        for threshold in range(100_000):
            index.reach(Counted(threshold), 30.0)
        Counted.compared = 0
        assert index.advance(Counted(1)) == 1
        assert Counted.compared < 100
        assert index.num_waiting == 99_999

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

    def test_a_request_to_exit_is_raised_after_the_others(self, index: ThresholdPurgatory[int]) -> None:
        def leave(_: FinishedOperation) -> None:
            index.purgatory.remove_listener(leave)
            raise SystemExit

        index.purgatory.add_listener(leave)
        waits = [index.reach(threshold, None) for threshold in (0, 0, 1)]
        with pytest.raises(SystemExit):
            index.advance(5)
        assert [wait.done() for wait in waits] == [True, True, True]
        assert (index.value, index.num_waiting, index.advance(5)) == (5, 0, 0)


def _one_call(clock: FaultLog) -> None:
    """Run the next call of the clock, but none that is scheduled meanwhile."""
    when, _, handle = min(clock._heap)
    clock._heap.remove((when, _, handle))
    assert handle.callback is not None
    handle.callback(*handle.args)


def test_an_advance_at_any_step_of_a_sweep_completes_the_waits_that_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory._threshold._SPARED", 0)
    for injector in each_step():
        clock = FaultLog()
        index = ThresholdPurgatory(0, DelayedOperationPurgatory(clock=clock))
        waits = [index.reach(threshold, None) for threshold in range(1, 5)]
        for threshold in range(10, 20):
            index.reach(threshold, 1.0)
        clock.advance(1.0)
        injector.inject = partial(index.advance, 5)
        with injector:
            for threshold in range(20, 24):
                index.reach(threshold, None)
        if injector.where != "nowhere":
            assert [wait.done() for wait in waits] == [True] * 4
        assert index.num_waiting == sum(not wait.done() for wait in waits) + 4


def test_a_wait_that_comes_at_any_step_of_a_sweep_is_completed_by_an_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory._threshold._SPARED", 0)
    for injector in each_step():
        clock = FaultLog()
        index = ThresholdPurgatory(0, DelayedOperationPurgatory(clock=clock))
        for threshold in range(10, 14):
            index.reach(threshold, 1.0)
        clock.advance(1.0)
        for threshold in range(10, 14):
            index.purgatory.check_and_complete(threshold)  # compacts the watcher list, which then is empty
        waits: list[DelayedOperation[int]] = []

        def wait(index: ThresholdPurgatory[int] = index, waits: list[DelayedOperation[int]] = waits) -> None:
            waits.extend(index.reach(threshold, None) for threshold in range(10, 14))

        injector.inject = wait
        with injector:
            waits.extend([index.reach(threshold, None) for threshold in range(20, 24)])
        index.advance(30)
        assert {each.done() for each in waits} == {True}


class TestAll:
    def test_complete_all_yields_the_value_as_it_is(self, index: ThresholdPurgatory[int]) -> None:
        waits = [index.reach(threshold, None) for threshold in (5, 7)]
        index.advance(2)
        assert index.complete_all() == 2
        assert [(wait.result(), wait.expired()) for wait in waits] == [(2, False)] * 2

    async def test_fail_all_raises_in_every_awaiting_task(self) -> None:
        async with ThresholdPurgatory(0) as index:
            tasks = [asyncio.ensure_future(index.reach(threshold, None)) for threshold in (5, 7, 5)]
            await asyncio.wait(tasks, timeout=0)
            error = NotLeader(leader=3)
            error.__cause__ = cause = OSError("connection lost")
            error.add_note("in the second attempt")
            assert index.fail_all(error) == 3
            raised = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in raised] == [NotLeader] * 3
            assert len({id(each) for each in (*raised, error)}) == 4, "each has its own traceback"
            for each in raised:
                assert isinstance(each, NotLeader)
                assert (str(each), each.leader, each.__cause__) == ("not leader, ask 3", 3, cause)
                assert each.__notes__ == error.__notes__
                assert each.__notes__ is not error.__notes__
            assert index.num_waiting == 0
            assert not index.reach(5, None).done(), "it goes on after that"

    def test_fail_all_begins_with_the_lowest(self, index: ThresholdPurgatory[int], clock: FaultLog) -> None:
        heard: list[FinishedOperation] = []
        index.purgatory.add_listener(heard.append)
        waits = [index.reach(threshold, None) for threshold in (5, 3, 4)]
        waits[2].cancel()
        assert index.fail_all(LookupError("gone")) == 2
        assert [(each.keys, each.outcome) for each in heard] == [
            ((4,), "cancelled"),
            ((3,), "failed"),
            ((5,), "failed"),
        ]
        waits.clear()
        clock.advance(0.0)
        gc.collect()
        assert [type(exception) for exception in clock.exceptions] == [LookupError] * 2, "never retrieved"

    @pytest.mark.parametrize(
        "exception",
        [
            OSError(2, "no such file", "name"),
            UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"),
            KeyError("a"),
            Keyed(leader=3),
            ExceptionGroup("several", [LookupError()]),
        ],
    )
    def test_fail_all_raises_any_exception_as_it_is(self, index: ThresholdPurgatory[int], exception: Exception) -> None:
        waits = [index.reach(threshold, None) for threshold in (5, 7)]
        index.fail_all(exception)
        for wait in waits:
            raised = wait.exception()
            assert raised is not exception
            assert type(raised) is type(exception)
            assert (str(raised), raised.args, vars(raised)) == (str(exception), exception.args, vars(exception))

    @pytest.mark.parametrize("exception", [Fickle(), Unmade()])
    def test_an_exception_that_cannot_be_made_again_fails_the_waits_all_the_same(
        self, index: ThresholdPurgatory[int], exception: Exception
    ) -> None:
        reach = index.reach(5, None)
        assert index.fail_all(exception) == 1
        failure = reach.exception()
        assert type(failure) is PurgatoryError
        assert failure.__cause__ is exception

    def test_the_exception_that_the_caller_is_handling_stays_as_it_is(
        self, index: ThresholdPurgatory[int], clock: FaultLog
    ) -> None:
        def fail(variable: int) -> None:
            raise LookupError(variable)

        reach = index.reach(5, None)
        try:
            fail(7)
        except LookupError as error:
            index.fail_all(error)
            clock.advance(0.0)
            traceback = error.__traceback__
            assert traceback is not None
            assert traceback.tb_next is not None
            assert traceback.tb_next.tb_frame.f_locals == {"variable": 7}
        failure = reach.exception()
        assert failure is not None
        assert failure.__context__ is None

    @pytest.mark.parametrize("exception", [SystemExit(), asyncio.CancelledError(), StopIteration(), LookupError, "no"])
    def test_an_object_that_cannot_be_raised_is_refused(self, index: ThresholdPurgatory[int], exception: Any) -> None:
        index.reach(5, None)
        with pytest.raises(TypeError, match="exception must be an Exception other than StopIteration, not"):
            index.fail_all(exception)
        assert index.num_waiting == 1

    async def test_a_close_completes_every_wait(self) -> None:
        index = ThresholdPurgatory(3)
        async with index:
            reach = index.reach(5, None)
        assert await reach == 3
        with pytest.raises(PurgatoryClosed):
            index.reach(5, None)

    def test_close_completes_every_wait_at_once(self, index: ThresholdPurgatory[int]) -> None:
        reach = index.reach(5, None)
        index.close()
        assert reach.result() == 0
        assert index.advance(6) == 0
        assert index._heap == []
        assert index._thresholds == set()


class TestRefusals:
    def test_threshold_or_value_that_is_no_number_is_refused(self, index: ThresholdPurgatory[Any]) -> None:
        text: Any = "5"
        with pytest.raises(TypeError, match="threshold must be an int or a float"):
            index.reach(text, None)
        with pytest.raises(TypeError, match="value must be an int or a float"):
            index.advance(None)
        with pytest.raises(TypeError, match="value must be an int or a float"):
            ThresholdPurgatory(text)
        with pytest.raises(TypeError, match="purgatory must be a DelayedOperationPurgatory, not '5'"):
            ThresholdPurgatory(0, text)
        with pytest.raises(ValueError, match="not NaN"):
            index.reach(math.nan, None)
        with pytest.raises(ValueError, match="not NaN"):
            index.advance_soon(math.nan)
        assert (index.value, index.num_waiting) == (0, 0)

    def test_negative_timeout_is_refused(self, index: ThresholdPurgatory[int]) -> None:
        with pytest.raises(ValueError, match="finite and not negative"):
            index.reach(5, -1.0)
        assert index.num_waiting == 0

    def test_wait_in_a_full_purgatory_is_refused(self, clock: FaultLog) -> None:
        index = ThresholdPurgatory(0, DelayedOperationPurgatory(max_pending=1, clock=clock))
        index.reach(5, None)
        with pytest.raises(PurgatoryFull):
            index.reach(6, None)
        assert index.advance(9) == 1

    async def test_wait_on_another_event_loop_is_refused(self) -> None:
        index = ThresholdPurgatory(0)
        index.reach(5, 0.0)

        async def elsewhere() -> None:
            index.reach(5, 0.0)

        with pytest.raises(PurgatoryError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, elsewhere())
        await index.aclose()

    def test_call_from_another_thread_is_refused_in_debug_mode(self) -> None:
        async def main() -> None:
            async with ThresholdPurgatory(0) as index:
                for call in (index.advance, index.advance_soon):
                    with pytest.raises(PurgatoryError, match=r"use advance_threadsafe\(\)$"):
                        await asyncio.to_thread(call, 1)
                with pytest.raises(PurgatoryError, match=r"call_soon_threadsafe\(purgatory\.fail_all"):
                    await asyncio.to_thread(index.fail_all, LookupError())
                assert index.value == 0

        asyncio.run(main(), debug=True)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often other threads wake it."""

    woken = 0

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.woken += 1
        return super().call_soon_threadsafe(callback, *args, context=context)


class Unequal(int):
    """Raises when it is compared with a number like it."""

    def __gt__(self, other: int) -> bool:
        if isinstance(other, Unequal):
            raise LookupError
        return int(self) > other


def in_threads(count: int, call: Callable[[int], object]) -> None:
    """Call `call` with the number of each of so many threads, and keep the loop waiting until all have ended."""
    with ThreadPoolExecutor(count) as threads:
        for _ in threads.map(call, range(count)):
            pass


class CountingPurgatory(ThresholdPurgatory[int]):
    """Counts the passes that other threads have caused."""

    passes = 0

    def advance_soon(self, value: int) -> None:
        self.passes += 1
        super().advance_soon(value)


class Emptied(deque[int]):
    """Is empty by the time that a value is taken."""

    def popleft(self) -> int:
        raise IndexError


class TestAdvanceThreadsafe:
    def test_ten_thousand_advances_from_threads_wake_a_busy_loop_once(self) -> None:
        loops: list[CountingLoop] = []

        def factory() -> CountingLoop:
            loops.append(CountingLoop())
            return loops[-1]

        async def main() -> None:
            index = CountingPurgatory(0)
            async with index:
                waits = [index.reach(threshold, None) for threshold in range(0, 10_000, 7)]
                loops[0].woken = 0

                def advance(thread: int) -> None:
                    for value in range(thread, 10_000, 4):
                        index.advance_threadsafe(value + 1)

                in_threads(4, advance)
                assert (index.value, index.num_waiting) == (0, len(waits))
                assert loops[0].woken == 1
                assert len(index._foreign) <= 4, "one value for each thread at the most"
                assert [await wait for wait in waits] == [10_000] * len(waits)
                assert index.passes <= 4
                again = index.reach(10_000, None)
                in_threads(1, lambda _: index.advance_threadsafe(10_001))
                assert loops[0].woken == 2
                assert await again == 10_001

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    async def test_every_wait_completes_while_threads_advance_and_the_value_never_falls(self) -> None:
        async with CountingPurgatory(0) as index:
            threads, values = 4, 2000
            numbers = [list(range(thread, values + 1, threads)) for thread in range(threads)]

            def advance(thread: int) -> None:
                for value in numbers[thread]:
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

    async def test_late_smaller_value_does_no_harm(self) -> None:
        async with ThresholdPurgatory(0) as index:
            waits = [index.reach(threshold, None) for threshold in (5, 9)]

            def advance(thread: int) -> None:
                for value in (3, 9, 7):
                    index.advance_threadsafe(value)

            in_threads(1, advance)
            assert await waits[0] == 9
            in_threads(1, lambda _: index.advance_threadsafe(8))
            for _ in range(3):
                await asyncio.sleep(0)
            assert (index.value, waits[1].done()) == (9, False)

    async def test_value_from_a_time_without_a_loop_is_there_with_the_first_wait(self) -> None:
        for entered in (False, True):
            index = ThresholdPurgatory(0)
            in_threads(2, lambda thread: index.advance_threadsafe(thread + 6))  # noqa: B023
            if entered:
                await index.__aenter__()
                assert index.value == 7
            assert await index.reach(6, None) == 7
            await index.aclose()

    async def test_value_after_a_close_has_no_effect(self) -> None:
        index = ThresholdPurgatory(0)
        index.reach(0, None)
        await index.aclose()
        in_threads(1, lambda _: index.advance_threadsafe(1))
        await asyncio.sleep(0)
        assert index.value == 0

    def test_value_after_the_loop_is_closed_is_refused_each_time(self) -> None:
        index = ThresholdPurgatory(0)

        async def main() -> None:
            index.reach(0, None)

        asyncio.run(main())
        for _ in range(2):
            with pytest.raises(RuntimeError, match="closed"):
                index.advance_threadsafe(1)

    def test_value_after_the_loop_is_closed_is_refused_though_another_was_on_its_way(self) -> None:
        index = ThresholdPurgatory(0)
        loop = asyncio.new_event_loop()

        async def main() -> None:
            index.reach(0, None)

        loop.run_until_complete(main())
        index.advance_threadsafe(1)
        loop.close()
        with pytest.raises(RuntimeError, match="closed"):
            index.advance_threadsafe(2)

    def test_clock_that_is_no_event_loop_is_refused(self, index: ThresholdPurgatory[int]) -> None:
        with pytest.raises(PurgatoryMisuse, match="has no event loop that another thread could call"):
            index.advance_threadsafe(1)

    @pytest.mark.parametrize(("value", "error"), [("1", TypeError), (math.nan, ValueError), (None, TypeError)])
    async def test_wrong_value_is_refused_in_the_thread_that_gives_it(self, value: Any, error: type[Exception]) -> None:
        async with ThresholdPurgatory(0) as index:
            wait = index.reach(0, None)
            with pytest.raises(error):
                await asyncio.to_thread(index.advance_threadsafe, value)
            assert not index._foreign
            assert not wait.done()

    async def test_value_that_cannot_be_compared_does_not_displace_another(self) -> None:
        async with ThresholdPurgatory(0) as index:
            wait = index.reach(0, None)

            def advance(thread: int) -> None:
                index.advance_threadsafe(Unequal(2))
                with pytest.raises(LookupError):
                    index.advance_threadsafe(Unequal(3))

            in_threads(1, advance)
            assert await wait == 2

    def test_value_that_another_thread_has_taken_back_is_not_missed(self) -> None:
        async def main() -> None:
            async with ThresholdPurgatory(0) as index:
                wait = index.reach(0, None)
                index.advance_threadsafe(1)
                index.advance_threadsafe(2)
                foreign, index._foreign = index._foreign, Emptied(index._foreign)
                await asyncio.sleep(0)
                assert not wait.done()
                index._foreign = foreign
                foreign.clear()
                index.advance_threadsafe(2)  # as that thread goes on
                assert await wait == 2

        asyncio.run(main())


class TestAbandonedThresholds:
    def test_abandoned_thresholds_do_not_pile_up(self, clock: FaultLog) -> None:
        index = ThresholdPurgatory(0, DelayedOperationPurgatory(clock=clock))
        forever = index.reach(0, None)
        longest = 0
        for threshold in range(1, 50_001):
            index.reach(threshold, 0.1)
            if threshold % 100 == 0:
                clock.advance(1.0)
            longest = max(longest, len(index._heap) + len(index._old))
            assert len(index._thresholds) == len(index._heap) + len(index._old)
        assert longest < 6000, "of 50,000"
        assert not forever.done()
        index.advance(60_000)
        assert forever.done()

    def test_sweeping_loses_no_operation(self, clock: FaultLog) -> None:
        index = ThresholdPurgatory(0, DelayedOperationPurgatory(purge_interval=0, clock=clock))
        staying = {threshold: index.reach(threshold, None) for threshold in range(0, 3000, 10)}
        for threshold in range(3000):
            index.reach(threshold, 0.01)
        clock.advance(1.0)
        for threshold in range(10_000, 10_200):
            staying[threshold] = index.reach(threshold, None)
        assert index._old, "it is being swept"
        for value in range(0, 11_000, 7):
            index.advance(value)
            assert [threshold for threshold, wait in staying.items() if wait.done() != (value > threshold)] == []

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

    def test_a_threshold_may_be_waited_for_again(self, index: ThresholdPurgatory[int]) -> None:
        for _ in range(3):
            index.reach(5, None)
            index.purgatory.cancel_all()
        again = index.reach(5, None)
        assert index._heap == [5]
        assert index.advance(6) == 1
        assert again.done()

    def test_repr_of_threshold_purgatory_shows_value_and_number_of_waits(self, index: ThresholdPurgatory[int]) -> None:
        index.reach(5, None)
        assert repr(index) == "<ThresholdPurgatory 'purgatory' value=0 waiting=1>"
        assert repr(ThresholdPurgatory(1)) == "<ThresholdPurgatory 'threshold' value=1 waiting=0>"
