"""Promise 13: callbacks may call anything; everything else has one door, and calls through another one are refused."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, Final

import pytest
import uvloop

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    IdleTracker,
    PurgatoryError,
    PurgatoryMisuse,
    ThresholdPurgatory,
    VersionedValues,
    VirtualClock,
    WheelTimer,
    lowlevel,
)
from tests.support.cores import in_c
from tests.support.invariants import check_purgatory, check_timer
from tests.support.operations import FaultLog, Flag, Note, turn, wait

Coroutines = list[Coroutine[Any, Any, str]]
LOOPS: Final[dict[str, Any]] = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
RESULT: Final = "result of flag"
who: Final[ContextVar[str]] = ContextVar("who", default="nobody")


class Noted(Flag):
    """Notes the calls of `cancel` and `on_undelivered`, with their thread and context."""

    def __init__(self) -> None:
        super().__init__(60.0)
        self.notes: list[tuple[str, int, str]] = []

    def cancel(self) -> bool:
        self.on_undelivered("cancel")
        return super().cancel()

    def on_undelivered(self, result: str) -> None:
        self.notes.append((result, threading.get_ident(), who.get()))


def watch(purgatory: DelayedOperationPurgatory, key: object = "key") -> Noted:
    return purgatory.try_complete_else_watch(Noted(), [key])


def started(operation: Noted) -> Coroutine[Any, Any, str]:
    coroutine = wait(operation)
    coroutine.send(None)
    return coroutine


def throw(error: type[BaseException], coroutines: Coroutines) -> None:
    with pytest.raises(error):
        coroutines.pop().throw(error())


def collect(coroutines: Coroutines) -> None:
    cycle: list[object] = [coroutines.pop()]
    cycle.append(cycle)
    del cycle
    gc.collect()


def in_a_thread(call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call).result()


CLOSINGS: Final[dict[str, Callable[[Coroutines], object]]] = {
    "close()": lambda coroutines: coroutines.pop().close(),
    "throw(GeneratorExit)": partial(throw, GeneratorExit),
    "dropped": lambda coroutines: coroutines.clear(),
    "collected": collect,
    "close() in a thread": lambda coroutines: in_a_thread(coroutines.pop().close),
    "dropped in a thread": lambda coroutines: in_a_thread(coroutines.clear),
    "collected in a thread": lambda coroutines: in_a_thread(partial(collect, coroutines)),
}
STATES: Final[dict[str, tuple[Callable[[Any, Any, Any], object], str | None]]] = {
    # What happens to the purgatory and the operation before and after the close, and what the turn after it calls.
    "pending": (lambda _, held, close: close(), "cancel"),
    "completed": (lambda _, held, close: (held.force_complete(), close()), RESULT),
    "completed before the turn": (lambda _, held, close: (close(), held.force_complete()), RESULT),
    "completing": (lambda _, held, close: (vars(held).update(then=close), held.force_complete()), RESULT),
    "purgatory closed": (lambda purgatory, _, close: (purgatory.close(), close()), RESULT),
    "purgatory closed before the turn": (lambda purgatory, _, close: (close(), purgatory.close()), RESULT),
    "cancelled": (lambda _, held, close: (Flag.cancel(held), close()), None),
    "taken before the turn": (
        lambda _, held, close: (held.force_complete(), close(), lowlevel.take_result(held)),
        None,
    ),
}


class TestClosedCoroutines:
    """A coroutine is closed while it awaits an operation."""

    @pytest.mark.parametrize("way", CLOSINGS)
    @pytest.mark.parametrize("state", STATES)
    async def test_it_leaves_once_in_the_next_iteration_and_in_an_empty_context(self, state: str, way: str) -> None:
        act, called = STATES[state]
        async with DelayedOperationPurgatory() as purgatory:
            operation = watch(purgatory)
            coroutines = [started(operation)]
            asyncio.get_running_loop().set_debug(True)  # where another thread cannot call_soon()
            who.set("the closer")
            act(purgatory, operation, partial(CLOSINGS[way], coroutines))
            assert (operation.notes, coroutines) == ([], []), "nothing is called inside of the close"
            for _ in range(2):
                await turn()
                assert operation.notes == ([(called, threading.get_ident(), "nobody")] if called else [])
            assert operation.done()
            check_purgatory(purgatory)

    @pytest.mark.parametrize("way", CLOSINGS)
    @pytest.mark.parametrize("loop", LOOPS)
    def test_nothing_happens_when_its_loop_is_closed(self, loop: str, way: str) -> None:
        async def begin() -> tuple[Noted, Coroutines]:
            operation = watch(purgatory)
            return operation, [started(operation)]

        purgatory = DelayedOperationPurgatory()
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            operation, coroutines = runner.run(begin())
        CLOSINGS[way](coroutines)
        assert (operation.outcome, purgatory.num_delayed) == (None, 1)
        check_purgatory(purgatory)
        purgatory.close()
        assert (operation.outcome, operation.notes) == ("closed", [])

    @pytest.mark.parametrize("way", CLOSINGS)
    async def test_it_counts_as_awaiting_until_its_turn(self, way: str) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            first, second = watch(purgatory), watch(purgatory)
            coroutines = [started(first), started(first)]
            CLOSINGS[way]([coroutines.pop()])
            throw(asyncio.CancelledError, coroutines)
            assert first.outcome is None, "the closed one still awaits"
            await turn()
            assert first.cancelled(), "the turn cancels it"
            task = asyncio.ensure_future(wait(second))
            await turn()
            CLOSINGS[way]([started(second)])
            await turn()
            assert second.outcome is None, "the other one keeps it"
            task.cancel()
            await asyncio.wait([task])
            assert [len(each.notes) for each in (first, second)] == [1, 1]

    async def test_an_asynchronous_generator_dropped_while_it_awaits_an_operation_leaves_on_the_loop(self) -> None:
        async def generate() -> Any:
            yield await operation

        errors: list[str] = []  # of the task of the loop's hook, for CPython refuses aclose() there
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
        async with DelayedOperationPurgatory() as purgatory:
            operation, generator = watch(purgatory), generate()
            step = anext(generator).__await__()
            step.send(None)
            who.set("the closer")
            del generator, step
            assert operation.notes == []
            for _ in range(3):
                await turn()
            assert operation.notes == [("cancel", threading.get_ident(), "nobody")]
            assert errors in ([], ["aclose(): asynchronous generator is already running"])

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
    async def test_an_eager_task_may_begin_to_await_inside_of_a_callback(self) -> None:
        begin = partial(vars(asyncio)["eager_task_factory"], asyncio.get_running_loop())
        async with DelayedOperationPurgatory() as purgatory:
            operations = first, second, third = [watch(purgatory, n) for n in range(3)]
            tasks: list[asyncio.Task[str]] = []
            first.then = lambda: tasks.extend(begin(wait(each)) for each in operations)
            first.force_complete()
            assert begin(wait(first)).done(), "a finished operation takes no iteration"
            tasks[2].cancel()
            second.force_complete()
            assert await asyncio.gather(*tasks[:2]) == [RESULT] * 2
            await asyncio.wait(tasks[2:])
            assert third.cancelled()
            assert [len(each.notes) for each in operations] == [0, 0, 1]


WATCH: Final = "loop.call_soon_threadsafe(purgatory.try_complete_else_watch, operation, keys)"
ACLOSE: Final = "asyncio.run_coroutine_threadsafe(purgatory.aclose(), loop)"
FAIL: Final = "operation.fail(KeyError()), getattr(operation, 'exception')()"
FAIL_ALL: Final = "purgatory.fail_all(KeyError()), getattr(operation, 'exception')()"
CHANGING: Final[dict[str, str]] = {
    # Each call that changes something, and what to call instead in another thread.
    "purgatory.try_complete_else_watch(Flag(60.0), ['key'])": WATCH,
    "purgatory.wait_for(lambda: False, 'key')": "asyncio.run_coroutine_threadsafe()",
    "begin(purgatory.__aenter__())": WATCH,
    "purgatory.check_and_complete('key')": "check_and_complete_threadsafe()",
    "purgatory.check_and_complete('key', 1)": "check_and_complete_threadsafe()",
    "purgatory.check_and_complete_soon('key')": "check_and_complete_threadsafe()",
    "purgatory.cancel_for_key('key')": "loop.call_soon_threadsafe(purgatory.cancel_for_key, key)",
    "purgatory.complete_all()": "loop.call_soon_threadsafe(purgatory.complete_all)",
    "purgatory.cancel_all()": "loop.call_soon_threadsafe(purgatory.cancel_all)",
    FAIL_ALL: "loop.call_soon_threadsafe(purgatory.fail_all, exception)",
    "purgatory.close()": "loop.call_soon_threadsafe(purgatory.close)",
    "begin(purgatory.aclose())": ACLOSE,
    "purgatory.add_listener(str)": "loop.call_soon_threadsafe(purgatory.add_listener, listener)",
    "purgatory.remove_listener(repr)": "loop.call_soon_threadsafe(purgatory.remove_listener, listener)",
    "purgatory.check_thread('f(x)')": "loop.call_soon_threadsafe(f, x)",
    "operation.force_complete()": "loop.call_soon_threadsafe(operation.force_complete)",
    "operation.cancel()": "loop.call_soon_threadsafe(operation.cancel)",
    FAIL: "loop.call_soon_threadsafe(operation.fail, exception)",
    "operation.reschedule(7200.0)": "loop.call_soon_threadsafe(operation.reschedule, timeout)",
    "begin(operation)": "asyncio.run_coroutine_threadsafe()",
    "operation.as_future()": "asyncio.run_coroutine_threadsafe()",
    "lowlevel.add_waiter(operation, waiter)": "loop.call_soon_threadsafe(add_waiter, operation, waiter)",
    "lowlevel.remove_waiter(operation, waiter)": "loop.call_soon_threadsafe(",
    "lowlevel.close_operation(operation)": "loop.call_soon_threadsafe(",
    "timer.add(note, 1e9)": "loop.call_soon_threadsafe(timer.add, task, deadline)",
    "timer.add_later(note, 1e9)": "loop.call_soon_threadsafe(timer.add_later, task, delay)",
    "timer.cancel(task)": "loop.call_soon_threadsafe(timer.cancel, task)",
    "timer.reschedule(task, 1e9)": "loop.call_soon_threadsafe(timer.reschedule, task, deadline)",
    "timer.reschedule_later(task, 1e9)": "loop.call_soon_threadsafe(timer.reschedule_later, task, delay)",
    "timer.call_at(1e9, int)": "loop.call_soon_threadsafe(timer.call_at, when, callback)",
    "timer.call_later(60.0, int)": "loop.call_soon_threadsafe(timer.call_later, delay, callback)",
    "timer.close()": "loop.call_soon_threadsafe(timer.close)",
    "handle.cancel()": "loop.call_soon_threadsafe(",
    "thresholds.reach(7, 60.0)": WATCH,
    "thresholds.advance(11)": "advance_threadsafe()",
    "thresholds.advance_soon(11)": "advance_threadsafe()",
    "thresholds.complete_all()": "loop.call_soon_threadsafe(purgatory.complete_all)",
    "thresholds.fail_all(KeyError()), reach.exception()": "loop.call_soon_threadsafe(purgatory.fail_all, exception)",
    "thresholds.close()": "loop.call_soon_threadsafe(purgatory.close)",
    "begin(thresholds.aclose())": ACLOSE,
    "values.set('key', 2)": "loop.call_soon_threadsafe(values.set, key, value)",
    "values.update({'new': 2})": "loop.call_soon_threadsafe(values.update, values)",
    "values.delete('key')": "loop.call_soon_threadsafe(values.delete, key)",
    "values.changed({'new': 0}, 60.0)": WATCH,
    "values.until('new', bool, 60.0)": WATCH,
    "values.close()": "loop.call_soon_threadsafe(purgatory.close)",
    "begin(values.aclose())": ACLOSE,
    "tracker.touch('key')": "loop.call_soon_threadsafe(tracker.touch, key)",
    "tracker.touch('key', 1.0)": "loop.call_soon_threadsafe(tracker.touch, key)",
    "tracker.touch('new')": "loop.call_soon_threadsafe(tracker.touch, key)",
    "tracker.discard('key')": "loop.call_soon_threadsafe(tracker.discard, key)",
    "tracker.close()": "loop.call_soon_threadsafe(tracker.close)",
    "idle.discard('key')": "loop.call_soon_threadsafe(tracker.discard, key)",
    "begin(idle.__anext__())": "asyncio.run_coroutine_threadsafe(",
}
NEED_A_LOOP: Final = ("begin(operation)", "operation.as_future()", "begin(idle.__anext__())")
FREE: Final[dict[str, tuple[type, str]]] = {
    # The other public names of each class: what changes nothing, the doors, callbacks.
    "purgatory": (
        DelayedOperationPurgatory,
        "closed name num_delayed statistics timer watched watched_keys each_watched_key is_watched watching"
        " check_and_complete_threadsafe",
    ),
    "operation": (
        DelayedOperation,
        "done expired cancelled result exception outcome timeout deadline try_complete on_complete on_expiration"
        " on_undelivered on_done add_done_callback",
    ),
    "timer": (
        WheelTimer,
        "clock tick time wheels statistics new_slice note_slice call_exception_handler",
    ),
    "thresholds": (ThresholdPurgatory, "value num_waiting purgatory advance_threadsafe"),
    "values": (VersionedValues, "num_waiting purgatory get"),
    "tracker": (IdleTracker, "timeout timer"),
}
READS: Final = (
    "[(each.statistics(), each.num_delayed, each.watched, each.watched_keys(), list(each.each_watched_key()),"
    "each.watching('key'), each.is_watched('key'), each.closed, repr(each), each.timer.wheels, each.timer.statistics())"
    "for each in (purgatory, reaches, changes)], operation.done(), operation.outcome, operation.deadline,"
    "timer.statistics(), handle.when(), handle.cancelled(), waiter.done(), thresholds.value, values.get('key'),"
    "list(tracker), tracker._tracked['key'].seen, tracker.timer.statistics(), list(idle._idle), finished.outcome,"
    "repr(operation).partition('due')[0], "
    "list(map(repr, (finished, timer, handle, thresholds, values, tracker, idle))),"
    "purgatory._owner.listeners and purgatory._owner.listeners.all"
)
ON_FINISHED: Final = {
    "finished.result()": RESULT,
    "finished.exception()": None,
    "finished.force_complete()": False,
    "finished.cancel()": False,
    "asyncio.run(wait(finished))": RESULT,
    "lowlevel.add_waiter(finished, waiter)": False,
    "lowlevel.take_result(finished)": RESULT,
    "lowlevel.close_operation(finished)": False,
}


def begin(awaitable: Awaitable[object]) -> None:
    """Await up to the first pause."""
    with suppress(StopIteration):
        next(iter(awaitable.__await__()))


class World(SimpleNamespace):
    """One object of each class, with something that waits in it."""

    @classmethod
    async def make(cls, clock: VirtualClock | None = None) -> "World":
        purgatory, reaches, changes = (DelayedOperationPurgatory(clock=clock) for _ in range(3))
        purgatory.add_listener(repr)
        operation, finished = (purgatory.try_complete_else_watch(Flag(60.0), ["key"]) for _ in range(2))
        operation.ready = finished.force_complete()
        waiter = asyncio.get_running_loop().create_future()
        lowlevel.add_waiter(operation, waiter)
        timer, task, note = WheelTimer(clock), Note(VirtualClock()), Note(VirtualClock())
        timer.add(task, 1e6)
        handle = timer.call_later(60.0, int)
        thresholds, values = ThresholdPurgatory(0, reaches), VersionedValues[str, int](0, changes)
        reach = thresholds.reach(10, 60.0)
        values.set("key", 1)
        values.changed({"key": 1}, 60.0)
        tracker, idle = (IdleTracker[str](timeout, clock=clock) for timeout in (60.0, 0.001))
        tracker.touch("key")
        idle.touch("key")
        if clock is not None:
            clock.advance(0.01)
        while "key" in idle:
            await turn()
        return cls(**{name: value for name, value in locals().items() if name != "cls"})

    def call(self, code: str) -> object:
        return eval(code, globals(), vars(self))

    async def call_on_a_loop(self, code: str) -> object:
        return self.call(code)

    def check(self) -> None:
        for purgatory in (self.purgatory, self.reaches, self.changes):
            check_purgatory(purgatory)
        for timer in (self.timer, self.tracker.timer, self.idle.timer):
            check_timer(timer)

    async def end(self) -> None:
        """All of it still works."""
        self.check()
        assert self.operation.force_complete()
        assert self.waiter.done()
        for each in (self.purgatory, self.reaches, self.changes):
            await each.aclose()
        for each in (self.timer, self.tracker, self.idle):
            each.close()


class TestThreads:
    @pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
    @pytest.mark.parametrize("place", ["a thread", "a loop in a thread", "another loop in this thread"])
    @pytest.mark.parametrize("code", CHANGING)
    @pytest.mark.parametrize("loop", LOOPS)
    def test_a_call_that_changes_something_is_refused_in_the_wrong_one(
        self, loop: str, code: str, place: str, debug: bool
    ) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop], debug=debug) as runner:
            world = runner.run(World.make())
            before = world.call(READS)
            expected = f" must be called from its event loop's thread: from other threads use {CHANGING[code]}"
            with pytest.raises(PurgatoryMisuse) as refused:
                if place == "a thread":
                    runner.run(asyncio.to_thread(world.call, code))
                elif place == "a loop in a thread":
                    runner.run(asyncio.to_thread(asyncio.run, world.call_on_a_loop(code), debug=debug))
                else:
                    expected = " belongs to another event loop than the running one: make one for each loop"
                    asyncio.run(world.call_on_a_loop(code), debug=debug)
            assert world.call(READS) == before
            assert expected in str(refused.value)
            runner.run(world.end())

    @pytest.mark.parametrize("name", FREE)
    def test_each_public_method_is_known_to_change_something_or_to_be_free(self, name: str) -> None:
        cls, free = FREE[name]
        public = {method for method in dir(cls) if not method.startswith("_")}
        changing = {method for method in public if f"{name}.{method}(" in " ".join(CHANGING)}
        assert public == changing | set(free.split())
        assert not changing & set(free.split())

    @pytest.mark.parametrize("place", ["a handler of the loop", "the last thread of a stopped loop", "a virtual clock"])
    @pytest.mark.parametrize("code", CHANGING)
    @pytest.mark.parametrize("loop", LOOPS)
    def test_everything_may_be_called_in_the_right_one(self, loop: str, code: str, place: str) -> None:
        async def call_in_a_handler() -> None:
            loop = asyncio.get_running_loop()
            called = loop.create_future()
            loop.add_signal_handler(signal.SIGUSR1, lambda: called.set_result(world.call(code)))
            loop.set_exception_handler(lambda _, context: called.set_exception(context["exception"]))
            os.kill(os.getpid(), signal.SIGUSR1)
            await called
            loop.remove_signal_handler(signal.SIGUSR1)

        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            world = runner.run(World.make(VirtualClock() if place == "a virtual clock" else None))
            if place == "a handler of the loop":
                runner.run(call_in_a_handler())
            elif place == "a virtual clock":
                runner.run(asyncio.to_thread(asyncio.run, world.call_on_a_loop(code)))
            elif code not in NEED_A_LOOP:
                world.call(code)
            world.check()

    @pytest.mark.parametrize("way", ["cancel", "reschedule"])
    async def test_the_timer_of_another_loop_takes_no_task_away(self, way: str) -> None:
        timer, task = WheelTimer(), Note(VirtualClock())
        timer.add_later(task, 30.0)

        async def steal() -> None:
            other = WheelTimer()
            other.call_later(30.0, int)  # it belongs to this loop
            if way == "cancel":
                other.cancel(task)
            else:
                other.reschedule(task, other.time())

        with pytest.raises(PurgatoryMisuse, match="must be called from its event loop's thread"):
            await asyncio.to_thread(asyncio.run, steal())
        with pytest.raises(PurgatoryMisuse, match="must be called from its event loop's thread"):
            await asyncio.to_thread(WheelTimer().cancel, task)
        assert len(timer) == 1
        timer.close()

    async def test_reads_and_calls_on_finished_operations_are_free(self) -> None:
        world = await World.make()
        before = world.call(READS)
        for code in (READS, *ON_FINISHED):
            assert await asyncio.to_thread(world.call, code) == ON_FINISHED.get(code, before), code
        assert world.call(READS) == before
        await world.end()

    async def test_another_one_may_read_while_operations_come_and_go(self) -> None:
        def read() -> int:
            reads = 0
            while reads == 0 or not is_over:
                assert [purgatory.statistics(), purgatory.watched_keys(), purgatory.watching(7), repr(purgatory)]
                reads += 1
            return reads

        is_over: list[bool] = []
        async with DelayedOperationPurgatory(purge_interval=10) as purgatory:
            with ThreadPoolExecutor(1) as thread:
                reading = thread.submit(read)
                for n in range(5000):
                    purgatory.try_complete_else_watch(Flag(0.0 if n % 2 else 60.0), [n % 50]).ready = True
                    purgatory.check_and_complete((n - 10) % 50)
                    if n % 50 == 0:
                        await turn()
                is_over.append(True)
            assert reading.result() > 0
            check_purgatory(purgatory)

    async def test_the_loop_that_is_given_as_the_clock_is_known_before_the_first_operation(self) -> None:
        purgatory = DelayedOperationPurgatory(clock=asyncio.get_running_loop())
        for call in (purgatory.close, purgatory.cancel_all, partial(purgatory.add_listener, repr)):
            with pytest.raises(PurgatoryMisuse, match=r"use loop\.call_soon_threadsafe\(purgatory\."):
                await asyncio.to_thread(call)
            assert not purgatory.closed


PROGRAM: Final = """
import asyncio, collections, signal, sys, uvloop
from purgatory import DelayedOperation, DelayedOperationPurgatory

