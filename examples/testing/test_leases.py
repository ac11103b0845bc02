"""The leases of the [job queue](../job_queue.py): a worker that is too slow loses its job to the next one."""

import asyncio

import pytest

from examples.job_queue import JobQueue, StaleReceipt


async def test_lapsed_lease_wakes_the_worker_that_waits() -> None:
    loop = asyncio.get_running_loop()
    queue: JobQueue[str] = JobQueue(visibility=60.0)
    queue.put("resize 7")
    slow = await queue.receive()
    assert slow is not None
    leased = loop.time()
    next_lease = await queue.receive()
    assert loop.time() - leased == pytest.approx(60.0, abs=0.002)  # a tick is a millisecond
    assert next_lease is not None
    assert next_lease.job.body == "resize 7"
    with pytest.raises(StaleReceipt):
        queue.acknowledge(slow.receipt)


async def test_acknowledged_job_does_not_come_back() -> None:
    loop = asyncio.get_running_loop()
    queue: JobQueue[str] = JobQueue(visibility=60.0)
    queue.put("resize 7")
    lease = await queue.receive()
    assert lease is not None
    await asyncio.sleep(59.0)
    queue.acknowledge(lease.receipt)
    asked = loop.time()
    assert await queue.receive(timeout=300.0) is None
    assert loop.time() - asked == pytest.approx(300.0, abs=0.002)


async def test_worker_cancelled_at_the_delivery_loses_no_job() -> None:
    loop = asyncio.get_running_loop()
    queue: JobQueue[str] = JobQueue(visibility=60.0)

    async def work() -> None:
        await queue.receive()

    worker = asyncio.create_task(work())
    await asyncio.sleep(100.0)
    queue.put("resize 7")
    worker.cancel()
    asked = loop.time()
    lease = await queue.receive()
    assert loop.time() == asked  # and not after the lease
    assert lease is not None
    assert lease.job.deliveries == 1
