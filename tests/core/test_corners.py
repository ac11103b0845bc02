"""Corners: abused objects, processes that fork, loops of other libraries, crowded mailboxes, checks with a limit."""

import asyncio
import copy
import gc
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final

import anyio
import pytest
import pytest_asyncio
import trio
from hypothesis import given
from hypothesis import strategies as st

import purgatory as package
from purgatory import (
    Delay,
    DelayedOperation,
    DelayedOperationPurgatory,
    IdleTracker,
    PurgatoryMisuse,
    ThresholdPurgatory,
    VirtualClock,
    WheelTimer,
)
from purgatory.lowlevel import Mailbox, add_waiter, remove_waiter
from tests.support.cores import in_c
from tests.support.invariants import check_whole
from tests.support.operations import FaultLog, Flag, Note, Waiting, turn


class Other(Flag):
    """Another class with the same layout."""


class Abused:
    """A pending operation, its purgatory and clock."""

    def __init__(self) -> None:
        self.clock = FaultLog()
        self.purgatory = DelayedOperationPurgatory(clock=self.clock)
        self.operation = self.purgatory.try_complete_else_watch(Flag(5.0), ["key"])
        self.another = WheelTimer(VirtualClock())

    def check(self) -> None:
        """It still expires in time."""
        self.clock.advance(4.9)
        assert self.operation.outcome is None
        self.clock.advance(0.1)
        assert self.operation.expired()
        assert self.purgatory.num_delayed == 0
        assert not self.clock.faults
        check_whole(self.purgatory.timer, self.purgatory)


REFUSED: Final[dict[str, tuple[type[Exception], Callable[[Abused], object]]]] = {
    "its constructor": (PurgatoryMisuse, lambda it: it.operation.__init__(1.0)),  # type: ignore[misc]
    "the base class's constructor": (PurgatoryMisuse, lambda it: DelayedOperation.__init__(it.operation, 2.0)),
    "copy": (TypeError, lambda it: copy.copy(it.operation)),
    "deepcopy": (TypeError, lambda it: copy.deepcopy(it.operation)),
    "pickle": (TypeError, lambda it: pickle.dumps(it.operation)),
    "copy of the purgatory": (TypeError, lambda it: copy.copy(it.purgatory)),
    "pickle of the purgatory": (TypeError, lambda it: pickle.dumps(it.purgatory)),
    "copy of the timer": (TypeError, lambda it: copy.copy(it.purgatory.timer)),
    "a class of another layout": (TypeError, lambda it: setattr(it.operation, "__class__", int)),
    "hand over again": (
        PurgatoryMisuse,
        lambda it: it.purgatory.try_complete_else_watch(it.operation, ["key"]),
    ),
    "hand over to another": (
        PurgatoryMisuse,
        lambda it: DelayedOperationPurgatory(clock=it.clock).try_complete_else_watch(it.operation, []),
    ),
    "a timer's add": (TypeError, lambda it: it.purgatory.timer.add(it.operation, 1.0)),
    "another timer's add": (TypeError, lambda it: it.another.add(it.operation, 1.0)),
    "another timer's reschedule": (TypeError, lambda it: it.another.reschedule(it.operation, 1.0)),
    "another timer's cancel": (TypeError, lambda it: it.another.cancel(it.operation)),
    "the timer's close": (PurgatoryMisuse, lambda it: it.purgatory.timer.close()),
    "a deletion": (AttributeError, lambda it: delattr(it.operation, "outcome")),
    "an assignment": (AttributeError, lambda it: setattr(it.operation, "outcome", "expired")),
}
HARMLESS: Final[dict[str, Callable[[Abused], object]]] = {
    "another class": lambda it: setattr(it.operation, "__class__", Other),
    "repr": lambda it: repr(it.operation),
}


