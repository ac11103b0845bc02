"""Injected calls as in `injection`, on an event loop: tasks that await, waiters, futures, and the mailbox elsewhere."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from purgatory import (
    DelayedFutures,
    DelayedOperation,
    DelayedOperationPurgatory,
    OperationCancelled,
    ThresholdPurgatory,
)
from purgatory.lowlevel import add_waiter, remove_waiter
from tests.support.injection import Broken, Injector, Points, Report, is_expected, is_step, place, require
from tests.support.invariants import check_purgatory

ITERATIONS: Final = 20
"""More than any deferred work takes here."""


async def iterate(until: float = 0.0) -> None:
    """Let the loop iterate until a time has passed, and then `ITERATIONS` times."""
    loop = asyncio.get_running_loop()
    left = ITERATIONS
    while left:
        await asyncio.sleep(0)
        if loop.time() > until:
            left -= 1


class Operation(DelayedOperation[str]):
    """Counts its completions, its awaiters and the deliveries of its result."""

    def __init__(self, name: str, keys: tuple[str, ...], timeout: float | None) -> None:
        super().__init__(timeout)
        self.name = name
        self.keys = keys
        self.ready = False
        self.completed = 0
        self.woken = False
        self.awaiters = 0
        self.delivered = 0
        self.undelivered = 0

    def __repr__(self) -> str:
        return f"<{self.name} {self.outcome}>"

    @is_step
    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    @is_step
    def on_complete(self) -> str:
        self.completed += 1
        return self.name

    @is_step
    def on_undelivered(self, result: str) -> None:
        self.undelivered += 1


class Told:
    """A waiter that notes how often it is told."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.told = 0

    @is_step
    def done(self) -> bool:
        return self.told > 0

    @is_step
    def set_result(self, result: None) -> None:
        self.told += 1

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop


async def wait(operation: Operation) -> None:
    operation.awaiters += 1
    try:
        await operation
    except OperationCancelled:
        require(operation.cancelled(), f"{operation}: its task got OperationCancelled")
    else:
        operation.delivered += 1


