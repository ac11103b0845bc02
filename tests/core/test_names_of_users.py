"""Names that users write in their operations are theirs: methods, attributes and slots of a subclass break nothing."""

from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, TimerTask
from tests.support.operations import FaultLog, Flag

METHODS = ("run", "start", "stop", "close", "finish", "complete", "expire", "leave", "wake_up", "send", "throw")
ATTRIBUTES = ("state", "entry", "home", "timeout", "waiter", "waiters", "bucket", "deadline", "owner", "task", "keys")
MORE = ("key", "purgatory", "timer", "loop", "callback", "future", "args", "handle")
NAMES = [prefix + name for prefix in ("", "_") for name in (*METHODS, *ATTRIBUTES, *MORE)]

PUBLIC = (
    "add_done_callback cancel cancelled done exception expired fail force_complete on_complete on_done on_expiration"
    " on_undelivered outcome reschedule result try_complete"
)
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
    checked, cancelled, moved = (purgatory.try_complete_else_watch(kind(5.0), ["key", "other"]) for _ in range(3))
    checked.ready = True
    assert purgatory.check_and_complete("key") == 1
    assert cancelled.cancel()
    moved.reschedule(50.0)
    clock.advance(6.0)
    assert not moved.done()
    clock.advance(60.0)
    operations = [at_once, checked, cancelled, moved]
    completes = ["flag completes"]
    assert [each.calls for each in operations] == [completes, completes, [], [*completes, "flag expires"]]
    assert [each.outcome for each in operations] == ["completed_at_once", "satisfied", "cancelled", "expired"]
    assert (purgatory.num_delayed, len(purgatory.timer), clock.exceptions) == (0, 0, [])
    if make is not with_a_method:
        assert [getattr(each, name) for each in operations] == [["precious", "data"]] * 4


@pytest.mark.parametrize(("kind", "public"), [(DelayedOperation, PUBLIC), (TimerTask, "run")])
def test_internal_names_have_a_prefix_of_their_own(kind: type, public: str) -> None:
    names = {name for name in dir(kind) if not (name.startswith("__") and name.endswith("__"))} - OF_PYTHON
    assert {name for name in names if not name.startswith(("_purgatory_", "_timer_"))} == set(public.split())
