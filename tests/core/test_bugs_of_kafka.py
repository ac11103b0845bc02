"""Bugs of Kafka's purgatory and of what it is used for, which must not be here."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from purgatory import DelayedOperationPurgatory, WheelTimer
from tests.support.invariants import check_purgatory, check_timer
from tests.support.operations import FaultLog, Flag, Note


@pytest.mark.parametrize("end", ["expires", "is forced", "is cancelled", "is checked"])
def test_the_end_of_an_operation_tries_no_other_one(clock: FaultLog, end: str) -> None:
    """KAFKA-20425: each share fetch that completed had the others of its partitions tried, even when nothing was there.

    A program checks a key when something has come for those that watch it.
    """
    purgatory = DelayedOperationPurgatory(purge_interval=0, clock=clock)
    operations = [purgatory.try_complete_else_watch(Flag(60.0), ["partition"]) for _ in range(100)]
    ending = [purgatory.try_complete_else_watch(Flag(n / 10), ["partition", n]) for n in range(1, 101)]
    for n, operation in enumerate(ending, start=1):
        match end:
            case "expires":
                clock.advance_to(n / 10)
            case "is forced":
                operation.force_complete()
            case "is cancelled":
                operation.cancel()
            case "is checked":
                operation.ready = True
                purgatory.check_and_complete(n)
        clock.advance(0)
        assert operation.done()
    assert {operation.tries for operation in operations} == {2}, "of the hand-over"
    assert {operation.tries for operation in ending} == {3 if end in ("expires", "is checked") else 2}
    check_purgatory(purgatory)


@pytest.mark.parametrize("method", ["try_complete", "on_complete", "on_expiration"])
async def test_a_thread_with_a_lock_may_ask_for_a_check_while_an_operation_waits_for_that_lock(method: str) -> None:
    """KAFKA-20505: a thread completed a future under a partition's lock, and that checked the purgatory.

    It waited for the lock of an operation, whose thread waited for that of the partition.
    """
    lock = threading.Lock()
    is_held, waits = threading.Event(), threading.Event()

    def check_under_the_lock() -> None:
        with lock:
            is_held.set()
            assert waits.wait(30)
            purgatory.check_and_complete_threadsafe("key")

    class Fetch(Flag):
        def try_complete(self) -> bool:
            self.visit("try_complete")
            return super().try_complete()

        def on_complete(self) -> str:
            self.visit("on_complete")
            return super().on_complete()

        def on_expiration(self) -> None:
            self.visit("on_expiration")

        def visit(self, name: str) -> None:
            if name == method and is_held.is_set():
                waits.set()
                assert lock.acquire(timeout=30)
                lock.release()

    async with DelayedOperationPurgatory() as purgatory:
        with ThreadPoolExecutor(1) as thread:
            fetch = purgatory.try_complete_else_watch(Fetch(3600.0), ["key"])
            checked = thread.submit(check_under_the_lock)
            assert is_held.wait(30)
            fetch.ready = method != "on_expiration"
            purgatory.check_and_complete_soon("key")
            if method == "on_expiration":
                fetch.reschedule(0.0)
            assert await fetch == "result of flag"
            checked.result(30)
        assert fetch.outcome == ("expired" if method == "on_expiration" else "satisfied")


class TestASharedTimer:
    """SystemTimerReaperTest.testSharedTimerBetweenConsumers: when one of them stops, the others' deadlines come."""

    @pytest.mark.parametrize("way", [DelayedOperationPurgatory.close, DelayedOperationPurgatory.cancel_all])
    @pytest.mark.parametrize("when", [0.5, 2.0], ids=["before they are due", "as they are due"])
    def test_closing_a_purgatory_leaves_the_deadlines_of_others(
        self, clock: FaultLog, way: Callable[[DelayedOperationPurgatory], object], when: float
    ) -> None:
        shared = WheelTimer(clock)
        closing, lasting = (DelayedOperationPurgatory(clock=shared) for _ in range(2))
        note = Note(clock)
        shared.call_at(when, way, closing)
        ended, others = (
            [purgatory.try_complete_else_watch(Flag(timeout), ["key"]) for timeout in (2.0, 2.0, 50.0)]
            for purgatory in (closing, lasting)
        )
        shared.add(note, 2.0)
        clock.advance(2.0)
        assert {each.outcome for each in ended} <= {"closed", "cancelled"}
        assert [each.outcome for each in others] == ["expired", "expired", None]
        assert note.ran == [2.0]
        late = lasting.try_complete_else_watch(Flag(5.0), ["key"])
        clock.advance(5.0)
        assert late.expired()
        clock.advance(43.0)
        assert others[2].expired()
        assert len(shared) == 0
        check_timer(shared)
        check_purgatory(lasting)
