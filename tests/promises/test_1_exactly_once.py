"""Promise 1: `on_complete` runs at most once and exactly one caller of `force_complete` gets `True`."""

from itertools import product

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support.operations import ENDS, FaultLog, Flag

TRIGGERS = [end for end in ENDS if end not in ("check with a limit", "check soon", "aclose")]


def trigger(end: str, purgatory: DelayedOperationPurgatory, clock: FaultLog, operation: Flag) -> None:
    operation.ready = end == "check"
    ENDS[end](purgatory, clock, operation)


@pytest.mark.parametrize("triggers", list(product(TRIGGERS, repeat=2)), ids=" then ".join)
def test_the_first_trigger_completes_and_the_second_finds_it_done(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, triggers: tuple[str, str]
) -> None:
    operation = purgatory.try_complete_else_watch(Flag(10.0), ["a", "b"])
    for end in triggers:
        trigger(end, purgatory, clock, operation)
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
            trigger(inner, purgatory, clock, operation)

    operation.then = again
    purgatory.try_complete_else_watch(operation, ["a", "b"])
    trigger(outer, purgatory, clock, operation)
    assert seen == [False, False]
    assert operation.calls[0] == "flag completes"
    assert operation.calls.count("flag completes") == 1
    assert operation.result() == "result of flag"
    assert clock.exceptions == []
