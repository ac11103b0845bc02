"""The core in C without memory: an allocation that fails is a `MemoryError`, and nothing is lost or broken.

Each call is made again and again, with one allocation more that succeeds before the one that fails: first with none.
It has a process of its own for that, because all its threads are short of memory, and one of pytest-xdist's would die.
"""

import gc
import multiprocessing
import sys
from collections.abc import Callable

import pytest

from purgatory import DelayedOperationPurgatory, VirtualClock
from tests.support.cores import in_c
from tests.support.invariants import check_purgatory
from tests.support.operations import FaultLog, Flag

_testcapi = pytest.importorskip("_testcapi", reason="needs the module _testcapi, which comes with CPython's tests")

pytestmark = in_c


class Counted(Flag):
    """Counts its completions."""

    completions = 0

    def on_complete(self) -> str:
        self.completions += 1
        return super().on_complete()


class World:
    """A purgatory with some operations, and the one that a call is about."""

    def __init__(self) -> None:
        self.clock = FaultLog()
        self.purgatory = DelayedOperationPurgatory(clock=self.clock)
        self.others = [self.purgatory.try_complete_else_watch(Counted(60.0 + n), [n % 3, "key"]) for n in range(5)]
        self.subject = self.purgatory.try_complete_else_watch(Counted(1.0), ["key", "its own"])
        self.fresh = Counted(30.0)
        self.key = ("a", "new", "key")

    def complete(self) -> None:
        self.subject.ready = True
        self.purgatory.check_and_complete("key")


CALLS: dict[str, Callable[[World], object]] = {
    "watch": lambda world: world.purgatory.try_complete_else_watch(world.fresh, (world.key,)),
    "watch keys": lambda world: world.purgatory.try_complete_else_watch(world.fresh, [world.key, 0, "key", 0]),
    "construct": lambda world: Flag(3.0),
    "force": lambda world: world.subject.force_complete(),
    "cancel": lambda world: world.subject.cancel(),
    "check": World.complete,
    "check a key without watchers": lambda world: world.purgatory.check_and_complete("none"),
    "reschedule": lambda world: world.subject.reschedule(7200.0),
    "call later": lambda world: world.purgatory.timer.call_later(3.0, int).cancel(),
    "expire": lambda world: world.purgatory.timer._wake(),
    "close": lambda world: world.purgatory.close(),
}

UNFINISHED = {"expire", "close"}
"""Calls that are to be made again if they fail."""

NOTHING_ALLOCATED = {"force", "cancel", "check", "check a key without watchers"}


@pytest.mark.parametrize("name", CALLS)
def test_an_allocation_that_fails_breaks_nothing(name: str) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_fail_each_allocation, args=(name,))
    process.start()
    process.join()
    assert process.exitcode == 0


def _fail_each_allocation(name: str) -> None:
    gc.disable()
    sys.settrace(None)  # coverage's tracer would be short of memory too
    call = CALLS[name]
    succeeded = refused = 0
    for number in range(400):
        world = World()
        if name == "expire":
            VirtualClock.advance(world.clock, 0.999)
            world.clock._now = 1.5
        _testcapi.set_nomemory(number, number + 1)
        try:
            call(world)
        except MemoryError:
            refused += 1
            _testcapi.remove_mem_hooks()
            if name in UNFINISHED:
                call(world)
        else:
            succeeded += 1
        finally:
            _testcapi.remove_mem_hooks()
        if name in UNFINISHED and world.clock.exceptions:  # it has reported that a list could not be dropped
            call(world)
        for operation in (world.subject, world.fresh, *world.others):
            assert operation.completions <= 1
        check_purgatory(world.purgatory)
        world.purgatory.cancel_all()
        check_purgatory(world.purgatory)
        assert world.purgatory.num_delayed == 0
        world.purgatory.close()
        if succeeded >= 20:
            break
    assert succeeded >= 20, "the failing allocation is beyond the last one"
    assert refused or name in NOTHING_ALLOCATED
