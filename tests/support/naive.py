"""A naive purgatory: a list of operations, deadlines that are searched, and for each key a plain list of operations.

It defines the behaviour of the real one. Both worlds perform the same plans, which an operation
carries out in its methods, and note each event. The naive one gets the events of the real one, and compares event
by event, so that the first difference is where they part. Where more than one order is right (operations due in one
tick, keys that were asked for), it follows the real one and asserts that it had the right to. If several requests to
exit come while one operation ends, any of them may come out, so only that one does is an event.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import purgatory._core.operation
from purgatory import PurgatoryClosed, PurgatoryFull

Event = tuple[Any, ...]
EXITS = (SystemExit, KeyboardInterrupt)


@dataclass(frozen=True)
class Action:
    """A call of a purgatory, from outside or from inside an operation."""

    what: str
    key: str = ""
    target: int = 0
    seconds: float | None = None
    error: type[BaseException] = LookupError
    plan: "Plan | None" = None
    limit: int | None = None


@dataclass(frozen=True)
class Plan:
    """An operation: its keys, its timeout and the actions of its methods, one of `tries` at each try."""

    keys: tuple[str, ...]
    timeout: float | None = None
    ready: bool = False
    tries: tuple[tuple[Action, ...], ...] = ()
    completes: tuple[Action, ...] = ()
    expires: tuple[Action, ...] = ()
    ends: tuple[Action, ...] = ()


World = Any
"""A purgatory, real or naive."""


def perform(world: World, action: Action, inside: Any = None) -> None:
    """Do `action` and note its result. A target below zero is the operation inside of which it is done."""
    target = inside
    if world.operations and (inside is None or action.target >= 0):
        target = world.operations[action.target % len(world.operations)]
    match action.what:
        case "watch" if action.plan is not None:
            world.watch(action.plan)
        case "make true" if target is not None:
            target.ready = True
        case "check":
            world.note("checked", action.key, world.check(action.key, action.limit))
        case "check soon":
            world.check_soon(action.key, action.limit)
        case "force" if target is not None:
            world.note("forced", target.number, target.force_complete())
        case "cancel" if target is not None:
            world.note("cancelled", target.number, target.cancel())
        case "fail" if target is not None:
            world.note("failed", target.number, target.fail(KeyError(target.number)))
        case "cancel for key":
            world.note("cancelled for", action.key, world.cancel_for_key(action.key))
        case "reschedule" if target is not None:
            world.note("rescheduled", target.number, world.reschedule(target, action.seconds))
        case "complete all" | "cancel all" | "fail all" | "close":
            world.note(action.what, world.end_all(action.what.partition(" ")[0]))
        case "raise":
            raise action.error


class Planned:
    """An operation, real or naive, that carries out a plan in its methods."""

    outcome: Any
    expired: Callable[[], bool]
    force_complete: Callable[[], bool]

    def __init__(self, world: World, number: int, plan: Plan) -> None:
        self.world = world
        self.number = number
        self.plan = plan
        self.ready = plan.ready
        self.tried = 0

    def perform(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            perform(self.world, action, self)

    def try_complete(self) -> bool:
        self.world.note("tries", self.number)
        tried, self.tried = self.tried, self.tried + 1
        self.perform(self.plan.tries[tried] if tried < len(self.plan.tries) else ())
        return bool(self.ready and self.force_complete())

    def on_complete(self) -> str:
        self.world.note("completes", self.number, self.expired())
        self.perform(self.plan.completes)
        return f"result of {self.number}"

    def on_expiration(self) -> None:
        self.world.note("expires", self.number, self.outcome)
        self.perform(self.plan.expires)

    def on_done(self) -> None:
        self.world.note("done", self.number, self.outcome, *self.world.counts())
        self.perform(self.plan.ends)


@contextmanager
def noting_exits(world: World) -> Iterator[None]:
    """Note a request to exit as an event."""
    try:
        yield
    except EXITS:
        world.note("exits")


@contextmanager
def keeping(exits: list[BaseException]) -> Iterator[None]:
    """Keep a request to exit in `exits`."""
    try:
        yield
    except EXITS as error:
        exits.append(error)


def raise_first(exits: list[BaseException]) -> None:
    if exits:
        raise exits[0]


class NaiveOperation(Planned):
    """An operation of the naive purgatory."""

    def __init__(self, world: "NaivePurgatory", number: int, plan: Plan) -> None:
        super().__init__(world, number, plan)
        self.outcome: str | None = None
        self.is_done = False
        self.watched = False
        self.arrived = 0.0
        self.deadline: float | None = None
        self.moves = 0
        self.moved: float | None = plan.timeout
        """Seconds from the arrival to the deadline, as a listener is told."""
        self.timeout = plan.timeout
        self.error: BaseException | None = None

    def expired(self) -> bool:
        return self.outcome == "expired"

    def force_complete(self) -> bool:
        return self.end("forces", "satisfied" if self.watched else "completed_at_once")

    def cancel(self) -> bool:
        return self.end("cancels", "cancelled")

    def fail(self, exception: BaseException, /) -> bool:
        if self.outcome is None:
            self.error = exception
        return self.end(None, "failed")

    def end(self, event: str | None, outcome: str) -> bool:
        is_pending = self.outcome is None
        if event is not None:
            self.world.note(event, self.number, is_pending)
        if is_pending:
            self.outcome = outcome
            self.world.complete(self)
        return is_pending

    def late(self, error: BaseException) -> None:
        if isinstance(error, EXITS):
            raise error
        self.world.note("reported", self.number, type(error).__name__)


class Listed:
    """The list of a key: operations in watch order, the finished ones until it is compacted."""

    def __init__(self) -> None:
        self.operations: list[NaiveOperation] = []
        self.head = 0


class NaivePurgatory:
    """The operations in watch order, and the expected counts."""

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
        self.lists: dict[str, Listed] = {}
        self.queue: list[str] = []
        self.requested: dict[str, float] = {}
        self.closed = False
        self.purging = False
        self.purges = 0
        self.registered = 0
        self.peak_delayed = 0
        self.missed = 0
        self.at_deadline: NaiveOperation | None = None
        self.outcomes = dict.fromkeys(["completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed"], 0)

    def note(self, *event: object) -> None:
        assert self.events, f"nothing more should happen, but {event}"
        real = self.events.pop(0)
        assert real == event, f"the real one has {real}, the naive one {event}"

    def pending(self) -> list[NaiveOperation]:
        return [operation for operation in self.watching if operation.outcome is None]

    def refusal(self, plan: Plan) -> type[Exception] | None:
        if self.closed:
            return PurgatoryClosed
        if self.max_pending is not None and len(self.pending()) >= self.max_pending:
            return PurgatoryFull
        return None if plan.keys or plan.timeout is not None else ValueError

    def watch(self, plan: Plan) -> None:
        operation = NaiveOperation(self, self.numbers, plan)
        self.numbers += 1
        self.note("watches", operation.number)
        self.operations.append(operation)
        operation.arrived = now = self.now
        if self.closed:
            return self.refuse(operation, PurgatoryClosed)
        self.attempt(operation)
        if operation.outcome is not None:
            return None
        if (refusal := self.refusal(plan)) is not None:
            operation.cancel()
            return self.refuse(operation, refusal)
        operation.watched = True
        operation.deadline = None if operation.timeout is None else now + operation.timeout
        self.watching.append(operation)
        self.registered += len(set(plan.keys))
        for key in dict.fromkeys(plan.keys):
            self.lists.setdefault(key, Listed()).operations.append(operation)
        self.peak_delayed = max(self.peak_delayed, len(self.pending()))
        self.attempt(operation)
        return None

    def refuse(self, operation: NaiveOperation, error: type[Exception]) -> None:
        self.note("refused", operation.number, error.__name__)
        self.operations.remove(operation)

    def attempt(self, operation: NaiveOperation) -> None:
        try:
            operation.try_complete()
        except BaseException as error:
            if operation.outcome is not None:
                operation.late(error)
                return
            operation.fail(error)
            if isinstance(error, EXITS):
                raise

    def complete(self, operation: NaiveOperation) -> None:
        """End an operation that has an outcome, and those whose ends were put off. Any request to exit comes out."""
        if self.depth >= vars(purgatory._core.operation)["NESTING"]:
            self.put_off.append(operation)
            return
        self.depth += 1
        exits: list[BaseException] = []
        with keeping(exits):
            self.run(operation)
        while self.depth == 1 and self.put_off:
            with keeping(exits):
                self.run(self.put_off.pop(0))
        self.depth -= 1
        raise_first(exits)

    def run(self, operation: NaiveOperation) -> None:
        exits: list[BaseException] = []
        if operation.outcome not in ("cancelled", "failed"):
            expires = operation.expired()
            try:
                operation.on_complete()
            except BaseException as error:
                operation.outcome, operation.error = "failed", error
                exits += [error] * isinstance(error, EXITS)
            if expires:
                try:
                    operation.on_expiration()
                except BaseException as error:
                    with keeping(exits):
                        operation.late(error)
        with keeping(exits):
            self.finish(operation)
        raise_first(exits)

    def finish(self, operation: NaiveOperation) -> None:
        outcome = operation.outcome
        assert outcome is not None
        operation.is_done = True
        self.outcomes[outcome] += 1
        missed = outcome == "satisfied" and self.at_deadline is operation
        self.missed += missed
        exits: list[BaseException] = []
        try:
            operation.on_done()
        except BaseException as error:
            with keeping(exits):
                operation.late(error)
        if self.listened:
            self.note(*self.record(operation, outcome, missed))
        self.purge_if_due()
        raise_first(exits)

    def record(self, operation: NaiveOperation, outcome: str, missed: bool) -> Event:
        """The call of a listener with an operation that has ended."""
        late = None
        if outcome == "expired":
            assert operation.deadline is not None
            late = self.now - operation.deadline
        waited = 0.0 if outcome == "completed_at_once" else self.now - operation.arrived
        keys = tuple(dict.fromkeys(operation.plan.keys))
        times = operation.arrived, operation.timeout, waited, outcome, late, operation.moved
        return ("listener called", "purgatory", "Real", keys, *times, missed)

    def counts(self) -> tuple[int, int, int]:
        """The statistics that an end has changed by `on_done`."""
        return len(self.pending()), sum(self.outcomes.values()), self.missed

    def entries(self) -> list[NaiveOperation]:
        """The entries of all lists."""
        return [operation for listed in self.lists.values() for operation in listed.operations]

    def purge_if_due(self) -> None:
        dead = sum(operation.outcome is not None for operation in self.entries())
        if dead > max(self.purge_interval, len(self.entries()) - dead) and not self.purging:
            self.purges += 1
            self.purging = True

    def compact(self, listed: Listed) -> None:
        if all(operation.outcome is None for operation in listed.operations):
            return
        listed.operations = [operation for operation in listed.operations if operation.outcome is None]
        listed.head = 0
        self.lists = {key: other for key, other in self.lists.items() if other.operations}

    def check(self, key: str, limit: int | None = None) -> int:
        if key not in self.lists:
            return 0
        completed, left, exits = self.walk(self.lists[key], math.inf if limit is None else limit)
        if left:
            self.request(key, left)
        raise_first(exits)
        return completed

    def walk(self, listed: Listed, limit: float, soon: bool = False) -> tuple[int, float, list[BaseException]]:
        """Try the present operations until `limit` have completed, or one requests to exit.

        Returns how many have completed, the limit for those that an exit has left untried, and the exit.
        """
        operations = listed.operations
        untried = operations[listed.head :]
        completed = 0
        exits: list[BaseException] = []
        while untried and completed < limit and not exits:
            operation = untried.pop(0)
            if operation.outcome is None:
                with keeping(exits):
                    self.attempt(operation)
                completed += operation.outcome == "satisfied"
        if not (exits and soon) and (not untried or self.skip_dead(listed, operations)):
            self.compact(listed)
        return completed, limit - completed if exits and untried else 0, exits

    def skip_dead(self, listed: Listed, operations: list[NaiveOperation]) -> bool:
        """Note the dead at the front. Returns whether they are half of the list that was walked."""
        if listed.operations is not operations:
            return False
        while listed.head < len(operations) and operations[listed.head].outcome is not None:
            listed.head += 1
        return 2 * listed.head >= len(operations)

    def check_soon(self, key: str, limit: int | None) -> None:
        self.note("asks for", key, key in self.lists)
        self.request(key, math.inf if limit is None else limit)

    def request(self, key: str, limit: float) -> None:
        if key in self.lists or key in self.requested:
            if key not in self.requested:
                self.requested[key] = 0
                self.queue.append(key)
            self.requested[key] += limit

    def cancel_for_key(self, key: str) -> list[int]:
        if key not in self.lists:
            return []
        cancelled = []
        exits: list[BaseException] = []
        for operation in [each for each in self.lists[key].operations if each.outcome is None]:
            with keeping(exits):
                if operation.cancel():
                    cancelled.append(operation.number)
        if key in self.lists:
            self.compact(self.lists[key])
        raise_first(exits)
        return cancelled

    def reschedule(self, operation: NaiveOperation, seconds: float | None) -> bool:
        if operation.outcome is not None or not operation.watched:
            return False
        if seconds is None and not operation.plan.keys:
            return False
        operation.moves += 1
        operation.timeout = seconds
        operation.deadline = None if seconds is None else self.now + seconds
        operation.moved = None if operation.deadline is None else operation.deadline - operation.arrived
        return True

    def end_all(self, what: str) -> int | None:
        """End all, in the order of the real one: it is that of the lists, which the model does not have."""
        event, outcome = {"cancel": ("cancels", "cancelled"), "fail": ("fails", "failed")}.get(
            what, ("closes", "closed")
        )
        self.closed |= what == "close"
        before = self.pending()
        ended = 0
        exits: list[BaseException] = []
        while self.events and self.events[0][0] == event:
            operation = self.numbered(self.events[0][1])
            assert operation.watched
            if what == "fail" and operation.outcome is None:
                operation.error = KeyError("all")
            with keeping(exits):
                ended += operation.end(event, outcome)
        assert not any(operation.outcome is None for operation in before)
        self.note("all done")
        if what == "close":
            self.queue.clear()
            self.requested.clear()
            self.purging = False
            for listed in list(self.lists.values()):
                self.compact(listed)
        raise_first(exits)
        return None if what == "close" else ended

    def numbered(self, number: int) -> NaiveOperation:
        (operation,) = [each for each in self.operations if each.number == number]
        return operation

    def clock_call(self) -> None:
        """Run one call of the clock."""
        _, name, _, self.now = event = self.events[0]
        self.note(*event)
        match name:
            case "_wake":
                while self.events and self.events[0][0] == "tries":
                    self.expire(self.events[0][1])
            case "_slice":
                self.check_queue()
            case "_purge_slice":
                assert self.purging
                for listed in list(self.lists.values()):
                    self.compact(listed)
                self.purging = False
                self.purge_if_due()
            case _:
                raise AssertionError(name)

    def expire(self, number: int) -> None:
        operation = self.numbered(number)
        deadline = operation.deadline
        assert operation.outcome is None
        assert deadline is not None
        slack = self.tick + (self.now + self.tick) * 1e-15
        assert deadline <= self.now, "early"
        assert self.now < deadline + slack, "late"
        for other in self.pending():
            assert other.deadline is None or deadline < other.deadline + slack, "out of order by more than a tick"
        moves = operation.moves
        self.at_deadline = operation
        try:
            self.attempt(operation)
        finally:
            self.at_deadline = None
        if operation.moves == moves:
            operation.end(None, "expired")

    def check_queue(self) -> None:
        """Check the keys that were requested. An exit leaves the others for the next call."""
        passes = len(self.queue)
        exits: list[BaseException] = []
        while passes and self.queue and not exits:
            passes -= 1
            key = self.queue.pop(0)
            limit, self.requested[key] = self.requested[key], 0
            left = 0.0
            if key in self.lists:
                _, left, exits = self.walk(self.lists[key], limit, soon=True)
            if key not in self.requested:
                continue  # closed meanwhile
            self.requested[key] += left
            if self.requested[key]:
                self.queue.append(key)
            else:
                del self.requested[key]
        raise_first(exits)

    def settle(self) -> None:
        """Check, when the clock has come to `now`, that no due work is left."""
        for operation in self.pending():
            if operation.deadline is not None:
                assert operation.deadline > self.now - self.tick - (self.now + self.tick) * 1e-15, "missed"
        assert self.queue == []
        assert not self.purging
