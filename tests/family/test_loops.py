"""`purgatory.loops`: the timers of an event loop are on wheels, and are what asyncio promises."""

import asyncio
import contextvars
import gc
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator

import anyio
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from purgatory import loops
from tests.support.operations import turn

FACTORIES = {"asyncio": loops.new_event_loop, "uvloop": loops.new_uvloop}


@pytest.fixture(params=FACTORIES)
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = FACTORIES[request.param]()
    yield loop
    loop.close()


def timers(loop: asyncio.AbstractEventLoop) -> int:
    """How many timers wait on the wheels."""
    assert isinstance(loop, loops._WheelTimers)
    return len(loop._wheels)


def run(loop: asyncio.AbstractEventLoop, main: Awaitable[object]) -> None:
    """Run `main` for a minute at most."""

    async def limited() -> None:
        await asyncio.wait_for(main, 60)

    loop.run_until_complete(limited())


class TestHandles:
    def test_handle_is_a_timer_handle_of_asyncio(self, loop: asyncio.AbstractEventLoop) -> None:
        handle = loop.call_at(loop.time() + 30.0, print)
        assert isinstance(handle, asyncio.TimerHandle)
        later = loop.call_later(40.0, print)
        assert handle < later
        assert later.when() >= handle.when() + 10.0
        assert not handle.cancelled()
        assert f"when={handle.when()} print()" in repr(handle)

    def test_cancelled_timer_leaves_the_loop_at_once(self, loop: asyncio.AbstractEventLoop) -> None:
        class Payload:
            pass

        payload = Payload()
        gone = weakref.ref(payload)
        handle = loop.call_later(30.0, print, payload)
        del payload
        assert timers(loop) == 1
        handle.cancel()
        handle.cancel()
        assert handle.cancelled()
        assert (timers(loop), gone()) == (0, None)
        assert "cancelled" in repr(handle)

    def test_cancelled_timer_does_not_run(self, loop: asyncio.AbstractEventLoop) -> None:
        ran: list[str] = []

        async def main() -> None:
            loop.call_later(0.01, ran.append, "cancelled").cancel()
            await asyncio.sleep(0.05)

        run(loop, main())
        assert ran == []

    def test_timer_is_cancelled_by_another_of_the_same_time(self, loop: asyncio.AbstractEventLoop) -> None:
        ran: list[str] = []

        async def main() -> None:
            when = loop.time() + 0.01
            handles: list[asyncio.TimerHandle] = []
            handles += [loop.call_at(when, lambda: handles[1].cancel()), loop.call_at(when, ran.append, "second")]
            await asyncio.sleep(0.05)

        run(loop, main())
        assert ran == []

    def test_timer_that_a_finalizer_cancels_at_its_time_does_not_run(self, loop: asyncio.AbstractEventLoop) -> None:
        """The collector may call one between the look at the time and the call of the handle."""
        ran: list[str] = []
        handle = loop.call_later(30.0, ran.append, "ran")
        assert isinstance(handle, loops.TimerHandle)
        handle.cancel()
        handle._timer_expire()
        run(loop, asyncio.sleep(0.001))
        assert ran == []

    def test_handle_that_has_run_is_not_cancelled(self, loop: asyncio.AbstractEventLoop) -> None:
        ran: list[str] = []

        async def main() -> asyncio.TimerHandle:
            handle = loop.call_later(0, ran.append, "ran")
            while not ran:
                await turn()
            return handle

        handle = loop.run_until_complete(main())
        assert not handle.cancelled()
        handle.cancel()
        assert handle.cancelled()

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (lambda loop: loop.call_later(None, print), TypeError("delay must not be None")),
            (lambda loop: loop.call_at(None, print), TypeError("when cannot be None")),
            (lambda loop: loop.call_later("1", print), TypeError("unsupported operand")),
            (lambda loop: loop.call_at("1", print), TypeError("can't multiply")),
            (lambda loop: loop.call_at(math.nan, print), ValueError("deadline must be a number of seconds, not nan")),
        ],
    )
    def test_bad_time_is_refused(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[asyncio.AbstractEventLoop], object], error: Exception
    ) -> None:
        with pytest.raises(type(error), match=error.args[0]):
            call(loop)
        assert timers(loop) == 0

    def test_timer_that_never_comes_does_not_wait(self, loop: asyncio.AbstractEventLoop) -> None:
        handle = loop.call_later(math.inf, print)
        assert (handle.when(), timers(loop)) == (math.inf, 0)


class TestContext:
    def test_callback_runs_in_its_context(self, loop: asyncio.AbstractEventLoop) -> None:
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")
        seen: list[str] = []

        async def main() -> None:
            other = contextvars.Context()
            other.run(variable.set, "given")
            variable.set("caller's")
            loop.call_later(0.001, lambda: seen.append(variable.get()))
            loop.call_at(loop.time() + 0.01, lambda: seen.append(variable.get()), context=other)
            variable.set("later")
            while len(seen) < 2:
                await turn()

        run(loop, main())
        assert seen == ["caller's", "given"]


