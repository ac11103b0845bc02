"""Listeners are called for each finished operation once, and their faults are contained."""

import asyncio
import gc
import weakref
from functools import partial
from typing import Any

import pytest

from purgatory import (
    DelayedOperationPurgatory,
    FinishedOperation,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    VirtualClock,
)
from tests.support.injection import finalizing
from tests.support.operations import CallingClock, FaultLog, Flag, Late, turn


class Slow(Flag):
    """Takes a second to complete."""

    def __init__(self, clock: VirtualClock, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.clock = clock

    def on_complete(self) -> str:
        self.clock._now += 1.0
        return super().on_complete()


class FoundOnce:
    """A key that cannot be looked up a second time."""

    found = False

    def __hash__(self) -> int:
        if self.found:
            raise LookupError
        self.found = True
        return 1


class Failing(Flag):
    def on_complete(self) -> str:
        raise LookupError


@pytest.fixture
def heard(purgatory: DelayedOperationPurgatory) -> list[FinishedOperation]:
    """The records that a listener of the purgatory was called with."""
    heard: list[FinishedOperation] = []
    purgatory.add_listener(heard.append)
    return heard


Heard = list[FinishedOperation]


class TestRecords:
    def test_an_operation_that_completes_at_once_has_waited_zero_seconds(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, heard: Heard
    ) -> None:
        clock.advance(7.0)
        purgatory.try_complete_else_watch(Slow(clock, timeout=2.0, ready=True), ["a", ("b", 1), "a"])
        assert heard == [("test", "Slow", ("a", ("b", 1)), 7.0, 2.0, 0.0, "completed_at_once", None, 2.0)]

    def test_the_record_of_a_satisfied_operation_has_its_wait(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, heard: Heard
    ) -> None:
        flag = purgatory.try_complete_else_watch(Flag(), ["a"])
        clock.advance(3.0)
        flag.ready = True
        assert purgatory.check_and_complete("a") == 1
        assert heard == [("test", "Flag", ("a",), 0.0, None, 3.0, "satisfied", None, None)]

    def test_the_record_of_an_expired_operation_has_its_lateness(self, clock: FaultLog) -> None:
        purgatory = DelayedOperationPurgatory("coarse", tick=0.25, clock=clock)
        heard: Heard = []
        purgatory.add_listener(heard.append)
        purgatory.try_complete_else_watch(Flag(0.875), ["a"])
        clock.advance(1.0)
        assert heard == [("coarse", "Flag", ("a",), 0.0, 0.875, 1.0, "expired", 0.125, 0.875)]

    def test_the_time_of_on_complete_is_part_of_the_wait(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, heard: Heard
    ) -> None:
        purgatory.try_complete_else_watch(Slow(clock), ["a"]).force_complete()
        assert heard[0].waited == 1.0

    def test_a_cancelled_operation_has_a_record(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, heard: Heard
    ) -> None:
        purgatory.try_complete_else_watch(Flag(5.0), ["a"])
        clock.advance(1.0)
        purgatory.cancel_for_key("a")
        assert heard == [("test", "Flag", ("a",), 0.0, 5.0, 1.0, "cancelled", None, 5.0)]

    @pytest.mark.parametrize("ready", [True, False])
    def test_a_failed_operation_has_a_record_on_any_way_of_completion(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, heard: Heard, ready: bool
    ) -> None:
        failing = purgatory.try_complete_else_watch(Failing(1.0, ready=ready), ["a"])
        clock.advance(1.0)
        assert isinstance(failing.exception(), LookupError)
        assert [(each.outcome, each.waited, each.late) for each in heard] == [("failed", 0.0 if ready else 1.0, None)]

    def test_an_operation_that_raises_after_it_is_done_has_one_record(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, heard: Heard
    ) -> None:
        purgatory.try_complete_else_watch(Late(ready=True), ["a"])
        assert [each.outcome for each in heard] == ["completed_at_once"]
        assert len(clock.faults) == 1

    def test_the_record_of_a_rescheduled_operation_has_its_last_timeout_and_deadline(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, heard: Heard
    ) -> None:
        beat = purgatory.try_complete_else_watch(Flag(2.0), ["a"])
        for _ in range(3):
            clock.advance(1.0)
            beat.reschedule(1.5)
        clock.advance(2.0)
        assert heard == [("test", "Flag", ("a",), 0.0, 1.5, 4.5, "expired", 0.0, 4.5)]

    def test_the_record_of_an_operation_that_was_freed_of_its_deadline_has_none(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, heard: Heard
    ) -> None:
        freed, bound = (purgatory.try_complete_else_watch(Flag(timeout), ["a"]) for timeout in (2.0, None))
        clock.advance(1.0)
        freed.reschedule(None)
        bound.reschedule(0.5)
        clock.advance(2.0)
        freed.cancel()
        assert [(each.timeout, each.deadline, each.outcome) for each in heard] == [
            (0.5, 1.5, "expired"),
            (None, None, "cancelled"),
        ]

    def test_the_deadline_is_the_timeout_however_long_the_first_try_takes(
        self, clock: FaultLog, purgatory: DelayedOperationPurgatory, heard: Heard
    ) -> None:
        purgatory.try_complete_else_watch(Slow(clock, timeout=2.0), ["a"])
        clock.advance(9.0)
        [finished] = heard
        assert (finished.outcome, finished.timeout, finished.deadline) == ("expired", 2.0, 2.0)

    async def test_the_times_of_a_record_are_those_of_the_loop(self) -> None:
        loop = asyncio.get_running_loop()
        heard: Heard = []
        purgatory = DelayedOperationPurgatory()
        purgatory.add_listener(heard.append)
        async with purgatory:
            before = loop.time()
            await purgatory.try_complete_else_watch(Flag(0.02), ["a"])
            after = loop.time()
        [finished] = heard
        assert finished.outcome == "expired"
        assert before <= finished.arrived
        assert finished.arrived + finished.waited <= after
        assert finished.late is not None
        assert 0 <= finished.late < finished.waited - 0.019

    @pytest.mark.parametrize("way", ["close", "complete_all"])
    def test_operations_that_a_close_completes_are_closed(
        self, purgatory: DelayedOperationPurgatory, heard: Heard, way: str
    ) -> None:
        for _ in range(3):
            purgatory.try_complete_else_watch(Flag(), ["a", "b"])
        getattr(purgatory, way)()
        assert [each.outcome for each in heard] == ["closed"] * 3
        assert purgatory.statistics().closed == 3


class TestListenersOfAPurgatory:
    def test_listeners_are_called_in_the_order_of_their_adding(self, purgatory: DelayedOperationPurgatory) -> None:
        called: list[str] = []
        purgatory.add_listener(lambda _: called.append("first"))
        purgatory.add_listener(lambda _: called.append("second"))
        purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        assert called == ["first", "second"]

    def test_a_removed_listener_is_not_called(self, purgatory: DelayedOperationPurgatory, heard: Heard) -> None:
        others: Heard = []
        purgatory.add_listener(others.append)
        waiting = purgatory.try_complete_else_watch(Flag(), ["a"])
        purgatory.remove_listener(heard.append)
        waiting.force_complete()
        purgatory.remove_listener(others.append)
        purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        assert (len(heard), len(others)) == (0, 1)

    def test_an_operation_handed_over_before_the_listener_has_no_record(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        before = purgatory.try_complete_else_watch(Flag(), ["a"])
        heard: Heard = []
        purgatory.add_listener(heard.append)
        before.force_complete()
        assert heard == []

    def test_a_listener_may_remove_itself_and_add_another(self, purgatory: DelayedOperationPurgatory) -> None:
        heard: Heard = []

        def once(_: FinishedOperation) -> None:
            purgatory.remove_listener(once)
            purgatory.add_listener(heard.append)

        purgatory.add_listener(once)
        for _ in range(2):
            purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        assert len(heard) == 1

    def test_a_listener_may_use_the_purgatory(self, purgatory: DelayedOperationPurgatory, heard: Heard) -> None:
        second = purgatory.try_complete_else_watch(Flag(name="second"), ["b"])

        def complete_the_second(finished: FinishedOperation) -> None:
            if finished.keys == ("a",):
                second.ready = True
                assert purgatory.check_and_complete("b") == 1

        purgatory.add_listener(complete_the_second)
        purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        assert [each.keys for each in heard] == [("a",), ("b",)]

    def test_listener_added_during_removal_of_another_stays(self, purgatory: DelayedOperationPurgatory) -> None:
        heard: Heard = []
        more = [heard.append]

        class Odd:
            """Adds another listener when it is compared first."""

            def __call__(self, finished: FinishedOperation) -> None:
                """Ignore the record."""

            def __eq__(self, other: object) -> bool:
                while more:
                    purgatory.add_listener(more.pop())
                return self is other

        purgatory.add_listener(Odd())
        purgatory.add_listener(print)
        purgatory.remove_listener(print)
        purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        assert len(heard) == 1

    @pytest.mark.parametrize("present", [0, 1])
    @pytest.mark.parametrize("nth", range(12))
    def test_listener_added_by_finalizer_during_addition_of_another_stays(
        self, purgatory: DelayedOperationPurgatory, nth: int, present: int
    ) -> None:
        heard: Heard = []
        others: Heard = []
        for _ in range(present):
            purgatory.add_listener(lambda finished: None)
        with finalizing(nth, partial(purgatory.add_listener, others.append)):
            purgatory.add_listener(heard.append)
        purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        assert (len(heard), len(others)) == (1, 1)

    def test_an_unknown_listener_cannot_be_removed(self, purgatory: DelayedOperationPurgatory, heard: Heard) -> None:
        for each in (purgatory, DelayedOperationPurgatory()):
            with pytest.raises(ValueError, match="is not a listener of"):
                each.remove_listener(print)
        purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        assert len(heard) == 1

    def test_a_listener_that_is_not_callable_is_refused(self, purgatory: DelayedOperationPurgatory) -> None:
        journal: Any = "journal"
        with pytest.raises(TypeError, match="a listener must be callable, not 'journal'"):
            purgatory.add_listener(journal)

        async def listen(_: FinishedOperation) -> None:
            """This listener is never awaited."""

        with pytest.raises(TypeError, match="a listener must not be async"):
            purgatory.add_listener(listen)
        assert purgatory._owner.listeners is None

    async def test_a_listener_that_ends_thousands_does_not_recurse(self) -> None:
        purgatory = DelayedOperationPurgatory()
        called = 0

        def cancel_another(_: FinishedOperation) -> None:
            nonlocal called
            called += 1
            if waiting:
                waiting.pop().cancel()

        async with purgatory:
            purgatory.add_listener(cancel_another)
            waiting = [purgatory.try_complete_else_watch(Flag(), ["a"]) for _ in range(5000)]
            tasks = [asyncio.ensure_future(operation) for operation in waiting]
            await turn()
            waiting.pop().cancel()
            done, _ = await asyncio.wait(tasks, timeout=30)
        assert (len(done), called) == (5000, 5000)

    def test_every_listener_is_called_before_the_next_operation(self, purgatory: DelayedOperationPurgatory) -> None:
        called: list[tuple[str, object]] = []
        second = purgatory.try_complete_else_watch(Flag(), ["b"])

        def first_listener(finished: FinishedOperation) -> None:
            called.append(("first", finished.keys))
            second.force_complete()

        purgatory.add_listener(first_listener)
        purgatory.add_listener(lambda finished: called.append(("second", finished.keys)))
        third = purgatory.try_complete_else_watch(Flag(), ["c"])
        second = purgatory.try_complete_else_watch(Flag(), ["b"])
        third.force_complete()
        assert called == [("first", ("c",)), ("second", ("c",)), ("first", ("b",)), ("second", ("b",))]


@pytest.mark.parametrize("nth", range(4))
def test_an_operation_that_the_clock_completes_at_its_arrival_has_one_record(nth: int) -> None:
    clock = CallingClock()
    purgatory = DelayedOperationPurgatory(clock=clock)
    heard: Heard = []
    purgatory.add_listener(heard.append)
    operation = Flag(5.0)
    clock.arm(nth, operation.force_complete)
    purgatory.try_complete_else_watch(operation, ["key"])
    assert [record.outcome for record in heard] == [operation.outcome]
    assert operation.done()


class TestRefusedOperationsHaveNoRecord:
    def test_operation_refused_by_a_full_purgatory_has_no_record(self, clock: FaultLog) -> None:
        purgatory = DelayedOperationPurgatory(max_pending=1, clock=clock)
        heard: Heard = []
        purgatory.add_listener(heard.append)
        purgatory.try_complete_else_watch(Flag(), ["a"])
        refused = Flag()
        with pytest.raises(PurgatoryFull):
            purgatory.try_complete_else_watch(refused, ["a"])
        refused.force_complete()
        assert heard == []
        purgatory.close()
        assert len(heard) == 1

    def test_operation_whose_try_closes_the_purgatory_has_no_record(
        self, purgatory: DelayedOperationPurgatory, heard: Heard
    ) -> None:
        class Closing(Flag):
            def try_complete(self) -> bool:
                purgatory.close()
                return False

        with pytest.raises(PurgatoryClosed):
            purgatory.try_complete_else_watch(Closing(), ["a"])
        assert heard == []

    def test_operation_with_bad_input_has_no_record(self, purgatory: DelayedOperationPurgatory, heard: Heard) -> None:
        with pytest.raises(ValueError, match="at least one key"):
            purgatory.try_complete_else_watch(Flag(), [])
        unhashable: Any = []
        with pytest.raises(TypeError, match="unhashable"):
            purgatory.try_complete_else_watch(Flag(), [unhashable])
        used = purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        with pytest.raises(PurgatoryError, match="serves once"):
            purgatory.try_complete_else_watch(used, ["a"])
        assert len(heard) == 1


class TestFaults:
    def test_an_exception_is_reported_and_the_other_listeners_are_called(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        def fail(_: FinishedOperation) -> None:
            raise LookupError

        heard: Heard = []
        purgatory.add_listener(fail)
        purgatory.add_listener(heard.append)
        flag = purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        assert flag.result() == "result of flag"
        assert [type(exception) for exception in clock.exceptions] == [LookupError]
        assert clock.faults[0]["message"] == "a listener of the purgatory 'test' raised"
        assert len(heard) == 1

    @pytest.mark.parametrize("exit_", [SystemExit, KeyboardInterrupt])
    def test_a_request_to_exit_is_raised_after_the_other_listeners(
        self, purgatory: DelayedOperationPurgatory, exit_: type[BaseException]
    ) -> None:
        def leave(_: FinishedOperation) -> None:
            raise exit_

        heard: Heard = []
        purgatory.add_listener(leave)
        purgatory.add_listener(heard.append)
        for _ in range(2):
            flag = purgatory.try_complete_else_watch(Flag(), ["a"])
            with pytest.raises(exit_):
                flag.force_complete()
            assert flag.result() == "result of flag"
        assert purgatory.num_delayed == 0
        assert len(heard) == 2, "the other listeners are called nevertheless"

    async def test_a_listener_is_called_even_after_the_loop_is_closed(self) -> None:
        heard: Heard = []

        def in_another_loop() -> Flag:
            async def watch() -> Flag:
                purgatory = DelayedOperationPurgatory(purge_interval=0)
                purgatory.add_listener(heard.append)
                return purgatory.try_complete_else_watch(Flag(30.0), ["a"])

            return asyncio.run(watch())

        flag = await asyncio.to_thread(in_another_loop)
        assert flag.force_complete()
        assert [each.outcome for each in heard] == ["satisfied"]

    def test_other_threads_are_refused_in_debug_mode(self) -> None:
        async def main() -> None:
            async with DelayedOperationPurgatory() as purgatory:
                for call in (purgatory.add_listener, purgatory.remove_listener):
                    with pytest.raises(PurgatoryError, match=f"call_soon_threadsafe.purgatory.{call.__name__}, listen"):
                        await asyncio.to_thread(call, print)

        asyncio.run(main(), debug=True)


class TestRetention:
    def test_an_operation_is_not_kept_after_its_record(
        self, purgatory: DelayedOperationPurgatory, heard: Heard
    ) -> None:
        gc.disable()
        try:
            flag = purgatory.try_complete_else_watch(Flag(), ["a", "b"])
            kept = weakref.ref(flag)
            flag.force_complete()
            del flag
            assert kept() is None
            assert len(heard) == 1
        finally:
            gc.enable()

    def test_nothing_is_noted_without_a_listener(self, purgatory: DelayedOperationPurgatory, heard: Heard) -> None:
        purgatory.try_complete_else_watch(Flag(), ["a"])
        purgatory.remove_listener(heard.append)
        assert purgatory._owner.listeners is None

    def test_every_arrival_that_was_noted_is_let_go(self, purgatory: DelayedOperationPurgatory, heard: Heard) -> None:
        listeners = purgatory._owner.listeners
        assert listeners is not None
        for ready in (True, False):
            purgatory.try_complete_else_watch(Flag(ready=ready), ["a"])
        with pytest.raises(LookupError):
            purgatory.try_complete_else_watch(Flag(), ["a", FoundOnce()])
        assert len(listeners._arrivals) == 1
        purgatory.cancel_all()
        assert listeners._arrivals == {}
