"""The worlds into which calls are injected: a purgatory and a timer on a virtual clock.

`PARTS` has the calls of each, and what is called inside them. A world checks its invariants itself: at once after a
call, and later, when all of its deadlines have passed.
"""

import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVarTuple

import purgatory as package
from purgatory import DelayedOperation, DelayedOperationPurgatory, Handle, TimerTask, WheelTimer
from tests.support.injection import Part, is_step, of_a_key, require
from tests.support.invariants import check_purgatory, check_timer, check_whole
from tests.support.operations import FaultLog

Ts = TypeVarTuple("Ts")

START: Final = 1000.25
"""The time at which a world begins: not a multiple of all ticks."""
FAR: Final = 100_000.0
"""Seconds after which all deadlines of a world have passed."""


class Clock(FaultLog):
    """A clock whose methods are callbacks too."""

    @is_step
    def time(self) -> float:
        return super().time()

    @is_step
    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> Handle:
        return super().call_at(when, callback, *args)

    @is_step
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        super().call_exception_handler(context)


@is_step
def each(keys: tuple[Hashable, ...]) -> Iterator[Hashable]:
    """Yield the keys: their iteration is a callback."""
    yield from keys


class Mood:
    """The mood of the odd keys of a world: while it is bad, each third call of their methods does something else."""

    def __init__(self) -> None:
        self.calls: int | None = None
        """Calls so far, from a number that each combination begins with. `None` while the mood is good."""
        self.recurse: Callable[[int], object] = abs
        self.recurses = False

    def is_changed(self) -> bool:
        """Count a call, which may be recursive or raise. Return whether its answer is another than before."""
        if self.calls is None:
            return False
        self.calls += 1
        turn, is_good = divmod(self.calls, 3)
        if is_good:
            return False
        if turn % 3 == 0:
            raise LookupError("of a key")
        if turn % 3 == 1 and not self.recurses:
            self.recurses = True
            with suppress(Exception):
                self.recurse(turn)
            self.recurses = False
            return False
        return True


class OddKey:
    """A key whose methods are written in Python."""

    def __init__(self, name: str, mood: Mood) -> None:
        self.name = name
        self.mood = mood

    @of_a_key
    def __hash__(self) -> int:
        return (hash(self.name) + self.mood.is_changed()) & 3

    @of_a_key
    def __eq__(self, other: object) -> bool:
        return isinstance(other, OddKey) and (other.name == self.name) != self.mood.is_changed()

    def __repr__(self) -> str:
        return self.name


class Moves:
    """The possible deadlines of an operation or task: one, or, when moves have overlapped, one of each."""

    def __init__(self) -> None:
        self.possible: list[float | None] = []
        self._overlapping: list[float | None] = []
        self._under_way = 0

    @contextmanager
    def to(self, deadline: float | None) -> Iterator[None]:
        """Surround a call that moves the deadline there. A call that raises has not moved it."""
        if not self._under_way:
            self._overlapping = []
        self._overlapping.append(deadline)
        self.possible.append(deadline)
        self._under_way += 1
        try:
            yield
        except BaseException:
            self._overlapping.remove(deadline)
            self.possible.remove(deadline)
            raise
        finally:
            self._under_way -= 1
            if not self._under_way and self._overlapping:
                self.possible = list(self._overlapping)

    @property
    def earliest(self) -> float:
        return min((deadline for deadline in self.possible if deadline is not None), default=float("inf"))

    @property
    def never(self) -> bool:
        """Whether the deadline may never come."""
        return None in self.possible or not self.possible


