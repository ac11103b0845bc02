"""Keys whose hash and equality change, or that raise, at any call: the structures stay whole and no operation is lost.

A program must not do so. If it does, a check may miss what it looks for, but deadlines come, a close ends all, the
counts are right, and no memory is damaged.
"""

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import DelayedOperationPurgatory
from tests.support.invariants import check_timer, check_whole
from tests.support.operations import FaultLog, Flag


class Unstable(Exception):
    """What a key raises."""


class Key:
    """Equals the keys of its name, unless the world wants something else at this call."""

    def __init__(self, world: "World", name: int) -> None:
        self.world = world
        self.name = name

    def __repr__(self) -> str:
        return f"<key {self.name}>"

    def __hash__(self) -> int:
        self.world.act(self)
        return self.name

    def __eq__(self, other: object) -> bool:
        action = self.world.act(self)
        if action in ("equal", "unequal"):
            return action == "equal"
        return isinstance(other, Key) and self.name == other.name


ACTIONS: Final = ("stay", "rename", "rename another", "all alike", "raise", "equal", "unequal", "collect")


@dataclass
class World:
    """A purgatory, its operations and keys, and what the keys do at the next calls of their methods."""

    actions: list[str] = field(default_factory=list)
    clock: FaultLog = field(default_factory=FaultLog)
    operations: list[Flag] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.purgatory = DelayedOperationPurgatory(clock=self.clock, purge_interval=3)
        self.keys = [Key(self, name) for name in range(5)]

    def act(self, key: Key) -> str:
        if not self.actions:
            return "stay"
        action = self.actions.pop()
        if action == "rename":
            key.name = (key.name + 1) % 5
        elif action == "rename another":
            self.keys[(key.name + 1) % 5].name = key.name
        elif action == "all alike":
            for each in self.keys:
                each.name = 0
        elif action == "collect":
            gc.collect(0)
        elif action == "raise":
            raise Unstable
        return action

    def hand_over(self, keys: list[int], timeout: float | None) -> None:
        operation = Flag(timeout)
        try:
            self.purgatory.try_complete_else_watch(operation, [self.keys[number] for number in keys])
        finally:
            if not repr(operation).startswith("<Flag new"):  # else a key has raised before the purgatory took it
                self.operations.append(operation)

    def make_ready(self, number: int) -> None:
        for operation in self.operations[number::3]:
            operation.ready = True

    def check(self) -> None:
        pending = [operation for operation in self.operations if "pending" in repr(operation)]
        assert self.purgatory.num_delayed == len(pending)
        assert len(self.purgatory.timer) == sum(operation.deadline is not None for operation in pending)
        check_timer(self.purgatory.timer)
        check_whole(self.purgatory.timer, self.purgatory)
        assert all(isinstance(exception, (Unstable, KeyError)) for exception in self.clock.exceptions)

    def check_end(self) -> None:
        """All deadlines come, and a close ends the others, however the keys behave."""
        self.clock.advance(100.0)
        self.check()
        assert not [operation for operation in self.operations if operation.deadline and not operation.done()]
        with suppress(Unstable):
            self.purgatory.close()
        self.actions.clear()
        self.purgatory.close()
        self.check()
        assert self.purgatory.num_delayed == 0
        outcomes: Counter[str | None] = Counter(operation.outcome for operation in self.operations)
        statistics = self.purgatory.statistics()
        for name in ("completed_at_once", "satisfied", "expired", "closed", "cancelled", "failed"):
            assert getattr(statistics, name) == outcomes[name]
        assert not outcomes["failed"]


