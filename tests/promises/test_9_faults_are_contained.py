"""Promise 9: an exception of an operation reaches its awaiter, or the exception handler. All others go on.

A request to exit ends the walk over them, and the next iteration goes on with it.
"""

import asyncio
import gc
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, PurgatoryError
from tests.support.invariants import check_purgatory
from tests.support.operations import ENDS, End, FaultLog, Flag, turn

EXITS = (SystemExit, KeyboardInterrupt)
ERRORS = [Exception, BaseException, asyncio.CancelledError, StopIteration, GeneratorExit, RecursionError, *EXITS]


class Faulty(Flag):
    """Raises in one of its methods."""

    def __init__(self, method: str, error: type[BaseException] = LookupError) -> None:
        super().__init__(10.0)
        self.method = method
        self.error = error("fault")

    def _raise_in(self, *methods: str) -> None:
        if self.method in methods:
            raise self.error

    def try_complete(self) -> bool:
        if self.ready:
            if self.method == "after completing":
                self.force_complete()
            self._raise_in("try_complete", "after completing")
        return super().try_complete()

    def on_complete(self) -> str:
        self._raise_in("on_complete")
        return super().on_complete()

    def on_expiration(self) -> None:
        self._raise_in("on_expiration")
        super().on_expiration()


TRIGGERS: dict[str, End] = {
    **{end: ENDS[end] for end in ("check", "check soon", "check with a limit", "deadline", "complete all", "close")},
    "nested": lambda purgatory, clock, operation: purgatory.try_complete_else_watch(
        Flag(ready=True, then=purgatory.complete_all), ["a"]
    ),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("method", ["try_complete", "on_complete", "on_expiration", "after completing"])
def test_any_error_of_any_method_is_contained_under_any_trigger(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, method: str, trigger: str, error: type[BaseException]
) -> None:
    operations: list[Flag] = []
    for _ in range(3):
        operations += [Flag(10.0), Faulty(method, error), Faulty(method, error), Flag(10.0)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["a", id(operation)])
        # An operation is tried at its deadline too: it must not be ready if it is to expire.
        operation.ready = trigger != "deadline" or method in ("try_complete", "after completing")
    tried = trigger.startswith("check") or trigger == "deadline"
    raises = {"on_complete": True, "on_expiration": trigger == "deadline"}.get(method, tried)
    fails = raises and method in ("try_complete", "on_complete")
    exits = (error in EXITS and raises) * (6 if tried else 1)
    for number in range(7):
        with pytest.raises(EXITS) if number < exits else nullcontext():
            TRIGGERS[trigger](purgatory, clock, operation) if number == 0 else clock.advance(0)
        # The second of each four is the first to raise.
        walked = [2, 3, 6, 7, 10, 11, 12][number] if tried and exits else 12
        assert [operation.done() for operation in operations] == [True] * walked + [False] * (12 - walked)
    for operation in operations:
        if isinstance(operation, Faulty) and fails:
            outcome = operation.exception()
            wrapped = error in (asyncio.CancelledError, StopIteration)
            assert type(outcome) is (PurgatoryError if wrapped else error)
            assert (outcome if not wrapped else outcome.__cause__) is operation.error
        else:
            assert operation.result() == "result of flag"
    reported = 6 * (raises and not fails and error not in EXITS)
    assert [type(exception) for exception in clock.exceptions] == [error] * reported
    assert all(exception.__traceback__ for exception in clock.exceptions)
    assert {context["message"] for context in clock.faults} <= {"Faulty raised after it was done"}
    # Of completions inside of another one, a request to exit makes the outer one fail too.
    assert purgatory.statistics().failed == 6 * fails + (trigger == "nested" and exits > 0)
    clock.advance(20.0)
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
    check_purgatory(purgatory)


@pytest.mark.parametrize("honest", [0, 1, 2], ids=["when it comes", "when it is watched", "when it is checked"])
def test_try_complete_that_returns_true_without_completing_fails(
    purgatory: DelayedOperationPurgatory, honest: int
) -> None:
    class Forgetful(Flag):
        tries = 0

        def try_complete(self) -> bool:
            self.tries += 1
            return self.tries > honest

    operation = purgatory.try_complete_else_watch(Forgetful(), ["key"])
    assert purgatory.num_delayed == (honest == 2)
    assert purgatory.check_and_complete("key") == 0
    with pytest.raises(PurgatoryError, match=r"try_complete\(\) of .* returned true, but did not force_complete\(\)"):
        operation.result()
    assert purgatory.num_delayed == 0


def test_the_truth_of_what_try_complete_returns_may_raise(purgatory: DelayedOperationPurgatory) -> None:
    class Odd:
        def __bool__(self) -> bool:
            raise LookupError

    class Ambiguous(Flag):
        def try_complete(self) -> Any:
            return Odd()

    operation = purgatory.try_complete_else_watch(Ambiguous(), ["key"])
    assert isinstance(operation.exception(), LookupError)


@pytest.mark.parametrize("retrieved", ["awaited", "exception", "result", None])
@pytest.mark.parametrize("method", ["try_complete", "on_complete"])
async def test_an_exception_that_nobody_retrieves_is_reported_once(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, method: str, retrieved: str | None
) -> None:
    operation = purgatory.try_complete_else_watch(Faulty(method), ["key"])
    operation.ready = True
    purgatory.check_and_complete("key")
    await turn()
    assert clock.faults == [], "it may be retrieved yet"
    with suppress(LookupError):
        match retrieved:
            case "awaited":
                await operation
            case "exception":
                operation.exception()
            case "result":
                operation.result()
    del operation
    gc.collect()
    if retrieved is not None:
        assert clock.faults == []
    else:
        (context,) = clock.faults
        assert context.keys() == {"message", "exception"}
        assert context["message"] == "Faulty failed, and its exception was never retrieved"
        assert repr(context["exception"]) == "LookupError('fault')"
        assert context["exception"].__traceback__ is not None


def test_without_a_purgatory_a_fault_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    retrieved, dropped = Faulty("on_complete"), Faulty("on_complete")
    for operation in (retrieved, dropped):
        assert operation.force_complete()
    assert isinstance(retrieved.exception(), LookupError)
    assert caplog.records == []
    del operation, retrieved, dropped
    gc.collect()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "Faulty failed, and its exception was never retrieved" in caplog.text


def test_a_repr_that_raises_hides_no_error(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    class Shy(Faulty):
        def __repr__(self) -> str:
            raise ZeroDivisionError

    shy = [purgatory.try_complete_else_watch(Shy("on_complete"), ["key"]) for _ in range(3)]
    shy[0].force_complete()
    shy[1].cancel()
    clock.advance(10.0)
    with pytest.raises(PurgatoryError, match="Shy was cancelled"):
        shy[1].result()
    assert clock.faults == []
    shy.clear()
    gc.collect()
    assert [type(exception) for exception in clock.exceptions] == [LookupError] * 2
