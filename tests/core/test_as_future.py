"""`as_future`: waits from the call on, so a task that is cancelled before its first step leaves no operation behind."""

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import pytest

from purgatory import (
    Delay,
    DelayedOperation,
    DelayedOperationPurgatory,
    OperationCancelled,
    PurgatoryMisuse,
    VirtualClock,
)
from tests.support.operations import Flag, raising, turn, wait

Job = str


class Take(DelayedOperation[Job]):
    """Takes a job, and puts it back if nobody has received it."""

    def __init__(self, jobs: list[Job], returned: list[Job], timeout: float | None = None) -> None:
        super().__init__(timeout)
        self.jobs = jobs
        self.returned = returned

    def try_complete(self) -> bool:
        return bool(self.jobs) and self.force_complete()

    def on_complete(self) -> Job:
        return self.jobs.pop(0) if self.jobs else "no job"

    def on_undelivered(self, result: Job) -> None:
        self.returned.append(result)
        self.jobs.insert(0, result)


async def wait_for_nothing(awaitable: Awaitable[Job]) -> None:
    await asyncio.wait_for(awaitable, 0)


async def wait_for_less_than_nothing(awaitable: Awaitable[Job]) -> None:
    await asyncio.wait_for(awaitable, -0.5)


async def cancel_at_once(awaitable: Awaitable[Job]) -> None:
    task = asyncio.ensure_future(awaitable)
    task.cancel()
    await task


async def cancel_a_gathering_at_once(awaitable: Awaitable[Job]) -> None:
    task = asyncio.gather(awaitable)
    task.cancel()
    await task


async def timeout_of_nothing(awaitable: Awaitable[Job]) -> None:
    async with asyncio.timeout(0):
        await awaitable


async def wait_for_a_moment(awaitable: Awaitable[Job]) -> None:
    await asyncio.wait_for(awaitable, 0.001)


GIVE_UP: Final[dict[str, Callable[[Awaitable[Job]], Coroutine[Any, Any, None]]]] = {
    function.__name__.replace("_", " "): function
    for function in (
        wait_for_nothing,
        wait_for_less_than_nothing,
        cancel_at_once,
        cancel_a_gathering_at_once,
        timeout_of_nothing,
        wait_for_a_moment,
    )
}


async def give_up(way: str, awaitable: Awaitable[Job]) -> None:
    with suppress(TimeoutError, asyncio.CancelledError):
        await GIVE_UP[way](awaitable)


@pytest.fixture
def jobs() -> list[Job]:
    return []


@pytest.fixture
def returned() -> list[Job]:
    return []


@pytest.mark.parametrize("way", GIVE_UP)
async def test_who_gives_up_at_once_takes_no_job(way: str, jobs: list[Job], returned: list[Job]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Take(jobs, returned), ["jobs"])
        await give_up(way, operation.as_future())
        assert operation.cancelled()
        assert purgatory.num_delayed == 0
        jobs.append("job")
        assert purgatory.check_and_complete("jobs", limit=1) == 0
        assert (jobs, returned) == (["job"], [])


async def test_a_child_of_a_task_group_that_is_aborted_before_its_first_step_gives_its_job_back(
    jobs: list[Job], returned: list[Job]
) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Take(jobs, returned), ["jobs"])
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(wait_for_it(operation.as_future()))
                raise ZeroDivisionError
        jobs.append("job")
        purgatory.check_and_complete("jobs", limit=1)
        await turn()
        del operation
        gc.collect()
        await turn()
        assert (jobs, purgatory.num_delayed) == (["job"], 0)


