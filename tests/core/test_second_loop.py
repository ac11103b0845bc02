"""A timer and a purgatory belong to one loop: on a second one they raise, and accept no call that would never run."""

import asyncio
from collections.abc import Callable
from contextlib import closing

import pytest

from purgatory import DelayedOperationPurgatory, PurgatoryError, VirtualClock, WheelTimer
from tests.support.operations import Flag, Note


async def use(timer: WheelTimer, call: Callable[[WheelTimer], object]) -> None:
    call(timer)


@pytest.mark.parametrize("left", [True, False], ids=["with a call waiting", "with none"])
@pytest.mark.parametrize(
    "call",
    [
        lambda timer: timer.call_later(0.01, print),
        lambda timer: timer.call_at(timer.time() + 0.01, print),
        lambda timer: timer.call_later(3600.0, print),
        lambda timer: timer.add(Note(VirtualClock()), timer.time() + 3600.0),
    ],
    ids=["call_later", "call_at", "in the bucket of the first", "add there"],
)
def test_a_timer_on_a_second_loop_is_refused(call: Callable[[WheelTimer], object], left: bool) -> None:
    timer = WheelTimer()

    async def first() -> None:
        handle = timer.call_later(3600.0, print)
        if not left:
            handle.cancel()

    asyncio.run(first())
    with pytest.raises(PurgatoryError, match="loop"):
        asyncio.run(use(timer, call))
    assert len(timer) == left


@pytest.mark.parametrize("delay", [0.01, 3600.0], ids=["in a new bucket", "in the bucket of the first"])
@pytest.mark.parametrize("given", [False, True], ids=["the running loop", "a loop given as the clock"])
def test_a_timer_on_a_second_loop_is_refused_while_its_own_is_open(delay: float, given: bool) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        timer = WheelTimer(first.get_loop() if given else None)
        first.run(use(timer, lambda timer: timer.call_later(3600.0, print)))
        with pytest.raises(PurgatoryError, match="another event loop"):
            second.run(use(timer, lambda timer: timer.call_later(delay, print)))
        assert len(timer) == 1


def test_a_timer_can_be_used_while_its_loop_does_not_run() -> None:
    with asyncio.Runner() as runner:
        timer = WheelTimer(runner.get_loop())
        ran = asyncio.Event()
        timer.call_later(0.0, ran.set)
        runner.run(asyncio.wait_for(ran.wait(), 30))


async def test_a_purgatory_whose_clock_is_another_loop_refuses_an_operation() -> None:
    operation = Flag(ready=True)
    with closing(asyncio.new_event_loop()) as other:
        purgatory = DelayedOperationPurgatory(clock=other)
        with pytest.raises(PurgatoryError, match="another event loop"):
            purgatory.try_complete_else_watch(operation, ["key"])
    assert not operation.done()


async def test_a_timer_works_on_its_own_loop() -> None:
    timer = WheelTimer()
    ran = asyncio.Event()
    timer.call_later(0.0, ran.set)
    async with asyncio.timeout(30):
        await ran.wait()
