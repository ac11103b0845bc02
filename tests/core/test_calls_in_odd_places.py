"""Calls where programs have none: by finalizers in a collection inside of a call, of a constructor again, of an await.

The first are a reason why C looks at nothing before it makes an object, and relies on it afterwards.
"""

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, TimerTask, VirtualClock, WheelTimer
from tests.support.operations import Flag


class Finalized:
    """Garbage in a cycle, which the next collection finalizes."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.me = self

    def __del__(self) -> None:
        self.work()


@pytest.fixture
def collecting() -> Iterator[Callable[[int, Callable[[], object]], None]]:
    """Calls with a collection at the n-th object that it makes."""
    threshold = gc.get_threshold()
    lists: list[list[None]] = []

    def call(skipped: int, work: Callable[[], object]) -> None:
        lists.extend([] for _ in range(200))  # none is left to be used again
        gc.set_threshold(gc.get_count()[0] + skipped, 1000, 1000)
        gc.enable()
        try:
            work()
        finally:
            gc.disable()
            gc.set_threshold(*threshold)

    gc.collect()
    gc.disable()
    try:
        yield call
    finally:
        gc.enable()


Collecting = Callable[[int, Callable[[], object]], None]


@pytest.mark.parametrize("skipped", range(6))
def test_a_check_may_be_made_inside_of_a_check_of_the_same_key(
    skipped: int, purgatory: DelayedOperationPurgatory, collecting: Collecting
) -> None:
    operations = [purgatory.try_complete_else_watch(Flag(None), ["key"]) for _ in range(50)]

    overwritten: list[object] = []

    def finish() -> None:
        for operation in operations[:40]:
            operation.cancel()
        purgatory.check_and_complete("key")
        overwritten.extend(bytearray(b"\xff" * 8 * size) for size in range(40, 70) for _ in range(20))

    Finalized(finish)
    collecting(skipped, lambda: purgatory.check_and_complete("key"))
    gc.collect()
    assert (purgatory.num_delayed, purgatory.watched) == (10, 10)


async def _result(operation: DelayedOperation[Any]) -> Any:
    return await operation


@pytest.mark.parametrize("skipped", range(6))
async def test_the_result_may_be_taken_while_awaiting_tasks_are_woken(skipped: int, collecting: Collecting) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(None), ["key"])
        tasks = [asyncio.ensure_future(_result(operation)) for _ in range(1000)]
        await asyncio.sleep(0)

        def take() -> None:
            with suppress(StopIteration):
                operation.__await__().send(None)

        Finalized(take)
        collecting(skipped, operation.force_complete)
        assert await asyncio.gather(*tasks) == [operation.result()] * 1000


@pytest.mark.parametrize("skipped", range(6))
async def test_awaiting_coroutines_may_be_closed_while_tasks_are_woken(skipped: int, collecting: Collecting) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(None), ["key"])
        task = asyncio.ensure_future(_result(operation))
        await asyncio.sleep(0)
        garbage: list[Any] = [_result(operation) for _ in range(50)]
        for coroutine in garbage:
            coroutine.send(None)
        del coroutine
        garbage.append(garbage)
        del garbage
        collecting(skipped, operation.force_complete)
        assert await task == operation.result()


class Nothing(TimerTask):
    def run(self) -> None: ...


@pytest.mark.parametrize("skipped", range(0, 40, 3))
def test_a_timer_may_be_closed_while_its_wheels_are_shown(skipped: int, collecting: Collecting) -> None:
    timer = WheelTimer(VirtualClock())
    for n in range(300):
        timer.add(Nothing(), n * 1.7)
    Finalized(timer.close)
    collecting(skipped, lambda: repr(timer))
    gc.collect()
    assert len(timer) == 0


class Again:
    """A key that calls the constructor of the purgatory again."""

    def __init__(self, purgatory: DelayedOperationPurgatory, method: str) -> None:
        self.purgatory = purgatory
        self.method = method

    def again(self, method: str) -> None:
        if self.method == method:
            self.method = ""
            self.purgatory.__init__(clock=VirtualClock())  # type: ignore[misc]
            gc.collect()

    def __hash__(self) -> int:
        self.again("hash")
        return 1

    def __eq__(self, other: object) -> bool:
        self.again("eq")
        return True


@pytest.mark.parametrize("call", ["watch", "check"])
@pytest.mark.parametrize("method", ["hash", "eq"])
def test_the_constructor_may_be_called_again_inside_of_a_call(call: str, method: str) -> None:
    purgatory = DelayedOperationPurgatory(clock=VirtualClock())
    purgatory.try_complete_else_watch(Flag(None), [Again(purgatory, "")]).cancel()
    key = Again(purgatory, method)
    if call == "watch":
        purgatory.try_complete_else_watch(Flag(None), [key])
    else:
        assert purgatory.check_and_complete(key) == 0
    operation = purgatory.try_complete_else_watch(Flag(None), ["key"])
    operation.ready = True
    assert purgatory.check_and_complete("key") == 1
    purgatory.close()


class Reentrant(asyncio.SelectorEventLoop):
    """Its futures are made with a call inside."""

    call: Callable[[], object] = staticmethod(lambda: None)

    def create_future(self) -> "asyncio.Future[Any]":
        self.call()
        return super().create_future()


@pytest.mark.parametrize("name", ["send", "throw", "close"])
def test_an_await_is_not_stepped_inside_of_itself(name: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Reentrant)
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(None), ["key"])
            step: Any = operation.__await__()
            arguments = {"send": (None,), "throw": (LookupError(),), "close": ()}[name]
            loop.call = lambda: getattr(step, name)(*arguments)
            with pytest.raises(ValueError, match="generator already executing"):
                step.send(None)
            loop.call = lambda: None
            assert operation.cancel()

    with asyncio.Runner(loop_factory=Reentrant) as runner:
        runner.run(main())


async def test_an_await_ends_as_a_generator_does() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(None), ["key"])
        step: Any = operation.__await__()
        with pytest.raises(TypeError, match="just-started"):
            step.send(5)
        operation.force_complete()
        for value in (operation.result(), None):
            with pytest.raises(StopIteration) as raised:
                step.send(None)
            assert raised.value.value == value
        with pytest.raises(LookupError):
            step.throw(LookupError())
        step.close()


class Broken(Flag):
    """Fails."""

    def on_complete(self) -> str:
        raise ValueError


def test_an_exception_of_a_caller_is_not_left_behind_in_a_generator(purgatory: DelayedOperationPurgatory) -> None:
    operation = purgatory.try_complete_else_watch(Broken(None), ["key"])

    def steps() -> Iterator[BaseException | None]:
        operation.force_complete()
        yield None
        yield sys.exc_info()[1]

    generator = steps()
    try:
        raise KeyError
    except KeyError:
        next(generator)
    assert next(generator) is None
    assert isinstance(operation.exception(), ValueError)


class Limit(int):
    """A limit that refers to its purgatory."""

    purgatory: DelayedOperationPurgatory


def test_limits_may_be_of_any_size() -> None:
    purgatory = DelayedOperationPurgatory(clock=VirtualClock(), max_pending=2**80, purge_interval=2**80)
    purgatory.try_complete_else_watch(Flag(None), ["key"])
    assert purgatory.num_delayed == 1
    purgatory.close()


def test_a_limit_may_refer_to_its_purgatory() -> None:
    limit = Limit(5)
    limit.purgatory = DelayedOperationPurgatory(clock=VirtualClock(), max_pending=limit)
    left = weakref.ref(limit.purgatory)
    del limit
    gc.collect()
    assert left() is None


def test_a_wheel_that_is_too_large_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        WheelTimer(VirtualClock(), wheel_size=2**61)


@pytest.mark.parametrize("now", [4.5e15, 4.7e15, 8e15])
def test_a_clock_far_ahead_has_timers_or_is_refused(now: float) -> None:
    clock = VirtualClock(now)
    with suppress(OverflowError):
        timer = WheelTimer(clock)
        timer.add(Nothing(), 0.0)
        clock.advance(1.0)
        assert len(timer) == 0
