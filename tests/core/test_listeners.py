"""Listeners are called for each finished operation once, and their faults are contained."""

import asyncio
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, FinishedOperation, PurgatoryMisuse, VirtualClock
from tests.support.operations import CallingClock, FaultLog, Flag, Moody, raising, turn

Heard = list[FinishedOperation]


class Slow(Flag):
    """Takes a second to complete."""

    def __init__(self, clock: VirtualClock, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.clock = clock

    def on_complete(self) -> str:
        self.clock._now += 1.0
        return super().on_complete()


@pytest.fixture
def heard(purgatory: DelayedOperationPurgatory) -> Heard:
    """The records that a listener of the purgatory was called with."""
    heard: Heard = []
    purgatory.add_listener(heard.append)
    return heard


class TestRecords:
    def test_the_record_has_keys_arrival_timeout_wait_and_outcome(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, heard: Heard
    ) -> None:
        clock.advance(7.0)
        purgatory.try_complete_else_watch(Slow(clock, timeout=2.0, ready=True), ["a", ("b", 1), "a"])
        flag = purgatory.try_complete_else_watch(Flag(), ["a"])
        clock.advance(3.0)
        flag.ready = True
        assert purgatory.check_and_complete("a") == 1
        purgatory.try_complete_else_watch(Flag(5.0), ["a"])
        clock.advance(1.0)
        purgatory.cancel_for_key("a")
        purgatory.try_complete_else_watch(Slow(clock), ["a"]).force_complete()
        assert heard == [
            ("test", "Slow", ("a", ("b", 1)), 7.0, 2.0, 0.0, "completed_at_once", None, 2.0, False),
            ("test", "Flag", ("a",), 8.0, None, 3.0, "satisfied", None, None, False),
            ("test", "Flag", ("a",), 11.0, 5.0, 1.0, "cancelled", None, 5.0, False),
            ("test", "Slow", ("a",), 12.0, None, 1.0, "satisfied", None, None, False),
        ], "the time of on_complete is part of the wait"

    def test_operation_with_bad_input_has_no_record(self, purgatory: DelayedOperationPurgatory, heard: Heard) -> None:
        used = purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        unhashable: Any = []
        for keys, error in (([], ValueError), ([unhashable], TypeError)):
            with pytest.raises(error):
                purgatory.try_complete_else_watch(Flag(), keys)
        with pytest.raises(PurgatoryMisuse):
            purgatory.try_complete_else_watch(used, ["a"])
        assert len(heard) == 1

    def test_an_operation_that_came_before_the_first_listener_has_no_record(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        early = purgatory.try_complete_else_watch(Flag(2.0), ["a"])
        heard: Heard = []
        purgatory.add_listener(heard.append)
        early.reschedule(1.0)
        clock.advance(1.0)
        assert (early.outcome, heard) == ("expired", [])


class TestListenersOfAPurgatory:
    def test_listeners_are_called_in_the_order_of_their_adding_until_they_are_removed(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        called: list[str] = []

        def first(_: FinishedOperation) -> None:
            called.append("first")

        def second(_: FinishedOperation) -> None:
            called.append("second")

        before = purgatory.try_complete_else_watch(Flag(), ["a"])
        purgatory.add_listener(first)
        purgatory.add_listener(second)
        before.force_complete()
        assert called == [], "it was handed over before"
        waiting = purgatory.try_complete_else_watch(Flag(), ["a"])
        purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        purgatory.remove_listener(first)
        waiting.force_complete()
        assert called == ["first", "second", "second"]
        for listeners in (purgatory, DelayedOperationPurgatory()):
            with pytest.raises(ValueError, match="is not a listener of"):
                listeners.remove_listener(print)
        purgatory.remove_listener(second)
        purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        assert len(called) == 3
        assert purgatory._owner.listeners is None, "nothing is noted without a listener"

    def test_a_listener_may_remove_itself_and_add_another(self, purgatory: DelayedOperationPurgatory) -> None:
        heard: Heard = []

        def once(_: FinishedOperation) -> None:
            purgatory.remove_listener(once)
            purgatory.add_listener(heard.append)

        purgatory.add_listener(once)
        for _ in range(2):
            purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        assert len(heard) == 1

    async def test_a_listener_that_ends_thousands_does_not_recurse(self) -> None:
        called = 0

        def cancel_another(_: FinishedOperation) -> None:
            nonlocal called
            called += 1
            if waiting:
                waiting.pop().cancel()

        async with DelayedOperationPurgatory() as purgatory:
            purgatory.add_listener(cancel_another)
            waiting = [purgatory.try_complete_else_watch(Flag(), ["a"]) for _ in range(1500)]
            tasks = [asyncio.ensure_future(operation) for operation in waiting]
            await turn()
            waiting.pop().cancel()
            done, _ = await asyncio.wait(tasks, timeout=30)
        assert (len(done), called) == (1500, 1500)

    def test_every_listener_is_called_before_the_next_operation(self, purgatory: DelayedOperationPurgatory) -> None:
        called: list[tuple[str, object]] = []

        def first_listener(finished: FinishedOperation) -> None:
            called.append(("first", finished.keys))
            second.ready = True
            purgatory.check_and_complete("b")

        purgatory.add_listener(first_listener)
        purgatory.add_listener(lambda finished: called.append(("second", finished.keys)))
        third, second = (purgatory.try_complete_else_watch(Flag(), [key]) for key in "cb")
        third.force_complete()
        assert called == [("first", ("c",)), ("second", ("c",)), ("first", ("b",)), ("second", ("b",))]


class TestFaults:
    @pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
    def test_an_exception_is_reported_and_keeps_nothing_from_its_end(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, error: type[BaseException]
    ) -> None:
        heard: Heard = []
        purgatory.add_listener(raising(error))
        purgatory.add_listener(heard.append)
        operations = [purgatory.try_complete_else_watch(Flag(60.0), [n]) for n in range(3)]
        purgatory.close()
        assert [operation.outcome for operation in operations] == ["closed"] * 3
        assert len(heard) == 3
        assert [type(exception) for exception in clock.exceptions] == [error] * 3
        assert clock.faults[0]["message"] == "a listener of the purgatory 'test' raised"

    @pytest.mark.parametrize("by_the_handler", [False, True])
    def test_a_request_to_exit_is_raised_after_the_other_listeners(self, by_the_handler: bool) -> None:
        class Handling(FaultLog):
            def call_exception_handler(self, context: dict[str, Any]) -> None:
                raise SystemExit

        purgatory = DelayedOperationPurgatory(clock=Handling())
        heard: Heard = []
        purgatory.add_listener(raising(LookupError if by_the_handler else SystemExit))
        purgatory.add_listener(heard.append)
        flag = purgatory.try_complete_else_watch(Flag(), ["a"])
        with pytest.raises(SystemExit):
            flag.force_complete()
        assert (flag.result(), len(heard)) == ("result of flag", 1)

    def test_a_clock_that_raises_at_the_end_of_an_operation_is_reported(self) -> None:
        clock = CallingClock()
        purgatory = DelayedOperationPurgatory(clock=clock)
        purgatory.add_listener(print)
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        clock.arm(0, raising())
        assert operation.force_complete()
        assert operation.result() == "result of flag"
        assert [(context["message"], type(context["exception"])) for context in clock.faults] == [
            ("the clock raised", LookupError)
        ]


class TestRetention:
    def test_every_arrival_that_was_noted_is_let_go(self, purgatory: DelayedOperationPurgatory, heard: Heard) -> None:
        listeners = purgatory._owner.listeners
        assert listeners is not None
        for ready in (True, False):
            purgatory.try_complete_else_watch(Flag(ready=ready), ["a"])
        with pytest.raises(LookupError):
            purgatory.try_complete_else_watch(Flag(), ["a", Moody(left=1)])
        assert len(listeners._arrivals) == 1
        purgatory.cancel_all()
        assert listeners._arrivals == {}
