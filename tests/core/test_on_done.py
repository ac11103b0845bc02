"""`on_done`: every ending reaches it exactly once, so what an operation has acquired is released.

Apache Kafka acquired records in `tryComplete` of its share fetches, and lost them on one ending after the other:
KAFKA-20783 and its repairs.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    FinishedOperation,
    OperationCancelled,
)
from purgatory._core._base import NESTING
from purgatory.lowlevel import add_waiter, close_operation, remove_waiter, take_result
from tests.support.operations import FaultLog, Flag, turn


class Permits:
    """What the operations share."""

    def __init__(self, number: int) -> None:
        self.free = number


class Acquires(DelayedOperation[str]):
    """Acquires a permit in its first try and has it until it ends."""

    def __init__(self, permits: Permits, timeout: float | None = None, then: Callable[[], object] = bool) -> None:
        super().__init__(timeout)
        self.permits = permits
        self.has_permit = False
        self.then = then
        self.ended: list[str | None] = []
        """The outcome at each call of `on_done`."""

    def try_complete(self) -> bool:
        if not self.has_permit and self.permits.free:
            self.permits.free -= 1
            self.has_permit = True
        return bool(self.then()) and self.force_complete()

    def on_complete(self) -> str:
        return "result"

    def on_done(self) -> None:
        assert self.done()
        self.ended.append(self.outcome)
        self.permits.free += self.has_permit
        self.has_permit = False


def raising() -> object:
    raise LookupError


class FailsToComplete(Acquires):
    def on_complete(self) -> str:
        raise LookupError


ENDINGS: dict[str, tuple[str, Callable[[DelayedOperationPurgatory, FaultLog, Acquires], object]]] = {
    # The outcome, and what ends an operation that waits on two keys for a second.
    "a check": ("satisfied", lambda purgatory, clock, operation: checked(purgatory, operation)),
    "a check soon": ("satisfied", lambda purgatory, clock, operation: checked_soon(purgatory, clock, operation)),
    "a check with a limit": ("satisfied", lambda purgatory, clock, operation: checked(purgatory, operation, 1)),
    "force_complete": ("satisfied", lambda purgatory, clock, operation: operation.force_complete()),
    "the deadline": ("expired", lambda purgatory, clock, operation: clock.advance(1.0)),
    "deep inside the ends of others": (
        "satisfied",
        lambda purgatory, clock, operation: deep_inside(purgatory, operation.force_complete),
    ),
    "a cancel deep inside the ends of others": (
        "cancelled",
        lambda purgatory, clock, operation: deep_inside(purgatory, operation.cancel),
    ),
    "a closed coroutine": ("cancelled", lambda purgatory, clock, operation: asyncio.run(closed(operation))),
    "the last try": ("satisfied", lambda purgatory, clock, operation: last_try(clock, operation, lambda: True)),
    "a last try that raises": ("failed", lambda purgatory, clock, operation: last_try(clock, operation, raising)),
    "complete_all": ("closed", lambda purgatory, clock, operation: purgatory.complete_all()),
    "close": ("closed", lambda purgatory, clock, operation: purgatory.close()),
    "aclose": ("closed", lambda purgatory, clock, operation: asyncio.run(purgatory.aclose())),
    "close_operation": ("closed", lambda purgatory, clock, operation: close_operation(operation)),
    "cancel": ("cancelled", lambda purgatory, clock, operation: operation.cancel()),
    "cancel_for_key": ("cancelled", lambda purgatory, clock, operation: purgatory.cancel_for_key("b")),
    "cancel_all": ("cancelled", lambda purgatory, clock, operation: purgatory.cancel_all()),
    "the last awaiting task": ("cancelled", lambda purgatory, clock, operation: asyncio.run(leave(operation))),
    "the last waiter": ("cancelled", lambda purgatory, clock, operation: asyncio.run(leave_as_waiter(operation))),
    "fail": ("failed", lambda purgatory, clock, operation: operation.fail(LookupError())),
    "fail_all": ("failed", lambda purgatory, clock, operation: purgatory.fail_all(LookupError())),
    "a try that raises": ("failed", lambda purgatory, clock, operation: checked(purgatory, operation, then=raising)),
}


def checked(
    purgatory: DelayedOperationPurgatory, operation: Acquires, limit: int | None = None, then: Any = lambda: True
) -> None:
    operation.then = then
    purgatory.check_and_complete("a", limit)


def checked_soon(purgatory: DelayedOperationPurgatory, clock: FaultLog, operation: Acquires) -> None:
    operation.then = lambda: True
    purgatory.check_and_complete_soon("b")
    clock.advance(0)


def last_try(clock: FaultLog, operation: Acquires, then: Any) -> None:
    operation.then = then
    clock.advance(1.0)


def deep_inside(purgatory: DelayedOperationPurgatory, end: Callable[[], object], deep: int = 2 * NESTING) -> None:
    then = partial(deep_inside, purgatory, end, deep - 1) if deep else end
    purgatory.try_complete_else_watch(Flag(ready=True, then=then), ["others"])


async def closed(operation: Acquires) -> None:
    async def wait() -> None:
        await operation

    coroutine = wait()
    coroutine.send(None)
    coroutine.close()
    await turn()


async def leave(operation: Acquires) -> None:
    tasks = [asyncio.ensure_future(operation) for _ in range(2)]
    await turn()
    for task in tasks:
        assert not operation.done()
        task.cancel()
        await asyncio.wait([task])


async def leave_as_waiter(operation: Acquires) -> None:
    waiter = asyncio.get_running_loop().create_future()
    add_waiter(operation, waiter)
    remove_waiter(operation, waiter)


class TestEveryEnding:
    @pytest.mark.parametrize("kind", [Acquires, FailsToComplete])
    @pytest.mark.parametrize("ending", ENDINGS)
    def test_an_operation_that_waits_releases_what_it_acquired(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, ending: str, kind: type[Acquires]
    ) -> None:
        permits = Permits(2)
        other = purgatory.try_complete_else_watch(Acquires(permits), ["other"])
        operation = purgatory.try_complete_else_watch(kind(permits, 1.0), ["a", "b"])
        assert (permits.free, operation.ended) == (0, [])
        outcome, end = ENDINGS[ending]
        end(purgatory, clock, operation)
        if kind is FailsToComplete and outcome in ("satisfied", "expired", "closed"):
            outcome = "failed"
        assert (operation.outcome, operation.ended) == (outcome, [outcome])
        other.cancel()
        assert (permits.free, other.ended) == (2, [other.outcome])
        clock.advance(5.0)
        purgatory.close()
        assert (len(operation.ended), permits.free) == (1, 2)
        if outcome == "failed":
            assert isinstance(operation.exception(), LookupError)
            if other.outcome == "failed":
                assert other.exception() is operation.exception()
        assert clock.faults == []

    @pytest.mark.parametrize(
        ("then", "kind", "outcome"),
        [
            (lambda: True, Acquires, "completed_at_once"),
            (lambda: True, FailsToComplete, "failed"),
            (raising, Acquires, "failed"),
        ],
    )
    def test_an_operation_that_ends_in_its_first_try_releases_it(
        self, purgatory: DelayedOperationPurgatory, then: Any, kind: type[Acquires], outcome: str
    ) -> None:
        permits = Permits(1)
        operation = purgatory.try_complete_else_watch(kind(permits, 1.0, then), ["a"])
        assert (operation.ended, permits.free) == ([outcome], 1)
        assert (operation.exception() is None) == (outcome != "failed")

    @pytest.mark.parametrize("end", ["force_complete", "cancel", "fail"])
    def test_an_operation_that_was_never_handed_over_reaches_it_too(self, end: str) -> None:
        operation = Acquires(Permits(1))
        assert getattr(operation, end)(*[LookupError()] * (end == "fail"))
        assert operation.ended == [operation.outcome]
        assert end != "fail" or operation.exception()


class TestRefused:
    def test_an_operation_refused_before_its_first_try_is_untouched(self, purgatory: DelayedOperationPurgatory) -> None:
        permits = Permits(1)
        operation = Acquires(permits)
        with pytest.raises(ValueError, match="at least one key"):
            purgatory.try_complete_else_watch(operation, [])
        assert (operation.outcome, operation.ended, permits.free) == (None, [], 1)


class Notes(DelayedOperation[str]):
    """Notes its calls."""

    def __init__(self, purgatory: DelayedOperationPurgatory, timeout: float | None = None) -> None:
        super().__init__(timeout)
        self.purgatory = purgatory
        self.calls: list[object] = []

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> str:
        self.calls.append("on_complete")
        return "result"

    def on_expiration(self) -> None:
        self.calls.append("on_expiration")

    def on_undelivered(self, result: str, /) -> None:
        self.calls.append("on_undelivered")

    def on_done(self) -> None:
        statistics = self.purgatory.statistics()
        self.calls.append(("on_done", self.outcome, statistics.num_delayed, statistics.expired))


class TestOrder:
    def test_it_comes_when_the_state_is_final_and_counted_and_before_listeners(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        operation = Notes(purgatory, 1.0)

        def listen(finished: FinishedOperation) -> None:
            operation.calls.append("listener")

        purgatory.add_listener(listen)
        purgatory.try_complete_else_watch(operation, ["key"])
        clock.advance(1.0)
        assert operation.calls == ["on_complete", "on_expiration", ("on_done", "expired", 0, 1), "listener"]

    async def test_it_comes_before_waiters_are_told(self) -> None:
        class Told(asyncio.Future[None]):
            def set_result(self, result: None, /) -> None:
                operation.calls.append("told")
                super().set_result(result)

        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Notes(purgatory), ["key"])
            for _ in range(2):
                add_waiter(operation, Told())
            operation.force_complete()
            assert operation.calls == ["on_complete", ("on_done", "satisfied", 0, 0), "told", "told"]

    async def test_it_comes_before_on_undelivered(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Notes(purgatory), ["key"])
            task = asyncio.ensure_future(operation)
            await turn()
            operation.force_complete()
            task.cancel()
            await asyncio.wait([task])
            assert operation.calls == ["on_complete", ("on_done", "satisfied", 0, 0), "on_undelivered"]

    async def test_a_task_that_leaves_while_the_operation_completes_gets_it_back_after_on_done(self) -> None:
        class Leaves(Notes):
            def on_complete(self) -> str:
                remove_waiter(self, waiter)
                return super().on_complete()

        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Leaves(purgatory), ["key"])
            waiter = asyncio.get_running_loop().create_future()
            add_waiter(operation, waiter)
            operation.force_complete()
            assert operation.calls == ["on_complete", ("on_done", "satisfied", 0, 0), "on_undelivered"]


class TestFaults:
    @pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError, BaseException])
    def test_an_exception_of_it_is_reported_and_the_result_stays(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, error: type[BaseException]
    ) -> None:
        class Broken(Notes):
            def on_done(self) -> None:
                raise error

        operation = purgatory.try_complete_else_watch(Broken(purgatory), ["key"])
        assert operation.force_complete()
        assert operation.result() == "result"
        assert [type(each) for each in clock.exceptions] == [error]
        assert clock.faults[0]["operation"] is operation

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_a_request_to_exit_is_raised_when_all_have_ended(
        self, purgatory: DelayedOperationPurgatory, error: type[BaseException]
    ) -> None:
        class Exits(Notes):
            def on_done(self) -> None:
                raise error

        operations = [purgatory.try_complete_else_watch(Exits(purgatory), ["key"]) for _ in range(3)]
        with pytest.raises(error):
            purgatory.cancel_all()
        assert all(operation.cancelled() for operation in operations)
        assert purgatory.num_delayed == 0

    @pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
    async def test_awaiting_tasks_and_listeners_are_told_anyway(self, error: type[BaseException]) -> None:
        class Broken(Notes):
            def on_done(self) -> None:
                raise error

        heard: list[FinishedOperation] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: None)
        async with DelayedOperationPurgatory() as purgatory:
            purgatory.add_listener(heard.append)
            operation = purgatory.try_complete_else_watch(Broken(purgatory), ["key"])
            task = asyncio.ensure_future(operation)
            await turn()
            with pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else nullcontext():
                operation.force_complete()
            assert await task == "result"
            assert len(heard) == 1

    def test_of_several_requests_to_exit_the_first_is_raised(self, purgatory: DelayedOperationPurgatory) -> None:
        class Exits(Notes):
            def on_complete(self) -> str:
                deep_inside(purgatory, inner.force_complete)
                raise SystemExit(1)

        class ExitsLater(Notes):
            def on_done(self) -> None:
                raise SystemExit(2)

        inner = purgatory.try_complete_else_watch(ExitsLater(purgatory), ["inner"])
        outer = purgatory.try_complete_else_watch(Exits(purgatory), ["outer"])
        with pytest.raises(SystemExit) as exits:
            outer.force_complete()
        assert exits.value.code == 1
        assert (inner.outcome, outer.outcome) == ("satisfied", "failed")

    async def test_a_handler_of_exceptions_that_raises_loses_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        class Broken(Notes):
            def on_done(self) -> None:
                raise LookupError

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            raise asyncio.CancelledError

        def refuse(record: logging.LogRecord) -> bool:
            raise ZeroDivisionError

        clock = FaultLog()
        clock.call_exception_handler = partial(handle, asyncio.get_running_loop())  # type: ignore[method-assign]
        logger = logging.getLogger("purgatory")
        logger.addFilter(refuse)
        try:
            purgatory = DelayedOperationPurgatory(clock=clock)
            operation = purgatory.try_complete_else_watch(Broken(purgatory), ["key"])
            task = asyncio.ensure_future(operation)
            await turn()
            assert operation.force_complete()
            assert await task == "result"
        finally:
            logger.removeFilter(refuse)
        assert "ZeroDivisionError" in capsys.readouterr().err


class TestInsideOfIt:
    """`on_done` may call anything."""

    @pytest.mark.parametrize("end", ["cancel_for_key", "cancel_all", "fail_all", "linked cancel", "linked fail"])
    async def test_one_goes_and_all_go(self, end: str) -> None:
        error = LookupError()

        class Member(Notes):
            number = 0

            def on_done(self) -> None:
                self.calls.append(self.outcome)
                following = members[min(self.number + 1, len(members) - 1)]
                ways: dict[str, Callable[[], object]] = {
                    "cancel_for_key": lambda: purgatory.cancel_for_key("group"),
                    "cancel_all": purgatory.cancel_all,
                    "fail_all": lambda: purgatory.fail_all(error),
                    "linked cancel": following.cancel,
                    "linked fail": lambda: following.fail(error),
                }
                ways[end]()

        async with DelayedOperationPurgatory() as purgatory:
            members = [purgatory.try_complete_else_watch(Member(purgatory), ["group"]) for _ in range(2000)]
            for number, member in enumerate(members):
                member.number = number
            tasks = [asyncio.ensure_future(member) for member in members]
            await turn()
            members[0].cancel()
            assert [len(member.calls) for member in members] == [1] * len(members)
            assert purgatory.num_delayed == 0
            await asyncio.wait(tasks)
            outcome = "failed" if "fail" in end else "cancelled"
            assert [member.outcome for member in members[1:]] == [outcome] * (len(members) - 1)
            assert all(isinstance(task.exception(), (OperationCancelled, LookupError)) for task in tasks)

    async def test_it_may_take_the_result_and_all_waiting_tasks_get_it_too(self) -> None:
        class Takes(Notes):
            def on_done(self) -> None:
                self.calls.append(take_result(self))
                with pytest.raises(StopIteration):
                    self.__await__().send(None)

        async with DelayedOperationPurgatory() as purgatory:
            for tasks_waiting in (0, 1, 3):
                operation = purgatory.try_complete_else_watch(Takes(purgatory), ["key"])
                tasks = [asyncio.ensure_future(operation) for _ in range(tasks_waiting)]
                await turn()
                operation.force_complete()
                assert await asyncio.gather(*tasks) == ["result"] * tasks_waiting
                assert operation.calls == ["on_complete", "result"]

    @pytest.mark.parametrize("others", [0, 1])
    async def test_a_waiter_may_leave_in_it(self, others: int) -> None:
        class Leaves(Notes):
            def on_done(self) -> None:
                remove_waiter(self, waiter)

        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Leaves(purgatory), ["key"])
            waiter, *rest = [asyncio.get_running_loop().create_future() for _ in range(1 + others)]
            for each in (waiter, *rest):
                add_waiter(operation, each)
            operation.force_complete()
            assert not waiter.done()
            assert all(each.done() for each in rest)
            assert operation.calls == ["on_complete"] + ["on_undelivered"] * (not others)

    async def test_the_same_while_a_cancelled_operation_waits_for_its_turn(self) -> None:
        """One that is cancelled deep inside the ends of others is done, and its tasks have not been told yet."""

        def look() -> None:
            assert operation.cancel()
            assert operation.calls == []
            assert operation.done()
            with pytest.raises(OperationCancelled):
                take_result(operation)
            with pytest.raises(OperationCancelled):
                operation.__await__().send(None)

        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Notes(purgatory), ["key"])
            tasks = [asyncio.ensure_future(operation) for _ in range(2)]
            await turn()
            deep_inside(purgatory, look, NESTING - 1)
            assert operation.calls == [("on_done", "cancelled", 0, 0)]
            await asyncio.wait(tasks)
            assert all(isinstance(task.exception(), OperationCancelled) for task in tasks)

    async def test_aclose_raises_a_request_to_exit_even_if_its_task_is_cancelled(self) -> None:
        class Exits(Notes):
            def on_done(self) -> None:
                raise SystemExit(3)

        async def close() -> object:
            try:
                await purgatory.aclose()
            except SystemExit as error:  # out of a task, it would end the loop
                return error.code
            return None

        purgatory = DelayedOperationPurgatory()
        for number in range(3000):
            kind = Notes if number else Exits
            purgatory.try_complete_else_watch(kind(purgatory), [-number])
        closing = asyncio.create_task(close())
        await turn()
        assert 0 < purgatory.num_delayed < 3000
        closing.cancel()
        await asyncio.wait([closing])
        assert purgatory.num_delayed == 0
        assert closing.result() == 3
