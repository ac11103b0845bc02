"""The whole purgatory on virtual time against a naive model: a list of operations, no wheels and no purge."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory import DelayedOperationPurgatory
from tests.operations import FaultLog, Flag

KEYS = st.sampled_from("abcde")


@dataclass
class Modelled:
    """What the model knows of an operation."""

    operation: Flag
    keys: list[str]
    deadline: float | None
    outcome: str = "pending"

    def finish(self, outcome: str) -> None:
        self.outcome = outcome


class AgainstANaiveModel(RuleBasedStateMachine):
    """Outcomes, order and counts agree after every step."""

    @initialize(
        tick=st.sampled_from([0.001, 0.0003, 0.25, 1.0]),
        wheel_size=st.integers(2, 21),
        purge_interval=st.sampled_from([0, 1, 3, 1000]),
    )
    def start(self, tick: float, wheel_size: int, purge_interval: int) -> None:
        self.clock = FaultLog()
        self.tick = tick
        self.purgatory = DelayedOperationPurgatory(
            clock=self.clock, tick=tick, wheel_size=wheel_size, purge_interval=purge_interval
        )
        self.all: list[Modelled] = []
        self.calls: list[str] = []
        self.expected: list[str] = []

    def pending(self) -> list[Modelled]:
        return [modelled for modelled in self.all if modelled.outcome == "pending"]

    @rule(
        keys=st.lists(KEYS, min_size=1, max_size=5),
        timeout=st.none() | st.floats(0, 10) | st.floats(0, 1e8) | st.sampled_from([0, 0.001, 1, 2]),
        ready=st.sampled_from([False, False, False, True]),
    )
    def watch(self, keys: list[str], timeout: float | None, ready: bool) -> None:
        operation = Flag(timeout, str(len(self.all)), ready=ready, calls=self.calls)
        deadline = None if timeout is None else self.clock.time() + timeout
        modelled = Modelled(operation, keys, deadline)
        self.all.append(modelled)
        if ready:
            modelled.finish("completed at once")
            self.expected.append(f"{operation.name} completes")
        assert self.purgatory.try_complete_else_watch(operation, keys) is operation

    @precondition(lambda self: self.pending())
    @rule(data=st.data())
    def make_true(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.pending())).operation.ready = True

    def _check(self, key: str) -> int:
        ready = [modelled for modelled in self.pending() if key in modelled.keys and modelled.operation.ready]
        for modelled in ready:
            modelled.finish("satisfied")
            self.expected.append(f"{modelled.operation.name} completes")
        return len(ready)

    @rule(key=KEYS)
    def check(self, key: str) -> None:
        assert self.purgatory.check_and_complete(key) == self._check(key)

    @rule(keys=st.lists(KEYS, min_size=1))
    def check_soon(self, keys: list[str]) -> None:
        for key in keys:
            self.purgatory.check_and_complete_soon(key)
        self._overdue()
        self.clock.advance(0)
        for key in dict.fromkeys(keys):
            self._check(key)
        self.expected.sort()
        self.calls.sort()

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), cancel=st.booleans())
    def finish_one(self, data: st.DataObject, cancel: bool) -> None:
        modelled = data.draw(st.sampled_from(self.pending()))
        if cancel:
            assert modelled.operation.cancel()
            modelled.finish("cancelled")
        else:
            assert modelled.operation.force_complete()
            modelled.finish("satisfied")
            self.expected.append(f"{modelled.operation.name} completes")

    @rule(key=KEYS)
    def cancel_for_key(self, key: str) -> None:
        waiting = [modelled for modelled in self.pending() if key in modelled.keys]
        assert self.purgatory.cancel_for_key(key) == [modelled.operation for modelled in waiting]
        for modelled in waiting:
            modelled.finish("cancelled")

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), timeout=st.none() | st.floats(0, 100))
    def reschedule(self, data: st.DataObject, timeout: float | None) -> None:
        modelled = data.draw(st.sampled_from(self.pending()))
        modelled.operation.reschedule(timeout)
        modelled.deadline = None if timeout is None else self.clock.time() + timeout

    def _overdue(self) -> None:
        """Let the model expire what the real one may: it decides within a tick, which is all that is promised."""
        now = self.clock.time()
        for modelled in self.pending():
            if modelled.deadline is not None and modelled.deadline <= now:
                self.clock.advance(0)
                if modelled.operation.expired():
                    modelled.finish("expired")
                    self.expected += [f"{modelled.operation.name} {verb}" for verb in ("completes", "expires")]

    @rule(seconds=st.floats(0, 3) | st.floats(0, 1e8) | st.just(0))
    def advance(self, seconds: float) -> None:
        calls = len(self.calls)
        self.clock.advance(seconds)
        now = self.clock.time()
        slack = self.tick + (now + self.tick) * 1e-15
        expired = []
        for modelled in self.pending():
            if modelled.operation.expired():
                assert modelled.deadline is not None
                assert modelled.deadline <= now, "early"
                expired.append(modelled)
            elif modelled.deadline is not None:
                assert modelled.deadline > now - slack, "missed"
        order = [call.split()[0] for call in self.calls[calls:] if call.endswith("completes")]
        by_name = {modelled.operation.name: modelled for modelled in expired}
        assert sorted(order) == sorted(by_name)
        deadlines = [by_name[name].deadline or 0.0 for name in order]
        for earlier, later in pairwise(deadlines):
            assert earlier < later + slack, "out of order by more than a tick"
        for modelled in expired:
            modelled.finish("expired")
        self.expected += [f"{name} {verb}" for name in order for verb in ("completes", "expires")]

    @invariant()
    def outcomes_and_order_agree(self) -> None:
        assert self.calls == self.expected
        for modelled in self.all:
            operation = modelled.operation
            assert operation.done() == (modelled.outcome != "pending")
            assert operation.expired() == (modelled.outcome == "expired")
            assert operation.cancelled() == (modelled.outcome == "cancelled")

    @invariant()
    def counts_agree(self) -> None:
        statistics = self.purgatory.statistics()
        outcomes = [modelled.outcome for modelled in self.all]
        assert self.purgatory.num_delayed == statistics.num_delayed == outcomes.count("pending")
        assert statistics.completed_at_once == outcomes.count("completed at once")
        assert statistics.satisfied == outcomes.count("satisfied")
        assert statistics.expired == outcomes.count("expired")
        assert statistics.cancelled == outcomes.count("cancelled")
        assert self.purgatory.watched >= sum(len(set(modelled.keys)) for modelled in self.pending())
        assert len(self.purgatory.timer) == sum(modelled.deadline is not None for modelled in self.pending())

    def teardown(self) -> None:
        if hasattr(self, "purgatory"):
            self.purgatory.close()
            assert all(modelled.operation.done() for modelled in self.all)
            assert (self.purgatory.num_delayed, self.purgatory.watched, len(self.purgatory.timer)) == (0, 0, 0)


TestAgainstANaiveModel = AgainstANaiveModel.TestCase
TestAgainstANaiveModel.settings = settings(stateful_step_count=40)
