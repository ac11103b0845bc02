"""`on_done`: every ending reaches it exactly once, so what an operation has acquired is released.

Apache Kafka acquired records in `tryComplete` of its share fetches, and lost them on one ending after the other:
KAFKA-20783 and its repairs.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, FinishedOperation, PurgatoryClosed, PurgatoryFull
from purgatory.lowlevel import add_waiter, close_operation, remove_waiter
from tests.support.operations import FaultLog, RefusingClock, turn


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
    "the last try": ("satisfied", lambda purgatory, clock, operation: last_try(clock, operation, bool, True)),
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


def last_try(clock: FaultLog, operation: Acquires, then: Any, holds: bool = False) -> None:
    operation.then = (lambda: True) if holds else then
    clock.advance(1.0)


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


class Unequal:
    """A key whose comparison raises, once there is another one with its hash."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError


class TestRefused:
    def test_an_operation_refused_after_its_first_try_ends_cancelled(self, clock: FaultLog) -> None:
        purgatory = DelayedOperationPurgatory(max_pending=1, clock=clock)
        permits = Permits(2)
        purgatory.try_complete_else_watch(Acquires(permits), ["a"])
        refused = Acquires(permits)
        with pytest.raises(PurgatoryFull):
            purgatory.try_complete_else_watch(refused, ["a"])
        assert (refused.outcome, refused.ended, permits.free) == ("cancelled", ["cancelled"], 1)

    def test_closed_meanwhile(self, purgatory: DelayedOperationPurgatory) -> None:
        permits = Permits(1)
        refused = Acquires(permits, then=purgatory.close)
        with pytest.raises(PurgatoryClosed):
            purgatory.try_complete_else_watch(refused, ["a"])
        assert (refused.ended, permits.free) == (["cancelled"], 1)

    def test_a_key_that_raises(self, purgatory: DelayedOperationPurgatory) -> None:
        permits = Permits(2)
        purgatory.try_complete_else_watch(Acquires(permits), [Unequal()])
        refused = Acquires(permits)
        with pytest.raises(ZeroDivisionError):
            purgatory.try_complete_else_watch(refused, ["a", Unequal()])
        assert (refused.ended, permits.free) == (["cancelled"], 1)

    def test_a_clock_that_raises(self) -> None:
        clock = RefusingClock()
        permits = Permits(1)
        refused = Acquires(permits, 1.0)
        clock.refuses = True
        with pytest.raises(RuntimeError, match="refused"):
            DelayedOperationPurgatory(clock=clock).try_complete_else_watch(refused, ["a"])
        assert (refused.ended, permits.free) == (["cancelled"], 1)

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

    async def test_it_comes_before_tasks_are_woken_and_before_on_undelivered(self) -> None:
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
