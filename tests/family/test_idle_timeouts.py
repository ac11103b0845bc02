"""Timeouts of single keys of an `IdleTracker`: compared with a dict, and what a touch costs."""

import asyncio
import math
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import IdleTracker, PurgatoryClosed
from tests.support.operations import CallingClock, FaultLog

TIMEOUT: Final = 10.0
TICK: Final = 0.01
ROUNDING: Final = 1e-9


class Model:
    """A tracker, and a dict with the last touch and the timeout of each key."""

    def __init__(self, tick: float | None) -> None:
        self.clock = FaultLog()
        self.tracker: IdleTracker[int] = IdleTracker(TIMEOUT, self.note_idle, tick=tick, clock=self.clock)
        self.tick = TIMEOUT / 100 if tick is None else tick
        self.keys: dict[int, tuple[float, float]] = {}

    def due(self, key: int) -> float:
        seen, timeout = self.keys[key]
        return seen + timeout

    def note_idle(self, key: int) -> None:
        late = self.clock.time() - self.due(key)
        assert -ROUNDING <= late < self.tick + ROUNDING, f"{key} is found {late} seconds after its timeout"
        del self.keys[key]

    def touch(self, key: int, timeout: float | None) -> None:
        _, before = self.keys.get(key, (0.0, TIMEOUT))
        self.keys[key] = self.clock.time(), before if timeout is None else timeout
        self.tracker.touch(key, timeout)

    def discard(self, key: int) -> None:
        assert self.tracker.discard(key) == (self.keys.pop(key, None) is not None)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        late = [key for key in self.keys if self.due(key) + self.tick + ROUNDING <= self.clock.time()]
        assert not late, f"not found: {late}"

    def check(self) -> None:
        assert list(self.tracker) == list(self.keys)
        assert not self.clock.faults
        assert len(self.tracker.timer) == len(self.keys)


timeouts = st.none() | st.sampled_from([0.001, 0.02, 1.0, 9.99, 10.0, 10.01, 30.0, 5000.0]) | st.floats(1e-4, 100.0)
steps = st.one_of(
    st.tuples(st.just("touch"), st.integers(0, 5), timeouts),
    st.tuples(st.just("touch"), st.integers(0, 5), timeouts),
    st.tuples(st.just("discard"), st.integers(0, 5), st.none()),
    st.tuples(st.just("advance"), st.just(0), st.sampled_from([0.0, 0.005, 0.01, 1.0, 10.0]) | st.floats(0.0, 30.0)),
)


@pytest.mark.parametrize("tick", [TICK, None])
@given(st.lists(steps, max_size=60))
def test_keys_are_found_in_time_whatever_timeouts_they_have(
    tick: float | None, chosen: list[tuple[str, int, float | None]]
) -> None:
    model = Model(tick)
    for name, key, number in chosen:
        if name == "touch":
            model.touch(key, number)
        elif name == "discard":
            model.discard(key)
        else:
            assert number is not None
            model.advance(number)
        model.check()
    model.advance(6000.0)
    assert not model.keys


@pytest.fixture
def model() -> Model:
    return Model(TICK)


class TestTimeouts:
    def test_a_new_key_has_the_timeout_of_its_first_touch(self, model: Model) -> None:
        model.touch(1, 3.0)
        model.touch(2, None)
        model.touch(3, 30.0)
        model.advance(2.99)
        assert list(model.tracker) == [1, 2, 3]
        for seconds, left in ((0.02, [2, 3]), (7.0, [3]), (19.97, [3]), (0.03, [])):
            model.advance(seconds)
            assert list(model.tracker) == left

    def test_a_touch_without_one_keeps_it(self, model: Model) -> None:
        model.touch(1, 3.0)
        for _ in range(5):
            model.advance(2.9)
            model.touch(1, None)
        assert 1 in model.tracker
        model.advance(3.02)
        assert 1 not in model.tracker

    def test_it_is_forgotten_with_the_key(self, model: Model) -> None:
        model.touch(1, 3.0)
        model.advance(3.02)
        model.touch(1, None)
        model.advance(9.0)
        assert 1 in model.tracker
        model.discard(1)
        model.touch(2, 3.0)
        model.discard(2)
        model.touch(2, None)
        model.advance(9.0)
        assert 2 in model.tracker

    @pytest.mark.parametrize("after", [0.5, 1.5, 3.0])
    def test_a_shorter_one_holds_from_the_touch_on(self, model: Model, after: float) -> None:
        model.touch(1, 100.0)
        model.advance(50.0)
        model.touch(1, after)
        model.advance(after - 0.001)
        assert 1 in model.tracker
        model.advance(0.02)
        assert 1 not in model.tracker

    def test_a_longer_one_holds_from_the_touch_on(self, model: Model) -> None:
        model.touch(1, 3.0)
        model.advance(1.0)
        model.touch(1, 50.0)
        model.advance(49.99)
        assert 1 in model.tracker
        model.advance(0.03)
        assert 1 not in model.tracker

    def test_an_int_is_a_timeout(self, model: Model) -> None:
        model.touch(1, 3)
        model.advance(3.02)
        assert 1 not in model.tracker

    def test_the_tracker_tells_its_own(self, model: Model) -> None:
        model.touch(1, 3.0)
        assert model.tracker.timeout == TIMEOUT

    async def test_an_idle_key_that_is_touched_before_it_is_yielded_has_the_new_one(self) -> None:
        clock = FaultLog()
        tracker: IdleTracker[str] = IdleTracker(TIMEOUT, clock=clock)
        tracker.touch("a", 1.0)
        tracker.touch("b", 1.0)
        clock.advance(2.0)
        tracker.touch("a", 30.0)
        clock.advance(20.0)
        tracker.close()
        assert [key async for key in tracker] == ["b"]

    async def test_on_a_loop(self) -> None:
        loop = asyncio.get_running_loop()
        idle: asyncio.Future[str] = loop.create_future()
        tracker: IdleTracker[str] = IdleTracker(3600.0, idle.set_result, tick=0.001)
        began = loop.time()
        tracker.touch("key")
        tracker.touch("key", 0.01)
        assert await idle == "key"
        assert loop.time() >= began + 0.01
        tracker.close()


