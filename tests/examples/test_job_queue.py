"""The job queue: no job is lost, none is leased twice at once, and workers are served in their order."""

import asyncio
import math
import random
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.job_queue import JobQueue, Lease, Receive, StaleReceipt
from purgatory import PurgatoryClosed
from purgatory.asgi import DelayedResponse
from tests.support.operations import FaultLog, turn


def taken(receive: Receive[int]) -> Lease[int]:
    """The lease of a worker that has a job."""
    lease = receive.result()
    assert lease is not None
    return lease


@pytest.fixture
def queue(clock: FaultLog) -> JobQueue[int]:
    return JobQueue(visibility=30.0, clock=clock)


class TestLeases:
    def test_job_whose_lease_lapses_wakes_a_waiting_worker_at_that_moment(
        self, queue: JobQueue[int], clock: FaultLog
    ) -> None:
        queue.put(7)
        dead = taken(queue.receive())
        waiting = queue.receive(timeout=100.0)
        clock.advance(29.999)
        assert not waiting.done()
        clock.advance(0.001)
        assert (taken(waiting).job.body, taken(waiting).job.deliveries) == (7, 2)
        assert taken(waiting).receipt > dead.receipt

    async def test_lapse_wakes_a_worker_on_a_real_loop_and_not_early(self) -> None:
        queue: JobQueue[int] = JobQueue(visibility=0.01)
        queue.put(7)
        loop = asyncio.get_running_loop()
        earliest = loop.time() + 0.01
        first = await queue.receive()
        second = await queue.receive()
        assert loop.time() >= earliest
        assert first is not None
        assert second is not None
        assert second.job is first.job
        await queue.aclose()

    def test_job_that_comes_back_has_its_old_place(self, queue: JobQueue[int], clock: FaultLog) -> None:
        for job in range(4):
            queue.put(job)
        taken(queue.receive())
        clock.advance(10.0)
        taken(queue.receive())
        clock.advance(20.0)
        assert taken(queue.receive()).job.body == 0, "1 is leased for ten more seconds"
        clock.advance(10.0)
        assert [taken(queue.receive()).job.body for _ in range(3)] == [1, 2, 3]

    def test_extended_lease_lapses_later_and_one_given_back_at_once(
        self, queue: JobQueue[int], clock: FaultLog
    ) -> None:
        queue.put(7)
        lease = taken(queue.receive())
        waiting = queue.receive()
        for _ in range(5):
            clock.advance(29.0)
            queue.extend(lease.receipt, 30.0)
        clock.advance(29.999)
        assert not waiting.done()
        queue.extend(lease.receipt, 0.0)
        clock.advance(0.0)
        assert taken(waiting).job.body == 7

    def test_receipt_of_a_lease_that_is_over_is_refused(self, queue: JobQueue[int], clock: FaultLog) -> None:
        queue.put(7)
        old = taken(queue.receive()).receipt
        clock.advance(30.0)
        new = taken(queue.receive()).receipt
        for refused in (queue.acknowledge, lambda receipt: queue.extend(receipt, 30.0)):
            with pytest.raises(StaleReceipt, match=f"receipt {old} has no lease: it has lapsed"):
                refused(old)
        clock.advance(29.0)
        queue.acknowledge(new)
        with pytest.raises(StaleReceipt, match=f"receipt {new} has no lease"):
            queue.acknowledge(new)
        clock.advance(100.0)
        assert not queue.receive(0.0).done(), "it is done"

    def test_job_that_is_never_acknowledged_is_dead_after_the_last_delivery(self, clock: FaultLog) -> None:
        queue: JobQueue[int] = JobQueue(30.0, max_deliveries=2, clock=clock)
        queue.put(7)
        taken(queue.receive())
        clock.advance(30.0)
        taken(queue.receive())
        waiting = queue.receive()
        clock.advance(30.0)
        assert [(job.body, job.deliveries) for job in queue.dead] == [(7, 2)]
        assert not waiting.done()
        queue.put(8)
        assert taken(waiting).job.body == 8

    def test_bad_values_are_refused(self, queue: JobQueue[int]) -> None:
        for value in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match=rf"visibility must be more than 0 and finite, not {value}"):
                JobQueue(visibility=value)
        with pytest.raises(ValueError, match="max_deliveries must be more than 0 and finite, not 0"):
            JobQueue(max_deliveries=0)
        queue.put(7)
        receipt = taken(queue.receive()).receipt
        for value in (-1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match=rf"seconds must be 0 or more and finite, not {value}"):
                queue.extend(receipt, value)
        queue.acknowledge(receipt)

    def test_many_leases_cost_no_wake_ups_and_lapse_for_as_many_workers(
        self, queue: JobQueue[int], clock: FaultLog
    ) -> None:
        for job in range(10_000):
            queue.put(job)
            taken(queue.receive())
        workers = [queue.receive(3600.0) for _ in range(10_001)]
        clock.advance(29.0)
        assert queue._timer.statistics().wake_ups <= 20, "they move down the wheels once, in slices of a thousand"
        clock.advance(1.0)
        assert [taken(worker).job.body for worker in workers[:-1]] == list(range(10_000))
        assert not workers[-1].done()
        assert not clock.faults


