"""The job queue: no job is lost, none is leased twice at once, and workers are served in their order."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.job_queue import JobQueue, Lease, Receive, StaleReceipt
from purgatory import PurgatoryClosed
from tests.support.operations import FaultLog, turn


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

    async def work() -> Lease[int] | None:
        return await queue.receive()

    first = asyncio.ensure_future(work())
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


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put", "turn"]), st.just(0)),
        st.tuples(st.just("receive"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["cancel", "acknowledge", "release"]), st.integers(0, 20)),
        st.tuples(st.just("extend"), st.integers(0, 80)),
        st.tuples(st.just("advance"), st.integers(1, 4)),
    ),
    max_size=60,
)


class Waiting:
    """A worker of the model: its operation, its task, and its deadline."""

    def __init__(self, queue: JobQueue[int], timeout: float, now: float) -> None:
        self.queue, self.timeout, self.deadline = queue, timeout, now + timeout
        self.is_cancelled = False
        self.lease: Lease[int] | None = None
        """The lease that it has been given, from the moment of delivery on."""
        self.task = asyncio.ensure_future(self.work())

    async def work(self) -> None:
        self.receive = self.queue.receive(self.timeout)
        await self.receive


class Model:
    """The queue beside sets of numbers. Leases end at full seconds and workers' deadlines at half ones: no ties."""

    def __init__(self) -> None:
        self.clock = FaultLog()
        self.queue: JobQueue[int] = JobQueue(3.0, max_deliveries=2, clock=self.clock)
        self.put = 0
        self.ready: set[int] = set()
        self.leased: dict[int, tuple[int, float]] = {}
        self.done: set[int] = set()
        self.dead: set[int] = set()
        self.deliveries: dict[int, int] = {}
        self.waiting: list[Waiting] = []
        self.undelivered: list[Waiting] = []
        """Workers that have been given a job since the last iteration of the loop."""
        self.receipts: list[int] = []

    async def perform(self, step: str, n: int) -> None:
        if step == "put":
            self.ready.add(self.put)
            self.deliveries[self.put] = 0
            self.queue.put(self.put)
            self.put += 1
            self.see_deliveries()
        elif step == "receive":
            worker = Waiting(self.queue, n + 0.5, self.clock.time())
            self.waiting.append(worker)
            await self.turn(is_oldest_due=bool(self.ready))
        elif step == "turn":
            await self.turn()
        elif step == "cancel":
            workers = self.waiting + self.undelivered
            if workers:
                worker = workers[n % len(workers)]
                worker.task.cancel()
                worker.is_cancelled = True
        elif step == "advance":
            await self.advance(n)
        elif self.receipts:
            receipt = self.receipts[n % len(self.receipts)]
            try:
                if step == "acknowledge":
                    self.queue.acknowledge(receipt)
                    self.done.add(self.leased.pop(receipt)[0])
                elif step == "release":
                    self.queue.release(receipt)
                    self.take_back(receipt)
                    self.see_deliveries()
                else:
                    self.queue.extend(receipt, 1 + n % 4)
                    self.leased[receipt] = (self.leased[receipt][0], self.clock.time() + 1 + n % 4)
            except StaleReceipt:
                assert receipt not in self.leased
        self.check()

    async def turn(self, is_oldest_due: bool = False) -> None:
        for _ in range(3):
            await turn()
        cancelled = [worker for worker in self.undelivered if worker.is_cancelled]
        self.undelivered.clear()
        self.waiting = [worker for worker in self.waiting if not worker.is_cancelled]
        for worker in cancelled:
            assert worker.lease is not None
            if worker.lease.receipt in self.leased:
                number, _ = self.leased.pop(worker.lease.receipt)
                self.deliveries[number] -= 1
                self.ready.add(number)
        self.see_deliveries(is_oldest_due)
        # Workers that a cancelled one has passed its job on to, and that were cancelled too, have passed it on as well.
        self.undelivered.clear()

    async def advance(self, seconds: int) -> None:
        end = self.clock.time() + seconds
        while self.clock.time() < end or any(deadline <= end for _, deadline in self.leased.values()):
            lapsing = [deadline for _, deadline in self.leased.values() if deadline <= end]
            now = min([end, self.clock.time() + 0.5, *lapsing])
            self.clock.advance_to(max(now, self.clock.time()))
            for receipt, (_, deadline) in list(self.leased.items()):
                if deadline <= now:
                    self.take_back(receipt)
            for worker in [worker for worker in self.waiting if worker.deadline <= now]:
                assert worker.receive.result() is None
                self.waiting.remove(worker)
            self.see_deliveries()

    def take_back(self, receipt: int) -> None:
        number, _ = self.leased.pop(receipt)
        (self.dead if self.deliveries[number] == 2 else self.ready).add(number)

    def see_deliveries(self, is_oldest_due: bool = False) -> None:
        """The workers that have waited longest have got the jobs, and a new worker the oldest of those that waited."""
        expected = self.waiting[: len(self.ready)]
        assert [worker for worker in self.waiting if worker.receive.done()] == expected
        oldest = sorted(self.ready)[: len(expected)]
        given = []
        for worker in expected:
            worker.lease = taken(worker.receive)
            number = worker.lease.job.body
            given.append(number)
            self.ready.remove(number)
            self.deliveries[number] += 1
            assert worker.lease.job.deliveries == self.deliveries[number]
            assert worker.lease.receipt not in self.receipts
            self.receipts.append(worker.lease.receipt)
            self.leased[worker.lease.receipt] = (number, self.clock.time() + 3.0)
            self.undelivered.append(worker)
        del self.waiting[: len(expected)]
        assert not is_oldest_due or given == oldest

    def check(self) -> None:
        """Each job is in one place, and in the same one as in the queue."""
        assert sorted(job.body for job in self.queue._ready) == sorted(self.ready)
        assert {receipt: lease.job.body for receipt, lease in self.queue._leases.items()} == {
            receipt: number for receipt, (number, _) in self.leased.items()
        }
        assert {job.body for job in self.queue.dead} == self.dead
        places = [*self.ready, *(number for number, _ in self.leased.values()), *self.done, *self.dead]
        assert sorted(places) == list(range(self.put))
        assert not (self.ready and self.waiting)
        assert not self.clock.faults

    async def end(self) -> None:
        """Every job is acknowledged or dead in the end."""
        await self.turn()
        for _ in range(4):
            await self.perform("advance", 4)
            while self.ready:
                await self.perform("receive", 0)
                await self.perform("acknowledge", len(self.receipts) - 1)
        assert self.done | self.dead == set(range(self.put))
        await self.queue.aclose()
        await asyncio.gather(*(worker.task for worker in self.waiting))
        assert (len(self.queue._timer), self.queue._purgatory.num_delayed) == (0, 0)


@given(STEPS)
def test_jobs_and_workers_agree_with_a_model(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        model = Model()
        for step, n in steps:
            await model.perform(step, n)
        await model.end()

    asyncio.run(run())
