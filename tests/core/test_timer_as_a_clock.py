"""The timer as a clock, the exceptions of its tasks, and its close."""

import asyncio
import contextvars
import logging

import pytest

from purgatory import Clock, Handle, VirtualClock, WheelTimer
from tests.support.injection import each_step
from tests.support.operations import FaultLog, Note


class TestAsAClock:
    """`WheelTimer` stands where `loop.call_at` and `loop.call_later` stand."""

    def test_time_of_a_timer_is_that_of_its_clock(self, clock: VirtualClock) -> None:
        timer: Clock = WheelTimer(clock)
        clock.advance(3)
        assert timer.time() == 3.0

    def test_callbacks_run_in_the_order_of_their_times(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        clock.advance(10)
        ran: list[str] = []
        timer.call_later(2.0, ran.append, "later")
        timer.call_at(11.0, ran.append, "at")
        timer.call_at(11.5, ran.append, "cancelled").cancel()
        clock.advance(2)
        assert ran == ["at", "later"]

    def test_the_handle_is_like_a_handle_of_the_loop(self, clock: VirtualClock) -> None:
        timer = WheelTimer(clock)
        handle = timer.call_later(2.0, print)
        assert (handle.when(), handle.cancelled()) == (2.0, False)
        assert repr(handle) == "<TimerHandle when=2.0>"
        handle.cancel()
        handle.cancel()
        assert handle.cancelled()
        assert repr(handle) == "<TimerHandle cancelled>"

    def test_a_callback_runs_in_the_context_of_its_caller(self, clock: VirtualClock) -> None:
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")
        timer = WheelTimer(clock)
        seen: list[str] = []
        variable.set("first")
        timer.call_later(1.0, lambda: seen.append(variable.get()))
        variable.set("second")
        timer.call_later(1.0, lambda: seen.append(variable.get()))
        clock.advance(1)
        assert seen == ["first", "second"]

    async def test_a_timer_drives_a_timer(self) -> None:
        timer = WheelTimer(WheelTimer())
        done = asyncio.Event()
        asked = timer.time()
        timer.call_later(0.01, done.set)
        await asyncio.wait_for(done.wait(), 30)
        assert timer.time() >= asked + 0.01

    async def test_the_clock_gets_the_context_of_the_timer_not_of_the_request(self) -> None:
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")
        timer = WheelTimer()
        variable.set("a request's")
        seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        class Look(Note):
            def run(self) -> None:
                seen.set_result(variable.get())

        timer.add(Look(VirtualClock()), timer.time() + 0.001)
        assert await asyncio.wait_for(seen, 30) == "default"


class TestFaults:
    def test_a_task_that_raises_harms_no_other(self, clock: FaultLog) -> None:
        timer = WheelTimer(WheelTimer(clock))
        note = Note(clock)
        error = LookupError()

        def fail() -> None:
            raise error

        timer.call_at(1.0, fail)
        timer.add(note, 1.0)
        clock.advance(1)
        assert note.ran == [1.0]
        assert clock.exceptions == [error]

    def test_faults_go_to_the_log_without_an_exception_handler(self, caplog: pytest.LogCaptureFixture) -> None:
        virtual = VirtualClock()

        class Bare:
            time = virtual.time
            call_at = virtual.call_at

        timer = WheelTimer(Bare())
        timer.call_at(1.0, "abc".index, "missing")
        virtual.advance(1)
        assert caplog.record_tuples == [("purgatory", logging.ERROR, "TimerHandle raised at its deadline")]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_a_request_to_exit_is_raised_after_the_other_tasks(
        self, clock: FaultLog, error: type[BaseException]
    ) -> None:
        timer = WheelTimer(clock)

        def leave() -> None:
            raise error

        note = Note(clock)
        timer.call_at(1.0, leave)
        timer.add(note, 1.0)
        with pytest.raises(error):
            clock.advance(1)
        assert note.ran == [1.0]
        assert clock.exceptions == []

    def test_a_task_is_not_kept_when_the_clock_refuses_to_call_back(self, clock: FaultLog) -> None:
        class Closed(FaultLog):
            def call_at(self, *_: object) -> Handle:
                raise RuntimeError("closed")

        timer = WheelTimer(Closed())
        note = Note(clock)
        with pytest.raises(RuntimeError, match="closed"):
            timer.add(note, 1.0)
        assert len(timer) == 0


class TestClose:
    def test_close_forgets_all_tasks_and_leaves_clock_alone(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        notes = [Note(clock) for _ in range(5)]
        for n, note in enumerate(notes):
            timer.add(note, 10.0**n)
        timer.close()
        timer.close()
        assert len(timer) == 0
        assert "scheduled=0" in repr(clock)
        timer.add(notes[0], 2.0)
        clock.advance(1e9)
        assert [note.ran for note in notes] == [[2.0], [], [], [], []]

    def test_a_call_that_is_cancelled_at_any_step_of_a_wake_up_does_not_run_after_that(self) -> None:
        for injector in each_step():
            clock = FaultLog()
            timer = WheelTimer(clock)
            events: list[str] = []
            handle = timer.call_at(1.0, events.append, "run")

            def cancel(handle: Handle = handle, events: list[str] = events) -> None:
                handle.cancel()
                events.append("cancelled")

            injector.inject = cancel
            with injector:
                clock.advance(1.0)
            assert events in (["cancelled"], ["run", "cancelled"], ["run"])
            assert (len(timer), clock.faults) == (0, [])

    def test_a_task_may_close_the_timer(self, clock: FaultLog) -> None:
        timer = WheelTimer(clock)
        notes = [Note(clock) for _ in range(3)]
        timer.call_at(1.0, timer.close)
        timer.add(notes[0], 1.0)
        timer.add(notes[1], 2.0)
        timer.call_at(1.0, timer.add, notes[2], 3.0)
        clock.advance(10)
        assert [note.ran for note in notes] == [[], [], []]
        assert "scheduled=0" in repr(clock)
        for note in notes:
            timer.add(note, 20.0)
        clock.advance(10)
        assert [note.ran for note in notes] == [[20.0]] * 3
