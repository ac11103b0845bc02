"""Tasks that wait: the cost of a wait, and the wake-up of the right ones.

Await: the cost of one wait of a task that exists anyway, as a request handler does. The usual way is
an `asyncio.Event` under `asyncio.timeout`. The floor is a bare future without any timeout; no awaitable costs less.

Wakeup: many tasks wait on one key, and an event satisfies one of them, one in a hundred, or all.
Each waiter is a task that waits for an offset in a log; a publisher moves the log's end. The usual alternatives have
one `asyncio.Condition` for all: every change wakes every waiter, which tests its condition and
waits again. The careful alternative is a list of offsets with a future each. All of these wait without a deadline,
which is to their advantage; ours have one of an hour.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from purgatory import DelayedOperationPurgatory
from purgatory.bench.case import OURS, Case, Figures, Metric, Scenario
from purgatory.bench.machine import Heartbeat
from purgatory.bench.scenarios.pending import TIMEOUT, Operation

KEYS: Final = ("key",)
AWAITS: Final = (OURS, "Event + timeout", "future (floor)")

Waiting = list[Callable[[], object]]
"""The calls that complete the present waits."""


def _await_once(implementation: str, waiting: Waiting) -> Callable[[], Awaitable[None]]:
    watch = DelayedOperationPurgatory().try_complete_else_watch
    create_future = asyncio.get_running_loop().create_future

    async def ours() -> None:
        operation = Operation(TIMEOUT)
        waiting.append(operation.force_complete)
        await watch(operation, KEYS)

    async def event() -> None:
        event = asyncio.Event()
        waiting.append(event.set)
        async with asyncio.timeout(TIMEOUT):
            await event.wait()

    async def floor() -> None:
        future: asyncio.Future[None] = create_future()
        waiting.append(partial(future.set_result, None))
        await future

    return dict(zip(AWAITS, (ours, event, floor), strict=True))[implementation]


async def run_awaits(case: Case) -> Figures:
    """Complete all waits, again and again."""
    tasks, waits = case.parameters["tasks"], case.parameters["waits"]
    waiting: Waiting = []
    wait = _await_once(case.implementation, waiting)

    async def handler() -> None:
        for _ in range(waits + 1):
            await wait()

    handlers = [asyncio.create_task(handler()) for _ in range(tasks)]
    began = 0.0
    for turn in range(waits + 1):
        while len(waiting) < tasks:
            await asyncio.sleep(0)
        if turn == 1:  # all tasks have been started by then
            began = time.process_time()
        completions = waiting.copy()
        waiting.clear()
        for complete in completions:
            complete()
    await asyncio.gather(*handlers)
    return {"us": 1e6 * (time.process_time() - began) / (waits * tasks)}


class Log:
    """The end of a log, the number of waiters that ran, and the time of the last one."""

    def __init__(self) -> None:
        self.end = 0
        self.ran: int = 0
        self.last: float = 0.0


class Fetch(Operation):
    __slots__ = ("log", "offset")

    def __init__(self, log: Log, offset: int) -> None:
        super().__init__(TIMEOUT)
        self.log: Log = log
        self.offset: int = offset

    def try_complete(self) -> bool:
        return self.log.end > self.offset and self.force_complete()


Wait = Callable[[int], Awaitable[None]]
Publish = Callable[[], Awaitable[None]]


def _ours(log: Log, *, soon: bool = False) -> tuple[Wait, Publish]:
    purgatory = DelayedOperationPurgatory()

    async def wait(offset: int) -> None:
        await purgatory.try_complete_else_watch(Fetch(log, offset), KEYS)

    check = purgatory.check_and_complete_soon if soon else purgatory.check_and_complete

    async def publish() -> None:
        check(KEYS[0])

    return wait, publish


def _condition(log: Log) -> tuple[Wait, Publish]:
    changed = asyncio.Condition()

    async def wait(offset: int) -> None:
        async with changed:
            await changed.wait_for(lambda: log.end > offset)

    async def publish() -> None:
        async with changed:
            changed.notify_all()

    return wait, publish


def _futures(log: Log) -> tuple[Wait, Publish]:
    waiting: list[tuple[int, asyncio.Future[None]]] = []
    create_future = asyncio.get_running_loop().create_future

    async def wait(offset: int) -> None:
        if log.end <= offset:
            future = create_future()
            waiting.append((offset, future))
            await future

    async def publish() -> None:
        end = log.end
        still = []
        for each in waiting:
            if end > each[0]:
                each[1].set_result(None)
            else:
                still.append(each)
        waiting[:] = still

    return wait, publish


WAKEUPS: Final[dict[str, Callable[[Log], tuple[Wait, Publish]]]] = {
    OURS: _ours,
    f"{OURS}, soon": partial(_ours, soon=True),
    "Condition": _condition,
    "list of futures": _futures,
}


async def run_wakeups(case: Case) -> Figures:
    """Let all tasks wait, publish, and measure until the satisfied ones have run."""
    waiters = case.parameters["waiters"]
    right = {"one": 1, "1 %": waiters // 100, "all": waiters}[case.parameters["satisfied"]]
    log = Log()
    wait, publish = WAKEUPS[case.implementation](log)

    async def waiter(offset: int) -> None:
        await wait(offset)
        log.ran += 1
        log.last = time.perf_counter()

    # The satisfied tasks are spread evenly over all; a single one is in the middle.
    stride = waiters // right
    offsets = [n // stride if n % stride == stride // 2 else waiters for n in range(waiters)]
    tasks = [asyncio.create_task(waiter(offset)) for offset in offsets]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    gc.collect()
    gc.freeze()  # collections of the objects that exist already are not measured
    heartbeat = Heartbeat()
    beating = asyncio.create_task(heartbeat.until(lambda: log.ran >= right))
    await asyncio.sleep(0)
    log.end = right
    began = time.perf_counter()
    await publish()
    await beating
    return {"ms": 1e3 * (log.last - began), "stall_ms": 1e3 * heartbeat.longest}


AWAIT = Scenario(
    name="await",
    title="Await path: tasks that are there anyway wait",
    implementations=AWAITS,
    full=[{"tasks": 2_000, "waits": 200}, {"tasks": 100_000, "waits": 5}],
    quick=[{"tasks": 1_000, "waits": 20}],
    main=run_awaits,
    metrics=(Metric("us", "CPU of a wait of a task", "µs", compared=True),),
)
WAKEUP = Scenario(
    name="wakeup",
    title="Selective wake-up",
    implementations=WAKEUPS,
    full=[{"satisfied": satisfied, "waiters": 100_000} for satisfied in ("one", "1 %", "all")],
    quick=[{"satisfied": satisfied, "waiters": 10_000} for satisfied in ("one", "1 %", "all")],
    main=run_wakeups,
    metrics=(
        Metric("ms", "until the right ones have run", "ms", compared=True),
        Metric("stall_ms", "longest turn of the loop", "ms"),
    ),
)
