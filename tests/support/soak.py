"""Hours of traffic: memory stays flat, lists stay bounded.

    python -m tests.support.soak [--operations N] [--seconds S]

First an hour's worth on virtual time, N operations (ten million) on keys that come and go; then S seconds (180) on a
real event loop. A violated bound is raised.
"""

import argparse
import asyncio
import gc
import os
import random
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from purgatory import DelayedOperation, DelayedOperationPurgatory, VirtualClock
from tests.support.invariants import check_purgatory

OPERATIONS = 10_000_000
SECONDS = 180.0
HOUR = 3600.0
SAMPLES = 100
STATM = Path("/proc/self/statm")


def resident() -> int:
    """Bytes of this process in memory now, or the most so far on a system without `/proc`."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Request(DelayedOperation[int]):
    """Waits for its topic to reach an offset."""

    __slots__ = ("ends", "offset", "payload", "topic")

    def __init__(self, timeout: float, ends: dict[int, int], topic: int, offset: int) -> None:
        super().__init__(timeout)
        self.ends = ends
        self.topic = topic
        self.offset = offset
        self.payload = bytearray(100)

    def try_complete(self) -> bool:
        return self.ends.get(self.topic, 0) >= self.offset and self.force_complete()

    def on_complete(self) -> int:
        return self.ends.get(self.topic, 0)


@dataclass
class Samples:
    """Samples at even distances."""

    memory: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    watched: list[int] = field(default_factory=list)
    scheduled: list[int] = field(default_factory=list)

    def take(self, held: DelayedOperationPurgatory, scheduled: int) -> None:
        """Sample everything that could grow."""
        statistics = held.statistics()
        self.memory.append(resident())
        self.pending.append(statistics.num_delayed)
        self.watched.append(statistics.watched)
        self.scheduled.append(scheduled)
        owner = held._owner
        lists = owner.lists
        assert lists.dead <= max(owner.purge_interval, lists.watched - lists.dead) or owner.purging
        assert len(held.watched_keys()) <= statistics.watched

    def check(self, held: DelayedOperationPurgatory) -> None:
        """Nothing has grown since the first fifth."""
        warm = len(self.memory) // 5
        growth = max(self.memory[-warm:]) / max(self.memory[: 2 * warm])
        assert growth < 1.1, f"memory has grown by {growth - 1:.0%}"
        # An operation has up to three entries. Dead entries are as many as living ones, and more while a purge runs.
        most = 3 * (2 * max(self.pending) + held._owner.purge_interval + 10_000)
        assert max(self.watched) <= most, f"{max(self.watched)} entries watched"
        assert max(self.scheduled) <= 300, f"{max(self.scheduled)} calls scheduled"

    def describe(self) -> str:
        """The figures, in a line."""
        warm = len(self.memory) // 5
        return (
            f"memory {max(self.memory[: 2 * warm]) >> 20} MiB, later {max(self.memory[-warm:]) >> 20} MiB; "
            f"at most {max(self.pending):,} pending, {max(self.watched):,} entries watched, "
            f"{max(self.scheduled)} calls scheduled"
        )


class Traffic:
    """Requests for topics that come and go, and the calls that complete, cancel or reschedule them."""

    def __init__(self, held: DelayedOperationPurgatory) -> None:
        self.held = held
        self.randomly = random.Random(10)
        self.ends: dict[int, int] = {}
        self.recent: deque[Request] = deque(maxlen=1000)
        self.made = 0
        self.cancelled = 0

    def step(self) -> None:
        """Make one more request, and now and then a call that ends or moves others."""
        randomly = self.randomly
        n = self.made = self.made + 1
        # A thousand topics at a time, all others after a hundred thousand requests.
        first = n // 100
        topic = first + int(randomly.random() ** 2 * 1000)
        offset = self.ends.get(topic, 0) + (randomly.random() < 0.95)
        timeout = 0.01 * 10 ** (randomly.random() * 2.5)
        request = Request(timeout, self.ends, topic, offset)
        keys = [topic] if n % 3 else [topic, -topic - 1, -(n % 7) - 10**9]
        self.recent.append(self.held.try_complete_else_watch(request, keys))
        happens = randomly.random()
        if happens < 0.2:
            self.ends[topic] = self.ends.get(topic, 0) + 1
            self.held.check_and_complete(topic)
        elif happens < 0.3:
            self.ends[topic] = self.ends.get(topic, 0) + 1
            self.held.check_and_complete_soon(topic)
        elif happens < 0.35:
            self.cancelled += self.recent[0].cancel()
        elif happens < 0.4:
            self.recent[-1].reschedule(timeout / 2) if not self.recent[-1].done() else None
        if n % 100 == 0:
            self.ends.pop(first - 1, None)

    def finish(self) -> None:
        """Check, after the last deadline, that each request has an outcome."""
        statistics = self.held.statistics()
        outcomes = (statistics.completed_at_once, statistics.satisfied, statistics.expired, statistics.cancelled)
        assert sum(outcomes) == self.made, f"{sum(outcomes)} of {self.made} operations have an outcome"
        assert (statistics.failed, statistics.num_delayed, len(self.held.timer)) == (0, 0, 0)
        assert statistics.watched <= 3 * self.held._owner.purge_interval + 3
        check_purgatory(self.held)


def virtual(operations: int, seconds: float = HOUR) -> Samples:
    """Traffic for `seconds` of virtual time."""
    clock = VirtualClock()
    held = DelayedOperationPurgatory(clock=clock)
    traffic = Traffic(held)
    samples = Samples()
    for _ in range(SAMPLES):
        for _ in range(operations // SAMPLES // 10):
            for _ in range(10):
                traffic.step()
            clock.advance(10 * seconds / operations)
        gc.collect()
        samples.take(held, len(clock._heap))
    clock.advance(100.0)
    traffic.finish()
    samples.check(held)
    return samples


async def real(seconds: float) -> Samples:
    """The same traffic for `seconds` on a real loop, as fast as half of its time allows."""
    loop = asyncio.get_running_loop()
    samples = Samples()
    async with DelayedOperationPurgatory() as held:
        traffic = Traffic(held)
        begin = loop.time()
        for sample in range(SAMPLES):
            while (now := loop.time()) < begin + (sample + 1) * seconds / SAMPLES:
                while loop.time() < now + 0.001:
                    traffic.step()
                await asyncio.wait({loop.create_future()}, timeout=0.001)
            gc.collect()
            samples.take(held, len(vars(loop).get("_scheduled", ())))
        while held.num_delayed:
            await asyncio.wait({loop.create_future()}, timeout=0.1)
        traffic.finish()
        samples.check(held)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", type=int, default=OPERATIONS, help="on virtual time (10000000)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="on a real event loop (180)")
    arguments = parser.parse_args()
    samples = virtual(arguments.operations)
    sys.stdout.write(f"{arguments.operations:,} operations in an hour of virtual time: {samples.describe()}\n")
    sys.stdout.flush()
    samples = asyncio.run(real(arguments.seconds))
    sys.stdout.write(f"{arguments.seconds:g} seconds of real time: {samples.describe()}\n")


if __name__ == "__main__":
    main()
