"""Promise 1: `on_complete` runs at most once and exactly one caller of `force_complete` gets `True`."""

from collections.abc import Callable
from itertools import product

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support.operations import FaultLog, Flag

Trigger = Callable[[DelayedOperationPurgatory, FaultLog, Flag], object]


def _check(purgatory: DelayedOperationPurgatory, clock: FaultLog, operation: Flag) -> None:
    operation.ready = True
    purgatory.check_and_complete("a")


TRIGGERS: dict[str, Trigger] = {
    "check": _check,
    "deadline": lambda purgatory, clock, operation: clock.advance(10.0),
    "force": lambda purgatory, clock, operation: operation.force_complete(),
    "cancel": lambda purgatory, clock, operation: operation.cancel(),
    "cancel for key": lambda purgatory, clock, operation: purgatory.cancel_for_key("b"),
    "complete all": lambda purgatory, clock, operation: purgatory.complete_all(),
    "cancel all": lambda purgatory, clock, operation: purgatory.cancel_all(),
    "close": lambda purgatory, clock, operation: purgatory.close(),
}


@pytest.mark.parametrize("triggers", list(product(TRIGGERS, repeat=2)), ids=" then ".join)
def test_the_first_trigger_completes_and_the_second_finds_it_done(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, triggers: tuple[str, str]
) -> None:
    operation = purgatory.try_complete_else_watch(Flag(10.0), ["a", "b"])
    for trigger in triggers:
        TRIGGERS[trigger](purgatory, clock, operation)
        assert operation.done()
    assert not operation.force_complete()
    by_cancel, by_deadline = triggers[0].startswith("cancel"), triggers[0] == "deadline"
    assert (operation.cancelled(), operation.expired()) == (by_cancel, by_deadline)
    assert operation.calls.count("flag completes") == (0 if by_cancel else 1)
    assert operation.calls.count("flag expires") == (1 if by_deadline else 0)
    assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)


@pytest.mark.parametrize("inner", TRIGGERS)
@pytest.mark.parametrize("outer", ["check", "force", "deadline", "complete all", "close"])
def test_a_trigger_from_inside_on_complete_finds_the_operation_taken(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, outer: str, inner: str
) -> None:
    operation = Flag(10.0)
    seen: list[object] = []

    def again() -> None:
        seen.append(operation.force_complete())
        seen.append(operation.cancel())
        if inner != "deadline":  # the time does not move inside a callback
            TRIGGERS[inner](purgatory, clock, operation)

    operation.then = again
    purgatory.try_complete_else_watch(operation, ["a", "b"])
    TRIGGERS[outer](purgatory, clock, operation)
    assert seen == [False, False]
    assert operation.calls[0] == "flag completes"
    assert operation.calls.count("flag completes") == 1
    assert operation.result() == "result of flag"
    assert clock.exceptions == []
