"""A delayed operation: its outcomes, and the tasks that await it."""

import asyncio
import gc
import math

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    OperationCancelled,
    PurgatoryError,
    VirtualClock,
    WheelTimer,
)
from tests.support.injection import each_step
from tests.support.operations import FaultLog, Flag, turn


def outcome(operation: Flag) -> tuple[bool, bool, bool]:
    return operation.done(), operation.expired(), operation.cancelled()


def test_a_new_operation_is_pending_and_unwatched() -> None:
    operation = Flag(5.0)
    assert outcome(operation) == (False, False, False)
    assert repr(operation) == "<Flag pending unwatched timeout=5.0>"
    assert operation.outcome is None


def test_a_pending_operation_has_no_result(purgatory: DelayedOperationPurgatory) -> None:
    operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
    assert outcome(operation) == (False, False, False)
    assert repr(operation) == "<Flag pending deadline=5.0>"
    with pytest.raises(asyncio.InvalidStateError, match="is not done"):
        operation.result()
    with pytest.raises(asyncio.InvalidStateError, match="is not done"):
        operation.exception()


def test_an_operation_completed_by_its_condition_has_a_result(purgatory: DelayedOperationPurgatory) -> None:
    operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
    operation.ready = True
    assert purgatory.check_and_complete("key") == 1
    assert outcome(operation) == (True, False, False)
    assert operation.result() == "result of flag"
    assert operation.exception() is None
    assert operation.calls == ["flag completes"]
    assert repr(operation) == "<Flag completed>"


def test_an_operation_completed_by_its_deadline_has_expired(
    purgatory: DelayedOperationPurgatory, clock: VirtualClock
) -> None:
    operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
    clock.advance(5.0)
    assert outcome(operation) == (True, True, False)
    assert operation.result() == "result of flag"
    assert operation.calls == ["flag completes", "flag expires"]


def test_a_cancelled_operation_raises_operation_cancelled(
    purgatory: DelayedOperationPurgatory, clock: VirtualClock
) -> None:
    operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
    assert operation.cancel()
    assert not operation.cancel()
    clock.advance(10.0)
    assert outcome(operation) == (True, False, True)
    with pytest.raises(OperationCancelled, match="Flag was cancelled"):
        operation.result()
    with pytest.raises(OperationCancelled):
        operation.exception()
    assert operation.calls == []


def test_a_failed_operation_has_its_exception(purgatory: DelayedOperationPurgatory) -> None:
    error = LookupError()

    class Failing(Flag):
        def on_complete(self) -> str:
            raise error

    operation = purgatory.try_complete_else_watch(Failing(), ["key"])
    assert operation.force_complete()
    assert outcome(operation) == (True, False, False)
    assert operation.exception() is error
    with pytest.raises(LookupError):
        operation.result()
    assert repr(operation).endswith("Failing failed>")


def test_on_complete_can_ask_whether_the_operation_has_expired(
    purgatory: DelayedOperationPurgatory, clock: VirtualClock
) -> None:
    seen: list[tuple[bool, bool]] = []

    class Curious(Flag):
        def on_complete(self) -> str:
            seen.append((self.expired(), self.done()))
            return ""

    purgatory.try_complete_else_watch(Curious(1.0), ["key"])
    purgatory.try_complete_else_watch(Curious(1.0), ["key"]).force_complete()
    clock.advance(1.0)
    assert seen == [(False, False), (True, False)]


def test_an_operation_may_be_forced_or_cancelled_outside_a_purgatory() -> None:
    forced, cancelled = Flag(), Flag()
    assert forced.force_complete()
    assert forced.result() == "result of flag"
    assert cancelled.cancel()
    assert cancelled.cancelled()


def test_a_fault_outside_a_purgatory_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Flag):
        def on_complete(self) -> str:
            raise LookupError("no owner")

    retrieved, dropped = Failing(), Failing()
    for operation in (retrieved, dropped):
        assert operation.force_complete()
    assert isinstance(retrieved.exception(), LookupError)
    assert caplog.records == []
    del operation, retrieved, dropped
    gc.collect()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "Failing failed, and its exception was never retrieved" in caplog.text


def test_the_abstract_methods_are_required() -> None:
    class Incomplete(DelayedOperation[None]):
        pass

    with pytest.raises(TypeError, match=r"'?on_complete'?, '?try_complete"):
        type.__call__(Incomplete, 1.0)


def test_the_deadline_of_a_finished_operation_does_nothing(purgatory: DelayedOperationPurgatory) -> None:
    operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
    operation.cancel()
    operation._timer_expire()
    assert operation.cancelled()
    assert operation.calls == []


