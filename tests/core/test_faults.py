"""Faults of keys, clocks and loops, and requests to exit: all other operations go on, and counts are right."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import uvloop

from purgatory import DelayedOperationPurgatory, VirtualClock
from tests.support.invariants import check_purgatory
from tests.support.operations import ENDS, FaultLog, Flag, Moody, RefusingClock, raising, turn, wait

EXITS = (SystemExit, KeyboardInterrupt)


class TestRequestsToExit:
    """They end a walk over operations, and the next iteration goes on with it. What ends all ends all first."""

    @pytest.mark.parametrize("way", [end for end in ENDS if end not in ("force", "cancel")])
    def test_the_request_of_a_listener_ends_a_walk_or_is_raised_after_the_others_are_done(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, way: str
    ) -> None:
        heard: list[object] = []

        def listen(finished: object) -> None:
            heard.append(finished)
            if len(heard) in (2, 3):
                raise SystemExit(str(len(heard)))

        def done() -> int:
            assert sum(operation.done() for operation in operations) == len(heard)
            return len(heard)

        purgatory.add_listener(listen)
        operations = [purgatory.try_complete_else_watch(Flag(1.0), ["a", "b"]) for _ in range(4)]
        for operation in operations:
            operation.ready = True
        with pytest.raises(SystemExit, match="2"):
            ENDS[way](purgatory, clock, operations[0])
        if way.startswith("check") or way == "deadline":
            assert done() == 2
            with pytest.raises(SystemExit, match="3"):
                clock.advance(0)
            assert done() == 3
            clock.advance(0)
        assert done() == 4
        clock.advance(10.0)
        assert (purgatory.num_delayed, len(purgatory.timer), clock.faults) == (0, 0, []), "raised, and not reported"

    @pytest.mark.parametrize(("limit", "expected"), [(1, 1), (3, 3), (None, 5)])
    @pytest.mark.parametrize("soon", [False, True])
    def test_what_a_check_has_not_tried_is_checked_next_with_the_limit_that_is_left(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, limit: int | None, expected: int, soon: bool
    ) -> None:
        def raise_once(_: object) -> None:
            purgatory.remove_listener(raise_once)
            raise SystemExit

        purgatory.add_listener(raise_once)
        operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(5)]
        for operation in operations:
            operation.ready = True
        with pytest.raises(SystemExit):
            if soon:
                purgatory.check_and_complete_soon("key", limit)
                clock.advance(0)
            else:
                purgatory.check_and_complete("key", limit)
        assert [operation.done() for operation in operations] == [True] + [False] * 4
        clock.advance(0)
        assert sum(operation.done() for operation in operations) == expected

    @pytest.mark.parametrize("error", [*EXITS, GeneratorExit])
    def test_a_purge_that_an_exit_has_ended_is_begun_again(self, clock: FaultLog, error: type[BaseException]) -> None:
        purgatory = DelayedOperationPurgatory(purge_interval=10, clock=clock)
        keys = [Moody() for _ in range(101)]
        for key in keys[:100]:
            purgatory.try_complete_else_watch(Flag(), [key]).cancel()
        keys[50].error, keys[50].left = error, 0
        with pytest.raises(error):
            clock.advance(0)
        keys[50].left = None
        purgatory.try_complete_else_watch(Flag(), [keys[100]]).cancel()
        clock.advance(0)
        assert (purgatory.watched, purgatory.statistics().purges) == (0, 2)

    @pytest.mark.parametrize("error", [*EXITS, GeneratorExit])
    def test_a_check_that_an_exit_of_a_key_has_ended_may_be_made_again(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, error: type[BaseException]
    ) -> None:
        key = Moody()
        operation = purgatory.try_complete_else_watch(Flag(), [key, "other"])
        other = purgatory.try_complete_else_watch(Flag(), ["other"])
        operation.ready = other.ready = True
        purgatory.check_and_complete_soon(key)
        purgatory.check_and_complete_soon("other")
        key.error, key.left = error, 0
        with pytest.raises(error):
            clock.advance(0)
        with suppress(GeneratorExit):  # which looks like the end of the slice, so it is tried once more
            clock.advance(0)
        assert other.done()
        key.left = None
        purgatory.check_and_complete_soon(key)
        clock.advance(0)
        assert operation.done()


class TestClocks:
    def test_a_clock_that_refuses_to_call_back_leaves_no_operation_half_completed(self) -> None:
        clock = RefusingClock()
        purgatory = DelayedOperationPurgatory(clock=clock, purge_interval=0)
        operations = [purgatory.try_complete_else_watch(Flag(), ["key"]) for _ in range(50)]
        clock.refuses = True
        for operation in operations[:40]:
            assert operation.force_complete()
            assert operation.result() == "result of flag"
        # From the 26th on there are more dead entries than living ones: the purge needs the clock.
        assert [(context["message"], str(context["exception"])) for context in clock.faults] == [
            ("the clock raised", "refused")
        ] * 15
        assert purgatory.statistics().purges == 0
        clock.refuses = False
        purgatory.complete_all()
        clock.advance(0)
        assert (purgatory.watched, purgatory.statistics().purges) == (0, 1)
        check_purgatory(purgatory)


class TestAClosedLoop:
    """An event loop is closed while operations are pending, one of them awaited."""

    @pytest.fixture(params=[asyncio.SelectorEventLoop, uvloop.new_event_loop])
    def left(self, request: pytest.FixtureRequest) -> Iterator[tuple[DelayedOperationPurgatory, list[Flag]]]:
        async def leave() -> "asyncio.Task[str]":
            for operation in operations:
                purgatory.try_complete_else_watch(operation, ["a"])
            task = asyncio.ensure_future(wait(operations[0]))
            await turn()
            purgatory.check_and_complete_soon("a")
            return task

        loop: asyncio.AbstractEventLoop = request.param()
        purgatory = DelayedOperationPurgatory(purge_interval=2)
        operations = [*(Flag(3600.0) for _ in range(6)), Flag(then=raising())]
        task = loop.run_until_complete(leave())
        loop.close()
        yield purgatory, operations
        assert not task.done()
        coroutine = task.get_coro()
        assert coroutine is not None
        coroutine.close()  # the destruction of a task closes its coroutine
        del task, coroutine
        gc.collect()  # from CPython 3.14 on, a task and the future that it waits for refer to each other

    @pytest.mark.parametrize("way", ["complete all", "check", "close"])
    def test_pending_operations_can_be_completed(
        self, left: tuple[DelayedOperationPurgatory, list[Flag]], caplog: pytest.LogCaptureFixture, way: str
    ) -> None:
        purgatory, operations = left
        for each in operations:
            each.ready = True
        del each
        ENDS[way](purgatory, VirtualClock(), Flag())  # frames of the traceback keep the arguments for longer
        outcome = "satisfied" if way == "check" else "closed"
        assert [operation.outcome for operation in operations] == [outcome] * 6 + ["failed"]
        assert operations[0].result() == "result of flag"
        assert (purgatory.num_delayed, len(purgatory.timer)) == (0, 0)
        operations.clear()
        gc.collect()
        messages = [record.getMessage() for record in caplog.records]
        assert messages == ["Flag failed, and its exception was never retrieved"]

    def test_pending_operations_can_be_cancelled_and_other_calls_are_refused(
        self, left: tuple[DelayedOperationPurgatory, list[Flag]]
    ) -> None:
        purgatory, operations = left
        for _ in range(2):
            with pytest.raises(RuntimeError, match="closed"):
                purgatory.check_and_complete_threadsafe("a")
        with pytest.raises(RuntimeError, match="closed"):
            operations[1].reschedule(0.5)
        assert purgatory.num_delayed == 7
        assert operations[0].cancel()
        assert len(purgatory.cancel_for_key("a")) == 6
        purgatory.close()
        assert purgatory.statistics().cancelled == 7


MOODS = ["no hash", "no eq"]


class TestKeysThatCannotBeLookedUp:
    @pytest.fixture
    def key(self) -> Moody:
        return Moody()

    @pytest.fixture
    def operation(self, purgatory: DelayedOperationPurgatory, key: Moody) -> Flag:
        operation = purgatory.try_complete_else_watch(Flag(), [Moody(), key, "other"])
        operation.ready = True
        return operation

    @pytest.mark.parametrize("mood", MOODS)
    def test_call_with_a_key_that_cannot_be_looked_up_changes_nothing(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, operation: Flag, key: Moody, mood: str
    ) -> None:
        before = purgatory.statistics()
        key.sour(mood)
        calls: list[Callable[[], object]] = [
            lambda: purgatory.check_and_complete(key),
            lambda: purgatory.check_and_complete(key, limit=1),
            lambda: purgatory.check_and_complete_soon(key),
            lambda: purgatory.cancel_for_key(key),
        ]
        for call in calls:
            with pytest.raises(LookupError):
                call()
        assert purgatory.statistics() == before
        clock.advance(1)
        assert not operation.done()
        key.sweeten()
        assert purgatory.check_and_complete(key) == 1

    @pytest.mark.parametrize("left", [0, 1, 2, None])
    def test_a_key_that_fails_when_it_is_watched_leaves_nothing_behind(
        self, purgatory: DelayedOperationPurgatory, key: Moody, left: int | None
    ) -> None:
        other = purgatory.try_complete_else_watch(Flag(), [Moody(), "b"])
        before = purgatory.statistics()
        keys: Any = ["a", "b", key, "c"]
        if left is None:
            keys = dict.fromkeys(keys)
            key.unequal = True
        else:
            key.left = left
        operation = Flag(1.0)
        with pytest.raises(LookupError):
            purgatory.try_complete_else_watch(operation, keys)
        refused_early = left == 0
        assert operation.outcome == (None if refused_early else "cancelled")
        assert purgatory.statistics().watched == before.watched
        assert (purgatory.num_delayed, purgatory.watching("b"), len(purgatory.timer)) == (1, [other], 0)
        assert purgatory.statistics().cancelled == (not refused_early)
        check_purgatory(purgatory)
        key.sweeten()
        assert not purgatory.is_watched(key)

    @pytest.mark.parametrize("entries", [10, 2000])
    def test_a_key_that_fails_in_a_purge_is_reported_and_purged_later(
        self, clock: FaultLog, key: Moody, entries: int
    ) -> None:
        purgatory = DelayedOperationPurgatory(purge_interval=5, clock=clock)
        for each in [purgatory.try_complete_else_watch(Flag(), [Moody(), key, "b"]) for _ in range(entries)]:
            each.cancel()
        key.sour("no hash")
        clock.advance(1)
        assert [context["message"] for context in clock.faults] == ["looking up a watched key raised"]
        assert [type(exception) for exception in clock.exceptions] == [LookupError]
        assert purgatory.watched == 0
        key.sweeten()
        assert purgatory.watched_keys() == [key], "it could not be removed"
        for each in [purgatory.try_complete_else_watch(Flag(), ["other"]) for _ in range(10)]:
            each.cancel()
        clock.advance(1)
        assert purgatory.watched_keys() == []
        check_purgatory(purgatory)

    @pytest.mark.parametrize("way", ["check", "close", "aclose", "cancel for key"])
    def test_a_key_that_fails_when_its_list_is_dropped_is_reported(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, way: str
    ) -> None:
        class Key(str):
            __slots__ = ()
            fails = False

            def __hash__(self) -> int:
                if Key.fails:
                    raise LookupError
                return super().__hash__()

        purgatory.add_listener(lambda _: setattr(Key, "fails", True))
        operation = purgatory.try_complete_else_watch(Flag(), [Key("a"), Key("b")])
        operation.ready = True
        ENDS[way](purgatory, clock, operation)
        assert operation.done()
        assert {type(exception) for exception in clock.exceptions} == {LookupError}
        assert purgatory.num_delayed == 0

    @pytest.mark.parametrize("mood", MOODS)
    @pytest.mark.parametrize("when", ["begins", "ends"])
    def test_a_key_that_fails_in_its_pass_is_reported_and_may_be_checked_again(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, operation: Flag, key: Moody, mood: str, when: str
    ) -> None:
        other = purgatory.try_complete_else_watch(Flag(), ["last"])
        other.ready = True
        purgatory.check_and_complete_soon(key)
        purgatory.check_and_complete_soon("last")
        if when == "begins":
            key.sour(mood)
        else:
            operation.then = lambda: key.sour(mood)
        clock.advance(0)
        assert {type(exception) for exception in clock.exceptions} == ({LookupError} if clock.faults else set())
        assert (operation.done(), other.done()) == (when == "ends", True)
        key.sweeten()
        again = purgatory.try_complete_else_watch(Flag(), [key])
        again.ready = True
        purgatory.check_and_complete_soon(key)
        clock.advance(0)
        assert operation.done()
        assert again.done()

    @pytest.mark.parametrize("error", [LookupError, SystemExit])
    async def test_keys_of_other_threads_behind_one_that_fails_are_checked(
        self, key: Moody, error: type[BaseException]
    ) -> None:
        errors: list[type[BaseException]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(type(context["exception"])))
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(Flag(), ["key"])
            operation.ready = True
            key.error, key.left = error, 2
            purgatory.check_and_complete_threadsafe(key)
            purgatory.check_and_complete_threadsafe("key")
            purgatory._queue.mailbox._deliver()
            with nullcontext() if error is LookupError else pytest.raises(SystemExit):
                purgatory._queue._work._run()
            assert await operation == "result of flag"
            assert errors == [LookupError] * (error is LookupError)
