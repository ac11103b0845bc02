"""Promise 9: an exception of an operation reaches its awaiter, or the exception handler. All others go on."""

import asyncio
import gc
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, PurgatoryError, VirtualClock
from tests.support.operations import FaultLog, Flag, Late, turn


class Faulty(Flag):
    """Raises in the methods named."""

    def __init__(
        self, *methods: str, error: BaseException | None = None, timeout: float | None = None, tries: int = 0
    ) -> None:
        super().__init__(timeout)
        self.methods = methods
        self.error = error or LookupError("fault")
        self.tries = tries

    def try_complete(self) -> bool:
        self.tries -= 1
        if "try_complete" in self.methods and self.tries < 0:
            raise self.error
        return super().try_complete()

    def on_complete(self) -> str:
        if "on_complete" in self.methods:
            raise self.error
        return super().on_complete()

    def on_expiration(self) -> None:
        super().on_expiration()
        if "on_expiration" in self.methods:
            raise self.error


def others(purgatory: DelayedOperationPurgatory) -> list[Flag]:
    return [purgatory.try_complete_else_watch(Flag(1.0, ready=False), ["key"]) for _ in range(3)]


@pytest.mark.parametrize(
    ("methods", "tries"),
    [(("try_complete",), 0), (("try_complete",), 1), (("try_complete",), 2), (("on_complete",), 0)],
)
@pytest.mark.parametrize("error", [LookupError, BaseException, GeneratorExit, RecursionError])
def test_a_fault_in_a_check_fails_its_operation_alone(
    purgatory: DelayedOperationPurgatory,
    clock: FaultLog,
    methods: tuple[str, ...],
    tries: int,
    error: type[BaseException],
) -> None:
    before = others(purgatory)
    faulty = purgatory.try_complete_else_watch(Faulty(*methods, error=error(), tries=tries, timeout=1.0), ["key"])
    after = others(purgatory)
    for operation in (*before, faulty, *after):
        operation.ready = True
    completed = purgatory.check_and_complete("key")
    assert completed == 6 + (methods == ("on_complete",)), "an operation that fails in try_complete does not complete"
    assert all(operation.result() for operation in before + after)
    assert faulty.exception() is faulty.error
    clock.advance(2.0)
    assert clock.exceptions == []
    assert purgatory.statistics().failed == 1
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)


@pytest.mark.parametrize(("method", "tries"), [("on_complete", 0), ("try_complete", 2)])
def test_a_fault_at_the_deadline_fails_its_operation_alone(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, method: str, tries: int
) -> None:
    before = others(purgatory)
    faulty = purgatory.try_complete_else_watch(Faulty(method, tries=tries, timeout=1.0), ["key"])
    after = others(purgatory)
    clock.advance(1.0)
    assert all(operation.expired() for operation in before + after)
    assert faulty.exception() is faulty.error
    expires = ["flag expires"] if method == "on_complete" else []
    assert faulty.calls == expires, "on_expiration runs although on_complete failed"
    assert purgatory.statistics().failed == 1
    assert clock.faults == []


