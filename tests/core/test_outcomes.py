"""The outcome in `on_complete` and afterwards: a close is no success, and a true condition no timeout."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from purgatory import (
    DelayedOperationPurgatory,
    FinishedOperation,
    OperationCancelled,
    PurgatoryClosed,
    PurgatoryError,
    VirtualClock,
)
from tests.support.operations import FaultLog, Flag


class Noting(Flag):
    """Notes its outcome while it is being completed."""

    def __init__(self, timeout: float | None = None, *, ready: bool = False) -> None:
        super().__init__(timeout, ready=ready)
        self.noted: list[str | None] = [self.outcome]
        self.then = lambda: self.noted.append(self.outcome)

    def on_expiration(self) -> None:
        super().on_expiration()
        self.noted.append(self.outcome)


class Untrue(Noting):
    """Becomes true when it is tried at its deadline, or never without a `clock`."""

    def __init__(self, timeout: float, clock: VirtualClock | None = None, error: BaseException | None = None) -> None:
        super().__init__(timeout)
        self.clock = clock
        self.error = error
        self.tries: list[float] = []

    def try_complete(self) -> bool:
        if self.clock is None or self.clock.time() < 1.0:
            return False
        self.tries.append(self.clock.time())
        if self.error is not None:
            raise self.error
        return self.force_complete()


def heard(purgatory: DelayedOperationPurgatory) -> list[str]:
    """The outcomes that a listener is called with from now on."""
    outcomes: list[str] = []

    def listen(finished: FinishedOperation) -> None:
        outcomes.append(finished.outcome)

    purgatory.add_listener(listen)
    return outcomes


def counts(purgatory: DelayedOperationPurgatory) -> dict[str, int]:
    """The counts that are not zero."""
    statistics = purgatory.statistics()
    names = ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed", "missed")
    return {name: getattr(statistics, name) for name in names if getattr(statistics, name)}


def check(purgatory: DelayedOperationPurgatory, operation: Flag) -> None:
    operation.ready = True
    purgatory.check_and_complete("key")


WAYS: dict[str, tuple[str, Callable[[DelayedOperationPurgatory, VirtualClock, Flag], object]]] = {
    "check": ("satisfied", lambda purgatory, clock, operation: check(purgatory, operation)),
    "force": ("satisfied", lambda purgatory, clock, operation: operation.force_complete()),
    "deadline": ("expired", lambda purgatory, clock, operation: clock.advance(10.0)),
    "complete_all": ("closed", lambda purgatory, clock, operation: purgatory.complete_all()),
    "close": ("closed", lambda purgatory, clock, operation: purgatory.close()),
    "aclose": ("closed", lambda purgatory, clock, operation: list(purgatory.aclose().__await__())),
    "cancel": ("cancelled", lambda purgatory, clock, operation: operation.cancel()),
    "cancel_for_key": ("cancelled", lambda purgatory, clock, operation: purgatory.cancel_for_key("key")),
    "cancel_all": ("cancelled", lambda purgatory, clock, operation: purgatory.cancel_all()),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_outcome_is_known_in_on_complete_and_afterwards(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, way: str
) -> None:
    outcomes = heard(purgatory)
    operation = purgatory.try_complete_else_watch(Noting(10.0), ["key"])
    assert operation.outcome is None
    outcome, finish = WAYS[way]
    finish(purgatory, clock, operation)
    assert operation.outcome == outcome
    times = {"cancelled": 0, "expired": 2}.get(outcome, 1)
    assert operation.noted == [None] + [outcome] * times
    assert outcomes == [outcome]
    assert counts(purgatory) == {outcome: 1}
    assert operation.expired() == (outcome == "expired")
    assert operation.cancelled() == (outcome == "cancelled")
    assert clock.faults == []


def test_an_operation_that_never_waited_has_completed_at_once(purgatory: DelayedOperationPurgatory) -> None:
    outcomes = heard(purgatory)
    operation = purgatory.try_complete_else_watch(Noting(10.0, ready=True), ["key"])
    assert operation.outcome == "completed_at_once"
    assert operation.noted == [None, "completed_at_once"]
    assert outcomes == ["completed_at_once"]
    assert counts(purgatory) == {"completed_at_once": 1}


def test_an_operation_whose_on_complete_raises_has_failed(purgatory: DelayedOperationPurgatory) -> None:
    class Broken(Flag):
        def on_complete(self) -> str:
            raise LookupError

    outcomes = heard(purgatory)
    operation = purgatory.try_complete_else_watch(Broken(10.0), ["key"])
    operation.force_complete()
    assert operation.outcome == "failed"
    assert isinstance(operation.exception(), LookupError)
    assert outcomes == ["failed"]
    assert counts(purgatory) == {"failed": 1}


def test_a_new_operation_has_no_outcome() -> None:
    assert Flag(1.0).outcome is None


def test_an_operation_closed_deep_inside_others_is_closed_too(purgatory: DelayedOperationPurgatory) -> None:
    # Each on_complete completes the next operation; beyond the nesting limit the outermost call does so later.
    operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(100)]
    for operation, following in pairwise(operations):
        operation.then = following.force_complete
    operations[-1].then = purgatory.complete_all
    closed = purgatory.try_complete_else_watch(Noting(), ["key"])
    operations[0].force_complete()
    assert closed.outcome == "closed"
    assert closed.noted == [None, "closed"]
    assert counts(purgatory) == {"satisfied": 100, "closed": 1}


class TestAClose:
    async def test_waits_that_a_close_ends_are_not_satisfied(self) -> None:
        purgatory = DelayedOperationPurgatory()
        outcomes = heard(purgatory)
        operations = [purgatory.try_complete_else_watch(Flag(60.0), ["key"]) for _ in range(3)]
        waits = [asyncio.ensure_future(operation) for operation in operations]
        await asyncio.sleep(0)
        await purgatory.aclose()
        assert await asyncio.gather(*waits) == ["result of flag"] * 3
        assert outcomes == ["closed"] * 3
        assert counts(purgatory) == {"closed": 3}

    def test_closed_is_already_true_while_a_close_completes_operations(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        assert not purgatory.closed
        seen: list[bool] = []
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        operation.then = lambda: seen.append(purgatory.closed)
        purgatory.close()
        assert purgatory.closed
        assert seen == [True], "seen by on_complete"
        with pytest.raises(PurgatoryClosed):
            purgatory.try_complete_else_watch(Flag(), ["key"])

    async def test_a_purgatory_is_closed_while_aclose_is_under_way(self) -> None:
        purgatory = DelayedOperationPurgatory()
        for _ in range(3000):
            purgatory.try_complete_else_watch(Flag(), ["key"])
        closing = asyncio.ensure_future(purgatory.aclose())
        await asyncio.sleep(0)
        assert purgatory.closed
        assert not closing.done()
        await closing
        assert counts(purgatory) == {"closed": 3000}

    def test_complete_all_does_not_close_the_purgatory(self, purgatory: DelayedOperationPurgatory) -> None:
        purgatory.try_complete_else_watch(Flag(), ["key"])
        assert purgatory.complete_all() == 1
        assert not purgatory.closed
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        operation.force_complete()
        assert operation.outcome == "satisfied"


class TestTheLastTry:
    def test_a_condition_that_holds_at_the_deadline_is_no_timeout(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        outcomes = heard(purgatory)
        operation = purgatory.try_complete_else_watch(Untrue(1.0, clock), ["key"])
        clock.advance(1.0)
        assert (operation.done(), operation.expired()) == (True, False)
        assert operation.outcome == "satisfied"
        assert operation.calls == ["flag completes"], "and on_expiration is not called"
        assert operation.noted == [None, "satisfied"]
        assert operation.tries == [1.0], "tried once, and not before its deadline"
        assert outcomes == ["satisfied"]
        assert counts(purgatory) == {"satisfied": 1, "missed": 1}
        assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)

    def test_an_operation_that_fails_in_its_last_try_is_not_missed(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        class Failing(Untrue):
            def on_complete(self) -> str:
                raise LookupError

        operation = purgatory.try_complete_else_watch(Failing(1.0, clock), ["key"])
        clock.advance(1.0)
        assert isinstance(operation.exception(), LookupError)
        assert counts(purgatory) == {"failed": 1}

    def test_a_condition_that_does_not_hold_at_the_deadline_is_a_timeout(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        operation = purgatory.try_complete_else_watch(Untrue(1.0), ["key"])
        clock.advance(1.0)
        assert operation.outcome == "expired"
        assert counts(purgatory) == {"expired": 1}

    def test_an_operation_checked_in_time_is_not_missed(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
        check(purgatory, operation)
        clock.advance(2.0)
        assert counts(purgatory) == {"satisfied": 1}

    def test_exception_of_the_last_try_makes_the_operation_fail(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        error = LookupError()
        operation = purgatory.try_complete_else_watch(Untrue(1.0, clock, error), ["key"])
        other = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
        clock.advance(1.0)
        assert operation.exception() is error
        assert operation.outcome == "failed"
        assert other.expired()
        assert counts(purgatory) == {"failed": 1, "expired": 1}
        assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)

    def test_last_try_that_returns_true_without_completing_makes_operation_fail(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        class Forgetful(Flag):
            def try_complete(self) -> bool:
                return clock.time() == 1.0

        operation = purgatory.try_complete_else_watch(Forgetful(1.0), ["key"])
        clock.advance(1.0)
        assert isinstance(operation.exception(), PurgatoryError)
        assert counts(purgatory) == {"failed": 1}

    @pytest.mark.parametrize(
        ("does", "outcome"), [("cancel", "cancelled"), ("force", "satisfied"), ("close", "closed")]
    )
    def test_last_try_may_finish_the_operation_itself(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, does: str, outcome: str
    ) -> None:
        class Finishing(Flag):
            def try_complete(self) -> bool:
                if clock.time() < 1.0:
                    return False
                match does:
                    case "cancel":
                        self.cancel()
                    case "close":
                        purgatory.close()
                    case _:
                        return self.force_complete()
                return False

        operation = purgatory.try_complete_else_watch(Finishing(1.0), ["key"])
        clock.advance(1.0)
        assert operation.outcome == outcome
        assert operation.calls == ([] if does == "cancel" else ["flag completes"])
        assert (purgatory.num_delayed, len(purgatory.timer), clock.faults) == (0, 0, [])

    def test_operation_rescheduled_by_its_last_try_finishes_once(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        class Moving(Flag):
            def try_complete(self) -> bool:
                if clock.time() == 1.0:
                    self.reschedule(5.0)
                return False

        operation = purgatory.try_complete_else_watch(Moving(1.0), ["key"])
        clock.advance(1.0)
        clock.advance(10.0)
        assert operation.calls == ["flag completes", "flag expires"]
        assert (purgatory.num_delayed, len(purgatory.timer), clock.faults) == (0, 0, [])


class TestAFaultOfOnExpiration:
    @pytest.mark.parametrize("error", [LookupError, GeneratorExit, asyncio.CancelledError])
    def test_result_stays_and_fault_of_on_expiration_is_reported(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, error: type[BaseException]
    ) -> None:
        class Broken(Flag):
            def on_expiration(self) -> None:
                raise error

        outcomes = heard(purgatory)
        operation = purgatory.try_complete_else_watch(Broken(1.0), ["key"])
        clock.advance(1.0)
        assert operation.result() == "result of flag"
        assert operation.exception() is None
        assert operation.outcome == "expired"
        assert operation.expired()
        assert [type(exception) for exception in clock.exceptions] == [error]
        assert outcomes == ["expired"]
        assert counts(purgatory) == {"expired": 1}

    async def test_awaiter_gets_the_result_despite_a_fault_of_on_expiration(self) -> None:
        class Broken(Flag):
            def on_expiration(self) -> None:
                raise LookupError

        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context["exception"]))
        async with DelayedOperationPurgatory() as purgatory:
            assert await purgatory.try_complete_else_watch(Broken(0.001), ["key"]) == "result of flag"
        assert [type(fault) for fault in faults] == [LookupError]

    def test_a_fault_of_on_complete_is_still_the_outcome(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        class Broken(Flag):
            def on_complete(self) -> str:
                raise LookupError

        operation = purgatory.try_complete_else_watch(Broken(1.0), ["key"])
        clock.advance(1.0)
        assert isinstance(operation.exception(), LookupError)
        assert operation.outcome == "failed"


async def test_a_cancelled_operation_has_that_outcome_for_its_awaiter() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        task = asyncio.ensure_future(operation)
        await asyncio.sleep(0)
        assert purgatory.cancel_all() == 1
        with pytest.raises(OperationCancelled):
            await task
        assert operation.outcome == "cancelled"
