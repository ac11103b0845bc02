"""Snapshots of a server's purgatories, made only while a page polls for them.

A poll waits in a purgatory of its own, "page", and is not among the figures. If other processes use the database too,
a process whose page polls notifies them by a relay. Each notified process then puts its snapshots into the database for
some seconds, and the process of the page reads them there. Without a poll, nothing is scheduled and nothing is stored.
"""

import asyncio
import json
import math
import os
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict
from typing import Any, Final
from uuid import uuid4

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    FinishedOperation,
    Handle,
    ThresholdPurgatory,
    __version__,
)
from purgatory.asgi import parking_statistics
from purgatory.streams.engine.demo import Demo
from purgatory.streams.engine.store import Store
from purgatory.streams.storage.database import StorageError

BOUNDS: Final = tuple(float(f"{digit}e{power}") for power in range(-3, 3) for digit in (1, 2, 5))
"""Bounds in seconds. A wait is counted with the first bound that it does not exceed, or beyond the last."""
OUTCOMES: Final = ("satisfied", "expired", "closed", "cancelled", "failed")
"""The outcomes of operations that have waited."""
LOOKING: Final = "__ds/page"
"""The key that notifies other processes of a poll. No stream has such a path."""
MAX_POLLS: Final = 100
"""The most polls that wait."""
POLL: Final = 30.0
"""The longest wait of a poll, in seconds, if the database does not answer."""
INTERVAL: Final = 0.1
"""The shortest interval between two snapshots, in seconds."""
SHARED: Final = 0.5
"""The same, if the snapshots of other processes are read with it."""
FRESH: Final = 5.0
"""Seconds for which a snapshot of another process is shown, and for which a notified process goes on."""

Refresh = Callable[[Collection[str]], Awaitable[None]]


class Waits:
    """Counts the waits of the operations of one purgatory, by outcome. It is a listener."""

    def __init__(self) -> None:
        self.counts = {outcome: [0] * (len(BOUNDS) + 1) for outcome in OUTCOMES}

    def __call__(self, finished: FinishedOperation) -> None:
        if finished.outcome != "completed_at_once":
            self.counts[finished.outcome][bisect_left(BOUNDS, finished.waited)] += 1


class Live:
    """The snapshots, and the polls that wait for the next one. One snapshot serves all polls."""

    def __init__(
        self, instance: str, *shown: DelayedOperationPurgatory, store: Store | None = None, demo: bool = False
    ) -> None:
        """Make snapshots of the purgatories `shown`. `instance` is the name of the server.

        With a `store`, snapshots are shared with the other processes that use its database. With `demo`, there may be
        demo traffic, in a purgatory that is shown too.
        """
        self.polls = DelayedOperationPurgatory("page", max_pending=MAX_POLLS, clock=shown[0].timer.clock)
        self.announce: Callable[[], object] = lambda: None
        """Notifies the other processes that a page polls."""
        self._numbers = ThresholdPurgatory(0, self.polls)
        self._instance = instance
        self._process = uuid4().hex
        self._store = store
        self._clock = self.polls.timer.clock
        self.demo = Demo(self.unseen, clock=self._clock) if demo else None
        self._started = time.time()
        self._waits: dict[DelayedOperationPurgatory, Waits] = {}
        for purgatory in shown if self.demo is None else (*shown, self.demo.purgatory):
            waits = self._waits[purgatory] = Waits()
            purgatory.add_listener(waits)
        self._workers: list[str] = []
        self._interval = INTERVAL if store is None else SHARED
        self._last = self._published = self._polled = self._viewer_noted = -math.inf
        self._next: Handle | None = None
        self._sharing: asyncio.Task[None] | None = None

    @property
    def number(self) -> int:
        """The number of the last snapshot."""
        return self._numbers.value

    def poll(self, after: int | None) -> DelayedOperation[int]:
        """Return an operation whose result is the number of a later snapshot than `after`.

        Without `after`, or with a number that is not known here, the present snapshot counts. Raises `PurgatoryFull` or
        `PurgatoryClosed`.
        """
        self._polled = self._clock.time()
        if self.demo is not None and not self.polls.closed:
            self.demo.seen()
        if after is None:
            after = -1
        if after > self.number or self._polled > self._published + 2 * self._interval:
            after = self.number  # it is of another process, or the last snapshot is old
        operation = self._numbers.reach(after, POLL)
        self._schedule_snapshot()
        return operation

    def unseen(self) -> float:
        """Return the seconds since the beginning of the last poll."""
        return self._clock.time() - self._polled

    def note_viewer(self) -> None:
        """Take note that another process reports an open dashboard."""
        self._viewer_noted = self._clock.time()
        self._schedule_snapshot()

    def listening(self, refresh: Refresh) -> Refresh:
        """Return a `refresh` for a relay that hears of pages too."""

        async def hear(keys: Collection[str]) -> None:
            if LOOKING in keys:
                self.note_viewer()
            await refresh(keys)

        return hear

    async def aclose(self) -> None:
        """Answer the polls, make no more snapshots, and end the demo traffic."""
        await self._numbers.aclose()
        if self.demo is not None:
            await self.demo.purgatory.aclose()
        for pending in (self._next, self._sharing):
            if pending is not None:
                pending.cancel()

    def answer(self) -> bytes:
        """Return the last snapshots, as JSON."""
        return f'{{"number":{self.number},"workers":[{",".join(self._workers)}]}}'.encode()

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot. `time` is the loop's time, and `clock` and `started` are seconds since 1970."""
        handled = parking_statistics()
        return {
            "instance": self._instance,
            "version": __version__,
            "process": os.getpid(),
            "started": self._started,
            "time": self._clock.time(),
            "clock": time.time(),
            "demo": None if self.demo is None else self.demo.pending,
            "bounds": BOUNDS,
            "requests": {"parked": handled.parked, "not_parked": handled.not_parked},
            "purgatories": {purgatory.name: _describe(purgatory, waits) for purgatory, waits in self._waits.items()},
        }

    def _schedule_snapshot(self) -> None:
        """Make a snapshot when it is time, unless that is scheduled already."""
        if self._next is None and self._sharing is None and not self.polls.closed:
            self._next = self._clock.call_at(max(self._clock.time(), self._last + self._interval), self._snap)

    def _snap(self) -> None:
        self._next = None
        looking = self._numbers.num_waiting > 0
        self._last = self._clock.time()
        if not looking and self._last > self._viewer_noted + FRESH:
            return  # the next poll starts it again
        snapshot = json.dumps(self.snapshot(), separators=(",", ":"))
        if self._store is not None:
            self._sharing = asyncio.get_running_loop().create_task(self._share(self._store, snapshot, looking))
            return
        self._publish([snapshot])
        self._schedule_snapshot()

    async def _share(self, store: Store, snapshot: str, looking: bool) -> None:
        fresh = FRESH if looking else None
        try:
            if looking:
                self.announce()
            others = await store.read(lambda database: database.exchange(self._process, snapshot, fresh))
        except StorageError:
            others = []  # the page shows this process, while the database is away
        finally:
            self._sharing = None
            self._schedule_snapshot()
        if looking:
            self._publish([snapshot, *others])

    def _publish(self, workers: list[str]) -> None:
        self._workers = workers
        self._published = self._clock.time()
        self._numbers.advance_soon(self.number + 1)


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
                # By the clock, because the wheels themselves turn only when a task is due.
                "hand": wheel.slot(now),
                "counts": [wheel.count(slot) for slot in range(wheel.size)],
            }
            for wheel in timer.wheels
        ],
        "waits": waits.counts,
    }
