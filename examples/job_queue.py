"""A job queue in one file, to be copied. `examples/README.md` has a guide; jobs are in memory.

`await queue.receive()` leases the oldest job: until the lease lapses, no other worker gets it. `extend` moves its end,
`acknowledge` ends the job. A job that comes back has its old place, and goes at once to the worker waiting longest.
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
    number: int  # the oldest job has the smallest one
    body: T = field(compare=False)
    deliveries: int = field(default=0, compare=False)


class Lease(TimerTask, Generic[T]):
    """A job that one worker has, until the deadline. The receipt of a later lease is larger: a fencing token."""

    def __init__(self, queue: "JobQueue[T]", receipt: int, job: Job[T]) -> None:
        super().__init__()
        self.queue, self.receipt, self.job = queue, receipt, job

    def run(self) -> None:
        self.queue._give_back(self)


class Receive(DelayedOperation[Lease[T] | None]):
    """A worker that waits for a job. Yields its lease, or `None` at the deadline or when the queue is closed."""

    def __init__(self, queue: "JobQueue[T]", timeout: float | None) -> None:
        super().__init__(timeout)
        self.queue = queue

    def try_complete(self) -> bool:
        return bool(self.queue._ready) and self.force_complete()

    def on_complete(self) -> Lease[T] | None:
        return self.queue._lease() if self.queue._ready else None

    def on_undelivered(self, result: Lease[T] | None) -> None:
        if result is not None and result.receipt in self.queue._leases:  # it may have lapsed meanwhile
            result.job.deliveries -= 1  # cancelled in the moment of delivery, the worker has not seen the job
            self.queue._give_back(result)


class JobQueue(Generic[T]):
    """Jobs in their order, for the workers in theirs. Workers wait only while there is no job."""

    def __init__(self, visibility: float = 30.0, max_deliveries: int = 5, clock: Clock | None = None) -> None:
        """Lease a job for `visibility` seconds, `max_deliveries` times at most; after the last time it is in `dead`."""
        for name, value in (("visibility", visibility), ("max_deliveries", max_deliveries)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be more than 0 and finite, not {value}")
        self.visibility, self.max_deliveries = visibility, max_deliveries
        self.dead: list[Job[T]] = []
        self._ready: list[Job[T]] = []  # a heap
        self._leases: dict[int, Lease[T]] = {}  # by receipt
        self._numbers, self._receipts = count(), count()
        self._purgatory = DelayedOperationPurgatory("jobs", clock=clock)
        self._timer = self._purgatory.timer  # one timer for leases and for the deadlines of waiting workers

    def put(self, body: T) -> None:
        """Add a job. Raises `PurgatoryClosed` after a close."""
        if self._purgatory.closed:
            raise PurgatoryClosed("the queue is closed and takes no more jobs")
        self._make_ready(Job(next(self._numbers), body))

    def receive(self, timeout: float | None = None) -> Receive[T]:
        """Wait for a job, for `timeout` seconds at most. Raises `PurgatoryClosed` after a close."""
        return self._purgatory.try_complete_else_watch(Receive(self, timeout), ["jobs"])

    def acknowledge(self, receipt: int) -> None:
        """End a job that is done. Raises `StaleReceipt` if the lease is over: another worker may have the job."""
        self._timer.cancel(self._held(receipt))
        del self._leases[receipt]

    def extend(self, receipt: int, seconds: float) -> None:
        """Let the lease lapse in `seconds` from now; 0 gives the job back. Raises `StaleReceipt` if it is over."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds must be 0 or more and finite, not {seconds}")
        lease = self._held(receipt)
        if not self._purgatory.closed:
            self._timer.reschedule(lease, self._timer.time() + seconds)

    async def aclose(self) -> None:
        """Let the waiting workers go, each with `None`. Leases can still be acknowledged, and do not lapse any more."""
        await self._purgatory.aclose()

    def _held(self, receipt: int) -> Lease[T]:
        if receipt not in self._leases:
            raise StaleReceipt(f"receipt {receipt} has no lease: it has lapsed, or its job was acknowledged")
        return self._leases[receipt]

    def _lease(self) -> Lease[T]:
        lease = Lease(self, next(self._receipts), heappop(self._ready))
        lease.job.deliveries += 1
        self._leases[lease.receipt] = lease
        self._timer.add(lease, self._timer.time() + self.visibility)
        return lease

    def _give_back(self, lease: Lease[T]) -> None:
        self.acknowledge(lease.receipt)
        is_dead = lease.job.deliveries >= self.max_deliveries
        (self.dead.append if is_dead else self._make_ready)(lease.job)

    def _make_ready(self, job: Job[T]) -> None:
        heappush(self._ready, job)
        self._purgatory.check_and_complete("jobs", limit=1)  # at once: a worker that comes later overtakes none


async def work(name: str, queue: JobQueue[int], done: list[int]) -> None:
    """Do jobs until nine are done. The first worker that has job 4 dies of it."""
    while len(done) < 9 and (lease := await queue.receive()) is not None:
        print(f"{name} has job {lease.job.body}, delivery {lease.job.deliveries}")
        if lease.job.body == 4 and lease.job.deliveries == 1:
            return
        with suppress(StaleReceipt):  # this worker was too slow: another one has the job
            await asyncio.sleep(0.01)  # half of the work
            queue.extend(lease.receipt, queue.visibility)
            await asyncio.sleep(0.01)
            queue.acknowledge(lease.receipt)
            done.append(lease.job.body)
    await queue.aclose()


async def main() -> None:
    queue, done = JobQueue[int](visibility=1.0), list[int]()
    workers = [asyncio.create_task(work(name, queue, done)) for name in ("a", "b", "c")]
    for job in range(9):
        queue.put(job)
    await asyncio.gather(*workers)
    print(f"jobs done: {sorted(done)}")


if __name__ == "__main__":
    asyncio.run(main())