class TestAbusedOperations:
    @pytest.mark.parametrize("name", REFUSED)
    def test_what_is_refused_changes_nothing(self, name: str) -> None:
        error, abuse = REFUSED[name]
        it = Abused()
        with pytest.raises(error):
            abuse(it)
        it.check()

    @pytest.mark.parametrize("name", HARMLESS)
    def test_what_is_accepted_changes_nothing(self, name: str) -> None:
        it = Abused()
        HARMLESS[name](it)
        it.check()

    def test_an_operation_that_has_ended_is_not_initialized_again(self, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(ready=True), ["key"])
        with pytest.raises(PurgatoryMisuse, match="again"):
            DelayedOperation.__init__(operation, 1.0)
        assert operation.result() == "result of flag"

    def test_a_new_one_may_be_initialized_again(self, clock: FaultLog, purgatory: DelayedOperationPurgatory) -> None:
        operation = Flag(1.0)
        DelayedOperation.__init__(operation, 5.0)
        purgatory.try_complete_else_watch(operation, ["key"])
        clock.advance(4.9)
        assert operation.outcome is None
        clock.advance(0.1)
        assert operation.expired()

    @pytest.mark.parametrize("timeout", [-1.0, "5"])
    def test_a_constructor_that_raises_changes_nothing(self, timeout: Any) -> None:
        operation = Flag(5.0)
        with pytest.raises((TypeError, ValueError)):
            DelayedOperation.__init__(operation, timeout)
        assert operation.timeout == 5.0


CALLS: Final[dict[str, Callable[[Flag], object]]] = {
    "force_complete": lambda operation: operation.force_complete(),
    "cancel": lambda operation: operation.cancel(),
    "done": lambda operation: operation.done(),
    "outcome": lambda operation: operation.outcome,
    "expired": lambda operation: operation.expired(),
    "cancelled": lambda operation: operation.cancelled(),
    "result": lambda operation: operation.result(),
    "exception": lambda operation: operation.exception(),
    "reschedule": lambda operation: operation.reschedule(1.0),
    "fail": lambda operation: operation.fail(ValueError()),
    "await": lambda operation: operation.__await__().send(None),
    "as_future": lambda operation: operation.as_future(),
}


NOT_MADE: Final = (AttributeError, TypeError, PurgatoryMisuse)
"""What the calls of an operation raise whose constructor has not run: the cores differ."""


class TestOperationsWithoutAConstructor:
    @pytest.mark.parametrize("name", CALLS)
    def test_its_calls_are_refused(self, name: str) -> None:
        operation = Flag.__new__(Flag)
        with pytest.raises(NOT_MADE):
            CALLS[name](operation)
        assert repr(operation) == "<Flag without super().__init__()>"

    def test_it_is_not_handed_over(self, purgatory: DelayedOperationPurgatory) -> None:
        with pytest.raises(TypeError, match="super"):
            purgatory.try_complete_else_watch(Flag.__new__(Flag), ["key"])
        assert (purgatory.num_delayed, purgatory.watched) == (0, 0)

    @pytest.mark.parametrize("call", ["fail", "cancel", "force_complete", "reschedule"])
    def test_a_call_before_the_constructor_changes_nothing(
        self, clock: FaultLog, purgatory: DelayedOperationPurgatory, call: str
    ) -> None:
        class Early(Flag):
            def __init__(self) -> None:
                with pytest.raises(NOT_MADE):
                    CALLS[call](self)
                super().__init__(5.0)

        operation = purgatory.try_complete_else_watch(Early(), ["key"])
        assert operation.outcome is None
        clock.advance(5.0)
        assert operation.expired()


