"""Values with versions, and the calls of them."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from purgatory import DelayedOperation, DelayedOperationPurgatory, VersionedValues
from tests.support.injection import is_step, require
from tests.support.invariants import check_purgatory, check_whole
from tests.support.worlds.common import FAR, START, Clock, OddKey

Value = tuple[str, int]
"""A state, and a number of its own."""


@is_step
def is_ready(value: Value) -> bool:
    return value[0] == "ready"


class VersionsWorld:
    """Two keys with values and one without, and waits for changes and for states of them."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.clock = Clock(START)
        self.values: VersionedValues[Hashable, Value] = VersionedValues(
            purgatory=DelayedOperationPurgatory(clock=self.clock)
        )
        self.given: dict[str, list[Value]] = {}
        """The values that each key was given."""
        self.versions: dict[str, int] = {}
        """The last version of each key that is known."""
        self.deleted: set[str] = set()
        self.changes: list[tuple[dict[str, int], DelayedOperation[Any]]] = []
        self.states: list[tuple[str, DelayedOperation[Any]]] = []
        self.met: list[DelayedOperation[Any]] = []
        """Waits for a state that were there before it was set."""
        self.forced = False
        self.numbers = 0
        for name in "ab":
            self.set(name, "new")
        self.wait(["a", "b", "c"], None)
        self.wait(["a"], 0.005)
        self.wait(["b", "c"], 2.0)
        for timeout in (None, 0.005):
            self.until("a", timeout)
        self.until("c", 2.0)
        self.subject = self.changes[0][1]

    def key(self, name: str) -> Hashable:
        """A new key, equal to all of that name."""
        return OddKey(name) if self.variant == "odd keys" else name

    def set(self, name: str, state: str) -> None:
        with self.giving([name], state) as value:
            version = self.values.set(self.key(name), value)
        self.versions[name] = max(version, self.versions.get(name, 0))

    def update(self, names: Iterable[str], state: str) -> None:
        with self.giving(names, state) as value:
            self.values.update({self.key(name): value for name in names})

    @contextmanager
    def giving(self, names: Iterable[str], state: str) -> Iterator[Value]:
        self.numbers += 1
        value = (state, self.numbers)
        waiting = [wait for name, wait in self.states if name in names] if state == "ready" else []
        for name in names:
            self.given.setdefault(name, []).append(value)
        yield value
        self.met += waiting

    def delete(self, name: str) -> None:
        self.deleted.add(name)
        self.values.delete(self.key(name))

    def seen(self, names: Iterable[str]) -> dict[str, int]:
        return {name: self.values.get(self.key(name))[0] for name in names}

    def wait(self, names: Iterable[str], timeout: float | None, seen: dict[str, int] | None = None) -> None:
        seen = self.seen(names) if seen is None else seen
        by_key = {self.key(name): version for name, version in seen.items()}
        self.changes.append((seen, self.values.changed(by_key, timeout)))

    def until(self, name: str, timeout: float | None) -> None:
        self.states.append((name, self.values.until(self.key(name), is_ready, timeout)))

    def force(self) -> None:
        self.forced = True
        self.subject.force_complete()

    def aclose(self) -> None:
        for _ in self.values.aclose().__await__():
            pass

    def check_whole(self) -> None:
        check_whole(self.values.purgatory.timer, self.values.purgatory)

    def check_now(self) -> None:
        for name, given in self.given.items():
            version, value = self.values.get(self.key(name))
            if version or name not in self.deleted:
                require(version >= self.versions.get(name, 0), f"{name} has {version}, after {self.versions}")
                require(value in given, f"{name} is {value}, which was never set")
        for seen, wait in self.changes:
            if not wait.done():
                now = self.seen(seen)
                require(all(now[name] <= seen[name] for name in seen), f"lost wake-up: saw {seen}, now {now}")
            elif wait.outcome in ("satisfied", "completed_at_once") and not (self.forced and wait is self.subject):
                found = {str(key): version for key, (version, _) in wait.result().items()}
                require(found, f"{wait!r} yields nothing newer than {seen}")
                require(all(version > seen[name] for name, version in found.items()), f"{found} is not newer: {seen}")
        for name, wait in self.states:
            if wait.outcome in ("satisfied", "completed_at_once"):
                require(wait.result()[1] in self.given[name], f"{wait.result()} was never set")
                require(is_ready(wait.result()[1]), f"{wait.result()} does not satisfy the predicate")
        require(all(wait.done() for wait in self.met), f"a state was missed: {self.met}")
        purgatory = self.values.purgatory
        pending = sum(not wait.done() for _, wait in (*self.changes, *self.states))
        require(self.values.num_waiting == pending, f"num_waiting is {self.values.num_waiting}, not {pending}")
        require(not (purgatory.closed and pending), f"closed, and {pending} are pending")
        check_purgatory(purgatory)

    def check_later(self, by_deadlines_first: bool, which: int) -> None:
        if by_deadlines_first:
            self.clock.advance(FAR)
            self.check_now()
        self.update("abcd", "ready")
        self.clock.advance(FAR)
        self.check_now()
        require(self.values.num_waiting == 0, "some wait for ever")
        require(len(self.values.purgatory.timer) == 0, "some are left in the timer")
        require(not self.values._announced, "a set is announced for ever")
        self.values.close()
        require(self.values.purgatory.watched == 0, "some entries are left")


OF_VERSIONS: Final[dict[str, Callable[[VersionsWorld], object]]] = {
    "set": lambda world: world.set("a", "new"),
    "set, ready": lambda world: world.set("a", "ready"),
    "set, without a value": lambda world: world.set("c", "ready"),
    "update": lambda world: world.update("abc", "ready"),
    "delete": lambda world: world.delete("a"),
    "changed": lambda world: world.wait("abc", 0.05),
    "changed already": lambda world: world.wait("ab", None, {"a": 0, "b": 0, "c": 0}),
    "changed, no value": lambda world: world.wait("d", 0.5),
    "until": lambda world: world.until("a", 0.05),
    "close": lambda world: world.values.close(),
    "aclose": lambda world: world.aclose(),
    "advance the clock": lambda world: world.clock.advance(0.006),
    "advance the clock far": lambda world: world.clock.advance(100.0),
}

INTO_VERSIONS: Final[dict[str, Callable[[VersionsWorld], object]]] = {
    **OF_VERSIONS,
    "cancel": lambda world: world.subject.cancel(),
    "force_complete": lambda world: world.force(),
    "reschedule": lambda world: world.subject.reschedule(0.001),
    "cancel_for_key": lambda world: world.values.purgatory.cancel_for_key(world.key("a")),
    "check": lambda world: world.values.purgatory.check_and_complete(world.key("a")),
    "set new": lambda world: world.set("d", "ready"),
}
