"""Completions thousands deep inside each other: no stack overflow, no quadratic time, nothing put off forever."""

import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory._core.operation import NESTING
from tests.support.operations import FaultLog, Flag, raising

DEEP = 10_000

Link = Callable[[DelayedOperationPurgatory, list[Flag], int], object]


def _check(purgatory: DelayedOperationPurgatory, operations: list[Flag], n: int) -> None:
    operations[n].ready = True
    assert purgatory.check_and_complete(n) == 1


def _check_soon(purgatory: DelayedOperationPurgatory, operations: list[Flag], n: int) -> None:
    operations[n].ready = True
    purgatory.check_and_complete_soon(n)


LINKS: dict[str, Link] = {
    "check": _check,
    "check soon": _check_soon,
    "force": lambda purgatory, operations, n: operations[n].force_complete(),
    "cancel": lambda purgatory, operations, n: operations[n].cancel(),
}


def depth() -> int:
    """How deep the stack is."""
    frame, deep = sys._getframe(), 0
    while frame.f_back is not None:
        frame, deep = frame.f_back, deep + 1
    return deep


class Counted(Flag):
    """Notes how deep the stack is when it completes."""

    deepest = 0

    def on_complete(self) -> str:
        Counted.deepest = max(Counted.deepest, depth())
        return super().on_complete()

    def on_done(self) -> None:
        if self.cancelled():
            self.on_complete()


@pytest.mark.parametrize("link", LINKS)
def test_a_chain_of_completions_completes_to_its_end(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, link: str
) -> None:
    operations: list[Flag] = []
    order: list[str] = []
    for n in range(DEEP):
        then = partial(LINKS[link], purgatory, operations, n + 1) if n + 1 < DEEP else (lambda: None)
        operations.append(Counted(None, str(n), calls=order, then=then))
        purgatory.try_complete_else_watch(operations[n], [n])
    Counted.deepest = 0
    LINKS[link](purgatory, operations, 0)
    clock.advance(0)
    assert [operation.done() for operation in operations] == [True] * DEEP
    assert sorted(order) == sorted(f"{n} completes" for n in range(DEEP))
    assert order[:: DEEP - 1] == ["0 completes", f"{DEEP - 1} completes"]
    assert clock.exceptions == []
    assert sum(operation.tries - 2 for operation in operations) <= DEEP
    assert Counted.deepest - depth() <= 15 * NESTING


def test_a_request_to_exit_of_a_deferred_end_leaves_no_other_one_pending(purgatory: DelayedOperationPurgatory) -> None:
    last = [purgatory.try_complete_else_watch(Flag(then=then), ["last"]) for then in (raising(SystemExit), int)]
    then: Callable[[], object] = lambda: [each.force_complete() for each in last]  # noqa: E731
    for n in range(NESTING):
        then = purgatory.try_complete_else_watch(Flag(then=then), [n]).force_complete
    with pytest.raises(SystemExit):
        then()
    assert [each.outcome for each in last if each.done()] == ["failed", "satisfied"]


async def test_an_operation_may_be_awaited_from_inside_its_own_completion() -> None:
    # A task that starts eagerly does this.
    waiting: list[Generator[Any, None, str]] = []

    def begin() -> None:
        waiting.append(operation.__await__())
        assert next(waiting[0]) is not None

    async with DelayedOperationPurgatory() as purgatory:
        operation = Flag(then=begin)
        purgatory.try_complete_else_watch(operation, ["key"]).force_complete()
        with pytest.raises(StopIteration) as end:
            next(waiting[0])
        assert end.value.value == "result of flag"
