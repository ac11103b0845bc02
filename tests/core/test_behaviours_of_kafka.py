"""What Kafka's own tests of its purgatory and timer state: it is so here too, or the test says what is different."""

import asyncio
from collections.abc import Callable

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, OperationCancelled, WheelTimer
from tests.support.invariants import check_purgatory, check_timer
from tests.support.operations import FaultLog, Flag, Note, turn


def test_watched_falls_with_each_key_that_is_checked_and_num_delayed_at_once(
    purgatory: DelayedOperationPurgatory,
) -> None:
    """DelayedOperationTest.testRequestPurge."""
    first, *others = [purgatory.try_complete_else_watch(Flag(100.0), list(keys)) for keys in ("a", "ab", "abc")]
    delayed, watched = [purgatory.num_delayed], [purgatory.watched]
    for operation in others:
        operation.ready = True
        assert operation.try_complete(), "directly, and not by a check"
        delayed.append(purgatory.num_delayed)
    assert (delayed, purgatory.watched) == ([3, 2, 1], 6)
    for key in "abc":
        assert purgatory.check_and_complete(key) == 0
        watched.append(purgatory.watched)
    assert watched == [6, 4, 2, 1]
    assert purgatory.watching("a") == [first]
    check_purgatory(purgatory)


ADD: dict[str, Callable[[WheelTimer, Note, float], object]] = {
    "add": lambda timer, note, delay: timer.add(note, timer.time() + delay),
    "reschedule": lambda timer, note, delay: timer.reschedule(note, timer.time() + delay),
    "call_at": lambda timer, note, delay: timer.call_at(timer.time() + delay, note.run),
    "call_later": lambda timer, note, delay: timer.call_later(delay, note.run),
}


class TestAlreadyExpired:
    """TimerTest.testAlreadyExpiredTask: tasks with delays of -5 to -1 run at once, here in the next iteration."""

    @pytest.mark.parametrize("unit", [0.001, 1.0, 3600.0])
    @pytest.mark.parametrize("add", ADD)
    def test_five_tasks_in_the_past_run_in_the_next_iteration(self, clock: FaultLog, add: str, unit: float) -> None:
        clock.advance(10_000.0)
        timer = WheelTimer(clock, wheel_size=3)
        notes = [Note(clock) for _ in range(5)]
        for delay, note in zip(range(-5, 0), notes, strict=True):
            ADD[add](timer, note, delay * unit)
        assert [note.ran for note in notes] == [[]] * 5, "not inside the call"
        clock.advance(0)
        assert [note.ran for note in notes] == [[10_000.0]] * 5
        assert (len(timer), timer.statistics().wake_ups) == (0, 1)
        check_timer(timer)

    async def test_five_tasks_in_the_past_run_in_the_next_iterations_of_a_loop(self) -> None:
        timer = WheelTimer(wheel_size=3)
        ran: list[int] = []
        for delay in range(-5, 0):
            timer.call_later(delay / 1000, ran.append, delay)
        assert ran == []
        for _ in range(5):  # on a busy machine a slice may end after each of them
            await turn()
        assert sorted(ran) == [-5, -4, -3, -2, -1]


