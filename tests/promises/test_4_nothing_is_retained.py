"""Promise 4: a finished operation is out of the timer at once, and nothing of the purgatory's refers to it."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, VirtualClock
from tests.operations import FaultLog, Flag, turn


class Payload:
    """What an operation carries."""


class Carrier(Flag):
    def __init__(self, timeout: float | None = 10.0) -> None:
        super().__init__(timeout)
        self.payload = Payload()


class BrokenCompletion(Carrier):
    def on_complete(self) -> str:
        raise LookupError


class BrokenExpiration(Carrier):
    def on_expiration(self) -> None:
        raise LookupError


class BrokenTry(Carrier):
    def try_complete(self) -> bool:
        if self.ready:
            raise LookupError
        return False


@pytest.fixture(autouse=True)
def _by_reference_count_alone() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _check(purgatory: DelayedOperationPurgatory, clock: FaultLog, operation: Flag) -> None:
    operation.ready = True
    purgatory.check_and_complete_soon("a")
    clock.advance(0)


PATHS: dict[str, Callable[[DelayedOperationPurgatory, FaultLog, Flag], object]] = {
    "check": _check,
    "deadline": lambda purgatory, clock, operation: clock.advance(10.0),
    "force": lambda purgatory, clock, operation: operation.force_complete(),
    "cancel": lambda purgatory, clock, operation: operation.cancel(),
}


@pytest.mark.parametrize("path", PATHS)
def test_the_operation_is_collected_though_its_dead_entries_remain(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, path: str
) -> None:
    operation = purgatory.try_complete_else_watch(Carrier(), ["a", "b", "c"])
    payload = weakref.ref(operation.payload)
    PATHS[path](purgatory, clock, operation)
    assert len(purgatory.timer) == 0
    assert purgatory.watched >= 2
    del operation
    assert payload() is None


@pytest.mark.parametrize("kind", [BrokenCompletion, BrokenExpiration, BrokenTry])
def test_one_that_fails_is_collected_although_tracebacks_hold_frames(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, kind: type[Carrier]
) -> None:
    operation = purgatory.try_complete_else_watch(kind(), ["a", "b", "c"])
    payload = weakref.ref(operation.payload)
    operation.ready = kind is BrokenTry
    del operation
    if kind is BrokenTry:
        assert purgatory.check_and_complete("a") == 0
    clock.advance(10.0)
    assert purgatory.num_delayed == 0
    assert [type(exception) for exception in clock.exceptions] == [LookupError]
    assert payload() is None


def test_one_that_completes_at_once_is_collected(purgatory: DelayedOperationPurgatory) -> None:
    operation = purgatory.try_complete_else_watch(Carrier(), ["a"])
    payload = weakref.ref(operation.payload)
    operation.force_complete()
    del operation
    assert payload() is None


def test_a_pending_one_is_held(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    payload = weakref.ref(purgatory.try_complete_else_watch(Carrier(), ["a"]).payload)
    assert payload() is not None
    clock.advance(10.0)
    assert payload() is None


def test_while_its_bucket_is_drained_in_slices_a_cancelled_one_is_collected(
    purgatory: DelayedOperationPurgatory, clock: VirtualClock
) -> None:
    for _ in range(1500):
        purgatory.try_complete_else_watch(Flag(10.0), ["a"])
    operation = purgatory.try_complete_else_watch(Carrier(), ["a"])
    payload = weakref.ref(operation.payload)
    collected: list[bool] = []

    def between_slices() -> None:
        nonlocal operation
        operation.cancel()
        operation = Carrier()
        collected.append(payload() is None)

    clock.call_at(10.0, between_slices)
    clock.advance(10.0)
    assert collected == [True]


async def test_the_traceback_of_an_awaiter_holds_nothing() -> None:
    async with DelayedOperationPurgatory() as purgatory:

        async def wait(operation: list[DelayedOperation[str]]) -> None:
            await operation.pop()

        errors: list[BaseException] = []
        for timeout in (0.001, None):
            operation = purgatory.try_complete_else_watch(BrokenExpiration(timeout), ["a"])
            payload = weakref.ref(operation.payload)
            task = asyncio.create_task(wait([operation]))
            del operation
            await turn()
            if timeout is None:
                purgatory.cancel_all()
            await asyncio.wait([task])
            error = task.exception()
            assert error is not None
            errors.append(error)
            del task, error
            await turn()
            assert payload() is None
        assert [type(error).__name__ for error in errors] == ["LookupError", "OperationCancelled"]


async def test_a_task_cancelled_while_it_waits_leaves_nothing() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Carrier(), ["a", "b"])
        payload = weakref.ref(operation.payload)
        task: asyncio.Task[str] = asyncio.ensure_future(operation)
        del operation
        await turn()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del task
        await turn()
        assert payload() is None
        assert purgatory.watched == 2


@pytest.mark.parametrize("path", PATHS)
def test_no_reference_cycles_are_made(purgatory: DelayedOperationPurgatory, clock: FaultLog, path: str) -> None:
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        operation = purgatory.try_complete_else_watch(Carrier(), ["a", "b"])
        PATHS[path](purgatory, clock, operation)
        del operation
        gc.collect()
        assert [thing for thing in gc.garbage if type(thing).__module__.startswith(("purgatory", "tests"))] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
