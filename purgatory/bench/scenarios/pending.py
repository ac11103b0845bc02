"""Operations that no task awaits, and what programs on asyncio do instead, which is compared with ours.

Memory: that of a pending operation, and the time of a full garbage collection while many are pending.

Callback: the cost of an operation from its creation to its completion. A thousand, or a hundred thousand, are started,
then completed, again and again.

Storm: very many are due in one tick. Their lateness is measured, and the longest iteration of the loop.

The alternatives are a task for each waiter, its creation included, which is the usual way, and a `call_at` and sets by
key, without a task. They have no statistics, no checks of arguments and no containment of faults.
"""

import asyncio
import gc
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import Any, Final

import psutil

from purgatory import Clock, DelayedOperation, DelayedOperationPurgatory, Handle
from purgatory.bench.case import OURS, Case, Figures, Metric, Scenario
from purgatory.bench.machine import Heartbeat

TIMEOUT: Final = 3600.0
IMPLEMENTATIONS: Final = (OURS, "call_later", "Event + timeout")
KEYS: Final = [(f"key-{number}",) for number in range(100)]
SLICE: Final = 1_000
PROBE: Final = 2_000
"""The number of operations that are started first, with a far deadline, to measure the time of a start."""


class Operation(DelayedOperation[None]):
    """The smallest one of ours: its condition never holds."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Do nothing."""


