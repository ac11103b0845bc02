"""The queue."""

from collections import deque
from typing import Generic, TypeVar

from purgatory import DelayedOperation, DelayedOperationPurgatory

T = TypeVar("T")


class Take(DelayedOperation[T | None]):
    """A worker that waits for a job. Yields the job, or `None` at the deadline or when the queue is closed."""

    def __init__(self, jobs: deque[T], timeout: float | None) -> None:
        super().__init__(timeout)
        self.jobs = jobs

    def try_complete(self) -> bool:
        return bool(self.jobs) and self.force_complete()

    def on_complete(self) -> T | None:
        if self.outcome in ("expired", "closed"):
            return None
        return self.jobs.popleft()

    def on_undelivered(self, result: T | None) -> None:
        if result is not None:
            self.jobs.appendleft(result)  # its worker was cancelled: the job is the next one again


class JobQueue(Generic[T]):
    """Jobs in their order, for the worker that has waited longest."""

    def __init__(self) -> None:
        self.jobs: deque[T] = deque()
        self._purgatory = DelayedOperationPurgatory("jobs")

    def put(self, job: T) -> None:
        """Add a job. One waiting worker gets it."""
        self.jobs.append(job)
        self._purgatory.check_and_complete("jobs", limit=1)

    async def take(self, timeout: float | None = None) -> T | None:
        """Wait for a job, for `timeout` seconds at most; `None` if none has come."""
        try:
            return await self._purgatory.try_complete_else_watch(Take(self.jobs, timeout), ["jobs"])
        finally:
            # A job that this worker could not take any more is back in the queue: another worker may be waiting.
            if self.jobs:
                self._purgatory.check_and_complete("jobs", limit=1)

    async def aclose(self) -> None:
        """Let the waiting workers go, each with `None`."""
        await self._purgatory.aclose()
