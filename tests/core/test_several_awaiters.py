"""A cancelled awaiter leaves alone; the last of several to leave cancels the operation."""

import asyncio
from collections.abc import Callable

import pytest

from purgatory import DelayedOperationPurgatory, OperationCancelled
from tests.support.operations import Flag


async def wait(operation: Flag) -> str:
    return await operation


async def by_timeout(operation: Flag) -> str:
    async with asyncio.timeout(0.005):
        return await operation


async def by_cancellation(operation: Flag) -> str:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)  # once it awaits
    return await operation


LEAVERS: dict[str, Callable[[Flag], "asyncio.Task[str]"]] = {
    "cancelled": lambda operation: asyncio.ensure_future(by_cancellation(operation)),
    "timeout": lambda operation: asyncio.ensure_future(by_timeout(operation)),
    "wait_for": lambda operation: asyncio.ensure_future(asyncio.wait_for(operation, 0.005)),
}


@pytest.mark.parametrize("leave", LEAVERS)
@pytest.mark.parametrize("position", [0, 1, 2])
async def test_cancelled_awaiter_leaves_the_operation_to_the_others(leave: str, position: int) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        staying = []
        leaving = None
        for n in range(3):
            if n == position:
                leaving = LEAVERS[leave](operation)
            else:
                staying.append(asyncio.ensure_future(wait(operation)))
            await asyncio.sleep(0)
        assert leaving is not None
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            await leaving
        await asyncio.sleep(0)
        assert not operation.done()
        assert not any(task.done() for task in staying)
        assert purgatory.num_delayed == 1
        operation.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert await asyncio.gather(*staying) == ["result of flag"] * 2


@pytest.mark.parametrize("leave", LEAVERS)
@pytest.mark.parametrize("awaiters", [1, 2, 5])
async def test_the_last_awaiter_to_leave_cancels_the_operation(leave: str, awaiters: int) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        tasks = [LEAVERS[leave](operation) for _ in range(awaiters)]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, TimeoutError}
        assert operation.cancelled()
        assert operation.calls == []
        assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)


async def test_awaiters_that_all_leave_in_one_iteration_cancel_the_operation() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        tasks = [asyncio.ensure_future(wait(operation)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 3
        assert operation.cancelled()


async def test_an_awaiter_after_the_last_one_finds_the_operation_cancelled() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        task = asyncio.ensure_future(wait(operation))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(OperationCancelled):
            await operation


async def test_awaiters_that_come_and_go_leave_the_operation_pending() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        staying = asyncio.ensure_future(wait(operation))
        await asyncio.sleep(0)
        for _ in range(50):
            passing = asyncio.ensure_future(wait(operation))
            await asyncio.sleep(0)
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)
        assert not operation.done()
        assert operation.force_complete()
        assert await staying == "result of flag"


async def test_a_first_awaiter_that_leaves_keeps_no_result_from_the_second() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        first = asyncio.ensure_future(wait(operation))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(wait(operation))
        await asyncio.sleep(0)
        # In one iteration the operation completes, and the first leaves.
        first.cancel()
        operation.force_complete()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, str]


async def test_a_cancelled_operation_raises_in_every_awaiter() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        tasks = [asyncio.ensure_future(wait(operation)) for _ in range(3)]
        await asyncio.sleep(0)
        assert operation.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OperationCancelled] * 3
        assert not any(task.cancelled() for task in tasks)
