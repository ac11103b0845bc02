"""`timeout` and `deadline` of operations, operations without keys, and what a purgatory's timer refuses."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from purgatory import (
    Delay,
    DelayedOperation,
    DelayedOperationPurgatory,
    FinishedOperation,
    OperationCancelled,
    PurgatoryClosed,
    PurgatoryFull,
    PurgatoryMisuse,
    TimerTask,
    VirtualClock,
    WheelTimer,
)
from tests.support.invariants import check_purgatory
from tests.support.operations import ENDS, FaultLog, Flag, Note, RefusingClock, Waiting, turn, wait


class TestTimeout:
    @pytest.mark.parametrize("timeout", [5.0, 5, 0.0, 0, 1e-320, 1e300, True, None])
    def test_is_what_the_operation_was_made_with(self, timeout: float | None) -> None:
        operation = Waiting(timeout)
        assert operation.timeout == timeout
        assert type(operation.timeout) in (float, type(None))

    def test_stays_when_the_deadline_moves_and_after_the_end(self, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        operation.reschedule(9.0)
        assert operation.timeout == 5.0
        operation.cancel()
        assert operation.timeout == 5.0

    def test_of_the_short_forms(self, purgatory: DelayedOperationPurgatory) -> None:
        assert purgatory.wait_for(lambda: False, "key", timeout=3.0).timeout == 3.0
        assert purgatory.wait_for(lambda: False, "key").timeout is None
        assert Delay(2.0).timeout == 2.0


class TestDeadline:
    def test_is_a_time_of_the_clock_from_the_hand_over_on(
        self, clock: FaultLog, purgatory: DelayedOperationPurgatory
    ) -> None:
        clock.advance(100.0)
        operation = Flag(5.0)
        assert operation.deadline is None
        purgatory.try_complete_else_watch(operation, ["key"])
        assert operation.deadline == 105.0
        clock.advance(4.0)
        assert operation.deadline == 105.0

    def test_is_known_to_the_second_try(self, clock: FaultLog, purgatory: DelayedOperationPurgatory) -> None:
        seen: list[float | None] = []

        class Seeing(Flag):
            def try_complete(self) -> bool:
                seen.append(self.deadline)
                return False

        purgatory.try_complete_else_watch(Seeing(5.0), ["key"])
        assert seen == [None, 5.0]

    def test_follows_reschedule(self, clock: FaultLog, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        clock.advance(1.0)
        for timeout, deadline in ((9.0, 10.0), (2, 3.0), (None, None), (0.0, 1.0), (7.0, 8.0)):
            operation.reschedule(timeout)
            assert operation.deadline == deadline

    def test_stays_where_it_was_if_the_clock_raises(self) -> None:
        clock = RefusingClock()
        purgatory = DelayedOperationPurgatory(clock=clock)
        for before, after in ((5.0, 1.0), (5.0, 50.0), (None, 1.0)):
            operation = purgatory.try_complete_else_watch(Flag(before), ["key"])
            clock.refuses = True
            try:
                operation.reschedule(after)
            except RuntimeError:
                assert operation.deadline == before
            clock.refuses = False
            check_purgatory(purgatory)
            deadline = operation.deadline
            clock.advance(1000.0)
            assert operation.expired() == (deadline is not None)
            operation.cancel()
            purgatory.check_and_complete("key")
            clock = RefusingClock()
            purgatory = DelayedOperationPurgatory(clock=clock)

    @pytest.mark.parametrize("way", ENDS)
    def test_is_kept_after_the_end(self, clock: FaultLog, purgatory: DelayedOperationPurgatory, way: str) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["a", "b"])
        operation.ready = way.startswith("check")
        ENDS[way](purgatory, clock, operation)
        assert operation.done()
        assert (operation.timeout, operation.deadline) == (5.0, 5.0)

    def test_is_none_without_one(self, purgatory: DelayedOperationPurgatory) -> None:
        assert Flag().deadline is None
        assert purgatory.try_complete_else_watch(Flag(), ["key"]).deadline is None
        assert purgatory.try_complete_else_watch(Flag(5.0, ready=True), ["key"]).deadline is None

    def test_is_seen_in_on_complete_and_on_expiration(
        self, clock: FaultLog, purgatory: DelayedOperationPurgatory
    ) -> None:
        seen: list[float | None] = []

        class Seeing(Flag):
            def on_complete(self) -> str:
                seen.append(self.deadline)
                return ""

            def on_expiration(self) -> None:
                seen.append(self.deadline)

        purgatory.try_complete_else_watch(Seeing(5.0), ["key"])
        clock.advance(5.0)
        assert seen == [5.0, 5.0]

    async def test_on_a_loop_it_is_a_time_of_the_loop(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            loop = asyncio.get_running_loop()
            before = loop.time()
            operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
            assert operation.deadline is not None
            assert before + 5.0 <= operation.deadline <= loop.time() + 5.0


class TestNamesOfSubclasses:
    """These attributes came later than the programs that use the names themselves."""

    def test_an_attribute_wins(self, clock: FaultLog, purgatory: DelayedOperationPurgatory) -> None:
        class Own(Waiting):
            def __init__(self, timeout: float) -> None:
                super().__init__(timeout)
                self.timeout = 7.0
                self.deadline = 8.0

        operation = Own(5.0)
        assert (operation.timeout, operation.deadline) == (7.0, 8.0)
        purgatory.try_complete_else_watch(operation, ["key"])
        operation.deadline = 9.0
        assert (operation.timeout, operation.deadline) == (7.0, 9.0)
        assert "due in 5.0 s" in repr(operation)
        clock.advance(4.9)
        assert not operation.done()
        clock.advance(0.1)
        assert operation.expired()

    def test_an_attribute_set_before_the_constructor_wins(self, purgatory: DelayedOperationPurgatory) -> None:
        class Own(Waiting):
            def __init__(self) -> None:
                self.timeout = 7.0
                super().__init__(5.0)

        assert Own().timeout == 7.0

    def test_a_slot_wins(self, clock: FaultLog, purgatory: DelayedOperationPurgatory) -> None:
        class Own(DelayedOperation[None]):
            __slots__ = ("deadline", "timeout")

            def __init__(self) -> None:
                super().__init__(5.0)
                self.timeout = 7.0
                self.deadline = 8.0

            def try_complete(self) -> bool:
                return False

            def on_complete(self) -> None:
                pass

        operation = purgatory.try_complete_else_watch(Own(), ["key"])
        assert (operation.timeout, operation.deadline) == (7.0, 8.0)
        clock.advance(5.0)
        assert operation.expired()

    def test_a_class_attribute_a_property_and_a_method_win(self, purgatory: DelayedOperationPurgatory) -> None:
        class Own(Waiting):
            timeout = 7.0

            @property
            def deadline(self) -> float:
                return 8.0

        operation = purgatory.try_complete_else_watch(Own(5.0), ["key"])
        assert (operation.timeout, operation.deadline) == (7.0, 8.0)

    def test_an_attribute_that_is_deleted_uncovers_the_value(self) -> None:
        operation = Flag(5.0)
        operation.timeout = 7.0
        assert operation.timeout == 7.0
        del operation.timeout
        assert operation.timeout == 5.0


CLOSES: Final[dict[str, tuple[str, Callable[[DelayedOperationPurgatory], object]]]] = {
    "complete_all": ("closed", lambda purgatory: purgatory.complete_all()),
    "cancel_all": ("cancelled", lambda purgatory: purgatory.cancel_all()),
    "fail_all": ("failed", lambda purgatory: purgatory.fail_all(LookupError())),
    "close": ("closed", lambda purgatory: purgatory.close()),
    "aclose": ("closed", lambda purgatory: list(purgatory.aclose().__await__())),
}


class TestWithoutKeys:
    def test_one_that_completes_at_once(self, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(ready=True), [])
        assert operation.result() == "result of flag"
        assert purgatory.statistics().completed_at_once == 1

    def test_one_with_a_deadline(self, clock: FaultLog, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), [])
        assert (purgatory.num_delayed, purgatory.watched, purgatory.watched_keys()) == (1, 0, [])
        clock.advance(4.9)
        assert operation.outcome is None
        clock.advance(0.1)
        assert operation.expired()
        statistics = purgatory.statistics()
        assert (statistics.num_delayed, statistics.expired, statistics.peak_delayed) == (0, 1, 1)
        assert (statistics.watched, statistics.purged, statistics.peak_watched) == (0, 0, 0)

    def test_one_that_nothing_would_end_is_refused_and_cancelled(self, purgatory: DelayedOperationPurgatory) -> None:
        operation = Flag()
        with pytest.raises(ValueError, match="needs a key or a timeout"):
            purgatory.try_complete_else_watch(operation, [])
        assert operation.cancelled()
        statistics = purgatory.statistics()
        assert (statistics.num_delayed, statistics.cancelled) == (0, 1)

    def test_a_generator_without_keys(self, purgatory: DelayedOperationPurgatory) -> None:
        with pytest.raises(ValueError, match="needs a key"):
            purgatory.try_complete_else_watch(Flag(), iter(()))

    def test_it_completes_in_its_second_try(self, purgatory: DelayedOperationPurgatory) -> None:
        class Second(Flag):
            def try_complete(self) -> bool:
                self.tries += 1
                return self.tries == 2 and self.force_complete()

        assert purgatory.try_complete_else_watch(Second(5.0), []).outcome == "satisfied"
        check_purgatory(purgatory)

    @pytest.mark.parametrize("way", ["force", "cancel", "fail"])
    def test_its_own_methods_end_it(self, purgatory: DelayedOperationPurgatory, clock: FaultLog, way: str) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), [])
        if way == "force":
            operation.force_complete()
        elif way == "cancel":
            operation.cancel()
        else:
            operation.fail(error := LookupError())
            assert operation.exception() is error
        assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
        clock.advance(10.0)
        assert operation.outcome == {"force": "satisfied", "cancel": "cancelled", "fail": "failed"}[way]

    @pytest.mark.parametrize("way", CLOSES)
    @pytest.mark.parametrize("others", [0, 3])
    def test_whatever_ends_all_ends_these(self, purgatory: DelayedOperationPurgatory, way: str, others: int) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(5.0), []) for _ in range(3)]
        operations += [purgatory.try_complete_else_watch(Flag(5.0), ["key"]) for _ in range(others)]
        outcome, end = CLOSES[way]
        result = end(purgatory)
        assert {operation.outcome for operation in operations} == {outcome}
        assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
        if way.endswith("_all"):
            assert result == 3 + others
        if outcome == "failed":
            assert {type(operation.exception()) for operation in operations} == {LookupError}

    @pytest.mark.parametrize("way", CLOSES)
    def test_one_may_end_others_while_all_end(self, purgatory: DelayedOperationPurgatory, way: str) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(5.0), []) for _ in range(4)]
        for operation in operations:
            operation.then = operations[-1].force_complete
        _, end = CLOSES[way]
        end(purgatory)
        assert all(operation.done() for operation in operations)
        assert purgatory.num_delayed == 0
        for operation in operations:
            if operation.outcome == "failed":
                operation.exception()

    async def test_aclose_ends_thousands_in_slices(self) -> None:
        purgatory = DelayedOperationPurgatory()
        operations = [purgatory.try_complete_else_watch(Flag(60.0), []) for _ in range(5000)]
        tasks = [asyncio.ensure_future(wait(operation)) for operation in operations[:10]]
        await turn()
        turns = [0]

        async def count() -> None:
            while not purgatory.closed or purgatory.num_delayed:
                turns[0] += 1
                await turn()

        counter = asyncio.ensure_future(count())
        await purgatory.aclose()
        await counter
        assert turns[0] > 1, "a slice has a thousand at most"
        assert await asyncio.gather(*tasks) == ["result of flag"] * 10
        assert {operation.outcome for operation in operations} == {"closed"}

    def test_its_deadline_may_be_moved_but_not_taken(
        self, clock: FaultLog, purgatory: DelayedOperationPurgatory
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), [])
        with pytest.raises(PurgatoryMisuse, match="no keys"):
            operation.reschedule(None)
        assert operation.deadline == 5.0
        operation.reschedule(9.0)
        clock.advance(8.9)
        assert operation.outcome is None
        operation.reschedule(0.05)
        clock.advance(0.06)
        assert operation.expired()

    def test_max_pending_counts_it(self, clock: FaultLog) -> None:
        purgatory = DelayedOperationPurgatory(max_pending=1, clock=clock)
        first = purgatory.try_complete_else_watch(Flag(5.0), [])
        for keys in ([], ["key"]):
            with pytest.raises(PurgatoryFull):
                purgatory.try_complete_else_watch(Flag(5.0), keys)
        first.cancel()
        purgatory.try_complete_else_watch(Flag(5.0), [])
        assert purgatory.num_delayed == 1

    def test_a_closed_purgatory_refuses_it(self, purgatory: DelayedOperationPurgatory) -> None:
        purgatory.close()
        with pytest.raises(PurgatoryClosed):
            purgatory.try_complete_else_watch(Flag(5.0), [])

    def test_listeners_see_no_keys(self, clock: FaultLog, purgatory: DelayedOperationPurgatory) -> None:
        finished: list[FinishedOperation] = []
        purgatory.add_listener(finished.append)
        purgatory.try_complete_else_watch(Flag(5.0), [])
        purgatory.try_complete_else_watch(Flag(ready=True), [])
        clock.advance(5.0)
        assert [(each.keys, each.outcome, each.timeout) for each in finished] == [
            ((), "completed_at_once", None),
            ((), "expired", 5.0),
        ]

    def test_in_debug_mode_a_last_try_that_completes_it_is_counted(
        self, clock: FaultLog, purgatory: DelayedOperationPurgatory
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), [])
        operation.ready = True
        clock.advance(5.0)
        assert operation.outcome == "satisfied"
        assert purgatory.statistics().missed == 1

    async def test_tasks_await_it(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            assert await purgatory.try_complete_else_watch(Flag(0.001), []) == "result of flag"
            operation = purgatory.try_complete_else_watch(Flag(60.0), [])
            task = asyncio.ensure_future(wait(operation))
            await turn()
            task.cancel()
            await asyncio.wait([task])
            assert operation.cancelled()
            operation = purgatory.try_complete_else_watch(Flag(60.0), [])
            asyncio.get_running_loop().call_soon(operation.cancel)
            with pytest.raises(OperationCancelled):
                await operation

    def test_many_come_and_go(self, clock: FaultLog, purgatory: DelayedOperationPurgatory) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(1.0 + number % 7), []) for number in range(500)]
        for operation in operations[::3]:
            operation.cancel()
        clock.advance(3.0)
        pending = [operation for operation in operations if not operation.done()]
        assert purgatory.num_delayed == len(pending) > 0
        assert purgatory.complete_all() == len(pending)
        check_purgatory(purgatory)


class TestRescheduleLater:
    def test_counts_from_now(self, clock: VirtualClock) -> None:
        timer, task = WheelTimer(clock), Note(clock)
        clock.advance(10.0)
        timer.add_later(task, 5.0)
        clock.advance(1.0)
        timer.reschedule_later(task, 2.0)
        clock.advance(1.9)
        assert task.ran == []
        clock.advance(0.1)
        assert task.ran == [13.0]

    def test_adds_a_task_that_does_not_wait(self, clock: VirtualClock) -> None:
        timer, task = WheelTimer(clock), Note(clock)
        timer.reschedule_later(task, 2.0)
        timer.reschedule_later(task, 3.0)
        clock.advance(5.0)
        assert task.ran == [3.0]

    @pytest.mark.parametrize(("delay", "error"), [(float("nan"), ValueError), ("5", TypeError), (None, TypeError)])
    def test_refuses_what_is_no_delay(self, clock: VirtualClock, delay: Any, error: type[Exception]) -> None:
        timer, task = WheelTimer(clock), Note(clock)
        timer.add(task, 5.0)
        with pytest.raises(error, match="delay"):
            timer.reschedule_later(task, delay)
        clock.advance(5.0)
        assert task.ran == [5.0]

    @pytest.mark.parametrize("delay", [0.0, -1.0])
    def test_a_time_that_has_passed_comes_at_once(self, clock: VirtualClock, delay: float) -> None:
        timer, task = WheelTimer(clock), Note(clock)
        timer.add(task, 5.0)
        clock.advance(2.0)
        timer.reschedule_later(task, delay)
        clock.advance(0.001)
        assert len(task.ran) == 1

    def test_refuses_what_is_no_task(self, clock: VirtualClock) -> None:
        with pytest.raises(TypeError, match="TimerTask"):
            WheelTimer(clock).reschedule_later(object(), 1.0)  # type: ignore[arg-type]

    async def test_refuses_another_thread(self) -> None:
        loop = asyncio.get_running_loop()
        timer = WheelTimer(loop)
        with pytest.raises(PurgatoryMisuse, match="call_soon_threadsafe"):
            await loop.run_in_executor(None, timer.reschedule_later, Note(VirtualClock()), 1.0)


class Ping(TimerTask):
    def run(self) -> None:
        pass


TIMER_CALLS: Final[dict[str, Callable[[WheelTimer, Any], object]]] = {
    "add": lambda timer, task: timer.add(task, 1.0),
    "add_later": lambda timer, task: timer.add_later(task, 1.0),
    "cancel": lambda timer, task: timer.cancel(task),
    "reschedule": lambda timer, task: timer.reschedule(task, 1.0),
    "reschedule_later": lambda timer, task: timer.reschedule_later(task, 1.0),
}


class TestTimersOfPurgatories:
    @pytest.mark.parametrize("call", TIMER_CALLS)
    @pytest.mark.parametrize("whose", ["its own", "another"])
    @pytest.mark.parametrize("keys", [["key"], []])
    def test_a_timer_refuses_operations(
        self, clock: FaultLog, purgatory: DelayedOperationPurgatory, call: str, whose: str, keys: list[str]
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), keys)
        timer = purgatory.timer if whose == "its own" else WheelTimer(clock)
        with pytest.raises(TypeError, match="call its own reschedule"):
            TIMER_CALLS[call](timer, operation)
        assert operation.deadline == 5.0
        check_purgatory(purgatory)
        clock.advance(4.9)
        assert operation.outcome is None
        clock.advance(0.1)
        assert operation.expired()

    @pytest.mark.parametrize("call", TIMER_CALLS)
    def test_a_timer_refuses_operations_that_wait_nowhere(self, clock: FaultLog, call: str) -> None:
        operation = Flag(5.0)
        with pytest.raises(TypeError, match="operation"):
            TIMER_CALLS[call](WheelTimer(clock), operation)
        DelayedOperationPurgatory(clock=clock).try_complete_else_watch(operation, ["key"])
        clock.advance(5.0)
        assert operation.expired()

    def test_only_the_purgatory_closes_its_timer(self, clock: FaultLog, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        with pytest.raises(PurgatoryMisuse, match=r"purgatory\.close\(\)"):
            purgatory.timer.close()
        clock.advance(5.0)
        assert operation.expired()

    def test_another_timer_may_be_closed(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        timer.add(Ping(), 5.0)
        timer.close()
        assert len(timer) == 0
