"""Finalizers of cyclic garbage may make any call whenever the garbage collector runs: nothing is lost by that.

From CPython 3.12 on the collector runs between any two calls of C functions; before, when containers are made. Here it
runs as often as it can.
"""

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from purgatory import (
    DelayedOperationPurgatory,
    IdleTracker,
    OperationCancelled,
    PurgatoryError,
    VirtualClock,
    WheelTimer,
)
from tests.support.invariants import check_purgatory, check_timer
from tests.support.operations import FaultLog, Flag


@pytest.fixture(autouse=True)
def _without_a_tracer() -> Iterator[None]:
    """A tracer, coverage's for one, allocates between any two lines, and so lets the collector run there too."""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)


ROUNDS = 600


class Connection:
    """A reference cycle, as a protocol and its transport are."""

    def __init__(self) -> None:
        self.protocol = self


def leave(finalizer: Callable[..., object], *args: Any) -> None:
    """Call `finalizer` when the collector runs."""
    weakref.finalize(Connection(), finalizer, *args).atexit = False


@pytest.fixture(autouse=True, params=[1, 7, 50], ids="threshold {}".format)
def raised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Let the collector run as often as it can. Finalizers must raise nothing."""
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: errors.append(raised.exc_value))
    gc.collect()
    before = gc.get_threshold()
    gc.set_threshold(request.param, 5, 50)
    yield errors
    gc.set_threshold(*before)
    gc.collect()
    assert errors == []


class Counted(Flag):
    """Counts completions."""

    completions = 0

    def on_complete(self) -> str:
        self.completions += 1
        return super().on_complete()


def check_all(purgatory: DelayedOperationPurgatory, operations: list[Counted], cancelled: bool) -> None:
    gc.collect()
    check_purgatory(purgatory)
    assert purgatory.num_delayed == sum(not operation.done() for operation in operations)
    for operation in operations:
        operation.ready = True
    for n in range(ROUNDS):
        purgatory.check_and_complete(f"client {n}")
    assert [operation for operation in operations if not operation.done()] == []
    if not cancelled:
        assert {operation.completions for operation in operations} == {1}
    assert purgatory.num_delayed == len(purgatory.timer) == 0
    purgatory.close()
    assert purgatory.watched == 0


def test_finalizers_may_cancel_for_the_key_that_is_watched_anew(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    operations: list[Counted] = []
    for n in range(ROUNDS):
        client = f"client {n}"
        for _ in range(2):  # the old connection and the new one
            leave(purgatory.cancel_for_key, client)
            operation = Counted(60.0)
            operations.append(purgatory.try_complete_else_watch(operation, (client, "all")))
    check_all(purgatory, operations, cancelled=True)
    assert clock.faults == []


def test_finalizers_may_check_the_key_that_is_watched(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    operations: list[Counted] = []
    for n in range(ROUNDS):
        client = f"client {n}"
        operation = Counted(60.0)

        def make_true(operation: Counted = operation, client: str = client) -> None:
            operation.ready = True
            purgatory.check_and_complete(client)

        leave(make_true)
        operations.append(purgatory.try_complete_else_watch(operation, (client, "all")))
    gc.collect()
    assert [operation for operation in operations if not operation.done()] == [], "lost wake-ups"
    check_all(purgatory, operations, cancelled=False)
    assert clock.faults == []


def test_finalizers_may_hand_over_further_operations(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    operations: list[Counted] = []

    def hand_over(client: str) -> None:
        operations.append(purgatory.try_complete_else_watch(Counted(60.0), (client, "more")))

    for n in range(ROUNDS):
        leave(hand_over, f"client {n}")
        hand_over(f"client {n}")
    gc.collect()
    assert len(operations) == 2 * ROUNDS
    check_all(purgatory, operations, cancelled=False)
    assert clock.faults == []


def test_finalizers_may_complete_the_operation_that_is_rescheduled(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    operations: list[Counted] = []
    for n in range(ROUNDS):
        operation = Counted(60.0)
        operations.append(purgatory.try_complete_else_watch(operation, (f"client {n}",)))
        leave(operation.force_complete)
        for seconds in (1.0, 0.001, 1000.0):
            try:
                operation.reschedule(seconds)
            except PurgatoryError:  # completed by a finalizer, of this iteration or between the check and the change
                assert operation.done()
    gc.collect()
    assert [operation for operation in operations if not operation.done()] == []
    check_all(purgatory, operations, cancelled=False)
    assert clock.faults == []


def test_finalizers_may_hand_over_operations_while_others_expire_and_are_purged(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
    operations: list[Counted] = []

    def hand_over(client: str, timeout: float) -> None:
        operations.append(purgatory.try_complete_else_watch(Counted(timeout), (client, "more")))

    for n in range(ROUNDS):
        leave(hand_over, f"client {n}", 0.002 * (n % 5))
        hand_over(f"client {n}", 0.001 * (n % 7))
        clock.advance(0.0013)
        if n % 10 == 0:
            purgatory.check_and_complete_soon("more")
    gc.collect()
    clock.advance(10.0)
    assert purgatory.statistics().expired == 2 * ROUNDS
    check_all(purgatory, operations, cancelled=False)
    assert clock.faults == []


def test_finalizers_may_ask_a_timer_to_call_later(clock: VirtualClock) -> None:
    timer = WheelTimer(clock)
    ran: list[float] = []
    asked = 0

    def call() -> None:
        nonlocal asked
        asked += 1
        due = clock.time() + 0.005
        timer.call_later(0.005, lambda: ran.append(clock.time() - due))

    for _ in range(ROUNDS):
        leave(call)
        call()
        clock.advance(0.0013)
    gc.collect()
    clock.advance(1.0)
    assert len(ran) == asked == 2 * ROUNDS
    assert min(ran) >= 0.0
    assert len(timer) == 0
    check_timer(timer)


def test_finalizers_may_touch_and_discard_connections(clock: FaultLog) -> None:
    idle: list[int] = []
    tracker: IdleTracker[int] = IdleTracker(1.0, idle.append, clock=clock)
    for n in range(ROUNDS):
        leave(tracker.touch, n)
        leave(tracker.discard, n - 1)
        tracker.touch(n)
        clock.advance(0.01)
    gc.collect()
    clock.advance(10.0)
    assert len(tracker) == len(tracker.timer) == 0
    check_timer(tracker.timer)
    assert clock.faults == []


async def test_no_awaiting_task_hangs(raised: list[object]) -> None:
    ready: set[str] = set()

    class Poll(Flag):
        def try_complete(self) -> bool:
            return self.name in ready and self.force_complete()

    async def poll(operation: Poll) -> str:
        try:
            return await operation
        except OperationCancelled:
            return "cancelled"

    async with DelayedOperationPurgatory() as purgatory:
        tasks = {}
        for n in range(ROUNDS):
            client = f"client {n}"
            leave(purgatory.cancel_for_key, client)
            purgatory.try_complete_else_watch(Poll(None, client), (client,))
            tasks[client] = asyncio.ensure_future(
                poll(purgatory.try_complete_else_watch(Poll(None, client), (client,)))
            )
            if n % 100 == 0:
                await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)
        for client in tasks:
            ready.add(client)
            purgatory.check_and_complete(client)
        async with asyncio.timeout(60):
            results = await asyncio.gather(*tasks.values())
        assert set(results) <= {"cancelled"} | {f"result of {client}" for client in tasks}
        assert purgatory.num_delayed == 0
        check_purgatory(purgatory)
