"""The enqueue benchmark of Kafka's purgatory redesign proposal.

Requests come at exponential intervals and take log-normal times to complete, each watched on 3 of 100 keys, with a
timeout of 200 ms. Requests that would take longer expire: their condition never becomes true, so that a last try at the
deadline, however late, finds it false. A driver on the same loop makes the requests that are due, as many as it can if
there is no target rate, and completes those with their time to complete over. Like Kafka's `TestPurgatoryPerformance`,
it measures the CPU time of the whole process. The driver's own time is measured apart, as the implementation "driver
alone": its requests are made and completed but never watched.
"""

import asyncio
import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any, Final, TypeAlias

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.bench import machine
from purgatory.bench.case import ALONE, LOOPS, OURS, UNLIMITED, Case, Figures, Metric, Plot, Scenario
from purgatory.bench.rivals import CallLaterPurgatory, EventWaiters, HeapPurgatory, Request

KEYS: Final = 100
KEYS_A_REQUEST: Final = 3
SAMPLES: Final = 100_003
BATCH: Final = 256
"""The most requests that come in one iteration of the loop."""

LOADS: Final = {"low": (0.020, 0.060), "high": (0.200, 0.400)}
"""50th and 75th percentile of the time to complete, in seconds: a low and a high rate of timeouts."""

NORMAL_75: Final = 0.674490
"""The 75th percentile of the standard normal distribution."""

monotonic: Callable[[], float] = time.monotonic


class Count:
    """The numbers of completed requests and of expired ones among them."""

    __slots__ = ("completed", "expired")

    def __init__(self) -> None:
        self.completed: int = 0
        self.expired: int = 0


class OurRequest(DelayedOperation[None]):
    __slots__ = ("completes_at", "count")

    def __init__(self, timeout: float, completes_at: float, count: Count) -> None:
        super().__init__(timeout)
        self.completes_at: float = completes_at
        self.count: Count = count

    def try_complete(self) -> bool:
        return monotonic() >= self.completes_at and self.force_complete()

    def on_complete(self) -> None:
        self.count.completed += 1

    def on_expiration(self) -> None:
        self.count.expired += 1


class RivalRequest(Request):
    __slots__ = ("completes_at", "count")

    def __init__(self, timeout: float, completes_at: float, count: Count) -> None:
        super().__init__(timeout)
        self.completes_at: float = completes_at
        self.count: Count = count

    def try_complete(self) -> bool:
        return monotonic() >= self.completes_at and self.force_complete()

    def on_complete(self) -> None:
        self.count.completed += 1

    def on_expiration(self) -> None:
        self.count.expired += 1


class NoRequest:
    """The request of the driver alone."""

    __slots__ = ("completes_at", "count", "timeout")

    def __init__(self, timeout: float, completes_at: float, count: Count) -> None:
        self.timeout: float = timeout
        self.completes_at: float = completes_at
        self.count: Count = count

    def force_complete(self) -> None:
        self.count.completed += 1


Start = Callable[[float, float, Sequence[str]], Any]
"""Start a request, by the time, its time to complete and its keys. Returns an object for `Implementation.complete`."""


class Implementation:
    """The functions that start and complete requests, count purges and close."""

    def __init__(self, start: Start, purges: Callable[[], int] = lambda: 0, close: Callable[[], object] = int) -> None:
        self.start = start
        self.purges = purges
        self.close = close

    def complete(self, started: list[Any]) -> None:
        """Complete these, unless they have expired."""
        for request in started:
            request.force_complete()


class Tasks(Implementation):
    """The implementation with tasks: a started request is an event."""

    def complete(self, started: list[Any]) -> None:
        for event in started:
            event.set()


def ours(parameters: dict[str, Any], timeout: float, count: Count) -> Implementation:
    settings = {name: parameters[name] for name in ("wheel_size", "purge_interval") if name in parameters}
    purgatory = DelayedOperationPurgatory(**settings)
    watch = purgatory.try_complete_else_watch

    def start(now: float, latency: float, keys: Sequence[str]) -> Any:
        return watch(OurRequest(timeout, now + latency, count), keys)

    return Implementation(start, lambda: purgatory.statistics().purges, purgatory.close)


