"""The job queue: no job is lost, and none is done twice."""

import asyncio
import random

from examples.job_queue.queue import JobQueue


async def test_worker_that_has_waited_longest_gets_the_job() -> None:
    queue: JobQueue[int] = JobQueue()
    workers = [asyncio.create_task(queue.take()) for _ in range(3)]
    await asyncio.sleep(0)
    for job in range(3):
        queue.put(job)
    assert await asyncio.gather(*workers) == [0, 1, 2]


async def test_every_job_is_done_once_whatever_workers_are_cancelled() -> None:
    randomly = random.Random(1)
    queue: JobQueue[int] = JobQueue()
    done: list[int] = []
    all_done = asyncio.Event()

    async def work() -> None:
        while (job := await queue.take()) is not None:
            done.append(job)
            if len(done) == 2000:
                all_done.set()

    workers = [asyncio.create_task(work()) for _ in range(20)]
    for job in range(2000):
        queue.put(job)
        if randomly.random() < 0.3:
            victim = randomly.randrange(len(workers))
            workers[victim].cancel()
            workers[victim] = asyncio.create_task(work())
        if randomly.random() < 0.5:
            await asyncio.sleep(0)
    await all_done.wait()
    await queue.aclose()
    await asyncio.gather(*workers)
    assert sorted(done) == list(range(2000))


async def test_worker_gets_none_at_the_deadline_and_at_the_close() -> None:
    queue: JobQueue[int] = JobQueue()
    assert await queue.take(timeout=0.01) is None
    worker = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    await queue.aclose()
    assert await worker is None
