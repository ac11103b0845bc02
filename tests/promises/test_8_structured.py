"""Promise 8: cancelling the last awaiting task cancels the operation; `CancelledError` is only ever the task's own."""

import asyncio
from collections.abc import Callable

import anyio
import pytest

from purgatory import DelayedOperationPurgatory, OperationCancelled
from tests.support.operations import Flag, turn


async def wait(purgatory: DelayedOperationPurgatory, operation: Flag) -> str:
    return await purgatory.try_complete_else_watch(operation, ["key"])


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
@pytest.mark.parametrize("position", [0, 2])
async def test_a_task_that_leaves_leaves_the_operation_to_the_others(leave: str, position: int) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        tasks: list[asyncio.Future[str]] = []
        for n in range(3):
            tasks.append(LEAVERS[leave](operation) if n == position else asyncio.ensure_future(operation))
            await asyncio.sleep(0)
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            await tasks.pop(position)
        await turn()
        assert not operation.done()
        assert not any(task.done() for task in tasks)
        operation.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert await asyncio.gather(*tasks) == ["result of flag"] * 2


@pytest.mark.parametrize("leave", LEAVERS)
@pytest.mark.parametrize("awaiters", [1, 3])
async def test_the_last_task_to_leave_cancels_the_operation_and_removes_it(leave: str, awaiters: int) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        outcomes = await asyncio.gather(*(LEAVERS[leave](operation) for _ in range(awaiters)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, TimeoutError}
        assert operation.cancelled()
        assert operation.calls == []
        assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
        with pytest.raises(OperationCancelled):
            await operation


@pytest.mark.parametrize("awaiters", [1, 3])
async def test_the_tasks_of_a_cancelled_operation_get_an_ordinary_exception(awaiters: int) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        tasks = [asyncio.ensure_future(operation) for _ in range(awaiters)]
        await turn()
        assert purgatory.cancel_for_key("key") == [operation]
        for task in tasks:
            with pytest.raises(OperationCancelled):
                await task
            assert not task.cancelled()
        assert issubclass(OperationCancelled, Exception)


@pytest.mark.parametrize("others", [0, 1])
async def test_an_operation_that_completes_in_the_iteration_of_the_cancellation_stays_completed(others: int) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        task, *staying = [asyncio.ensure_future(operation) for _ in range(1 + others)]
        await turn()
        assert operation.force_complete()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert operation.result() == "result of flag"
        assert await asyncio.gather(*staying) == ["result of flag"] * others


async def test_an_anyio_cancel_scope_cancels_its_operation() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = Flag()
        with anyio.move_on_after(0.005) as scope:
            await wait(purgatory, operation)
        assert scope.cancelled_caught
        assert operation.cancelled()
        # The scope has taken back its cancellation: the task may await further operations.
        assert await wait(purgatory, Flag(0.001)) == "result of flag"
