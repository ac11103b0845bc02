"""Each ending of an operation has its outcome, and reaches `on_done` exactly once: what was acquired is released.

Apache Kafka acquired records in `tryComplete` of its share fetches, and lost them on one ending after the other:
KAFKA-20783 and its repairs.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    OperationCancelled,
    PurgatoryMisuse,
)
from purgatory._core.operation import NESTING
from purgatory.lowlevel import add_waiter, close_operation, remove_waiter, take_result
from tests.support.operations import ENDS, End, FaultLog, Flag, raising, turn, wait


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
        self.noted: list[str | None] = []
        """The outcome while it is being completed."""

    def try_complete(self) -> bool:
        if not self.has_permit and self.permits.free:
            self.permits.free -= 1
            self.has_permit = True
        return bool(self.then()) and self.force_complete()

    def on_complete(self) -> str:
        self.on_expiration()
        return "result"

    def on_expiration(self) -> None:
        assert not self.done()
        assert not self.fail(LookupError()), "and that is no exception which nobody has retrieved"
        self.noted.append(self.outcome)

    def on_done(self) -> None:
        assert self.done()
        self.ended.append(self.outcome)
        self.permits.free += self.has_permit
        self.has_permit = False


class FailsToComplete(Acquires):
    def on_complete(self) -> str:
        raise LookupError


def deep_inside(purgatory: DelayedOperationPurgatory, end: Callable[[], object], deep: int = 2 * NESTING) -> None:
    then = partial(deep_inside, purgatory, end, deep - 1) if deep else end
    purgatory.try_complete_else_watch(Flag(ready=True, then=then), ["others"])


async def closed(operation: DelayedOperation[Any]) -> None:
    coroutine = wait(operation)
    coroutine.send(None)
    coroutine.close()
    await turn()


async def leave(operation: DelayedOperation[Any]) -> None:
    tasks = [asyncio.ensure_future(operation) for _ in range(2)]
    await turn()
    for task in tasks:
        assert not operation.done()
        task.cancel()
        await asyncio.wait([task])


async def leave_as_waiter(operation: DelayedOperation[Any]) -> None:
    waiter = asyncio.get_running_loop().create_future()
    add_waiter(operation, waiter)
    remove_waiter(operation, waiter)


ENDINGS: dict[str, tuple[str, Callable[[], object], End]] = {
    # The outcome, what a further try does, and what ends an operation that waits on two keys for a second.
    **{end: ("satisfied", lambda: True, ENDS[end]) for end in ("check", "check with a limit", "check soon")},
    **{end: ("cancelled", bool, ENDS[end]) for end in ("cancel", "cancel for key", "cancel all")},
    **{end: ("closed", bool, ENDS[end]) for end in ("complete all", "close", "aclose")},
    "force": ("satisfied", bool, ENDS["force"]),
    "deadline": ("expired", bool, ENDS["deadline"]),
    "a check that raises": ("failed", raising(), ENDS["check"]),
    "last try": ("satisfied", lambda: True, ENDS["deadline"]),
    "last try that raises": ("failed", raising(), ENDS["deadline"]),
    "fail": ("failed", bool, lambda purgatory, clock, operation: operation.fail(LookupError())),
    "force deep inside": ("satisfied", bool, lambda purgatory, _, each: deep_inside(purgatory, each.force_complete)),
    "cancel deep inside": ("cancelled", bool, lambda purgatory, _, each: deep_inside(purgatory, each.cancel)),
    "close_operation": ("closed", bool, lambda purgatory, clock, operation: close_operation(operation)),
    "fail_all": ("failed", bool, lambda purgatory, clock, _: purgatory.fail_all(LookupError())),
    "the last task leaves": ("cancelled", bool, lambda purgatory, clock, operation: asyncio.run(leave(operation))),
    "the last waiter": ("cancelled", bool, lambda purgatory, clock, each: asyncio.run(leave_as_waiter(each))),
    "a closed coroutine": ("cancelled", bool, lambda purgatory, clock, operation: asyncio.run(closed(operation))),
}


class TestEveryEnding:
    @pytest.mark.parametrize("kind", [Acquires, FailsToComplete])
    @pytest.mark.parametrize("ending", ENDINGS)
    def test_an_operation_that_waits_has_its_outcome_and_releases_what_it_acquired(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, ending: str, kind: type[Acquires]
    ) -> None:
        permits = Permits(2)
        other = purgatory.try_complete_else_watch(Acquires(permits), ["other"])
        operation = purgatory.try_complete_else_watch(kind(permits, 1.0), ["a", "b"])
        assert (permits.free, operation.ended) == (0, [])
        outcome, operation.then, end = ENDINGS[ending]
        end(purgatory, clock, operation)
        if kind is FailsToComplete and outcome in ("satisfied", "expired", "closed"):
            outcome = "failed"
        assert (operation.outcome, operation.ended) == (outcome, [outcome])
        assert not operation.fail(LookupError())
        assert not operation._purgatory_fail(object())
        assert (operation.expired(), operation.cancelled()) == (outcome == "expired", outcome == "cancelled")
        assert repr(operation) == f"<{kind.__name__} {outcome}>"
        other.cancel()
        assert (permits.free, other.ended) == (2, [other.outcome])
        clock.advance(5.0)
        purgatory.close()
        assert (len(operation.ended), permits.free) == (1, 2)
        if outcome == "failed":
            assert isinstance(operation.exception(), LookupError)
            if other.outcome == "failed":
                assert other.exception() is operation.exception()
        elif outcome == "cancelled":
            for read in (operation.result, operation.exception):
                with pytest.raises(OperationCancelled, match=f"{kind.__name__} was cancelled"):
                    read()
        else:
            assert (operation.result(), operation.exception()) == ("result", None)
            assert operation.noted == [outcome] * (2 if outcome == "expired" else 1)
        assert clock.faults == []

    @pytest.mark.parametrize(
        ("then", "kind", "outcome"),
        [
            (lambda: True, Acquires, "completed_at_once"),
            (lambda: True, FailsToComplete, "failed"),
            (raising(), Acquires, "failed"),
        ],
    )
    def test_an_operation_that_ends_in_its_first_try_releases_it(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, then: Any, kind: type[Acquires], outcome: str
    ) -> None:
        permits = Permits(1)
        operation = purgatory.try_complete_else_watch(kind(permits, 1.0, then), ["a"])
        assert (operation.outcome, operation.ended, permits.free) == (outcome, [outcome], 1)
        assert operation.noted == [outcome] * (outcome != "failed")
        assert (operation.exception() is None) == (outcome != "failed")
        assert (purgatory.num_delayed, purgatory.watched, clock.armed) == (0, 0, [])

    @pytest.mark.parametrize(
        ("end", "outcome"), [("force_complete", "completed_at_once"), ("cancel", "cancelled"), ("fail", "failed")]
    )
    def test_an_operation_that_was_never_handed_over_ends_too_and_serves_no_more(
        self, purgatory: DelayedOperationPurgatory, end: str, outcome: str
    ) -> None:
        operation = Acquires(Permits(1))
        assert getattr(operation, end)(*[LookupError()] * (end == "fail"))
        assert operation.ended == [operation.outcome] == [outcome]
        assert end != "fail" or isinstance(operation.exception(), LookupError)
        with pytest.raises(PurgatoryMisuse, match="was already handed to a purgatory: create a new operation"):
            purgatory.try_complete_else_watch(operation, ["key"])
        assert purgatory.watched == 0


class Notes(Flag):
    """Notes its calls, and calls `act` when it is done."""

    def __init__(self, purgatory: DelayedOperationPurgatory, timeout: float | None = None) -> None:
        super().__init__(timeout, "it")
        self.purgatory = purgatory
        self.act: Callable[[], object] = int
        purgatory.try_complete_else_watch(self, ["key"])

    def on_undelivered(self, result: str, /) -> None:
        self.calls.append("it is undelivered")

    def on_done(self) -> None:
        statistics = self.purgatory.statistics()
        self.calls.append(f"it is done: {self.outcome}, {statistics.num_delayed} pending")
        self.act()


DONE = ["it completes", "it is done: satisfied, 0 pending"]


class TestOrder:
    async def test_it_comes_before_waiters_are_told_and_before_on_undelivered(self) -> None:
        class Told(asyncio.Future[None]):
            def set_result(self, result: None, /) -> None:
                operation.calls.append("told")
                super().set_result(result)

        async with DelayedOperationPurgatory() as purgatory:
            operation, waiter = Notes(purgatory), Told()
            add_waiter(operation, waiter)
            operation.force_complete()
            remove_waiter(operation, waiter)
            assert operation.calls == [*DONE, "told", "it is undelivered"]

    async def test_a_task_that_leaves_while_the_operation_completes_gets_it_back_after_on_done(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation, waiter = Notes(purgatory), asyncio.get_running_loop().create_future()
            operation.then = partial(remove_waiter, operation, waiter)
            add_waiter(operation, waiter)
            operation.force_complete()
            assert operation.calls == [*DONE, "it is undelivered"]


class TestInsideOfIt:
    """`on_done` may call anything."""

    @pytest.mark.parametrize("number", [0, 1, 3])
    async def test_it_may_take_the_result_and_all_waiting_tasks_get_it_too(self, number: int) -> None:
        def take() -> None:
            operation.calls.append(take_result(operation))
            with pytest.raises(StopIteration):
                operation.__await__().send(None)

        async with DelayedOperationPurgatory() as purgatory:
            operation = Notes(purgatory)
            operation.act = take
            tasks = [asyncio.ensure_future(operation) for _ in range(number)]
            await turn()
            operation.force_complete()
            assert await asyncio.gather(*tasks) == ["result of it"] * number
            assert operation.calls == [*DONE, "result of it"]

    async def test_tasks_of_one_that_is_cancelled_deep_inside_the_ends_of_others_are_told(self) -> None:
        def look() -> None:
            assert operation.cancel()
            assert (operation.done(), operation.calls) == (True, []), "it waits for its turn"
            with pytest.raises(OperationCancelled):
                operation.__await__().send(None)

        async with DelayedOperationPurgatory() as purgatory:
            operation = Notes(purgatory)
            task = asyncio.ensure_future(operation)
            await turn()
            deep_inside(purgatory, look, NESTING - 1)
            assert operation.calls == ["it is done: cancelled, 0 pending"]
            await asyncio.wait([task])
            assert isinstance(task.exception(), OperationCancelled)

    @pytest.mark.parametrize("others", [0, 1])
    async def test_a_waiter_may_leave_in_it(self, others: int) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = Notes(purgatory)
            waiter, *rest = [asyncio.get_running_loop().create_future() for _ in range(1 + others)]
            for each in (waiter, *rest):
                add_waiter(operation, each)
            operation.act = partial(remove_waiter, operation, waiter)
            operation.force_complete()
            assert not waiter.done()
            assert all(each.done() for each in rest)
            assert operation.calls == [*DONE, *["it is undelivered"] * (not others)]