Step = tuple[str, list[int], int | None, list[str]]
CALLS: Final[dict[str, Callable[[World, list[int], int | None], object]]] = {
    "hand over": lambda world, keys, number: world.hand_over(keys, number),
    "make ready": lambda world, keys, number: world.make_ready(number or 0),
    "check": lambda world, keys, number: world.purgatory.check_and_complete(world.keys[keys[0]], number),
    "check soon": lambda world, keys, number: world.purgatory.check_and_complete_soon(world.keys[keys[0]], number),
    "cancel for key": lambda world, keys, number: world.purgatory.cancel_for_key(world.keys[keys[0]]),
    "look": lambda world, keys, number: (
        world.purgatory.is_watched(world.keys[keys[0]]),
        world.purgatory.watching(world.keys[keys[-1]]),
        world.purgatory.watched_keys(),
        list(world.purgatory.each_watched_key()),
    ),
    "cancel": lambda world, keys, number: [operation.cancel() for operation in world.operations[keys[0] :: 4]],
    "advance": lambda world, keys, number: world.clock.advance((number or 0) / 2),
    "complete all": lambda world, keys, number: world.purgatory.complete_all(),
}

steps = st.tuples(
    st.sampled_from(["hand over"] * 4 + list(CALLS)),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.none() | st.integers(1, 6),
    st.lists(st.sampled_from(ACTIONS + ("stay",) * 8), max_size=10),
)


@given(st.lists(steps, max_size=40), st.lists(st.sampled_from(ACTIONS), max_size=20))
def test_whatever_keys_do_operations_end_and_counts_are_right(chosen: list[Step], last: list[str]) -> None:
    world = World()
    for name, keys, number, actions in chosen:
        world.actions = list(actions)
        with suppress(Unstable):
            CALLS[name](world, keys, number)
        world.actions.clear()
        world.check()
    world.actions = list(last)
    with suppress(Unstable):
        world.clock.advance(50.0)
    world.check_end()


@given(st.lists(steps, max_size=40))
def test_keys_that_are_stable_again_keep_nothing(chosen: list[Step]) -> None:
    """After exceptions alone, which change no key, all entries are found again."""
    world = World()
    for name, keys, number, actions in chosen:
        world.actions = [action if action in ("raise", "collect") else "stay" for action in actions]
        with suppress(Unstable):
            CALLS[name](world, keys, number)
        world.actions.clear()
        world.check()
    world.check_end()
    assert (world.purgatory.watched, world.purgatory.watched_keys()) == (0, [])


class Last(Key):
    """Renames the others when it is hashed again, and raises."""

    hashed = 0

    def __hash__(self) -> int:
        self.hashed += 1
        if self.hashed == 1:
            one, other = self.world.keys[:2]
            other.name = one.name
            return 7
        raise Unstable


def test_keys_that_become_equal_between_two_hashings_and_another_that_raises(
    purgatory: DelayedOperationPurgatory,
) -> None:
    for _ in range(200):
        world = World()
        operation = Flag(5.0)
        with suppress(Unstable):
            purgatory.try_complete_else_watch(operation, [world.keys[0], world.keys[1], Last(world, 9)])
        assert operation.outcome in (None, "cancelled")
        check_whole(purgatory.timer, purgatory)
    purgatory.cancel_all()
    assert purgatory.num_delayed == 0


@pytest.mark.parametrize("error", [Unstable, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("call", ["hand over", "check", "cancel for key", "check soon"])
@pytest.mark.parametrize("nth", range(8))
def test_the_nth_hash_raises(call: str, nth: int, error: type[BaseException]) -> None:
    left = -2

    class Raising(World):
        def act(self, key: Key) -> str:
            nonlocal left
            left -= 1
            if left == -1:
                raise error
            return "stay"

    world = Raising()
    world.hand_over([0, 1, 2], 5.0)
    world.hand_over([0, 3], None)
    world.make_ready(1)
    left = nth
    arguments: dict[str, Any] = {"hand over": ([2, 3, 4], 6)}
    with suppress(error):
        CALLS[call](world, *arguments.get(call, ([0], None)))
        world.clock.advance(0.0)
    left = -2
    pending = [operation for operation in world.operations if "pending" in repr(operation)]
    assert world.purgatory.num_delayed == len(pending)
    check_whole(world.purgatory.timer, world.purgatory)
    world.clock.advance(10.0)
    assert not [operation for operation in pending if operation.deadline and not operation.done()]
    world.purgatory.close()
    assert (world.purgatory.num_delayed, world.purgatory.watched, world.purgatory.watched_keys()) == (0, 0, [])
