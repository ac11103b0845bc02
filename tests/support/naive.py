"""A naive purgatory: a list of operations and a list of deadlines. No wheels, no watcher lists, no purge.

It says what must happen, and the real one must do just that. Both worlds perform the same plans, which an operation
carries out in its methods, and note each event. The naive one is told what the real one has noted, and compares event
by event, so that the first difference is where they part. Where more than one order is right (operations due in one
tick, keys that were asked for), it follows the real one and asserts that it had the right to.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import purgatory.operation
from purgatory import PurgatoryClosed, PurgatoryFull

Event = tuple[Any, ...]
EXITS = (SystemExit, KeyboardInterrupt)


@dataclass(frozen=True)
class Action:
    """Something that is done to a purgatory, from outside or from inside an operation."""

    what: str
    key: str = ""
    target: int = 0
    seconds: float | None = None
    error: type[BaseException] = LookupError
    plan: "Plan | None" = None


@dataclass(frozen=True)
class Plan:
    """An operation: what it waits for, and what its methods do, `tries` one at each try."""

    keys: tuple[str, ...]
    timeout: float | None = None
    ready: bool = False
    tries: tuple[tuple[Action, ...], ...] = ()
    completes: tuple[Action, ...] = ()
    expires: tuple[Action, ...] = ()


class Planned(Protocol):
    """What plans need of an operation, real or naive."""

    number: int
    ready: bool
    tried: int

    @property
    def plan(self) -> Plan: ...

    @property
    def world(self) -> "World": ...

    def expired(self) -> bool: ...

    def force_complete(self) -> bool: ...

    def cancel(self) -> bool: ...


class World(Protocol):
    """What actions need of a purgatory, real or naive."""

    operations: list[Any]

    def note(self, *event: object) -> None: ...

    def watch(self, plan: Plan) -> None: ...

    def check(self, key: str) -> int: ...

    def check_soon(self, key: str) -> None: ...

    def cancel_for_key(self, key: str) -> list[int]: ...

    def reschedule(self, operation: Any, seconds: float | None) -> bool: ...

    def complete_all(self) -> int: ...

    def cancel_all(self) -> int: ...

    def close(self) -> None: ...


def perform(world: World, action: Action, inside: Planned | None = None) -> None:
    """Do it, and note what came of it. A target below zero is the operation it is done inside of."""
    target = inside
    if world.operations and (inside is None or action.target >= 0):
        target = world.operations[action.target % len(world.operations)]
    match action.what:
        case "watch" if action.plan is not None:
            world.watch(action.plan)
        case "make true" if target is not None:
            target.ready = True
        case "check":
            world.note("checked", action.key, world.check(action.key))
        case "check soon":
            world.check_soon(action.key)
        case "force" if target is not None:
            world.note("forced", target.number, target.force_complete())
        case "cancel" if target is not None:
            world.note("cancelled", target.number, target.cancel())
        case "cancel for key":
            world.note("cancelled for", action.key, world.cancel_for_key(action.key))
        case "reschedule" if target is not None:
            world.note("rescheduled", target.number, world.reschedule(target, action.seconds))
        case "complete all":
            world.note("completed all", world.complete_all())
        case "cancel all":
            world.note("cancelled all", world.cancel_all())
        case "close":
            world.close()
            world.note("closed")
        case "raise":
            raise action.error


def try_complete(operation: Planned) -> bool:
    """An operation's `try_complete`, by its plan."""
    operation.world.note("tries", operation.number)
    tries = operation.plan.tries
    actions = tries[operation.tried] if operation.tried < len(tries) else ()
    operation.tried += 1
    for action in actions:
        perform(operation.world, action, operation)
    return operation.ready and operation.force_complete()


def on_complete(operation: Planned) -> str:
    """An operation's `on_complete`, by its plan."""
    operation.world.note("completes", operation.number, operation.expired())
    for action in operation.plan.completes:
        perform(operation.world, action, operation)
    return f"result of {operation.number}"


def on_expiration(operation: Planned) -> None:
    """An operation's `on_expiration`, by its plan."""
    operation.world.note("expires", operation.number)
    for action in operation.plan.expires:
        perform(operation.world, action, operation)


