"""A handler of a signal raises in the middle of a call: no operation is lost, and all counts stay right.

The handler may be that of a second Ctrl-C, of pytest-timeout or of a soft time limit. One search raises at each point
of a call, in turn, and another lets a real signal come at random moments.
"""

import _thread
import asyncio
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from types import FrameType
from typing import Any, Final, TypeVar

import pytest
from hypothesis import settings

import purgatory as package
from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    FinishedOperation,
    PurgatoryMisuse,
    TimerTask,
    WheelTimer,
)
from purgatory.lowlevel import add_waiter, remove_waiter
from tests.support.invariants import check_timer
from tests.support.operations import FaultLog, Note

# pytest-timeout's own method would take the timer of the signal that is sent here.
pytestmark = pytest.mark.timeout(method="thread")


class Timeout(Exception):
    """What the handler of a task queue's soft time limit raises."""


class Stop(BaseException):
    """What no `except Exception` catches."""


ERRORS: Final[tuple[type[BaseException], ...]] = (Timeout, Stop, KeyboardInterrupt)
OUTCOMES: Final = ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed")


class Noting(DelayedOperation[str]):
    """Notes how often it was tried, completed, expired and done."""

    def __init__(self, timeout: float | None = None, *, ready: bool = False) -> None:
        super().__init__(timeout)
        self.ready = ready
        self.calls: Counter[str] = Counter()
        self.then: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> str:
        self.calls["on_complete"] += 1
        if self.then is not None:
            self.then()
        return "result"

    def on_expiration(self) -> None:
        self.calls["on_expiration"] += 1

    def on_done(self) -> None:
        self.calls["on_done"] += 1
        if self.after is not None:
            self.after()


class Plain(DelayedOperation[str]):
    """Defines no more than an operation has to."""

    def __init__(self, timeout: float | None = None, *, ready: bool = False) -> None:
        super().__init__(timeout)
        self.ready = ready
        self.calls: Counter[str] = Counter()
        self.then: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> str:
        self.calls["on_complete"] += 1
        if self.then is not None:
            self.then()
        return "result"


Op = Noting | Plain


class Told:
    """A waiter that counts how often it was told."""

    def __init__(self) -> None:
        self.told = 0

    def done(self) -> bool:
        return self.told > 0

    def set_result(self, result: None, /) -> None:
        self.told += 1

    def get_loop(self) -> Any:
        raise NotImplementedError


