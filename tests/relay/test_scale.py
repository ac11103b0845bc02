"""The formula of `purgatory/SCALE.md`, on up to a thousand processes in virtual time.

A process is a purgatory on a clock of its own. The proxy and the relays are a model: a proxy sends each wait to a
process of its key's partition, and each change reaches all processes of that partition, after a latency of its own in
each. Changes come at whole hundredths of a second and waits between them, so that no deadline is at a change.
"""

import random
from bisect import bisect_right
from collections import defaultdict
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import DelayedOperation, DelayedOperationPurgatory, VirtualClock

TICK = 0.001
KEYS = 200
SECONDS = 60
LATEST = 0.25
"""The longest latency of a change, in seconds."""


class Database:
    """The state that the processes share: the times at which each key changes."""

    def __init__(self, changes: list[tuple[float, str]]) -> None:
        self._times: dict[str, list[float]] = defaultdict(list)
        for when, key in sorted(changes):
            self._times[key].append(when)

    def version(self, key: str, now: float) -> int:
        return bisect_right(self._times[key], now)

    def next_change(self, key: str, now: float) -> float:
        """The time of the first change after `now`, infinity if there is none."""
        return next((when for when in self._times[key] if when > now), float("inf"))


class Process:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = VirtualClock()
        self.purgatory = DelayedOperationPurgatory(tick=TICK, clock=self.clock)
        self.checks = 0
        self.heard: dict[tuple[float, str], float] = {}
        """When it hears of each change."""
        self.waits: list[Wait] = []

    def will_hear(self, change: tuple[float, str], latency: float) -> None:
        self.heard[change] = change[0] + latency
        self.clock.call_at(self.heard[change], self._check, change[1])

    def will_wait(self, when: float, key: str, timeout: float) -> None:
        self.clock.call_at(when, self._wait, key, timeout)

    def _check(self, key: str) -> None:
        self.checks += 1
        self.purgatory.check_and_complete(key)

    def _wait(self, key: str, timeout: float) -> None:
        self.waits.append(self.purgatory.try_complete_else_watch(Wait(self, key, timeout), [key]))


class Wait(DelayedOperation[None]):
    """Waits for the next change of its key."""

    def __init__(self, process: Process, key: str, timeout: float) -> None:
        super().__init__(timeout)
        self.process = process
        self.key = key
        self.began = process.clock.time()
        self.deadline = self.began + timeout
        self.ended = -1.0
        self.since = process.database.version(key, self.began)

    def try_complete(self) -> bool:
        now = self.process.clock.time()
        return self.process.database.version(self.key, now) > self.since and self.force_complete()

    def on_complete(self) -> None:
        self.ended = self.process.clock.time()


def simulate(processes: int, partitions: int, changes: int, waits: int, seed: int) -> tuple[list[Process], int]:
    """Let a minute pass. Returns the processes, and how many waits see a change of their key before their deadline.

    What changes and who waits depends on `seed` alone, and not on the processes.
    """
    chance, where = random.Random(seed), random.Random(seed + 1)
    keys = [f"key-{number}" for number in range(KEYS)]
    # No key changes twice in a hundredth.
    moments = chance.sample(range(100 * SECONDS * KEYS), changes)
    changed = [(moment // KEYS / 100, keys[moment % KEYS]) for moment in moments]
    database = Database(changed)
    all_processes = [Process(database) for _ in range(processes)]
    for change in changed:
        for process in all_processes[crc32(change[1].encode()) % partitions :: partitions]:
            process.will_hear(change, where.uniform(0, LATEST))
    satisfied = 0
    for _ in range(waits):
        began = chance.randrange(100 * SECONDS) / 100 + 0.005
        key, timeout = chance.choice(keys), chance.randrange(1, 3000) / 100
        where.choice(all_processes[crc32(key.encode()) % partitions :: partitions]).will_wait(began, key, timeout)
        satisfied += database.next_change(key, began) < began + timeout
    for process in all_processes:
        process.clock.advance_to(2.0 * SECONDS)
    return all_processes, satisfied


def check(processes: list[Process]) -> None:
    """No wait is early, and none misses a change."""
    for process in processes:
        statistics = process.purgatory.statistics()
        assert statistics.num_delayed == 0
        assert process.checks == len(process.heard)
        for wait in process.waits:
            changed = process.database.next_change(wait.key, wait.began)
            if wait.expired():
                assert wait.deadline < changed
                assert wait.deadline <= wait.ended < wait.deadline + 2 * TICK
            else:
                heard = process.heard[changed, wait.key]
                assert changed <= wait.ended <= min(heard, wait.deadline + 2 * TICK)


@given(
    partitions=st.integers(1, 5),
    each=st.integers(1, 4),
    changes=st.integers(0, 2000),
    waits=st.integers(0, 200),
    seed=st.integers(0, 2**32),
)
def test_no_wait_is_early_and_none_misses_a_change(
    partitions: int, each: int, changes: int, waits: int, seed: int
) -> None:
    processes, satisfied = simulate(partitions * each, partitions, changes, waits, seed)
    check(processes)
    assert sum(process.purgatory.statistics().satisfied for process in processes) == satisfied


@pytest.mark.parametrize(("processes", "partitions"), [(1, 1), (500, 1), (1000, 1), (1000, 10), (1000, 1000)])
def test_a_process_checks_the_changes_of_its_partition_and_wakes_its_share(processes: int, partitions: int) -> None:
    changes, waits = 200, 10_000
    found, satisfied = simulate(processes, partitions, changes, waits, seed=0)
    check(found)
    # With one partition a process checks every change, however many processes there are.
    assert sum(process.checks for process in found) == processes * changes / partitions
    if partitions == 1:
        assert {process.checks for process in found} == {changes}
    # The wake-ups are shared by all processes, however the keys are partitioned.
    assert sum(process.purgatory.statistics().satisfied for process in found) == satisfied
    assert satisfied > waits / 10
