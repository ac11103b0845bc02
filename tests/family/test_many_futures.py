"""`DelayedFutures` is linear in the futures it waits for, also when thousands wait for the same one."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextvars import Context
from itertools import pairwise
from typing import Any

import pytest

from purgatory import DelayedFutures, DelayedOperationPurgatory
from tests.support.injection import each_step

MANY = 3000


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
    purgatory: DelayedOperationPurgatory, futures: "list[CountingFuture]", count: int = MANY, timeout: float = 60.0
) -> list[DelayedFutures[None]]:
    return [
        purgatory.try_complete_else_watch(DelayedFutures(futures, timeout), [f"request {n % 100}"])
        for n in range(count)
    ]


@pytest.mark.parametrize("end", ["deadline", "cancel", "force_complete", "close"])
async def test_thousands_of_operations_that_end_before_their_future_cost_a_few_steps_each(end: str) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        leader = CountingFuture()
        operations = watch(purgatory, [leader])
        match end:
            case "deadline":
                for operation in operations:
                    operation.reschedule(0.001)
            case "cancel":
                purgatory.cancel_all()
            case "force_complete":
                for operation in operations:
                    operation.force_complete()
            case _:
                await purgatory.aclose()
        await until_none_waits(purgatory)
        assert leader.compared <= 20 * MANY, f"{leader.compared / MANY:.0f} steps for each of {MANY}"
        assert not leader.done()
        leader.cancel()


@pytest.mark.parametrize("count", [MANY])
async def test_thousands_of_operations_on_one_future_complete_in_slices(count: int) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        leader = CountingFuture()
        operations = watch(purgatory, [leader], count)
        leader.set_result(None)
        pending = await until_none_waits(purgatory)
        steps = [before - after for before, after in pairwise(pending)]
        assert max(steps) <= 1000
        assert all(operation.result() == ({leader}, set()) for operation in operations)


async def test_operations_one_after_the_other_leave_nothing_at_a_long_lived_future() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        leader = CountingFuture()
        references = []
        for _ in range(MANY):
            (operation,) = watch(purgatory, [leader], 1)
            operation.force_complete()
            references.append(weakref.ref(operation))
            del operation
        await asyncio.sleep(0)
        gc.collect()
        assert leader.callbacks <= 10
        assert [reference() for reference in references] == [None] * MANY
        leader.cancel()


async def test_operations_that_end_among_others_leave_nothing_at_their_future() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        leader = CountingFuture()
        operations = watch(purgatory, [leader], 100)
        references = [weakref.ref(operation) for operation in operations[1:]]
        for operation in operations[1:]:
            operation.cancel()
        del operation, operations[1:]
        await asyncio.sleep(0)
        gc.collect()
        assert [reference() for reference in references] == [None] * 99
        leader.set_result(None)
        await asyncio.gather(*operations)
        assert operations[0].result() == ({leader}, set())


@pytest.mark.parametrize("end", ["cancel", "force_complete"])
async def test_operation_that_ends_at_any_step_of_another_registration_leaves_its_callback(
    purgatory: DelayedOperationPurgatory, end: str
) -> None:
    for injector in each_step():
        future = CountingFuture()
        (first,) = watch(purgatory, [future], 1)
        injector.inject = getattr(first, end)
        with injector:
            (second,) = watch(purgatory, [future], 1)
        assert not second.done()
        future.set_result(None)
        assert await second == ({future}, set())
        first.cancel()


async def test_an_operation_on_thousands_of_futures_costs_a_few_steps_for_each() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        futures = [CountingFuture() for _ in range(MANY)]
        operation = purgatory.try_complete_else_watch(DelayedFutures(futures, 60.0), ["request"])
        for future in futures:
            future.set_result(None)
        done, late = await operation
        assert (len(done), len(late)) == (MANY, 0)
        assert sum(future.compared for future in futures) <= 2 * MANY


async def test_operations_on_overlapping_futures_complete_each_by_its_own() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        futures = [CountingFuture() for _ in range(50)]
        operations = [
            purgatory.try_complete_else_watch(DelayedFutures(futures[: n + 1], None), ["request"]) for n in range(50)
        ]
        for n, future in enumerate(futures):
            assert purgatory.num_delayed == 50 - n
            future.set_result(None)
            done, late = await operations[n]
            assert (done, late) == (set(futures[: n + 1]), set())


def test_futures_that_never_finish_keep_nothing_after_their_loop() -> None:
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
