"""The hierarchy of wheels behaves as a sorted list does, and keeps its own order inside."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory import WheelTimer
from purgatory._timer import timer
from purgatory._timer.timer import _LONG
from tests.support.invariants import check_timer
from tests.support.operations import FaultLog, Note

DELAYS = st.one_of(
    st.floats(0, 0.1), st.floats(0, 100), st.floats(0, 3.2e8), st.integers(0, 500).map(lambda n: n / 1000), st.just(0)
)


class AgainstASortedList(RuleBasedStateMachine):
    """Tasks are added, cancelled, rescheduled and run; the model is a dict of deadlines."""

    @initialize(
        tick=st.sampled_from([0.0001, 0.0003, 0.001, 0.0107, 0.3, 1.0, 60.0]),
        wheel_size=st.integers(2, 30),
        start=st.sampled_from([0.0, -3.3, 1e3, 1.7e9]),
        long=st.sampled_from([1, 3, _LONG]),
    )
    def start(self, tick: float, wheel_size: int, start: float, long: int) -> None:
        vars(timer)["_LONG"] = long
        self.clock = FaultLog(start)
        self.tick = tick
        self.timer = WheelTimer(self.clock, tick=tick, wheel_size=wheel_size)
        self.pending: dict[Note, float] = {}
        self.order: list[Note] = []

    def _note(self) -> Note:
        order = self.order

        class Ordered(Note):
            def run(self) -> None:
                super().run()
                order.append(self)

        return Ordered(self.clock)

    @rule(delay=DELAYS)
    def add(self, delay: float) -> None:
        note = self._note()
        self.pending[note] = self.clock.time() + delay
        self.timer.add(note, self.pending[note])

    @rule(delay=st.floats(0, 10))
    def add_overdue(self, delay: float) -> None:
        note = self._note()
        self.pending[note] = self.clock.time() - delay
        self.timer.add(note, self.pending[note])

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        note = data.draw(st.sampled_from(list(self.pending)))
        assert self.timer.cancel(note)
        assert not self.timer.cancel(note)
        del self.pending[note]

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), delay=DELAYS)
    def reschedule(self, data: st.DataObject, delay: float) -> None:
        note = data.draw(st.sampled_from(list(self.pending)))
        self.pending[note] = self.clock.time() + delay
        self.timer.reschedule(note, self.pending[note])

    @rule(seconds=DELAYS)
    def advance(self, seconds: float) -> None:
        self._advance_to(self.clock.time() + seconds)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def advance_to_a_deadline(self, data: st.DataObject) -> None:
        deadline = data.draw(st.sampled_from(list(self.pending.values())))
        self._advance_to(max(deadline, self.clock.time()))

    def _advance_to(self, when: float) -> None:
        before = self.clock.time()
        self.order.clear()
        self.clock.advance_to(when)
        rounding = (abs(when) + self.tick) * 1e-15
        for note in self.order:
            (ran,) = note.ran
            deadline = self.pending.pop(note)
            assert ran >= deadline, "early"
            assert ran <= max(before, deadline + self.tick + rounding), "late"
        assert [note.ran[0] for note in self.order] == sorted(note.ran[0] for note in self.order)
        for deadline in self.pending.values():
            assert deadline > when - self.tick - rounding, "missed"

    @invariant()
    def it_holds_as_many_tasks_as_the_model(self) -> None:
        assert len(self.timer) == len(self.pending)

    @invariant()
    def it_is_consistent_inside(self) -> None:
        check_timer(self.timer)

    def teardown(self) -> None:
        vars(timer)["_LONG"] = _LONG


TestAgainstASortedList = AgainstASortedList.TestCase
TestAgainstASortedList.settings = settings(stateful_step_count=40)
