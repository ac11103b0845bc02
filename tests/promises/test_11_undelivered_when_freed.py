"""Promise 11: a result that nobody has received goes to `on_undelivered` when its operation is freed."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest

from purgatory import Delay, DelayedOperation, DelayedOperationPurgatory, VirtualClock
from purgatory.lowlevel import add_waiter, take_result
from tests.support.operations import Flag, raising, turn, wait

Note = tuple[str, int]


class Held(Flag):
    """Notes the results that were not delivered, and the threads in which it was told."""

    def __init__(self, notes: list[Note], timeout: float | None = None, *, ready: bool = False) -> None:
        super().__init__(timeout, ready=ready)
        self.notes = notes

    def on_undelivered(self, result: str) -> None:
        self.notes.append((result, threading.get_ident()))


class Slotted(DelayedOperation[str]):
    """The same, without a `__dict__`."""

    __slots__ = ("notes",)

    def __init__(self, notes: list[Note]) -> None:
        super().__init__(None)
        self.notes = notes

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> str:
        return "result of flag"

    def on_undelivered(self, result: str) -> None:
        self.notes.append((result, threading.get_ident()))


def undelivered() -> list[Note]:
    """What the notes are after one result was undelivered in this thread."""
    return [("result of flag", threading.get_ident())]


@pytest.fixture
def notes() -> list[Note]:
    return []


COMPLETE: Final[dict[str, Callable[[DelayedOperationPurgatory], object]]] = {
    "check": lambda purgatory: purgatory.check_and_complete("key"),
    "check with a limit": lambda purgatory: purgatory.check_and_complete("key", limit=1),
    "complete all": lambda purgatory: purgatory.complete_all(),
    "close": lambda purgatory: purgatory.close(),
}

pytestmark = pytest.mark.usefixtures("by_reference_count_alone")


@pytest.mark.parametrize("way", COMPLETE)
async def test_a_result_goes_back_on_the_next_iteration_after_the_operation_is_freed(
    way: str, notes: list[Note]
) -> None:
    purgatory = DelayedOperationPurgatory()
    operation = purgatory.try_complete_else_watch(Held(notes, 60.0), ["key"])
    operation.ready = True
    COMPLETE[way](purgatory)
    await turn()
    assert notes == [], "the program has it"
    del operation
    assert notes == [], "not in the middle of what has freed it"
    await turn()
    assert notes == undelivered()
    gc.collect()
    await turn()
    assert notes == undelivered(), "once"
    purgatory.close()


async def test_nobody_has_kept_the_operation(notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        for timeout in (60.0, None):
            purgatory.try_complete_else_watch(Held(notes, timeout), ["key"]).ready = True
        assert purgatory.check_and_complete("key") == 2
        assert notes == []
        await turn()
        assert notes == undelivered() * 2


async def test_the_deadline_completes_it(notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        purgatory.try_complete_else_watch(Held(notes, 0.001), ["key"])
        await purgatory.try_complete_else_watch(Delay(0.01), ["later"])
        await turn()
        assert notes == undelivered()


async def test_it_completes_at_once(notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        purgatory.try_complete_else_watch(Held(notes, ready=True), ["key"])
        assert notes == []
        await turn()
        assert notes == undelivered()


async def test_a_class_with_slots(notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        purgatory.try_complete_else_watch(Slotted(notes), ["key"]).force_complete()
        await turn()
        assert notes == undelivered()


async def test_another_thread_frees_it(notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operations = [purgatory.try_complete_else_watch(Held(notes), ["key"]) for _ in range(3)]
        for operation in operations:
            operation.force_complete()
        del operation
        thread = threading.Thread(target=operations.clear)
        thread.start()
        thread.join()
        assert notes == []
        await turn()
        assert notes == undelivered() * 3, "in the loop's thread"


async def test_many_threads_free_them_while_the_loop_runs(notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operations = [purgatory.try_complete_else_watch(Held(notes), ["key"]) for _ in range(2000)]
        purgatory.complete_all()

        def free() -> None:
            while operations:
                try:
                    operations.pop()
                except IndexError:
                    return

        threads = [threading.Thread(target=free) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            await turn()
        await turn()
        assert notes == undelivered() * 2000


class Collecting:
    """A key that collects garbage when it is hashed."""

    def __hash__(self) -> int:
        gc.collect()
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


async def test_a_collection_in_the_middle_of_a_call_does_not_call_it(notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation: Any = purgatory.try_complete_else_watch(Held(notes), ["key"])
        operation.itself = operation
        operation.force_complete()
        del operation
        other = purgatory.try_complete_else_watch(Flag(60.0), [Collecting(), "key"])
        assert notes == []
        assert other.outcome is None
        await turn()
        assert notes == undelivered()
        assert purgatory.num_delayed == 1


def test_on_a_virtual_clock_it_goes_back_with_the_next_move(
    clock: VirtualClock, purgatory: DelayedOperationPurgatory, notes: list[Note]
) -> None:
    purgatory.try_complete_else_watch(Held(notes), ["key"]).force_complete()
    assert notes == []
    clock.advance(0.0)
    assert notes == undelivered()
    purgatory.try_complete_else_watch(Held(notes, 5.0), ["key"])
    clock.advance(5.0)
    clock.advance(0.0)
    assert notes == undelivered() * 2
    clock.advance(1000.0)
    assert notes == undelivered() * 2


def test_a_thread_frees_it_on_a_virtual_clock(
    clock: VirtualClock, purgatory: DelayedOperationPurgatory, notes: list[Note]
) -> None:
    operations = [purgatory.try_complete_else_watch(Held(notes), ["key"])]
    operations[0].force_complete()
    thread = threading.Thread(target=operations.clear)
    thread.start()
    thread.join()
    assert notes == []
    clock.advance(0.0)
    assert notes == undelivered()


async def test_a_waiter_that_was_told_and_takes_nothing(notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Held(notes), ["key"])
        waiter = asyncio.get_running_loop().create_future()
        assert add_waiter(operation, waiter)
        operation.force_complete()
        assert waiter.done()
        del operation
        assert notes == []
        await turn()
        assert notes == undelivered()


TAKE: Final[dict[str, Callable[[Held], object]]] = {
    "result": lambda operation: operation.result(),
    "take_result": take_result,
}


@pytest.mark.parametrize("way", [*TAKE, "await", "await before", "as_future"])
async def test_a_result_that_was_received_does_not_go_back(way: str, notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Held(notes), ["key"])
        if way == "await before":
            task = asyncio.ensure_future(wait(operation))
            await turn()
            operation.force_complete()
            result: object = await task
            del task
        else:
            operation.force_complete()
            if way == "await":
                result = await operation
            elif way == "as_future":
                result = await operation.as_future()
            else:
                result = TAKE[way](operation)
        assert result == "result of flag"
        del operation
        await turn()
        gc.collect()
        await turn()
        assert notes == []


async def test_a_task_that_was_cancelled_has_given_it_back_already(notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Held(notes), ["key"])
        task = asyncio.ensure_future(wait(operation))
        await turn()
        operation.force_complete()
        task.cancel()
        await asyncio.wait([task])
        assert notes == undelivered()
        del operation, task
        gc.collect()
        await turn()
        assert notes == undelivered(), "once"


END: Final[dict[str, Callable[[DelayedOperation[Any]], object]]] = {
    "cancelled": lambda operation: operation.cancel(),
    "failed": lambda operation: operation.fail(LookupError()) and operation.exception(),
    "never done": lambda operation: None,
}


@pytest.mark.parametrize("way", END)
async def test_without_a_result_nothing_goes_back(way: str, notes: list[Note]) -> None:
    async with DelayedOperationPurgatory() as purgatory:
        operation = Held(notes)
        if way != "never done":
            purgatory.try_complete_else_watch(operation, ["key"])
        END[way](operation)
        del operation
        await turn()
        assert notes == []


async def test_a_constructor_that_raises_leaves_nothing_to_give_back(notes: list[Note]) -> None:
    with pytest.raises(ValueError, match="timeout"):
        Held(notes, -1.0)
    Held.__new__(Held)
    await turn()
    assert notes == []


def test_after_the_loop_is_closed_nothing_is_called_or_raised(notes: list[Note]) -> None:
    async def main() -> Held:
        purgatory = DelayedOperationPurgatory()
        operation = purgatory.try_complete_else_watch(Held(notes), ["key"])
        operation.force_complete()
        return operation

    with asyncio.Runner() as runner:
        operations = [runner.run(main())]
    operations.clear()  # an exception in a finalizer would fail the test
    assert notes == []


async def test_its_exception_is_reported(notes: list[Note]) -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    class Raising(Held):
        on_undelivered = raising(LookupError)

    async with DelayedOperationPurgatory() as purgatory:
        purgatory.try_complete_else_watch(Raising(notes), ["key"]).force_complete()
        await turn()
        assert [type(report["exception"]) for report in reports] == [LookupError]
        reports.clear()


def test_a_class_that_does_not_take_results_back_has_no_finalizer() -> None:
    assert not hasattr(Flag, "__del__")
    assert hasattr(Held, "__del__")


async def test_a_class_with_a_finalizer_of_its_own_keeps_it(notes: list[Note]) -> None:
    freed: list[str] = []

    class Own(Held):
        def __del__(self) -> None:
            freed.append(self.name)

    async with DelayedOperationPurgatory() as purgatory:
        purgatory.try_complete_else_watch(Own(notes), ["key"]).force_complete()
        await turn()
        assert (freed, notes) == (["flag"], []), "nothing is added"


@pytest.mark.parametrize("is_done", [False, True])
async def test_an_overridden_result_does_not_change_what_comes_out_of_await(notes: list[Note], is_done: bool) -> None:
    class Loud(Held):
        def result(self) -> str:
            return "LOUD " + super().result()

        def exception(self) -> BaseException | None:
            raise NotImplementedError

    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Loud(notes), ["key"])
        if is_done:
            operation.force_complete()
        else:
            asyncio.get_running_loop().call_soon(operation.force_complete)
        assert await operation == "result of flag"
        del operation
        await turn()
        assert notes == [], "it was received"


async def test_an_overridden_result_is_what_its_callers_get(notes: list[Note]) -> None:
    class Loud(Held):
        def result(self) -> str:
            return "LOUD " + super().result()

    async with DelayedOperationPurgatory() as purgatory:
        operation = purgatory.try_complete_else_watch(Loud(notes), ["key"])
        operation.force_complete()
        assert operation.result() == take_result(operation) == "LOUD result of flag"
        del operation
        await turn()
        assert notes == []