class Operation(DelayedOperation[str]):
    """Counts its tries, completions and expirations."""

    def __init__(
        self, clock: Clock, name: str, timeout: float | None, keys: Collection[Hashable], ready_at: int | None = None
    ) -> None:
        super().__init__(timeout)
        self.clock = clock
        self.name = name
        self.seconds = timeout
        self.keys = tuple(keys)
        self.ready = False
        self.ready_at = ready_at
        """The try at which it becomes ready."""
        self.tries = 0
        self.accepted = False
        self.handing_over = 0
        self.moves = Moves()
        self.won = 0
        self.completed = 0
        self.expirations: list[float] = []
        """Seconds by which each was early."""
        self.ended = 0
        self.woken = False
        """Whether one of its keys was checked when its condition held."""

    def __repr__(self) -> str:
        return f"<{self.name} {self.outcome}>"

    @is_step
    def try_complete(self) -> bool:
        if self.tries == self.ready_at:
            self.ready = True
        self.tries += 1
        return self.ready and self.force_complete()

    def force_complete(self) -> bool:
        won = super().force_complete()
        self.won += won
        return won

    @is_step
    def on_complete(self) -> str:
        self.completed += 1
        return self.name

    @is_step
    def on_expiration(self) -> None:
        self.expirations.append(self.moves.earliest - self.clock.time())

    @is_step
    def on_done(self) -> None:
        self.ended += 1


