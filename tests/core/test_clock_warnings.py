"""The warning about operations that are awaited on a virtual clock that no code moves.

Its seconds are hundredths here. The limits are counts of checks, each in another iteration, so a busy machine delays
them and changes nothing.
"""

import asyncio
import gc
import warnings
from collections.abc import Iterator
from weakref import ref

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, VirtualClock
from tests.support.operations import Waiting, turn, wait


@pytest.fixture(autouse=True)
def _short_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory._virtual._SECONDS", 0.01)


@pytest.fixture
def warned() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings of a test for which they are no errors."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        yield messages


def wait_on(clock: VirtualClock, timeout: float | None = 30.0) -> DelayedOperation[None]:
    return DelayedOperationPurgatory(clock=clock).try_complete_else_watch(Waiting(timeout), ["key"])


async def another_clock_is_warned_of() -> None:
    """Wait until a check has warned that began now: one that began before would have warned by then too."""
    operation = wait_on(VirtualClock(-1.0))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*time=-1.0")
        with pytest.raises(RuntimeWarning):
            await operation


@pytest.mark.parametrize("moved", [0.0, 60.0], ids=["never moved", "moved before the task has begun"])
async def test_task_that_would_hang_gets_the_warning(moved: float) -> None:
    clock = VirtualClock()

    async def work() -> None:
        await wait_on(clock)

    task = asyncio.create_task(work())
    clock.advance(moved)
    with pytest.raises(RuntimeWarning, match=r"<VirtualClock .*no code calls advance\(\), or it was called before"):
        await task


async def test_warning_that_is_no_error_leaves_the_operation_and_comes_once(
    warned: list[warnings.WarningMessage],
) -> None:
    clock = VirtualClock()
    tasks = [asyncio.create_task(wait(wait_on(clock)))]
    while not warned:
        await turn()
    tasks.append(asyncio.create_task(wait(wait_on(clock))))
    await another_clock_is_warned_of()
    assert [message.category for message in warned] == [RuntimeWarning]
    assert not any(task.done() for task in tasks)
    clock.advance(30.0)
    await asyncio.gather(*tasks)


async def test_clock_is_warned_of_only_when_it_stands_still(warned: list[warnings.WarningMessage]) -> None:
    clock = VirtualClock()
    tasks = [asyncio.create_task(wait(wait_on(clock))) for _ in range(2)]
    another = asyncio.create_task(another_clock_is_warned_of())
    while not another.done():
        clock.advance(0)
        await turn()
    assert not warned
    while not warned:
        await turn()
    clock.advance(30.0)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("timeout", [None, 30.0])
async def test_operation_that_an_event_completes_is_not_warned_of(
    warned: list[warnings.WarningMessage], timeout: float | None
) -> None:
    clock = VirtualClock()
    operation = wait_on(clock, timeout)
    task = asyncio.create_task(wait(operation))
    await turn()
    if timeout is not None:
        operation.force_complete()
    await another_clock_is_warned_of()
    assert not warned
    assert clock._standstill is None
    operation.force_complete()
    await task


async def test_clock_and_loop_are_not_kept(warned: list[warnings.WarningMessage]) -> None:
    clock = VirtualClock()
    task = asyncio.create_task(wait(wait_on(clock)))
    await turn()
    task.cancel()
    await asyncio.wait([task])
    kept = ref(clock)
    del clock, task
    gc.collect()  # it is in a cycle with the timer that it calls
    assert kept() is None
    await another_clock_is_warned_of()
    assert not warned


async def test_parked_request_is_not_warned_of(warned: list[warnings.WarningMessage]) -> None:
    class Request(asyncio.Future[None]):
        """As much of a parked request as an operation knows."""

    clock = VirtualClock()
    request = Request()
    wait_on(clock)._purgatory_add_waiter(request)
    await another_clock_is_warned_of()
    assert not warned
    clock.advance(30.0)
    assert request.done()