def old(parameters: dict[str, Any], timeout: float, count: Count) -> Implementation:
    return _rival(HeapPurgatory(asyncio.get_running_loop()), timeout, count)


def call_later(parameters: dict[str, Any], timeout: float, count: Count) -> Implementation:
    return _rival(CallLaterPurgatory(asyncio.get_running_loop()), timeout, count)


def _rival(purgatory: HeapPurgatory | CallLaterPurgatory, timeout: float, count: Count) -> Implementation:
    watch = purgatory.try_complete_else_watch

    def start(now: float, latency: float, keys: Sequence[str]) -> Any:
        request = RivalRequest(timeout, now + latency, count)
        watch(request, keys)
        return request

    return Implementation(start, lambda: purgatory.purges, purgatory.close)


def event(parameters: dict[str, Any], timeout: float, count: Count) -> Implementation:
    waiters = EventWaiters()

    def done(expired: bool) -> None:
        count.completed += 1
        count.expired += expired

    return Tasks(lambda now, latency, keys: waiters.start(keys, timeout, done))


def alone(parameters: dict[str, Any], timeout: float, count: Count) -> Implementation:
    def start(now: float, latency: float, keys: Sequence[str]) -> Any:
        request = NoRequest(timeout, now + latency, count)
        if latency >= timeout:
            request.force_complete()
        return request

    return Implementation(start)


IMPLEMENTATIONS: Final = {
    OURS: ours,
    "old design (heap)": old,
    "call_later": call_later,
    "Event + timeout": event,
    ALONE: alone,
}


Sample: TypeAlias = tuple[float, float, tuple[str, ...]]
"""The interval to the next request and the time to complete, in seconds, and the keys."""


def samples(randomly: random.Random, load: str, rate: float, longest: float = math.inf) -> list[Sample]:
    """The requests that are drawn before they repeat. None takes longer than `longest` to complete."""
    median, upper = LOADS[load]
    sigma = (math.log(upper) - math.log(median)) / NORMAL_75
    names = [f"key-{number}" for number in range(KEYS)]
    return [
        (
            randomly.expovariate(rate) if rate < math.inf else 0.0,
            min(randomly.lognormvariate(math.log(median), sigma), longest),
            tuple(randomly.sample(names, KEYS_A_REQUEST)),
        )
        for _ in range(SAMPLES)
    ]


class Driver:
    """Makes the due requests, and completes those with their time to complete over, once an iteration."""

    def __init__(self, implementation: Implementation, requests: int, timeout: float) -> None:
        self.implementation = implementation
        self.left: int = requests
        self.timeout = timeout
        # The requests to complete in each of the milliseconds to come, without those that expire.
        self.due: list[list[Any]] = [[] for _ in range(int(timeout * 1000) + 2)]
        self.enqueued_at: float = 0.0
        self.stopped = False
        self.longest_turn: float = 0.0
        """Seconds from the time for which `turn` was scheduled, or from the call before it, to the call."""
        self.expected: float = math.inf
        self.all_enqueued: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def drive(self, drawn: Sequence[Sample]) -> None:
        """Start the requests of `drawn`."""
        self.samples: Iterator[Sample] = cycle(drawn)
        self.began: float = monotonic()
        self.arrival: float = self.began
        self.millisecond: int = 0
        self.turn()

    def turn(self) -> None:
        """Do the work of this iteration of the loop."""
        now = monotonic()
        if now - self.expected > self.longest_turn:
            self.longest_turn = now - self.expected
        self.expected = now
        self.complete(int((now - self.began) * 1000))
        loop = asyncio.get_running_loop()
        if self.left:
            self.enqueue(now)
            if self.arrival <= now:
                loop.call_soon(self.turn)
                return
        elif self.stopped:
            return
        self.expected = loop.time() + 0.001
        loop.call_at(self.expected, self.turn)

    def complete(self, millisecond: int) -> None:
        """Complete the requests that complete before `millisecond`."""
        due = self.due
        size = len(due)
        for number in range(self.millisecond, millisecond):
            slot = due[number % size]
            if slot:
                due[number % size] = []
                self.implementation.complete(slot)
        self.millisecond = millisecond

    def enqueue(self, now: float) -> None:
        """Start the requests that have come by `now`."""
        due = self.due
        size = len(due)
        start = self.implementation.start
        timeout = self.timeout
        since = now - self.began
        arrival = self.arrival
        if arrival > now:
            return
        left = self.left
        for interval, latency, keys in islice(self.samples, min(BATCH, left)):
            left -= 1
            request = start(now, latency, keys)
            if latency < timeout:
                due[int((since + latency) * 1000) % size].append(request)
            arrival += interval
            if arrival > now:
                break
        self.arrival = arrival
        self.left = left
        if not left:
            self.enqueued_at = monotonic()
            self.all_enqueued.set_result(None)


