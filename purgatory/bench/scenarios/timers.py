"""The cost of setting a timer and cancelling one, by the number of pending timers.

That number is constant: each step cancels the oldest timer and sets a new one, for 30 to 90 seconds from now. The loop
runs an iteration after every thousand steps, in which it drops the cancelled timers.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from operator import methodcaller
from typing import Any, Final

from purgatory import TimerTask, WheelTimer
from purgatory.bench.case import ALONE, LOOPS, OURS, Case, Figures, Metric, Plot, Scenario

STEPS_A_TURN: Final = 1000


class Task(TimerTask):
    """The smallest task of a timer."""

    __slots__ = ()

    def run(self) -> None:
        """Never called: no task becomes due here."""


def _nothing() -> None:
    pass


Timer = tuple[Callable[[float], Any], Callable[[Any], object]]
"""A call that inserts a task with a delay and returns a handle, and a call that cancels the handle."""


def ours() -> Timer:
    timer = WheelTimer()
    add, now = timer.add, asyncio.get_running_loop().time

    def insert(delay: float) -> Task:
        task = Task()
        add(task, now() + delay)
        return task

    return insert, timer.cancel


def _calls(call_later: Callable[..., Any]) -> Timer:
    return lambda delay: call_later(delay, _nothing), methodcaller("cancel")


IMPLEMENTATIONS: Final[dict[str, Callable[[], Timer]]] = {
    OURS: ours,
    f"{OURS}, call_later": lambda: _calls(WheelTimer().call_later),
    "loop.call_later": lambda: _calls(asyncio.get_running_loop().call_later),
    ALONE: lambda: (float, float),
}


async def run(case: Case) -> Figures:
    """Fill the timer, then cancel and insert."""
    pending, steps = case.parameters["pending"], case.parameters["steps"]
    insert, cancel = IMPLEMENTATIONS[case.implementation]()
    randomly = random.Random(1)
    delays = [30 + 60 * randomly.random() for _ in range(STEPS_A_TURN)]
    handles: deque[Any] = deque()
    while len(handles) < pending:
        handles.extend(insert(delay) for delay in delays[: pending - len(handles)])
        await asyncio.sleep(0)
    for measured in (False, True):  # the first time is a warm-up: asyncio has nothing to drop yet
        start = time.process_time()
        for _ in range(steps // STEPS_A_TURN):
            for delay in delays:
                cancel(handles.popleft())
                handles.append(insert(delay))
            await asyncio.sleep(0)
        if measured:
            return {"ns": 1e9 * (time.process_time() - start) / steps}
    raise AssertionError("measured the second time")


def cases(quick: bool) -> list[Case]:
    sizes = (1_000, 20_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    return [
        Case("timers", implementation, loop, {"pending": pending, "steps": max(20_000 if quick else 200_000, pending)})
        for loop in LOOPS[: 1 if quick else 2]
        for pending in sizes
        for implementation in IMPLEMENTATIONS
    ]


SCENARIO = Scenario(
    name="timers",
    title="Set and cancel a timer, by how many are pending",
    cases=cases,
    main=run,
    metrics=(Metric("ns", "CPU of an insert and a cancel", "ns", compared=True),),
    plots=(Plot("cost", metric="ns"),),
)