class World:
    """A purgatory with operations that wait on three keys or on none, some dead entries, one that is due now."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.clock = Clock(START)
        self.mood = Mood()
        self.mood.recurse = lambda turn: _CALLS_OF_KEYS[turn % len(_CALLS_OF_KEYS)](self)
        self.purgatory = self.make_purgatory()
        self.heard: list[str] | None = None
        if variant == "listener":
            self.heard = []
            self.purgatory.add_listener(self.listen)
        self.quiet: list[object] = []
        self.removed = False
        self.operations: list[Operation] = []
        self.spare = 0
        self.subject: Operation = self.watch(self.operation(["a", "b"], 0.005))
        self.moved = self.watch(self.operation(["a"], 2.0))
        self.watch(self.operation(["a"], None))
        self.watch(self.operation(["b"], 0.1))
        self.late = self.watch(self.operation(["c"], 50.0))
        self.watch(self.operation(["b"], 0.0))
        self.other = self.watch(self.operation(["a", "b", "c"], 0.015))
        self.keyless = self.watch(self.operation([], 1.5))
        for keys in (["a"], ["a", "c"]):
            self.watch(self.operation(keys, 1.0)).force_complete()
        self.extra: list[Callable[[], None]] = []
        """Further checks at the end."""

    def make_purgatory(self) -> DelayedOperationPurgatory:
        variant = self.variant
        return DelayedOperationPurgatory(
            clock=self.clock,
            max_pending=9 if variant == "max_pending" else None,
            purge_interval=2 if variant == "purge" else 1000,
        )

    def key(self, name: str) -> Hashable:
        """A new key, equal to all of that name."""
        return OddKey(name, self.mood) if self.variant == "odd keys" else name

    def misbehave(self, seed: int) -> None:
        """Break the contract of keys from now on: hashes and equalities change, raise, and call the purgatory."""
        self.mood.calls = seed

    @is_step
    def listen(self, finished: package.FinishedOperation) -> None:
        if self.heard is not None:
            self.heard.append(finished.outcome)

    def operation(self, keys: Iterable[str], timeout: float | None, ready_at: int | None = None) -> Operation:
        self.spare += 1
        return Operation(self.clock, f"operation {self.spare}", timeout, list(map(self.key, keys)), ready_at)

    def watch(self, operation: Operation) -> Operation:
        if operation not in self.operations:
            self.operations.append(operation)
        now = self.clock.time()
        operation.handing_over += 1
        try:
            with operation.moves.to(None if operation.seconds is None else now + operation.seconds):
                self.purgatory.try_complete_else_watch(operation, each(operation.keys))
                operation.accepted = True
        finally:
            operation.handing_over -= 1
        return operation

    def watch_subject(self, keys: Iterable[str], timeout: float | None, ready_at: int | None = None) -> None:
        """Hand over a new subject of the injected calls."""
        self.subject = self.operation(keys, timeout, ready_at)
        self.watch(self.subject)

    def reschedule(self, operation: Operation, timeout: float | None) -> None:
        with operation.moves.to(None if timeout is None else self.clock.time() + timeout):
            operation.reschedule(timeout)

    def fail(self, operation: Operation) -> None:
        if operation.fail(LookupError()):
            operation.exception()

    def fail_all(self) -> None:
        self.purgatory.fail_all(LookupError())
        for operation in self.operations:
            if operation.outcome == "failed":
                operation.exception()

    def wake(self, operation: Operation, which: int = 0) -> None:
        """Make its condition true and check one of its keys, or force it if it has none."""
        operation.ready = True
        if not operation.keys:
            operation.force_complete()
            return
        if operation.accepted or operation.handing_over:
            operation.woken = True
        self.purgatory.check_and_complete(operation.keys[which % len(operation.keys)])

    def check(self, name: str, ready: int, limit: int | None = None, soon: bool = False) -> None:
        """Check a key, on which the conditions of the first `ready` operations hold."""
        key = self.key(name)
        watching = [operation for operation in self.operations if operation.accepted and not operation.done()]
        makes_true = [operation for operation in watching if key in operation.keys][:ready]
        for operation in makes_true:
            operation.ready = True
        if soon:
            self.purgatory.check_and_complete_soon(key, limit)
            self.clock.advance(0)
        else:
            completed = self.purgatory.check_and_complete(key, limit)
            require(0 <= completed <= (len(self.operations) if limit is None else limit), f"{completed} have completed")
        if not self.purgatory.closed:
            # An operation that is being completed has its outcome already.
            done = sum(operation.outcome is not None for operation in makes_true)
            least = len(makes_true) if limit is None else min(limit, len(makes_true))
            require(done >= least, f"of {len(makes_true)} whose condition held, {done} are done, the limit was {limit}")

    def aclose(self) -> None:
        for _ in self.purgatory.aclose().__await__():
            pass

    def finish_many(self) -> None:
        """Finish enough operations for a purge to be due."""
        for _ in range(6):
            self.watch(self.operation(["a", "b", "d"], None)).force_complete()
        self.clock.advance(0)

    def listen_for_a_while(self) -> None:
        heard: list[object] = []
        self.purgatory.add_listener(heard.append)
        self.purgatory.remove_listener(heard.append)

    def add_and_remove(self) -> None:
        """Add and remove a listener, which an injected call may have removed already."""
        self.purgatory.add_listener(self.quiet.append)
        self.remove()
        require(self.removed, "the listener that was added could not be removed")

    def remove(self) -> None:
        try:
            self.purgatory.remove_listener(self.quiet.append)
        except ValueError as error:
            require("is not a listener" in str(error), str(error))
        else:
            self.removed = True

    def call_at(self) -> None:
        ran: list[float] = []
        self.clock.call_at(self.clock.time() + 0.003, lambda: ran.append(self.clock.time()))
        self.extra.append(lambda: require(len(ran) == 1, f"a call of the clock ran {len(ran)} times"))
        self.clock.call_at(self.clock.time(), int).cancel()

    def check_whole(self) -> None:
        """Check that the structure is whole, whatever was called."""
        self.mood.calls = None
        check_whole(self.purgatory.timer, self.purgatory)

    def check_now(self) -> None:
        """Check the invariants when the outer call has returned."""
        purgatory = self.purgatory
        pending = []
        for operation in self.operations:
            self._check_operation(operation)
            if operation.accepted and not operation.done():
                pending.append(operation)
        require(purgatory.num_delayed == len(pending), f"num_delayed is {purgatory.num_delayed}, pending are {pending}")
        require(purgatory.watched >= 0, f"watched is {purgatory.watched}")
        statistics = purgatory.statistics()
        # An operation that was refused after its first try counts too.
        finished = [operation.outcome for operation in self.operations if operation.tries and operation.done()]
        for outcome in ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed"):
            counted = getattr(statistics, outcome)
            require(counted == finished.count(outcome), f"{outcome}: {counted} counted, of {finished}")
        if self.heard is not None:
            require(sorted(self.heard) == sorted(map(str, finished)), f"listeners heard {self.heard}, of {finished}")
        if purgatory.closed:
            require(not pending, f"closed, and {pending} are pending")
            require(len(purgatory.timer) == 0, f"closed, and {len(purgatory.timer)} are in the timer")
        check_purgatory(purgatory)

    def _check_operation(self, operation: Operation) -> None:
        outcome, expirations = operation.outcome, operation.expirations
        forced = outcome in ("completed_at_once", "satisfied")
        counts = (operation.completed, len(expirations), operation.ended, operation.done())
        expected = (forced or outcome in ("expired", "closed"), outcome == "expired", *[outcome is not None] * 2)
        require(counts == expected, f"{operation}: on_complete, on_expiration, on_done ran, it is done: {counts}")
        require(forced <= operation.won <= 1, f"{operation}: force_complete returned True {operation.won} times")
        require(max(expirations, default=0) <= 0, f"{operation}: expired {expirations} s before its deadline")
        if operation.woken and operation.accepted:
            require(operation.done(), f"{operation}: lost wake-up")

    def check_later(self, by_deadlines_first: bool, which: int) -> None:
        """Check that the rest completes and that no object is retained."""
        if by_deadlines_first:
            self._expire()
        self._wake_all(which)
        if not by_deadlines_first:
            self._expire()
        self.check_now()
        require(self.purgatory.num_delayed == 0, f"num_delayed is {self.purgatory.num_delayed}")
        require(len(self.purgatory.timer) == 0, f"{len(self.purgatory.timer)} are in the timer")
        for check in self.extra:
            check()
        self._check_that_nothing_is_retained()
        self.purgatory.close()
        self.clock.advance(1.0)
        require(self.purgatory.watched == 0, f"watched is {self.purgatory.watched} after a close")

    def _wake_all(self, which: int) -> None:
        for operation in self.operations:
            if operation.accepted and not operation.done():
                self.wake(operation, which)
                require(operation.done(), f"{operation}: not found by a check of number {which} of {operation.keys}")

    def _expire(self) -> None:
        self.clock.advance(FAR)
        for operation in self.operations:
            if operation.accepted and not operation.done():
                require(operation.moves.never, f"{operation}: its deadline, {operation.moves.possible}, never came")

    def _check_that_nothing_is_retained(self) -> None:
        references = [weakref.ref(operation) for operation in self.operations if operation.accepted]
        self.operations.clear()
        del self.subject, self.other, self.moved, self.late, self.keyless
        retained = [operation for operation in (reference() for reference in references) if operation is not None]
        require(not retained, f"{retained} are retained")


_BOTH: Final[dict[str, Callable[[World], object]]] = {
    "check, all complete": lambda world: world.check("a", 10),
    "complete_all": lambda world: world.purgatory.complete_all(),
    "cancel_all": lambda world: world.purgatory.cancel_all(),
    "close": lambda world: world.purgatory.close(),
    "aclose": lambda world: world.aclose(),
    "force_complete": lambda world: world.subject.force_complete(),
    "cancel": lambda world: world.subject.cancel(),
    "fail": lambda world: world.fail(world.subject),
    "fail_all": lambda world: world.fail_all(),
    "advance by nothing": lambda world: world.clock.advance(0.0),
    "advance to a deadline": lambda world: world.clock.advance(0.006),
    "advance by a cascade": lambda world: world.clock.advance(0.2),
    "advance by everything": lambda world: world.clock.advance(100.0),
    "purge": lambda world: world.finish_many(),
    "listeners": lambda world: world.listen_for_a_while(),
}
"""The calls that are made inside others, and others inside them."""

OF_A_PURGATORY: Final[dict[str, Callable[[World], object]]] = {
    **_BOTH,
    "watch": lambda world: world.watch_subject(["a"], 0.05),
    "watch on several keys": lambda world: world.watch_subject(["a", "new", "b", "another"], 3.0),
    "watch without a deadline": lambda world: world.watch_subject(["b"], None),
    "watch without keys": lambda world: world.watch_subject([], 0.05),
    "watch without keys, ready at the second try": lambda world: world.watch_subject([], 0.05, 1),
    "watch without keys and a deadline": lambda world: world.watch_subject([], None),
    "watch, due at once": lambda world: world.watch_subject(["a", "c"], 0.0),
    "watch, ready at the first try": lambda world: world.watch_subject(["a", "b"], 0.05, 0),
    "watch, ready at the second try": lambda world: world.watch_subject(["a", "b"], 0.05, 1),
    "check, none completes": lambda world: world.check("a", 0),
    "check, one completes": lambda world: world.check("a", 1),
    "check, all complete, limit 1": lambda world: world.check("a", 10, 1),
    "check soon, all complete": lambda world: world.check("b", 10, soon=True),
    "check soon, limit 1": lambda world: world.check("a", 10, 1, soon=True),
    "cancel_for_key": lambda world: world.purgatory.cancel_for_key(world.key("a")),
    "reschedule earlier": lambda world: world.reschedule(world.moved, 0.007),
    "reschedule later": lambda world: world.reschedule(world.moved, 5.0),
    "reschedule to never": lambda world: world.reschedule(world.moved, None),
    "reschedule one without keys": lambda world: world.reschedule(world.keyless, 0.007),
    "force_complete one without keys": lambda world: world.keyless.force_complete(),
    "a listener": lambda world: world.add_and_remove(),
    "call_at of the clock": lambda world: world.call_at(),
}

INTO_A_PURGATORY: Final[dict[str, Callable[[World], object]]] = {
    **_BOTH,
    "watch": lambda world: world.watch(world.operation(["a"], 0.05)),
    "watch, earlier than all": lambda world: world.watch(world.operation(["a", "b", "new"], 0.002)),
    "watch without a deadline": lambda world: world.watch(world.operation(["b", "new"], None)),
    "watch without keys": lambda world: world.watch(world.operation([], 0.003)),
    "watch without keys and a deadline": lambda world: world.watch(world.operation([], None)),
    "watch, ready": lambda world: world.watch(world.operation(["a"], 0.05, 0)),
    "watch the same operation": lambda world: world.watch(world.subject),
    "check": lambda world: world.purgatory.check_and_complete(world.key("a")),
    "check, limit 1": lambda world: world.check("a", 10, 1),
    "wake the operation": lambda world: world.wake(world.subject),
    "wake the operation, last key": lambda world: world.wake(world.subject, -1),
    "wake another": lambda world: world.wake(world.other, 1),
    "check soon": lambda world: world.purgatory.check_and_complete_soon(world.key("a")),
    "check soon, limit 1": lambda world: world.purgatory.check_and_complete_soon(world.key("a"), 1),
    "cancel_for_key a": lambda world: world.purgatory.cancel_for_key(world.key("a")),
    "cancel_for_key new": lambda world: world.purgatory.cancel_for_key(world.key("new")),
    "force_complete another": lambda world: world.other.force_complete(),
    "cancel another": lambda world: world.other.cancel(),
    "cancel one without keys": lambda world: world.keyless.cancel(),
    "reschedule one without keys": lambda world: world.reschedule(world.keyless, 0.001),
    "reschedule earlier": lambda world: world.reschedule(world.subject, 0.001),
    "reschedule later": lambda world: world.reschedule(world.subject, 7.0),
    "reschedule to never": lambda world: world.reschedule(world.subject, None),
    "reschedule another": lambda world: world.reschedule(world.moved, 0.003),
    "reschedule another within the bucket": lambda world: world.reschedule(world.late, 50.001),
    "remove the listener": lambda world: world.remove(),
    "look": lambda world: (world.purgatory.statistics(), world.purgatory.watched_keys(), repr(world.purgatory)),
    "collect": lambda world: world.clock.call_at(world.clock.time(), int).cancel(),
}

_CALLS_OF_KEYS: Final = list(INTO_A_PURGATORY.values())
"""The calls that keys in a bad mood make."""


class Task(TimerTask):
    """Counts how often it runs."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.ran: list[float] = []
        """Seconds by which each run was early."""
        self.running = False
        self.moves = Moves()
        self.given_up = False
        """Whether it was cancelled, or forgotten by a close."""

    def run(self) -> None:
        self.running = True
        self.ran.append(self.moves.earliest - self.clock.time())
        self.then()

    @is_step
    def then(self) -> None:
        """Be a step: a task that is rescheduled from here on runs again."""