class TestTimes:
    def test_no_timer_is_early(self, loop: asyncio.AbstractEventLoop) -> None:
        late: list[float] = []

        def look(when: float) -> None:
            late.append(loop.time() - when)

        async def main() -> None:
            for n in range(300):
                when = loop.time() + n * 0.00037
                loop.call_at(when, look, when)
            while len(late) < 300:
                await turn()

        run(loop, main())
        assert min(late) >= 0.0

    @pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
    @given(delays=st.lists(st.integers(0, 30), min_size=1, max_size=40), cancelled=st.sets(st.integers(0, 39)))
    @settings(max_examples=30)
    def test_timers_run_as_from_a_sorted_list(
        self, factory: Callable[[], asyncio.AbstractEventLoop], delays: list[int], cancelled: set[int]
    ) -> None:
        """Delays in steps of four microseconds, of a millisecond on uvloop. The order of equal times is undefined."""
        loop = factory()
        step = 4e-6 if factory is loops.new_event_loop else 1e-3
        expected = sorted(delay for number, delay in enumerate(delays) if number not in cancelled)
        ran: list[int] = []
        early: list[int] = []

        def note(delay: int, when: float) -> None:
            ran.append(delay)
            if loop.time() < when:
                early.append(delay)

        async def main() -> bool:
            start = loop.time() + 0.02
            handles = []
            for delay in delays:
                when = start + delay * step
                handles.append(loop.call_at(when, note, delay, when))
            for number, handle in enumerate(handles):
                if number in cancelled:
                    handle.cancel()
            in_time = loop.time() < start
            while len(ran) < len(expected):
                await turn()
            return in_time

        try:
            assume(loop.run_until_complete(main()))  # the machine was not busy: no time had passed before it was set
        finally:
            loop.close()
        assert (ran, early) == (expected, [])

    def test_timers_whose_time_has_passed_run_in_the_order_of_the_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        ran: list[int] = []

        async def main() -> None:
            now = loop.time()
            for n in range(5):
                loop.call_at(now - n, ran.append, n)
            while len(ran) < 5:
                await turn()

        run(loop, main())
        assert ran == [0, 1, 2, 3, 4]

    def test_timer_of_no_delay_runs_before_one_of_a_millisecond(self, loop: asyncio.AbstractEventLoop) -> None:
        ran: list[float] = []

        async def main() -> None:
            in_time = False  # on a busy machine the first timer is due when the others are set
            while not in_time:
                ran.clear()
                start = loop.time()
                for delay in (0.001, 0.0, -1.0):
                    loop.call_later(delay, ran.append, delay)
                in_time = loop.time() < start + 0.001
                while len(ran) < 3:
                    await turn()

        run(loop, main())
        assert ran[-1] == 0.001

    def test_thousands_of_timers_run(self, loop: asyncio.AbstractEventLoop) -> None:
        async def main() -> list[int]:
            return await asyncio.gather(*(asyncio.sleep(n % 100 * 0.001, n) for n in range(5000)))

        assert loop.run_until_complete(main()) == list(range(5000))
        assert timers(loop) == 0