place, loop_factory = sys.argv[1], {"asyncio": None, "uvloop": uvloop.new_event_loop}[sys.argv[2]]
interrupts, completions, purgatory = [], collections.Counter(), DelayedOperationPurgatory()

def at(here):
    if len(interrupts) == 1 and here == place:
        interrupts.append(here)
        signal.raise_signal(signal.SIGINT)

class Wait(DelayedOperation[None]):
    ready = False
    def try_complete(self):
        at("try_complete")
        return self.ready and self.force_complete()
    def on_complete(self):
        completions[self] += 1
        at("on_complete")
    def on_expiration(self):
        at("on_expiration")

async def main():
    async with purgatory:
        purgatory.add_listener(lambda _: at("listener"))
        waits = [purgatory.try_complete_else_watch(Wait(0.5 + n / 1000 if n else None), [n % 3]) for n in range(60)]
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        try:
            await waits[0]
        finally:
            interrupts.append("first")
            asyncio.get_running_loop().call_soon(at, "callback")
            for wait in waits[30::2]:
                wait.ready = True
            purgatory.check_and_complete(1)
            await waits[-1]

try:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
finally:
    print(len(interrupts), max(completions.values()), purgatory.num_delayed, len(purgatory.timer))
"""


class TestInterrupts:
    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("place", ["callback", "try_complete", "on_complete", "on_expiration", "listener"])
    def test_a_second_one_ends_the_program_and_nothing_completes_twice(self, place: str, loop: str) -> None:
        program = subprocess.run([sys.executable, "-c", PROGRAM, place, loop], capture_output=True, text=True)
        assert program.returncode == -signal.SIGINT, program.stderr
        assert program.stderr.rstrip().endswith("KeyboardInterrupt")
        assert program.stdout.split() == ["2", "1", "0", "0"]


class Key(str):
    """A key that makes a call when its `__hash__` or `__eq__` has been called `left` times."""

    __slots__ = ()
    left = -1
    call: Callable[[], object] = int

    def __hash__(self) -> int:
        Key.left -= 1
        if Key.left == -1:
            Key.call()
        return len(self)

    def __eq__(self, other: object) -> bool:
        hash(self)
        return super().__eq__(other)


OF_KEYS: Final[dict[str, Callable[[DelayedOperationPurgatory], object]]] = {
    "watch": lambda purgatory: purgatory.try_complete_else_watch(Flag(1.0), [Key("a"), Key("b"), Key("a new one")]),
    "check": lambda purgatory: purgatory.check_and_complete(Key("a")),
    "check with a limit": lambda purgatory: purgatory.check_and_complete(Key("b"), 1),
    "check soon": lambda purgatory: purgatory.check_and_complete_soon(Key("a")),
    "cancel_for_key": lambda purgatory: purgatory.cancel_for_key(Key("a")),
    "cancel_all": lambda purgatory: purgatory.cancel_all(),
    "close": lambda purgatory: purgatory.close(),
}


@in_c
@pytest.mark.parametrize("inner", OF_KEYS)
@pytest.mark.parametrize("outer", OF_KEYS)
def test_a_key_that_calls_the_purgatory_is_refused_or_survived(outer: str, inner: str) -> None:
    for left in count():
        clock, Key.left = FaultLog(), -1
        purgatory = DelayedOperationPurgatory(clock=clock, purge_interval=0)
        operations = [purgatory.try_complete_else_watch(Flag(2.0), [Key(name)]) for name in "abcab"]
        operations[1].cancel()
        operations[3].ready = True
        Key.left, Key.call = left, partial(OF_KEYS[inner], purgatory)
        with suppress(PurgatoryError):
            OF_KEYS[outer](purgatory)
        clock.advance(0)
        if Key.left >= 0:
            break
        clock.advance(5.0)
        assert all(operation.done() for operation in operations)
        assert all(isinstance(error, PurgatoryError) for error in clock.exceptions)
        purgatory.close()
        check_purgatory(purgatory)
        assert (purgatory.num_delayed, purgatory.watched, len(purgatory.timer)) == (0, 0, 0)
        assert sys.exc_info()[1] is None, "no exception is left behind in the thread"


def weakly(call: Callable[[], object]) -> None:
    died = Flag()
    reference = weakref.ref(died, lambda _: call())
    del died
    assert reference() is None


def by_signal(call: Callable[[], object]) -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: call())
    signal.raise_signal(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)


class TestFinalizersAndHandlers:
    """`check_and_complete_threadsafe` is their door."""

    @pytest.mark.parametrize(
        "act",
        [lambda call: type("Finalized", (), {"__del__": lambda _: call()})() and None, weakly, by_signal, in_a_thread],
        ids=["__del__", "weakref", "signal.signal", "a thread"],
    )
    @pytest.mark.parametrize("place", ["__hash__", "try_complete", "on_complete", "listener", "on_undelivered"])
    async def test_a_call_at_an_odd_point_is_done_in_a_later_iteration(
        self, place: str, act: Callable[[Callable[[], object]], object]
    ) -> None:
        def at(here: str) -> None:
            if here == place:
                act(partial(purgatory.check_and_complete_threadsafe, "target"))
                called.append(target.done())

        class Odd(Noted):
            def __hash__(self) -> int:
                at("__hash__")
                return 1

            def try_complete(self) -> bool:
                at("try_complete")
                return super().try_complete()

            def on_undelivered(self, result: str) -> None:
                at("on_undelivered")

        async with DelayedOperationPurgatory() as purgatory:
            called: list[bool] = []
            target, odd = watch(purgatory, "target"), Odd()
            target.ready = True
            purgatory.add_listener(lambda _: at("listener"))
            odd.then = lambda: at("on_complete")
            purgatory.try_complete_else_watch(odd, [odd])
            coroutines, odd.ready = [started(odd)], True
            purgatory.check_and_complete(odd)
            throw(asyncio.CancelledError, coroutines)
            assert called
            assert not any([*called, target.done()])
            await turn()
            await turn()
            assert target.result() == RESULT
            check_purgatory(purgatory)

    async def test_a_call_inside_of_a_slice_of_the_mailbox_is_done_with_the_rest(self) -> None:
        class Asking(str):
            __slots__ = ()

            def __hash__(self) -> int:
                if asks:
                    purgatory.check_and_complete_threadsafe(asks.pop())
                return super().__hash__()

        asks: list[str] = []
        async with DelayedOperationPurgatory() as purgatory:
            operation = watch(purgatory, "target")
            operation.ready = True
            purgatory.check_and_complete_threadsafe(Asking("key"))
            for number in range(3000):
                purgatory._queue.mailbox.add(number)
            asks.append("target")
            await asyncio.wait_for(operation, 30)

    async def test_a_call_that_is_interrupted_loses_no_other_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: object, **__: object) -> None:
            patched.undo()  # once
            purgatory.check_and_complete_threadsafe("other")
            raise KeyboardInterrupt

        async with DelayedOperationPurgatory() as purgatory:
            operation = watch(purgatory, "other")
            operation.ready = True
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", interrupt)
                purgatory.check_and_complete_threadsafe("key")
            await turn()
            await turn()
            assert operation.done()

    async def test_an_interrupt_between_two_slices_of_the_mailbox_does_not_shut_the_door(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: object, **__: object) -> None:
            patched.undo()  # once
            raise KeyboardInterrupt

        async with DelayedOperationPurgatory() as purgatory:
            operation = watch(purgatory)
            operation.ready = True
            for number in range(3000):
                purgatory._queue.mailbox.add(number)
            purgatory._queue.mailbox._deliver()
            purgatory._queue._work.cancel()  # so that nothing goes on but what the interrupt leaves
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(asyncio.get_running_loop(), "call_at", interrupt)
                purgatory._queue._work._run()
            purgatory.check_and_complete_threadsafe("key")
            await asyncio.wait_for(operation, 30)