class TestWorkers:
    def test_workers_are_served_in_their_order_and_a_new_one_is_the_last(
        self, queue: JobQueue[int], clock: FaultLog
    ) -> None:
        queue.put(0)
        taken(queue.receive())
        workers = [queue.receive() for _ in range(3)]
        queue.put(1)
        assert taken(workers[0]).job.body == 1
        workers.append(queue.receive())
        clock.advance(29.0)
        queue.put(2)
        assert taken(workers[1]).job.body == 2
        clock.advance(1.0)
        new = queue.receive()
        assert [taken(worker).job.body for worker in workers[2:]] == [0, 1], "two leases have lapsed"
        assert not new.done()

    def test_worker_gets_none_at_its_deadline(self, queue: JobQueue[int], clock: FaultLog) -> None:
        waiting = queue.receive(timeout=20.0)
        clock.advance(20.0)
        assert (waiting.outcome, waiting.result()) == ("expired", None)
        queue.put(7)
        assert taken(queue.receive(timeout=0.0)).job.body == 7

    async def test_close_lets_workers_go_and_leases_can_be_acknowledged(self) -> None:
        queue: JobQueue[int] = JobQueue()
        queue.put(7)
        lease = taken(queue.receive())
        waiting = queue.receive()
        await queue.aclose()
        assert await waiting is None
        queue.acknowledge(lease.receipt)
        with pytest.raises(PurgatoryClosed, match="the queue is closed and takes no more jobs"):
            queue.put(8)
        with pytest.raises(PurgatoryClosed):
            queue.receive()


class Cancelled:
    """A worker that waits, and a call that cancels it: how it is done depends on the library."""

    def __init__(self, queue: JobQueue[int], how: str) -> None:
        self.queue, self.how = queue, how
        self.scope = anyio.CancelScope()
        self.task = asyncio.ensure_future(self.work())

    async def work(self) -> Lease[int] | None:
        if self.how == "task.cancel":
            return await self.queue.receive()
        if self.how == "anyio":
            with self.scope:
                return await self.queue.receive()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as self.timeout:
                    return await self.queue.receive()
        return None

    def cancel(self) -> None:
        if self.how == "task.cancel":
            self.task.cancel()
        elif self.how == "anyio":
            self.scope.cancel()
        else:
            self.timeout.reschedule(0.0)


