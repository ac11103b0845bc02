"""Time that tests replace: with freezegun, time-machine and `unittest.mock`, waits do what the loop's own timers do.

A wait is due between two calls of `loop.call_later`, made in the same place for an earlier and a later time. So it may
not come before the first one, and it must have come with the second one. A thread lets the real time pass.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import pytest
import time_machine
from freezegun import freeze_time
from freezegun.api import FrozenDateTimeFactory

from purgatory import DelayedOperationPurgatory, IdleTracker, WheelTimer
from tests.support.operations import turn

Loop = asyncio.AbstractEventLoop

DELAY: Final = 0.02
"""Seconds of a wait in real time."""


async def pass_real_time(is_enough: Callable[[], bool], pauses: int) -> None:
    """Let the loop run until `is_enough()`, or for as many pauses of another thread."""
    loop = asyncio.get_running_loop()
    for _ in range(pauses):
        if is_enough():
            break
        await loop.run_in_executor(None, threading.Event().wait, 0.005)
    await turn()


class Users:
    """A purgatory, a timer and a tracker, made at one time and used at others."""

    def __init__(self) -> None:
        self.purgatory = DelayedOperationPurgatory()
        self.timer = WheelTimer()
        self.tracker: IdleTracker[Place] = IdleTracker(DELAY, Place.note_idle, tick=0.001)

    async def use(self) -> None:
        """Use each once, so that they know their loop, and leave a wait of a minute in each."""
        await self.purgatory.wait_for(lambda: True, "key")
        self.purgatory.wait_for(lambda: False, "key", timeout=60.0)
        self.timer.call_later(60.0, int)
        self.tracker.touch(Place(self), 60.0)

    def close(self) -> None:
        self.purgatory.close()
        self.timer.close()
        self.tracker.close()


class Place:
    """Waits that begin in one place, and two calls of the loop that come before and after them."""

    def __init__(self, users: Users, delay: float = DELAY) -> None:
        self.users = users
        self.delay = delay
        self.done: list[str] = []

    def begin(self) -> "Place":
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + self.delay / 2, self.done.append, "earlier call")
        self.operation = self.users.purgatory.wait_for(lambda: False, self, timeout=self.delay)
        self.users.timer.call_later(self.delay, self.done.append, "timer")
        self.users.tracker.touch(self, self.delay)
        when = loop.time() + 2 * self.delay
        loop.call_at(when, self.note_call, loop, when)
        return self

    def note_call(self, loop: Loop, when: float) -> None:
        # uvloop counts on its own clock, so its calls are early if its `time` was set back.
        self.done.append("later call" if loop.time() > when - 0.01 else "later call, too early")

    def note_idle(self) -> None:
        self.done.append("idle")

    def is_over(self) -> bool:
        return any(name.startswith("later call") for name in self.done)

    def waits(self) -> set[str]:
        """The waits that are over."""
        return {"timer", "idle"} & set(self.done) | ({"operation"} if self.operation.done() else set())

    def check(self) -> None:
        """Nothing came before the first call of the loop, and nothing comes after the second one."""
        waits = self.waits()
        assert "earlier call" in self.done or not waits, f"early: {waits}"
        assert "later call" not in self.done or waits == {"timer", "idle", "operation"}, f"only {waits} have come"

    async def check_that_it_ends(self) -> None:
        await pass_real_time(self.is_over, 6000)
        assert self.is_over(), "not even the call of the loop has come"
        self.check()
        await pass_real_time(lambda: len(self.waits()) == 3, 6000)
        assert len(self.waits()) == 3, f"only {self.waits()} have come"


Patch = Callable[[Loop], AbstractContextManager[object]]


def moved(real: Callable[..., float], seconds: float) -> Callable[..., float]:
    return lambda *arguments: real(*arguments) + seconds


def monotonic_moved(seconds: float) -> Patch:
    time_moved = moved(time.monotonic, seconds)
    return lambda _: mock.patch("time.monotonic", time_moved)


def loop_time_moved(seconds: float) -> Patch:
    return lambda loop: mock.patch.object(loop, "time", moved(loop.time, seconds))


def class_time_moved(seconds: float) -> Patch:
    return lambda loop: mock.patch.object(type(loop), "time", moved(type(loop).time, seconds))


def module_moved(seconds: float) -> Patch:
    module = SimpleNamespace(monotonic=moved(time.monotonic, seconds))
    return lambda _: mock.patch("asyncio.base_events.time", module)


PATCHES: Final[dict[str, Patch]] = {
    "freezegun": lambda _: freeze_time("2030-01-01"),
    "freezegun, the past": lambda _: freeze_time("1970-01-01"),
    "freezegun that ticks": lambda _: freeze_time("2030-01-01", tick=True),
    "freezegun, real asyncio": lambda _: freeze_time("2030-01-01", real_asyncio=True),
    "freezegun that ticks, real asyncio": lambda _: freeze_time("2030-01-01", tick=True, real_asyncio=True),
    "time-machine": lambda _: time_machine.travel("2030-01-01"),
    "time-machine that stands": lambda _: time_machine.travel("2030-01-01", tick=False),
    "time.monotonic ahead": monotonic_moved(1_000_000.0),
    "time.monotonic behind": monotonic_moved(-100_000.0),
    "loop.time ahead": loop_time_moved(1000.0),
    "loop.time behind": loop_time_moved(-1000.0),
    "type(loop).time ahead": class_time_moved(1000.0),
    "type(loop).time behind": class_time_moved(-1000.0),
    "asyncio.base_events.time": module_moved(50.0),
}


@contextmanager
def closing(users: Users | None) -> Iterator[Users]:
    users = users or Users()
    try:
        yield users
    finally:
        users.close()


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("name", PATCHES)
async def test_waits_do_what_the_timers_of_the_loop_do(name: str, used_before: bool) -> None:
    loop = asyncio.get_running_loop()
    before: Place | None = None
    users: Users | None = None
    if "behind" in name and type(loop).__module__ == "uvloop" and "loop" in name:
        # uvloop's calls count on a clock of its own. What it is asked for while its `time` was set back by a thousand
        # seconds comes a thousand seconds later, and a wait that exists already may be late by that.
        used_before = False
    if used_before:
        users = Users()
        await users.use()
        before = Place(users).begin()
    with PATCHES[name](loop):
        users = users or Users()
        during = Place(users).begin()
        await pass_real_time(during.is_over, 20)
        during.check()
        if before is not None:
            before.check()
    with closing(users):
        await Place(users).begin().check_that_it_ends()
        during.check()
        if before is not None:
            await before.check_that_it_ends()
        again = Place(users).begin()
        await again.check_that_it_ends()


@pytest.mark.parametrize("name", PATCHES)
async def test_what_was_made_while_time_was_replaced_works_afterwards(name: str) -> None:
    """The first deadline ever comes when the time is back."""
    with PATCHES[name](asyncio.get_running_loop()):
        users = Users()
        await users.purgatory.wait_for(lambda: True, "key")
    with closing(users):
        await Place(users).begin().check_that_it_ends()


@pytest.mark.parametrize("name", PATCHES)
async def test_a_wait_without_others_is_in_time_after_each_patch(name: str) -> None:
    """Whatever is armed for the time that has gone does not hold up the next wait."""
    users = Users()
    with closing(users):
        for _ in range(2):
            with PATCHES[name](asyncio.get_running_loop()):
                users.purgatory.wait_for(lambda: False, "key", timeout=10.0)
                users.timer.call_later(10.0, int)
                users.tracker.touch(Place(users), 10.0)
                await turn()
            await Place(users).begin().check_that_it_ends()


async def test_a_frozen_time_that_is_moved_expires_what_is_due(request: pytest.FixtureRequest) -> None:
    users = Users()
    with closing(users), freeze_time("2030-01-01") as frozen:
        assert isinstance(frozen, FrozenDateTimeFactory)
        loop = asyncio.get_running_loop()
        before = loop.time()
        place = Place(users, 30.0).begin()
        for _ in range(5):
            frozen.tick(14.9)
            if loop.time() < before + 1.0:
                return  # uvloop has its own clock, which nothing freezes
            await turn()
            await turn()
            place.check()
        assert place.is_over()
        assert place.operation.expired()


async def test_a_loop_whose_time_a_test_moves_expires_what_is_due() -> None:
    """As the tests of Home Assistant and aiohttp do."""
    users, ahead = Users(), 0.0
    loop = asyncio.get_running_loop()
    real = loop.time

    def now() -> float:
        return real() + ahead

    with closing(users), mock.patch.object(loop, "time", now):
        place = Place(users, 600.0).begin()
        for ahead in (299.0, 301.0, 599.0, 601.0, 1199.0, 1201.0):  # noqa: B007 - of `now`
            # A short call wakes a loop that sleeps until the old time.
            woken = loop.create_future()
            loop.call_later(0.002, woken.set_result, None)
            await woken
            await turn()
            place.check()


async def test_the_time_of_an_operation_is_that_of_the_loop_then() -> None:
    loop = asyncio.get_running_loop()
    async with DelayedOperationPurgatory() as purgatory:
        await purgatory.wait_for(lambda: True, "key")
        with mock.patch.object(loop, "time", moved(loop.time, 1000.0)):
            operation: Any = purgatory.wait_for(lambda: False, "key", timeout=30.0)
            assert 0.0 <= loop.time() + 30.0 - operation.deadline < 10.0
            assert "due in 30.0 s" in repr(operation) or "due in 29." in repr(operation)
        assert operation.deadline - loop.time() > 1000.0
