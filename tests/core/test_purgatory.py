"""The purgatory and its public methods, on virtual time and on real loops."""

import asyncio
import threading
from collections.abc import Generator
from contextlib import suppress
from dataclasses import FrozenInstanceError
from functools import partial

import pytest

from purgatory import (
    DelayedOperationPurgatory,
    OperationCancelled,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    PurgatoryStatistics,
    VirtualClock,
)
from tests.support.operations import FaultLog, Flag, turn


class TestWatch:
    def test_an_operation_whose_condition_holds_never_waits(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        operation = Flag(5.0, ready=True)
        assert purgatory.try_complete_else_watch(operation, ["key"]) is operation
        assert operation.result() == "result of flag"
        assert (purgatory.num_delayed, purgatory.watched, clock.armed) == (0, 0, [])

    def test_any_key_of_an_operation_completes_it(self, purgatory: DelayedOperationPurgatory) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(), ["a", "b", "c"]) for _ in range(3)]
        for operation, key in zip(operations, "abc", strict=True):
            operation.ready = True
            assert purgatory.check_and_complete(key) == 1
            assert operation.done()

    def test_keys_may_be_any_iterable_of_anything_hashable(self, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(), iter([("topic", 1), 7, None, b"x"]))
        assert purgatory.watched == 4
        operation.ready = True
        assert purgatory.check_and_complete(None) == 1

    def test_a_key_given_twice_is_watched_once(self, purgatory: DelayedOperationPurgatory) -> None:
        purgatory.try_complete_else_watch(Flag(), ["a", "b", "a"])
        assert purgatory.watched == 2

    @pytest.mark.parametrize("more", [0, 20])
    def test_keys_with_the_same_hash_are_different_keys(self, more: int) -> None:
        assert hash(-1) == hash(-2)
        purgatory = DelayedOperationPurgatory(clock=VirtualClock())
        purgatory.try_complete_else_watch(Flag(), (-1, -2, *range(more), -1.0))
        assert purgatory.watched == 2 + more
        assert set(purgatory.watched_keys()) == {-1, -2, *range(more)}

    def test_watched_keys_has_each_key_with_a_watcher_list_once(self, purgatory: DelayedOperationPurgatory) -> None:
        assert purgatory.watched_keys() == []
        operations = [purgatory.try_complete_else_watch(Flag(), [*"ab", number]) for number in range(3)]
        assert set(purgatory.watched_keys()) == {"a", "b", 0, 1, 2}
        assert len(purgatory.watched_keys()) == 5
        operations[1].force_complete()
        purgatory.check_and_complete(1)
        assert set(purgatory.watched_keys()) == {"a", "b", 0, 2}
        purgatory.close()
        assert purgatory.watched_keys() == []

    def test_each_watched_key_misses_none_that_is_watched_throughout(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(), [number]) for number in range(9)]
        keys = set()
        for number, key in enumerate(purgatory.each_watched_key()):
            keys.add(key)
            if number < 3:
                operations[number].force_complete()
                purgatory.check_and_complete(number)
                purgatory.try_complete_else_watch(Flag(), [100 + number])
        assert keys >= {3, 4, 5, 6, 7, 8}

    def test_the_timeout_counts_from_the_call(self, purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
        operation = Flag(5.0)
        clock.advance(100.0)
        purgatory.try_complete_else_watch(operation, ["key"])
        clock.advance(4.999)
        assert not operation.done()
        clock.advance(0.001)
        assert operation.expired()

    def test_operation_without_a_timeout_never_expires(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(None), ["key"])
        assert clock.armed == []
        clock.advance(1e9)
        assert not operation.done()

    def test_a_timeout_of_zero_expires_on_the_next_iteration(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(0), ["key"])
        assert not operation.done()
        clock.advance(0)
        assert operation.expired()


class TestCheck:
    def test_operations_on_one_key_are_tried_in_watch_order(self, purgatory: DelayedOperationPurgatory) -> None:
        calls: list[str] = []
        for n in range(10):
            purgatory.try_complete_else_watch(Flag(None, str(n), calls=calls), ["key"]).ready = n % 3 == 0
        assert purgatory.check_and_complete("key") == 4
        assert calls == [f"{n} completes" for n in (0, 3, 6, 9)]

    def test_a_check_of_a_key_without_a_watcher_list_completes_none(self, purgatory: DelayedOperationPurgatory) -> None:
        assert purgatory.check_and_complete("key") == 0

    def test_a_check_soon_is_made_on_the_next_iteration(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        operation.ready = True
        purgatory.check_and_complete_soon("key")
        assert not operation.done()
        clock.advance(0)
        assert operation.done()
        assert purgatory.watched == 0

    def test_calls_for_the_same_key_in_one_iteration_make_one_pass(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        tries: list[str] = []

        class Counting(Flag):
            def try_complete(self) -> bool:
                tries.append(self.name)
                return False

        for name in "ab":
            purgatory.try_complete_else_watch(Counting(None, name), [name])
        tries.clear()
        for _ in range(5):
            purgatory.check_and_complete_soon("a")
            purgatory.check_and_complete_soon("b")
        clock.advance(0)
        assert tries == ["a", "b"]
        clock.advance(1)
        assert tries == ["a", "b"]

    def test_a_check_soon_removes_dead_entries(self, purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(3)]
        operations[1].cancel()
        operations[2].ready = True
        purgatory.check_and_complete_soon("key")
        clock.advance(0)
        assert [operation.done() for operation in operations] == [False, True, True]
        assert purgatory.watched == 1

    def test_a_list_may_be_dropped_during_its_check_soon(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(then=lambda: purgatory.cancel_for_key("key")), ["key"])
        operation.ready = True
        purgatory.check_and_complete_soon("key")
        clock.advance(0)
        assert operation.done()
        assert purgatory.watched == 0

    def test_a_check_soon_from_inside_its_own_pass_is_made_on_the_following_iteration(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        tried: list[int] = []

        class Asking(Flag):
            def try_complete(self) -> bool:
                tried.append(len(clock.armed))
                if 1 < len(tried) < 5:
                    purgatory.check_and_complete_soon("key")
                return False

        purgatory.try_complete_else_watch(Asking(), ["key"])
        tried.clear()
        tried.append(0)
        purgatory.check_and_complete_soon("key")
        clock.advance(0)
        assert tried == [0, 1, 2, 3, 4], "an iteration each"

    def test_a_check_soon_of_a_key_without_a_watcher_list_arms_no_call(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        purgatory.check_and_complete_soon("key")
        assert clock.armed == []

    async def test_check_and_complete_threadsafe_completes_from_another_thread(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(), ["key"])

            def publish() -> None:
                operation.ready = True
                purgatory.check_and_complete_threadsafe("key")

            thread = threading.Thread(target=publish)
            thread.start()
            assert await asyncio.wait_for(operation, 30) == "result of flag"
            thread.join()

    async def test_check_and_complete_threadsafe_is_harmless_before_a_watch_and_after_a_close(self) -> None:
        purgatory = DelayedOperationPurgatory()
        purgatory.check_and_complete_threadsafe("key")
        await purgatory.aclose()
        purgatory.check_and_complete_threadsafe("key")

    def test_check_and_complete_threadsafe_needs_an_event_loop(self, purgatory: DelayedOperationPurgatory) -> None:
        with pytest.raises(PurgatoryError, match="no event loop"):
            purgatory.check_and_complete_threadsafe("key")


class TestALimit:
    @pytest.mark.parametrize("way", ["returns nothing", "raises", "exits"])
    def test_limit_counts_operations_that_complete_without_returning_true(
        self, purgatory: DelayedOperationPurgatory, way: str
    ) -> None:
        class Odd(Flag):
            def try_complete(self) -> bool:
                if self.ready:
                    self.force_complete()
                    if way == "raises":
                        raise LookupError
                    if way == "exits":
                        raise SystemExit
                return False

        operations = [purgatory.try_complete_else_watch(Odd(), ["key"]) for _ in range(5)]
        for operation in operations:
            operation.ready = True
        with suppress(SystemExit):
            assert purgatory.check_and_complete("key", limit=2) == 2
        assert [operation.done() for operation in operations] == [True, True, False, False, False]


class TestAll:
    def test_cancel_for_key_cancels_and_returns_its_pending_operations(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        first, second = (purgatory.try_complete_else_watch(Flag(), ["a", "b"]) for _ in range(2))
        other = purgatory.try_complete_else_watch(Flag(), ["b"])
        first.force_complete()
        third = purgatory.try_complete_else_watch(Flag(), ["a"])
        assert purgatory.cancel_for_key("a") == [second, third]
        assert purgatory.cancel_for_key("a") == []
        assert (second.cancelled(), third.cancelled(), other.done()) == (True, True, False)
        assert purgatory.num_delayed == 1

    def test_complete_all_completes_every_operation(self, purgatory: DelayedOperationPurgatory) -> None:
        calls: list[str] = []
        for n in range(5):
            purgatory.try_complete_else_watch(Flag(9.0, str(n), calls=calls), ["a", n])
        assert purgatory.complete_all() == 5
        assert calls == [f"{n} completes" for n in range(5)]
        assert purgatory.num_delayed == 0
        assert len(purgatory.timer) == 0

    def test_cancel_all_cancels_every_operation(self, purgatory: DelayedOperationPurgatory) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(9.0), ["a", n]) for n in range(5)]
        assert purgatory.cancel_all() == 5
        assert all(operation.cancelled() for operation in operations)
        assert len(purgatory.timer) == 0


class TestClose:
    async def test_close_leaves_no_awaiting_task_waiting(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operations = [purgatory.try_complete_else_watch(Flag(3600.0), ["key", n]) for n in range(2500)]
            waiting = asyncio.gather(*operations)
            await turn()
        assert await waiting == ["result of flag"] * 2500
        assert not any(operation.expired() for operation in operations)
        assert (purgatory.num_delayed, purgatory.watched, len(purgatory.timer)) == (0, 0, 0)

    async def test_a_closed_purgatory_takes_no_operations(self) -> None:
        purgatory = DelayedOperationPurgatory("fetch")
        await purgatory.aclose()
        await purgatory.aclose()
        with pytest.raises(PurgatoryClosed, match="'fetch' num_delayed=0 closed"):
            purgatory.try_complete_else_watch(Flag(), ["key"])
        with pytest.raises(PurgatoryClosed):
            async with purgatory:
                raise AssertionError

    async def test_a_closing_purgatory_takes_no_operations_either(self) -> None:
        purgatory = DelayedOperationPurgatory()
        for _ in range(2500):
            purgatory.try_complete_else_watch(Flag(), ["key"])
        closing = asyncio.create_task(purgatory.aclose())
        await turn()
        assert not closing.done()
        with pytest.raises(PurgatoryClosed):
            purgatory.try_complete_else_watch(Flag(), ["key"])
        await closing

    async def test_a_purgatory_on_a_virtual_clock_is_a_context_manager_too(self, clock: VirtualClock) -> None:
        async with DelayedOperationPurgatory(clock=clock) as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
            clock.advance(1.0)
            assert await operation == "result of flag"
            other = purgatory.try_complete_else_watch(Flag(1.0), ["key"])
        assert other.done()

    async def test_a_cancelled_aclose_completes_every_operation(self) -> None:
        purgatory = DelayedOperationPurgatory()
        operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(3000)]
        closing = asyncio.create_task(purgatory.aclose())
        await turn()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert all(operation.done() for operation in operations)

    def test_close_completes_every_operation_at_once(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        purgatory.check_and_complete_soon("key")
        purgatory.close()
        assert operation.done()
        assert "scheduled=0" in repr(clock)

    def test_a_close_inside_a_long_pass_leaves_no_call_scheduled(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(9.0), ["key"]) for _ in range(3000)]
        operations[500].ready = True
        operations[500].then = purgatory.close
        purgatory.check_and_complete_soon("key")
        seen: list[str] = []
        clock.call_at(0.0, lambda: seen.append(repr(clock)))
        clock.advance(0)
        assert all(operation.done() for operation in operations)
        assert seen == ["<VirtualClock time=0.0 scheduled=0>"]


class TestReentrancy:
    """Any call may come from inside an operation."""

    def test_on_complete_may_watch_an_operation_on_the_same_key(self, purgatory: DelayedOperationPurgatory) -> None:
        calls: list[str] = []
        second = Flag(None, "second", calls=calls)
        first = Flag(None, "first", calls=calls, then=lambda: purgatory.try_complete_else_watch(second, ["key"]))
        purgatory.try_complete_else_watch(first, ["key"])
        first.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert not second.done()
        second.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert calls == ["first completes", "second completes"]

    def test_on_complete_may_check_the_same_key(self, purgatory: DelayedOperationPurgatory) -> None:
        calls: list[str] = []
        counts: list[int] = []
        for n in range(4):
            then = (lambda: counts.append(purgatory.check_and_complete("key"))) if n == 1 else (lambda: None)
            purgatory.try_complete_else_watch(Flag(None, str(n), calls=calls, then=then), ["key"]).ready = True
        assert purgatory.check_and_complete("key") == 2
        assert counts == [2]
        assert calls == ["0 completes", "1 completes", "2 completes", "3 completes"]

    def test_on_complete_may_cancel_others(self, purgatory: DelayedOperationPurgatory) -> None:
        first = purgatory.try_complete_else_watch(Flag(then=lambda: purgatory.cancel_for_key("key")), ["key"])
        others = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(3)]
        first.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert all(operation.cancelled() for operation in others)
        assert purgatory.watched == 0

    def test_on_complete_may_close_the_purgatory(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(1.0, then=purgatory.close), ["a", n]) for n in range(3)]
        clock.advance(1.0)
        assert all(operation.done() for operation in operations)
        assert [operation.expired() for operation in operations] == [True, False, False]
        assert (purgatory.num_delayed, purgatory.watched) == (0, 0)
        assert "scheduled=0" in repr(clock)

    def test_try_complete_may_close_the_purgatory(self, purgatory: DelayedOperationPurgatory) -> None:
        class Closing(Flag):
            def try_complete(self) -> bool:
                purgatory.close()
                return False

        operation = Closing()
        with pytest.raises(PurgatoryClosed, match="while"):
            purgatory.try_complete_else_watch(operation, ["key"])
        assert not operation.done()
        assert purgatory.num_delayed == 0

    def test_operation_that_completes_during_its_refusal_is_accepted(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        class Closing(Flag):
            def try_complete(self) -> bool:
                purgatory.close()
                return False

            def __repr__(self) -> str:
                self.force_complete()
                return "closing"

        operation = Closing()
        assert purgatory.try_complete_else_watch(operation, ["key"]) is operation
        assert operation.outcome == "completed_at_once"
        assert purgatory.statistics().completed_at_once == 1

    def test_a_thousand_nested_completions_all_complete(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        operations: list[Flag] = []

        def complete_next(n: int) -> None:
            if n < 1000:
                operations[n].ready = True
                purgatory.check_and_complete(n)

        for n in range(1000):
            operation = Flag(then=partial(complete_next, n + 1))
            operations.append(purgatory.try_complete_else_watch(operation, [n]))
        complete_next(0)
        clock.advance(0)
        assert all(operation.done() for operation in operations)
        assert clock.exceptions == []


class TestFull:
    def test_full_purgatory_refuses_operations_that_would_have_to_wait(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        purgatory = DelayedOperationPurgatory("small", max_pending=2, clock=clock)
        waiting = [purgatory.try_complete_else_watch(Flag(1.0), ["key"]) for _ in range(2)]
        refused = Flag(1.0)
        with pytest.raises(PurgatoryFull, match="holds 2 operations, as many as it may"):
            purgatory.try_complete_else_watch(refused, ["key"])
        assert purgatory.num_delayed == purgatory.watched == 2
        purgatory.try_complete_else_watch(Flag(1.0, ready=True), ["key"])

        waiting[0].force_complete()
        purgatory.try_complete_else_watch(refused, ["key"])
        clock.advance(1.0)
        assert refused.expired()

    async def test_operation_that_is_already_awaited_is_cancelled_by_its_refusal(self) -> None:
        waits: list[Generator[object, None, str]] = []

        class Awaited(Flag):
            def try_complete(self) -> bool:
                waits.append(self.__await__())
                next(waits[0])
                return False

        async with DelayedOperationPurgatory(max_pending=1) as purgatory:
            purgatory.try_complete_else_watch(Flag(), ["key"])
            with pytest.raises(PurgatoryFull):
                purgatory.try_complete_else_watch(Awaited(), ["key"])
            with pytest.raises(OperationCancelled):
                next(waits[0])


class TestStatistics:
    def test_all_outcomes_are_counted(self, purgatory: DelayedOperationPurgatory, clock: VirtualClock) -> None:
        class Failing(Flag):
            def on_complete(self) -> str:
                raise LookupError

        purgatory.try_complete_else_watch(Flag(ready=True), ["a"])
        satisfied, cancelled = (purgatory.try_complete_else_watch(Flag(), ["a", "b"]) for _ in range(2))
        failed = purgatory.try_complete_else_watch(Failing(), ["a"])
        for _ in range(2):
            purgatory.try_complete_else_watch(Flag(1.0), ["b"])
        missed = purgatory.try_complete_else_watch(Flag(1.0), ["d"])
        missed.ready = True
        purgatory.try_complete_else_watch(Flag(5.0), ["a", "b", "c"])
        satisfied.force_complete()
        cancelled.cancel()
        failed.force_complete()
        assert isinstance(failed.exception(), LookupError)
        clock.advance(1.0)
        purgatory.check_and_complete("b")
        assert missed.outcome == "satisfied"
        expected = PurgatoryStatistics(
            name="test",
            num_delayed=1,
            watched=7,
            estimated_total=7,
            completed_at_once=1,
            satisfied=2,
            missed=1,
            expired=2,
            closed=0,
            cancelled=1,
            failed=1,
            purges=0,
            purged=4,
            scanned=0,
            peak_delayed=7,
            peak_watched=11,
            longest_slice=0.0,  # not compared
        )
        assert purgatory.statistics() == expected
        purgatory.close()
        statistics = purgatory.statistics()
        assert (statistics.closed, statistics.satisfied, statistics.num_delayed, statistics.watched) == (1, 2, 0, 0)

    def test_peaks_are_zero_at_first_and_never_fall(self, purgatory: DelayedOperationPurgatory) -> None:
        statistics = purgatory.statistics()
        assert (statistics.peak_delayed, statistics.peak_watched) == (0, 0)
        for _ in range(3):
            purgatory.try_complete_else_watch(Flag(), ["a", "b"])
        purgatory.cancel_all()
        for key in "ab":
            purgatory.check_and_complete(key)
        purgatory.try_complete_else_watch(Flag(), ["a"])
        statistics = purgatory.statistics()
        assert (statistics.num_delayed, statistics.peak_delayed) == (1, 3)
        assert (statistics.watched, statistics.peak_watched) == (1, 6)

    def test_statistics_are_a_snapshot(self, purgatory: DelayedOperationPurgatory) -> None:
        statistics = purgatory.statistics()
        for name in ("purges", "num_delayed"):
            with pytest.raises(FrozenInstanceError):
                setattr(statistics, name, 1)
        purgatory.try_complete_else_watch(Flag(), ["a"])
        assert statistics.num_delayed == 0

    def test_repr_of_purgatory_shows_name_and_number_of_pending(self, purgatory: DelayedOperationPurgatory) -> None:
        assert repr(purgatory) == "<DelayedOperationPurgatory 'test' num_delayed=0>"
        assert purgatory.name == "test"


async def test_an_awaiting_task_gets_the_result_after_a_check() -> None:
    log: list[bytes] = []

    async with DelayedOperationPurgatory("fetch") as purgatory:
        operation = Flag(30.0)
        waiting = asyncio.create_task(_await(purgatory, operation))
        await turn()
        log.append(b"message")
        operation.ready = True
        assert purgatory.check_and_complete("topic-1") == 1
        assert await waiting == "result of flag"


async def test_cancel_all_raises_operation_cancelled_in_the_awaiting_task() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        waiting = asyncio.create_task(_await(purgatory, Flag()))
        await turn()
        purgatory.cancel_all()
        with pytest.raises(OperationCancelled):
            await waiting


async def _await(purgatory: DelayedOperationPurgatory, operation: Flag) -> str:
    return await purgatory.try_complete_else_watch(operation, ["topic-1"])
