"""One item for one of many takers: job queues, pools and semaphores.

All takers wait on one key. Each put satisfies the first taker and no other; that one then comes again, at the end, or
leaves. The takers are tasks, except in "purgatory, callback": there an operation's `on_complete` takes the item. Ours
have a deadline of an hour; the alternatives wait without one, which is to their advantage.
"""

import asyncio
import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.bench import machine
from purgatory.bench.case import LOOPS, OURS, Case, Figures, Metric, Plot, Scenario

TIMEOUT: Final = 3600.0
KEY: Final = "queue"
KEYS: Final = (KEY,)
A_TURN: Final = 100
"""The number of items that are put in one iteration of the loop."""

Items = deque[int]


class Take(DelayedOperation[int]):
    __slots__ = ("items",)

    def __init__(self, items: Items) -> None:
        super().__init__(TIMEOUT)
        self.items: Items = items

    def try_complete(self) -> bool:
        return bool(self.items) and self.force_complete()

    def on_complete(self) -> int:
        return self.items.popleft()


class TakeAndTell(DelayedOperation[None]):
    __slots__ = ("items", "taken")

    def __init__(self, items: Items, taken: Callable[[int], object]) -> None:
        super().__init__(TIMEOUT)
        self.items: Items = items
        self.taken: Callable[[int], object] = taken

    def try_complete(self) -> bool:
        return bool(self.items) and self.force_complete()

    def on_complete(self) -> None:
        self.taken(self.items.popleft())


class Run:
    """The number of takers, whether they come again, and the number of items taken."""

    def __init__(self, takers: int, again: bool) -> None:
        self.takers = takers
        self.again = again
        self.taken: int = 0
        self.goal: int = 0
        self.reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def expect(self, items: int) -> asyncio.Future[None]:
        """Return a future that is done when so many more items have been taken."""
        self.goal = self.taken + items
        self.reached = asyncio.get_running_loop().create_future()
        return self.reached

    def take(self, item: int) -> None:
        """Count an item that a taker has taken."""
        self.taken += 1
        if self.taken == self.goal:
            self.reached.set_result(None)


Put = Callable[[int], Awaitable[object]]
Start = Callable[[], object]
"""Start all takers. They wait after the next iteration of the loop."""


def _tasks(run: Run, take: Callable[[], Awaitable[int]]) -> Start:
    tasks: set[asyncio.Task[None]] = set()

    async def taker() -> None:
        run.take(await take())
        while run.again:
            run.take(await take())

    def start() -> None:
        tasks.clear()
        tasks.update(asyncio.create_task(taker()) for _ in range(run.takers))

    return start


def ours(run: Run) -> tuple[Start, Put]:
    items: Items = deque()
    purgatory = DelayedOperationPurgatory()
    watch, check = purgatory.try_complete_else_watch, purgatory.check_and_complete

    async def put(item: int) -> None:
        items.append(item)
        check(KEY, limit=1)

    async def take() -> int:
        return await watch(Take(items), KEYS)

    return _tasks(run, take), put


def callback(run: Run) -> tuple[Start, Put]:
    items: Items = deque()
    purgatory = DelayedOperationPurgatory()
    watch, check = purgatory.try_complete_else_watch, purgatory.check_and_complete

    async def put(item: int) -> None:
        items.append(item)
        check(KEY, limit=1)
        if run.again:
            watch(TakeAndTell(items, run.take), KEYS)

    def start() -> None:
        for _ in range(run.takers):
            watch(TakeAndTell(items, run.take), KEYS)

    return start, put


def queue(run: Run) -> tuple[Start, Put]:
    items: asyncio.Queue[int] = asyncio.Queue()
    return _tasks(run, items.get), items.put


def condition(run: Run) -> tuple[Start, Put]:
    items: Items = deque()
    changed = asyncio.Condition()

    async def put(item: int) -> None:
        async with changed:
            items.append(item)
            changed.notify(1)

    async def take() -> int:
        async with changed:
            while not items:
                await changed.wait()
            return items.popleft()

    return _tasks(run, take), put


def futures(run: Run) -> tuple[Start, Put]:
    waiting: deque[asyncio.Future[int]] = deque()
    create_future = asyncio.get_running_loop().create_future

    async def put(item: int) -> None:
        waiting.popleft().set_result(item)

    async def take() -> int:
        future: asyncio.Future[int] = create_future()
        waiting.append(future)
        return await future

    return _tasks(run, take), put


IMPLEMENTATIONS: "Final[dict[str, Callable[[Run], tuple[Start, Put]]]]" = {
    OURS: ours,
    f"{OURS}, callback": callback,
    "Queue": queue,
    "Condition": condition,
    "deque of futures": futures,
}


async def run(case: Case) -> Figures:
    """Let all takers wait, and put items until each has been taken. If the takers have left, others come."""
    takers, items = case.parameters["takers"], case.parameters["items"]
    counted = Run(takers, case.parameters["then"] == "come again")
    start, put = IMPLEMENTATIONS[case.implementation](counted)
    used = 0.0
    while counted.taken < items:
        start()
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()
        gc.freeze()  # collections of the objects that exist already are not measured
        began = time.process_time()
        for _ in range((items if counted.again else takers) // A_TURN):
            all_taken = counted.expect(A_TURN)
            for item in range(A_TURN):
                await put(item)
            await all_taken
            await asyncio.sleep(0)
        used += time.process_time() - began
    return {"us": 1e6 * used / counted.taken}


def measure(case: Case) -> Figures:
    return machine.run(case.loop, run(case))


def cases(quick: bool) -> list[Case]:
    return [
        Case("queue", implementation, loop, {"takers": takers, "then": then, "items": 2_000 if quick else 100_000})
        for loop in LOOPS[: 1 if quick else 2]
        for takers in ((1_000,) if quick else (1_000, 10_000, 100_000))
        for then in ("come again", "leave")
        for implementation in IMPLEMENTATIONS
    ]


SCENARIO = Scenario(
    name="queue",
    title="One item for one of many takers",
    cases=cases,
    measure=measure,
    metrics=(Metric("us", "CPU of an item", "µs", compared=True),),
    plots=(Plot("cost", metric="us", x="takers", panel="then", log_y=True),),
)