def test_an_exception_of_on_expiration_is_reported_and_the_result_stays(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    before = others(purgatory)
    faulty = purgatory.try_complete_else_watch(Faulty("on_expiration", timeout=1.0), ["key"])
    after = others(purgatory)
    clock.advance(1.0)
    assert all(operation.expired() for operation in (*before, faulty, *after))
    assert faulty.result() == "result of flag"
    assert clock.exceptions == [faulty.error]
    assert clock.faults[0]["message"] == "Faulty raised after it was done"
    assert clock.faults[0]["operation"] is faulty
    assert (purgatory.statistics().failed, purgatory.statistics().expired) == (0, 7)


def test_first_of_two_faults_is_the_outcome_and_the_second_is_reported(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    first, second = LookupError("first"), LookupError("second")

    class Twice(Flag):
        def on_complete(self) -> str:
            raise first

        def on_expiration(self) -> None:
            raise second

    operation = purgatory.try_complete_else_watch(Twice(1.0), ["key"])
    clock.advance(1.0)
    assert operation.exception() is first
    assert clock.exceptions == [second]


async def test_awaiter_gets_the_exception_of_a_failed_operation() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        with pytest.raises(LookupError, match="fault"):
            await purgatory.try_complete_else_watch(Faulty("on_complete", timeout=0.001), ["key"])
        with pytest.raises(LookupError, match="fault"):
            await purgatory.try_complete_else_watch(Faulty("try_complete"), ["key"])


async def test_an_exception_never_retrieved_goes_to_the_loops_exception_handler_once() -> None:
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Faulty("on_complete"), ["key"])
        assert operation.force_complete()
        for _ in range(3):
            await turn()
        assert contexts == [], "it may be retrieved yet"
        del operation
        gc.collect()
        assert [repr(context["exception"]) for context in contexts] == ["LookupError('fault')"]
        assert contexts[0]["message"] == "Faulty failed, and its exception was never retrieved"
        assert contexts[0].keys() == {"message", "exception"}


async def test_a_retrieved_exception_does_not_go_to_the_handler() -> None:
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    async with DelayedOperationPurgatory() as purgatory:
        awaited = purgatory.try_complete_else_watch(Faulty("on_complete"), ["key"])
        task = asyncio.ensure_future(awaited)
        await turn()
        awaited.force_complete()
        asked = purgatory.try_complete_else_watch(Faulty("try_complete"), ["key"])
        assert asked.exception() is asked.error
        for _ in range(3):
            await turn()
        assert task.exception() is awaited.error
        del awaited, asked, task
        gc.collect()
        assert contexts == []


def test_a_fault_after_completion_is_reported(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    operation = purgatory.try_complete_else_watch(Late(), ["key"])
    operation.ready = True
    purgatory.check_and_complete("key")
    assert operation.result() == "result of flag"
    assert [type(exception) for exception in clock.exceptions] == [LookupError]


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
    assert isinstance(operation.exception(), PurgatoryError)
    assert "returned True, but did not force_complete()" in str(operation.exception())
    assert purgatory.num_delayed == 0


@pytest.mark.parametrize("method", ["try_complete", "on_complete"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_request_to_exit_is_raised_after_the_others_and_the_operation_fails(
    purgatory: DelayedOperationPurgatory, clock: VirtualClock, method: str, error: type[BaseException]
) -> None:
    faulty = purgatory.try_complete_else_watch(Faulty(method, error=error(), tries=2), ["key"])
    rest = others(purgatory)
    for operation in (faulty, *rest):
        operation.ready = True
    with pytest.raises(error):
        purgatory.check_and_complete("key")
    assert faulty.exception() is faulty.error
    assert all(operation.result() for operation in rest)
    assert purgatory.num_delayed == 0


def test_a_request_to_exit_of_a_finished_operation_is_raised_too(
    purgatory: DelayedOperationPurgatory,
) -> None:
    class Leaving(Flag):
        def try_complete(self) -> bool:
            if self.ready:
                self.force_complete()
                raise SystemExit
            return False

    operation = purgatory.try_complete_else_watch(Leaving(), ["key"])
    operation.ready = True
    with pytest.raises(SystemExit):
        purgatory.check_and_complete("key")
    assert operation.result() == "result of flag"


class Moody:
    """A key whose lookup fails while `mood` is false."""

    mood = True

    def __hash__(self) -> int:
        if not self.mood:
            raise LookupError("bad mood")
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


def test_a_key_that_fails_when_it_is_watched_leaves_nothing_behind(purgatory: DelayedOperationPurgatory) -> None:
    bad = Moody()
    operation = Flag()

    class Souring(Flag):
        """Makes the lookup of `bad` fail after the keys were hashed and before they are watched."""

        def try_complete(self) -> bool:
            bad.mood = self.ready
            return super().try_complete()

    operation = Souring()
    with pytest.raises(LookupError):
        purgatory.try_complete_else_watch(operation, ["key", bad])
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
    operation.ready = True
    assert purgatory.check_and_complete("key") == 0
    assert purgatory.try_complete_else_watch(operation, ["key"]).done()


def test_a_key_that_fails_in_a_purge_is_reported_and_the_other_keys_are_purged(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=5, clock=clock)
    keys = [Moody(), Moody()]
    operations = [purgatory.try_complete_else_watch(Flag(), [*keys, "key"]) for _ in range(6)]
    for key in keys:
        key.mood = False
    for operation in operations:
        operation.force_complete()
    clock.advance(0)
    assert [type(exception) for exception in clock.exceptions] == [LookupError, LookupError]
    assert purgatory.watched == 0
    for key in keys:
        key.mood = True
    assert set(purgatory.watched_keys()) == set(keys), "they could not be removed"
    for _ in range(6):
        purgatory.try_complete_else_watch(Flag(), ["key"]).force_complete()
    clock.advance(0)
    assert purgatory.watched_keys() == []


def test_a_clock_that_refuses_to_call_back_refuses_the_operation() -> None:
    class Closed(FaultLog):
        def call_at(self, *_: object) -> Any:
            raise RuntimeError("closed")

    purgatory = DelayedOperationPurgatory(clock=Closed())
    operation = Flag(1.0)
    with pytest.raises(RuntimeError, match="closed"):
        purgatory.try_complete_else_watch(operation, ["key"])
    assert operation.cancelled()
    assert purgatory.num_delayed == 0
