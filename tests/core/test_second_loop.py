"""A timer belongs to one event loop: on a second one it raises, and accepts no call that would never run."""

import asyncio
from collections.abc import Callable

import pytest

from purgatory import PurgatoryError, WheelTimer


async def use(timer: WheelTimer, call: Callable[[WheelTimer], object]) -> None:
    call(timer)


@pytest.mark.parametrize("left", [True, False], ids=["with a call waiting", "with none"])
@pytest.mark.parametrize(
    "call",
    [
        lambda timer: timer.call_later(0.01, print),
        lambda timer: timer.call_at(timer.time() + 0.01, print),
        lambda timer: timer.call_later(3600.0, print),
    ],
    ids=["call_later", "call_at", "in the bucket of the first"],
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


async def test_a_timer_works_on_its_own_loop() -> None:
    timer = WheelTimer()
    ran = asyncio.Event()
    timer.call_later(0.0, ran.set)
    async with asyncio.timeout(30):
        await ran.wait()
