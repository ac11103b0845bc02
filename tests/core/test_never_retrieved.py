"""A failed operation is reported if its exception is never retrieved, and only then, on asyncio and on uvloop."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any

import pytest
import pytest_asyncio

from purgatory import DelayedOperationPurgatory, VirtualClock
from tests.support.operations import FaultLog, Flag


class Broken(Flag):
    def on_complete(self) -> str:
        raise ValueError("broken")


async def wait(operation: Broken) -> str:
    return await operation


@pytest_asyncio.fixture
async def reports() -> AsyncIterator[list[str]]:
    """The messages that go to the loop's exception handler."""
    messages: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: messages.append(context["message"]))
    yield messages
    asyncio.get_running_loop().set_exception_handler(None)


AWAIT: dict[str, Callable[[Broken], Awaitable[Any]]] = {
    "await": wait,
    "wait_for": lambda operation: asyncio.wait_for(operation, 5),
    "gather": lambda operation: asyncio.gather(operation),
    "shield": asyncio.shield,
    "task": lambda operation: asyncio.create_task(wait(operation)),
    "two tasks in a row": lambda operation: asyncio.create_task(asyncio.wait_for(asyncio.shield(operation), 5)),
}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("way", AWAIT)
async def test_an_operation_that_is_awaited_is_not_reported(way: str, at_once: bool, reports: list[str]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Broken(5.0, ready=at_once), ["key"])
        if not at_once:
            asyncio.get_running_loop().call_soon(operation.force_complete)
        with pytest.raises(ValueError, match="broken"):
            await AWAIT[way](operation)
        for _ in range(5):
            await asyncio.sleep(0)
        del operation
        gc.collect()
    assert reports == []


async def test_an_operation_that_is_awaited_late_is_not_reported(reports: list[str]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Broken(5.0, ready=True), ["key"])
        for _ in range(20):
            await asyncio.sleep(0)
        with pytest.raises(ValueError, match="broken"):
            await operation
        del operation
        gc.collect()
    assert reports == []


async def test_an_exception_never_retrieved_is_reported_when_its_operation_is_collected(reports: list[str]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Broken(5.0, ready=True), ["key"])
        for _ in range(5):
            await asyncio.sleep(0)
        assert reports == [], "it may be awaited yet"
        del operation
        gc.collect()
        await asyncio.sleep(0)
        assert len(reports) == 1
        assert "exception was never retrieved" in reports[0]


@pytest.mark.parametrize("ask", ["exception", "result"])
def test_exception_that_has_been_read_is_not_reported(
    purgatory: DelayedOperationPurgatory, clock: FaultLog, ask: str
) -> None:
    operation = purgatory.try_complete_else_watch(Broken(5.0, ready=True), ["key"])
    if ask == "exception":
        assert isinstance(operation.exception(), ValueError)
    else:
        with pytest.raises(ValueError, match="broken"):
            operation.result()
    del operation
    gc.collect()
    clock.advance(1.0)
    assert clock.faults == []


class TestFramesOfTheCaller:
    """An operation that fails while its completer handles an error of its own leaves the frames of that error alone."""

    def variables(self, error: BaseException) -> dict[str, Any]:
        traceback: TracebackType | None = error.__traceback__
        assert traceback is not None
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
        return dict(traceback.tb_frame.f_locals)

    def fail(self, request: int) -> None:
        secret = f"request {request}"
        raise LookupError(secret)

    def handled(self, operation: Broken) -> LookupError:
        try:
            self.fail(7)
        except LookupError as error:
            operation.force_complete()
            return error
        raise AssertionError

    @pytest.mark.parametrize("retrieved", [True, False])
    def test_frames_keep_their_variables_on_a_virtual_clock(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock, retrieved: bool
    ) -> None:
        operation = purgatory.try_complete_else_watch(Broken(), ["key"])
        error = self.handled(operation)
        assert self.variables(error)["secret"] == "request 7"
        if retrieved:
            operation.exception()
        clock.advance(1.0)
        assert self.variables(error)["secret"] == "request 7"
        del operation
        gc.collect()
        clock.advance(1.0)
        assert self.variables(error)["secret"] == "request 7"

    async def test_frames_keep_their_variables_on_a_loop(self, reports: list[str]) -> None:
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Broken(), ["key"])
            task = asyncio.ensure_future(wait(operation))
            await asyncio.sleep(0)
            error = self.handled(operation)
            with pytest.raises(ValueError, match="broken"):
                await task
            for _ in range(3):
                await asyncio.sleep(0)
            assert self.variables(error)["secret"] == "request 7"
        assert reports == []
