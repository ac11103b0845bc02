"""A queue whose jobs are leased: a worker that does not finish in time loses its job to the next one."""

import asyncio
from collections import deque
from collections.abc import Iterable

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, Handle, WheelTimer


class Jobs:
    def __init__(self, jobs: Iterable[str]) -> None:
        self.ready = deque(jobs)
        self.leases: dict[str, Handle] = {}
        self.purgatory = DelayedOperationPurgatory()
        self.timer = WheelTimer()

    def take(self, timeout: float) -> "Take":
        return self.purgatory.try_complete_else_watch(Take(self, timeout), ["jobs"])

    def put_back(self, job: str) -> None:
        self.finish(job)
        self.ready.append(job)
        self.purgatory.check_and_complete("jobs", limit=1)

    def finish(self, job: str) -> None:
        self.leases.pop(job).cancel()


class Take(DelayedOperation[str | None]):
    def __init__(self, jobs: Jobs, timeout: float) -> None:
        super().__init__(timeout)
        self.jobs = jobs

    def try_complete(self) -> bool:
        return bool(self.jobs.ready) and self.force_complete()

    def on_complete(self) -> str | None:
        if not self.jobs.ready:
            return None
        job = self.jobs.ready.popleft()
        self.jobs.leases[job] = self.jobs.timer.call_later(60.0, self.jobs.put_back, job)
        return job

    def on_undelivered(self, job: str | None) -> None:
        if job is not None:
            self.jobs.put_back(job)


async def test_lapsed_lease_wakes_the_worker_that_waits() -> None:
    loop = asyncio.get_running_loop()
    jobs = Jobs(["resize 7"])
    assert await jobs.take(300.0) == "resize 7"  # and this worker never finishes
    taken = loop.time()
    assert await jobs.take(300.0) == "resize 7"
    assert loop.time() - taken == pytest.approx(60.0, abs=0.002)  # a tick is a millisecond


async def test_finished_job_does_not_come_back() -> None:
    loop = asyncio.get_running_loop()
    jobs = Jobs(["resize 7"])

    async def work() -> None:
        job = await jobs.take(300.0)
        assert job is not None
        await asyncio.sleep(59.0)
        jobs.finish(job)

    worker = asyncio.create_task(work())
    await asyncio.sleep(0)
    asked = loop.time()
    assert await jobs.take(300.0) is None
    assert loop.time() - asked == pytest.approx(300.0, abs=0.002)
    await worker


async def test_worker_cancelled_at_the_delivery_loses_no_job() -> None:
    loop = asyncio.get_running_loop()
    jobs = Jobs([])

    async def work() -> None:
        await jobs.take(300.0)

    worker = asyncio.create_task(work())
    await asyncio.sleep(100.0)
    jobs.ready.append("resize 7")
    jobs.purgatory.check_and_complete("jobs", limit=1)
    worker.cancel()
    asked = loop.time()
    assert await jobs.take(300.0) == "resize 7"
    assert loop.time() == asked  # and not after its lease