@dataclass
class World:
    """A purgatory in which one call is interrupted, and its operations."""

    kind: type[Noting] | type[Plain]
    listens: bool = False
    waits: bool = False
    clock: FaultLog = field(default_factory=FaultLog)
    operations: list[Op] = field(default_factory=list)
    tellings: list[tuple[Op, Told]] = field(default_factory=list)
    finished: list[FinishedOperation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.purgatory = DelayedOperationPurgatory(clock=self.clock, purge_interval=0)
        if self.listens:
            self.purgatory.add_listener(self.finished.append)
        self.add(3.0, "a")
        self.add(None, "a", "z")
        self.clock.advance(0.5)

    def new(self, timeout: float | None = None, *, ready: bool = False) -> Op:
        operation = self.kind(timeout, ready=ready)
        self.operations.append(operation)
        return operation

    def add(self, timeout: float | None, *keys: str, ready: bool = False) -> Op:
        operation = self.new(timeout)
        self.purgatory.try_complete_else_watch(operation, keys)
        operation.ready = ready
        if self.waits:
            for _ in range(2):
                self.wait(operation)
        return operation

    def wait(self, operation: Op) -> Told:
        told = Told()
        add_waiter(operation, told)
        self.tellings.append((operation, told))
        return told

    def check(self, where: "Point") -> None:
        """Let all deadlines come, close the purgatory, and compare what has happened with the promises."""
        assert self.purgatory.num_delayed == sum(is_pending(operation) for operation in self.operations)
        for operation in sorted(self.operations, key=lambda each: each.deadline or 0.0):
            deadline = operation.deadline
            if deadline is None or not is_pending(operation):
                continue
            self.clock.advance_to(max(self.clock.time(), deadline - 0.001))
            assert not operation.done() or operation.ready or self.clock.time() >= deadline, "never early"
            self.clock.advance_to(max(self.clock.time(), deadline + 0.001))
            assert operation.done(), f"{operation} has lost its deadline"
        late = self.add(1000.0, "late")
        early = self.add(1.0, "early")
        self.clock.advance(1.002)
        assert (early.outcome, late.outcome) == ("expired", None), "the timer is armed"
        pending = [operation for operation in self.operations if is_pending(operation)]
        assert all(operation.deadline is None or operation is late for operation in pending)
        check_timer(self.purgatory.timer)
        self.purgatory.close()
        self.clock.advance(2000.0)
        self.check_ended(where)

    def check_ended(self, where: "Point") -> None:
        outcomes = Counter(operation.outcome for operation in self.operations)
        statistics = self.purgatory.statistics()
        counted = {name: getattr(statistics, name) for name in OUTCOMES}
        assert counted == {name: outcomes[name] for name in OUTCOMES}, f"{counted} {outcomes}"
        assert (statistics.num_delayed, self.purgatory.watched, len(self.purgatory.timer)) == (0, 0, 0)
        for operation in self.operations:
            if operation.outcome == "failed":
                operation.exception()
            if not operation.done():
                # It was interrupted before the purgatory had taken it, which another one may.
                DelayedOperationPurgatory(clock=FaultLog()).try_complete_else_watch(operation, ["k"]).cancel()
                continue
            expected: Counter[str] = Counter()
            if isinstance(operation, Noting):
                expected["on_done"] = 1
            if operation.outcome not in ("cancelled", "failed"):
                expected["on_complete"] = 1
            if isinstance(operation, Noting) and operation.outcome == "expired":
                expected["on_expiration"] = 1
            calls = Counter(operation.calls)
            if operation.outcome == "failed":  # in on_complete, or after it
                assert calls["on_complete"] <= 1
                assert calls["on_expiration"] <= 1
                del calls["on_complete"], calls["on_expiration"]
            for method in where.inside(operation):
                assert calls[method] <= 1
                calls[method] = expected[method]
            assert +calls == expected, f"{operation} {calls}"
        for operation, told in self.tellings:
            if operation.done() and not where.inside(told):
                assert told.told == 1, f"{operation} has {'no' if not told.told else 'twice'} woken a waiter"
        if self.listens:
            assert len(self.finished) <= sum(outcomes[name] for name in OUTCOMES)


def is_pending(operation: Op) -> bool:
    return operation.outcome is None and repr(operation).startswith(f"<{type(operation).__qualname__} pending")


METHODS: Final = {
    method.__code__
    for kind in (Noting, Plain)
    for method in (kind.on_complete, kind.on_expiration, kind.on_done, Told.done, Told.set_result, Note.run)
    if hasattr(method, "__code__")  # else it is the base class's, in C
}
"""The methods of operations and waiters that may be interrupted themselves."""


class Trip(int):
    """A signal's number. `trip` sends the signal to this process, and its handler runs later.

    It is read like an attribute, because the handler would run at once after a call, in the middle of the trace.
    """

    trip = property(_thread.interrupt_main)


class Point:
    """Sends a signal whose handler raises, once, at the n-th point of a call, or counts the points.

    A profile function that raises by itself is no such handler: CPython calls it at other points too, such as the
    collection of a generator, where raising breaks CPython.
    """

    def __init__(self, nth: int | None, error: type[BaseException], of_the_timer: bool = False) -> None:
        self.nth = nth
        self.error = error
        self.of_the_timer = of_the_timer
        self.points = 0
        self.finalizers = 0
        self.where = "nowhere"
        self.methods: list[tuple[object, str]] = []
        """The objects and methods that were running."""

    def __enter__(self) -> "Point":
        signal.signal(signal.SIGUSR1, self._handle)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def inside(self, thing: object) -> list[str]:
        return [name for other, name in self.methods if other is thing]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        assert frame is not None
        self.where += f", raised in {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        if frame.f_code in METHODS:  # it was just entered
            self.methods.append((frame.f_locals["self"], frame.f_code.co_name))
        raise self.error

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code in METHODS:
            if event == "call":
                self.methods.append((frame.f_locals["self"], frame.f_code.co_name))
            elif event == "return":
                self.methods.pop()
        if frame.f_code.co_name == "__del__":  # whose exceptions CPython ignores
            self.finalizers += (event == "call") - (event == "return")
        if self.finalizers or event not in ("call", "c_return") or frame.f_code is Point.__exit__.__code__:
            return
        if self.of_the_timer and not is_of_the_timer(frame):
            return
        if self.points == self.nth:
            sys.setprofile(None)
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name} {event} {argument}"
            Trip(signal.SIGUSR1).trip  # noqa: B018 - it sends the signal
        self.points += 1