class TestAwait:
    async def test_await_yields_value_returned_by_on_complete(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(), ["key"])
            task = asyncio.create_task(_wait(operation))
            await turn()
            operation.ready = True
            purgatory.check_and_complete("key")
            assert await task == "result of flag"

    async def test_a_finished_operation_is_awaited_without_waiting(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            assert await purgatory.try_complete_else_watch(Flag(ready=True), ["key"]) == "result of flag"

    async def test_deadline_ends_the_await_of_an_operation(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = Flag(0.005)
            assert await purgatory.try_complete_else_watch(operation, ["key"]) == "result of flag"
            assert operation.expired()

    async def test_a_second_await_yields_the_same_result(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(0.001), ["key"])
            assert await operation == await operation == operation.result()

    async def test_many_tasks_get_the_result_of_one_operation(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(), ["key"])
            tasks = [asyncio.create_task(_wait(operation)) for _ in range(5)]
            await turn()
            operation.force_complete()
            assert await asyncio.gather(*tasks) == ["result of flag"] * 5
            assert operation.calls == ["flag completes"]

    async def test_gather_and_wait_for_take_operations(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operations = [purgatory.try_complete_else_watch(Flag(0.001, str(n)), ["key"]) for n in range(3)]
            assert await asyncio.gather(*operations) == ["result of 0", "result of 1", "result of 2"]
            patient = purgatory.try_complete_else_watch(Flag(), ["key"])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(patient, 0.001)
            assert patient.cancelled()
            assert purgatory.num_delayed == 0

    async def test_an_operation_outside_a_purgatory_is_refused_as_it_would_hang(self) -> None:
        with pytest.raises(PurgatoryError, match="would never complete"):
            await Flag(1.0)

    async def test_a_completion_at_any_step_of_it_is_not_missed(self, purgatory: DelayedOperationPurgatory) -> None:
        for injector in each_step():
            operation = purgatory.try_complete_else_watch(Flag(), ["key"])
            injector.inject = operation.force_complete
            waiting = operation.__await__()
            with pytest.raises(StopIteration) as stopped:
                with injector:
                    next(waiting)
                operation.force_complete()
                next(waiting)
            assert stopped.value.value == "result of flag"

    async def test_an_operation_on_a_virtual_clock_can_be_awaited(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(3600.0), ["key"])
        task = asyncio.create_task(_wait(operation))
        await turn()
        clock.advance(3600.0)
        assert await task == "result of flag"

    def test_an_operation_of_another_event_loop_is_refused_as_it_would_hang(self) -> None:
        with asyncio.Runner() as runner, asyncio.Runner() as other:
            purgatory = DelayedOperationPurgatory()

            async def watch() -> Flag:
                return purgatory.try_complete_else_watch(Flag(), ["key"])

            operation = runner.run(watch())
            with pytest.raises(PurgatoryError, match="another event loop"):
                other.run(_wait(operation))
            runner.run(purgatory.aclose())


class TestReschedule:
    @pytest.mark.parametrize("timeout", [1.0, 9.0])
    def test_an_earlier_or_a_later_deadline_counts_from_now(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock, timeout: float
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        clock.advance(2.0)
        operation.reschedule(timeout)
        clock.advance(timeout - 0.001)
        assert not operation.done()
        clock.advance(0.001)
        assert operation.expired()

    def test_a_deadline_may_be_removed_and_set_again(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        operation.reschedule(None)
        clock.advance(100.0)
        assert not operation.done()
        assert repr(operation) == "<Flag pending deadline=None>"
        operation.reschedule(0)
        clock.advance(0)
        assert operation.expired()

    def test_an_operation_without_a_deadline_may_get_one(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        operation.reschedule(1.0)
        clock.advance(1.0)
        assert operation.expired()

    def test_the_second_check_may_reschedule(self, purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
        class Eager(Flag):
            tries = 0

            def try_complete(self) -> bool:
                self.tries += 1
                if self.tries == 2:
                    self.reschedule(1.0)
                return False

        operation = purgatory.try_complete_else_watch(Eager(50.0), ["key"])
        clock.advance(1.0)
        assert operation.expired()

    def test_operation_that_does_not_wait_cannot_be_rescheduled(self, purgatory: DelayedOperationPurgatory) -> None:
        fresh = Flag(1.0)
        done = purgatory.try_complete_else_watch(Flag(1.0, ready=True), ["key"])
        for operation in (fresh, done):
            with pytest.raises(PurgatoryError, match="only an operation that waits"):
                operation.reschedule(1.0)

    @pytest.mark.parametrize("timeout", [-1.0, math.nan, math.inf])
    def test_bad_timeout_of_a_reschedule_changes_nothing(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock, timeout: float
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
        with pytest.raises(ValueError, match="timeout must be finite"):
            operation.reschedule(timeout)
        clock.advance(1.0)
        assert operation.expired()


async def _wait(operation: Flag) -> str:
    return await operation


def test_timer_alone_completes_an_operation_at_its_deadline(clock: VirtualClock) -> None:
    timer = WheelTimer(clock)
    operation = Flag()
    timer.add(operation, 1.0)
    clock.advance(0.999)
    assert not operation.done()
    clock.advance(0.001)
    assert operation.expired()
    assert operation.result() == "result of flag"


def test_timer_alone_tries_an_operation_at_its_deadline(clock: FaultLog) -> None:
    timer = WheelTimer(clock)
    operation = Flag(ready=True)
    timer.add(operation, 1.0)
    clock.advance(1.0)
    assert operation.calls == ["flag completes"]
    assert clock.faults == []


def test_timer_alone_lets_an_operation_fail_in_its_last_try(clock: FaultLog) -> None:
    class Failing(Flag):
        def try_complete(self) -> bool:
            raise LookupError

    timer = WheelTimer(clock)
    operation = Failing()
    timer.add(operation, 1.0)
    clock.advance(1.0)
    assert isinstance(operation.exception(), LookupError)
    assert (operation.outcome, clock.faults) == ("failed", [])
