"""A delayed operation: while it is pending, the tasks that await it, its deadline, `fail` and `fail_all`.

`test_on_done` has its other endings.
"""

import asyncio
import traceback
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, PurgatoryMisuse, ThresholdPurgatory
from purgatory.lowlevel import add_waiter
from tests.support.operations import FaultLog, Flag, Waiting, raising, turn


class TestOutcomes:
    def test_a_pending_operation_has_no_result(self, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        assert (operation.done(), operation.outcome) == (False, None)
        assert repr(operation) == "<Flag pending, due in 5.0 s>"
        for read in (operation.result, operation.exception):
            with pytest.raises(asyncio.InvalidStateError, match=r"<Flag pending, due in 5\.0 s> is not done"):
                read()

    def test_the_timeout_and_the_deadline_can_be_read_and_their_names_are_free(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        class Own(Flag):
            def __init__(self) -> None:
                super().__init__(5.0)
                self.timeout, self.deadline = 7.0, 8.0

        clock.advance(100.0)
        operation, own = Flag(5.0), Own()
        assert (operation.timeout, operation.deadline, Flag().timeout) == (5.0, None, None)
        for each in (operation, own):
            purgatory.try_complete_else_watch(each, ["key"])
        operation.reschedule(10.0)
        assert operation.timeout == 5.0
        assert operation.deadline == 110.0
        clock.advance(5.0)
        assert (own.timeout, own.deadline, own.outcome) == (7.0, 8.0, "expired")
        operation.reschedule(None)
        assert operation.deadline is None
        operation.reschedule(1.0)
        clock.advance(1.0)
        assert operation.outcome == "expired"
        assert operation.deadline == 106.0, "it stays after the end"

    def test_the_abstract_methods_are_required(self) -> None:
        class Incomplete(DelayedOperation[None]):
            pass

        with pytest.raises(TypeError, match=r"'?on_complete'?, '?try_complete"):
            type.__call__(Incomplete, 1.0)


class TestAwait:
    async def test_an_operation_outside_a_purgatory_is_refused_as_it_would_hang(self) -> None:
        with pytest.raises(PurgatoryMisuse, match="would never complete: hand it to try_complete_else_watch"):
            await Flag(1.0)

    async def test_an_await_is_stepped_as_a_generator(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(None), ["key"])
            step: Any = operation.__await__()
            with pytest.raises(TypeError, match="just-started"):
                step.send(5)
            operation.force_complete()
            for value in (operation.result(), None):
                with pytest.raises(StopIteration) as raised:
                    step.send(None)
                assert raised.value.value == value
            with pytest.raises(LookupError):
                step.throw(LookupError())
            step.close()

    def test_an_operation_that_the_loop_completes_while_its_future_is_made_yields_its_result(self) -> None:
        class Completing(asyncio.SelectorEventLoop):
            call: Callable[[], object] = int

            def create_future(self) -> "asyncio.Future[Any]":
                self.call()
                return super().create_future()

        async def main() -> None:
            async with DelayedOperationPurgatory() as purgatory:
                operation = purgatory.try_complete_else_watch(Flag(None), ["key"])
                vars(asyncio.get_running_loop())["call"] = operation.force_complete
                assert await operation == "result of flag"

        with asyncio.Runner(loop_factory=Completing) as runner:
            runner.run(main())

    async def test_a_waiter_without_a_purgatory_is_refused(self) -> None:
        with pytest.raises(PurgatoryMisuse, match="would never complete"):
            add_waiter(Flag(None), asyncio.get_running_loop().create_future())

    @pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
    async def test_a_waiter_that_raises_when_it_is_told_keeps_no_other_from_it(
        self, error: type[BaseException]
    ) -> None:
        class Broken(asyncio.Future[None]):
            def set_result(self, result: None, /) -> None:
                raise error

        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Waiting(None), ["key"])
            assert operation._purgatory_add_waiter(Broken())
            task = asyncio.ensure_future(operation)
            await turn()
            with pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else nullcontext():
                operation.force_complete()
            await task
            assert not operation._purgatory_add_waiter(Broken()), "it is done"
        if error is LookupError:
            assert [type(context["exception"]) for context in faults] == [LookupError]
            assert "could not be told that" in faults[0]["message"]

    async def test_an_exit_of_the_exception_handler_keeps_no_waiter_from_it(self) -> None:
        class Broken(asyncio.Future[None]):
            def set_result(self, result: None, /) -> None:
                raise LookupError

        asyncio.get_running_loop().set_exception_handler(raising(SystemExit))
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Waiting(None), ["key"])
            add_waiter(operation, Broken())
            task = asyncio.ensure_future(operation)
            await turn()
            with pytest.raises(SystemExit):
                operation.force_complete()
            await task
        asyncio.get_running_loop().set_exception_handler(None)


