"""Promise 11: a result that no awaiting task could take goes to `on_undelivered`, so it is never lost silently."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, OperationCancelled, PurgatoryClosed, VirtualClock
from purgatory.lowlevel import take_result
from tests.support.operations import Flag, wait


class Held(Flag):
    """Notes the results that were not delivered."""

    def __init__(self, timeout: float | None = None, *, ready: bool = False) -> None:
        super().__init__(timeout, ready=ready)
        self.undelivered: list[str] = []

    def on_undelivered(self, result: str) -> None:
        self.undelivered.append(result)


Futures = list[asyncio.Future[str]]


async def waiting(
    purgatory: DelayedOperationPurgatory, awaiters: int = 1, as_futures: bool = False
) -> tuple[Held, Futures]:
    operation = purgatory.try_complete_else_watch(Held(60.0), ["key"])
    tasks = [operation.as_future() if as_futures else asyncio.ensure_future(wait(operation)) for _ in range(awaiters)]
    await asyncio.sleep(0)
    return operation, tasks


async def leave(tasks: Futures) -> list[type]:
    for task in tasks:
        task.cancel()
    return [type(outcome) for outcome in await asyncio.gather(*tasks, return_exceptions=True)]


COMPLETE: dict[str, Callable[[DelayedOperationPurgatory, Held], object]] = {
    "force": lambda purgatory, operation: operation.force_complete(),
    "check": lambda purgatory, operation: purgatory.check_and_complete("key"),
    "complete_all": lambda purgatory, operation: purgatory.complete_all(),
}


@pytest.mark.parametrize("way", COMPLETE)
@pytest.mark.parametrize("awaiters", [1, 3])
@pytest.mark.parametrize("as_futures", [False, True])
async def test_a_result_is_undelivered_when_its_awaiters_are_cancelled_in_the_same_iteration(
    way: str, awaiters: int, as_futures: bool
) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation, tasks = await waiting(purgatory, awaiters, as_futures)
        operation.ready = True
        COMPLETE[way](purgatory, operation)
        assert await leave(tasks) == [asyncio.CancelledError] * awaiters
        assert operation.undelivered == ["result of flag"], "once, however many awaited it"
        assert operation.result() == await operation == "result of flag"
        assert operation.undelivered == ["result of flag"], "once, although a later awaiter takes it"


async def test_no_result_is_lost_by_a_completion_after_the_cancellation() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation, tasks = await waiting(purgatory)
        tasks[0].cancel()
        operation.force_complete()
        assert await leave(tasks) == [asyncio.CancelledError]
        assert operation.undelivered == ["result of flag"]


@pytest.mark.parametrize("taker", [0, 1, 2])
@pytest.mark.parametrize("as_futures", [False, True])
async def test_result_is_delivered_when_a_single_awaiter_takes_it(taker: int, as_futures: bool) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation, tasks = await waiting(purgatory, 3, as_futures)
        operation.force_complete()
        assert await leave([task for n, task in enumerate(tasks) if n != taker]) == [asyncio.CancelledError] * 2
        assert await tasks[taker] == "result of flag"
        assert operation.undelivered == []


async def test_no_result_is_lost_by_a_timeout_in_the_iteration_of_the_completion() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Held(), ["key"])

        async def wait_for_a_while() -> str:
            async with asyncio.timeout(None) as scope:
                asyncio.get_running_loop().call_soon(operation.force_complete)
                asyncio.get_running_loop().call_soon(scope.reschedule, 0.0)
                return await operation

        outcomes = await asyncio.gather(wait_for_a_while(), return_exceptions=True)
        delivered = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert len(delivered) + len(operation.undelivered) == 1


@pytest.mark.parametrize("how", ["never awaited", "cancelled", "left before completion", "failed"])
async def test_on_undelivered_is_not_called_without_a_result_or_while_it_can_be_taken(how: str) -> None:
    class Failing(Held):
        def on_complete(self) -> str:
            raise LookupError

    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Failing() if how == "failed" else Held(), ["key"])
        tasks: Futures = [] if how == "never awaited" else [asyncio.ensure_future(wait(operation))]
        await asyncio.sleep(0)
        if how == "cancelled":
            operation.cancel()
        elif how != "left before completion":
            operation.force_complete()
        await leave(tasks)
        assert operation.undelivered == []
        if how == "failed":
            assert isinstance(operation.exception(), LookupError)


TAKERS: dict[str, Callable[[Held], object]] = {
    "nobody": lambda operation: None,
    "result": lambda operation: operation.result(),
    "take_result": take_result,
    "a future's result": lambda operation: operation.as_future().result(),
    "not a future": lambda operation: operation.as_future(),
    "not exception": lambda operation: operation.exception(),
}


@pytest.mark.usefixtures("by_reference_count_alone")
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("outcome", ["completed_at_once", "satisfied", "expired", "closed", "cancelled"])
@pytest.mark.parametrize("virtual", [False, True])
async def test_a_result_that_nobody_took_is_undelivered_after_the_operation_is_freed(
    clock: VirtualClock, outcome: str, taker: str, virtual: bool
) -> None:
    purgatory = DelayedOperationPurgatory(clock=clock if virtual else None)
    operation = Held(0.001, ready=outcome == "completed_at_once")
    purgatory.try_complete_else_watch(operation, ["key"])
    while not operation.done():
        match outcome:
            case "satisfied":
                operation.force_complete()
            case "closed":
                purgatory.close()
            case "cancelled":
                operation.cancel()
            case _ if virtual:
                clock.advance(1.0)
            case _:
                await asyncio.sleep(0.001)
    with suppress(OperationCancelled):
        TAKERS[taker](operation)
    undelivered = operation.undelivered
    del operation
    assert undelivered == [], "not in the middle of anything"
    for _ in range(3):
        await asyncio.sleep(0)
    if virtual:
        clock.advance(0)
    is_taken = taker in ("result", "take_result", "a future's result") or outcome == "cancelled"
    assert undelivered == ([] if is_taken else ["result of flag"])
    purgatory.close()


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError, SystemExit, KeyboardInterrupt])
async def test_an_exception_of_on_undelivered_is_reported_and_a_request_to_exit_raised(
    error: type[BaseException],
) -> None:
    class Broken(Held):
        def on_undelivered(self, result: str) -> None:
            raise error

    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context["exception"]))
    is_exit = error in (SystemExit, KeyboardInterrupt)
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Broken(), ["key"])
        coroutine = wait(operation)
        coroutine.send(None)
        operation.force_complete()
        with pytest.raises(error if is_exit else asyncio.CancelledError):
            coroutine.throw(asyncio.CancelledError())
        assert operation.result() == "result of flag"
    assert [type(fault) for fault in faults] == [error] * (not is_exit)


class JobQueue:
    """Jobs for the worker that waits first; an undelivered job comes first again."""

    def __init__(self, purgatory: DelayedOperationPurgatory) -> None:
        self.purgatory = purgatory
        self.jobs: deque[int] = deque()

    def put(self, job: int, soon: bool) -> None:
        self.jobs.append(job)
        check = self.purgatory.check_and_complete_soon if soon else self.purgatory.check_and_complete
        check("jobs", limit=1)

    def put_back(self, job: int) -> None:
        self.jobs.appendleft(job)
        self.purgatory.check_and_complete_soon("jobs", limit=1)

    async def take(self, timeout: float | None) -> int | None:
        return await self.purgatory.try_complete_else_watch(TakeJob(self, timeout), ("jobs",))


class TakeJob(DelayedOperation[int | None]):
    def __init__(self, queue: JobQueue, timeout: float | None) -> None:
        super().__init__(timeout)
        self.queue = queue

    def try_complete(self) -> bool:
        return bool(self.queue.jobs) and self.force_complete()

    def on_complete(self) -> int | None:
        # A deadline or a close completes it too, with jobs or without.
        return self.queue.jobs.popleft() if self.queue.jobs and self.outcome != "closed" else None

    def on_undelivered(self, result: int | None) -> None:
        if result is not None:
            self.queue.put_back(result)


@pytest.mark.parametrize("seed", range(10))
async def test_every_job_reaches_one_living_worker_in_a_storm_of_cancellations(seed: int) -> None:
    random = Random(seed)
    done: list[int] = []
    jobs = 300
    async with DelayedOperationPurgatory() as purgatory:
        queue = JobQueue(purgatory)

        async def work() -> None:
            while True:
                timeout = random.choice([None, 0.0, 0.0005, 60.0])
                match random.randrange(4):
                    case 0:
                        job = await asyncio.wait_for(queue.take(timeout), random.choice([0.0, 0.0005, 60.0]))
                    case 1:
                        async with asyncio.timeout(random.choice([0.0, 0.0005, 60.0])):
                            job = await queue.take(timeout)
                    case _:
                        job = await queue.take(timeout)
                if job is not None:
                    done.append(job)

        async def work_until_it_is_closed() -> None:
            while True:
                try:
                    await work()
                except TimeoutError:
                    continue
                except PurgatoryClosed:  # CPython 3.11's wait_for() swallows a cancellation now and then
                    break

        workers = [asyncio.ensure_future(work_until_it_is_closed()) for _ in range(10)]
        put = 0
        async with asyncio.timeout(60):
            while len(done) < jobs:
                for _ in range(random.randrange(4)):
                    if put < jobs:
                        queue.put(put, random.random() < 0.5)
                        put += 1
                for _ in range(random.randrange(6)):
                    n = random.randrange(len(workers))
                    workers[n].cancel()
                    workers[n] = asyncio.ensure_future(work_until_it_is_closed())
                for _ in range(random.randrange(3)):
                    await asyncio.sleep(0)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(done) == list(range(jobs)), "each once"
    assert list(queue.jobs) == []