class TestFaults:
    def test_callback_that_raises_goes_to_the_exception_handler(self, loop: asyncio.AbstractEventLoop) -> None:
        seen: list[dict[str, object]] = []
        loop.set_exception_handler(lambda _, context: seen.append(context))

        async def main() -> None:
            loop.call_later(0.0, int, "x")
            loop.call_later(0.001, int, "y")
            while len(seen) < 2:
                await turn()

        run(loop, main())
        assert [str(context["exception"])[-3:] for context in seen] == ["'x'", "'y'"]
        assert all("Exception in callback" in str(context["message"]) for context in seen)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_request_to_exit_leaves_the_loop_and_other_timers_run_later(
        self, loop: asyncio.AbstractEventLoop, error: type[BaseException]
    ) -> None:
        ran: list[str] = []

        def leave() -> None:
            raise error

        loop.call_later(0.0, leave)
        loop.call_later(0.01, ran.append, "other")
        with pytest.raises(error):
            loop.run_forever()  # which may take longer than the other timer

        async def main() -> None:
            while not ran:
                await turn()

        run(loop, main())
        assert ran == ["other"]

    def test_closed_loop_forgets_its_timers_and_takes_none(self, loop: asyncio.AbstractEventLoop) -> None:
        class Payload:
            pass

        payload = Payload()
        gone = weakref.ref(payload)
        loop.call_later(30.0, print, payload)
        handle = loop.call_later(30.0, print)
        del payload
        loop.close()
        loop.close()
        assert (timers(loop), gone()) == (0, None)
        handle.cancel()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Event loop is closed"):
                loop.call_at(math.inf, print)
            with pytest.raises(RuntimeError, match="Event loop is closed"):
                loop.call_later(1.0, print)

    @pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
    def test_closed_loop_is_let_go_at_once(self, factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        gc.disable()
        try:
            loop = factory()
            gone = weakref.ref(loop)
            loop.run_until_complete(asyncio.sleep(0.001))
            loop.call_later(30.0, print)
            loop.close()
            del loop
            assert gone() is None
        finally:
            gc.enable()

    def test_running_loop_is_not_closed_and_keeps_its_timers(self, loop: asyncio.AbstractEventLoop) -> None:
        async def main() -> None:
            loop.call_later(30.0, print)
            before = timers(loop)
            with pytest.raises(RuntimeError, match="running"):
                loop.close()
            assert timers(loop) == before

        run(loop, main())

    def test_missing_uvloop_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loops._uvloop_class.cache_clear()
        monkeypatch.setitem(sys.modules, "uvloop", None)
        with pytest.raises(ModuleNotFoundError, match="pip install uvloop"):
            loops.new_uvloop()

    def test_import_needs_no_uvloop(self) -> None:
        code = "import sys, purgatory.loops; purgatory.loops.new_event_loop().close(); print('uvloop' in sys.modules)"
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


class TestDebugMode:
    def test_call_from_another_thread_is_refused(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_debug(True)
        errors: list[BaseException] = []

        def call() -> None:
            try:
                loop.call_later(1.0, print)
            except RuntimeError as error:
                errors.append(error)

        async def main() -> None:
            thread = threading.Thread(target=call)
            thread.start()
            while thread.is_alive():
                await turn()

        run(loop, main())
        assert ["Non-thread-safe operation" in str(error) for error in errors] == [True]

    def test_callback_must_be_callable_and_no_coroutine(self) -> None:
        """uvloop does not look at the callback of a timer."""

        async def coroutine() -> None:
            pass

        loop = loops.new_event_loop()
        loop.set_debug(True)
        with pytest.raises(TypeError, match=r"a callable object was expected by call_at\(\), got 5"):
            loop.call_later(1.0, 5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"coroutines cannot be used with call_at\(\)"):
            loop.call_later(1.0, coroutine)
        assert timers(loop) == 0
        loop.close()

    def test_handle_says_where_it_was_made(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_debug(True)
        for handle in (loop.call_later(30.0, print), loop.call_at(30.0, print)):
            assert f"created at {__file__}:" in repr(handle)
            handle.cancel()
            assert f"created at {__file__}:" in repr(handle)

    def test_slow_callback_is_named(self, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture) -> None:
        loop.set_debug(True)
        loop.slow_callback_duration = 0.0

        def slow_callback() -> None:
            loop.stop()

        loop.call_later(0.001, slow_callback)
        with caplog.at_level(logging.WARNING, "asyncio"):
            loop.run_forever()
        assert any(
            "slow_callback" in record.getMessage() and "took" in record.getMessage() for record in caplog.records
        )


class TestPrograms:
    """The base loop does everything else as before."""

    def test_timeouts_and_task_groups_work_on_the_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        async def main() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.01)
            async with asyncio.timeout(30) as timeout, asyncio.TaskGroup() as group:
                for n in range(100):
                    group.create_task(asyncio.sleep(n * 0.0001))
                timeout.reschedule(loop.time() + 60)
            with anyio.move_on_after(0.01) as scope:
                await anyio.sleep_forever()
            assert scope.cancelled_caught

        run(loop, main())
        assert timers(loop) == 0

    def test_signal_handlers_are_called_on_the_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        async def main() -> None:
            seen = asyncio.Event()
            loop.add_signal_handler(signal.SIGUSR1, seen.set)
            loop.call_later(0.001, os.kill, os.getpid(), signal.SIGUSR1)
            await seen.wait()
            assert loop.remove_signal_handler(signal.SIGUSR1)

        run(loop, main())

    def test_subprocesses_can_be_waited_for_with_a_timeout(self, loop: asyncio.AbstractEventLoop) -> None:
        async def main() -> None:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "print(input())", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.01)
            output, _ = await process.communicate(b"hello\n")
            assert output.split() == [b"hello"]

        asyncio.set_event_loop(loop)  # the child watcher of CPython 3.11 wants one
        try:
            run(loop, main())
        finally:
            asyncio.set_event_loop(None)

    def test_sockets_and_threads_work_on_the_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        async def main() -> None:
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            async with server:
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b"hello\n")
                async with asyncio.timeout(60):
                    assert await reader.read() == b"hello\n"
                writer.close()
            await asyncio.to_thread(time.sleep, 0.001)

        run(loop, main())
        loop.run_until_complete(loop.shutdown_default_executor())
