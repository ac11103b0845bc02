"""`ThresholdPurgatory`, `IdleTracker` and `VersionedValues` against naive ones, each of them a dict."""

import asyncio
import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import purgatory._threshold
from purgatory import (
    DelayedFutures,
    DelayedOperation,
    DelayedOperationPurgatory,
    IdleTracker,
    ThresholdPurgatory,
    VersionedValues,
)
from tests.support.operations import ENDS, FaultLog

Future = asyncio.Future[Any]

SPARED = purgatory._threshold._SPARED
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
        vars(purgatory._threshold)["_SPARED"] = spared
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
        before, self.value = self.value, max(self.value, value)
        if soon:
            self.real.advance_soon(value)
            self.clock.advance(0.0)
            self.see_expired_waits(before)  # a deadline of now may be earlier than the next iteration
        else:
            assert self.real.advance(value) == len(passed)
            assert self.heard == sorted(threshold for _, threshold in passed)
        for wait, _ in passed:
            if self.waiting.pop(wait, None) is not None:
                assert wait.result() == self.value

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.see_expired_waits(self.value)

    def see_expired_waits(self, before: int) -> None:
        now = self.clock.time()
        for wait, (threshold, deadline) in list(self.waiting.items()):
            if wait.done() and wait.expired():
                assert deadline is not None
                assert deadline <= now, "early"
                assert wait.result() == self.value
                assert before <= threshold
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
        vars(purgatory._threshold)["_SPARED"] = SPARED


class AgainstANaiveIdleTracker(RuleBasedStateMachine):
    """An idle key was silent for its timeout, and for less than a tick longer."""

    @initialize(
        timeout=st.one_of(st.sampled_from([1.0, 30.0]), st.floats(0.001, 1e6)),
        part=st.sampled_from([0.001, 0.01, 0.25, 1.0, 3.0]),
    )
    def start(self, timeout: float, part: float) -> None:
        self.clock = FaultLog()
        self.timeout = timeout
        self.tick = max(timeout * part, 1e-6)
        self.real: IdleTracker[str] = IdleTracker(timeout, self.on_idle, tick=self.tick, clock=self.clock)
        self.touched: dict[str, tuple[float, float]] = {}
        """The time of the last touch of each key, and the key's timeout."""
        self.calls: dict[str, tuple[Callable[[], None], ...]] = {}
        """What `on_idle` does with a key."""

    def on_idle(self, key: str) -> None:
        """Note the key. It may come back at once, and take another one with it."""
        now = self.clock.time()
        touched, timeout = self.touched.pop(key)
        assert touched + timeout <= now, "early"
        assert now < touched + timeout + self.tick + now * 1e-15, "late"
        assert key not in self.real
        for call in self.calls.pop(key, ()):
            call()

    @rule(key=KEYS, times=st.none() | st.sampled_from([0.1, 1.0, 3.0]) | st.floats(0.001, 10))
    def touch(self, key: str, times: float | None) -> None:
        """Touch a key, which gets so many times the usual timeout, or keeps its own."""
        timeout = self.touched.get(key, (0.0, self.timeout))[1] if times is None else times * self.timeout
        self.real.touch(key, None if times is None else timeout)
        self.touched[key] = self.clock.time(), timeout

    @rule(key=KEYS, other=KEYS)
    def touch_a_key_that_comes_back(self, key: str, other: str) -> None:
        self.touch(key, None)
        self.calls[key] = partial(self.touch, key, None), partial(self.discard, other)

    @rule(key=KEYS)
    def discard(self, key: str) -> None:
        assert self.real.discard(key) == (self.touched.pop(key, None) is not None)

    @rule(part=st.floats(0, 3))
    def pass_time(self, part: float) -> None:
        self.clock.advance(part * self.timeout)

    @precondition(lambda self: self.touched)
    @rule(data=st.data(), beyond=st.booleans())
    def advance_until_a_key_is_idle(self, data: st.DataObject, beyond: bool) -> None:
        due = data.draw(st.sampled_from(sorted(map(sum, self.touched.values()))))
        self.clock.advance_to(max(due + (self.tick if beyond else 0.0), self.clock.time()))

    @invariant()
    def it_agrees(self) -> None:
        assert self.clock.faults == []
        assert len(self.real) == len(self.touched) == len(self.real.timer)
        assert set(self.real) == self.touched.keys()
        now = self.clock.time()
        for key, (touched, timeout) in self.touched.items():
            assert key in self.real
            assert now < touched + timeout + self.tick + (now + self.tick) * 1e-15, "late"