class LoopWorld:
    """Operations of which some are awaited, by one task or by two, and some wait for futures."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.faults: list[dict[str, Any]] = []
        self.until = 0.0
        """The time by which all deadlines set by calls have come, late by a tick or two."""
        self.loop.set_exception_handler(lambda loop, context: self.faults.append(context))
        self.purgatory = DelayedOperationPurgatory()
        self.operations: list[Operation] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.futures: list[asyncio.Future[None]] = [self.loop.create_future() for _ in range(2)]
        self.delayed: list[DelayedFutures[None]] = []
        self.lonely, self.subject, self.shared, self.other = (
            self.watch(keys, 60.0) for keys in (("a",), ("a", "b"), ("a", "c"), ("b",))
        )
        for operation in (self.subject, self.shared, self.shared, self.other):
            self.tasks.append(self.loop.create_task(wait(operation)))
        for futures in (self.futures[:1], self.futures, self.futures[1:]):
            self.delay(futures)
        self.told = Told(self.loop)
        self.watched = self.watch(("c",), 60.0)
        self.watched.awaiters += 1
        add_waiter(self.watched, self.told)
        self.index = ThresholdPurgatory(0)
        self.reached = [self.index.reach(threshold, 60.0) for threshold in (0, 1, 1, 5)]
        self.highest = 0

    def watch(self, keys: tuple[str, ...], timeout: float | None) -> Operation:
        operation = Operation(f"operation {len(self.operations)}", keys, timeout)
        self.purgatory.try_complete_else_watch(operation, keys)
        self.operations.append(operation)
        return operation

    def delay(self, futures: "list[asyncio.Future[None]]") -> None:
        self.delayed.append(self.purgatory.try_complete_else_watch(DelayedFutures(futures, 60.0), ["a"]))

    def expire(self, operation: DelayedOperation[Any]) -> None:
        self.until = self.loop.time() + 0.003
        operation.reschedule(0.0)

    def finish_futures(self, *numbers: int) -> None:
        for number in numbers:
            with suppress(asyncio.InvalidStateError):  # it is done
                self.futures[number].set_result(None)

    def make_true(self, name: str) -> None:
        for operation in self.operations:
            if name in operation.keys:
                operation.ready = operation.woken = True

    def check(self, name: str) -> None:
        self.make_true(name)
        self.purgatory.check_and_complete(name)

    def check_soon(self, name: str) -> None:
        self.make_true(name)
        self.purgatory.check_and_complete_soon(name)

    def check_threadsafe(self, *names: str) -> None:
        for name in names:
            self.make_true(name)
            self.purgatory.check_and_complete_threadsafe(name)

    def leave(self) -> None:
        with suppress(ValueError):  # it has left
            remove_waiter(self.watched, self.told)

    def advance(self, value: int, threadsafe: bool = False) -> None:
        if not self.index.purgatory.closed:
            self.highest = max(self.highest, value)
        (self.index.advance_threadsafe if threadsafe else self.index.advance)(value)

    def reach(self, threshold: int) -> None:
        self.reached.append(self.index.reach(threshold, 60.0))

    def check_now(self) -> None:
        """Check the invariants some iterations later."""
        purgatory = self.purgatory
        self._check_operations()
        self._check_futures()
        require(self.index.value == self.highest, f"the value is {self.index.value}, not {self.highest}")
        waiting = [reach for reach in self.reached if not reach.done()]
        require(self.index.num_waiting == len(waiting), f"{self.index.num_waiting} wait, not {len(waiting)}")
        check_purgatory(self.index.purgatory)
        require(self.told.told <= 1, f"a waiter was told {self.told.told} times")
        every: list[DelayedOperation[Any]] = [*self.operations, *self.delayed]
        pending = [operation for operation in every if not operation.done()]
        require(purgatory.num_delayed == len(pending), f"num_delayed is {purgatory.num_delayed}, pending are {pending}")
        require(not (purgatory.closed and pending), f"closed, and {pending} are pending")
        check_purgatory(purgatory)

    def _check_operations(self) -> None:
        for operation in self.operations:
            completes = operation.outcome in ("completed_at_once", "satisfied", "expired", "closed")
            require(operation.completed == completes, f"{operation}: on_complete ran {operation.completed} times")
            require(not operation.woken or operation.done(), f"{operation}: lost wake-up")
            if operation is self.watched:
                continue  # the result may be with its waiter
            undelivered = completes and operation.awaiters and not operation.delivered
            require(
                operation.undelivered == undelivered, f"{operation}: on_undelivered ran {operation.undelivered} times"
            )

    def _check_futures(self) -> None:
        if all(future.done() for future in self.futures):
            require(
                all(delayed.done() for delayed in self.delayed), "all futures are done, and an operation on them is not"
            )

    async def check_later(self) -> None:
        """Check that the rest completes and that no object is retained."""
        for future in self.futures:
            future.cancel()
        await iterate()
        require(
            all(delayed.done() for delayed in self.delayed), "all futures are done, and an operation on them is not"
        )
        self.check_now()
        await self.purgatory.aclose()
        await self.index.aclose()
        await iterate()
        hanging = [task for task in self.tasks if not task.done()]
        require(not hanging, f"{len(hanging)} tasks hang after aclose()")
        for task in self.tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        self.check_now()
        require((self.purgatory.watched, len(self.purgatory.timer)) == (0, 0), "entries or tasks are left")
        require(not self.faults, f"reported: {self.faults}")
        references: list[weakref.ref[Any]] = [weakref.ref(operation) for operation in self.operations]
        references += [weakref.ref(delayed) for delayed in self.delayed]
        self.operations.clear()
        self.tasks.clear()
        self.delayed.clear()
        del self.lonely, self.subject, self.shared, self.other, self.watched
        retained = [each for each in (reference() for reference in references) if each is not None]
        require(not retained, f"{retained} are retained")


OUTER: Final[dict[str, Callable[[LoopWorld], object]]] = {
    "check_and_complete_threadsafe": lambda world: world.check_threadsafe("a"),
    "check_and_complete_threadsafe of two keys": lambda world: world.check_threadsafe("a", "b"),
    "check_and_complete_soon": lambda world: world.check_soon("a"),
    "check_and_complete": lambda world: world.check("a"),
    "complete_all": lambda world: world.purgatory.complete_all(),
    "cancel_all": lambda world: world.purgatory.cancel_all(),
    "cancel a task": lambda world: world.tasks[0].cancel(),
    "cancel a task of two": lambda world: world.tasks[1].cancel(),
    "cancel both tasks of two": lambda world: (world.tasks[1].cancel(), world.tasks[2].cancel()),
    "complete and cancel a task": lambda world: (world.subject.force_complete(), world.tasks[0].cancel()),
    "finish a future": lambda world: world.finish_futures(0),
    "finish both futures": lambda world: world.finish_futures(0, 1),
    "cancel an operation on futures": lambda world: world.delayed[0].cancel(),
    "deadline of an operation on futures": lambda world: world.expire(world.delayed[1]),
    "operation on futures": lambda world: world.delay(world.futures),
    "deadline": lambda world: world.expire(world.subject),
    "watch": lambda world: world.watch(("a", "new"), 60.0),
    "aclose": lambda world: world.loop.create_task(world.purgatory.aclose()),
    "leave": lambda world: world.leave(),
    "advance": lambda world: world.advance(1),
    "reach": lambda world: world.reach(1),
}

INJECTED: Final[dict[str, Callable[[LoopWorld], object]]] = {
    **{
        name: call
        for name, call in OUTER.items()
        if name not in ("check_and_complete_threadsafe of two keys", "aclose")
    },
    "close": lambda world: world.purgatory.close(),
    "cancel_for_key": lambda world: world.purgatory.cancel_for_key("a"),
    "force_complete": lambda world: world.subject.force_complete(),
    "force_complete another": lambda world: world.shared.force_complete(),
    "cancel": lambda world: world.subject.cancel(),
    "cancel another": lambda world: world.lonely.cancel(),
    "cancel a future": lambda world: world.futures[1].cancel(),
}


MAILBOX: Final[dict[str, Callable[[LoopWorld], object]]] = {
    "check_and_complete_threadsafe": lambda world: world.check_threadsafe("a"),
    "check_and_complete_threadsafe of another key": lambda world: world.check_threadsafe("b"),
    "check_and_complete_threadsafe of a key without a list": lambda world: world.check_threadsafe("none"),
    "advance_threadsafe": lambda world: world.advance(5, threadsafe=True),
}
"""What finalizers, handlers of signals and other threads may call, anywhere."""


async def _problem(
    outer: Callable[[LoopWorld], object], injected: Callable[[LoopWorld], object], injector: Injector
) -> str | None:
    error: BaseException | None = None
    try:
        world = LoopWorld()
        injector.inject = lambda: injected(world)
        await iterate()
        try:
            with injector:
                outer(world)
                await iterate(world.until)
        except Exception as raised:
            error = raised
        for caught, kind in ((error, "raises"), (injector.error, "injected, raises")):
            require(is_expected(caught), f"{kind} {caught!r} {place(caught)}")
            del caught
        error = injector.error = None
        await iterate(world.until)
        world.check_now()
        await world.check_later()
    except Exception as raised:
        name = "" if isinstance(raised, Broken) else f"{type(raised).__qualname__} {place(raised)} "
        return f"{name}{raised}"
    return None


async def inject_everywhere(outer: str, points: Points, report: Report, every: Callable[[int, int], bool]) -> None:
    """Make each call that is allowed there at each step of `outer` and of the work that it defers."""
    counter = Injector(points, None, int)
    problem = await _problem(OUTER[outer], lambda world: None, counter)
    if problem is not None:
        raise Broken(f"{outer} on its own: {problem}")
    for step in range(counter.steps):
        for number, (name, call) in enumerate((INJECTED if points == "callbacks" else MAILBOX).items()):
            if not every(step, number):
                continue
            report.combinations += 1
            injector = Injector(points, step, int)
            problem = await _problem(OUTER[outer], call, injector)
            if problem is not None:
                report.failures.setdefault(problem, []).append(f"{name} at {injector.where}")
            if report.combinations % 500 == 0:
                gc.collect()