class Call:
    """An operation of the rivals, with the same methods. It is completed once, by the first call that tries."""

    __slots__ = ("completed", "handle", "keys", "owner", "timeout")

    def __init__(self, timeout: float) -> None:
        self.timeout: float = timeout
        self.completed: bool = False
        self.handle: Handle | None = None
        self.owner: CallLaterPurgatory | None = None
        self.keys: Sequence[Hashable] = ()

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Do nothing."""

    def force_complete(self) -> bool:
        """Complete the call, unless it is complete. Returns whether it was not."""
        if self.completed:
            return False
        self.completed = True
        if self.handle is not None:
            self.handle.cancel()
        self.on_complete()
        if self.owner is not None:
            self.owner.forget(self)
        return True


class CallLaterPurgatory:
    """A set of pending calls for each key, and a `call_at` of the loop for each call."""

    def __init__(self, clock: Clock) -> None:
        self.watching: defaultdict[Hashable, set[Call]] = defaultdict(set)
        self._clock = clock

    def try_complete_else_watch(self, call: Call, keys: Sequence[Hashable]) -> Call:
        """Complete `call` if its condition holds, else keep it. Returns it."""
        if call.try_complete():
            return call
        for key in keys:
            self.watching[key].add(call)
        call.keys = keys
        call.owner = self
        call.handle = self._clock.call_at(self._clock.time() + call.timeout, call.force_complete)
        return call

    def forget(self, call: Call) -> None:
        """Remove what waited and is complete. Called by the call."""
        for key in call.keys:
            self.watching[key].discard(call)


class EventWaiters:
    """A task for each waiter, which waits for its `asyncio.Event` under `asyncio.timeout`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, timeout: float, done: Callable[[bool], object]) -> asyncio.Event:
        """Start a task that calls `done(expired)` once. Setting the event completes it."""
        event = asyncio.Event()
        task = asyncio.create_task(self._wait(event, timeout, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return event

    async def _wait(self, event: asyncio.Event, timeout: float, done: Callable[[bool], object]) -> None:
        expired = False
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            expired = True
        done(expired)


Start = Callable[[int, Sequence[Hashable]], list[Any]]
"""Starts so many with those keys, and returns what completes them."""


def _prepared(implementation: str) -> tuple[Start, Callable[[Any], object]]:
    """What starts many at once, and what completes one of them."""
    if implementation == OURS:
        watch = DelayedOperationPurgatory().try_complete_else_watch
        return lambda count, keys: [watch(Operation(TIMEOUT), keys) for _ in range(count)], Operation.force_complete
    if implementation == "call_later":
        keep = CallLaterPurgatory(asyncio.get_running_loop()).try_complete_else_watch
        return lambda count, keys: [keep(Call(TIMEOUT), keys) for _ in range(count)], Call.force_complete
    start = EventWaiters().start
    return lambda count, keys: [start(TIMEOUT, id) for _ in range(count)], asyncio.Event.set


async def run_memory(case: Case) -> Figures:
    """Start the operations of the case, with one key each, and measure while they are pending."""
    start, _ = _prepared(case.implementation)
    pending = case.parameters["pending"]
    started: list[Any] = [None] * pending
    process = psutil.Process()
    await asyncio.sleep(0)
    gc.collect()
    gc.disable()
    before = process.memory_info().rss
    for number in range(0, pending, SLICE):
        started[number : number + SLICE] = start(SLICE, KEYS[number // SLICE % len(KEYS)])
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    held = process.memory_info().rss - before
    collections = []
    for _ in range(3):
        began = time.perf_counter()
        gc.collect()
        collections.append(time.perf_counter() - began)
    return {"bytes": held / pending, "collection_ms": 1e3 * median(collections)}


async def run_callbacks(case: Case) -> Figures:
    """Start as many operations as the case says and complete them, again and again."""
    start, complete = _prepared(case.implementation)
    pending, times = case.parameters["pending"], case.parameters["times"]

    async def turn() -> None:
        waiting = start(pending, KEYS[0])
        await asyncio.sleep(0)
        for each in waiting:
            complete(each)
        await asyncio.sleep(0)

    await turn()  # a warm-up; its dead entries stand for those that the last call leaves
    began = time.process_time()
    for _ in range(times):
        await turn()
    return {"us": 1e6 * (time.process_time() - began) / (pending * times)}


class Storm:
    """The deadline of all operations, and the lateness of each."""

    def __init__(self, seconds: float) -> None:
        self.time: Callable[[], float] = asyncio.get_running_loop().time
        self.deadline = self.time() + seconds
        self.late: array[float] = array("d")

    def note(self) -> None:
        """Note the lateness of an operation that runs now."""
        self.late.append(self.time() - self.deadline)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - self.time()

    async def start(self, implementation: str, count: int) -> None:
        """Start so many operations."""
        watch = DelayedOperationPurgatory().try_complete_else_watch
        call_later = asyncio.get_running_loop().call_later
        wait = EventWaiters().start
        starts: dict[str, Callable[[], object]] = {
            OURS: lambda: watch(Due(self), ("key",)),
            "call_later": lambda: call_later(self.left(), self.note),
            "Event + timeout": lambda: wait(self.left(), lambda _: self.note()),
        }
        start = starts[implementation]
        for number in range(count):
            start()
            if number % 1000 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)


class Due(Operation):
    __slots__ = ("storm",)

    def __init__(self, storm: Storm) -> None:
        super().__init__(storm.left())
        self.storm: Storm = storm

    def on_complete(self) -> None:
        self.storm.note()


async def run_storm(case: Case) -> Figures:
    """Start all operations, wait for the tick, and measure."""
    count = case.parameters["due"]
    gc.disable()
    began = time.perf_counter()
    await Storm(TIMEOUT).start(case.implementation, PROBE)
    each = (time.perf_counter() - began) / PROBE
    storm = Storm(2.0 + 5 * count * each)  # a busy machine is slower at times
    await storm.start(case.implementation, count)
    gc.collect()
    gc.freeze()  # collections of the objects that exist already are not measured
    gc.enable()
    if storm.left() < 0.05:
        raise RuntimeError(f"this machine is too slow to start {count:,} operations before the first is due")
    await asyncio.sleep(storm.left() - 0.02)
    heartbeat = Heartbeat()
    await heartbeat.until(lambda: len(storm.late) == count)
    late = sorted(storm.late)
    return {
        "stall_ms": 1e3 * heartbeat.longest,
        "late_50_ms": 1e3 * late[count // 2],
        "late_99_ms": 1e3 * late[count * 99 // 100],
        "late_max_ms": 1e3 * late[-1],
        "early": sum(each < 0 for each in late),
    }


MEMORY = Scenario(
    name="memory",
    title="Memory of a pending operation, and the time of a full garbage collection",
    implementations=IMPLEMENTATIONS,
    full=[{"pending": 100_000}, {"pending": 1_000_000}],
    quick=[{"pending": 20_000}],
    main=run_memory,
    loops=("asyncio",),
    metrics=(
        Metric("bytes", "memory of a pending operation", "B", compared=True),
        Metric("collection_ms", "full collection", "ms", compared=True),
    ),
)
CALLBACK = Scenario(
    name="callback",
    title="Callback path: register and complete, no awaiting task",
    implementations=IMPLEMENTATIONS,
    full=[{"pending": 1_000, "times": 300}, {"pending": 100_000, "times": 2}],
    quick=[{"pending": 1_000, "times": 20}],
    main=run_callbacks,
    metrics=(Metric("us", "CPU of an operation that is registered and completed", "µs", compared=True),),
)
STORM = Scenario(
    name="storm",
    title="Expiry storm: all due in one tick",
    implementations=IMPLEMENTATIONS,
    full=[{"due": 1_000_000}],
    quick=[{"due": 20_000}],
    main=run_storm,
    metrics=(
        Metric("stall_ms", "longest turn of the loop", "ms", compared=True),
        Metric("late_50_ms", "late, median", "ms"),
        Metric("late_99_ms", "late, 99 %", "ms"),
        Metric("late_max_ms", "late, at most", "ms"),
        Metric("early", "called early", ""),
    ),
)
