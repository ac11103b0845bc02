"""A delayed operation: its states and outcomes, the tasks that await it, its deadline."""

import asyncio
import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    FinishedOperation,
    OperationCancelled,
    PurgatoryError,
    PurgatoryMisuse,
    VirtualClock,
)
from purgatory.lowlevel import add_waiter, take_result
from tests.support.operations import CallingClock, FaultLog, Flag, Waiting, turn


class Noting(Flag):
    """Notes its outcome, and whether it is done, while it is being completed."""

    def __init__(self, timeout: float | None = None, *, ready: bool = False) -> None:
        super().__init__(timeout, ready=ready)
        self.noted: list[str | None] = []
        self.then = self.note

    def note(self) -> None:
        assert not self.done()
        self.noted.append(self.outcome)

    def on_expiration(self) -> None:
        super().on_expiration()
        self.note()


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


Way = Callable[[DelayedOperationPurgatory, VirtualClock, Flag], object]
WAYS: dict[str, tuple[str, Way]] = {
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


class TestOutcomes:
    def test_a_new_operation_is_pending(self) -> None:
        for timeout in (5.0, None):
            operation = Flag(timeout)
            assert (operation.done(), operation.expired(), operation.cancelled(), operation.outcome) == (
                *(False,) * 3,
                None,
            )
            assert repr(operation) == f"<Flag new timeout={timeout}>"

    def test_a_pending_operation_has_no_result(self, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        assert (operation.done(), operation.outcome) == (False, None)
        assert repr(operation) == "<Flag pending, due in 5.0 s>"
        for read in (operation.result, operation.exception):
            with pytest.raises(asyncio.InvalidStateError, match=r"<Flag pending, due in 5\.0 s> is not done"):
                read()

    @pytest.mark.parametrize("way", WAYS)
    def test_the_outcome_is_known_in_on_complete_and_afterwards(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, way: str
    ) -> None:
        outcomes = heard(purgatory)
        operation = purgatory.try_complete_else_watch(Noting(10.0), ["key"])
        outcome, finish = WAYS[way]
        finish(purgatory, clock, operation)
        assert operation.noted == [outcome] * {"cancelled": 0, "expired": 2}.get(outcome, 1)
        assert (operation.done(), operation.outcome, outcomes, counts(purgatory)) == (
            True,
            outcome,
            [outcome],
            {outcome: 1},
        )
        assert (operation.expired(), operation.cancelled()) == (outcome == "expired", outcome == "cancelled")
        assert repr(operation) == f"<Noting {outcome}>"
        if outcome == "cancelled":
            for read in (operation.result, operation.exception):
                with pytest.raises(OperationCancelled, match="Noting was cancelled"):
                    read()
        else:
            assert (operation.result(), operation.exception()) == ("result of flag", None)
        clock.advance(20.0)
        assert (clock.faults, purgatory.num_delayed, len(purgatory.timer)) == ([], 0, 0)

    def test_an_operation_that_never_waited_has_completed_at_once(self, purgatory: DelayedOperationPurgatory) -> None:
        outcomes = heard(purgatory)
        operation = purgatory.try_complete_else_watch(Noting(10.0, ready=True), ["key"])
        assert operation.noted == [operation.outcome] == outcomes == ["completed_at_once"]
        assert counts(purgatory) == {"completed_at_once": 1}
        assert repr(operation) == "<Noting completed_at_once>"

    def test_an_operation_whose_method_raises_has_failed(self, purgatory: DelayedOperationPurgatory) -> None:
        class Broken(Flag):
            def on_complete(self) -> str:
                raise error

        error = LookupError()
        outcomes = heard(purgatory)
        operation = purgatory.try_complete_else_watch(Broken(10.0), ["key"])
        assert operation.force_complete()
        assert (operation.done(), operation.expired(), operation.cancelled()) == (True, False, False)
        assert operation.exception() is error
        with pytest.raises(LookupError):
            operation.result()
        assert [operation.outcome] == outcomes == ["failed"]
        assert counts(purgatory) == {"failed": 1}
        assert repr(operation).endswith("Broken failed>")

    @pytest.mark.parametrize("cancel", [False, True])
    def test_an_operation_may_be_forced_or_cancelled_outside_a_purgatory(
        self, purgatory: DelayedOperationPurgatory, cancel: bool
    ) -> None:
        operation = Flag()
        assert operation.cancel() if cancel else operation.force_complete()
        assert operation.outcome == ("cancelled" if cancel else "completed_at_once")
        with pytest.raises(PurgatoryMisuse, match="was already handed to a purgatory"):
            purgatory.try_complete_else_watch(operation, ["key"])
        assert purgatory.statistics().watched == 0

    def test_the_abstract_methods_are_required(self) -> None:
        class Incomplete(DelayedOperation[None]):
            pass

        with pytest.raises(TypeError, match=r"'?on_complete'?, '?try_complete"):
            type.__call__(Incomplete, 1.0)

    def test_an_operation_closed_deep_inside_others_is_closed_too(self, purgatory: DelayedOperationPurgatory) -> None:
        # Each on_complete completes the next operation; beyond the nesting limit the outermost call does so later.
        operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(100)]
        for operation, following in pairwise(operations):
            operation.then = following.force_complete
        operations[-1].then = purgatory.complete_all
        closed = purgatory.try_complete_else_watch(Noting(), ["key"])
        operations[0].force_complete()
        assert closed.noted == [closed.outcome] == ["closed"]
        assert counts(purgatory) == {"satisfied": 100, "closed": 1}


class Last(Flag):
    """Calls `act` in its try at the deadline, and completes if that returns true."""

    def __init__(self, clock: VirtualClock, act: Callable[["Last"], object]) -> None:
        super().__init__(1.0)
        self.clock = clock
        self.act = act
        self.tries: list[float] = []

    def try_complete(self) -> bool:
        if self.clock.time() < 1.0:
            return False
        self.tries.append(self.clock.time())
        return bool(self.act(self)) and self.force_complete()


def fail(operation: Last) -> None:
    raise LookupError


class TestTheLastTry:
    @pytest.mark.parametrize(
        ("act", "outcome", "missed"),
        [
            (lambda operation: True, "satisfied", 1),
            (lambda operation: operation.force_complete() and None, "satisfied", 1),
            (lambda operation: False, "expired", 0),
            (lambda operation: operation.cancel() and None, "cancelled", 0),
            (fail, "failed", 0),
        ],
        ids=["holds", "forces", "does not hold", "cancels", "raises"],
    )
    def test_a_condition_that_holds_at_the_deadline_is_no_timeout(
        self,
        purgatory: DelayedOperationPurgatory,
        clock: FaultLog,
        act: Callable[[Last], object],
        outcome: str,
        missed: int,
    ) -> None:
        outcomes = heard(purgatory)
        operation = purgatory.try_complete_else_watch(Last(clock, act), ["key"])
        other = purgatory.try_complete_else_watch(Flag(1.0), ["other"])
        clock.advance(5.0)
        assert operation.tries == [1.0], "tried once, and not before its deadline"
        assert outcomes == [outcome, "expired"]
        assert (operation.outcome, purgatory.statistics().missed) == (outcome, missed)
        calls = {"satisfied": ["flag completes"], "expired": ["flag completes", "flag expires"]}
        assert operation.calls == calls.get(outcome, [])
        assert (purgatory.num_delayed, len(purgatory.timer), other.outcome) == (0, 0, "expired")
        if outcome == "failed":
            assert isinstance(operation.exception(), LookupError)
        assert clock.faults == []

    def test_last_try_may_close_the_purgatory(self, purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
        operation = purgatory.try_complete_else_watch(Last(clock, lambda _: purgatory.close()), ["key"])
        clock.advance(1.0)
        assert (operation.outcome, operation.calls, len(purgatory.timer)) == ("closed", ["flag completes"], 0)

    @pytest.mark.parametrize("timeout", [0.0, 5.0, None])
    def test_operation_rescheduled_by_its_last_try_goes_on_waiting(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, timeout: float | None
    ) -> None:
        def move(operation: Last) -> None:
            if len(operation.tries) == 1:
                operation.reschedule(timeout)

        operation = purgatory.try_complete_else_watch(Last(clock, move), ["key"])
        clock.call_at(1.0, lambda: clock.call_at(1.0, lambda: done.append(operation.done())))
        done: list[bool] = []
        clock.advance(1.0)
        clock.advance(10.0)
        assert done == [timeout == 0.0]
        assert operation.outcome == (None if timeout is None else "expired")
        assert operation.calls.count("flag expires") == (timeout is not None)
        assert operation.tries == [1.0] if timeout is None else operation.tries[1:] == [1.0 + timeout]
        assert len(purgatory.timer) == 0

    def test_an_operation_checked_in_time_is_not_missed(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
        check(purgatory, operation)
        clock.advance(2.0)
        assert counts(purgatory) == {"satisfied": 1}


class TestAwait:
    @pytest.mark.parametrize("awaiters", [1, 5])
    async def test_tasks_get_the_result_after_a_check(self, awaiters: int) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(30.0), ["key"])
            tasks = [asyncio.ensure_future(operation) for _ in range(awaiters)]
            await turn()
            check(purgatory, operation)
            assert await asyncio.gather(*tasks) == ["result of flag"] * awaiters
            assert await operation == await operation == operation.result(), "again, without waiting"
            assert operation.calls == ["flag completes"]

    async def test_a_finished_operation_is_awaited_without_waiting_even_outside_a_purgatory(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            assert await purgatory.try_complete_else_watch(Flag(ready=True), ["key"]) == "result of flag"
        forced = Flag()
        forced.force_complete()
        assert await forced == "result of flag"

    async def test_gather_and_wait_for_take_operations(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operations = [purgatory.try_complete_else_watch(Flag(0.001, str(n)), ["key"]) for n in range(3)]
            assert await asyncio.gather(*operations) == ["result of 0", "result of 1", "result of 2"]
            patient = purgatory.try_complete_else_watch(Flag(), ["key"])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(patient, 0.001)
            assert patient.cancelled()

    async def test_an_operation_outside_a_purgatory_is_refused_as_it_would_hang(self) -> None:
        with pytest.raises(PurgatoryMisuse, match="would never complete: hand it to try_complete_else_watch"):
            await Flag(1.0)

    async def test_an_operation_on_a_virtual_clock_can_be_awaited(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(3600.0), ["key"])
        task = asyncio.ensure_future(operation)
        await turn()
        clock.advance(3600.0)
        assert await task == "result of flag"

    def test_an_operation_of_another_event_loop_is_refused_as_it_would_hang(self) -> None:
        async def watch() -> Flag:
            return purgatory.try_complete_else_watch(Flag(), ["key"])

        async def wait() -> None:
            await operation

        with asyncio.Runner() as runner, asyncio.Runner() as other:
            purgatory = DelayedOperationPurgatory()
            operation = runner.run(watch())
            with pytest.raises(PurgatoryError, match="another event loop"):
                other.run(wait())
            runner.run(purgatory.aclose())

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

    @pytest.mark.parametrize("name", ["send", "throw", "close"])
    def test_an_await_is_not_stepped_inside_of_itself(self, name: str) -> None:
        class Reentrant(asyncio.SelectorEventLoop):
            """Its futures are made with a call inside."""

            call: Callable[[], object] = staticmethod(lambda: None)

            def create_future(self) -> "asyncio.Future[Any]":
                self.call()
                return super().create_future()

        async def main() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Reentrant)
            async with DelayedOperationPurgatory() as purgatory:
                operation = purgatory.try_complete_else_watch(Flag(None), ["key"])
                step: Any = operation.__await__()
                arguments = {"send": (None,), "throw": (LookupError(),), "close": ()}[name]
                loop.call = lambda: getattr(step, name)(*arguments)
                with pytest.raises(ValueError, match="generator already executing"):
                    step.send(None)
                loop.call = operation.force_complete
                assert await operation == "result of flag"

        with asyncio.Runner(loop_factory=Reentrant) as runner:
            runner.run(main())

    async def test_a_result_that_is_taken_too_early_keeps_the_awaiting_tasks(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(None), ["key"])
            task = asyncio.ensure_future(operation)
            await turn()
            with pytest.raises(asyncio.InvalidStateError):
                take_result(operation)
            operation.force_complete()
            assert await task == "result of flag"

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
    @pytest.mark.parametrize("first", [5.0, None])
    @pytest.mark.parametrize("timeout", [0.0, 1.0, 9.0])
    def test_a_deadline_counts_from_now(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock, first: float | None, timeout: float
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(first), ["key"])
        clock.advance(2.0)
        operation.reschedule(timeout)
        if timeout:
            clock.advance(timeout - 0.001)
            assert not operation.done()
            clock.advance(0.001)
        else:
            clock.advance(0.0)
        assert operation.expired()

    def test_a_deadline_may_be_removed(self, purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        operation.reschedule(None)
        clock.advance(100.0)
        assert (operation.done(), len(purgatory.timer)) == (False, 0)
        assert repr(operation) == "<Flag pending, without a deadline>"

    @pytest.mark.parametrize("timeout", [1.0, None])
    def test_the_second_try_may_reschedule(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock, timeout: float | None
    ) -> None:
        class Eager(Flag):
            tries = 0

            def try_complete(self) -> bool:
                self.tries += 1
                if self.tries == 2:
                    self.reschedule(timeout)
                return False

        operation = purgatory.try_complete_else_watch(Eager(50.0), ["key"])
        clock.advance(1.0)
        assert operation.expired() == (timeout is not None)
        assert len(purgatory.timer) == 0

    def test_operation_that_does_not_wait_cannot_be_rescheduled(self, purgatory: DelayedOperationPurgatory) -> None:
        class Hasty(Flag):
            def try_complete(self) -> bool:
                self.reschedule(1.0)
                return False

        fresh = Flag(1.0)
        done = purgatory.try_complete_else_watch(Flag(1.0, ready=True), ["key"])
        for operation in (fresh, done):
            with pytest.raises(PurgatoryMisuse, match="only an operation that waits in a purgatory is rescheduled"):
                operation.reschedule(1.0)
        arriving = purgatory.try_complete_else_watch(Hasty(), ["key"])
        assert isinstance(arriving.exception(), PurgatoryMisuse), "it is not waiting in its first try"

    @pytest.mark.parametrize("nth", range(3))
    def test_an_operation_that_the_clock_completes_meanwhile_is_in_no_timer(self, nth: int) -> None:
        clock = CallingClock()
        purgatory = DelayedOperationPurgatory(clock=clock)
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        clock.arm(nth, operation.force_complete)
        if nth:
            operation.reschedule(1.0)
        else:
            with pytest.raises(PurgatoryMisuse):
                operation.reschedule(1.0)
        clock.advance(10.0)
        assert (operation.outcome, operation.calls) == ("satisfied", ["flag completes"])
        assert len(purgatory.timer) == 0

    def test_bad_timeout_changes_nothing(self, purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
        operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
        with pytest.raises(ValueError, match="timeout must be finite"):
            operation.reschedule(math.nan)
        clock.advance(1.0)
        assert operation.expired()