class NaiveOperation:
    """An operation of the naive purgatory."""

    def __init__(self, world: "NaivePurgatory", number: int, plan: Plan) -> None:
        self.world = world
        self.number = number
        self.plan = plan
        self.ready = plan.ready
        self.tried = 0
        self.state = "pending"
        self.watched = False
        self.arrived = 0.0
        self.deadline: float | None = None
        self.timeout = plan.timeout
        self.error: BaseException | None = None
        self.seen = False

    def expired(self) -> bool:
        return self.state in ("expiring", "expired")

    def force_complete(self) -> bool:
        self.world.note("forces", self.number, self.state == "pending")
        if self.state != "pending":
            return False
        self.state = "completing"
        if self.world.depth < purgatory.operation.NESTING:
            self.world.complete(self)
        else:
            self.world.put_off.append(self)
        return True

    def cancel(self) -> bool:
        if self.state != "pending":
            return False
        self.state = "cancelled"
        self.world.finish(self)
        return True

    def fail(self, error: BaseException) -> None:
        if self.state in ("completing", "expiring"):
            self.state = "failed"
            self.error = error
            if isinstance(error, EXITS):
                raise error
        else:
            self.late(error)

    def late(self, error: BaseException) -> None:
        if isinstance(error, EXITS):
            raise error
        self.world.note("reported", self.number, type(error).__name__)


