"""Promise 4: a finished operation is out of the timer at once, and the purgatory keeps no reference to it.

Reference counts alone free it: the garbage collector is off. A failed one lives as long as its exception, whose
traceback leads to it, as with asyncio's futures.
"""

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, VirtualClock
from tests.support.operations import ENDS, End, FaultLog, Flag, Late, turn

pytestmark = pytest.mark.usefixtures("by_reference_count_alone")

KEYS = ["a", "b", "c"]


class Payload(bytearray):
    """The data that an operation carries."""


class Carrier(Flag):
    def __init__(self, timeout: float | None = 10.0, *, ready: bool = False) -> None:
        super().__init__(timeout, ready=ready)
        self.payload = Payload(1_000_000)


class BrokenCompletion(Carrier):
    def on_complete(self) -> str:
        customer, amount = "alice", 42
        raise LookupError(f"card declined: {customer} {amount}")


class BrokenExpiration(Carrier):
    def on_expiration(self) -> None:
        raise LookupError(self.name)


class BrokenTry(Carrier):
    def try_complete(self) -> bool:
        if self.ready:
            raise LookupError
        return False


def _nested(purgatory: DelayedOperationPurgatory, clock: VirtualClock, operation: DelayedOperation[Any]) -> None:
    # The chain is deeper than the nesting limit of completions.
    held = [operation]
    for _ in range(40):
        held.append(purgatory.try_complete_else_watch(Flag(then=lambda: held.pop().force_complete()), ["a"]))
    del operation
    held.pop().force_complete()


def _reschedule(purgatory: DelayedOperationPurgatory, clock: VirtualClock, operation: DelayedOperation[Any]) -> None:
    operation.reschedule(1e6)
    clock.advance(20.0)
    operation.reschedule(1.0)
    clock.advance(1.0)


PATHS: dict[str, End] = {
    **{end: path for end, path in ENDS.items() if end != "aclose"},
    "rescheduled deadline": _reschedule,
    "nested": _nested,
}


def hand_over(purgatory: DelayedOperationPurgatory, operation: Carrier) -> "tuple[list[Flag], weakref.ref[Payload]]":
    """A list with the operation, and a reference that tells whether anything keeps it when it is no longer there."""
    return [purgatory.try_complete_else_watch(operation, KEYS)], weakref.ref(operation.payload)


@pytest.mark.parametrize("path", PATHS)
def test_the_operation_is_collected_though_its_dead_entries_remain(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, path: str
) -> None:
    held, payload = hand_over(purgatory, Carrier())
    held[0].ready = path.startswith("check")
    PATHS[path](purgatory, clock, held.pop())
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
    # A check with a limit compacts a list whose front half is dead.
    assert purgatory.watched >= 2 or path == "close"
    assert payload() is None


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        *((BrokenCompletion, path) for path in PATHS if not path.startswith("cancel")),
        *((BrokenTry, path) for path in ("check", "check with a limit", "check soon")),
    ],
)
def test_a_failed_operation_is_collected_with_its_exception(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, kind: type[Carrier], path: str
) -> None:
    held, payload = hand_over(purgatory, kind())
    held[0].ready = path.startswith("check")
    PATHS[path](purgatory, clock, held.pop())
    assert purgatory.statistics().failed == 1
    gc.collect()
    assert [type(exception) for exception in clock.exceptions] == [LookupError], "never retrieved"
    clock.faults.clear()
    gc.collect()
    assert payload() is None


@pytest.mark.parametrize("kind", [Carrier, BrokenCompletion, BrokenTry])
def test_an_operation_that_completes_or_fails_at_once_is_collected(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, kind: type[Carrier]
) -> None:
    held, payload = hand_over(purgatory, kind(ready=True))
    assert held.pop().done()
    if kind is not Carrier:
        gc.collect()
        assert len(clock.faults) == 1
        clock.faults.clear()
        gc.collect()
    assert payload() is None


def test_an_operation_whose_on_expiration_raises_is_collected_with_the_report(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    held, payload = hand_over(purgatory, BrokenExpiration())
    held.clear()
    clock.advance(10.0)
    assert [type(exception) for exception in clock.exceptions] == [LookupError]
    clock.faults.clear()
    assert payload() is None


@pytest.mark.parametrize("kind", [Late, BrokenCompletion])
@pytest.mark.parametrize("way", ["check", "check soon", "deadline", "complete all", "close"])
def test_the_exception_of_an_operation_keeps_no_other_one(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, kind: type[Flag], way: str
) -> None:
    failing, unrelated = (purgatory.try_complete_else_watch(make(10.0), ["a"]) for make in (kind, Flag))
    failing.ready = unrelated.ready = way.startswith("check") or kind is Late
    gone = weakref.ref(unrelated)
    PATHS[way](purgatory, clock, failing)
    assert unrelated.done()
    assert failing.done()
    assert [type(exception) for exception in clock.exceptions] == [LookupError] * (
        kind is Late and way not in ("complete all", "close")
    )
    del unrelated
    assert gone() is None, "kept by the traceback of another's exception"


def test_an_operation_cancelled_while_its_bucket_is_drained_is_collected(
    purgatory: DelayedOperationPurgatory, clock: VirtualClock
) -> None:
    for _ in range(1500):
        purgatory.try_complete_else_watch(Flag(10.0), ["a"])
    held, payload = hand_over(purgatory, Carrier())
    collected: list[bool] = []

    def between_slices() -> None:
        held.pop().cancel()
        collected.append(payload() is None)

    clock.call_at(10.0, between_slices)
    clock.advance(10.0)
    assert collected == [True]


async def test_the_traceback_of_a_failed_operation_keeps_the_variables_of_its_frames() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(BrokenCompletion(None), ["a"])
        asyncio.get_running_loop().call_soon(operation.force_complete)
        with pytest.raises(LookupError, match="card declined: alice 42") as raised:
            await operation
        variables = raised.traceback[-1].locals
        assert (variables["customer"], variables["amount"]) == ("alice", 42)


Live = Callable[[DelayedOperationPurgatory, Flag], Awaitable[object]]


async def _wait_for_its_deadline(purgatory: DelayedOperationPurgatory, operation: Flag) -> None:
    operation.reschedule(0.001)
    await operation


async def _be_cancelled(purgatory: DelayedOperationPurgatory, operation: Flag) -> None:
    task: asyncio.Future[str] = asyncio.ensure_future(operation)
    await turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _be_checked_from_another_thread(purgatory: DelayedOperationPurgatory, operation: Flag) -> None:
    operation.ready = True
    thread = threading.Thread(target=purgatory.check_and_complete_threadsafe, args=("a",))
    thread.start()
    await operation
    thread.join()
    assert purgatory.statistics().missed == 0, "it did not wait for its deadline"


@pytest.mark.parametrize("path", [_wait_for_its_deadline, _be_cancelled, _be_checked_from_another_thread])
async def test_an_operation_on_a_loop_is_collected(path: Live) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        held, payload = hand_over(purgatory, Carrier())
        await path(purgatory, held.pop())
        assert purgatory.num_delayed == 0
        await turn()
        assert payload() is None


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
