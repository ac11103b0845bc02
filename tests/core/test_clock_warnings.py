"""The warning about operations that are awaited on a virtual clock that no code moves.

Its seconds are hundredths here. The limits are counts of checks, each in another iteration: a busy machine delays them.
"""

import asyncio
import gc
import warnings
from collections.abc import Iterator
from weakref import ref

import pytest

from purgatory import Delay, DelayedOperation, DelayedOperationPurgatory, VirtualClock, WheelTimer
from tests.support.operations import Waiting, turn


@pytest.fixture(autouse=True)
def _short_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory._standstill._SECONDS", 0.01)


@pytest.fixture
def warned() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings of a test for which they are no errors."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        yield messages


def wait_on(clock: VirtualClock, timeout: float | None = 30.0) -> DelayedOperation[None]:
    return DelayedOperationPurgatory(clock=clock).try_complete_else_watch(Waiting(timeout), ["key"])


async def wait(operation: DelayedOperation[None]) -> None:
    await operation


async def another_clock_is_warned_of() -> None:
    """Wait until a check has warned that began now: one that began before would have warned by then too."""
    operation = wait_on(VirtualClock(-1.0))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*time=-1.0")
        with pytest.raises(RuntimeWarning):
            await operation


async def test_awaiting_while_no_code_moves_the_clock_is_warned_of() -> None:
    operation = wait_on(VirtualClock())
    with pytest.raises(RuntimeWarning, match=r"<VirtualClock time=0.0 .*no code calls advance\(\), or"):
        await operation
    assert operation.cancelled()


async def test_moving_the_clock_before_the_task_has_begun_is_warned_of() -> None:
    clock = VirtualClock()

    async def work() -> None:
        await wait_on(clock)

    task = asyncio.create_task(work())
    clock.advance(60.0)
    with pytest.raises(RuntimeWarning, match=r"or it was called before the task had begun"):
        await task


async def test_order_that_the_warning_names_completes() -> None:
    clock = VirtualClock()

    async def work() -> float:
        await wait_on(clock)
        return clock.time()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    clock.advance(60.0)
    assert await task == 60.0


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


async def test_clock_that_moves_between_checks_is_not_warned_of(warned: list[warnings.WarningMessage]) -> None:
    clock = VirtualClock()
    task = asyncio.create_task(wait(wait_on(clock)))
    another = asyncio.create_task(another_clock_is_warned_of())
    while not another.done():
        clock.advance(0)
        await turn()
    await another
    assert not warned
    clock.advance(30.0)
    await task


async def test_warning_comes_after_the_last_move_too() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(wait(wait_on(clock)))
    while clock._standstill is None or clock._standstill.checks < 2:
        await turn()
    clock.advance(1.0)
    with pytest.raises(RuntimeWarning, match=r"time=1\.0"):
        await task


async def test_operation_that_an_event_completes_is_not_warned_of(warned: list[warnings.WarningMessage]) -> None:
    clock = VirtualClock()
    operation = wait_on(clock)
    task = asyncio.create_task(wait(operation))
    await turn()
    operation.force_complete()
    await task
    await another_clock_is_warned_of()
    assert not warned
    assert clock._standstill is None


async def test_operation_without_a_deadline_is_not_warned_of(warned: list[warnings.WarningMessage]) -> None:
    operation = wait_on(VirtualClock(), None)
    task = asyncio.create_task(wait(operation))
    await another_clock_is_warned_of()
    assert not warned
    operation.force_complete()
    await task


async def test_task_that_awaits_later_than_another_is_warned_of() -> None:
    clock = VirtualClock()
    first, second = wait_on(clock), wait_on(clock)
    tasks = [asyncio.create_task(wait(operation)) for operation in (first, second)]
    await turn()
    first.force_complete()
    with pytest.raises(RuntimeWarning):
        await tasks[1]


async def test_clock_is_not_kept_by_its_check(warned: list[warnings.WarningMessage]) -> None:
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


async def test_timer_as_a_clock_needs_no_check() -> None:
    purgatory = DelayedOperationPurgatory(clock=WheelTimer())
    delay = purgatory.try_complete_else_watch(Delay(0.001), ["key"])
    await delay
    assert delay.expired()


def test_second_loop_has_its_own_check() -> None:
    clock = VirtualClock()

    async def leave() -> None:
        task = asyncio.create_task(wait(wait_on(clock)))
        await turn()
        task.cancel()

    asyncio.run(leave())
    with pytest.raises(RuntimeWarning):
        asyncio.run(wait(wait_on(clock)))


def test_loop_whose_own_time_jumps_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, warned: list[warnings.WarningMessage]
) -> None:
    monkeypatch.setattr("purgatory._standstill._SECONDS", 3600.0)

    class Jumping(asyncio.SelectorEventLoop):
        ahead = 0.0

        def time(self) -> float:
            return super().time() + self.ahead

    clock = VirtualClock()
    loop = Jumping()

    async def jump() -> None:
        task = asyncio.create_task(wait(wait_on(clock)))
        for _ in range(20):
            await turn()
            loop.ahead += 3600.0
        clock.advance(30.0)
        await task

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(jump())
    assert not warned


def test_move_on_another_loop_begins_the_count_anew(warned: list[warnings.WarningMessage]) -> None:
    """Two tests with one clock: the checks of the first one do not count in the second."""
    clock = VirtualClock()

    async def leave(checks: int) -> None:
        task = asyncio.create_task(wait(wait_on(clock)))
        while clock._standstill is None or clock._standstill.checks < checks:
            await turn()
        task.cancel()

    asyncio.run(leave(4))
    asyncio.run(leave(3))
    assert not warned


async def test_short_waits_are_not_one_long_one(warned: list[warnings.WarningMessage]) -> None:
    clock = VirtualClock()
    for checks in range(2, 20, 2):
        operation = wait_on(clock)
        task = asyncio.create_task(wait(operation))
        await turn()
        while clock._standstill is not None and clock._standstill.checks < checks:
            await turn()
        operation.force_complete()
        await task
    assert not warned


def test_closed_loop_is_not_kept_by_the_clock() -> None:
    clock = VirtualClock()

    async def leave() -> "ref[asyncio.AbstractEventLoop]":
        task = asyncio.create_task(wait(wait_on(clock)))
        await turn()
        task.cancel()
        return ref(asyncio.get_running_loop())

    loop = asyncio.run(leave())
    gc.collect()
    assert loop() is None
