"""The invariants of a timer and a purgatory between any two calls."""

import math
from itertools import chain
from typing import Any, cast

from purgatory import DelayedOperationPurgatory, WheelTimer, _speedups


def check_timer(timer: WheelTimer) -> None:
    """The heap holds each bucket, one call is armed for the first, and each task is where its deadline puts it."""
    if _speedups.c is not None and isinstance(timer, _speedups.c.WheelTimer):
        timer._check()
        return
    used = {
        (-wheel.level, slot)
        for wheel in timer.wheels
        for slot, bucket in enumerate(wheel.buckets)
        if bucket is not None
    }
    known = {(level, wheel.slot(start)): start for start, level, wheel in timer._heap}
    assert used <= known.keys()
    assert all(timer._armed <= known[bucket] for bucket in used), "the clock is armed for the earliest one"
    assert (timer._handle is None) == (timer._armed == math.inf)
    assert (timer._keys, timer._dicts, dict(timer._drained)) == ([], [], {})
    assert len({id(wheel) for wheel in timer.wheels}) == len(timer.wheels)
    for start, _, wheel in timer._heap:
        assert wheel in timer.wheels
        assert start % wheel.unit == 0
        assert start < wheel.limit
        parts = wheel.buckets[wheel.slot(start)]
        for part in parts or ():
            for key, task in part.items():
                assert key == id(task)
                assert task._timer_bucket is part
                tick = math.ceil(task._timer_deadline / timer.tick)
                assert tick - 1 < start + wheel.unit, "it would be late"


def check_purgatory(purgatory: DelayedOperationPurgatory) -> None:
    """The lists hold each pending operation on each of its keys, in watch order, and no finished one."""
    check_timer(purgatory.timer)
    owner = purgatory._owner
    lists = owner.lists
    if _speedups.c is not None:
        cast(Any, owner)._check()
    assert {id(watchers) for watchers in lists._by_key.values()} == {id(watchers) for watchers in lists._register}
    assert lists._size == len(lists._register) == len(lists._by_key)
    assert all(lists._register[watchers.index] is watchers for watchers in lists._register)
    assert all(watchers.entries for watchers in lists._register), "a list without entries is dropped"
    assert not any(entry for watchers in lists._register for entry in watchers.entries[: watchers.head])
    entries: list[list[Any]] = list(chain.from_iterable(watchers.entries for watchers in lists._register))
    alive = {id(entry[0]): entry[0] for entry in entries if entry}
    assert (lists.living, lists.dead) == (sum(map(bool, entries)), sum(not entry for entry in entries))
    assert (purgatory.watched, purgatory.statistics().estimated_total) == (len(entries), len(entries))
    assert owner.num_delayed == len(alive)
    assert (owner.depth, list(owner.deferred), lists.revived) == (0, [], [])
    for entry in entries:
        assert not entry or (entry[0]._purgatory_entry is entry and not entry[0].done())
    for operation in alive.values():
        assert sum(entry is operation._purgatory_entry for entry in entries) == operation._purgatory_keys
    assert len(purgatory.timer) == sum(operation._timer_deadline < math.inf for operation in alive.values())
    assert lists.dead <= max(owner.purge_interval, lists.living) or owner._purging