class TestAddedAnew:
    """TimerTaskListTest.testAll: Kafka's `add` takes a task that waits out of its list. Here `reschedule` does so."""

    @pytest.mark.parametrize("deadline", [-1.0, 0.001, 4.9999, 5.0, 300.0])
    @pytest.mark.parametrize("timers", [1, 2], ids=["to the same timer", "to another timer"])
    def test_a_task_that_waits_is_refused_by_add_and_stays(self, clock: FaultLog, timers: int, deadline: float) -> None:
        own, *others = [WheelTimer(clock) for _ in range(timers)]
        timer = others[0] if others else own
        note = Note(clock)
        own.add(note, 5.0)
        with pytest.raises(ValueError, match="waits in a timer already"):
            timer.add(note, deadline)
        assert (len(own), sum(map(len, others))) == (1, 0)
        clock.advance(1000.0)
        assert note.ran == [5.0]
        for each in (own, *others):
            check_timer(each)

    def test_reschedule_moves_tasks_from_list_to_list_and_their_number_stays(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        notes = [Note(clock) for _ in range(10)]
        for note in notes:
            timer.add(note, 0.010)
        assert timer.statistics().levels == (10,)
        for note in notes[:4]:
            timer.reschedule(note, 1.0)
            assert len(timer) == 10
        assert timer.statistics().levels == (6, 0, 4)
        for note in notes[4:]:
            timer.reschedule(note, 100.0)
            assert len(timer) == 10
        assert timer.statistics().levels == (0, 0, 4, 6)
        for note in notes[:4]:
            assert timer.cancel(note)
        assert timer.statistics().levels == (0, 0, 0, 6)
        clock.advance(1000.0)
        assert [note.ran for note in notes] == [[]] * 4 + [[100.0]] * 6
        check_timer(timer)

    @pytest.mark.parametrize("deadline", [2.0, 2.001, 5.0, 300.0])
    @pytest.mark.parametrize("drained", [False, True], ids=["before", "while its bucket is drained"])
    def test_reschedule_takes_a_task_out_of_another_timer(
        self, clock: FaultLog, drained: bool, deadline: float
    ) -> None:
        own, another = WheelTimer(clock), WheelTimer(clock)
        moved, other = Note(clock), Note(clock)
        own.call_at(2.0 if drained else 1.0, another.reschedule, moved, deadline)
        for note in (moved, other):
            own.add(note, 2.0)
        clock.advance_to(1.5)
        assert (len(own), len(another)) == ((3, 0) if drained else (1, 1))
        clock.advance_to(1000.0)
        assert (moved.ran, other.ran) == ([deadline], [2.0])
        assert len(own) == len(another) == 0
        for timer in (own, another):
            check_timer(timer)


class TestASharedTimer:
    """SystemTimerReaperTest.testSharedTimerBetweenConsumers: when one of them stops, the others' deadlines come."""

    @pytest.mark.parametrize("way", [DelayedOperationPurgatory.close, DelayedOperationPurgatory.cancel_all])
    @pytest.mark.parametrize("which", [0, 1])
    @pytest.mark.parametrize(
        ("when", "early"), [(0.5, True), (2.0, True), (2.0, False)], ids=["before", "as they are due", "as they run"]
    )
    def test_closing_a_purgatory_leaves_the_deadlines_of_others(
        self, clock: FaultLog, way: Callable[[DelayedOperationPurgatory], object], which: int, when: float, early: bool
    ) -> None:
        shared = WheelTimer(clock)
        expired: list[float] = []
        purgatories = [DelayedOperationPurgatory(name, clock=shared) for name in ("a", "b")]
        closing, lasting = purgatories[which], purgatories[1 - which]
        note = Note(clock)

        def hand_over(purgatory: DelayedOperationPurgatory) -> list[Flag]:
            return [
                purgatory.try_complete_else_watch(Flag(timeout, then=lambda: expired.append(clock.time())), ["key"])
                for timeout in (2.0, 2.0, 50.0, 3600.0)
            ]

        if early:  # in the bucket of its wake-up, and in front of that
            shared.call_at(when, way, closing)
        ended, others = hand_over(closing), hand_over(lasting)
        shared.add(note, 2.0)
        if not early:
            shared.call_at(when, way, closing)
        clock.advance(2.0)
        assert {each.outcome for each in ended[2:]} <= {"closed", "cancelled"}
        assert [each.expired() for each in ended[:2]] == [not early] * 2
        assert [each.outcome for each in others] == ["expired", "expired", None, None]
        assert note.ran == [2.0]
        late = lasting.try_complete_else_watch(Flag(5.0), ["key"])
        clock.advance(5.0)
        assert late.expired()
        expired.clear()
        clock.advance(3600.0)
        assert expired == [50.0, 3600.0]
        assert len(shared) == 0
        check_timer(shared)
        check_purgatory(lasting)

    async def test_closing_a_purgatory_leaves_the_deadlines_of_others_on_a_loop(self) -> None:
        shared = WheelTimer()
        called = asyncio.Event()
        async with DelayedOperationPurgatory(clock=shared) as lasting:
            async with DelayedOperationPurgatory(clock=shared) as closing:
                closed = closing.try_complete_else_watch(Flag(0.01), ["key"])
                expiring = lasting.try_complete_else_watch(Flag(0.01), ["key"])
                shared.call_later(0.01, called.set)
            assert closed.outcome == "closed"
            await asyncio.wait_for(expiring, 30)
            await asyncio.wait_for(called.wait(), 30)
            assert expiring.expired()
        assert len(shared) == 0


class Fetch(DelayedOperation[list[str]]):
    """Waits for so many records."""

    def __init__(self, log: list[str], minimum: int, timeout: float) -> None:
        super().__init__(timeout)
        self.log = log
        self.minimum = minimum

    def try_complete(self) -> bool:
        return len(self.log) >= self.minimum and self.force_complete()

    def on_complete(self) -> list[str]:
        return self.log.copy()


class TestPartOfTheResult:
    """A fetch of Kafka's that expires is answered with what is there, fewer than `minBytes`, and with no error."""

    @pytest.mark.parametrize("there", range(6))
    def test_an_operation_that_expires_yields_what_is_there(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, there: int
    ) -> None:
        log: list[str] = []
        fetch = purgatory.try_complete_else_watch(Fetch(log, 5, 1.0), ["log"])
        clock.advance(0.5)
        for n in range(there):
            log.append(f"record {n}")
            purgatory.check_and_complete("log")
        clock.advance(0.5)
        assert fetch.outcome == ("satisfied" if there == 5 else "expired")
        log.append("too late")
        assert fetch.result() == [f"record {n}" for n in range(there)]
        assert fetch.exception() is None
        assert purgatory.statistics().missed == 0

    async def test_a_task_gets_the_part_and_no_timeout_error(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            fetch = purgatory.try_complete_else_watch(Fetch(["record"], 5, 0.005), ["log"])
            assert await asyncio.wait_for(fetch, 30) == ["record"]
            assert fetch.expired()


def test_cancel_for_key_is_final_and_not_the_end_of_the_deadline_alone(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    """DelayedOperationTest.shouldCancelForKeyReturningCancelledOperations.

    Kafka's `cancelForKey` takes the operations out of the timer and out of that key's list, and does not complete them:
    a check of another of their keys still may. Without another key nothing does, and nobody is told.
    """
    first, second, other = [purgatory.try_complete_else_watch(Flag(10.0), keys) for keys in (["a"], ["a", "b"], ["b"])]
    assert purgatory.cancel_for_key("never watched") == []
    assert purgatory.cancel_for_key("a") == [first, second]
    assert (purgatory.num_delayed, len(purgatory.timer), purgatory.watched_keys()) == (1, 1, ["b"])
    for operation in (first, second, other):
        operation.ready = True
    assert purgatory.check_and_complete("b") == 1, "the other one"
    assert purgatory.watched == 0
    clock.advance(20.0)
    for operation in (first, second):
        assert operation.cancelled()
        assert not operation.force_complete()
        assert operation.calls == [], "neither completed nor expired"
        with pytest.raises(OperationCancelled):
            operation.result()
    assert other.result() == "result of flag"
    check_purgatory(purgatory)
