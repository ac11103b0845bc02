"""The CPU time of a purgatory's work, for each of its counts, and a measurement of it.

`UNITS` was measured by `python -m purgatory.spark.costs` with CPython 3.11.7 on 2 cores of an AMD EPYC, on asyncio's
own loop. Other machines have other figures. Their ratios, which decide the cheapest configuration, are much the same.
Measure your own, and compare.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from time import thread_time
from typing import Final, TypeVarTuple, Unpack

from purgatory import DelayedOperation, DelayedOperationPurgatory, Handle, TimerTask, VirtualClock, WheelTimer

__all__ = ["UNITS", "UnitCosts", "measure"]

Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """The unit costs, in seconds of CPU time."""

    wake_up: float
    """A wake-up of the loop, its call of the timer and its next sleep."""
    bucket: float
    """A bucket of the timer: opened and, when it is due, emptied."""
    cascaded: float
    """A task moved down from a higher level."""
    scanned: float
    """An entry that a purge looks at, and frees if it is dead, as most are."""
    purge: float
    """The start and the end of a purge, without the entries."""
    insert: float
    """A task put into a bucket. The same in all configurations."""


UNITS: Final = UnitCosts(
    wake_up=30e-6,
    bucket=1.7e-6,
    cascaded=0.37e-6,
    scanned=0.026e-6,
    purge=1.9e-6,
    insert=0.25e-6,
)


class _Task(TimerTask):
    __slots__ = ()

    def run(self) -> None:
        pass


class _Waiting(DelayedOperation[None]):
    __slots__ = ()

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        pass


class _LateClock:
    """A clock that calls back when it is moved. Several ticks may be due then. It has one call at a time."""

    def __init__(self) -> None:
        self._now = 0.0
        self._call: Callable[[], object] | None = None

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> Handle:
        self._call = partial(callback, *args)
        return self

    def cancel(self) -> None:
        """Do nothing: the timer cancels a handle only when another call has replaced it."""

    def advance_to(self, now: float) -> None:
        """Move to `now`, and make the due calls."""
        self._now = now
        while self._call is not None:
            call, self._call = self._call, None
            call()


def measure(size: int, wake_ups: int, rounds: int) -> UnitCosts:
    """Measure with `size` tasks or entries, and with `wake_ups` wake-ups.

    The least of `rounds` counts: other work of the machine can only add to it. A figure that is a difference of two may
    be zero or negative if `size` is small.
    """

    def least(work: Callable[..., float], *args: object) -> float:
        return min(work(*args) for _ in range(rounds))

    together = least(_timer, size, 0.010, 0.0, 20)
    apart = least(_timer, size, 0.010, 0.001, 2 * size)
    moved = least(_timer, size, 0.030, 0.0, 20)
    scanned = least(_purge, size, size - 1) / size
    return UnitCosts(
        wake_up=least(_wake_up, wake_ups) - apart / size,
        bucket=(apart - together) / size,
        cascaded=(moved - together) / size,
        scanned=scanned,
        purge=(least(_finish, size, 0) - least(_finish, size, 2 * size)) / size - scanned,
        insert=least(_insert, size) / size,
    )


def _insert(size: int) -> float:
    """Put tasks into the same bucket."""
    timer = WheelTimer(_LateClock())
    tasks = [_Task() for _ in range(size)]
    began = thread_time()
    for task in tasks:
        timer.add(task, 0.010)
    return thread_time() - began


def _timer(size: int, deadline: float, interval: float, wheel_size: int) -> float:
    """Put tasks into a timer, with deadlines from `deadline` on, and run them all in one go."""
    clock = _LateClock()
    timer = WheelTimer(clock, wheel_size=wheel_size)
    tasks = [_Task() for _ in range(size)]
    began = thread_time()
    for number, task in enumerate(tasks):
        timer.add(task, deadline + number * interval)
    clock.advance_to(1.0 + deadline + size * interval)
    return thread_time() - began


def _wake_up(times: int) -> float:
    """Let an event loop wake up for each of so many tasks. Returns the time for one."""

    async def wake_up() -> float:
        timer = WheelTimer()
        done = asyncio.get_running_loop().create_future()
        start = timer.time() + 0.010
        began = thread_time()
        for number in range(times):
            timer.add(_Task(), start + number * 0.002)
        timer.call_at(start + times * 0.002, done.set_result, None)
        await done
        return (thread_time() - began) / timer.statistics().wake_ups

    return asyncio.run(wake_up())


def _purge(size: int, purge_interval: int) -> float:
    """Purge so many dead entries of a hundred keys."""
    clock = VirtualClock()
    purgatory = DelayedOperationPurgatory(purge_interval=purge_interval, clock=clock)
    operations = [purgatory.try_complete_else_watch(_Waiting(None), (number % 100,)) for number in range(size)]
    for operation in operations:
        operation.force_complete()
    del operation, operations  # only the purgatory has the entries, as when requests have been answered
    began = thread_time()
    clock.advance(0.0)
    took = thread_time() - began
    assert purgatory.statistics().scanned == size, "the last to finish has made a purge due"
    return took


def _finish(size: int, purge_interval: int) -> float:
    """Watch and finish operations one after the other, each with a move of the clock."""
    clock = VirtualClock()
    purgatory = DelayedOperationPurgatory(purge_interval=purge_interval, clock=clock)
    operations = [_Waiting(None) for _ in range(size)]
    began = thread_time()
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ("key",)).force_complete()
        clock.advance(0.0)
    return thread_time() - began


def main() -> None:
    """Measure, and print microseconds."""
    parser = argparse.ArgumentParser(prog="python -m purgatory.spark.costs", description=main.__doc__)
    parser.add_argument("--size", type=int, default=10_000, metavar="N", help="tasks or entries for each figure")
    parser.add_argument("--wake-ups", type=int, default=1_000, metavar="N", help="number of wake-ups, of 2 ms each")
    parser.add_argument(
        "--rounds", type=int, default=9, metavar="N", help="number of rounds; the smallest result counts"
    )
    measured = measure(**vars(parser.parse_args()))
    for field in fields(measured):
        sys.stdout.write(f"{field.name:10}{1e6 * getattr(measured, field.name):8.3f} µs\n")


if __name__ == "__main__":
    main()
