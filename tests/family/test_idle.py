"""`IdleTracker`: a key that was silent for too long is found, never early, late by less than a tick."""

import asyncio
import weakref
from typing import Any

import pytest

from purgatory import IdleTracker, PurgatoryClosed
from tests.support.operations import CallingClock, FaultLog, Moody, RefusingClock, turn


@pytest.fixture
def idle() -> list[Any]:
    return []


@pytest.fixture
def tracker(clock: FaultLog, idle: list[Any]) -> IdleTracker[Any]:
    return IdleTracker(30.0, idle.append, tick=0.5, clock=clock)


class TestIdleKeys:
    def test_the_default_tick_is_a_hundredth_of_the_timeout(self, clock: FaultLog) -> None:
        assert IdleTracker(30.0, clock=clock).timer.tick == 0.3
        assert IdleTracker(1e-5, clock=clock).timer.tick == 1e-6

    def test_a_key_whose_deadline_never_comes_can_be_discarded(self, clock: FaultLog) -> None:
        tracker: IdleTracker[str] = IdleTracker(1e13, tick=0.001, clock=clock)
        tracker.touch("a")
        assert len(tracker.timer) == 0
        assert tracker.discard("a")


class TestCosts:
    def test_touched_key_causes_timer_work_once_in_a_timeout(self, clock: FaultLog) -> None:
        tracker: IdleTracker[str] = IdleTracker(30.0, clock=clock)
        for _ in range(300):
            tracker.touch("a")
            clock.advance(1.0)
        statistics = tracker.timer.statistics()
        assert statistics.wake_ups <= 11
        assert len(clock.armed) <= 12
        assert statistics.cascaded == 0

    def test_keys_that_become_idle_together_are_passed_on_in_slices(
        self, tracker: IdleTracker[int], clock: FaultLog, idle: list[int]
    ) -> None:
        for key in range(10_000):
            tracker.touch(key)
        clock.advance(31.0)
        assert idle == list(range(10_000))
        assert tracker.timer.statistics().wake_ups >= 10

    @pytest.mark.usefixtures("by_reference_count_alone")
    def test_a_key_that_is_no_longer_tracked_is_not_kept(
        self, tracker: IdleTracker[Any], clock: FaultLog, idle: list[Any]
    ) -> None:
        class Connection:
            pass

        connections = [Connection(), Connection()]
        kept = [weakref.ref(connection) for connection in connections]
        for connection in connections:
            tracker.touch(connection)
        tracker.discard(connections[0])
        clock.advance(31.0)
        idle.clear()
        del connection, connections
        assert [each() for each in kept] == [None, None]


class TestClocks:
    def test_a_key_whose_time_cannot_be_set_is_not_tracked(self, idle: list[str]) -> None:
        clock = RefusingClock()
        tracker: IdleTracker[str] = IdleTracker(1.0, idle.append, clock=clock)
        clock.refuses = True
        with pytest.raises(RuntimeError, match="refused"):
            tracker.touch("a")
        assert (len(tracker), len(tracker.timer)) == (0, 0)
        clock.refuses = False
        tracker.touch("a")
        clock.advance(2.0)
        assert idle == ["a"]

    def test_key_touched_by_the_clock_is_tracked_once(self, idle: list[str]) -> None:
        clock = CallingClock()
        tracker: IdleTracker[str] = IdleTracker(1.0, idle.append, clock=clock)
        clock.arm(0, lambda: tracker.touch("a"))
        tracker.touch("a")
        assert len(tracker) == len(tracker.timer) == 1
        clock.advance(2.0)
        assert idle == ["a"]

    @pytest.mark.parametrize("nth", range(5))
    @pytest.mark.parametrize("first", [False, True])
    def test_key_discarded_by_the_clock_is_not_idle(self, idle: list[str], nth: int, first: bool) -> None:
        clock = CallingClock()
        tracker: IdleTracker[str] = IdleTracker(1.0, idle.append, clock=clock)
        if first:
            clock.arm(nth, lambda: tracker.discard("a"))
        tracker.touch("a")
        clock.advance(0.5)
        tracker.touch("a")
        clock.arm(nth, lambda: tracker.discard("a"))
        clock.advance(0.6)
        tracker.discard("a")
        clock.advance(2.0)
        assert (idle, len(tracker), len(tracker.timer)) == ([], 0, 0)

    def test_key_with_failed_lookup_at_deadline_becomes_idle_later(
        self, tracker: IdleTracker[Any], clock: FaultLog, idle: list[Any]
    ) -> None:
        key = Moody()
        tracker.touch(key)
        key.sour()
        clock.advance(31.0)
        assert idle == []
        key.sweeten()
        clock.advance(31.0)
        assert idle == [key]
        assert [type(exception) for exception in clock.exceptions] == [LookupError]