class NaivePurgatory:
    """The operations in watch order, and what the counts must be."""

    def __init__(self, tick: float, purge_interval: int, max_pending: int | None, listened: bool) -> None:
        self.listened = listened
        self.tick = tick
        self.purge_interval = purge_interval
        self.max_pending = max_pending
        self.operations: list[NaiveOperation] = []
        self.watching: list[NaiveOperation] = []
        self.events: list[Event] = []
        self.now = 0.0
        self.numbers = 0
        self.depth = 0
        self.put_off: list[NaiveOperation] = []
        self.queue: list[str] = []
        self.walking = ""
        self.again = False
        self.closed = False
        self.purging = False
        self.estimated_total = 0
        self.purges = 0
        self.registered = 0
        self.peak_delayed = 0
        self.outcomes = dict.fromkeys(["completed at once", "satisfied", "expired", "cancelled", "failed"], 0)

    def note(self, *event: object) -> None:
        assert self.events, f"nothing more should happen, but {event}"
        assert self.events.pop(0) == event

    def pending(self) -> list[NaiveOperation]:
        return [operation for operation in self.watching if operation.state == "pending"]

    def watch(self, plan: Plan) -> None:
        operation = NaiveOperation(self, self.numbers, plan)
        self.numbers += 1
        self.note("watches", operation.number)
        self.operations.append(operation)
        operation.arrived = now = self.now
        if self.closed:
            return self.refuse(operation, PurgatoryClosed)
        self.attempt(operation)
        if operation.state != "pending":
            return None
        if self.closed:
            return self.refuse(operation, PurgatoryClosed)
        if self.max_pending is not None and len(self.pending()) >= self.max_pending:
            return self.refuse(operation, PurgatoryFull)
        operation.watched = True
        self.watching.append(operation)
        self.registered += len(set(plan.keys))
        self.estimated_total += 1
        self.peak_delayed = max(self.peak_delayed, len(self.pending()))
        self.attempt(operation)
        if operation.state == "pending" and operation.deadline is None and operation.timeout is not None:
            operation.deadline = now + operation.timeout
        return None

    def refuse(self, operation: NaiveOperation, error: type[Exception]) -> None:
        self.note("refused", operation.number, error.__name__)
        self.operations.remove(operation)

    def attempt(self, operation: NaiveOperation) -> bool:
        try:
            return try_complete(operation)
        except BaseException as error:
            if operation.state != "pending":
                operation.late(error)
                return False
            operation.state = "completing"
            try:
                operation.fail(error)
            finally:
                self.finish(operation)
            return False

    def complete(self, operation: NaiveOperation) -> None:
        expires = operation.state == "expiring"
        self.depth += 1
        try:
            try:
                on_complete(operation)
            except BaseException as error:
                operation.fail(error)
            if expires:
                try:
                    on_expiration(operation)
                except BaseException as error:
                    operation.fail(error)
        finally:
            self.finish(operation)
            try:
                if self.depth == 1:
                    self.complete_put_off()
            finally:
                self.depth -= 1

    def complete_put_off(self) -> None:
        leaving: BaseException | None = None
        while self.put_off:
            try:
                self.complete(self.put_off.pop(0))
            except EXITS as error:
                leaving = error
        if leaving is not None:
            raise leaving

    def finish(self, operation: NaiveOperation) -> None:
        state = operation.state
        if state == "completing":
            operation.state = state = "satisfied" if operation.watched else "completed at once"
        elif state == "expiring":
            operation.state = state = "expired"
        self.outcomes[state] += 1
        if self.listened:
            self.note(*self.told(operation, state))
        self.purge_if_due()

    def told(self, operation: NaiveOperation, state: str) -> Event:
        """What a listener is told of an operation that is in that state now."""
        late = None
        if state == "expired":
            assert operation.deadline is not None
            late = self.now - operation.deadline
        waited = 0.0 if state == "completed at once" else self.now - operation.arrived
        keys = tuple(dict.fromkeys(operation.plan.keys))
        return ("tells", keys, operation.arrived, operation.timeout, waited, state.replace(" ", "_"), late)

    def purge_if_due(self) -> None:
        pending = len(self.pending())
        if self.estimated_total - pending > self.purge_interval and not self.purging:
            self.estimated_total = pending
            self.purges += 1
            self.purging = True

    def check(self, key: str) -> int:
        completed = 0
        for operation in [operation for operation in self.pending() if key in operation.plan.keys]:
            if operation.state == "pending":
                completed += self.attempt(operation)
        return completed

    def check_soon(self, key: str) -> None:
        # Whether there were dead entries is not the model's business, but that there was somebody to be tried is.
        listed = self.events[0][2]
        self.note("asks for", key, listed)
        assert listed or not any(key in operation.plan.keys for operation in self.pending())
        if key == self.walking:
            self.again = True
        elif listed and key not in self.queue:
            self.queue.append(key)

    def cancel_for_key(self, key: str) -> list[int]:
        return [each.number for each in self.pending() if key in each.plan.keys and each.cancel()]

    def reschedule(self, operation: NaiveOperation, seconds: float | None) -> bool:
        if operation.state != "pending" or not operation.watched:
            return False
        operation.timeout = seconds
        operation.deadline = None if seconds is None else self.now + seconds
        return True

    def complete_all(self) -> int:
        before = self.pending()
        completed = 0
        leaving: BaseException | None = None
        while self.events and self.events[0][0] == "forces":
            (operation,) = [each for each in self.operations if each.number == self.events[0][1]]
            assert operation.watched
            try:
                completed += operation.force_complete()
            except EXITS as error:
                leaving = error
        assert not any(operation.state == "pending" for operation in before)
        if leaving is not None:
            raise leaving
        return completed

    def cancel_all(self) -> int:
        pending = self.pending()
        if self.listened:  # the order is that of the lists, which is not the model's business
            pending.sort(key=lambda operation: repr(self.told(operation, "cancelled")))
            self.events[: len(pending)] = sorted(self.events[: len(pending)], key=repr)
        return sum(operation.cancel() for operation in pending)

    def close(self) -> None:
        self.closed = True
        try:
            self.complete_all()
        finally:
            self.queue.clear()
            self.purging = False
            self.estimated_total = len(self.pending())

    def turn(self) -> None:
        """One call of the clock's."""
        _, name, number, self.now = turn = self.events[0]
        self.note(*turn)
        match name:
            case "_wake":
                while self.events and self.events[0][0] == "completes":
                    self.expire(self.events[0][1])
            case "_check_queue":
                self.check_queue()
            case "_purge_slice":
                assert self.purging
                self.purging = False
                self.purge_if_due()
            case "_look_back":
                (operation,) = [each for each in self.operations if each.number == number]
                assert operation.state == "failed"
                if not operation.seen:
                    operation.seen = True
                    error = operation.error
                    odd = type(error).__name__ in ("CancelledError", "StopIteration")
                    self.note("reported", number, "PurgatoryError" if odd else type(error).__name__)

    def expire(self, number: int) -> None:
        (operation,) = [each for each in self.operations if each.number == number]
        assert operation.state == "pending"
        deadline = operation.deadline
        assert deadline is not None
        slack = self.tick + (self.now + self.tick) * 1e-15
        assert deadline <= self.now, "early"
        assert self.now < deadline + slack, "late"
        for other in self.pending():
            assert other.deadline is None or deadline < other.deadline + slack, "out of order by more than a tick"
        operation.state = "expiring"
        self.complete(operation)

    def check_queue(self) -> None:
        turns = len(self.queue)
        try:
            while turns and self.queue:
                turns -= 1
                key = self.queue.pop(0)
                self.walking, self.again = key, False
                try:
                    self.check(key)
                except EXITS:
                    self.again = True
                    raise
                finally:
                    self.walking = ""
                    if self.again:
                        self.queue.append(key)
        finally:
            if self.closed:
                self.queue.clear()

    def settle(self) -> None:
        """After the clock has come to `now`: nothing that is due was forgotten."""
        for operation in self.pending():
            if operation.deadline is not None:
                assert operation.deadline > self.now - self.tick - (self.now + self.tick) * 1e-15, "missed"
        assert self.queue == []
        assert not self.purging
