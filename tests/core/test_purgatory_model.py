"""The whole purgatory on virtual time against a naive one, with operations that make any call from inside."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVarTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    Handle,
    OperationCancelled,
    PurgatoryError,
    __core__,
)
from purgatory._core.operation import NESTING, Failure
from purgatory._core.states import OUTCOMES
from tests.support import naive
from tests.support.cores import set_nesting
from tests.support.invariants import check_purgatory
from tests.support.naive import EXITS, Action, Event, NaivePurgatory, Plan, Planned, noting_exits, perform
from tests.support.operations import FaultLog

Ts = TypeVarTuple("Ts")

KEYS = st.sampled_from("abcd")
TARGETS = st.integers(-10, 30)
LIMITS = st.sampled_from([None, None, 1, 2])
SECONDS = st.one_of(st.sampled_from([0.0, 0.001, 1.0, 2.0]), st.floats(0, 0.1), st.floats(0, 10), st.floats(0, 3e8))
ERRORS = st.sampled_from(
    [LookupError, BaseException, asyncio.CancelledError, StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt]
)


OUTSIDE = [
    *("watch", "watch", "watch", "check", "check", "check soon", "make true", "make true", "force", "cancel"),
    *("cancel for key", "reschedule", "complete all", "cancel all", "fail", "fail all"),
]
INSIDE = [*OUTSIDE, *OUTSIDE, "force", "force", "check", "check", "raise", "raise", "raise", "close"]


@st.composite
def actions(draw: st.DrawFn, depth: int, choice: list[str]) -> Action:
    """Any call of a purgatory, with operations that make calls from inside, `depth` deep."""
    what = draw(st.sampled_from(choice))
    if what == "close" and draw(st.integers(0, 9)):
        what = "force"  # after it there is little more to see
    if what == "watch":
        return Action(what, plan=draw(plans(depth)))
    return Action(
        what,
        key=draw(KEYS) if what.startswith("c") else "",
        target=draw(TARGETS),
        seconds=draw(st.none() | SECONDS) if what == "reschedule" else None,
        error=draw(ERRORS) if what == "raise" else LookupError,
        limit=draw(LIMITS) if what.startswith("check") else None,
    )


@st.composite
def plans(draw: st.DrawFn, depth: int) -> Plan:
    act = actions(depth - 1, INSIDE) if depth > 0 else st.builds(Action, st.just("check soon"), key=KEYS)
    several = st.lists(act, max_size=3).map(tuple)
    return Plan(
        keys=tuple(draw(st.lists(KEYS, min_size=1, max_size=5)) if draw(st.integers(0, 4)) else ()),
        timeout=draw(st.none() | SECONDS),
        ready=draw(st.sampled_from([False, False, False, True])),
        tries=tuple(draw(st.lists(st.lists(act, max_size=2).map(tuple), max_size=3))),
        completes=draw(several),
        expires=draw(several),
        ends=draw(several),
    )


class Real(Planned, DelayedOperation[str]):
    """An operation that carries out a plan."""

    def __init__(self, world: "RealWorld", number: int, plan: Plan) -> None:
        DelayedOperation.__init__(self, plan.timeout)
        super().__init__(world, number, plan)

    def force_complete(self) -> bool:
        self.world.note("forces", self.number, self.outcome is None)
        return super().force_complete()

    def cancel(self) -> bool:
        self.world.note("cancels", self.number, self.outcome is None)
        return super().cancel()

    def _purgatory_fail(self, failure: object) -> bool:
        if isinstance(failure, Failure) and failure.exception is self.world.failing:
            self.world.note("fails", self.number, self.outcome is None)
        return super()._purgatory_fail(failure)

    def _purgatory_close(self) -> bool:
        self.world.note("closes", self.number, self.outcome is None)
        return super()._purgatory_close()


class RealWorld(FaultLog):
    """The real purgatory, and a virtual clock that notes its calls and reports."""

    def __init__(self, listened: bool, **parameters: Any) -> None:
        super().__init__()
        self.purgatory = DelayedOperationPurgatory(clock=self, **parameters)
        if listened:
            self.purgatory.add_listener(lambda finished: self.note("listener called", *finished))
        self.operations: list[Real] = []
        self.events: list[Event] = []
        self.numbers = 0
        self.failing: Exception | None = None
        """The exception of the innermost `fail_all`."""

    def note(self, *event: object) -> None:
        self.events.append(event)

    def counts(self) -> tuple[int, int, int]:
        statistics = self.purgatory.statistics()
        ended = sum(getattr(statistics, outcome) for outcome in OUTCOMES)
        return statistics.num_delayed, ended, statistics.missed

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> Handle:
        # Work in slices has one callback for all of its slices.
        method: Any = getattr(getattr(callback, "__self__", None), "_work", callback)

        def call() -> None:
            self.note("clock calls", method.__name__, None, self.time())
            callback(*args)

        return super().call_at(when, call)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        operation = context.get("operation")
        if operation is None:
            assert "retrieved" in context["message"], context
        else:
            self.note("reported", operation.number, type(context["exception"]).__name__)

    def watch(self, plan: Plan) -> None:
        operation = Real(self, self.numbers, plan)
        self.numbers += 1
        self.note("watches", operation.number)
        self.operations.append(operation)
        try:
            assert self.purgatory.try_complete_else_watch(operation, plan.keys) is operation
        except (PurgatoryError, ValueError) as error:
            self.note("refused", operation.number, type(error).__name__)
            self.operations.remove(operation)

    def check(self, key: str, limit: int | None) -> int:
        return self.purgatory.check_and_complete(key, limit)

    def check_soon(self, key: str, limit: int | None) -> None:
        self.note("asks for", key, self.purgatory.is_watched(key))
        self.purgatory.check_and_complete_soon(key, limit)

    def cancel_for_key(self, key: str) -> list[int]:
        cancelled = self.purgatory.cancel_for_key(key)
        return [operation.number for operation in cancelled if isinstance(operation, Real)]

    def reschedule(self, operation: Real, seconds: float | None) -> bool:
        try:
            operation.reschedule(seconds)
        except PurgatoryError:
            return False
        return True

    def end_all(self, what: str) -> object:
        exception = KeyError("all")
        ends: dict[str, Callable[[], object]] = {
            "complete": self.purgatory.complete_all,
            "cancel": self.purgatory.cancel_all,
            "fail": partial(self.purgatory.fail_all, exception),
            "close": self.purgatory.close,
        }
        before, self.failing = self.failing, exception if what == "fail" else self.failing
        try:
            return ends[what]()
        finally:
            self.failing = before
            self.note("all done")


class AgainstANaivePurgatory(RuleBasedStateMachine):
    """After every step, events and their order, outcomes and counts agree, and the inside is consistent."""

    @initialize(
        tick=st.sampled_from([0.0001, 0.0003, 0.001, 0.25, 1.0, 60.0]),
        wheel_size=st.integers(2, 21),
        purge_interval=st.sampled_from([0, 1, 3, 1000]),
        max_pending=st.sampled_from([None, None, None, 5]),
        nesting=st.sampled_from([NESTING] if __core__ == "C" else [2, 3, NESTING]),
        listened=st.booleans(),
    )
    def start(
        self,
        tick: float,
        wheel_size: int,
        purge_interval: int,
        max_pending: int | None,
        nesting: int,
        listened: bool,
    ) -> None:
        set_nesting(nesting)
        parameters: dict[str, Any] = {"tick": tick, "purge_interval": purge_interval, "max_pending": max_pending}
        self.real = RealWorld(listened, wheel_size=wheel_size, **parameters)
        self.naive = NaivePurgatory(tick, purge_interval, max_pending, listened)
        self.loop = asyncio.new_event_loop()
        self.awaiting: list[tuple[asyncio.Task[object], int]] = []
        self.peak_watched = 0

    def _both(self, action: Action) -> None:
        with noting_exits(self.real):
            perform(self.real, action)
        self._follow()
        with noting_exits(self.naive):
            perform(self.naive, action)
        assert self.naive.events == [], self.naive.events[:3]

    def _follow(self) -> None:
        self.naive.events = self.real.events.copy()
        self.real.events.clear()

    @rule(action=actions(2, OUTSIDE))
    def act(self, action: Action) -> None:
        self._both(action)

    @rule(plan=plans(2))
    def watch(self, plan: Plan) -> None:
        self._both(Action("watch", plan=plan))

    @rule(links=st.lists(st.tuples(st.sampled_from(["check", "force", "cancel"]), plans(1)), min_size=2, max_size=6))
    def complete_a_chain(self, links: list[tuple[str, Plan]]) -> None:
        """Operations each of which completes the next."""
        first = len(self.naive.operations)
        key = (*links[0][1].keys, "a")[0]
        for target, (what, plan) in enumerate(links, first + 1):
            linked = (Action("make true", target=target), Action(what, key, target), *plan.completes)
            self._both(Action("watch", plan=replace(plan, keys=(key,), completes=linked)))
        self._both(Action("force", target=first))

    @rule(key=KEYS, which=TARGETS)
    def make_true_and_check(self, key: str, which: int) -> None:
        self._both(Action("make true", target=which))
        self._both(Action("check", key))

    @rule(
        key=KEYS,
        ready=st.lists(st.sampled_from([True, True, False]), min_size=3, max_size=8),
        exits=st.sampled_from(["tries", "completes", "ends"]),
        way=st.sampled_from(["check", "check soon", "deadline"]),
        limit=st.sampled_from([None, 2, 3]),
    )
    def exit_in_a_walk(self, key: str, ready: list[bool], exits: str, way: str, limit: int | None) -> None:
        """Let one of several operations request to exit, while others of its key are tried or come due with it."""
        exit_ = (Action("raise", error=SystemExit),)
        plan = Plan((key,), 1.0)
        leaving = {
            "tries": replace(plan, tries=((), (), exit_)),
            "completes": replace(plan, completes=exit_),
            "ends": replace(plan, ends=exit_),
        }
        for number in range(len(ready)):
            self._both(Action("watch", plan=leaving[exits] if number == len(ready) // 2 else plan))
        for target, is_ready in enumerate(ready, len(self.naive.operations) - len(ready)):
            self._both(Action("make true" if is_ready else "none", target=target))
        if way != "deadline":
            self._both(Action(way, key, limit=limit))
        self.advance(1.0 if way == "deadline" else 0.0)

    @rule(seconds=SECONDS)
    def advance(self, seconds: float) -> None:
        self._advance_to(self.real.time() + seconds)

    @precondition(lambda self: any(operation.deadline is not None for operation in self.naive.pending()))
    @rule(data=st.data(), action=st.sampled_from(["make true", "reschedule", "none"]), seconds=SECONDS)
    def advance_to_a_deadline(self, data: st.DataObject, action: str, seconds: float) -> None:
        """Go to the deadline of an operation, which may be moved before, or come true unnoticed."""
        operation = data.draw(st.sampled_from([each for each in self.naive.pending() if each.deadline is not None]))
        self._both(Action(action, target=self.naive.operations.index(operation), seconds=seconds))
        assert operation.deadline is not None
        self._advance_to(max(operation.deadline, self.real.time()))

    def _advance_to(self, when: float) -> None:
        done = False
        while not done:
            with noting_exits(self.real):
                self.real.advance_to(when)
                done = True
        self._follow()
        while self.naive.events:
            with noting_exits(self.naive):
                self.naive.clock_call()
        self.naive.now = when
        self.naive.settle()

    def _run_loop(self) -> None:
        for _ in range(6 if self.awaiting else 0):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    @precondition(lambda self: self.naive.operations)
    @rule(which=TARGETS, as_future=st.booleans())
    def await_one(self, which: int, as_future: bool) -> None:
        index = which % len(self.naive.operations)
        task = self.loop.create_task(self._await(self.real.operations[index], as_future))
        self.awaiting.append((task, index))
        self._run_loop()
        self.see_awaiters()

    async def _await(self, operation: Real, as_future: bool) -> object:
        try:
            return await (operation.as_future() if as_future else operation)
        except EXITS as error:  # out of a task, they would end the loop
            return error

    @precondition(lambda self: self.awaiting)
    @rule(which=TARGETS)
    def cancel_an_awaiter(self, which: int) -> None:
        task, index = self.awaiting.pop(which % len(self.awaiting))
        assert task.cancel()
        self.awaiting.append((task, index))
        self._run_loop()
        self.awaiting.pop()
        self._follow()
        exits: list[BaseException] = []
        if not any(index == other for _, other in self.awaiting):
            with naive.keeping(exits):
                self.naive.operations[index].cancel()
        assert isinstance(task.result(), EXITS) if exits else task.cancelled()
        assert self.naive.events == []

    @invariant()
    def see_awaiters(self) -> None:
        self._run_loop()
        for task, index in self.awaiting.copy():
            operation = self.naive.operations[index]
            assert task.done() == operation.is_done
            if not task.done():
                continue
            self.awaiting.remove((task, index))
            assert not task.cancelled()
            error = task.exception() or task.result()
            if operation.outcome == "cancelled":
                assert isinstance(error, OperationCancelled)
            elif operation.outcome == "failed":
                assert error is self.real.operations[index].exception()
                exits = isinstance(error, EXITS) and isinstance(operation.error, EXITS)
                assert exits or type(error) in (type(operation.error), PurgatoryError)
            else:
                assert task.result() == f"result of {operation.number}"

    @invariant()
    def outcomes_agree(self) -> None:
        assert [each.number for each in self.real.operations] == [each.number for each in self.naive.operations]
        for real, model in zip(self.real.operations, self.naive.operations, strict=True):
            assert real.done() == model.is_done == (model.outcome is not None)
            assert real.expired() == (model.outcome == "expired")
            assert real.cancelled() == (model.outcome == "cancelled")
            assert real.outcome == model.outcome
            assert (real.timeout, real.deadline) == (model.plan.timeout, model.deadline)
            if model.outcome in ("satisfied", "expired", "closed", "completed_at_once"):
                assert real.result() == f"result of {model.number}"

    @invariant()
    def counts_agree(self) -> None:
        statistics = self.real.purgatory.statistics()
        assert self.real.purgatory.num_delayed == statistics.num_delayed == len(self.naive.pending())
        assert self.real.purgatory.watched == statistics.watched
        assert statistics.watched == len(self.naive.entries())
        assert sorted(map(str, self.real.purgatory.watched_keys())) == sorted(self.naive.lists)
        for key in "abcd":
            listed = self.naive.lists.get(key)
            assert self.real.purgatory.is_watched(key) == (listed is not None)
            expected = [each.number for each in listed.operations if each.outcome is None] if listed else []
            watching = self.real.purgatory.watching(key)
            assert [each.number for each in watching if isinstance(each, Real)] == expected
        if not self.naive.closed:
            assert statistics.watched + statistics.purged == self.naive.registered
        assert statistics.purges == self.naive.purges
        assert statistics.peak_delayed == self.naive.peak_delayed
        self.peak_watched = max(self.peak_watched, statistics.watched)
        assert self.peak_watched <= statistics.peak_watched <= self.naive.registered
        assert statistics.missed == self.naive.missed
        for outcome, count in self.naive.outcomes.items():
            assert (outcome, getattr(statistics, outcome)) == (outcome, count)
        with_deadline = [each for each in self.naive.pending() if each.deadline is not None]
        assert len(self.real.purgatory.timer) == len(with_deadline)

    @invariant()
    def it_is_consistent_inside(self) -> None:
        check_purgatory(self.real.purgatory)

    def teardown(self) -> None:
        set_nesting(NESTING)
        if not hasattr(self, "real"):
            return
        try:
            self._both(Action("close"))
            self._run_loop()
            assert all(task.done() and (task.cancelled() or task.exception() or True) for task, _ in self.awaiting)
            assert all(operation.done() for operation in self.real.operations)
            self.outcomes_agree()
            self.counts_agree()
        finally:
            self.loop.close()


TestAgainstANaivePurgatory = AgainstANaivePurgatory.TestCase
TestAgainstANaivePurgatory.settings = settings(stateful_step_count=50, max_examples=settings().max_examples)
