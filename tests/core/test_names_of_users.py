"""Names that users write in their operations are theirs: methods, attributes and slots of a subclass break nothing."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, TimerTask, VirtualClock
from tests.support.operations import FaultLog, Flag

METHODS = ["run", "start", "stop", "close", "finish", "complete", "fail", "expire", "leave", "wake_up", "send", "throw"]
ATTRIBUTES = [
    "state",
    "entry",
    "home",
    "outcome_",
    "timeout",
    "waiter",
    "waiters",
    "bucket",
    "deadline",
    "owner",
    "task",
]
NAMES = [*METHODS, *ATTRIBUTES, "keys", "key", "purgatory", "timer", "loop", "callback", "future", "args", "handle"]
PRIVATE = [f"_{name}" for name in NAMES]

PUBLIC = {
    "cancel",
    "cancelled",
    "done",
    "exception",
    "expired",
    "force_complete",
    "on_complete",
    "on_expiration",
    "on_undelivered",
    "outcome",
    "reschedule",
    "result",
    "try_complete",
}
OF_PYTHON = {"_abc_impl", "_is_protocol"}


def with_a_method(name: str) -> type[Flag]:
    def method(self: Flag, *args: object) -> str:
        self.calls.append(f"{name} of the user")
        return "user's"

    return type("WithMethod", (Flag,), {name: method})


def with_an_attribute(name: str) -> type[Flag]:
    def init(self: Flag, *args: Any, **options: Any) -> None:
        Flag.__init__(self, *args, **options)
        setattr(self, name, ["precious", "data"])

    return type("WithAttribute", (Flag,), {"__init__": init})


def with_a_slot(name: str) -> type[Flag]:
    return type("WithSlot", (with_an_attribute(name),), {"__slots__": (name,)})


def finished_in_every_way(
    kind: type[Flag], purgatory: DelayedOperationPurgatory, clock: VirtualClock
) -> Sequence[Flag]:
    at_once = purgatory.try_complete_else_watch(kind(5.0, "at once", ready=True), ["key"])
    checked, forced, expired, cancelled, moved = (
        purgatory.try_complete_else_watch(kind(5.0, name), ["key", "other"])
        for name in ("checked", "forced", "expired", "cancelled", "moved")
    )
    checked.ready = True
    assert purgatory.check_and_complete("key") == 1
    assert forced.force_complete()
    assert cancelled.cancel()
    moved.reschedule(50.0)
    clock.advance(6.0)
    assert not moved.done()
    clock.advance(60.0)
    return at_once, checked, forced, expired, cancelled, moved


def check_all_finished(operations: Sequence[Flag], purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    assert [operation.done() for operation in operations] == [True] * 6
    assert [operation.calls for operation in operations] == [
        ["at once completes"],
        ["checked completes"],
        ["forced completes"],
        ["expired completes", "expired expires"],
        [],
        ["moved completes", "moved expires"],
    ]
    statistics = purgatory.statistics()
    assert (statistics.completed_at_once, statistics.satisfied, statistics.expired, statistics.cancelled) == (
        1,
        2,
        2,
        1,
    )
    assert (purgatory.num_delayed, len(purgatory.timer), clock.exceptions) == (0, 0, [])


@pytest.mark.parametrize("name", NAMES + PRIVATE)
def test_a_method_of_any_name_is_called_by_its_user_alone(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, name: str
) -> None:
    check_all_finished(finished_in_every_way(with_a_method(name), purgatory, clock), purgatory, clock)


@pytest.mark.parametrize("name", NAMES + PRIVATE)
@pytest.mark.parametrize("make", [with_an_attribute, with_a_slot])
def test_an_attribute_of_any_name_keeps_its_value(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, make: Any, name: str
) -> None:
    operations = finished_in_every_way(make(name), purgatory, clock)
    check_all_finished(operations, purgatory, clock)
    assert [getattr(operation, name) for operation in operations] == [["precious", "data"]] * 6


@pytest.mark.parametrize("name", ["run", "_run", "_finish", "_complete", "_leave", "_fail"])
async def test_an_operation_with_a_method_of_its_own_is_awaited_as_any(name: str) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = with_a_method(name)(0.001)
        async with asyncio.timeout(10):
            assert await purgatory.try_complete_else_watch(operation, ["key"]) == "result of flag"
        assert operation.expired()


@pytest.mark.parametrize(
    ("kind", "public", "prefixes"),
    [
        (DelayedOperation, PUBLIC, ("_purgatory_", "_timer_")),
        (TimerTask, {"run"}, ("_timer_",)),
    ],
)
def test_internal_names_have_a_prefix_of_their_own(kind: type, public: set[str], prefixes: tuple[str, ...]) -> None:
    names = {name for name in dir(kind) if not (name.startswith("__") and name.endswith("__"))} - OF_PYTHON
    assert {name for name in names if not name.startswith(prefixes)} == public
