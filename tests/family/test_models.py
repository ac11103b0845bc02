"""`ThresholdPurgatory` and `IdleTracker` against naive ones, each of them a dict."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import purgatory.threshold
from purgatory import DelayedOperation, DelayedOperationPurgatory, IdleTracker, ThresholdPurgatory
from tests.support.operations import FaultLog

SPARED = purgatory.threshold._SPARED
THRESHOLDS = st.integers(-3, 40)
SECONDS = st.one_of(st.sampled_from([0.0, 0.001, 0.25, 1.0]), st.floats(0, 5), st.floats(0, 3e6))
KEYS = st.sampled_from("abcdef")


class AgainstANaiveThresholdPurgatory(RuleBasedStateMachine):
    """Each wait has the outcome that it must have, at every moment; and thresholds are in the heaps once."""

    @initialize(
        value=THRESHOLDS,
        tick=st.sampled_from([0.001, 0.25, 60.0]),
        purge_interval=st.sampled_from([0, 2, 1000]),
        spared=st.sampled_from([0, 2, SPARED]),
    )
    def start(self, value: int, tick: float, purge_interval: int, spared: int) -> None:
        vars(purgatory.threshold)["_SPARED"] = spared
        self.clock = FaultLog()
        self.tick = tick
        self.real = ThresholdPurgatory(
            value, DelayedOperationPurgatory(tick=tick, purge_interval=purge_interval, clock=self.clock)
        )
        self.value = value
        self.waiting: dict[DelayedOperation[int], tuple[int, float | None]] = {}
        self.heard: list[int] = []
        self.real.purgatory.add_listener(lambda finished: self.heard.extend(map(int, map(str, finished.keys))))

    @rule(threshold=THRESHOLDS, timeout=st.none() | SECONDS)
    def reach(self, threshold: int, timeout: float | None) -> None:
        wait = self.real.reach(threshold, timeout)
        assert wait.done() == (self.value > threshold)
        if wait.done():
            assert wait.result() == self.value
        else:
            self.waiting[wait] = (threshold, None if timeout is None else self.clock.time() + timeout)

    @rule(value=THRESHOLDS, soon=st.booleans())
    def advance(self, value: int, soon: bool) -> None:
        passed = [(wait, threshold) for wait, (threshold, _) in self.waiting.items() if value > threshold]
        self.heard.clear()
        if soon:
            self.real.advance_soon(value)
            self.clock.advance(0.0)
            self.see_expired_waits()
        else:
            assert self.real.advance(value) == len(passed)
            assert self.heard == sorted(threshold for _, threshold in passed)
        self.value = max(self.value, value)
        for wait, _ in passed:
            if self.waiting.pop(wait, None) is not None:
                assert wait.result() == self.value

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.see_expired_waits()

    def see_expired_waits(self) -> None:
        now = self.clock.time()
        for wait, (threshold, deadline) in list(self.waiting.items()):
            if wait.done() and wait.expired():
                assert deadline is not None
                assert deadline <= now, "early"
                assert wait.result() == self.value <= threshold
                del self.waiting[wait]
            elif deadline is not None:
                assert now < deadline + self.tick + (now + self.tick) * 1e-15, "late"

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        wait = data.draw(st.sampled_from(list(self.waiting)))
        assert wait.cancel()
        del self.waiting[wait]

    @rule(fail=st.booleans())
    def end_all(self, fail: bool) -> None:
        self.heard.clear()
        ended = self.real.fail_all(LookupError()) if fail else self.real.complete_all()
        assert ended == len(self.waiting)
        assert sorted(self.heard) == sorted(threshold for threshold, _ in self.waiting.values())
        for wait in self.waiting:
            assert isinstance(wait.exception(), LookupError) if fail else wait.result() == self.value
        self.waiting.clear()

    @invariant()
    def it_agrees(self) -> None:
        assert (self.real.value, self.real.num_waiting) == (self.value, len(self.waiting))
        assert not any(wait.done() for wait in self.waiting)

    @invariant()
    def it_is_consistent_inside(self) -> None:
        heaps = [*self.real._heap, *self.real._old]
        assert len(heaps) == len(set(heaps))
        assert set(heaps) == self.real._thresholds
        assert {threshold for threshold, _ in self.waiting.values()} <= set(heaps)

    def teardown(self) -> None:
        vars(purgatory.threshold)["_SPARED"] = SPARED


class AgainstANaiveIdleTracker(RuleBasedStateMachine):
    """An idle key was silent for the timeout, and for less than a tick longer."""

    @initialize(
        timeout=st.one_of(st.sampled_from([1.0, 30.0]), st.floats(0.001, 1e6)),
        part=st.sampled_from([0.001, 0.01, 0.25, 1.0, 3.0]),
    )
    def start(self, timeout: float, part: float) -> None:
        self.clock = FaultLog()
        self.timeout = timeout
        self.tick = max(timeout * part, 1e-6)
        self.real: IdleTracker[str] = IdleTracker(timeout, self.on_idle, tick=self.tick, clock=self.clock)
        self.touched: dict[str, float] = {}

    def on_idle(self, key: str) -> None:
        now = self.clock.time()
        touched = self.touched.pop(key)
        assert touched + self.timeout <= now, "early"
        assert now < touched + self.timeout + self.tick + now * 1e-15, "late"
        assert key not in self.real

    @rule(key=KEYS)
    def touch(self, key: str) -> None:
        self.real.touch(key)
        self.touched[key] = self.clock.time()

    @rule(key=KEYS)
    def discard(self, key: str) -> None:
        assert self.real.discard(key) == (self.touched.pop(key, None) is not None)

    @rule(part=st.floats(0, 3))
    def pass_time(self, part: float) -> None:
        self.clock.advance(part * self.timeout)

    @precondition(lambda self: self.touched)
    @rule(data=st.data(), beyond=st.booleans())
    def advance_until_a_key_is_idle(self, data: st.DataObject, beyond: bool) -> None:
        due = data.draw(st.sampled_from(sorted(self.touched.values()))) + self.timeout
        self.clock.advance_to(max(due + (self.tick if beyond else 0.0), self.clock.time()))

    @invariant()
    def it_agrees(self) -> None:
        assert self.clock.faults == []
        assert len(self.real) == len(self.touched) == len(self.real.timer)
        now = self.clock.time()
        for key, touched in self.touched.items():
            assert key in self.real
            assert now < touched + self.timeout + self.tick + (now + self.tick) * 1e-15, "late"


TestAgainstANaiveThresholdPurgatory = AgainstANaiveThresholdPurgatory.TestCase
TestAgainstANaiveIdleTracker = AgainstANaiveIdleTracker.TestCase
