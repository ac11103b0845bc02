"""A worker may die with a job in its hands, and then another worker must get the job.

So `await queue.receive()` leases the oldest job: no other worker gets it until the lease lapses.
`extend` moves the end of the lease, `release` gives the job back, and `acknowledge` ends the job.
Jobs are in memory, in this one file to copy. `job_queue.md` is the guide.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from purgatory import Clock, DelayedOperation, DelayedOperationPurgatory, PurgatoryClosed, TimerTask

T = TypeVar("T")


class StaleReceipt(LookupError):
    """The lease of this receipt has lapsed, or its job was acknowledged."""


@dataclass(order=True, slots=True)
class Job(Generic[T]):
    number: int  # the smallest is the oldest
    body: T = field(compare=False)
    deliveries: int = field(default=0, compare=False)


class Lease(TimerTask, Generic[T]):
    """A job that one worker has until the deadline. A later lease has a larger receipt: a fencing token."""

    def __init__(self, queue: "JobQueue[T]", receipt: int, job: Job[T]) -> None:
        super().__init__()
        self.queue, self.receipt, self.job = queue, receipt, job

    def run(self) -> None:
        self.queue._take_back(self)


class Receive(DelayedOperation[Lease[T] | None]):
    """A worker that waits for a job. Yields a lease, or `None` at the deadline or when the queue closes."""

    def __init__(self, queue: "JobQueue[T]", timeout: float | None) -> None:
        super().__init__(timeout)
        self.queue = queue

    def try_complete(self) -> bool:
        return bool(self.queue._ready) and self.force_complete()

    def on_complete(self) -> Lease[T] | None:
        return self.queue._lease() if self.queue._ready else None

    def on_undelivered(self, result: Lease[T] | None) -> None:
        if result is not None and result.receipt in self.queue._leases:
            # The lease has not lapsed since, and the worker was cancelled before it could see the job.
            result.job.deliveries -= 1
            self.queue._take_back(result)


class JobQueue(Generic[T]):
    """Gives the oldest job to the worker that has waited longest. Workers wait only while there is no job."""

    def __init__(self, visibility: float = 30.0, max_deliveries: int = 5, clock: Clock | None = None) -> None:
        """Lease a job for `visibility` seconds, at most `max_deliveries` times. Then it goes to `dead`."""
        for name, value in (("visibility", visibility), ("max_deliveries", max_deliveries)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be more than 0 and finite, not {value}")
        self.visibility, self.max_deliveries = visibility, max_deliveries
        self.dead: list[Job[T]] = []
        self._ready: list[Job[T]] = []  # a heap
        self._leases: dict[int, Lease[T]] = {}  # by receipt
        self._numbers = count()
        self._receipts = count()
        self._purgatory = DelayedOperationPurgatory("jobs", clock=clock)
        self._timer = self._purgatory.timer  # for the leases too

    def put(self, body: T) -> None:
        """Add a job. Raises `PurgatoryClosed` after a close."""
        if self._purgatory.closed:
            raise PurgatoryClosed("the queue is closed and takes no more jobs")
        self._make_ready(Job(next(self._numbers), body))

    def receive(self, timeout: float | None = None) -> Receive[T]:
        """Wait for a job for at most `timeout` seconds. Raises `PurgatoryClosed` after a close."""
        return self._purgatory.try_complete_else_watch(Receive(self, timeout), ["jobs"])

    def acknowledge(self, receipt: int) -> None:
        """End a job that is done. Raises `StaleReceipt` if the lease is over, because another worker may have it."""
        self._end(self._find(receipt))

    def extend(self, receipt: int, seconds: float) -> None:
        """Let the lease lapse in `seconds` from now. Raises `StaleReceipt` if it is over."""
        if not 0 < seconds < float("inf"):
            raise ValueError(f"seconds must be more than 0 and finite, not {seconds}")
        lease = self._find(receipt)
        if not self._purgatory.closed:
            self._timer.reschedule_later(lease, seconds)

    def release(self, receipt: int) -> None:
        """Give the job back for the next worker. Raises `StaleReceipt` if the lease is over."""
        self._take_back(self._find(receipt))

    async def aclose(self) -> None:
        """Let the waiting workers go, each with `None`. Leases can still be acknowledged, but no longer lapse."""
        await self._purgatory.aclose()

    def _find(self, receipt: int) -> Lease[T]:
        if receipt not in self._leases:
            raise StaleReceipt(f"receipt {receipt} has no lease: it has lapsed, or its job was acknowledged")
        return self._leases[receipt]

    def _lease(self) -> Lease[T]:
        lease = Lease(self, next(self._receipts), heappop(self._ready))
        lease.job.deliveries += 1
        self._leases[lease.receipt] = lease
        self._timer.add_later(lease, self.visibility)
        return lease

    def _end(self, lease: Lease[T]) -> None:
        self._timer.cancel(lease)
        del self._leases[lease.receipt]

    def _take_back(self, lease: Lease[T]) -> None:
        self._end(lease)
        if lease.job.deliveries < self.max_deliveries:
            self._make_ready(lease.job)
        else:
            self.dead.append(lease.job)

    def _make_ready(self, job: Job[T]) -> None:
        heappush(self._ready, job)
        self._purgatory.check_and_complete("jobs", limit=1)  # now, so that no later worker overtakes


async def work(name: str, queue: JobQueue[int], done: list[int]) -> None:
    """Do jobs until nine are done. The first worker that gets job 4 dies of it."""
    while len(done) < 9 and (lease := await queue.receive()) is not None:
        print(f"{name} has job {lease.job.body}, delivery {lease.job.deliveries}")
        if lease.job.body == 4 and lease.job.deliveries == 1:
            return
        with suppress(StaleReceipt):  # this worker was too slow, so another one has the job
            await asyncio.sleep(0.01)  # half of the work
            queue.extend(lease.receipt, queue.visibility)
            await asyncio.sleep(0.01)
            queue.acknowledge(lease.receipt)
            done.append(lease.job.body)
    await queue.aclose()


async def main() -> None:
    queue: JobQueue[int] = JobQueue(visibility=1.0)
    done: list[int] = []
    workers = [asyncio.create_task(work(name, queue, done)) for name in ("a", "b", "c")]
    for job in range(9):
        queue.put(job)
    await asyncio.gather(*workers)
    print(f"jobs done: {sorted(done)}")


if __name__ == "__main__":
    asyncio.run(main())
