"""`DelayedFutures` waits until all futures are done or the deadline comes, at costs that are linear in the futures."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextvars import Context
from itertools import pairwise
from typing import Any

import pytest

from purgatory import DelayedFutures, DelayedOperationPurgatory, OperationCancelled, PurgatoryFull
from tests.support.operations import FaultLog, turn

Future = asyncio.Future[int]

MANY = 3000


def _futures(count: int) -> list[Future]:
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(count)]


class TestWhenItCompletes:
    async def test_operation_completes_when_all_futures_are_done(self, purgatory: DelayedOperationPurgatory) -> None:
        futures = _futures(4)
        futures[3].set_result(3)
        waiting = purgatory.try_complete_else_watch(DelayedFutures(futures, None), ["a"])
        for number, future in enumerate(futures[:3]):
            assert not waiting.done()
            future.set_result(number)
            await turn()
        done, late = await waiting
        assert (done, late) == (set(futures), set())
        assert not waiting.expired()
        for some in (futures, []):
            again = purgatory.try_complete_else_watch(DelayedFutures(some, None), ["a"])
            assert again.result() == (set(some), set())
        assert purgatory.statistics().completed_at_once == 2

    async def test_operation_completes_at_deadline_with_futures_done_by_then(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        early, in_time, late = _futures(3)
        waiting = purgatory.try_complete_else_watch(DelayedFutures([early, in_time, late], 2.0), ["a"])
        early.set_result(1)
        await turn()
        in_time.set_result(2)  # its callback has not run yet
        clock.advance(2.0)
        assert waiting.expired()
        assert waiting.result() == ({early, in_time}, {late})
        await turn()

    async def test_check_completes_the_operation_before_callbacks_of_futures(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        futures = _futures(2)
        waiting = purgatory.try_complete_else_watch(DelayedFutures(futures, None), ["a"])
        futures[0].set_result(1)
        assert purgatory.check_and_complete("a") == 0
        futures[1].set_result(2)
        assert purgatory.check_and_complete("a") == 1
        assert waiting.result() == (set(futures), set())
        await turn()

    async def test_a_future_that_fails_or_is_cancelled_is_done(self, purgatory: DelayedOperationPurgatory) -> None:
        failing, cancelled = futures = _futures(2)
        waiting = purgatory.try_complete_else_watch(DelayedFutures(futures, None), ["a"])
        failing.set_exception(LookupError())
        cancelled.cancel()
        assert await waiting == (set(futures), set())
        assert isinstance(failing.exception(), LookupError)

    async def test_operation_accepts_tasks_on_a_real_loop(self) -> None:
        async def answer(number: int) -> int:
            return number

        async with DelayedOperationPurgatory() as purgatory:
            never = asyncio.create_task(asyncio.Event().wait())
            tasks = [asyncio.create_task(answer(number)) for number in range(100)]
            waiting: DelayedFutures[Any] = DelayedFutures([*tasks, never, never], 0.02, cancel_late=True)
            done, late = await purgatory.try_complete_else_watch(waiting, ["a"])
            assert sorted(task.result() for task in done) == list(range(100))
            assert late == {never}
            await asyncio.wait([never])
            assert never.cancelled()


class TestCallback:
    async def test_callback_is_called_once_with_done_and_late_futures(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        called: list[tuple[set[Future], set[Future]]] = []
        futures = _futures(2)
        operations = [
            purgatory.try_complete_else_watch(
                DelayedFutures(futures, 1.0, callback=lambda done, late: called.append((done, late))), [key]
            )
            for key in "ab"
        ]
        purgatory.cancel_for_key("b")
        futures[0].set_result(1)
        clock.advance(1.0)
        futures[1].set_result(2)
        await turn()
        assert called == [({futures[0]}, {futures[1]})]
        with pytest.raises(OperationCancelled):
            operations[1].result()

    async def test_callback_may_end_another_operation_on_the_same_future(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        future = _futures(1)[0]
        other = DelayedFutures([future], None)
        first = DelayedFutures([future], None, callback=lambda done, late: other.cancel())
        for operation in (first, other):
            purgatory.try_complete_else_watch(operation, ["a"])
        future.set_result(1)
        assert await first == ({future}, set())
        assert other.cancelled()

    async def test_exception_of_the_callback_makes_the_operation_fail(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        def fail(*_: object) -> None:
            raise LookupError

        future = _futures(1)[0]
        waiting = purgatory.try_complete_else_watch(DelayedFutures([future], 1.0, callback=fail), ["a"])
        future.set_result(1)
        with pytest.raises(LookupError):
            await waiting

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_request_to_exit_of_a_callback_is_raised_after_other_operations(
        self, purgatory: DelayedOperationPurgatory, error: type[BaseException]
    ) -> None:
        operations: list[DelayedFutures[int]] = []

        def leave(*_: object) -> None:
            raise error

        async def complete() -> None:
            future = _futures(1)[0]
            for callback in (leave, None):
                operation = DelayedFutures([future], None, callback=callback)
                operations.append(purgatory.try_complete_else_watch(operation, ["a"]))
            future.set_result(1)
            await turn()

        with asyncio.Runner() as runner, pytest.raises(error):
            runner.run(complete())
        assert isinstance(operations[0].exception(), error)
        assert operations[1].done()


async def _leave(operation: DelayedFutures[int]) -> None:
    task = asyncio.ensure_future(operation)
    await turn()
    task.cancel()
    await asyncio.wait([task])


End = Callable[[DelayedOperationPurgatory, FaultLog, DelayedFutures[int]], Any]
ENDS: dict[str, End] = {
    "deadline": lambda purgatory, clock, operation: clock.advance(1.0),
    "cancel": lambda purgatory, clock, operation: operation.cancel(),
    "task leaves": lambda purgatory, clock, operation: _leave(operation),
    "force": lambda purgatory, clock, operation: operation.force_complete(),
    "close": lambda purgatory, clock, operation: purgatory.close(),
    "fail": lambda purgatory, clock, operation: operation.fail(LookupError()) and operation.exception() and None,
}


@pytest.mark.parametrize("cancel_late", [False, True])
@pytest.mark.parametrize("how", ENDS)
async def test_late_futures_are_cancelled_only_with_cancel_late_and_keep_no_operation(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, how: str, cancel_late: bool
) -> None:
    gc.disable()
    try:
        done, late = futures = _futures(2)
        waiting = purgatory.try_complete_else_watch(DelayedFutures(futures, 1.0, cancel_late=cancel_late), ["a"])
        done.set_result(1)
        ended = ENDS[how](purgatory, clock, waiting)
        if how == "task leaves":
            await ended
        assert not waiting.cancel(), "it has ended"
        assert waiting.cancelled() == (how in ("cancel", "task leaves"))
        assert late.cancelled() == cancel_late
        kept = weakref.ref(waiting)
        del waiting, ended
        await turn()
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("cancel_late", [False, True])
async def test_a_refused_operation_is_cancelled_and_leaves_nothing_at_its_futures(
    clock: FaultLog, cancel_late: bool
) -> None:
    purgatory = DelayedOperationPurgatory(max_pending=1, clock=clock)
    called: list[object] = []
    futures = _futures(2)
    purgatory.try_complete_else_watch(DelayedFutures(futures[:1], None), ["a"])
    refused = DelayedFutures(
        futures[1:], None, callback=lambda *futures: called.append(futures), cancel_late=cancel_late
    )
    with pytest.raises(PurgatoryFull):
        purgatory.try_complete_else_watch(refused, ["a"])
    assert (refused.cancelled(), futures[1].cancelled(), called) == (True, cancel_late, [])
    kept = weakref.ref(refused)
    del refused
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("how", ["deadline", "cancel", "check", "force"])
async def test_future_that_is_done_as_its_operation_ends_does_no_harm(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, how: str
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    future = _futures(1)[0]
    waiting = purgatory.try_complete_else_watch(DelayedFutures([future], 1.0), ["a"])
    future.set_result(1)  # the loop will call, even if callbacks are removed now
    if how == "check":
        assert purgatory.check_and_complete("a") == 1
    else:
        ENDS[how](purgatory, clock, waiting)
    for _ in range(3):
        await turn()
    assert faults == []
    assert waiting.cancelled() == (how == "cancel")


async def test_bad_arguments_are_refused() -> None:
    async def answer() -> int:
        return 1

    other = asyncio.new_event_loop()
    coroutine, make = answer(), DelayedFutures[Any]
    any_make: Any = make
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: any_make([coroutine], 1.0), TypeError, r"each future must be an asyncio\.Future or a task, not <cor"),
        (lambda: make([other.create_future(), *_futures(1)], 1.0), ValueError, "several event loops"),
        (lambda: make([other.create_future()], 1.0), ValueError, "another event loop than the running one"),
        (lambda: any_make(_futures(1), 1.0, print), TypeError, "positional"),
        (lambda: any_make(_futures(1)[0], 1.0), TypeError, "futures must be an iterable of futures, not <Future"),
        (lambda: any_make(_futures(1), 1.0, callback=3), TypeError, "callback must be callable, not 3"),
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


def watch(
    purgatory: DelayedOperationPurgatory, futures: "list[CountingFuture]", count: int = MANY
) -> list[DelayedFutures[None]]:
    return [
        purgatory.try_complete_else_watch(DelayedFutures(futures, 60.0), [f"request {n % 100}"]) for n in range(count)
    ]


class TestMany:
    @pytest.mark.parametrize("end", ["deadline", "cancel", "force", "close"])
    async def test_thousands_of_operations_that_end_before_their_future_cost_a_few_steps_each(self, end: str) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            leader = CountingFuture()
            operations = watch(purgatory, [leader])
            for operation in operations:
                match end:
                    case "deadline":
                        operation.reschedule(0.001)
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
            operations = watch(purgatory, [leader])
            leader.set_result(None)
            pending = await until_none_waits(purgatory)
            assert max(before - after for before, after in pairwise(pending)) <= 1000
            assert all(operation.result() == ({leader}, set()) for operation in operations)

    async def test_an_operation_on_thousands_of_futures_costs_a_few_steps_for_each(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            futures = [CountingFuture() for _ in range(MANY)]
            operation = purgatory.try_complete_else_watch(DelayedFutures(futures, 60.0), ["request"])
            for future in futures:
                future.set_result(None)
            done, late = await operation
            assert (len(done), len(late)) == (MANY, 0)
            assert sum(future.compared for future in futures) <= 2 * MANY

    def test_futures_that_never_finish_keep_nothing_after_their_loop(self) -> None:
        left: list[weakref.ref[object]] = []

        async def wait() -> None:
            loop = asyncio.get_running_loop()
            purgatory = DelayedOperationPurgatory()
            operation = DelayedFutures([loop.create_future()], 60.0)
            left.extend(weakref.ref(each) for each in (loop, purgatory, operation))
            purgatory.try_complete_else_watch(operation, ["key"])

        asyncio.run(wait())
        gc.collect()
        assert [each() for each in left] == [None] * 3