def in_a_child(report: Callable[[], object]) -> str:
    """Return what `report()` returns or raises in a child process."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = repr(report())
        except BaseException as error:
            text = type(error).__qualname__
        os.write(writable, text.encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


# CPython 3.12 warns of a fork in a process with threads, which is what others do.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
class TestForks:
    """A child has a copy of the loop, in which nothing runs."""

    @pytest_asyncio.fixture
    async def purgatory(self) -> AsyncIterator[DelayedOperationPurgatory]:
        async with DelayedOperationPurgatory() as purgatory:
            yield purgatory

    @pytest.mark.parametrize(
        "name",
        [
            "check_and_complete",
            "check_and_complete_soon",
            "wait_for",
            "try_complete_else_watch",
            "force_complete",
            "cancel",
            "fail",
            "reschedule",
            "cancel_all",
            "close",
            "timer",
            "tracker",
            "threshold",
        ],
    )
    async def test_a_call_in_the_child_of_a_running_loop_is_refused(
        self, purgatory: DelayedOperationPurgatory, name: str
    ) -> None:
        operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        timer = WheelTimer()
        timer.call_later(60.0, int)
        tracker: IdleTracker[str] = IdleTracker(60.0)
        tracker.touch("key")
        threshold = ThresholdPurgatory(0, purgatory)
        calls: dict[str, Callable[[], object]] = {
            "check_and_complete": lambda: purgatory.check_and_complete("key"),
            "check_and_complete_soon": lambda: purgatory.check_and_complete_soon("key"),
            "wait_for": lambda: purgatory.wait_for(lambda: False, "key"),
            "try_complete_else_watch": lambda: purgatory.try_complete_else_watch(Flag(60.0), ["key"]),
            "force_complete": operation.force_complete,
            "cancel": operation.cancel,
            "fail": lambda: operation.fail(ValueError()),
            "reschedule": lambda: operation.reschedule(1.0),
            "cancel_all": purgatory.cancel_all,
            "close": purgatory.close,
            "timer": lambda: timer.call_later(1.0, int),
            "tracker": lambda: tracker.touch("key"),
            "threshold": lambda: threshold.advance(1),
        }
        assert in_a_child(calls[name]) == "PurgatoryMisuse"
        assert operation.outcome is None
        assert purgatory.check_and_complete("key") == 0
        timer.close()
        tracker.close()

    async def test_the_door_of_other_threads_is_harmless_in_a_child(self, purgatory: DelayedOperationPurgatory) -> None:
        operation = purgatory.try_complete_else_watch(Flag(60.0), ["key"])
        assert in_a_child(lambda: purgatory.check_and_complete_threadsafe("key")) == "None"
        await turn()
        assert operation.outcome is None
        operation.ready = True
        purgatory.check_and_complete_threadsafe("key")
        assert await operation == "result of flag"

    async def test_a_child_may_have_a_loop_and_a_purgatory_of_its_own(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        async def main() -> object:
            async with DelayedOperationPurgatory() as own:
                return await own.wait_for(lambda: False, "key", timeout=0.001)

        assert in_a_child(lambda: asyncio.run(main())) == "False"

    def test_on_a_virtual_clock_a_child_may_call_everything(self, clock: FaultLog) -> None:
        purgatory = DelayedOperationPurgatory(clock=clock)
        operation = purgatory.try_complete_else_watch(Flag(5.0), ["key"])

        def expire() -> object:
            clock.advance(5.0)
            return operation.outcome

        assert in_a_child(expire) == "'expired'"
        assert operation.outcome is None


@dataclass
class Client:
    """A waiter that equals others, as dataclasses do."""

    loop: asyncio.AbstractEventLoop

    def __post_init__(self) -> None:
        self.told = 0

    def done(self) -> bool:
        return False

    def set_result(self, result: None, /) -> None:
        self.told += 1

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop


class TestEqualWaiters:
    @pytest.mark.parametrize("leaving", [0, 1, 2])
    async def test_the_one_that_leaves_is_removed_and_not_an_equal_one(self, leaving: int) -> None:
        loop = asyncio.get_running_loop()
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Delay(30.0), ["key"])
            clients = [Client(loop) for _ in range(3)]
            for client in clients:
                add_waiter(operation, client)
            remove_waiter(operation, clients[leaving])
            operation.force_complete()
            assert [client.told for client in clients] == [number != leaving for number in range(3)]

    async def test_one_that_never_waited_is_refused_although_an_equal_one_waits(self) -> None:
        loop = asyncio.get_running_loop()
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Delay(30.0), ["key"])
            client = Client(loop)
            add_waiter(operation, client)
            with pytest.raises(ValueError, match="not a waiter"):
                remove_waiter(operation, Client(loop))
            operation.force_complete()
            assert client.told == 1


async def on_trio_wait_for() -> object:
    return DelayedOperationPurgatory().wait_for(lambda: False, "key", timeout=1.0)


async def on_trio_hand_over() -> object:
    return DelayedOperationPurgatory().try_complete_else_watch(Delay(1.0), ["key"])


async def on_trio_enter() -> object:
    async with DelayedOperationPurgatory() as purgatory:
        return purgatory


async def on_trio_timer() -> object:
    return WheelTimer().call_later(0.01, int)


async def on_trio_touch() -> object:
    IdleTracker[str](1.0).touch("key")
    return None


async def on_trio_threshold() -> object:
    return ThresholdPurgatory(0).reach(1, 1.0)


async def on_trio_await() -> object:
    return await DelayedOperationPurgatory(clock=VirtualClock()).wait_for(lambda: False, "key", timeout=1.0)


async def on_trio_as_future() -> object:
    return DelayedOperationPurgatory(clock=VirtualClock()).wait_for(lambda: False, "key", timeout=1.0).as_future()


class TestTrio:
    @pytest.mark.parametrize(
        "main",
        [
            on_trio_wait_for,
            on_trio_hand_over,
            on_trio_enter,
            on_trio_timer,
            on_trio_touch,
            on_trio_threshold,
            on_trio_await,
            on_trio_as_future,
        ],
    )
    def test_an_error_names_asyncio_and_trio(self, main: Callable[[], Any]) -> None:
        for run in (trio.run, lambda call: anyio.run(call, backend="trio")):
            with pytest.raises(RuntimeError, match=r"asyncio.*trio"):
                run(main)

    def test_what_needs_no_loop_works(self) -> None:
        async def main() -> object:
            return await DelayedOperationPurgatory(clock=VirtualClock()).wait_for(lambda: 7, "key")

        assert trio.run(main) == 7


class Take(Flag):
    """Notes the results that were given back."""

    def __init__(self, returned: list[str]) -> None:
        super().__init__()
        self.returned = returned

    def on_undelivered(self, result: str) -> None:
        self.returned.append(result)


class TestAnyio:
    """On asyncio, cancel scopes end waits as a cancelled task does, once or again and again."""

    async def test_a_scope_that_ends_cancels_the_wait(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            with anyio.move_on_after(0.001) as scope:
                await purgatory.wait_for(lambda: False, "key")
            assert scope.cancelled_caught
            with pytest.raises(TimeoutError):
                with anyio.fail_after(0.001):
                    await purgatory.wait_for(lambda: False, "key")
            assert purgatory.num_delayed == 0

    async def test_a_task_group_that_is_cancelled_cancels_all_waits(self) -> None:
        done: list[object] = []
        async with DelayedOperationPurgatory() as purgatory:

            async def child() -> None:
                done.append(await purgatory.wait_for(lambda: False, "key"))

            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(child)
                while purgatory.num_delayed < 5:
                    await turn()
                group.cancel_scope.cancel()
            assert (done, purgatory.num_delayed) == ([], 0)

    async def test_a_shielded_wait_goes_on(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            with anyio.CancelScope() as scope:
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    assert await purgatory.wait_for(lambda: False, "key", timeout=0.001) is False

    @pytest.mark.parametrize("order", ["complete, cancel", "cancel, complete", "complete, turn, cancel"])
    async def test_a_result_is_received_or_given_back(self, order: str) -> None:
        got: list[str] = []
        returned: list[str] = []
        scopes: list[anyio.CancelScope] = []
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Take(returned), ["key"])

            async def work() -> None:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    got.append(await operation)

            task = asyncio.ensure_future(work())
            await turn()
            for step in order.split(", "):
                if step == "complete":
                    operation.force_complete()
                elif step == "cancel":
                    scopes[0].cancel()
                else:
                    await turn()
            await task
            await turn()
            assert got + returned == ["result of flag"] or (operation.cancelled() and got + returned == [])


class EqualKey:
    """A key that equals all of its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualKey) and self.name == other.name