class TestOnIdle:
    @pytest.mark.parametrize("error", [LookupError, SystemExit])
    def test_exception_of_on_idle_is_reported_or_raised_and_other_keys_are_passed_on(
        self, clock: FaultLog, idle: list[str], error: type[BaseException]
    ) -> None:
        def on_idle(key: str) -> None:
            idle.append(key)
            if key != "c":
                raise error(key)

        tracker: IdleTracker[str] = IdleTracker(1.0, on_idle, clock=clock)
        for key in "abc":
            tracker.touch(key)
        if error is SystemExit:
            for seconds, key in ((2.0, "a"), (0.0, "b")):
                with pytest.raises(SystemExit, match=key):
                    clock.advance(seconds)
                assert idle[-1] == key, "the others come at the next wake-up"
            clock.advance(0.0)
            assert clock.faults == []
        else:
            clock.advance(2.0)
            assert [str(exception) for exception in clock.exceptions] == ["a", "b"]
            assert [(fault["message"], fault["key"], fault["tracker"]) for fault in clock.faults] == [
                ("on_idle raised", key, tracker) for key in "ab"
            ]
        assert (idle, len(tracker)) == (["a", "b", "c"], 0)


class TestIteration:
    @pytest.fixture
    def tracker(self, clock: FaultLog) -> IdleTracker[Any]:
        return IdleTracker(1.0, clock=clock)

    async def test_several_iterations_share_the_keys_until_tracker_is_closed(
        self, tracker: IdleTracker[int], clock: FaultLog
    ) -> None:
        seen: list[list[int]] = [[], []]

        async def follow(mine: list[int]) -> None:
            async for key in tracker:
                mine.append(key)
                await turn()

        async with asyncio.TaskGroup() as group:
            for mine in seen:
                group.create_task(follow(mine))
            for key in range(10):
                tracker.touch(key)
            await turn()
            clock.advance(2.0)
            for _ in range(20):
                await turn()
            tracker.close()
        assert sorted(seen[0] + seen[1]) == list(range(10))
        assert all(seen)

    async def test_a_key_that_is_touched_before_it_was_yielded_is_not_idle(
        self, tracker: IdleTracker[str], clock: FaultLog
    ) -> None:
        for key in "abc":
            tracker.touch(key)
        clock.advance(2.0)
        tracker.touch("a")
        assert tracker.discard("b")
        assert not tracker.discard("b")
        assert await anext(tracker) == "c"
        assert "a" in tracker

    @pytest.mark.parametrize("idle", [False, True])
    @pytest.mark.parametrize("closed", [False, True])
    async def test_cancelling_an_iteration_loses_no_key(
        self, tracker: IdleTracker[str], clock: FaultLog, idle: bool, closed: bool
    ) -> None:
        tracker.touch("a")
        asking = asyncio.ensure_future(anext(tracker))
        await turn()
        if idle:
            clock.advance(2.0)
        asking.cancel()
        if closed:
            tracker.close()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert tracker._waiters == []
        if idle:
            assert await anext(tracker) == "a"

    async def test_no_key_is_idle_early_on_a_real_loop(self) -> None:
        tracker: IdleTracker[int] = IdleTracker(0.02)
        loop = asyncio.get_running_loop()
        touched = {}
        for key in range(100):
            touched[key] = loop.time()  # before: the process may stand still in between
            tracker.touch(key)
        async for key in tracker:
            # uvloop's clock is a millisecond coarse.
            assert loop.time() - touched.pop(key) >= 0.019
            if not touched:
                tracker.close()
        assert len(tracker) == 0

    async def test_a_key_that_is_idle_when_it_is_closed_is_yielded_yet(
        self, tracker: IdleTracker[str], clock: FaultLog
    ) -> None:
        tracker.touch("a")
        clock.advance(0.5)
        tracker.touch("b")
        clock.advance(0.6)
        tracker.close()
        assert [key async for key in tracker] == ["a"]


class TestRefusals:
    def test_a_closed_tracker_tracks_no_key(self, tracker: IdleTracker[str], clock: FaultLog, idle: list[str]) -> None:
        tracker.touch("a")
        tracker.close()
        tracker.close()
        assert (len(tracker), len(tracker.timer)) == (0, 0)
        for key in "ab":
            with pytest.raises(PurgatoryClosed, match="tracked=0 closed> is closed"):
                tracker.touch(key)
        assert not tracker.discard("a")
        clock.advance(100.0)
        assert idle == []

    def test_a_loop_that_does_not_run_yet_is_accepted(self) -> None:
        loop = asyncio.new_event_loop()
        tracker: IdleTracker[str] = IdleTracker(0.01, clock=loop)
        tracker.touch("a")
        assert loop.run_until_complete(anext(tracker)) == "a"
        loop.close()

    async def test_iteration_is_refused_beside_on_idle(self, tracker: IdleTracker[str]) -> None:
        with pytest.raises(RuntimeError, match="idle keys are passed to on_idle"):
            await anext(aiter(tracker))

    def test_bad_arguments_are_refused(self, tracker: IdleTracker[Any]) -> None:
        for timeout in (0.0, -1.0, float("inf"), 10**400):
            with pytest.raises(ValueError, match="timeout must be finite and positive"):
                IdleTracker(timeout)
        text: Any = "30"
        with pytest.raises(TypeError, match="on_idle must be callable, not '30'"):
            IdleTracker(30.0, text)
        with pytest.raises(TypeError, match="unhashable"):
            tracker.touch([])
        assert len(tracker) == 0


def test_repr_of_tracker_shows_timeout_and_number_of_keys(tracker: IdleTracker[str]) -> None:
    tracker.touch("a")
    assert repr(tracker) == "<IdleTracker timeout=30.0 tracked=1>"
    assert tracker.timeout == 30.0