_PACKAGE: Final = os.path.dirname(os.path.abspath(package.__file__))
_OF_THE_TIMER: Final = tuple(os.path.join(_PACKAGE, part) + os.sep for part in ("_core", "_timer"))


def is_of_the_timer(frame: FrameType) -> bool:
    """Whether this is inside the library, and neither in the clock nor at the clock's own call."""
    if frame.f_code.co_filename == __file__:
        return True
    if not frame.f_code.co_filename.startswith(_OF_THE_TIMER):
        return False
    return frame.f_back is None or not frame.f_back.f_code.co_filename.endswith("_virtual.py")


Scenario = Callable[[World], Callable[[], object]]
SCENARIOS: Final[dict[str, Scenario]] = {}


def scenario(make: Scenario) -> Scenario:
    """Add a scenario: it makes the operations, and returns the call that is interrupted."""
    SCENARIOS[make.__name__.replace("_", " ")] = make
    return make


def hand_over(name: str, timeout: float | None, *keys: str, ready: bool = False) -> None:
    def make(world: World) -> Callable[[], object]:
        operation = world.new(timeout, ready=ready)
        return lambda: world.purgatory.try_complete_else_watch(operation, keys)

    SCENARIOS[f"hand over {name}"] = make


hand_over("1 key", None, "b")
hand_over("1 key, deadline", 5.0, "a")
hand_over("2 keys, deadline", 1.0, "a", "b")
hand_over("3 keys, deadline", 700.0, "c", "a", "b")
hand_over("3 keys", None, "c", "a", "b")
hand_over("no key", 5.0)
hand_over("no key, ready", None, ready=True)
hand_over("no key, refused", None)
hand_over("ready", 5.0, "a", ready=True)
hand_over("no time", 0.0, "a")


def end(name: str, call: Callable[[Op], object]) -> None:
    def make(timeout: float | None, keys: tuple[str, ...]) -> Scenario:
        def prepare(world: World) -> Callable[[], object]:
            operation = world.add(timeout, *keys)
            return lambda: call(operation)

        return prepare

    SCENARIOS[name] = make(5.0, ("a", "b"))
    SCENARIOS[f"{name}, no deadline"] = make(None, ("b",))
    SCENARIOS[f"{name}, no key"] = make(5.0, ())


end("cancel", lambda operation: operation.cancel())
end("force complete", lambda operation: operation.force_complete())
end("fail", lambda operation: operation.fail(ValueError()) and operation.exception())
end("reschedule earlier", lambda operation: operation.reschedule(0.1))
end("reschedule later", lambda operation: operation.reschedule(500.0))
end("reschedule within its bucket", lambda operation: operation.reschedule(4.5))


@scenario
def reschedule_to_none(world: World) -> Callable[[], object]:
    operation = world.add(0.1, "b")
    return lambda: operation.reschedule(None)


@scenario
def check(world: World) -> Callable[[], object]:
    for timeout in (1.0, None, 2.0):
        world.add(timeout, "a", "c", ready=True)
    world.add(1.0, "a")
    return lambda: world.purgatory.check_and_complete("a")


@scenario
def check_with_a_limit(world: World) -> Callable[[], object]:
    for timeout in (1.0, None, 2.0):
        world.add(timeout, "b", "c", ready=True)
    world.add(1.0, "b", ready=True)
    return lambda: world.purgatory.check_and_complete("b", limit=2)


@scenario
def check_soon(world: World) -> Callable[[], object]:
    for timeout in (1.0, None, 2.0):
        world.add(timeout, "b", "c", ready=True)
    return lambda: world.purgatory.check_and_complete_soon("b")


@scenario
def cancel_for_key(world: World) -> Callable[[], object]:
    for timeout in (1.0, None, 2.0):
        world.add(timeout, "b", "a")
    return lambda: world.purgatory.cancel_for_key("b")


def all_of_them(name: str, call: Callable[[DelayedOperationPurgatory], object]) -> None:
    def make(world: World) -> Callable[[], object]:
        world.add(1.0, "b", "a")
        world.add(2.0)
        return lambda: call(world.purgatory)

    SCENARIOS[name] = make