class TestReschedule:
    def test_operation_that_does_not_wait_cannot_be_rescheduled(self, purgatory: DelayedOperationPurgatory) -> None:
        class Hasty(Flag):
            def try_complete(self) -> bool:
                self.reschedule(1.0)
                return False

        fresh = Flag(1.0)
        done = purgatory.try_complete_else_watch(Flag(1.0, ready=True), ["key"])
        for operation in (fresh, done):
            with pytest.raises(PurgatoryMisuse, match=r"cannot reschedule .* it is not pending in a purgatory"):
                operation.reschedule(1.0)
        arriving = purgatory.try_complete_else_watch(Hasty(), ["key"])
        assert isinstance(arriving.exception(), PurgatoryMisuse), "it is not waiting in its first try"


class TestFail:
    @pytest.mark.parametrize("limit", [None, 1])
    def test_in_a_try_it_is_no_completion(self, purgatory: DelayedOperationPurgatory, limit: int | None) -> None:
        class Fails(Flag):
            def try_complete(self) -> bool:
                return self.ready and self.fail(LookupError(self.name))

        fails = purgatory.try_complete_else_watch(Fails(), ["key"])
        other = purgatory.try_complete_else_watch(Flag(), ["key"])
        fails.ready = other.ready = True
        assert purgatory.check_and_complete("key", limit) == 1
        assert (fails.outcome, other.outcome) == ("failed", "satisfied")
        at_once = purgatory.try_complete_else_watch(Fails(ready=True), ["key"])
        assert at_once.outcome == "failed"
        assert all(isinstance(each.exception(), LookupError) for each in (fails, at_once))

    @pytest.mark.parametrize(
        ("exception", "message"),
        [
            (LookupError, r"exception must be an instance, not the class LookupError: pass LookupError\(\.\.\.\)"),
            ("no", "exception must be an Exception, not 'no'"),
            (None, "not None"),
            (StopIteration(7), r"not StopIteration\(7\)"),
            (asyncio.CancelledError(), r"not CancelledError\(\)"),
            (KeyboardInterrupt(), "not KeyboardInterrupt"),
            (GeneratorExit(), "not GeneratorExit"),
        ],
    )
    def test_what_cannot_be_raised_is_refused(
        self, purgatory: DelayedOperationPurgatory, exception: Any, message: str
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        for call in (operation.fail, purgatory.fail_all, Flag().fail):
            with pytest.raises(TypeError, match=message):
                call(exception)
        assert not operation.done()
        operation.force_complete()
        with pytest.raises(TypeError):
            operation.fail(exception)


class TestFailAll:
    async def test_all_get_one_object_with_the_traceback_that_it_had(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operations = [purgatory.try_complete_else_watch(Flag(30.0), [key, "all"]) for key in range(100)]
            tasks = [asyncio.ensure_future(operation) for operation in operations]
            await turn()
            try:
                raise LookupError("the leader has changed")
            except LookupError as caught:
                error = caught
                assert purgatory.fail_all(error) == 100
            assert await asyncio.gather(*tasks, return_exceptions=True) == [error] * 100
            with pytest.raises(LookupError) as raised:
                await operations[0]
            functions = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
            assert functions.count("test_all_get_one_object_with_the_traceback_that_it_had") == 2, "its own and ours"
            assert len(functions) < 6, "it does not grow with the tasks"
            assert not purgatory.try_complete_else_watch(Flag(30.0), ["all"]).done(), "it goes on after that"

    @pytest.mark.parametrize("which", ["purgatory", "thresholds"])
    def test_it_is_reported_once_unless_somebody_retrieves_it(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, which: str
    ) -> None:
        index = ThresholdPurgatory(0, purgatory)
        fail_all = purgatory.fail_all if which == "purgatory" else index.fail_all

        def wait() -> list[DelayedOperation[int]]:
            return [index.reach(threshold, 1.0) for threshold in (5, 3, 5)]

        assert fail_all(LookupError()) == 0
        assert clock.faults == [], "no operation has it"
        waits = wait()
        error = LookupError()
        assert fail_all(error) == 3
        waits.clear()
        assert clock.exceptions == [error]
        message = clock.faults.pop()["message"]
        assert message.startswith("fail_all() of <DelayedOperationPurgatory 'test'")
        assert message.endswith("failed its operations, and nobody retrieved the exception")
        waits = wait()
        assert fail_all(error) == 3
        assert waits[1].exception() is error
        waits.clear()
        assert clock.faults == []

    @pytest.mark.usefixtures("by_reference_count_alone")
    async def test_it_keeps_neither_tasks_nor_operations(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operations = [purgatory.try_complete_else_watch(Flag(30.0), ["key"]) for _ in range(10)]
            tasks = [asyncio.ensure_future(operation) for operation in operations]
            await turn()
            error = LookupError()
            purgatory.fail_all(error)
            await asyncio.wait(tasks)
            assert all(task.exception() is error for task in tasks)
            kept = [weakref.ref(operation) for operation in operations]
            del tasks
            operations.clear()
            # The traceback of the last raise holds the frames of one task.
            assert sum(reference() is not None for reference in kept) <= 1
            error.__traceback__ = None
            assert all(reference() is None for reference in kept)

    def test_without_a_loop_there_is_nothing_to_fail(self) -> None:
        assert DelayedOperationPurgatory().fail_all(LookupError()) == 0