class TestCancelledAtDelivery:
    """The job is given to a worker in the same iteration of the loop in which that worker is cancelled."""

    @pytest.mark.parametrize("how", ["task.cancel", "asyncio.timeout", "anyio"])
    @pytest.mark.parametrize("cancelled_first", [True, False])
    @pytest.mark.parametrize("source", ["put", "lapse"])
    async def test_job_goes_to_the_next_worker(
        self, how: str, cancelled_first: bool, source: str, clock: FaultLog
    ) -> None:
        queue: JobQueue[int] = JobQueue(30.0, clock=clock)
        if source == "lapse":
            queue.put(7)
            taken(queue.receive())
        first = Cancelled(queue, how)
        await turn()
        second = queue.receive()
        await turn()
        if cancelled_first:
            first.cancel()
        if source == "lapse":
            clock.advance(30.0)
        else:
            queue.put(7)
        if not cancelled_first:
            first.cancel()
        if cancelled_first and how == "task.cancel":
            assert queue._leases, "leased to the worker that will not take it"
        assert not second.done()
        [outcome] = await asyncio.gather(first.task, return_exceptions=True)
        if isinstance(outcome, Lease):
            # asyncio.timeout has cancelled it too late, and anyio does not cancel a task that is about to go on.
            assert not cancelled_first
            assert how != "task.cancel"
            queue.acknowledge(outcome.receipt)
        else:
            assert taken(second).job.body == 7
            assert taken(second).job.deliveries == (2 if source == "lapse" else 1), "the cancelled one is not counted"
        assert len(queue._leases) == (0 if isinstance(outcome, Lease) else 1)

    async def test_job_waits_if_no_other_worker_does(self) -> None:
        queue: JobQueue[int] = JobQueue()
        worker = Cancelled(queue, "task.cancel")
        await turn()
        queue.put(7)
        queue.put(8)
        worker.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)
        assert [taken(queue.receive()).job.body for _ in range(2)] == [7, 8]

    async def test_job_whose_lease_has_lapsed_meanwhile_comes_back_once(self, clock: FaultLog) -> None:
        queue: JobQueue[int] = JobQueue(30.0, clock=clock)
        worker = Cancelled(queue, "task.cancel")
        await turn()
        queue.put(7)
        worker.cancel()
        clock.advance(30.0)
        await asyncio.gather(worker.task, return_exceptions=True)
        assert taken(queue.receive()).job.body == 7
        assert not queue.receive().done()


async def test_every_job_is_acknowledged_once_whatever_workers_are_cancelled() -> None:
    randomly = random.Random(1)
    queue: JobQueue[int] = JobQueue(visibility=0.01, max_deliveries=1_000_000)
    acknowledged: list[int] = []
    all_done = asyncio.Event()

    async def work() -> None:
        while (lease := await queue.receive()) is not None:
            for _ in range(lease.receipt % 3):  # a part of the workers is cancelled here
                await turn()
            try:
                queue.acknowledge(lease.receipt)
            except StaleReceipt:
                continue
            acknowledged.append(lease.job.body)
            if len(acknowledged) == 1000:
                all_done.set()

    workers = [asyncio.create_task(work()) for _ in range(20)]
    for job in range(1000):
        queue.put(job)
        if randomly.random() < 0.3:
            victim = randomly.randrange(len(workers))
            workers[victim].cancel()
            workers[victim] = asyncio.create_task(work())
        if randomly.random() < 0.5:
            await turn()
    await all_done.wait()
    await queue.aclose()
    await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(acknowledged) == list(range(1000))
    assert (queue._ready, queue._leases, queue.dead) == ([], {}, [])


async def test_worker_that_waits_over_http_gets_its_receipt() -> None:
    queue: JobQueue[int] = JobQueue()

    def render(lease: Lease[int] | None) -> Response:
        return Response(status_code=204) if lease is None else JSONResponse([lease.receipt, lease.job.body])

    async def receive(request: Request) -> DelayedResponse[Lease[int] | None]:
        return DelayedResponse(queue.receive(float(request.query_params["wait"])), render)

    transport = httpx.ASGITransport(Starlette(routes=[Route("/jobs", receive, methods=["POST"])]))
    async with httpx.AsyncClient(transport=transport, base_url="http://jobs") as client:
        assert (await client.post("/jobs?wait=0")).status_code == 204
        waiting = asyncio.ensure_future(client.post("/jobs?wait=300"))
        while not queue._purgatory.num_delayed:
            await turn()
        queue.put(7)
        assert (await waiting).json() == [0, 7]


