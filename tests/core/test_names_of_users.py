"""Names that users write in their operations are theirs: methods, attributes and slots of a subclass break nothing."""

from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, TimerTask
from tests.support.operations import FaultLog, Flag

METHODS = ("run", "start", "stop", "close", "finish", "complete", "expire", "leave", "wake_up", "send", "throw")
ATTRIBUTES = ("state", "entry", "home", "timeout", "waiter", "waiters", "bucket", "deadline", "owner", "task", "keys")
MORE = ("key", "purgatory", "timer", "loop", "callback", "future", "args", "handle")
NAMES = [prefix + name for prefix in ("", "_") for name in (*METHODS, *ATTRIBUTES, *MORE)]

PUBLIC = {
    "add_done_callback",
    "cancel",
    "cancelled",
    "done",
    "exception",
    "expired",
    "fail",
    "force_complete",
    "on_complete",
    "on_done",
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [with_a_method, with_an_attribute, with_a_slot])
def test_a_name_of_the_user_is_the_user_s_alone(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, make: Any, name: str
) -> None:
    kind: type[Flag] = make(name)
    at_once = purgatory.try_complete_else_watch(kind(5.0, ready=True), ["key"])
    checked, forced, _, cancelled, moved = operations = [
        purgatory.try_complete_else_watch(kind(5.0), ["key", "other"]) for _ in range(5)
    ]
    checked.ready = True
    assert purgatory.check_and_complete("key") == 1
    assert forced.force_complete()
    assert cancelled.cancel()
    moved.reschedule(50.0)
    clock.advance(6.0)
    assert not moved.done()
    clock.advance(60.0)
    operations.insert(0, at_once)
    completes, expires = ["flag completes"], ["flag completes", "flag expires"]
    assert [each.calls for each in operations] == [completes, completes, completes, expires, [], expires]
    outcomes = ["completed_at_once", "satisfied", "satisfied", "expired", "cancelled", "expired"]
    assert [each.outcome for each in operations] == outcomes
    assert (purgatory.num_delayed, len(purgatory.timer), clock.exceptions) == (0, 0, [])
    if make is not with_a_method:
        assert [getattr(each, name) for each in operations] == [["precious", "data"]] * 6


@pytest.mark.parametrize("name", ["run", "_run", "_finish", "_leave"])
async def test_an_operation_with_a_method_of_its_own_is_awaited_as_any(name: str) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = with_a_method(name)(0.001)
        assert await purgatory.try_complete_else_watch(operation, ["key"]) == "result of flag"


@pytest.mark.parametrize(
    ("kind", "public", "prefixes"),
    [
        (DelayedOperation, PUBLIC, ("_purgatory_", "_timer_")),
        (TimerTask, {"run"}, ("_purgatory_", "_timer_")),
    ],
)
def test_internal_names_have_a_prefix_of_their_own(kind: type, public: set[str], prefixes: tuple[str, ...]) -> None:
    names = {name for name in dir(kind) if not (name.startswith("__") and name.endswith("__"))} - OF_PYTHON
    assert {name for name in names if not name.startswith(prefixes)} == public
