"""Many clients wait, each until one of its many keys has a newer version: a long poll of configurations.

Each client is a task. By hand, as in Ray Serve's `LongPollHost`, it starts a task with an `asyncio.Event` for each of
its keys, and waits for the first of these tasks. The careful alternative is one event for each client, under
`asyncio.timeout`, in a set of each of its keys. Then one key after the other is set, until all clients are answered.
"""

import asyncio
import gc
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Final

from purgatory import VersionedValues
from purgatory.bench import machine
from purgatory.bench.case import LOOPS, OURS, Case, Figures, Metric, Plot, Scenario

TIMEOUT: Final = 3600.0
KEYS: Final = [f"key {number}" for number in range(1000)]

Seen = dict[str, int]
Found = dict[str, tuple[int, object]]


class Host(ABC):
    """Values with versions."""

    @abstractmethod
    def set(self, key: str, value: object) -> int:
        """Set the value of `key`. Returns its version."""

    @abstractmethod
    async def changed(self, seen: Seen) -> Found:
        """Wait for newer versions than those that were seen."""


class Ours(Host):
    def __init__(self) -> None:
        self._values: VersionedValues[str, object] = VersionedValues()

    def set(self, key: str, value: object) -> int:
        return self._values.set(key, value)

    async def changed(self, seen: Seen) -> Found:
        return await self._values.changed(seen, TIMEOUT)


class Events(Host):
    """The values and events of both alternatives."""

    def __init__(self) -> None:
        self._values: Found = {}
        self._events: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def set(self, key: str, value: object) -> int:
        version = self._values.get(key, (0, None))[0] + 1
        self._values[key] = (version, value)
        for event in self._events.pop(key, ()):
            event.set()
        return version

    def newer(self, seen: Seen) -> Found:
        """The keys that are newer than those that were seen."""
        return {key: self._values[key] for key, version in seen.items() if self._values[key][0] > version}

    def leave(self, key: str, event: asyncio.Event) -> None:
        """Remove an event that has not been set for `key`."""
        events = self._events.get(key)
        if events is not None:
            events.discard(event)
            if not events:
                del self._events[key]


class EventAKey(Events):
    async def changed(self, seen: Seen) -> Found:
        if found := self.newer(seen):
            return found
        waiting: dict[asyncio.Task[object], tuple[str, asyncio.Event]] = {}
        for key in seen:
            event = asyncio.Event()
            self._events[key].add(event)
            waiting[asyncio.create_task(event.wait())] = (key, event)
        _, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT)
        for task in others:
            task.cancel()
            self.leave(*waiting[task])
        return self.newer(seen)


class EventAClient(Events):
    async def changed(self, seen: Seen) -> Found:
        if found := self.newer(seen):
            return found
        event = asyncio.Event()
        for key in seen:
            self._events[key].add(event)
        try:
            async with asyncio.timeout(TIMEOUT):
                await event.wait()
        except TimeoutError:
            return {}
        finally:
            for key in seen:
                self.leave(key, event)
        return self.newer(seen)


IMPLEMENTATIONS: "Final[dict[str, Callable[[], Host]]]" = {
    OURS: Ours,
    "task + Event a key": EventAKey,
    "Event a client": EventAClient,
}


async def run(case: Case) -> Figures:
    """Let all clients wait, then set the keys one after the other."""
    host = IMPLEMENTATIONS[case.implementation]()
    clients, keys = case.parameters["clients"], case.parameters["keys"]
    versions = {key: host.set(key, "old") for key in KEYS}
    random = Random(1)
    seen = [{key: versions[key] for key in random.sample(KEYS, keys)} for _ in range(clients)]
    gc.collect()
    gc.freeze()  # collections of the objects that exist already are not measured
    before = machine.memory()
    cpu = time.process_time()
    tasks = [asyncio.create_task(host.changed(each)) for each in seen]
    for _ in range(3):
        await asyncio.sleep(0)
    held = machine.memory() - before
    assert not any(task.done() for task in tasks)
    for key in KEYS:
        host.set(key, "new")
        for _ in range(3):
            await asyncio.sleep(0)
    found = await asyncio.gather(*tasks)
    cpu = time.process_time() - cpu
    wrong = sum(len(each) != 1 or not each.keys() <= one.keys() for each, one in zip(found, seen, strict=True))
    return {"kib": 1024 * held / clients, "us": 1e6 * cpu / clients, "wrong": wrong}


def measure(case: Case) -> Figures:
    return machine.run(case.loop, run(case))


def cases(quick: bool) -> list[Case]:
    return [
        Case("versions", implementation, loop, {"clients": 100 if quick else 5_000, "keys": 20})
        for loop in LOOPS[: 1 if quick else 2]
        for implementation in IMPLEMENTATIONS
    ]


SCENARIO = Scenario(
    name="versions",
    title="Clients wait for newer versions of 20 keys each",
    cases=cases,
    measure=measure,
    metrics=(
        Metric("kib", "memory of a waiting client", "KiB", compared=True),
        Metric("us", "CPU from its call to its answer", "µs", compared=True),
        Metric("wrong", "wrong answers", ""),
    ),
    plots=(Plot("memory", metric="kib"), Plot("cpu", metric="us")),
)