WORKER = """
import os, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1]))).makefile("rw")
def ask(*words):
    print(*words, file=connection, flush=True)
    return connection.readline().strip()
while receipt := ask("receive", os.getpid(), 0):
    ask("acknowledge", os.getpid(), receipt)
"""


KILLED_BEFORE = {(b"receive", 2), (b"receive", 9), (b"acknowledge", 5)}
KILLED_AFTER = {(b"receive", 5), (b"receive", 14), (b"acknowledge", 12)}
"""The messages at which the process that has sent them is killed, before and after the server has handled them."""


class Processes:
    """A server of a queue, and processes that work for it."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.queue: JobQueue[int] = JobQueue(visibility=0.3, max_deliveries=1_000_000)
        self.acknowledged: list[int] = []
        self.redelivered = False
        self.all_done = asyncio.Event()
        self.messages: Counter[bytes] = Counter()
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.connections: list[asyncio.Task[object]] = []
        self.port = 0

    def start(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", WORKER, str(self.port)])
        self.workers[process.pid] = process

    def kill(self, pid: int) -> None:
        worker = self.workers.pop(pid)
        worker.kill()
        worker.wait()

    def replace(self, pid: int) -> None:
        if pid in self.workers:  # else it was killed before its message was read
            self.kill(pid)
            self.start()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.append(task)
        with suppress(ConnectionError, PurgatoryClosed):
            while words := (await reader.readline()).split():
                verb, pid, receipt = words[0], int(words[1]), int(words[2])
                self.messages[verb] += 1
                message = verb, self.messages[verb]
                if message in KILLED_BEFORE:
                    self.replace(pid)
                if verb == b"receive":
                    if (lease := await self.queue.receive()) is None:
                        break
                    self.redelivered |= lease.job.deliveries > 1
                    writer.write(b"%d\n" % lease.receipt)
                else:
                    with suppress(StaleReceipt):
                        body = self.queue._held(receipt).job.body
                        self.queue.acknowledge(receipt)
                        self.acknowledged.append(body)
                    writer.write(b"over\n")
                if message in KILLED_AFTER:
                    self.replace(pid)
                if len(self.acknowledged) == self.jobs:
                    self.all_done.set()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_jobs_of_killed_processes_are_done_by_others() -> None:
    processes = Processes(jobs=30)
    server = await asyncio.start_server(processes.serve, "127.0.0.1", 0)
    processes.port = server.sockets[0].getsockname()[1]
    for job in range(processes.jobs):
        processes.queue.put(job)
    for _ in range(2):
        processes.start()
    try:
        await asyncio.wait_for(processes.all_done.wait(), 300)
    finally:
        for pid in list(processes.workers):
            processes.kill(pid)
        await processes.queue.aclose()
        server.close()
        await asyncio.gather(*processes.connections)
        await server.wait_closed()
    assert sorted(processes.acknowledged) == list(range(30)), "each once"
    assert processes.redelivered, "some were given to a second process"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put", "turn"]), st.just(0)),
        st.tuples(st.just("receive"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["cancel", "acknowledge"]), st.integers(0, 20)),
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
                else:
                    self.queue.extend(receipt, n % 4)
                    self.leased[receipt] = (self.leased[receipt][0], self.clock.time() + n % 4)
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
            for receipt, (number, deadline) in list(self.leased.items()):
                if deadline <= now:
                    del self.leased[receipt]
                    (self.dead if self.deliveries[number] == 2 else self.ready).add(number)
            for worker in [worker for worker in self.waiting if worker.deadline <= now]:
                assert worker.receive.result() is None
                self.waiting.remove(worker)
            self.see_deliveries()

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


async def test_lease_that_is_extended_after_a_close_does_not_lapse(clock: FaultLog) -> None:
    queue = JobQueue[int](visibility=30.0, clock=clock)
    queue.put(1)
    lease = taken(queue.receive())
    await queue.aclose()
    queue.extend(lease.receipt, 1.0)
    clock.advance(100.0)
    queue.acknowledge(lease.receipt)
