"""The callback path and the await path, apart, because they answer different questions.

Callback: the cost of an operation without an awaiting task, from its creation to its completion. The alternatives are a
task for each waiter, its creation included, which is the usual way, and a `call_at` and sets by key, without a task.
A thousand, or a hundred thousand, are started, then completed, again and again.

Await: the cost of one wait of a task that exists anyway, as a request handler does. The usual way is
an `asyncio.Event` under `asyncio.timeout`. The floor is a bare future without any timeout; no awaitable costs less.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from purgatory import DelayedOperationPurgatory
from purgatory.bench.case import OURS, Case, Figures, Metric, Scenario
from purgatory.bench.rivals import PENDING, TIMEOUT, Operation

KEYS: Final = ("key",)
FLOOR: Final = "future (floor)"


async def run_callbacks(case: Case) -> Figures:
    """Start as many operations as the case says and complete them, again and again."""
    pending, times = case.parameters["pending"], case.parameters["times"]
    implementation, complete = PENDING[case.implementation]
    start = implementation()

    async def turn() -> None:
        waiting = start(pending, KEYS)
        await asyncio.sleep(0)
        for each in waiting:
            complete(each)
        await asyncio.sleep(0)

    await turn()  # a warm-up; its dead entries stand for those that the last call leaves
    began = time.process_time()
    for _ in range(times):
        await turn()
    return {"us": 1e6 * (time.process_time() - began) / (pending * times)}


Waiting = list[Callable[[], object]]
"""The calls that complete the present waits."""


Wait = Callable[[], Awaitable[None]]


def _await_operation(waiting: Waiting) -> Wait:
    watch = DelayedOperationPurgatory().try_complete_else_watch

    async def wait() -> None:
        operation = Operation(TIMEOUT)
        waiting.append(operation.force_complete)
        await watch(operation, KEYS)

    return wait


def _await_event(waiting: Waiting) -> Wait:
    async def wait() -> None:
        event = asyncio.Event()
        waiting.append(event.set)
        async with asyncio.timeout(TIMEOUT):
            await event.wait()

    return wait


def _await_future(waiting: Waiting) -> Wait:
    loop = asyncio.get_running_loop()

    async def wait() -> None:
        future: asyncio.Future[None] = loop.create_future()
        waiting.append(partial(future.set_result, None))
        await future

    return wait


AWAITS: Final[dict[str, Callable[[Waiting], Wait]]] = {
    OURS: _await_operation,
    "Event + timeout": _await_event,
    FLOOR: _await_future,
}


async def run_awaits(case: Case) -> Figures:
    """Complete all waits, again and again."""
    tasks, waits = case.parameters["tasks"], case.parameters["waits"]
    waiting: Waiting = []
    wait = AWAITS[case.implementation](waiting)

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


CALLBACK = Scenario(
    name="callback",
    title="Callback path: register and complete, no awaiting task",
    implementations=PENDING,
    full=[{"pending": 1_000, "times": 300}, {"pending": 100_000, "times": 2}],
    quick=[{"pending": 1_000, "times": 20}],
    main=run_callbacks,
    metrics=(Metric("us", "CPU of an operation that is registered and completed", "µs", compared=True),),
)
AWAIT = Scenario(
    name="await",
    title="Await path: tasks that are there anyway wait",
    implementations=AWAITS,
    full=[{"tasks": 2_000, "waits": 200}, {"tasks": 100_000, "waits": 5}],
    quick=[{"tasks": 1_000, "waits": 20}],
    main=run_awaits,
    metrics=(Metric("us", "CPU of a wait of a task", "µs", compared=True),),
)