class AgainstNaiveVersionedValues(RuleBasedStateMachine):
    """After each change all waits are scanned: each is done if and only if it has to be, with the right result."""

    @initialize(
        version=st.sampled_from([0, 1000]),
        tick=st.sampled_from([0.001, 0.25, 60.0]),
        purge_interval=st.sampled_from([0, 2, 1000]),
    )
    def start(self, version: int, tick: float, purge_interval: int) -> None:
        self.clock = FaultLog()
        self.tick = tick
        self.real: VersionedValues[str, int] = VersionedValues(
            version, DelayedOperationPurgatory(tick=tick, purge_interval=purge_interval, clock=self.clock)
        )
        self.latest = version
        self.current: dict[str, tuple[int, int]] = {}
        self.changes: dict[DelayedOperation[Any], tuple[dict[str, int], float | None]] = {}
        self.states: dict[DelayedOperation[Any], tuple[str, int, float | None]] = {}

    def newer(self, seen: dict[str, int]) -> dict[str, tuple[int, int]]:
        return {key: self.current[key] for key, version in seen.items() if self.current.get(key, (0, 0))[0] > version}

    def deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self.clock.time() + timeout

    @rule(data=st.data(), keys=st.sets(KEYS, min_size=1), timeout=st.none() | SECONDS)
    def wait_for_a_change(self, data: st.DataObject, keys: set[str], timeout: float | None) -> None:
        known = st.sampled_from([0, self.latest, *(version for version, _ in self.current.values())])
        seen = {key: data.draw(known | st.integers(0, self.latest)) for key in sorted(keys)}
        given = seen.copy()
        change = self.real.changed(given, timeout)
        given.clear()  # what was seen is what it was at the call
        found = self.newer(seen)
        assert change.done() == bool(found)
        if found:
            assert change.result() == found
        else:
            self.changes[change] = (seen, self.deadline(timeout))

    @rule(key=KEYS, value=st.integers(0, 3), timeout=st.none() | SECONDS)
    def wait_for_a_state(self, key: str, value: int, timeout: float | None) -> None:
        state = self.real.until(key, value.__eq__, timeout)
        now = self.current.get(key)
        assert state.done() == (now is not None and now[1] == value)
        if state.done():
            assert state.result() == now
        else:
            self.states[state] = (key, value, self.deadline(timeout))

    @rule(values=st.dictionaries(KEYS, st.integers(0, 3)), together=st.booleans())
    def set_values(self, values: dict[str, int], together: bool) -> None:
        if together:
            self.real.update(values)
        for key, value in values.items():
            self.latest += 1
            self.current[key] = (self.latest, value)
            if not together:
                assert self.real.set(key, value) == self.latest
                self.see_changes([key])
        if together:
            self.see_changes(list(values))

    def see_changes(self, keys: list[str]) -> None:
        for change, (seen, _) in list(self.changes.items()):
            if found := self.newer(seen):
                assert change.result() == found
                del self.changes[change]
        for state, (key, value, _) in list(self.states.items()):
            if key in keys and self.current[key][1] == value:
                assert state.result() == self.current[key]
                del self.states[state]

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.real.delete(key) == (self.current.pop(key, None) is not None)

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        now = self.clock.time()
        for wait, deadline in self.waits():
            if wait.done():
                assert wait.expired()
                assert deadline is not None
                assert deadline <= now, "early"
                assert wait.result() == ({} if wait in self.changes else None)
                self.forget(wait)
            elif deadline is not None:
                assert now < deadline + self.tick + (now + self.tick) * 1e-15, "late"

    @precondition(lambda self: self.changes or self.states)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        wait, _ = data.draw(st.sampled_from(self.waits()))
        assert wait.cancel()
        self.forget(wait)

    def waits(self) -> list[tuple[DelayedOperation[Any], float | None]]:
        return [(wait, waited[-1]) for waits in (self.changes, self.states) for wait, waited in waits.items()]

    def forget(self, wait: DelayedOperation[Any]) -> None:
        self.changes.pop(wait, None)
        self.states.pop(wait, None)

    @invariant()
    def it_agrees(self) -> None:
        assert {key: self.real.get(key) for key in "abcdef"} == {
            key: self.current.get(key, (0, None)) for key in "abcdef"
        }
        assert self.real.num_waiting == len(self.changes) + len(self.states)
        assert not any(wait.done() for wait, _ in self.waits())
        assert self.real.purgatory.statistics().missed == 0

    @invariant()
    def keys_without_a_value_and_a_wait_are_gone(self) -> None:
        assert self.real._values.keys() == self.current.keys()
        assert self.real._announced == {}


