"""Three workers, nine jobs, and a worker that is cancelled in between.

python -m examples.job_queue
"""

import asyncio

from examples.job_queue.queue import JobQueue

JOBS = 9


async def work(name: str, queue: JobQueue[int], done: list[int], all_done: asyncio.Event) -> None:
    """Take jobs until the queue is closed."""
    while (job := await queue.take()) is not None:
        print(f"{name} does job {job}")
        done.append(job)
        if len(done) == JOBS:
            all_done.set()
        await asyncio.sleep(0.01)


async def main() -> None:
    """Run the demonstration."""
    queue: JobQueue[int] = JobQueue()
    done: list[int] = []
    all_done = asyncio.Event()
    workers = [asyncio.create_task(work(name, queue, done, all_done)) for name in ("a", "b", "c")]
    for job in range(JOBS):
        queue.put(job)
        await asyncio.sleep(0.002)
        if job == 4:
            workers[0].cancel()
    await all_done.wait()
    await queue.aclose()
    await asyncio.gather(*workers, return_exceptions=True)
    print(f"jobs done: {sorted(done)}")


if __name__ == "__main__":
    asyncio.run(main())
