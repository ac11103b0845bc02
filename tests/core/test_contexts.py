"""Deferred work runs in an empty context, never in that of the request that came first; a timer's call in its own."""

import asyncio
import contextvars
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, ThresholdPurgatory, VirtualClock, WheelTimer
from tests.support.operations import Flag, turn

USER: contextvars.ContextVar[str] = contextvars.ContextVar("USER", default="no user")


class Session:
    """The value of a context variable."""


SESSION: contextvars.ContextVar[Session | None] = contextvars.ContextVar("SESSION", default=None)


class Seeing(Flag):
    """Notes the user of the context in which each method runs."""

    def __init__(self, timeout: float | None = None, name: str = "seeing") -> None:
        super().__init__(timeout, name)
        self.seen: list[str] = []
        self.then = lambda: self.seen.append(USER.get())

    def try_complete(self) -> bool:
        self.seen.append(USER.get())
        return super().try_complete()

    def on_expiration(self) -> None:
        self.seen.append(USER.get())


class SeeingKey:
    """Equals all of its class. Notes the user of the context in which it is hashed."""

    seen: list[str]

    def __init__(self) -> None:
        SeeingKey.seen = []

    def __hash__(self) -> int:
        SeeingKey.seen.append(USER.get())
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeeingKey)


def as_user(name: str, call: Callable[[], Any]) -> Any:
    """Do `call` in a context of its own, in which the user is `name`."""

    def run() -> Any:
        USER.set(name)
        return call()

    return contextvars.copy_context().run(run)


async def test_a_deadline_is_not_in_the_context_of_the_first_request() -> None:
    purgatory: DelayedOperationPurgatory = as_user("first", DelayedOperationPurgatory)
    operations = [
        as_user(name, lambda: purgatory.try_complete_else_watch(Seeing(0.002), ["key"])) for name in ("first", "second")
    ]
    for operation in operations:
        operation.seen.clear()
    for operation in operations:
        await operation
        # The calls are the last try, on_complete and on_expiration.
        assert operation.seen == ["no user"] * 3
    await purgatory.aclose()


async def test_a_purge_is_not_in_the_context_of_the_operation_that_started_it() -> None:
    async with DelayedOperationPurgatory(purge_interval=0) as purgatory:
        key = SeeingKey()

        def finish() -> None:
            for _ in range(3):
                purgatory.try_complete_else_watch(Flag(), [key]).force_complete()

        as_user("first", finish)
        SeeingKey.seen.clear()
        while purgatory.watched:
            await turn()
        assert set(SeeingKey.seen) == {"no user"}


async def test_thresholds_are_not_passed_in_the_context_of_the_first_call() -> None:
    async with ThresholdPurgatory(0) as thresholds:
        heard: list[str] = []
        thresholds.purgatory.add_listener(lambda finished: heard.append(USER.get()))
        reaches = as_user("first", lambda: [thresholds.reach(n, None) for n in range(1, 3000)])
        as_user("second", lambda: thresholds.advance_soon(5000))
        await asyncio.wait_for(reaches[-1], 30)
        assert set(heard) == {"no user"}


async def test_a_call_of_another_thread_is_not_in_its_context() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Seeing(), ["key"])
        operation.seen.clear()
        operation.ready = True
        await asyncio.to_thread(as_user, "thread", lambda: purgatory.check_and_complete_threadsafe("key"))
        await operation
        assert operation.seen == ["no user"] * 2


async def test_the_first_request_is_not_kept_alive_by_work_that_later_ones_defer() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        for _ in range(3000):
            purgatory.try_complete_else_watch(Flag(), ["hot"])

        async def request() -> "weakref.ref[Session]":
            session = Session()
            SESSION.set(session)
            purgatory.check_and_complete_soon("hot")
            return weakref.ref(session)

        session = await asyncio.create_task(request())
        for _ in range(5):  # the pass is under way all the time
            purgatory.check_and_complete_soon("hot")
            await asyncio.sleep(0)
        gc.collect()
        assert session() is None


class TestCallsOfATimer:
    @pytest.mark.parametrize("method", ["call_at", "call_later", "call_at of the clock"])
    def test_a_call_runs_in_a_copy_of_the_callers_context(self, clock: VirtualClock, method: str) -> None:
        call_at = clock.call_at if method.endswith("clock") else getattr(WheelTimer(clock), method)
        seen: list[str] = []
        for name in ("first", "second"):
            as_user(name, lambda: call_at(1.0, lambda: seen.append(USER.get())))
        as_user("third", lambda: clock.advance(2.0))
        assert seen == ["first", "second"]

    @pytest.mark.parametrize("method", ["call_at", "call_later"])
    def test_a_call_runs_in_the_context_given(self, clock: VirtualClock, method: str) -> None:
        timer = WheelTimer(clock)
        context = contextvars.copy_context()
        context.run(USER.set, "given")
        seen: list[str] = []

        def callback(suffix: str) -> None:
            seen.append(USER.get())
            USER.set(USER.get() + suffix)

        as_user("first", lambda: getattr(timer, method)(1.0, callback, " again", context=context))
        clock.advance(2.0)
        assert seen == ["given"]
        assert context[USER] == "given again", "in the context itself, and not in a copy"