async def run(case: Case) -> Figures:
    """Run all requests of a case and wait until they have completed."""
    parameters = dict(case.parameters)
    requests, timeout = parameters["requests"], parameters.get("timeout", 0.2)
    rate = math.inf if parameters["rate"] == UNLIMITED else float(parameters["rate"])
    drawn = [
        (interval, latency if latency < timeout else math.inf, keys)
        for interval, latency, keys in samples(
            random.Random(1), parameters["load"], rate, parameters.get("longest", math.inf)
        )
    ]
    count = Count()
    implementation = IMPLEMENTATIONS[case.implementation](parameters, timeout, count)
    driver = Driver(implementation, requests, timeout)
    gc.collect()
    gc.freeze()  # collections of the drawn requests are not measured
    memory = machine.peak_memory()
    cpu = time.process_time()
    driver.drive(drawn)
    await driver.all_enqueued
    while count.completed < requests:
        await asyncio.sleep(0.001)
    cpu = time.process_time() - cpu
    driver.stopped = True
    implementation.close()
    return {
        "rate": requests / (driver.enqueued_at - driver.began),
        "cpu_us": 1e6 * cpu / requests,
        "memory_mib": machine.peak_memory() - memory,
        "turn_ms": 1e3 * driver.longest_turn,
        "timeouts": 100 * count.expired / requests,
        "purges": implementation.purges(),
    }


def measure(case: Case) -> Figures:
    return machine.run(case.loop, run(case))


def requests_of(rate: int | str, quick: bool) -> int:
    """The number of requests of a run: a million, or those of two seconds if they would take longer."""
    most, seconds = (50_000, 0.5) if quick else (1_000_000, 2.0)
    return most if isinstance(rate, str) else min(most, int(rate * seconds))


def cases(quick: bool) -> list[Case]:
    rates: tuple[int | str, ...] = (10_000, UNLIMITED) if quick else (10_000, 30_000, 100_000, 300_000, UNLIMITED)
    return [
        Case("enqueue", name, loop, {"load": load, "rate": rate, "requests": requests_of(rate, quick)})
        for loop in LOOPS
        for load in (("low",) if quick else LOADS)
        for rate in rates
        for name in IMPLEMENTATIONS
    ]


SCENARIO = Scenario(
    name="enqueue",
    title="The redesign proposal's enqueue benchmark",
    cases=cases,
    measure=measure,
    metrics=(
        Metric("cpu_us", "CPU a request, driver included", "µs", compared=True),
        Metric("rate", "enqueued a second", "1/s"),
        Metric("memory_mib", "peak memory", "MiB"),
        Metric("turn_ms", "longest turn of the loop", "ms"),
        Metric("timeouts", "timeouts", "%"),
        Metric("purges", "purges", ""),
    ),
    plots=(
        Plot("rate", metric="rate", x="rate", panel="load", log_y=True),
        Plot("cpu", metric="cpu_us", x="rate", panel="load"),
        Plot("turn", metric="turn_ms", x="rate", panel="load", log_y=True),
    ),
)
