"""Listeners are called for each finished operation once, and their faults are contained."""

import asyncio
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, FinishedOperation
from tests.support.operations import FaultLog, Flag, Moody, raising, turn

Heard = list[FinishedOperation]


@pytest.fixture
def heard(purgatory: DelayedOperationPurgatory) -> Heard:
    """The records that a listener of the purgatory was called with."""
    heard: Heard = []
    purgatory.add_listener(heard.append)
    return heard


def test_the_time_of_on_complete_is_part_of_the_wait(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, heard: Heard
) -> None:
    for ready in (True, False):
        operation = Flag(ready=ready, then=lambda: setattr(clock, "_now", clock.time() + 1.0))
        purgatory.try_complete_else_watch(operation, ["a"]).force_complete()
    assert [each.waited for each in heard] == [0.0, 1.0]


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
        before.reschedule(1.0)
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
