"""The job queue: no job is lost, none is leased twice at once, and workers are served in their order."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.job_queue import JobQueue, Lease, Receive, StaleReceipt
from purgatory import PurgatoryClosed
from tests.support.operations import FaultLog, turn, wait


def taken(receive: Receive[int]) -> Lease[int]:
    """The lease of a worker that has a job."""
    lease = receive.result()
    assert lease is not None
    return lease


async def test_close_lets_workers_go_and_leases_stay_without_a_lapse(clock: FaultLog) -> None:
    queue: JobQueue[int] = JobQueue(clock=clock)
    queue.put(7)
    lease = taken(queue.receive())
    waiting = queue.receive()
    await queue.aclose()
    assert await waiting is None
    with pytest.raises(PurgatoryClosed, match="the queue is closed and takes no more jobs"):
        queue.put(8)
    with pytest.raises(PurgatoryClosed):
        queue.receive()
    queue.extend(lease.receipt, 1.0)
    clock.advance(100.0)
    queue.acknowledge(lease.receipt)


def test_receipt_of_a_lease_that_is_over_is_refused(clock: FaultLog) -> None:
    queue: JobQueue[int] = JobQueue(clock=clock)
    queue.put(7)
    receipt = taken(queue.receive()).receipt
    queue.acknowledge(receipt)
    for refused in (queue.acknowledge, queue.release, lambda receipt: queue.extend(receipt, 30.0)):
        with pytest.raises(StaleReceipt, match=f"receipt {receipt} has no lease: it has lapsed, or its job was"):
            refused(receipt)


def test_bad_values_are_refused() -> None:
    queue: JobQueue[int] = JobQueue()
    for value in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"visibility must be more than 0 and finite, not {value}"):
            JobQueue(visibility=value)
        with pytest.raises(ValueError, match=rf"seconds must be more than 0 and finite, not {value}"):
            queue.extend(0, value)
    with pytest.raises(ValueError, match="max_deliveries must be more than 0 and finite, not 0"):
        JobQueue(max_deliveries=0)


@pytest.mark.parametrize("cancelled_first", [True, False])
@pytest.mark.parametrize("source", ["put", "lapse"])
async def test_job_of_a_worker_that_is_cancelled_at_its_delivery_goes_to_the_next(
    cancelled_first: bool, source: str, clock: FaultLog
) -> None:
    queue: JobQueue[int] = JobQueue(30.0, clock=clock)
    if source == "lapse":
        queue.put(7)
        taken(queue.receive())

    first = asyncio.ensure_future(wait(queue.receive()))
    await turn()
    second = queue.receive()
    await turn()
    if cancelled_first:
        first.cancel()
    if source == "lapse":
        clock.advance(30.0)
    else:
        queue.put(7)
    first.cancel()
    assert not second.done(), "it is leased to the worker that will not take it"
    with pytest.raises(asyncio.CancelledError):
        await first
    assert taken(second).job.body == 7
    assert taken(second).job.deliveries == (2 if source == "lapse" else 1), "the cancelled one is not counted"


async def test_job_whose_lease_is_over_when_its_worker_is_cancelled_is_not_taken_back_again(clock: FaultLog) -> None:
    queue: JobQueue[int] = JobQueue(30.0, clock=clock)
    worker = asyncio.ensure_future(wait(queue.receive()))
    await turn()
    queue.put(7)
    clock.advance(30.0)
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert taken(queue.receive()).job.deliveries == 2
    assert not clock.faults


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put", "turn"]), st.just(0)),
        st.tuples(st.just("receive"), st.integers(0, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["acknowledge", "release", "extend"]), st.integers(0, 20)),
        st.tuples(st.just("advance"), st.integers(1, 4)),
    ),
    max_size=60,
)


class Traffic:
    """Jobs and workers of a queue, and what holds after each step."""

    def __init__(self) -> None:
        self.clock = FaultLog()
        self.queue: JobQueue[int] = JobQueue(3.0, max_deliveries=2, clock=self.clock)
        self.put = 0
        self.done: set[int] = set()
        self.receives: list[Receive[int]] = []
        self.tasks: list[asyncio.Task[Lease[int] | None]] = []
        self.deadlines: dict[int, float] = {}
        """By receipt, of all leases that there were."""

    async def perform(self, step: str, n: int) -> None:
        waiting = [receive for receive in self.receives if not receive.done()]
        oldest = min(self.queue._ready, default=None)
        if step == "put":
            self.put += 1
            self.queue.put(self.put)
        elif step == "receive":
            self.receives.append(self.queue.receive(n + 0.5))  # leases end at full seconds: there are no ties
            self.tasks.append(asyncio.ensure_future(wait(self.receives[-1])))
            if oldest is not None:
                assert taken(self.receives[-1]).job is oldest
            await turn()
        elif step == "turn":
            await turn()
        elif step == "cancel":
            self.tasks = [task for task in self.tasks if not task.done()]
            if self.tasks:
                self.tasks[n % len(self.tasks)].cancel()
        elif step == "advance":
            for _ in range(2 * n):
                living = {
                    receipt for receipt in self.queue._leases if self.deadlines[receipt] > self.clock.time() + 0.5
                }
                self.clock.advance(0.5)
                assert living <= self.queue._leases.keys()
                self.check(waiting)
        elif self.deadlines:
            self.use(step, list(self.deadlines)[-1 - n % len(self.deadlines)])
        self.check(waiting)

    def use(self, step: str, receipt: int) -> None:
        lease = self.queue._leases.get(receipt)
        try:
            if step == "extend":
                self.queue.extend(receipt, 2.0)
                self.deadlines[receipt] = self.clock.time() + 2.0
            else:
                getattr(self.queue, step)(receipt)
                assert receipt not in self.queue._leases
        except StaleReceipt:
            assert lease is None
        else:
            assert lease is not None
            if step == "acknowledge":
                self.done.add(lease.job.body)

    def check(self, waiting: list[Receive[int]]) -> None:
        """Each job is in one place. `waiting` are the workers that waited before this step, in their order."""
        leases = self.queue._leases
        jobs = [*self.queue._ready, *(lease.job for lease in leases.values()), *self.queue.dead]
        assert sorted([*self.done, *(job.body for job in jobs)]) == list(range(1, self.put + 1))
        assert all(job.deliveries <= 2 for job in jobs)
        assert all(job.deliveries == 2 for job in self.queue.dead)
        assert all(job.deliveries < 2 for job in self.queue._ready)
        left = [receive for receive in waiting if not receive.done()]
        served = [receive for receive in waiting if receive.outcome == "satisfied"]
        assert not (left and served) or waiting.index(served[-1]) < waiting.index(left[0])
        assert not (left and self.queue._ready)
        for receipt in leases.keys() - self.deadlines.keys():
            assert receipt > max(self.deadlines, default=-1)
            self.deadlines[receipt] = self.clock.time() + 3.0
        now = self.clock.time()
        assert all(self.deadlines[receipt] > now for receipt in leases)
        assert not self.clock.faults

    async def end(self) -> None:
        """Every job is acknowledged or dead in the end."""
        for _ in range(4):
            await self.perform("advance", 4)
            await turn()
            while self.queue._ready:
                await self.perform("receive", 0)
                await self.perform("acknowledge", 0)
        assert self.done | {job.body for job in self.queue.dead} == set(range(1, self.put + 1))
        await self.queue.aclose()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert (len(self.queue._timer), self.queue._purgatory.num_delayed) == (0, 0)


@given(STEPS)
def test_no_job_is_lost_or_leased_twice_whatever_workers_do(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        traffic = Traffic()
        for step, n in steps:
            await traffic.perform(step, n)
        await traffic.end()

    asyncio.run(run())
