"""A delayed operation while it is pending, the tasks that await it, its deadline; `test_on_done` has its endings."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    PurgatoryMisuse,
)
from purgatory.lowlevel import add_waiter
from tests.support.operations import Flag, Waiting, turn


class TestOutcomes:
    def test_a_pending_operation_has_no_result(self, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        assert (operation.done(), operation.outcome) == (False, None)
        assert repr(operation) == "<Flag pending, due in 5.0 s>"
        for read in (operation.result, operation.exception):
            with pytest.raises(asyncio.InvalidStateError, match=r"<Flag pending, due in 5\.0 s> is not done"):
                read()

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