all_of_them("cancel all", lambda purgatory: purgatory.cancel_all())
all_of_them("complete all", lambda purgatory: purgatory.complete_all())
all_of_them("fail all", lambda purgatory: purgatory.fail_all(ValueError()))


@scenario
def nested_ends(world: World) -> Callable[[], object]:
    chain = [world.add(10.0, "b") for _ in range(18)]
    for one, other in pairwise(chain):
        one.then = other.force_complete
    return chain[0].force_complete


@scenario
def nested_cancellations(world: World) -> Callable[[], object]:
    chain = [world.add(10.0, "b") for _ in range(18)]
    for one, other in pairwise(chain):
        one.after = other.cancel
    return chain[0].cancel


@scenario
def a_waiter_leaves(world: World) -> Callable[[], object]:
    operation = world.add(5.0, "b")
    told = world.wait(operation)
    world.tellings.remove((operation, told))
    return lambda: remove_waiter(operation, told)


@scenario
def deadlines(world: World) -> Callable[[], object]:
    for timeout in (1.0, 1.0, 0.05, 2.0, 6.0):
        world.add(timeout, "b", "c")
    world.add(1.0)
    return lambda: world.clock.advance(2.0)


@scenario
def deadlines_that_a_last_try_completes(world: World) -> Callable[[], object]:
    for timeout in (1.0, 2.0):
        world.add(timeout, "b", "c", ready=True)
    return lambda: world.clock.advance(2.0)


@scenario
def a_purge(world: World) -> Callable[[], object]:
    for _ in range(5):
        world.add(10.0, "b", "c").cancel()
    return lambda: world.clock.advance(0)


VARIANTS: Final[dict[str, Callable[[], World]]] = {
    "plain": lambda: World(Plain),
    "all methods": lambda: World(Noting),
    "a listener and waiters": lambda: World(Noting, listens=True, waits=True),
}


LEFT: Final = f"entry.py:{TimerTask._timer_expire.__code__.co_firstlineno + 1} _timer_expire"


