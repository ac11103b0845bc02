"""Dask's distributed semaphore, whose waiters are operations: `install()` puts it in the place of Dask's own.

Dask's scheduler has an `asyncio.Event` for each semaphore. A release wakes all who wait, of which one gets the lease
and the others wait again. Here each is an operation, and a release tries the first one.

Dask's tests are only in its repository. In a checkout of it with its requirements installed, as a plugin of pytest:

    PYTHONPATH=HERE:PROJECT python -m pytest -p port distributed/tests/test_semaphore.py
"""

from typing import Any

import distributed.scheduler
from distributed.metrics import time
from distributed.semaphore import SemaphoreExtension
from distributed.utils import log_errors

from purgatory import DelayedOperation, DelayedOperationPurgatory


class Acquire(DelayedOperation[bool]):
    """Waits for a lease. Yields whether it has got one."""

    def __init__(self, semaphores: "Semaphores", name: Any, lease_id: str, timeout: float | None) -> None:
        super().__init__(timeout)
        self.semaphores = semaphores
        self.name = name
        self.lease_id = lease_id
        self.has_lease = False

    def try_complete(self) -> bool:
        self.has_lease = self.semaphores._get_lease(self.name, self.lease_id)
        return self.has_lease and self.force_complete()

    def on_complete(self) -> bool:
        return self.has_lease

    def on_undelivered(self, result: bool, /) -> None:
        """Whoever asked has gone: the next one gets the lease."""
        if result:
            self.semaphores.release(self.name, self.lease_id)


class Semaphores(SemaphoreExtension):  # type: ignore[misc]
    """The semaphores of a scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.purgatory = DelayedOperationPurgatory("semaphores")
        super().__init__(scheduler)

    @log_errors  # type: ignore[untyped-decorator]
    async def acquire(self, name: Any = None, timeout: float | None = None, lease_id: Any = None) -> bool:
        if not self._semaphore_exists(name):
            raise RuntimeError(f"Semaphore or Lock `{name}` not known.")
        if isinstance(name, list):
            name = tuple(name)
        began = time()
        self.metrics["pending"][name] += 1
        acquire = Acquire(self, name, lease_id, None if timeout is None else max(0.0, timeout))
        result = await self.purgatory.try_complete_else_watch(acquire, [name])
        average = self.metrics["average_pending_lease_time"]
        average[name] = (average[name] + time() - began) / 2
        self.metrics["pending"][name] -= 1
        return result

    def _release_value(self, name: Any, lease_id: Any) -> None:
        super()._release_value(name, lease_id)
        self.purgatory.check_and_complete_soon(name, limit=1)


def install() -> None:
    """Let new schedulers have these semaphores."""
    distributed.scheduler.DEFAULT_EXTENSIONS["semaphores"] = Semaphores


def pytest_configure() -> None:
    install()
