"""`DelayedFutures` waits until all futures are done or the deadline comes."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from purgatory import DelayedFutures, DelayedOperationPurgatory, OperationCancelled, PurgatoryFull
from tests.support.operations import FaultLog, turn

Future = asyncio.Future[int]


class Weak(DelayedFutures[int]):
    """Can be referred to weakly."""

    __slots__ = ()


def _futures(count: int) -> list[Future]:
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(count)]


def _true(value: bool) -> None:
    assert value


class TestWhenItCompletes:
    async def test_operation_completes_when_all_futures_are_done(self, purgatory: DelayedOperationPurgatory) -> None:
        futures = _futures(3)
        waiting = purgatory.try_complete_else_watch(DelayedFutures(futures, None), ["a"])
        for number, future in enumerate(futures):
            assert not waiting.done()
            future.set_result(number)
            await turn()
        done, late = await waiting
        assert (done, late) == (set(futures), set())
        assert not waiting.expired()

    async def test_operation_completes_at_once_when_all_futures_are_already_done(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        futures = _futures(2)
        for future in futures:
            future.set_result(1)
        for some in (futures, []):
            waiting = purgatory.try_complete_else_watch(DelayedFutures(some, None), ["a"])
            assert waiting.result() == (set(some), set())
        assert purgatory.statistics().completed_at_once == 2

    async def test_operation_completes_at_deadline_with_futures_done_by_then(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        early, in_time, late = _futures(3)
        waiting = purgatory.try_complete_else_watch(DelayedFutures([early, in_time, late], 2.0), ["a"])
        early.set_result(1)
        await turn()
        in_time.set_result(2)  # its callback has not run yet
        clock.advance(2.0)
        assert waiting.expired()
        assert waiting.result() == ({early, in_time}, {late})
        await turn()

    async def test_check_completes_the_operation_before_callbacks_of_futures(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        futures = _futures(2)
        waiting = purgatory.try_complete_else_watch(DelayedFutures(futures, None), ["a"])
        futures[0].set_result(1)
        assert purgatory.check_and_complete("a") == 0
        futures[1].set_result(2)
        assert purgatory.check_and_complete("a") == 1
        assert waiting.result() == (set(futures), set())
        await turn()

    async def test_a_future_that_fails_or_is_cancelled_is_done(self, purgatory: DelayedOperationPurgatory) -> None:
        failing, cancelled = futures = _futures(2)
        waiting = purgatory.try_complete_else_watch(DelayedFutures(futures, None), ["a"])
        failing.set_exception(LookupError())
        cancelled.cancel()
        done, late = await waiting
        assert (done, late) == (set(futures), set())
        assert isinstance(failing.exception(), LookupError)

    async def test_operation_accepts_tasks_on_a_real_loop(self) -> None:
        async def answer(number: int) -> int:
            return number

        async with DelayedOperationPurgatory() as purgatory:
            never = asyncio.create_task(asyncio.Event().wait())
            tasks = [asyncio.create_task(answer(number)) for number in range(100)]
            waiting: DelayedFutures[Any] = DelayedFutures([*tasks, never, never], 0.02, cancel_late=True)
            done, late = await purgatory.try_complete_else_watch(waiting, ["a"])
            assert sorted(task.result() for task in done) == list(range(100))
            assert late == {never}
            await asyncio.wait([never])
            assert never.cancelled()


class TestCallback:
    async def test_callback_is_called_once_with_done_and_late_futures(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        called: list[tuple[set[Future], set[Future]]] = []
        futures = _futures(2)
        operation = DelayedFutures(futures, 1.0, callback=lambda done, late: called.append((done, late)))
        purgatory.try_complete_else_watch(operation, ["a"])
        futures[0].set_result(1)
        clock.advance(1.0)
        futures[1].set_result(2)
        await turn()
        assert called == [({futures[0]}, {futures[1]})]

    async def test_exception_of_the_callback_makes_the_operation_fail(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        def fail(*_: object) -> None:
            raise LookupError

        future = _futures(1)[0]
        waiting = purgatory.try_complete_else_watch(DelayedFutures([future], 1.0, callback=fail), ["a"])
        future.set_result(1)
        with pytest.raises(LookupError):
            await waiting

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_request_to_exit_of_a_callback_is_raised_after_other_operations(
        self, purgatory: DelayedOperationPurgatory, error: type[BaseException]
    ) -> None:
        operations: list[DelayedFutures[int]] = []

        def leave(*_: object) -> None:
            raise error

        async def complete() -> None:
            future = _futures(1)[0]
            for callback in (leave, None):
                operation = DelayedFutures([future], None, callback=callback)
                operations.append(purgatory.try_complete_else_watch(operation, ["a"]))
            future.set_result(1)
            await turn()

        with asyncio.Runner() as runner, pytest.raises(error):
            runner.run(complete())
        assert isinstance(operations[0].exception(), error)
        assert operations[1].done()

    async def test_callback_is_not_called_for_cancelled_operation(self, purgatory: DelayedOperationPurgatory) -> None:
        called: list[object] = []
        future = _futures(1)[0]
        operation = DelayedFutures([future], 1.0, callback=lambda *futures: called.append(futures))
        purgatory.try_complete_else_watch(operation, ["a"])
        purgatory.cancel_for_key("a")
        future.set_result(1)
        await turn()
        with pytest.raises(OperationCancelled):
            operation.result()
        assert called == []


class TestLateFutures:
    @pytest.mark.parametrize("cancel_late", [False, True])
    @pytest.mark.parametrize("how", ["deadline", "cancel", "force", "close"])
    async def test_late_futures_are_cancelled_only_with_cancel_late(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, how: str, cancel_late: bool
    ) -> None:
        done, late = futures = _futures(2)
        waiting = purgatory.try_complete_else_watch(DelayedFutures(futures, 1.0, cancel_late=cancel_late), ["a"])
        done.set_result(1)
        {
            "deadline": lambda: clock.advance(1.0),
            "cancel": lambda: _true(waiting.cancel()),
            "force": lambda: _true(waiting.force_complete()),
            "close": purgatory.close,
        }[how]()
        assert not waiting.cancel(), "it has ended"
        assert late.cancelled() == cancel_late
        assert done.result() == 1

    @pytest.mark.parametrize("how", ["deadline", "cancel"])
    async def test_late_futures_keep_no_reference_to_operation(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, how: str
    ) -> None:
        gc.disable()
        try:
            late = _futures(1)[0]
            waiting = purgatory.try_complete_else_watch(Weak([late], 1.0), ["a"])
            kept = weakref.ref(waiting)
            if how == "deadline":
                clock.advance(1.0)
            else:
                waiting.cancel()
            del waiting
            assert kept() is None
        finally:
            gc.enable()

    async def test_futures_of_refused_operation_are_left_alone(self, clock: FaultLog) -> None:
        purgatory = DelayedOperationPurgatory(max_pending=1, clock=clock)
        called: list[object] = []
        futures = _futures(2)
        purgatory.try_complete_else_watch(DelayedFutures(futures[:1], None), ["a"])
        refused = DelayedFutures(futures[1:], None, callback=lambda *futures: called.append(futures), cancel_late=True)
        with pytest.raises(PurgatoryFull):
            purgatory.try_complete_else_watch(refused, ["a"])
        futures[1].set_result(1)
        await turn()
        assert called == []
        assert not refused.done()


class TestAFutureThatIsDoneInTheIterationInWhichTheOperationEnds:
    @pytest.mark.parametrize("how", ["deadline", "cancel", "check", "force"])
    async def test_future_that_is_done_as_its_operation_ends_does_no_harm(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, how: str
    ) -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        future = _futures(1)[0]
        waiting = purgatory.try_complete_else_watch(DelayedFutures([future], 1.0), ["a"])
        future.set_result(1)  # the loop will call, even if callbacks are removed now
        ended: Any = {
            "deadline": lambda: clock.advance(1.0),
            "cancel": waiting.cancel,
            "check": lambda: purgatory.check_and_complete("a"),
            "force": waiting.force_complete,
        }[how]()
        assert ended in (None, True)
        for _ in range(3):
            await turn()
        assert faults == []
        assert waiting.cancelled() == (how == "cancel")


class TestRefusals:
    async def test_object_that_is_no_future_is_refused(self) -> None:
        async def answer() -> int:
            return 1

        coroutine: Any = answer()
        with pytest.raises(TypeError, match=r"each future must be an asyncio\.Future or a task, not <coroutine"):
            DelayedFutures([coroutine], 1.0)
        coroutine.close()

    async def test_futures_of_several_loops_are_refused(self) -> None:
        other = asyncio.new_event_loop()
        with pytest.raises(ValueError, match="several event loops"):
            DelayedFutures([other.create_future(), *_futures(1)], 1.0)
        other.close()

    async def test_futures_of_another_loop_than_the_running_one_are_refused(self) -> None:
        other = asyncio.new_event_loop()
        with pytest.raises(ValueError, match="another event loop than the running one"):
            DelayedFutures([other.create_future()], 1.0)
        other.close()

    async def test_positional_callback_is_refused(self) -> None:
        positional: Any = DelayedFutures
        with pytest.raises(TypeError, match="positional"):
            positional(_futures(1), 1.0, print)

    async def test_single_future_is_refused_as_iterable_of_futures(self) -> None:
        alone: Any = _futures(1)[0]
        with pytest.raises(TypeError, match="futures must be an iterable of futures, not <Future"):
            DelayedFutures(alone, 1.0)

    async def test_callback_that_is_not_callable_is_refused(self) -> None:
        number: Any = 3
        with pytest.raises(TypeError, match="callback must be callable, not 3"):
            DelayedFutures(_futures(1), 1.0, callback=number)

    async def test_negative_timeout_is_refused(self) -> None:
        with pytest.raises(ValueError, match="finite and not negative"):
            DelayedFutures(_futures(1), -1.0)