@dataclass
class TimerWorld:
    """A timer of the program's own, and its tasks with the deadlines that each may have."""

    clock: FaultLog = field(default_factory=FaultLog)
    tasks: list[tuple[Note, list[float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timer = WheelTimer(self.clock)
        self.add(3.0)
        self.add(70.0)

    def add(self, *deadlines: float) -> Note:
        """Add a task for the first of these deadlines. The call that is interrupted may give it the others."""
        task = Note(self.clock)
        self.tasks.append((task, list(deadlines)))
        self.timer.add(task, deadlines[0])
        return task

    def check(self, where: Point) -> None:
        check_timer(self.timer)
        for deadline in sorted({deadline for _, deadlines in self.tasks for deadline in deadlines}):
            if deadline > self.clock.time():
                self.clock.advance_to(deadline)
        self.clock.advance(1.0)
        for task, deadlines in self.tasks:
            # A task that has left the timer has begun, though its `run` was not called yet.
            if (
                where.inside(task)
                or "c_return <built-in method _timer_leave" in where.where
                or where.where.endswith(LEFT)
            ):
                continue
            assert len(task.ran) == 1 or not deadlines, f"ran {task.ran}, and not once at one of {deadlines}"
            assert not task.ran or min(abs(task.ran[0] - deadline) for deadline in deadlines) < 0.002
        assert len(self.timer) == 0


TimerScenario = Callable[[TimerWorld], Callable[[], object]]


def cancel_a_task(world: TimerWorld) -> Callable[[], object]:
    task = Note(world.clock)
    world.timer.add(task, 5.0)
    return lambda: world.timer.cancel(task)


def run_tasks(world: TimerWorld) -> Callable[[], object]:
    for deadline in (1.0, 1.0, 0.05, 2.0):
        world.add(deadline)
    return lambda: world.clock.advance(2.0)


def move(before: float, after: float) -> TimerScenario:
    def prepare(world: TimerWorld) -> Callable[[], object]:
        task = world.add(before, after)
        return lambda: world.timer.reschedule(task, after)

    return prepare


TIMER_SCENARIOS: Final[dict[str, TimerScenario]] = {
    "move a task to an earlier time": move(5.0, 1.0),
    "move a task to a later time": move(5.0, 900.0),
    "move a task within its bucket": move(5.0, 4.9),
    "cancel a task": cancel_a_task,
    "run tasks": run_tasks,
}

W = TypeVar("W", World, TimerWorld)


def interrupt(make: Callable[[], W], prepare: Callable[[W], Callable[[], object]], point: Point) -> None:
    """Make the call of a scenario, and check the world after it."""
    world = make()
    call = prepare(world)
    # An operation that is refused raises ValueError, and the method of another one may be what is interrupted.
    with suppress(point.error, ValueError, PurgatoryMisuse), point:
        call()
    try:
        world.check(point)
        faults = [fault for fault in world.clock.exceptions if not isinstance(fault, (point.error, ValueError))]
        assert not faults, faults
    except BaseException as error:
        error.add_note(f"{point.error.__name__} {point.where}, at the point {point.nth}")
        raise


def interrupt_everywhere(
    make: Callable[[], W], prepare: Callable[[W], Callable[[], object]], of_the_timer: bool
) -> None:
    for error in ERRORS:
        counter = Point(None, error, of_the_timer)
        interrupt(make, prepare, counter)
        assert counter.points
        for nth in range(counter.points):
            interrupt(make, prepare, Point(nth, error, of_the_timer))
            if nth % 100 == 99:
                gc.collect()


@pytest.mark.usefixtures("by_reference_count_alone")  # because CPython 3.11 may crash if a finalizer is interrupted
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_call_that_is_interrupted_loses_no_operation(name: str, variant: str) -> None:
    interrupt_everywhere(VARIANTS[variant], SCENARIOS[name], name.startswith(("deadlines", "a purge")))


@pytest.mark.usefixtures("by_reference_count_alone")
@pytest.mark.parametrize("name", TIMER_SCENARIOS)
def test_a_call_that_is_interrupted_loses_no_task(name: str) -> None:
    interrupt_everywhere(TimerWorld, TIMER_SCENARIOS[name], name == "run tasks")


@pytest.mark.usefixtures("by_reference_count_alone")
@pytest.mark.parametrize("error", ERRORS)
async def test_a_reschedule_that_is_interrupted_on_a_loop_leaves_a_deadline(error: type[BaseException]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        counter = Point(None, error)
        with counter:
            purgatory.try_complete_else_watch(Plain(60.0), ["key"]).reschedule(0.01)
        operations = []
        for nth in range(counter.points):
            operations.append(purgatory.try_complete_else_watch(Plain(0.05), ["key"]))
            with suppress(error), Point(nth, error):
                operations[nth].reschedule(0.01)
            assert operations[nth].deadline is not None
        assert await asyncio.gather(*operations) == ["result"] * counter.points, "or it hangs"


class Alarm(Point):
    """A real signal that comes after some time, whose handler raises once."""

    def __init__(self, error: type[BaseException], seconds: float) -> None:
        super().__init__(None, error)
        self.seconds = seconds
        self.armed = True

    def __enter__(self) -> "Alarm":
        signal.signal(signal.SIGALRM, self._handle)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        return self

    def __exit__(self, *exception: object) -> None:
        self.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.armed:
            self.armed = False
            super()._handle(number, frame)


@pytest.fixture
def alarm() -> Iterator[None]:
    """The handler of the alarm is what it was, when the test is over."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("by_reference_count_alone", "alarm")
@pytest.mark.parametrize("error", ERRORS)
def test_calls_that_a_signal_interrupts_at_any_moment_lose_no_operation(error: type[BaseException]) -> None:
    random = Random(1)

    def calls(world: World) -> Callable[[], object]:
        new = [world.new(5.0) for _ in range(40)]

        def call() -> None:
            for number, operation in enumerate(new):
                world.purgatory.try_complete_else_watch(operation, ["k", str(number)][: number % 3])
                if number % 4 == 1:
                    operation.cancel()
                elif number % 4 == 2:
                    operation.reschedule(random.choice([1.0, 30.0]))
                elif number % 4 == 3:
                    operation.force_complete()

        return call

    interrupted = 0
    for number in range(10 * settings().max_examples):
        alarm = Alarm(error, random.random() * 1e-3)
        interrupt(lambda: World(Plain), calls, alarm)
        interrupted += alarm.where != "nowhere"
        if number % 100 == 99:
            gc.collect()
    assert interrupted
