"""Promise 4: a finished operation is out of the timer at once, and the purgatory keeps no reference to it.

Reference counts alone free it: the garbage collector is off.
"""

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterator
from traceback import walk_tb
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, OperationCancelled, VirtualClock
from tests.support.operations import FaultLog, Flag, turn

KEYS = ["a", "b", "c"]


class Payload(bytearray):
    """The data that an operation carries."""


class Carrier(Flag):
    def __init__(self, timeout: float | None = 10.0, *, ready: bool = False) -> None:
        super().__init__(timeout, ready=ready)
        self.payload = Payload(1_000_000)


def fail(operation: Flag) -> None:
    """Raise because of other errors, each from a frame that holds the operation."""

    def look_up(operation: Flag) -> None:
        raise KeyError

    errors = []
    try:
        look_up(operation)
    except KeyError as error:
        errors.append(error)
    try:
        look_up(operation)
    except KeyError:
        raise LookupError from ExceptionGroup("several", errors)


class BrokenCompletion(Carrier):
    def on_complete(self) -> str:
        fail(self)
        return super().on_complete()


class BrokenExpiration(Carrier):
    def on_expiration(self) -> None:
        variable = self.name
        raise LookupError(variable)


class BrokenTry(Carrier):
    def try_complete(self) -> bool:
        if self.ready:
            fail(self)
        return False


@pytest.fixture(autouse=True)
def _by_reference_count_alone() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


Path = Callable[[DelayedOperationPurgatory, FaultLog, list[Flag]], object]
"""A way to finish the operation in the list. Its frames hold no operation, for the frames of the exception, by which
an operation has failed, lead to those of its callers."""


def _check(purgatory: DelayedOperationPurgatory, clock: FaultLog, held: list[Flag]) -> None:
    held.pop().ready = True
    purgatory.check_and_complete("a")


def _check_with_a_limit(purgatory: DelayedOperationPurgatory, clock: FaultLog, held: list[Flag]) -> None:
    held.pop().ready = True
    purgatory.check_and_complete("a", limit=1)


def _check_soon(purgatory: DelayedOperationPurgatory, clock: FaultLog, held: list[Flag]) -> None:
    held.pop().ready = True
    purgatory.check_and_complete_soon("a")
    clock.advance(0)


def _nested(purgatory: DelayedOperationPurgatory, clock: FaultLog, held: list[Flag]) -> None:
    # The chain is deeper than the nesting limit of completions.
    for _ in range(40):
        held.append(purgatory.try_complete_else_watch(Flag(then=lambda: held.pop().force_complete()), ["a"]))
    held.pop().force_complete()


def _reschedule(purgatory: DelayedOperationPurgatory, clock: FaultLog, held: list[Flag]) -> None:
    held[0].reschedule(1e6)
    clock.advance(20.0)
    held.pop().reschedule(1.0)
    clock.advance(1.0)


PATHS: dict[str, Path] = {
    "check": _check,
    "check with a limit": _check_with_a_limit,
    "check soon": _check_soon,
    "deadline": lambda purgatory, clock, held: clock.advance(10.0),
    "rescheduled deadline": _reschedule,
    "force": lambda purgatory, clock, held: held.pop().force_complete(),
    "nested": _nested,
    "complete all": lambda purgatory, clock, held: purgatory.complete_all(),
    "close": lambda purgatory, clock, held: purgatory.close(),
}
CANCELLING: dict[str, Path] = {
    "cancel": lambda purgatory, clock, held: held.pop().cancel(),
    "cancel for key": lambda purgatory, clock, held: purgatory.cancel_for_key("b"),
    "cancel all": lambda purgatory, clock, held: purgatory.cancel_all(),
}
FAILING: list[tuple[type[Carrier], str]] = [
    *((BrokenCompletion, path) for path in PATHS),
    (BrokenTry, "check"),
    (BrokenTry, "check with a limit"),
    (BrokenTry, "check soon"),
]


