"""`lowlevel.abandon`: an operation that nobody will await is cancelled, by anybody who notices."""

import pytest

from purgatory import Delay, DelayedOperationPurgatory
from purgatory.lowlevel import abandon
from tests.support.operations import turn


async def test_operation_is_cancelled_on_the_next_iteration() -> None:
    operation = DelayedOperationPurgatory().try_complete_else_watch(Delay(60.0), ["key"])
    abandon(operation)
    assert not operation.done()
    await turn()
    assert operation.cancelled()


@pytest.mark.parametrize("awaited", ["before", "after"])
async def test_operation_that_somebody_awaits_is_left_alone(awaited: str) -> None:
    operation = DelayedOperationPurgatory().try_complete_else_watch(Delay(60.0), ["key"])
    waiting = operation.as_future() if awaited == "before" else None
    abandon(operation)
    waiting = waiting or operation.as_future()
    await turn()
    assert not operation.done()
    operation.force_complete()
    await waiting


async def test_operation_that_is_done_stays_so() -> None:
    operation = DelayedOperationPurgatory().try_complete_else_watch(Delay(60.0), ["key"])
    abandon(operation)
    operation.force_complete()
    await turn()
    assert operation.outcome == "satisfied"
    abandon(operation)
    await turn()
    assert operation.outcome == "satisfied"


async def test_operation_without_a_purgatory_is_left_alone() -> None:
    operation = Delay(60.0)
    abandon(operation)
    await turn()
    assert not operation.done()
