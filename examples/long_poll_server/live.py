"""The topic `__statistics`: snapshots of the purgatories, made only while a fetch waits for them.

It is fetched like every topic and waits in the same purgatory: the page eats the server's own food. Its messages are in
memory, and only the last ones are kept.
"""

import json
import math
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import Any

from starlette.exceptions import HTTPException

from examples.long_poll_server.demo import Demo
from examples.long_poll_server.store import as_json
from purgatory import DelayedOperationPurgatory, FinishedOperation
from purgatory.clock import Handle

RESERVED = "__"
"""The prefix of the names of the server's own topics."""
TOPIC = "__statistics"
INTERVAL = 0.1
"""Seconds from one snapshot to the next, at the least."""
KEPT = 100
"""The number of snapshots that can be read."""
BOUNDS = tuple(float(f"{digit}e{power}") for power in range(-3, 3) for digit in (1, 2, 5))
"""Seconds: a wait is counted with the first bound that it does not exceed, or beyond the last."""
OUTCOMES = ("satisfied", "expired", "closed", "cancelled", "failed")
"""The outcomes of operations that have waited."""


def refuse_to_store(topic: str) -> None:
    """Raise a 403 if `topic` is one of the server's own."""
    if topic.startswith(RESERVED):
        raise HTTPException(403, f"topics whose names begin with {RESERVED} are the server's own")


class Waits:
    """Counts the waits of the operations of one purgatory, by outcome. It is a listener."""

    def __init__(self) -> None:
        self.counts = {outcome: [0] * (len(BOUNDS) + 1) for outcome in OUTCOMES}

    def __call__(self, finished: FinishedOperation) -> None:
        if finished.outcome != "completed_at_once":
            self.counts[finished.outcome][bisect_left(BOUNDS, finished.waited)] += 1


class StatisticsTopic:
    """The log of snapshots, with the methods of a `MessageLog` that fetching needs.

    One snapshot serves all waiting fetches. Offsets begin with the time of the start, in intervals: they grow over
    restarts, as no more snapshots are made than that. A fetch below the oldest snapshot gets that one, and a fetch
    beyond the end gets the next one, so that `offset=2**62` means "from now on"; `next_offset` leads on from there.
    """

    def __init__(self, fetches: DelayedOperationPurgatory, instance: str) -> None:
        """Fetches of the topic wait in `fetches`; `instance` is the server's name."""
        self.instance = instance
        self._fetches = fetches
        self._shown: dict[DelayedOperationPurgatory, Waits] = {}
        self._demo: Demo | None = None
        self._started = time.time()
        self._end = int(self._started / INTERVAL)
        self._kept: deque[str] = deque(maxlen=KEPT)
        self._looking = 0
        self._last_look = -math.inf
        self._last = -math.inf
        self._next: Handle | None = None

    def show(self, *purgatories: DelayedOperationPurgatory, demo: Demo | None = None) -> None:
        """Have these in the snapshots, and the number of operations that the `demo` traffic keeps."""
        self._demo = demo
        for purgatory in purgatories:
            waits = self._shown[purgatory] = Waits()
            purgatory.add_listener(waits)

    def unseen(self) -> float:
        """Seconds since the last fetch of the topic has ended; 0.0 while one waits."""
        return 0.0 if self._looking else self._fetches.timer.time() - self._last_look

    def end(self, topic: str) -> int:
        """The offset of the next snapshot."""
        return self._end

    def start(self, topic: str, offset: int) -> int:
        """The offset from which a fetch at `offset` reads. Raises a 404 if `topic` is another."""
        if topic != TOPIC:
            raise HTTPException(404, f"of the server's own topics there is only {TOPIC}")
        return max(self._end - len(self._kept), min(offset, self._end))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """A fetch waits: snapshots are made meanwhile."""
        self._looking += 1
        if self._next is None:
            self._go_on()
        try:
            yield
        finally:
            self._looking -= 1
            self._last_look = self._fetches.timer.time()

    async def read(self, topic: str, offset: int, end: int, limit: int) -> tuple[str, int]:
        """As `Store.read`."""
        first = self._end - len(self._kept)
        offset = max(offset, first)
        end = min(end, offset + limit)
        values = islice(self._kept, offset - first, max(end, offset) - first)
        return as_json(enumerate(values, offset), offset)

    def snapshot(self) -> dict[str, Any]:
        """A snapshot of now. Times are the loop's, in seconds, but for `started`, which is the epoch's."""
        return {
            "time": self._fetches.timer.time(),
            "instance": self.instance,
            "process": os.getpid(),
            "started": self._started,
            "demo": None if self._demo is None else self._demo.pending,
            "bounds": BOUNDS,
            "purgatories": {purgatory.name: _describe(purgatory, waits) for purgatory, waits in self._shown.items()},
        }

    def _go_on(self) -> None:
        clock = self._fetches.timer.clock
        self._next = clock.call_at(max(clock.time(), self._last + INTERVAL), self._snap)

    def _snap(self) -> None:
        self._next = None
        if not self._looking:
            return  # the next fetch starts it again
        self._last = self._fetches.timer.time()
        self._kept.append(json.dumps(self.snapshot(), separators=(",", ":")))
        self._end += 1
        self._fetches.check_and_complete_soon(TOPIC)
        self._go_on()


def _describe(purgatory: DelayedOperationPurgatory, waits: Waits) -> dict[str, Any]:
    timer = purgatory.timer
    done = timer.statistics()
    now = int(timer.time() / timer.tick)
    return {
        "statistics": asdict(purgatory.statistics()),
        "timer": {"tick": timer.tick, "wake_ups": done.wake_ups, "buckets": done.buckets, "cascaded": done.cascaded},
        "wheels": [
            {
                "unit": wheel.unit,
                # By the clock: the wheels themselves turn only when something is due.
                "hand": wheel.slot(now),
                "counts": [wheel.count(slot) for slot in range(wheel.size)],
            }
            for wheel in timer.wheels
        ],
        "waits": waits.counts,
    }