@pytest.mark.parametrize("path", [*PATHS, *CANCELLING])
def test_the_operation_is_collected_though_its_dead_entries_remain(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, path: str
) -> None:
    operation = purgatory.try_complete_else_watch(Carrier(), KEYS)
    payload = weakref.ref(operation.payload)
    (PATHS | CANCELLING)[path](purgatory, clock, [operation])
    assert operation.done()
    assert len(purgatory.timer) == 0
    # A check with a limit compacts a list whose front half is dead.
    assert purgatory.watched >= 2 or path == "close"
    del operation
    assert payload() is None


@pytest.mark.parametrize(("kind", "path"), FAILING)
def test_a_failed_operation_is_collected_on_the_next_iteration(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, kind: type[Carrier], path: str
) -> None:
    held: list[Flag] = []

    def watch() -> "weakref.ref[Payload]":
        operation = purgatory.try_complete_else_watch(kind(), KEYS)
        held.append(operation)
        return weakref.ref(operation.payload)

    payload = watch()
    PATHS[path](purgatory, clock, held)
    held.clear()
    assert purgatory.statistics().failed == 1
    clock.advance(0)
    assert payload() is None
    assert [type(exception) for exception in clock.exceptions] == [LookupError]


def test_an_operation_whose_on_expiration_raises_is_collected_with_the_report(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    def watch() -> "weakref.ref[Payload]":
        return weakref.ref(purgatory.try_complete_else_watch(BrokenExpiration(), KEYS).payload)

    payload = watch()
    clock.advance(10.0)
    assert [type(exception) for exception in clock.exceptions] == [LookupError]
    clock.faults.clear()
    assert payload() is None


@pytest.mark.parametrize("kind", [Carrier, BrokenCompletion, BrokenTry])
def test_an_operation_that_completes_or_fails_at_once_is_collected(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, kind: type[Carrier]
) -> None:
    def use() -> "weakref.ref[Payload]":
        held = [purgatory.try_complete_else_watch(kind(ready=True), KEYS)]
        assert held[0].done()
        return weakref.ref(held.pop().payload)

    payload = use()
    clock.advance(0)
    assert payload() is None
    assert len(clock.faults) == (kind is not Carrier)


@pytest.mark.parametrize("keys", [[], ["a", []], "a"])
def test_a_refused_operation_is_collected(purgatory: DelayedOperationPurgatory, keys: list[str]) -> None:
    operation = Carrier()
    payload = weakref.ref(operation.payload)
    with pytest.raises((ValueError, TypeError)):
        purgatory.try_complete_else_watch(operation, keys)
    del operation
    assert payload() is None


def test_a_pending_operation_is_kept(purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
    payload = weakref.ref(purgatory.try_complete_else_watch(Carrier(), ["a"]).payload)
    assert payload() is not None
    clock.advance(10.0)
    assert payload() is None


def test_an_operation_cancelled_while_its_bucket_is_drained_is_collected(
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


def test_an_error_kept_by_a_coroutine_that_goes_on_does_not_close_it(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    # A replica fails; its coroutine keeps the error for the operation to raise, and waits again. The
    # error's traceback has the frame of that coroutine, which must be left alone.
    errors: list[Exception] = []

    class Quorum(Flag):
        def on_complete(self) -> str:
            raise errors[0]

    class Pause:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def replica() -> str:
        try:
            raise LookupError
        except LookupError as error:
            errors.append(error)
        await Pause()
        return "went on"

    coroutine = replica()
    coroutine.send(None)
    purgatory.try_complete_else_watch(Quorum(1.0), ["a"])
    clock.advance(2.0)
    assert clock.exceptions == errors
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    assert end.value.value == "went on"


class Debugging(VirtualClock):
    """Its exception handler looks at the frames of an exception."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[str] = []
        self.variables: dict[str, Any] = {}

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        frames = [frame for frame, _ in walk_tb(context["exception"].__traceback__)]
        self.functions = [frame.f_code.co_name for frame in frames]
        self.variables = {name: value for name, value in frames[-1].f_locals.items() if name == "variable"}


def test_the_exception_handler_still_sees_the_variables_of_on_expiration() -> None:
    clock = Debugging()
    purgatory = DelayedOperationPurgatory(clock=clock)
    purgatory.try_complete_else_watch(BrokenExpiration(1.0), ["a"])
    clock.advance(1.0)
    assert clock.functions[-1] == "on_expiration"
    assert clock.variables == {"variable": "flag"}


def test_the_exception_handler_still_sees_the_functions_of_a_failed_operation() -> None:
    clock = Debugging()
    purgatory = DelayedOperationPurgatory(clock=clock)
    purgatory.try_complete_else_watch(BrokenCompletion(1.0), ["a"])
    clock.advance(1.0)
    assert clock.functions[-2:] == ["on_complete", "fail"]


Live = Callable[[DelayedOperationPurgatory, Carrier], Awaitable[object]]


async def _wait_for_its_deadline(purgatory: DelayedOperationPurgatory, operation: Carrier) -> None:
    operation.reschedule(0.001)
    await operation


async def _be_cancelled(purgatory: DelayedOperationPurgatory, operation: Carrier) -> None:
    task: asyncio.Future[str] = asyncio.ensure_future(operation)
    await turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _be_cancelled_for_its_key(purgatory: DelayedOperationPurgatory, operation: Carrier) -> None:
    task: asyncio.Future[str] = asyncio.ensure_future(operation)
    await turn()
    purgatory.cancel_for_key("a").clear()
    await asyncio.wait([task])
    assert isinstance(task.exception(), OperationCancelled)


async def _be_checked_from_another_thread(purgatory: DelayedOperationPurgatory, operation: Carrier) -> None:
    operation.ready = True
    thread = threading.Thread(target=purgatory.check_and_complete_threadsafe, args=("a",))
    thread.start()
    await operation
    thread.join()


async def _be_closed(purgatory: DelayedOperationPurgatory, operation: Carrier) -> None:
    await purgatory.aclose()


@pytest.mark.parametrize(
    "path",
    [
        _wait_for_its_deadline,
        _be_cancelled,
        _be_cancelled_for_its_key,
        _be_checked_from_another_thread,
        _be_closed,
    ],
)
async def test_an_operation_on_a_loop_is_collected(path: Live) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Carrier(), KEYS)
        payload = weakref.ref(operation.payload)
        await path(purgatory, operation)
        assert operation.done()
        del operation
        await turn()
        assert payload() is None


@pytest.mark.parametrize("kind", [BrokenCompletion, BrokenTry, Carrier])
async def test_the_traceback_of_an_awaiter_holds_no_operation(kind: type[Carrier]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with DelayedOperationPurgatory() as purgatory:

        async def wait(operation: list[DelayedOperation[str]]) -> None:
            await operation.pop()

        operation = purgatory.try_complete_else_watch(kind(None if kind in (BrokenTry, Carrier) else 0.001), ["a"])
        payload = weakref.ref(operation.payload)
        task = asyncio.create_task(wait([operation]))
        await turn()
        if kind is Carrier:
            purgatory.cancel_all()
        operation.ready = kind is BrokenTry
        purgatory.check_and_complete("a")
        del operation
        await asyncio.wait([task])
        error = task.exception()
        del task
        # uvloop may take a millisecond to call back at once.
        await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.005)
        assert payload() is None
        assert type(error).__name__ == ("OperationCancelled" if kind is Carrier else "LookupError")


@pytest.mark.parametrize("path", [*PATHS, *CANCELLING])
def test_no_reference_cycles_are_made(purgatory: DelayedOperationPurgatory, clock: FaultLog, path: str) -> None:
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        held: list[Flag] = [purgatory.try_complete_else_watch(Carrier(), ["a", "b"])]
        (PATHS | CANCELLING)[path](purgatory, clock, held)
        held.clear()
        gc.collect()
        assert [thing for thing in gc.garbage if type(thing).__module__.startswith(("purgatory", "tests"))] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def test_a_hundred_awaited_operations_leave_nothing_to_the_collector() -> None:
    async with DelayedOperationPurgatory() as purgatory:

        async def wait(timeout: float) -> None:
            await purgatory.try_complete_else_watch(Flag(timeout), ["a", "b"])

        await asyncio.gather(*(wait(0.001) for _ in range(10)))
        await turn()
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await asyncio.gather(*(wait(0.001) for _ in range(100)))
            await turn()
            gc.collect()
            kinds = [type(thing).__module__ for thing in gc.garbage]
            assert [kind for kind in kinds if kind.startswith(("purgatory", "tests"))] == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
