"""The invariants of a timer and a purgatory between any two calls."""

import math
from itertools import chain
from typing import Any, cast

from purgatory import DelayedOperationPurgatory, WheelTimer, __core__


def check_timer(timer: WheelTimer) -> None:
    """The heap holds each bucket, one call is armed for the first, and each task is where its deadline puts it.

    The core in C checks itself where it was compiled for tests, as with the compiler's sanitizers.
    """
    assert (timer._handle is None) == (timer._armed == math.inf)
    if __core__ == "C":
        if hasattr(timer, "_check"):
            timer._check()
        return
    wheels = []
    wheel: Any = timer._lowest
    while wheel is not None:
        wheels.append(wheel)
        wheel = wheel.overflow
    in_rings = {
        (wheel.level, slot) for wheel in wheels for slot, bucket in enumerate(wheel.buckets) if bucket is not None
    }
    in_heap = {(wheel.level, wheel.slot(start)) for start, _, wheel in timer._heap}
    assert in_rings == in_heap
    assert len(in_heap) == len(timer._heap), "each bucket is in the heap once"
    # Between two slices, and after a request to exit, the timer goes on with the bucket that it was emptying.
    assert timer._drained.keys() <= set(timer._keys)
    assert not timer._drained or timer._armed <= timer._current
    assert all(key == id(task) and task._timer_bucket is timer._drained for key, task in timer._drained.items())
    for start, level, wheel in timer._heap:
        assert wheel in wheels
        assert level == -wheel.level
        assert start % wheel.unit == 0
        assert start < wheel.limit
        bucket = wheel.buckets[wheel.slot(start)]
        assert not bucket or timer._armed <= start, "the clock is armed for the earliest one"
        for key, task in bucket.items():
            assert key == id(task)
            assert task._timer_bucket is bucket
            assert timer._tick(task._timer_deadline) < start + wheel.unit, "it would be late"


def check_whole(timer: WheelTimer, purgatory: DelayedOperationPurgatory | None = None) -> None:
    """The structures in C are whole, whatever was called: a core that was compiled for tests looks at all links."""
    parts: list[Any] = [timer]
    if purgatory is not None:
        parts.append(purgatory._owner)
        purgatory.statistics()
    for part in parts:
        if hasattr(part, "_check"):
            part._check()
    timer.statistics()


def check_purgatory(purgatory: DelayedOperationPurgatory) -> None:
    """The lists hold each pending operation on each of its keys, in watch order, and no finished one."""
    check_timer(purgatory.timer)
    owner = cast(Any, purgatory._owner)
    lists = owner.lists
    all_lists = [lists.at(index) for index in range(len(lists))]
    assert all(watchers.entries for watchers in all_lists), "a list without entries is dropped"
    assert all(lists.find(watchers.key) is watchers for watchers in all_lists)
    assert len(purgatory.watched_keys()) == len(all_lists)
    entries: list[Any] = list(chain.from_iterable(watchers.entries for watchers in all_lists))
    alive = {id(entry.operation): entry for entry in entries if entry.operation is not None}
    keyless = owner.keyless()
    assert purgatory.watched == len(entries)
    assert lists.dead == sum(entry.operation is None for entry in entries)
    assert purgatory.num_delayed == len(alive) + len(keyless)
    assert not any(entry.operation for watchers in all_lists for entry in watchers.entries[: watchers.head])
    for entry in alive.values():
        assert sum(each is entry for each in entries) == entry.lists
        assert entry.operation.outcome is None
    assert all(operation.outcome is None and operation.deadline is not None for operation in keyless)
    due = sum(entry.operation._timer_deadline < math.inf for entry in alive.values())
    assert len(purgatory.timer) == due + len(keyless)
    assert lists.dead <= max(owner.purge_interval, len(entries) - lists.dead) or owner.purging
    if hasattr(owner, "_check"):
        owner._check()
    elif __core__ == "Python":
        assert (owner.depth, list(owner.deferred)) == (0, [])