async def wait_for_it(awaitable: Awaitable[Job]) -> Job:
    return await awaitable


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs the eager tasks of CPython 3.12")
@pytest.mark.parametrize("way", GIVE_UP)
def test_eager_tasks_wait_from_the_call_on_too(way: str, jobs: list[Job], returned: list[Job]) -> None:
    """On asyncio's loop, because uvloop calls the factory with an argument that some CPythons refuse."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Take(jobs, returned), ["jobs"])
            await give_up(way, operation)
            assert operation.cancelled()
            jobs.append("job")
            assert purgatory.check_and_complete("jobs", limit=1) == 0
            assert (jobs, returned) == (["job"], [])

    asyncio.run(main())


class TestResults:
    @pytest.mark.parametrize("how", ["await", "wait_for", "gather", "shield", "wait", "as_completed", "task group"])
    async def test_the_result_comes_out_of_everything_that_takes_futures(
        self, how: str, jobs: list[Job], returned: list[Job]
    ) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Take(jobs, returned, 60.0), ["jobs"])
            future = operation.as_future()
            assert isinstance(future, asyncio.Future)
            assert not future.done()
            jobs.append("job")
            asyncio.get_running_loop().call_soon(purgatory.check_and_complete, "jobs")
            if how == "await":
                result = await future
            elif how == "wait_for":
                result = await asyncio.wait_for(future, 60.0)
            elif how == "gather":
                [result] = await asyncio.gather(future)
            elif how == "shield":
                result = await asyncio.shield(future)
            elif how == "wait":
                done, pending = await asyncio.wait([future], return_when=asyncio.FIRST_COMPLETED)
                assert (done, pending) == ({future}, set())
                result = done.pop().result()
            elif how == "as_completed":
                [first] = asyncio.as_completed([future])
                result = await first
            else:
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(wait_for_it(future))
                result = task.result()
            assert result == future.result() == await future == "job"
            del operation, future
            await turn()
            assert (jobs, returned) == ([], [])

    async def test_a_done_operation_gives_a_done_future(self, jobs: list[Job], returned: list[Job]) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Take(["job"], returned), ["jobs"])
            future = operation.as_future()
            assert future.done()
            assert future.result() == await future == await operation == "job"
            assert not future.cancel()
            assert returned == []

    async def test_an_operation_that_was_never_handed_over_but_completed_gives_a_done_future(self) -> None:
        operation = Flag()
        operation.force_complete()
        assert await operation.as_future() == "result of flag"

    async def test_an_error_comes_out(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            for is_done in (False, True):
                operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
                future = None if is_done else operation.as_future()
                error = LookupError()
                operation.fail(error)
                future = future or operation.as_future()
                with pytest.raises(LookupError) as caught:
                    await future
                assert caught.value is error
                assert future.exception() is operation.exception() is error

    async def test_an_operation_that_is_cancelled_raises_operation_cancelled(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            for is_done in (False, True):
                operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
                future = None if is_done else operation.as_future()
                operation.cancel()
                future = future or operation.as_future()
                with pytest.raises(OperationCancelled):
                    await future
                assert not future.cancelled(), "its task is not cancelled"

    @pytest.mark.parametrize("end", ["expired", "closed"])
    async def test_a_deadline_and_a_close_give_a_result(self, end: str) -> None:
        purgatory = DelayedOperationPurgatory()
        operation = purgatory.try_complete_else_watch(Flag(0.001 if end == "expired" else 60.0), ["key"])
        future = operation.as_future()
        if end == "closed":
            purgatory.close()
        assert await future == "result of flag"
        assert operation.outcome == end
        purgatory.close()

    async def test_a_callback_is_called_in_a_later_iteration(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
            future = operation.as_future()
            results: list[str] = []
            future.add_done_callback(lambda done: results.append(done.result()))
            operation.force_complete()
            assert results == []
            await future
            await turn()
            assert results == ["result of flag"]

    async def test_on_a_virtual_clock(self, clock: VirtualClock, purgatory: DelayedOperationPurgatory) -> None:
        future = purgatory.try_complete_else_watch(Flag(60.0), ["key"]).as_future()
        clock.advance(59.0)
        await turn()
        assert not future.done()
        clock.advance(1.0)
        assert await future == "result of flag"


class TestLeaving:
    async def test_the_last_one_that_is_cancelled_cancels_the_operation(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
            one, two = operation.as_future(), operation.as_future()
            assert one.cancel()
            assert operation.outcome is None
            assert two.cancel()
            assert operation.cancelled()
            assert one.cancelled()
            assert two.cancelled()

    async def test_a_task_that_awaits_the_operation_keeps_it(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
            task = asyncio.ensure_future(wait(operation))
            future = operation.as_future()
            await turn()
            future.cancel()
            assert operation.outcome is None
            operation.force_complete()
            assert await task == "result of flag"

    async def test_a_future_keeps_an_operation_whose_awaiting_task_is_cancelled(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
            task = asyncio.ensure_future(wait(operation))
            future = operation.as_future()
            await turn()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            operation.force_complete()
            assert await future == "result of flag"

    async def test_a_shield_keeps_it(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
            future = operation.as_future()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(future), 0)
            assert operation.outcome is None
            operation.force_complete()
            assert await future == "result of flag"

    async def test_a_gathering_that_is_cancelled_cancels_all(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operations = [purgatory.try_complete_else_watch(Flag(60.0), ["key"]) for _ in range(3)]
            gathering = asyncio.gather(*(operation.as_future() for operation in operations))
            gathering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gathering
            assert [operation.outcome for operation in operations] == ["cancelled"] * 3

    @pytest.mark.parametrize("how", ["await", "wait_for", "wait"])
    @pytest.mark.parametrize("order", ["complete, cancel", "cancel, complete", "complete, turn, cancel"])
    async def test_a_job_is_either_returned_by_the_task_or_given_back(
        self, how: str, order: str, jobs: list[Job], returned: list[Job]
    ) -> None:
        """The task is cancelled in the iteration in which the job comes, or in the next one."""
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Take(jobs, returned), ["jobs"])

            async def work(future: "asyncio.Future[Job]") -> Job:
                if how == "wait_for":
                    return await asyncio.wait_for(future, 60.0)
                if how == "wait":
                    await asyncio.wait([future])
                return await future

            task = asyncio.ensure_future(work(operation.as_future()))
            await turn()
            for step in order.split(", "):
                if step == "complete":
                    jobs.append("job")
                    purgatory.check_and_complete("jobs")
                elif step == "cancel":
                    task.cancel()
                else:
                    await turn()
            await asyncio.wait([task])
            is_taken = not task.cancelled() and task.result() == "job"
            del operation, task  # the traceback of a cancelled task keeps the future
            gc.collect()
            await turn()
            await turn()
            assert jobs == ([] if is_taken else ["job"])
            assert len(returned) <= 1
            assert order != "complete, cancel" or how == "wait_for" or returned == ["job"]

    async def test_a_result_that_nobody_fetches_is_given_back_when_the_future_is_freed(
        self, jobs: list[Job], returned: list[Job]
    ) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            future = purgatory.try_complete_else_watch(Take(jobs, returned), ["jobs"]).as_future()
            jobs.append("job")
            purgatory.check_and_complete("jobs")
            await turn()
            await turn()
            assert future.done()
            assert returned == []
            del future
            gc.collect()
            await turn()
            assert returned == ["job"]

    async def test_a_future_that_is_cancelled_after_the_operation_has_ended_gives_the_job_back(
        self, jobs: list[Job], returned: list[Job]
    ) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Take(jobs, returned), ["jobs"])
            future = operation.as_future()
            jobs.append("job")
            purgatory.check_and_complete("jobs")
            assert future.cancel(), "it does not have the result yet"
            assert returned == ["job"]
            await turn()
            await turn()
            assert future.cancelled()
            del operation, future
            gc.collect()
            await turn()
            assert returned == ["job"], "once"

    @pytest.mark.parametrize("is_complete", [False, True])
    @pytest.mark.parametrize("where", ["here", "in a thread", "collector"])
    async def test_a_coroutine_that_is_closed_leaves_on_the_next_iteration(
        self, where: str, is_complete: bool, jobs: list[Job], returned: list[Job]
    ) -> None:
        """The collector may close it in the middle of anything, and in any thread."""
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Take(jobs, returned), ["jobs"])
            coroutines = [wait_for_it(operation.as_future())]
            coroutines[0].send(None)
            if is_complete:
                jobs.append("job")
                purgatory.check_and_complete("jobs")
            errors: list[BaseException] = []

            def close() -> None:
                try:
                    coroutines.pop().close()
                except BaseException as error:
                    errors.append(error)

            if where == "in a thread":
                thread = threading.Thread(target=close)
                thread.start()
                thread.join()
            elif where == "here":
                close()
            else:
                coroutines.clear()
                gc.collect()
            assert (errors, returned) == ([], [])
            assert operation.outcome == ("satisfied" if is_complete else None)
            await turn()
            await turn()
            assert operation.outcome == ("satisfied" if is_complete else "cancelled")
            assert returned == (["job"] if is_complete else [])


class TestErrorsThatNobodyRetrieves:
    @pytest.mark.parametrize("is_awaited", [False, True])
    async def test_are_reported_once(self, is_awaited: bool) -> None:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
            future = operation.as_future()
            operation.fail(error := LookupError())
            await turn()
            await turn()
            if is_awaited:
                with pytest.raises(LookupError):
                    await future
            del operation, future
            gc.collect()
            await turn()
            assert [report["exception"] for report in reports] == ([] if is_awaited else [error])

    async def test_a_result_that_came_too_late_is_not_reported(self) -> None:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
            future = operation.as_future()
            future.cancel()
            await turn()
            del operation, future
            gc.collect()
            assert reports == []


ENDS: Final[dict[str, Callable[[Delay], object]]] = {
    "a result": lambda operation: operation.force_complete(),
    "an error": lambda operation: operation.fail(LookupError()),
    "a cancellation": lambda operation: operation.cancel(),
}


@pytest.mark.usefixtures("by_reference_count_alone")
@pytest.mark.parametrize("end", ENDS)
async def test_the_future_keeps_nothing_when_it_was_awaited(end: str) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Delay(60.0), ["key"])
        future = operation.as_future()
        freed: list[weakref.ref[Any]] = [weakref.ref(operation), weakref.ref(future)]
        asyncio.get_running_loop().call_soon(ENDS[end], operation)
        with suppress(LookupError, OperationCancelled):
            await future
        del operation, future
        await turn()
        assert [each() for each in freed] == [None, None]


class TestRefused:
    async def test_before_the_hand_over(self) -> None:
        with pytest.raises(PurgatoryMisuse, match="never complete"):
            Flag().as_future()

    async def test_in_another_thread(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
            with pytest.raises(PurgatoryMisuse, match="run_coroutine_threadsafe"):
                await asyncio.get_running_loop().run_in_executor(None, operation.as_future)

    async def test_in_another_loop(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])

            async def elsewhere() -> None:
                operation.as_future()

            with pytest.raises(PurgatoryMisuse):
                await asyncio.get_running_loop().run_in_executor(None, asyncio.run, elsewhere())
            operation.as_future().cancel()

    @pytest.mark.parametrize("is_done", [False, True])
    def test_without_a_loop(self, purgatory: DelayedOperationPurgatory, is_done: bool) -> None:
        operation = purgatory.try_complete_else_watch(Flag(60.0, ready=is_done), ["key"])
        with pytest.raises(RuntimeError, match="event loop"):
            operation.as_future()
        assert operation.done() == is_done


async def test_repr_shows_the_state() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        future = operation.as_future()
        assert "pending" in repr(future)
        operation.force_complete()
        await future
        assert "finished result='result of flag'" in repr(future)


async def test_an_operation_that_fails_in_its_last_try_fails_the_future(
    clock: VirtualClock, purgatory: DelayedOperationPurgatory
) -> None:
    operation = purgatory.try_complete_else_watch(Flag(1.0, then=raising(LookupError)), ["key"])
    future = operation.as_future()
    clock.advance(1.0)
    with pytest.raises(LookupError):
        await future
