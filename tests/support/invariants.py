"""What must hold inside a timer and a purgatory between any two calls."""

import math
from itertools import chain

from purgatory import DelayedOperationPurgatory, WheelTimer


def check_timer(timer: WheelTimer) -> None:
    """The heap holds each bucket once, one call is armed for the first, and each task is where its deadline puts it."""
    used = [
        (-wheel.level, slot)
        for wheel in timer.wheels
        for slot, bucket in enumerate(wheel.buckets)
        if bucket is not None
    ]
    assert sorted((level, wheel.slot(start)) for start, level, wheel in timer._heap) == sorted(used)
    assert timer._armed == (timer._heap[0][0] if timer._heap else math.inf)
    assert (timer._keys, timer._dicts, dict(timer._drained)) == ([], [], {})
    for start, _, wheel in timer._heap:
        slot = wheel.slot(start)
        assert start % wheel.unit == 0
        assert start < wheel.limit
        for part in (*wheel.full.get(slot, []), wheel.buckets[slot]):
            for key, task in (part or {}).items():
                assert key == id(task)
                assert task._bucket is part
                tick = math.ceil(task._deadline / timer.tick)
                assert tick - 1 < start + wheel.unit, "it would be late"


def check_purgatory(purgatory: DelayedOperationPurgatory) -> None:
    """The lists hold each pending operation on each of its keys, in watch order, and of the finished ones nothing."""
    check_timer(purgatory.timer)
    lists = purgatory._lists
    entries = list(chain.from_iterable(lists._lists.values()))
    alive = {id(entry[0]): entry[0] for entry in entries if entry}
    assert all(lists._lists.values()), "a list without entries is dropped"
    assert lists.watched == len(entries)
    assert lists.num_delayed == len(alive)
    assert (lists.depth, list(lists.deferred)) == (0, [])
    for entry in entries:
        assert not entry or (entry[0]._entry is entry and not entry[0].done())
    assert len(purgatory.timer) == sum(operation._deadline < math.inf for operation in alive.values())
    assert lists.finished <= lists.purge_interval or lists._handle is not None
