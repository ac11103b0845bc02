"""A timer does as a dict of deadlines does, whatever its tasks call, and is whole inside after each step.

After Caffeine's fuzzer of its timing wheel: a reference model, the integrity of all lists after each step, and tasks
that call the timer when they run, which may be to close it and to set it anew.
"""

import math
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory import TimerTask, WheelTimer
from tests.support.invariants import check_timer
from tests.support.operations import OddClock, raising

DELAYS = st.one_of(
    st.floats(0, 0.1), st.floats(0, 100), st.floats(0, 3.2e8), st.integers(0, 500).map(lambda n: n / 1000), st.just(0)
)


@dataclass(frozen=True)
class Call:
    """What a task does when it runs."""

    what: str
    delay: float
    which: int


CALLS = st.builds(
    Call, st.sampled_from(["add", "again", "cancel", "move", "close", "look"]), DELAYS, st.integers(0, 1000)
)


class Task(TimerTask):
    """Tells the machine that it runs, and makes its calls."""

    def __init__(self, machine: "AgainstADict", calls: list[Call]) -> None:
        super().__init__()
        self.machine = machine
        self.calls = calls

    def run(self) -> None:
        self.machine.note(self)
        calls, self.calls = self.calls, []  # once: one that sets itself to now would run for ever
        for call in calls:
            self.machine.perform(self, call)


class AgainstADict(RuleBasedStateMachine):
    """Tasks are added, cancelled, moved and run, by the machine and by each other."""

    @initialize(
        tick=st.sampled_from([0.0001, 0.0003, 0.001, 0.0107, 0.3, 1.0, 60.0]),
        wheel_size=st.integers(2, 30),
        start=st.sampled_from([0.0, -3.3, 1e3, 1.7e9]),
    )
    def start(self, tick: float, wheel_size: int, start: float) -> None:
        self.clock = OddClock(start)
        self.tick = tick
        self.timer = WheelTimer(self.clock, tick=tick, wheel_size=wheel_size)
        self.pending: dict[Task, tuple[float, float]] = {}
        """The deadline of each task, and when it was set."""
        self.blocked = -math.inf
        """Until when the loop did not run."""
        self.running: list[tuple[float, float]] = []
        """The time and the deadline of each run in an advance."""

    def note(self, task: Task) -> None:
        """A task runs: not early, not late, and not unless it is pending."""
        now = self.clock._now
        deadline, when_set = self.pending.pop(task)
        assert now >= deadline, "early"
        assert now <= max(when_set, self.blocked, deadline + self.tick + self._rounding(now)), "late"
        self.running.append((now, max(deadline, when_set)))

    def perform(self, task: Task, call: Call) -> None:
        match call.what:
            case "add":
                self._set(Task(self, []), call.delay)
            case "again":
                self._set(task, call.delay)
            case "cancel" if self.pending:
                self._cancel(self._pick(call.which))
            case "move" if self.pending:
                self._set(self._pick(call.which), call.delay)
            case "close":
                self.close()
                self._set(Task(self, []), call.delay)
            case "look":
                assert len(self.timer) == len(self.pending)

    def _pick(self, which: int) -> Task:
        return list(self.pending)[which % len(self.pending)]

    def _set(self, task: Task, delay: float) -> None:
        now = self.clock._now
        if task in self.pending:
            with pytest.raises(ValueError, match="waits in a timer already"):
                self.timer.add(task, now)
        # A task that does not wait may be rescheduled too.
        (self.timer.reschedule if task in self.pending or delay > 1.0 else self.timer.add)(task, now + delay)
        self.pending[task] = (now + delay, now)

    def _cancel(self, task: Task) -> None:
        assert self.timer.cancel(task)
        assert not self.timer.cancel(task)
        del self.pending[task]

    @rule(delay=DELAYS, calls=st.lists(CALLS, max_size=3))
    def add(self, delay: float, calls: list[Call]) -> None:
        self._set(Task(self, calls), delay)

    @rule(delay=st.floats(0, 10), calls=st.lists(CALLS, max_size=3))
    def add_overdue(self, delay: float, calls: list[Call]) -> None:
        self._set(Task(self, calls), -delay)

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 1000))
    def cancel(self, which: int) -> None:
        self._cancel(self._pick(which))

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 1000), delay=DELAYS)
    def reschedule(self, which: int, delay: float) -> None:
        self._set(self._pick(which), delay)

    @rule()
    def close(self) -> None:
        self.timer.close()
        self.pending.clear()

    @rule(seconds=DELAYS)
    def advance(self, seconds: float) -> None:
        self._advance_to(self.clock.time() + seconds)

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 1000))
    def advance_to_a_deadline(self, which: int) -> None:
        deadline, _ = self.pending[self._pick(which)]
        self._advance_to(max(deadline, self.clock.time()))

    @rule(seconds=DELAYS, calls=st.lists(CALLS, max_size=3))
    def block(self, seconds: float, calls: list[Call]) -> None:
        """Let time pass in which the loop does not run. Then these calls come before that of the timer."""
        self.clock._now += seconds
        self.blocked = self.clock.time()
        for call in calls:
            self.perform(Task(self, []), call)
        self._advance_to(self.blocked)

    @rule(seconds=DELAYS, delay=DELAYS)
    def add_while_the_clock_refuses(self, seconds: float, delay: float) -> None:
        """Add a task that is kept only if the clock need not be armed. The call that is armed may be late already."""
        self.clock._now = self.blocked = self.clock._now + seconds
        self.clock.refuses = True
        with suppress(RuntimeError):
            self._set(Task(self, []), delay)
        self.clock.refuses = False
        check_timer(self.timer)
        self._advance_to(self.blocked)

    @precondition(lambda self: self.pending)
    @rule(nth=st.integers(0, 4), which=st.integers(0, 1000))
    def interrupt(self, nth: int, which: int) -> None:
        """Let a KeyboardInterrupt come in a call of the clock on the way to a deadline."""
        deadline, _ = self.pending[self._pick(which)]
        when = max(deadline, self.clock._now)
        self.clock.arm(nth, raising(KeyboardInterrupt))
        with suppress(KeyboardInterrupt):
            self.clock.advance_to(when)
        self.clock.arm(-1, int)
        self._advance_to(when)

    def _advance_to(self, when: float) -> None:
        self.running.clear()
        self.clock.advance_to(when)
        assert not self.clock.faults
        for (_, before), (_, after) in zip(self.running, self.running[1:], strict=False):
            assert before < after + self.tick + self._rounding(when), "in the order of their ticks"
        for deadline, _ in self.pending.values():
            assert deadline > when - self.tick - self._rounding(when), "missed"

    def _rounding(self, time: float) -> float:
        return (abs(time) + self.tick) * 1e-15

    @invariant()
    def it_holds_as_many_tasks_as_the_model(self) -> None:
        assert len(self.timer) == len(self.pending)

    @invariant()
    def it_is_whole_inside(self) -> None:
        check_timer(self.timer)


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(stateful_step_count=40)
