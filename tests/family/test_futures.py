"""`DelayedFutures` waits until all futures are done or the deadline comes, at costs that are linear in the futures."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Collection
from contextlib import nullcontext
from contextvars import Context
from itertools import pairwise
from typing import Any

import pytest

from purgatory import DelayedFutures, DelayedOperationPurgatory, PurgatoryFull
from tests.support.operations import FaultLog, raising, turn

Future = asyncio.Future[Any]

MANY = 3000


def _futures(count: int) -> list[Future]:
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(count)]


def _watch(
    purgatory: DelayedOperationPurgatory, futures: Collection[Future], timeout: float | None = None, **options: Any
) -> DelayedFutures[Any]:
    return purgatory.try_complete_else_watch(DelayedFutures(futures, timeout, **options), ["a", "b"])


async def test_operation_accepts_tasks_on_a_real_loop() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        never = asyncio.create_task(asyncio.Event().wait())
        tasks = [asyncio.create_task(asyncio.sleep(0, number)) for number in range(100)]
        done, late = await _watch(purgatory, [*tasks, never, never], 0.02, cancel_late=True)
        assert sorted(task.result() for task in done) == list(range(100))
        assert late == {never}
        await asyncio.wait([never])
        assert never.cancelled()


@pytest.mark.parametrize("error", [LookupError, SystemExit, KeyboardInterrupt])
def test_exception_of_a_callback_is_its_operation_s_and_a_request_to_exit_is_raised_after_other_ones(
    purgatory: DelayedOperationPurgatory, error: type[BaseException]
) -> None:
    async def complete() -> None:
        futures = _futures(1)
        operations.extend(_watch(purgatory, futures, callback=callback) for callback in (raising(error), None))
        futures[0].set_result(1)
        await turn()

    operations: list[DelayedFutures[Any]] = []
    with asyncio.Runner() as runner, nullcontext() if error is LookupError else pytest.raises(error):
        runner.run(complete())
    assert isinstance(operations[0].exception(), error)
    assert operations[1].done()


@pytest.mark.parametrize("cancel_late", [False, True])
async def test_a_refused_operation_is_cancelled_and_leaves_nothing_at_its_futures(
    clock: FaultLog, cancel_late: bool
) -> None:
    purgatory = DelayedOperationPurgatory(max_pending=1, clock=clock)
    called: list[object] = []
    first, future = _futures(2)
    _watch(purgatory, [first])
    refused = DelayedFutures([future], None, callback=lambda *both: called.append(both), cancel_late=cancel_late)
    with pytest.raises(PurgatoryFull):
        purgatory.try_complete_else_watch(refused, ["key"])
    assert (refused.cancelled(), future.cancelled(), called) == (True, cancel_late, [])
    kept = weakref.ref(refused)
    del refused
    gc.collect()
    assert kept() is None


async def test_bad_arguments_are_refused() -> None:
    coroutine, other = asyncio.sleep(0), asyncio.new_event_loop()
    make: Any = DelayedFutures
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: make([coroutine], 1.0), TypeError, r"each future must be an asyncio\.Future, for"),
        (lambda: make([other.create_future(), *_futures(1)], 1.0), ValueError, "not to 2 different ones"),
        (lambda: make([other.create_future()], 1.0), ValueError, "not to another one"),
        (lambda: make(_futures(1)[0], 1.0), TypeError, "futures must be an iterable of futures, not <Future"),
        (lambda: make(_futures(1), 1.0, callback=3), TypeError, "callback must be callable, not 3"),
        (lambda: make(_futures(1), -1.0), ValueError, "finite and not negative"),
    ]
    for call, error, message in calls:
        with pytest.raises(error, match=message):
            call()
    coroutine.close()
    other.close()


class CountingFuture(asyncio.Future[None]):
    """Counts its callbacks, and the comparisons to remove them: each removal looks at all of them."""

    def __init__(self) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.callbacks = 0
        self.compared = 0

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self.callbacks += 1
        super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        self.compared += self.callbacks
        removed = super().remove_done_callback(fn)
        self.callbacks -= removed
        return removed


async def until_none_waits(purgatory: DelayedOperationPurgatory) -> list[int]:
    """The number of pending operations at the end of each iteration, down to none."""
    pending = [purgatory.num_delayed]
    async with asyncio.timeout(60):
        while pending[-1]:
            await asyncio.sleep(0)
            pending.append(purgatory.num_delayed)
    return pending


class TestMany:
    @pytest.mark.parametrize("end", ["deadline", "cancel", "force", "close"])
    async def test_thousands_of_operations_that_end_before_their_future_cost_a_few_steps_each(self, end: str) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            leader = CountingFuture()
            for operation in [_watch(purgatory, [leader], 0.01 if end == "deadline" else 60.0) for _ in range(MANY)]:
                match end:
                    case "cancel":
                        operation.cancel()
                    case "force":
                        operation.force_complete()
            if end == "close":
                await purgatory.aclose()
            await until_none_waits(purgatory)
            assert leader.compared <= 20 * MANY, f"{leader.compared / MANY:.0f} steps for each of {MANY}"
            assert (leader.done(), leader.callbacks) == (False, 0)

    async def test_thousands_of_operations_on_one_future_complete_in_slices(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            leader = CountingFuture()
            operations = [_watch(purgatory, [leader]) for _ in range(MANY)]
            leader.set_result(None)
            pending = await until_none_waits(purgatory)
            assert max(before - after for before, after in pairwise(pending)) <= 1000
            assert all(operation.result() == ({leader}, set()) for operation in operations)

    async def test_an_operation_on_thousands_of_futures_costs_a_few_steps_for_each(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            futures = [CountingFuture() for _ in range(MANY)]
            operation = _watch(purgatory, futures)
            for future in futures:
                future.set_result(None)
            done, late = await operation
            assert (len(done), len(late)) == (MANY, 0)
            assert sum(future.compared for future in futures) <= 2 * MANY

    def test_futures_that_never_finish_keep_nothing_after_their_loop(self) -> None:
        left: list[weakref.ref[object]] = []

        async def wait() -> None:
            purgatory = DelayedOperationPurgatory()
            operation = _watch(purgatory, _futures(1), 60.0)
            left.extend(weakref.ref(each) for each in (asyncio.get_running_loop(), purgatory, operation))

        asyncio.run(wait())
        gc.collect()
        assert [each() for each in left] == [None] * 3