class TimerWorld:
    """A timer with tasks on several levels, and calls."""

    def __init__(self, variant: str) -> None:
        self.clock = Clock(START)
        self.timer = WheelTimer(self.clock)
        self.tasks: list[Task] = []
        self.handles: list[Any] = []
        for delay in (0.0, 0.005, 0.1, 2.0, 50.0):
            self.add(delay)
            self.call_later(delay)
        self.subject, self.handle = self.tasks[2], self.handles[1]
        self.other = self.tasks[6]

    def add(self, delay: float) -> Task:
        task = Task(self.clock)
        self.tasks.append(task)
        with task.moves.to(self.clock.time() + delay):
            self.timer.add(task, self.clock.time() + delay)
        return task

    def add_again(self, task: Task) -> None:
        with task.moves.to(self.clock.time() + 0.5):
            self.timer.add(task, self.clock.time() + 0.5)
            task.given_up = True  # it may run twice, or have run before

    def call_later(self, delay: float) -> None:
        task = Task(self.clock)
        self.tasks.append(task)
        with task.moves.to(self.clock.time() + delay):
            self.handles.append(self.timer.call_later(delay, task.run))

    def cancel(self, task: Task) -> None:
        waits = not task.ran
        if self.timer.cancel(task) and waits:
            require(not task.ran or task.given_up, "it ran though cancel() has taken it out")
            task.given_up = True

    def cancel_handle(self) -> None:
        self.tasks[3].given_up = True
        self.handle.cancel()

    def reschedule(self, task: Task, delay: float, later: bool = False) -> None:
        if task.running:
            task.given_up = True  # it runs again
        with task.moves.to(self.clock.time() + delay):
            if later:
                self.timer.reschedule_later(task, delay)
            else:
                self.timer.reschedule(task, self.clock.time() + delay)
            if task.running:
                task.given_up = True

    def misbehave(self, seed: int) -> None:
        """Do nothing, because there are no keys."""

    def close(self) -> None:
        for task in self.tasks:
            task.given_up = True
        self.timer.close()
        for task in self.tasks:
            task.given_up = True

    def check_whole(self) -> None:
        check_whole(self.timer)

    def check_now(self) -> None:
        for task in self.tasks:
            if task.ran and not task.given_up:
                require(len(task.ran) == 1, f"it ran {len(task.ran)} times")
            require(max(task.ran, default=0) <= 0, f"it ran {task.ran} s early")
        check_timer(self.timer)

    def check_later(self, by_deadlines_first: bool, which: int) -> None:
        waiting = len(self.timer)
        require(waiting <= len(self.tasks), f"{waiting} wait, of {len(self.tasks)}")
        self.clock.advance(FAR)
        for task in self.tasks:
            require(len(task.ran) == 1 or task.given_up, f"due at {task.moves.possible}, it ran {len(task.ran)} times")
        self.check_now()
        require(len(self.timer) == 0, f"{len(self.timer)} are in the timer")