BAD: Final[list[tuple[Any, type[Exception]]]] = [
    (0.0, ValueError),
    (0, ValueError),
    (-1.0, ValueError),
    (math.nan, ValueError),
    (math.inf, ValueError),
    (10**400, ValueError),
    ("5", TypeError),
    (Decimal(5), TypeError),
    ([], TypeError),
]


class TestBadTimeouts:
    @pytest.mark.parametrize(("timeout", "error"), BAD)
    def test_are_refused_before_anything_changes(self, model: Model, timeout: Any, error: type[Exception]) -> None:
        model.touch(1, 3.0)
        model.advance(1.0)
        for key in (1, 2):
            with pytest.raises(error, match="timeout"):
                model.tracker.touch(key, timeout)
        model.check()
        model.advance(1.99)
        assert 1 in model.tracker, "not touched"
        model.advance(0.02)
        assert 1 not in model.tracker

    def test_an_unhashable_key_is_refused(self, model: Model) -> None:
        with pytest.raises(TypeError, match="unhashable"):
            model.tracker.touch([], 3.0)  # type: ignore[arg-type]
        model.check()

    def test_a_closed_tracker_refuses_all(self, model: Model) -> None:
        model.tracker.close()
        with pytest.raises(PurgatoryClosed):
            model.tracker.touch(1, 3.0)
        assert len(model.tracker.timer) == 0


class TestCosts:
    @pytest.mark.parametrize("timeout", [None, 3.0, 3])
    def test_a_touch_without_a_change_moves_no_task(self, model: Model, timeout: float | None) -> None:
        for key in range(100):
            model.touch(key, 3.0)
        model.advance(1.0)
        before, armed = model.tracker.timer.statistics(), len(model.clock.armed)
        for _ in range(10):
            for key in range(100):
                model.touch(key, timeout)
        assert model.tracker.timer.statistics() == before
        assert len(model.clock.armed) == armed

    def test_a_longer_timeout_moves_no_task(self, model: Model) -> None:
        model.touch(1, 3.0)
        before, armed = model.tracker.timer.statistics(), len(model.clock.armed)
        for timeout in (4.0, 50.0, 5000.0):
            model.touch(1, timeout)
        assert model.tracker.timer.statistics() == before
        assert len(model.clock.armed) == armed

    def test_a_shorter_timeout_moves_the_task(self, model: Model) -> None:
        model.touch(1, 5000.0)
        model.touch(1, 0.05)
        assert model.clock.armed[-1] == pytest.approx(0.05, abs=TICK)
        model.advance(0.07)
        assert model.tracker.timer.statistics().tasks == 0

    def test_a_key_that_is_touched_all_the_time_costs_one_look_per_timeout(self, model: Model) -> None:
        for key in range(50):
            model.touch(key, 5.0)
        for _ in range(1000):
            model.advance(0.1)
            for key in range(50):
                model.touch(key, 5.0)
        assert len(model.tracker) == 50
        statistics = model.tracker.timer.statistics()
        assert statistics.wake_ups <= 3 * 100.0 / 5.0, "a look each five seconds, and some cascades"


@pytest.mark.parametrize("nth", range(4))
@pytest.mark.parametrize(("outer", "inner"), [(None, 0.5), (0.5, None)])
def test_a_clock_that_touches_the_key_too_loses_no_timeout(nth: int, outer: float | None, inner: float | None) -> None:
    clock = CallingClock()
    idle: list[str] = []
    tracker = IdleTracker(30.0, idle.append, tick=0.01, clock=clock)
    clock.arm(nth, lambda: tracker.touch("a", inner))
    tracker.touch("a", outer)
    clock.arm(-1, list)
    if "a" in tracker and inner is not None:
        tracker.touch("a", inner)  # if the clock had not been called as often
    clock.advance(2.0)
    assert idle == ["a"]
    assert not clock.faults
    assert len(tracker.timer) == 0