class Value(float):
    """A number that can be referred to weakly."""


def alive(references: "list[weakref.ref[Any]]") -> int:
    gc.collect()
    return sum(reference() is not None for reference in references)


class TestMailboxes:
    """However many calls come while the loop is busy, what is kept is bounded by the distinct values."""

    async def test_checks_of_a_few_keys(self) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operations = [purgatory.try_complete_else_watch(Flag(60.0), [EqualKey(name)]) for name in "abc"]
            references: list[weakref.ref[Any]] = []
            tries = [operation.tries for operation in operations]

            def produce() -> None:
                for number in range(3000):
                    key = EqualKey("abc"[number % 3])
                    references.append(weakref.ref(key))
                    purgatory.check_and_complete_threadsafe(key)

            threads = [threading.Thread(target=produce) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert alive(references) <= 6
            for _ in range(3):
                await turn()
            assert [after.tries - before for after, before in zip(operations, tries, strict=True)] == [1, 1, 1]
            for operation in operations:
                operation.ready = True
            produce()
            assert await asyncio.gather(*operations) == ["result of flag"] * 3

    @pytest.mark.parametrize("order", ["rising", "falling", "alternating"])
    async def test_values_of_a_threshold(self, order: str) -> None:
        async with ThresholdPurgatory[float](0.0) as threshold:
            waits = [threshold.reach(bound, 60.0) for bound in (0.5, 1500.0, 2500.0, 9000.0)]
            references: list[weakref.ref[Any]] = []

            def produce() -> None:
                for number in range(3000):
                    n = {"rising": number, "falling": 3000 - number, "alternating": number * (number % 2)}[order]
                    value = Value(n)
                    references.append(weakref.ref(value))
                    threshold.advance_threadsafe(value)

            thread = threading.Thread(target=produce)
            thread.start()
            thread.join()
            assert alive(references) <= 2
            await asyncio.wait([wait.as_future() for wait in waits[:3]])
            assert threshold.value >= 2999.0
            assert not waits[3].done()

    async def test_a_mailbox_of_ones_own(self) -> None:
        taken: list[list[str]] = []
        mailbox: Mailbox[str] = Mailbox(lambda: taken.append(mailbox.take()))
        loop = asyncio.get_running_loop()
        for number in range(1000):
            mailbox.put("ab"[number % 2], loop)
        assert len(mailbox) == 2
        await turn()
        assert taken == [["a", "b"]]
        mailbox.put("b", loop)
        mailbox.put("a", loop)
        await turn()
        assert taken == [["a", "b"], ["b", "a"]]
        await turn()
        assert len(taken) == 2


class TestLimits:
    @given(
        st.lists(st.tuples(st.booleans(), st.booleans()), max_size=80),
        st.lists(st.none() | st.integers(1, 6), max_size=8),
        st.booleans(),
    )
    def test_a_check_with_a_limit_completes_the_first_that_are_ready(
        self, chosen: list[tuple[bool, bool]], limits: list[int | None], is_soon: bool
    ) -> None:
        """The naive form: walk over all that wait, in their order, until the limit is reached."""
        clock = FaultLog()
        purgatory = DelayedOperationPurgatory(clock=clock, purge_interval=10)
        operations = [purgatory.try_complete_else_watch(Flag(), ["key", number % 3]) for number in range(len(chosen))]
        naive = list(range(len(chosen)))
        for number, (is_ready, is_cancelled) in enumerate(chosen):
            operations[number].ready = is_ready
            if is_cancelled:
                operations[number].cancel()
                naive.remove(number)
        for limit in limits:
            expected = [number for number in naive if operations[number].ready][:limit]
            if is_soon:
                purgatory.check_and_complete_soon("key", limit)
                clock.advance(0.0)
            else:
                assert purgatory.check_and_complete("key", limit) == len(expected)
            naive = [number for number in naive if number not in expected]
            assert [operation.outcome is None for operation in operations] == [
                number in naive for number in range(len(chosen))
            ]
            assert purgatory.watching("key") == [operations[number] for number in naive]
        assert not clock.faults

    @in_c
    @pytest.mark.parametrize("limit", [None, 1, 3])
    def test_a_check_runs_no_python_of_the_package(
        self, purgatory: DelayedOperationPurgatory, limit: int | None
    ) -> None:
        for _ in range(10):
            purgatory.try_complete_else_watch(Waiting(None), ["key"])
            purgatory.try_complete_else_watch(Flag(), ["key"]).ready = True
        directory = str(Path(package.__file__).parent)
        frames: list[str] = []

        def profile(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(directory):
                frames.append(frame.f_code.co_qualname)

        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            completed = purgatory.check_and_complete("key", limit)
        finally:
            sys.setprofile(before)
        assert completed == (limit or 10)
        assert frames == []


class Slow(Flag):
    """Takes longer to complete than a slice may last."""

    def on_complete(self) -> str:
        end = time.perf_counter() + 0.0011
        while time.perf_counter() < end:
            pass
        return super().on_complete()


class TestSlices:
    """A slice looks at the clock after each operation that has completed: no iteration has more than one slow one."""

    @pytest.mark.parametrize("way", ["check soon", "check threadsafe", "deadline", "aclose", "aclose without keys"])
    async def test_no_more_than_one_slow_operation_completes_in_an_iteration(self, way: str) -> None:
        loop = asyncio.get_running_loop()
        purgatory = DelayedOperationPurgatory()
        keys = [] if way == "aclose without keys" else ["key"]
        timeout = 0.001 if way == "deadline" else 60.0
        operations = [purgatory.try_complete_else_watch(Slow(timeout), keys) for _ in range(8)]
        for operation in operations:
            operation.ready = way.startswith("check")
        completed: list[int] = []

        def look() -> None:
            completed.append(sum(operation.done() for operation in operations))
            if completed[-1] < len(operations):
                loop.call_soon(look)

        look()
        if way == "check soon":
            purgatory.check_and_complete_soon("key")
        elif way == "check threadsafe":
            purgatory.check_and_complete_threadsafe("key")
        elif way.startswith("aclose"):
            await purgatory.aclose()
        await asyncio.gather(*operations)
        while completed[-1] < len(operations):
            await turn()
        steps = [after - before for before, after in pairwise(completed)]
        assert max(steps) == 1
        purgatory.close()


def test_a_timer_with_tasks_is_not_initialized_again(clock: FaultLog) -> None:
    timer = WheelTimer(clock)
    handle = timer.call_later(5.0, list)
    with pytest.raises(RuntimeError, match="again while tasks wait"):
        timer.__init__(clock)  # type: ignore[misc]
    assert len(timer) == 1
    handle.cancel()


def test_a_clock_that_cancels_the_task_and_raises_leaves_it_out() -> None:
    class Cancelling(FaultLog):
        def call_at(self, *_: object) -> Any:
            timer.cancel(note)
            raise LookupError

    clock = Cancelling()
    timer = WheelTimer(clock)
    note = Note(clock)
    with pytest.raises(LookupError):
        timer.add(note, 1.0)
    assert len(timer) == 0


def test_a_wake_up_after_the_time_went_back_runs_nothing_early(clock: FaultLog) -> None:
    timer = WheelTimer(clock)
    first, second = Note(clock), Note(clock)
    timer.add(first, 5.0)
    timer.add(second, 200.0)
    clock.ahead = 100.0
    clock.advance(5.0)
    assert first.ran, "the clock was ahead"
    clock.ahead = 0.0
    timer._wake()
    assert second.ran == []
    clock.advance(195.0)
    assert second.ran == [200.0]


def test_a_close_between_two_checks_of_a_slice_ends_it(clock: FaultLog) -> None:
    purgatory = DelayedOperationPurgatory(clock=clock)
    first = purgatory.try_complete_else_watch(Flag(then=purgatory.close), ["a"])
    second = purgatory.try_complete_else_watch(Flag(), ["b"])
    purgatory.check_and_complete_soon("a")
    purgatory.check_and_complete_soon("b")
    first.ready = True
    clock.advance(0)
    assert (first.outcome, second.outcome) == ("satisfied", "closed")


def test_a_value_that_is_taken_while_it_is_hashed_is_put_again() -> None:
    class Taken:
        is_new = True

        def __hash__(self) -> int:
            if self.is_new:
                self.is_new = False
                mailbox.take()
            return 1

    mailbox: Mailbox[Taken] = Mailbox(list)
    value = Taken()
    mailbox.add(value)
    assert mailbox.take() == [value]


async def test_a_future_that_is_cancelled_twice_leaves_once() -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        future = operation.as_future()

        async def wait() -> object:
            return await future

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        future.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert operation.cancelled()


def test_a_loop_whose_future_ends_the_operation_gives_a_done_future() -> None:
    class Completing(asyncio.SelectorEventLoop):
        operation: Flag | None = None

        def create_future(self) -> "asyncio.Future[Any]":
            if self.operation is not None:
                self.operation.force_complete()
            return super().create_future()

    async def main() -> None:
        purgatory = DelayedOperationPurgatory()
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Completing)
        loop.operation = operation
        future = operation.as_future()
        loop.operation = None
        assert await future == "result of flag"
        purgatory.close()

    with asyncio.Runner(loop_factory=Completing) as runner:
        runner.run(main())
