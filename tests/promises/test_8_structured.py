"""Promise 8: cancelling the awaiting task cancels the operation; `CancelledError` is only ever the task's own."""

import asyncio

import anyio
import pytest

from purgatory import DelayedOperationPurgatory, OperationCancelled, PurgatoryError
from tests.support.operations import Flag, turn


async def wait(purgatory: DelayedOperationPurgatory, operation: Flag) -> str:
    return await purgatory.try_complete_else_watch(operation, ["key"])


async def test_cancelling_the_awaiting_task_cancels_the_operation_and_removes_it() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = Flag(3600.0)
        task = asyncio.create_task(wait(purgatory, operation))
        await turn()
        assert purgatory.num_delayed == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert operation.cancelled()
        assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
        assert operation.calls == []


async def test_the_awaiter_of_a_cancelled_operation_gets_an_ordinary_exception() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        tasks = [asyncio.create_task(wait(purgatory, Flag())) for _ in range(3)]
        await turn()
        assert len(purgatory.cancel_for_key("key")) == 3
        for task in tasks:
            with pytest.raises(OperationCancelled):
                await task
            assert not task.cancelled()
        assert issubclass(OperationCancelled, Exception)


async def test_cancelled_task_leaves_the_operation_to_other_awaiters() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        tasks = [asyncio.ensure_future(operation) for _ in range(3)]
        await turn()
        tasks[1].cancel()
        await turn()
        assert (tasks[1].cancelled(), operation.done()) == (True, False)
        assert operation.force_complete()
        assert [await tasks[0], await tasks[2]] == ["result of flag"] * 2


async def test_the_last_cancelled_task_cancels_the_operation() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        tasks = [asyncio.ensure_future(operation) for _ in range(3)]
        await turn()
        for task in tasks:
            assert not operation.done()
            task.cancel()
            await turn()
        assert operation.cancelled()


async def test_an_operation_that_completes_in_the_iteration_of_the_cancellation_stays_completed() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = Flag()
        task = asyncio.create_task(wait(purgatory, operation))
        await turn()
        assert operation.force_complete()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not operation.cancelled()
        assert operation.result() == "result of flag"


async def test_asyncio_timeouts_and_task_groups_cancel_operations() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.005):
                await wait(purgatory, Flag())
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(wait(purgatory, Flag()))
                group.create_task(wait(purgatory, Flag()))
                await turn()
                assert purgatory.num_delayed == 2
                raise LookupError
        assert purgatory.num_delayed == 0


async def test_an_anyio_cancel_scope_cancels_its_operation() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = Flag()
        with anyio.move_on_after(0.005) as scope:
            await wait(purgatory, operation)
        assert scope.cancelled_caught
        assert operation.cancelled()
        assert purgatory.num_delayed == 0
        # The scope has taken back its cancellation: the task may await further operations.
        assert await wait(purgatory, Flag(0.001)) == "result of flag"


async def test_an_anyio_task_group_cancels_its_operations() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        results: list[str] = []

        async def collect(operation: Flag) -> None:
            results.append(await wait(purgatory, operation))

        async with anyio.create_task_group() as group:
            group.start_soon(collect, Flag(0.001, "quick"))
            group.start_soon(collect, Flag(3600.0, "slow"))
            while not results:
                await anyio.lowlevel.checkpoint()
            assert purgatory.num_delayed == 1
            group.cancel_scope.cancel()
        assert results == ["result of quick"]
        assert purgatory.num_delayed == 0


async def test_operation_cancelled_crosses_an_anyio_task_group_as_an_error() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        with pytest.raises(ExceptionGroup) as caught:
            async with anyio.create_task_group() as group:
                group.start_soon(wait, purgatory, Flag())
                group.start_soon(anyio.sleep_forever)
                while not purgatory.num_delayed:
                    await anyio.lowlevel.checkpoint()
                purgatory.cancel_all()
        assert caught.group_contains(OperationCancelled)


async def test_a_coroutine_closed_while_it_waits_cancels_its_operation() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = Flag()
        coroutine = wait(purgatory, operation)
        coroutine.send(None)
        coroutine.close()
        assert operation.cancelled()


async def test_a_cancelled_error_raised_by_an_operation_is_not_taken_for_the_task_s_own() -> None:
    class Confused(Flag):
        def on_complete(self) -> str:
            raise asyncio.CancelledError("from a library")

    async with DelayedOperationPurgatory() as purgatory:
        operation = Confused()
        task = asyncio.create_task(wait(purgatory, operation))
        await turn()
        operation.force_complete()
        with pytest.raises(PurgatoryError, match="Confused raised CancelledError") as caught:
            await task
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
