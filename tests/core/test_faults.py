"""Faults of operations, keys and clocks: all other operations go on, counts are right, and no operation is lost."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import uvloop

from purgatory import DelayedOperationPurgatory, PurgatoryError
from tests.support.invariants import check_purgatory
from tests.support.operations import FaultLog, Flag, RefusingClock, turn

EXITS = (SystemExit, KeyboardInterrupt)
ERRORS = [Exception, BaseException, asyncio.CancelledError, StopIteration, GeneratorExit, MemoryError, *EXITS]


class Faulty(Flag):
    """Raises in one of its methods."""

    def __init__(self, method: str, error: type[BaseException]) -> None:
        super().__init__(10.0)
        self.method = method
        self.error = error

    def try_complete(self) -> bool:
        if self.method == "try_complete" and self.ready:
            raise self.error
        return super().try_complete()

    def on_complete(self) -> str:
        if self.method == "on_complete":
            raise self.error
        return super().on_complete()

    def on_expiration(self) -> None:
        if self.method == "on_expiration":
            raise self.error


def _check_soon(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    purgatory.check_and_complete_soon("key")
    clock.advance(0)


Trigger = Callable[[DelayedOperationPurgatory, FaultLog], object]
TRIGGERS: dict[str, Trigger] = {
    "check": lambda purgatory, clock: purgatory.check_and_complete("key"),
    "check soon": _check_soon,
    "deadline": lambda purgatory, clock: clock.advance(10.0),
    "complete all": lambda purgatory, clock: purgatory.complete_all(),
    "close": lambda purgatory, clock: purgatory.close(),
    "nested": lambda purgatory, clock: purgatory.try_complete_else_watch(
        Flag(ready=True, then=purgatory.complete_all), ["key"]
    ),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("method", ["try_complete", "on_complete", "on_expiration"])
def test_any_error_of_any_method_is_contained_under_any_trigger(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, method: str, trigger: str, error: type[BaseException]
) -> None:
    operations: list[Flag] = []
    for _ in range(3):
        operations += [Flag(10.0), Faulty(method, error), Faulty(method, error), Flag(10.0)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["key", id(operation)])
        # An operation is tried at its deadline too: it must not be ready if it is to expire.
        operation.ready = trigger != "deadline" or method == "try_complete"
    try:  # a request to exit is raised when all others are done
        TRIGGERS[trigger](purgatory, clock)
    except EXITS:
        assert error in EXITS
    clock.advance(0)
    assert [operation.done() for operation in operations] == [True] * 12
    failing = method == "try_complete" and (trigger.startswith("check") or trigger == "deadline")
    for operation in operations:
        if isinstance(operation, Faulty) and (failing or method == "on_complete"):
            outcome = operation.exception()
            wrapped = error in (asyncio.CancelledError, StopIteration)
            assert type(outcome) is (PurgatoryError if wrapped else error)
        else:
            assert operation.result() == "result of flag"
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
    check_purgatory(purgatory)


def test_an_error_after_a_deferred_completion_is_not_its_outcome(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    class Late(Flag):
        def try_complete(self) -> bool:
            if self.ready:
                assert self.force_complete()
                raise LookupError
            return False

    last = purgatory.try_complete_else_watch(Late(), ["last"])
    last.ready = True
    then: Callable[[], object] = partial(purgatory.check_and_complete, "last")
    for n in range(20):
        then = purgatory.try_complete_else_watch(Flag(then=then), [n]).force_complete
    then()
    assert last.result() == "result of flag"
    assert [type(exception) for exception in clock.exceptions] == [LookupError]
    assert purgatory.statistics().failed == 0


def test_an_exception_that_shows_no_traceback_makes_its_operation_fail_all_the_same(
    purgatory: DelayedOperationPurgatory,
) -> None:
    class Bare(Exception):
        __traceback__ = None

    operation = purgatory.try_complete_else_watch(Faulty("on_complete", Bare), ["key"])
    assert operation.force_complete()
    assert isinstance(operation.exception(), Bare)
    assert purgatory.statistics().failed == 1


def test_a_repr_that_raises_hides_no_error(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    class Shy(Faulty):
        def __repr__(self) -> str:
            raise ZeroDivisionError

    shy = [purgatory.try_complete_else_watch(Shy("on_complete", LookupError), ["key"]) for _ in range(3)]
    shy[0].force_complete()
    shy[1].cancel()
    clock.advance(10.0)
    with pytest.raises(PurgatoryError, match="Shy was cancelled"):
        shy[1].result()
    assert clock.faults == []
    shy.clear()
    gc.collect()
    assert [type(exception) for exception in clock.exceptions] == [LookupError] * 2


def test_a_clock_that_refuses_to_call_back_leaves_no_operation_half_completed() -> None:
    clock = RefusingClock()
    purgatory = DelayedOperationPurgatory(clock=clock, purge_interval=0)
    operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(50)]
    chained = purgatory.try_complete_else_watch(Flag(then=purgatory.complete_all), ["chain"])
    clock.refuses = True
    for operation in operations[:25]:
        assert operation.force_complete()
    for operation in operations[25:40]:  # more dead entries than living ones: the purge needs the clock
        with pytest.raises(RuntimeError, match="refused"):
            operation.force_complete()
        assert operation.result() == "result of flag"
    with pytest.raises(RuntimeError, match="refused"):
        chained.force_complete()
    assert isinstance(chained.exception(), RuntimeError)
    clock.refuses = False
    purgatory.complete_all()
    assert all(operation.done() for operation in operations)
    clock.advance(0)
    check_purgatory(purgatory)


def test_a_clock_that_does_not_call_back_is_asked_again_by_the_next_check() -> None:
    clock = RefusingClock()
    purgatory = DelayedOperationPurgatory(clock=clock)
    operation = purgatory.try_complete_else_watch(Flag(), ["key"])
    operation.ready = clock.refuses = True
    with pytest.raises(RuntimeError, match="refused"):
        purgatory.check_and_complete_soon("key")
    clock.refuses = False
    purgatory.check_and_complete_soon("key")
    clock.advance(0)
    assert operation.done()


class TestAClosedLoop:
    """An event loop is closed while operations are pending, one of them awaited."""

    @staticmethod
    async def _leave(purgatory: DelayedOperationPurgatory, operations: list[Flag]) -> "asyncio.Task[str]":
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["key"])

        async def wait() -> str:
            return await operations[0]

        task = asyncio.create_task(wait())
        await turn()
        purgatory.check_and_complete_soon("key")
        return task

    @pytest.fixture(params=[asyncio.SelectorEventLoop, uvloop.new_event_loop])
    def left(self, request: pytest.FixtureRequest) -> Iterator[tuple[DelayedOperationPurgatory, list[Flag]]]:
        loop: asyncio.AbstractEventLoop = request.param()
        purgatory = DelayedOperationPurgatory(purge_interval=2)
        operations: list[Flag] = [Flag(3600.0) for _ in range(6)]
        operations.append(Faulty("on_complete", LookupError))
        task = loop.run_until_complete(self._leave(purgatory, operations))
        loop.close()
        yield purgatory, operations
        assert not task.done()
        coroutine = task.get_coro()
        assert coroutine is not None
        coroutine.close()  # the destruction of a task closes its coroutine

    @pytest.mark.parametrize("way", ["force", "complete all", "check", "close"])
    def test_pending_operations_can_be_completed(
        self,
        left: tuple[DelayedOperationPurgatory, list[Flag]],
        caplog: pytest.LogCaptureFixture,
        way: str,
    ) -> None:
        purgatory, operations = left
        for each in operations:
            each.ready = True
        del each
        match way:
            case "force":
                assert [operation.force_complete() for operation in operations] == [True] * 7
            case "complete all":
                assert purgatory.complete_all() == 7
            case "check":
                assert purgatory.check_and_complete("key") == 7
            case "close":
                purgatory.close()
        assert [operation.done() for operation in operations] == [True] * 7
        assert operations[0].result() == "result of flag"
        statistics = purgatory.statistics()
        completed = (0, 6) if way in ("complete all", "close") else (6, 0)
        assert (statistics.satisfied, statistics.closed) == completed
        assert (statistics.failed, statistics.num_delayed) == (1, 0)
        assert len(purgatory.timer) == 0
        operations.clear()
        gc.collect()
        assert "Faulty failed, and its exception was never retrieved" in caplog.text

    def test_pending_operations_can_be_cancelled(self, left: tuple[DelayedOperationPurgatory, list[Flag]]) -> None:
        purgatory, operations = left
        assert operations[0].cancel()
        assert len(purgatory.cancel_for_key("key")) == 6
        assert purgatory.cancel_all() == 0
        purgatory.close()
        assert purgatory.statistics().cancelled == 7

    def test_calls_that_need_the_loop_are_refused_and_change_nothing(
        self, left: tuple[DelayedOperationPurgatory, list[Flag]]
    ) -> None:
        purgatory, operations = left
        with pytest.raises(RuntimeError, match="closed"):
            operations[1].reschedule(0.5)
        with pytest.raises(RuntimeError, match="closed"):
            purgatory.check_and_complete_threadsafe("key")
        assert (purgatory.num_delayed, len(purgatory.timer)) == (7, 7)


class Moody:
    """A key whose lookup fails in `__hash__` or `__eq__`, as `mood` says."""

    def __init__(self) -> None:
        self.mood = "good"

    def __hash__(self) -> int:
        if self.mood == "no hash":
            raise LookupError(self.mood)
        return 1

    def __eq__(self, other: object) -> bool:
        if "no eq" in (self.mood, isinstance(other, Moody) and other.mood):
            raise LookupError("no eq")
        return self is other


class TestKeysThatCannotBeLookedUp:
    @pytest.fixture
    def key(self) -> Moody:
        return Moody()

    @pytest.fixture
    def operation(self, purgatory: DelayedOperationPurgatory, key: Moody) -> Flag:
        operation = purgatory.try_complete_else_watch(Flag(), [Moody(), key, "other"])
        operation.ready = True
        return operation

    @pytest.mark.parametrize("mood", ["no hash", "no eq"])
    def test_call_with_a_key_that_cannot_be_looked_up_changes_nothing(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, operation: Flag, key: Moody, mood: str
    ) -> None:
        before = purgatory.statistics()
        key.mood = mood
        tried = Flag()
        for use in (
            lambda: purgatory.try_complete_else_watch(tried, ["a", key]),
            lambda: purgatory.check_and_complete(key),
            lambda: purgatory.check_and_complete_soon(key),
            lambda: purgatory.cancel_for_key(key),
        ):
            with pytest.raises(LookupError):
                use()
        if mood == "no eq":  # the operation was pending for a moment, and leaves a dead entry on its first key
            before = replace(before, watched=4, peak_watched=4, estimated_total=4, peak_delayed=2)
        assert purgatory.statistics() == before
        clock.advance(1)
        assert not operation.done()
        key.mood = "good"
        assert purgatory.check_and_complete(key) == 1
        assert not purgatory.try_complete_else_watch(tried, ["a", key]).done()

    def test_entries_of_operations_that_could_not_be_watched_are_purged(self, clock: FaultLog, key: Moody) -> None:
        purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
        purgatory.try_complete_else_watch(Flag(), [Moody(), "other"])
        for _ in range(100):
            key.mood = "good"
            keys = dict.fromkeys(["other", key])
            key.mood = "no eq"
            with pytest.raises(LookupError):
                purgatory.try_complete_else_watch(Flag(), keys)
            clock.advance(0)
            assert purgatory.watched <= 2 + 11

    @pytest.mark.parametrize("entries", [10, 2000])
    def test_a_key_that_fails_in_a_purge_is_reported_and_purged_later(
        self, clock: FaultLog, key: Moody, entries: int
    ) -> None:
        purgatory = DelayedOperationPurgatory(purge_interval=5, clock=clock)
        for each in [purgatory.try_complete_else_watch(Flag(), [Moody(), key]) for _ in range(entries)]:
            each.cancel()
        key.mood = "no hash"
        clock.advance(1)
        assert {type(exception) for exception in clock.exceptions} == {LookupError}
        assert purgatory.watched == 0
        key.mood = "good"
        for each in [purgatory.try_complete_else_watch(Flag(), ["other"]) for _ in range(10)]:
            each.cancel()
        clock.advance(1)
        assert purgatory.watched_keys() == []

    @pytest.mark.parametrize("mood", ["no hash", "no eq"])
    def test_a_key_that_fails_when_its_pass_begins_is_reported_and_may_be_checked_again(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, operation: Flag, key: Moody, mood: str
    ) -> None:
        other = purgatory.try_complete_else_watch(Flag(), ["last"])
        other.ready = True
        purgatory.check_and_complete_soon(key)
        purgatory.check_and_complete_soon("last")
        key.mood = mood
        clock.advance(0)
        assert {type(exception) for exception in clock.exceptions} == {LookupError}
        assert (operation.done(), other.done()) == (False, True)
        key.mood = "good"
        purgatory.check_and_complete_soon(key)
        clock.advance(0)
        assert operation.done()

    def test_a_key_that_fails_when_its_pass_ends_is_reported_and_may_be_checked_again(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, operation: Flag, key: Moody
    ) -> None:
        def sour() -> None:
            key.mood = "no hash"

        operation.then = sour
        purgatory.check_and_complete_soon(key)
        clock.advance(0)
        assert operation.done()
        assert {type(exception) for exception in clock.exceptions} == {LookupError}
        key.mood = "good"
        again = purgatory.try_complete_else_watch(Flag(), [key])
        again.ready = True
        purgatory.check_and_complete_soon(key)
        clock.advance(0)
        assert again.done()

    async def test_a_key_that_fails_after_a_call_of_another_thread_is_reported(self, key: Moody) -> None:
        contexts: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(), [key, "other"])
            operation.ready = True
            purgatory.check_and_complete_threadsafe(key)
            key.mood = "no hash"
            for _ in range(3):
                await turn()
            assert [type(context["exception"]) for context in contexts] == [LookupError]
            purgatory.check_and_complete_threadsafe("other")
            assert await asyncio.wait_for(operation, 30) == "result of flag"
            key.mood = "good"