class AgainstNaiveFutures(RuleBasedStateMachine):
    """An operation completes when its futures are done or its deadline comes. Then no future keeps it."""

    @initialize()
    def start(self) -> None:
        self.clock = FaultLog()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _, context: self.clock.call_exception_handler(context))
        self.purgatory = DelayedOperationPurgatory(clock=self.clock)
        self.futures = [self.loop.create_future() for _ in range(4)]
        self.waiting: dict[DelayedFutures[Any], tuple[set[Future], float, bool, list[object]]] = {}
        """The futures, the deadline, `cancel_late`, and the calls of `callback`."""
        self.cancelled: set[Future] = set()

    @rule(
        which=st.sets(st.integers(0, 3)), timeout=st.none() | SECONDS, cancel_late=st.booleans(), cancels=st.booleans()
    )
    def wait(self, which: set[int], timeout: float | None, cancel_late: bool, cancels: bool) -> None:
        futures = {self.futures[n] for n in which}
        calls: list[object] = []

        def callback(done: set[Future], late: set[Future]) -> None:
            assert (done | late, done & late) == (futures, set())
            assert all(future.done() for future in done)
            assert all(future.cancelled() if cancel_late else not future.done() for future in late)
            calls.append((done, late))
            if cancels:
                list(self.waiting)[-1].cancel()

        operation: DelayedFutures[Any] = DelayedFutures(futures, timeout, callback=callback, cancel_late=cancel_late)
        deadline = math.inf if timeout is None else self.clock.time() + timeout
        self.waiting[operation] = futures, deadline, cancel_late, calls
        self.purgatory.try_complete_else_watch(operation, ["a", "b"])
        assert not all(future.done() for future in futures) or operation.outcome == "completed_at_once"

    @rule(n=st.integers(0, 3), how=st.sampled_from(["result", "exception", "cancel"]), turns=st.booleans())
    def finish(self, n: int, how: str, turns: bool) -> None:
        future, self.futures[n] = self.futures[n], self.loop.create_future()
        if how == "cancel":
            future.cancel()
            self.cancelled.add(future)
        elif not future.done():
            future.set_result(n) if how == "result" else future.set_exception(LookupError())
        assert future.cancelled() or future.exception() or True, "it is retrieved"
        if turns:
            self.turn()

    @rule()
    def turn(self) -> None:
        for _ in range(3):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        for operation, (futures, *_) in self.waiting.items():
            assert operation.done() == all(future.done() for future in futures) or operation.cancelled()

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100), end=st.sampled_from(["fail", *(end for end in ENDS if "close" not in end)]))
    def end(self, which: int, end: str) -> None:
        operation = list(self.waiting)[which % len(self.waiting)]
        if end == "fail":
            assert operation.fail(LookupError())
            assert operation.exception()
        else:
            ENDS[end](self.purgatory, self.clock, operation)
        assert operation.done() or end.startswith("check") or end == "deadline"

    @invariant()
    def it_agrees(self) -> None:
        assert self.clock.faults == []
        for reference in [weakref.ref(operation) for operation in self.waiting if operation.done()]:
            operation = cast(DelayedFutures[Any], reference())
            futures, deadline, cancel_late, calls = self.waiting.pop(operation)
            assert calls == ([] if operation.outcome in ("cancelled", "failed") else [operation.result()])
            assert not operation.expired() or deadline <= self.clock.time()
            if cancel_late:
                assert all(future.done() for future in futures)
                self.cancelled |= futures
            del operation
            assert reference() is None, "a future keeps it"
        for _, deadline, _, calls in self.waiting.values():
            assert calls == []
            assert self.clock.time() < deadline + 0.001 + self.clock.time() * 1e-15
        for future in self.futures:
            assert not future.cancelled() or future in self.cancelled

    def teardown(self) -> None:
        self.loop.close()


TestAgainstNaiveFutures = AgainstNaiveFutures.TestCase
TestAgainstANaiveThresholdPurgatory = AgainstANaiveThresholdPurgatory.TestCase
TestAgainstANaiveIdleTracker = AgainstANaiveIdleTracker.TestCase
TestAgainstNaiveVersionedValues = AgainstNaiveVersionedValues.TestCase