OF_A_TIMER: Final[dict[str, Callable[[TimerWorld], object]]] = {
    "add": lambda world: world.add(0.05),
    "add, earlier than all": lambda world: world.add(0.0),
    "add, later than all": lambda world: world.add(5000.0),
    "call_later": lambda world: world.call_later(0.003),
    "cancel": lambda world: world.cancel(world.subject),
    "cancel a handle": lambda world: world.cancel_handle(),
    "reschedule earlier": lambda world: world.reschedule(world.subject, 0.001),
    "reschedule later": lambda world: world.reschedule(world.subject, 3.0),
    "reschedule within the bucket": lambda world: world.reschedule(world.other, 2.0005),
    "reschedule to now": lambda world: world.reschedule(world.other, 0.0),
    "reschedule_later": lambda world: world.reschedule(world.other, 0.003, later=True),
    "close": lambda world: world.close(),
    "advance by nothing": lambda world: world.clock.advance(0.0),
    "advance to a deadline": lambda world: world.clock.advance(0.006),
    "advance by a cascade": lambda world: world.clock.advance(0.2),
    "advance by everything": lambda world: world.clock.advance(100.0),
}

INTO_A_TIMER: Final[dict[str, Callable[[TimerWorld], object]]] = {
    **OF_A_TIMER,
    "add again": lambda world: world.add_again(world.subject),
    "cancel another": lambda world: world.cancel(world.other),
    "reschedule another": lambda world: world.reschedule(world.other, 0.001),
    "add to the same bucket": lambda world: world.add(0.1),
    "look": lambda world: (len(world.timer), world.timer.statistics(), repr(world.timer), world.timer.wheels),
}


PARTS: Final[dict[str, Part]] = {
    "purgatory": Part(
        World, OF_A_PURGATORY, INTO_A_PURGATORY, ("plain", "odd keys", "listener", "max_pending", "purge")
    ),
    "timer": Part(TimerWorld, OF_A_TIMER, INTO_A_TIMER),
}
