"""The purgatory and its public methods, on virtual time and on real loops."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import FrozenInstanceError, replace
from functools import partial

import pytest

from purgatory import (
    DelayedOperationPurgatory,
    FinishedOperation,
    OperationCancelled,
    PurgatoryClosed,
    PurgatoryFull,
    PurgatoryMisuse,
    VirtualClock,
)
from tests.support.invariants import check_purgatory
from tests.support.operations import ENDS, FaultLog, Flag, Moody, OddClock, RefusingClock, raising, turn


class TestWatch:
    @pytest.mark.parametrize("more", [0, 20])
    def test_keys_may_be_any_iterable_of_anything_hashable_and_are_watched_once(
        self, purgatory: DelayedOperationPurgatory, more: int
    ) -> None:
        assert hash(-1) == hash(-2)
        keys = [("topic", 1), None, b"x", -1, -2, *range(more)]
        operation = purgatory.try_complete_else_watch(Flag(), iter([*keys, None, -1.0]))
        assert purgatory.watched == len(keys)
        assert set(purgatory.watched_keys()) == set(keys)
        operation.ready = True
        assert purgatory.check_and_complete(None) == 1

    def test_each_watched_key_misses_none_that_is_watched_throughout(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(), [number]) for number in range(9)]
        keys = set()
        iterating = purgatory.each_watched_key()
        for number, key in zip(range(7), iterating, strict=False):
            keys.add(key)
            if number < 3:
                operations[number].force_complete()
                purgatory.check_and_complete(number)
                purgatory.try_complete_else_watch(Flag(), [100 + number])
        assert keys >= {3, 4, 5, 6, 7, 8}
        purgatory.close()
        assert list(iterating) == [], "it ends with a close"


class TestWithoutKeys:
    @pytest.mark.parametrize("end", [end for end in ENDS if not end.startswith("check") and end != "cancel for key"])
    def test_an_operation_without_keys_is_in_no_list_and_ends_like_others(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, end: str
    ) -> None:
        heard: list[FinishedOperation] = []
        purgatory.add_listener(heard.append)
        others = [purgatory.try_complete_else_watch(Flag(60.0), []) for _ in range(3)]
        operation = purgatory.try_complete_else_watch(Flag(10.0), iter(()))
        assert (purgatory.num_delayed, purgatory.watched, purgatory.watched_keys()) == (4, 0, [])
        assert (operation.tries, operation.deadline) == (2, 10.0)
        check_purgatory(purgatory)
        others[0].then = lambda: others[1].cancel() and others[2].cancel()
        ENDS[end](purgatory, clock, operation)
        expected = {"deadline": "expired", "force": "satisfied", "cancel": "cancelled", "cancel all": "cancelled"}
        assert operation.outcome == expected.get(end, "closed")
        assert purgatory.num_delayed == (3 if end in ("deadline", "force", "cancel") else 0)
        assert {each.keys for each in heard} == {()}
        assert len(heard) == 4 - purgatory.num_delayed
        check_purgatory(purgatory)

    def test_an_operation_without_keys_keeps_a_deadline(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog
    ) -> None:
        at_once = purgatory.try_complete_else_watch(Flag(ready=True), [])
        operation = purgatory.try_complete_else_watch(Flag(10.0), [])
        with pytest.raises(PurgatoryMisuse, match="it has no keys, so nothing else would end it"):
            operation.reschedule(None)
        operation.reschedule(20.0)
        assert (at_once.outcome, at_once.deadline, operation.timeout) == ("completed_at_once", None, 10.0)
        operation.ready = True
        clock.advance(20.0)
        assert (operation.outcome, operation.deadline, purgatory.statistics().missed) == ("satisfied", 20.0, 1)


class TestCheck:
    def test_a_clock_that_does_not_call_back_is_asked_again_by_the_next_check(self) -> None:
        clock = RefusingClock()
        purgatory = DelayedOperationPurgatory(clock=clock)
        operation = purgatory.try_complete_else_watch(Flag(), ["key"])
        operation.ready = clock.refuses = True
        with pytest.raises(RuntimeError, match="refused"):
            purgatory.check_and_complete_soon("key")
        clock.refuses = False
        purgatory.check_and_complete_soon("key")
        clock.advance(0)
        assert operation.done()

    async def test_check_and_complete_threadsafe_is_harmless_before_a_watch_and_after_a_close(
        self, purgatory: DelayedOperationPurgatory
    ) -> None:
        live = DelayedOperationPurgatory()
        live.check_and_complete_threadsafe("key")
        await live.aclose()
        live.check_and_complete_threadsafe("key")
        with pytest.raises(PurgatoryMisuse, match="has no event loop that another thread could call"):
            purgatory.check_and_complete_threadsafe("key")


class TestClose:
    @pytest.mark.parametrize("way", ["aclose", "close"])
    async def test_a_closed_purgatory_takes_no_operations(self, way: str) -> None:
        purgatory = DelayedOperationPurgatory("fetch")
        seen: list[bool] = []
        purgatory.try_complete_else_watch(Flag(then=lambda: seen.append(purgatory.closed)), ["key"])
        assert not purgatory.closed
        for _ in range(2):
            if way == "close":
                purgatory.close()
            else:
                await purgatory.aclose()
        assert (purgatory.closed, seen) == (True, [True]), "known in on_complete already"
        refused = Flag(ready=True)
        with pytest.raises(PurgatoryClosed, match="'fetch' num_delayed=0 closed> takes no more operations"):
            purgatory.try_complete_else_watch(refused, ["key"])
        async with DelayedOperationPurgatory(clock=VirtualClock()) as another:
            assert another.try_complete_else_watch(refused, ["key"]).outcome == "completed_at_once"
        with pytest.raises(PurgatoryClosed):
            async with purgatory:
                raise AssertionError

    @pytest.mark.parametrize("cancelled", [False, True])
    async def test_no_awaiting_task_is_left_waiting_and_no_operation_taken_while_aclose_is_under_way(
        self, cancelled: bool
    ) -> None:
        purgatory = DelayedOperationPurgatory()
        operations = [purgatory.try_complete_else_watch(Flag(3600.0), ["key", n]) for n in range(3000)]
        waiting = asyncio.gather(*operations)
        await turn()
        closing = asyncio.create_task(purgatory.aclose())
        await turn()
        assert (purgatory.closed, closing.done()) == (True, False)
        with pytest.raises(PurgatoryClosed):
            purgatory.try_complete_else_watch(Flag(), ["key"])
        if cancelled:
            closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled() == cancelled
        assert await waiting == ["result of flag"] * 3000
        assert {operation.outcome for operation in operations} == {"closed"}
        assert (purgatory.num_delayed, purgatory.watched, len(purgatory.timer)) == (0, 0, 0)

    def test_a_close_leaves_no_call_scheduled(self, clock: VirtualClock) -> None:
        purgatory = DelayedOperationPurgatory(purge_interval=0, clock=clock)
        operations = [purgatory.try_complete_else_watch(Flag(5.0), ["key"]) for _ in range(3)]
        purgatory.check_and_complete_soon("key")
        operations[0].cancel()
        operations[1].cancel()
        assert "scheduled=3" in repr(clock), "a deadline, a check and a purge"
        purgatory.close()
        assert operations[2].done()
        assert "scheduled=0" in repr(clock)

    def test_a_close_inside_a_long_pass_leaves_no_call_scheduled(
        self, purgatory: DelayedOperationPurgatory, clock: VirtualClock
    ) -> None:
        operations = [purgatory.try_complete_else_watch(Flag(9.0), ["key"]) for _ in range(3000)]
        operations[500].ready = True
        operations[500].then = purgatory.close
        purgatory.check_and_complete_soon("key")
        seen: list[str] = []
        clock.call_at(0.0, lambda: seen.append(repr(clock)))
        clock.advance(0)
        assert all(operation.done() for operation in operations)
        assert seen == ["<FaultLog time=0.0 scheduled=0>"]


class Refused(Flag):
    """Calls `act` in its first try, and notes its end."""

    act: Callable[[], object] = int
    ended = 0

    def try_complete(self) -> bool:
        act, self.act = self.act, int
        act()
        return False

    def on_done(self) -> None:
        self.ended += 1


class TestRefusals:
    """An operation that is refused after its first try ends cancelled; before that it is untouched."""

    @pytest.mark.parametrize(
        ("why", "error", "message"),
        [
            ("full", PurgatoryFull, "'small' num_delayed=2> already holds max_pending=2 operations"),
            ("closed meanwhile", PurgatoryClosed, "was closed while <Refused arriving> was being tried"),
            ("the time", LookupError, None),
            ("the deadline", RuntimeError, "refused"),
            ("a key", LookupError, None),
        ],
    )
    def test_an_operation_refused_after_its_first_try_ends_cancelled(
        self, why: str, error: type[Exception], message: str | None
    ) -> None:
        clock, key = OddClock(), Moody()
        purgatory = DelayedOperationPurgatory("small", max_pending=2, clock=clock)
        heard: list[FinishedOperation] = []
        purgatory.add_listener(heard.append)
        others = [purgatory.try_complete_else_watch(Flag(None), ["key"]) for _ in range(2 if why == "full" else 1)]
        refused = Refused(1.0)
        acts: dict[str, Callable[[], object]] = {
            "full": int,
            "closed meanwhile": purgatory.close,
            "the time": partial(clock.arm, 0, raising()),
            "the deadline": partial(setattr, clock, "refuses", True),
            "a key": key.sour,
        }
        refused.act = acts[why]
        with pytest.raises(error, match=message):
            purgatory.try_complete_else_watch(refused, ["key", key])
        assert (refused.outcome, refused.calls, refused.ended) == ("cancelled", [], 1)
        assert (heard[-1].outcome, heard[-1].operation) == ("cancelled", "Refused")
        assert (purgatory.statistics().cancelled, len(purgatory.timer)) == (1, 0)
        assert purgatory.num_delayed == (0 if why == "closed meanwhile" else len(others))
        key.sweeten()
        check_purgatory(purgatory)

    async def test_a_task_that_awaits_an_operation_already_gets_its_refusal(self) -> None:
        waits: list[Generator[object, None, str]] = []

        class Awaited(Flag):
            def try_complete(self) -> bool:
                waits.append(self.__await__())
                next(waits[0])
                return False

        async with DelayedOperationPurgatory(max_pending=1) as purgatory:
            purgatory.try_complete_else_watch(Flag(), ["key"])
            with pytest.raises(PurgatoryFull):
                purgatory.try_complete_else_watch(Awaited(), ["key"])
            with pytest.raises(OperationCancelled):
                next(waits[0])


class TestStatistics:
    def test_they_are_a_snapshot(self, purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
        for _ in range(3):
            purgatory.try_complete_else_watch(Flag(1.0), ["a", "b"])
        clock.advance(1.0)
        purgatory.check_and_complete("b")
        statistics = purgatory.statistics()
        assert (statistics.name, statistics.expired, statistics.purged, statistics.peak_watched) == ("test", 3, 3, 6)
        assert statistics.longest_slice > 0.0
        before = replace(statistics, longest_slice=0.0)  # which is not compared
        purgatory.close()
        assert statistics == before != purgatory.statistics()
        with pytest.raises(FrozenInstanceError):
            statistics.purges = 1  # type: ignore[misc]

    def test_the_name_is_shown(self, purgatory: DelayedOperationPurgatory) -> None:
        assert (purgatory.name, repr(purgatory)) == ("test", "<DelayedOperationPurgatory 'test' num_delayed=0>")


def forgotten(purgatory: DelayedOperationPurgatory, *keys: str) -> Flag:
    """Hand an operation over whose condition holds unnoticed a little later."""
    operation = purgatory.try_complete_else_watch(Flag(0.01), keys)
    operation.ready = True
    return operation


@pytest.fixture
async def debugged() -> AsyncIterator[asyncio.AbstractEventLoop]:
    """The running loop, in debug mode."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    yield loop
    loop.set_debug(False)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "purgatory"]


class TestMissed:
    """An operation that was satisfied by its last try, because nobody checked its keys, is named."""

    @pytest.mark.parametrize("when", ["before", "after", "never"], ids="debug mode switched on {}".format)
    async def test_in_debug_mode_it_has_the_type_and_the_keys(
        self, debugged: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture, when: str
    ) -> None:
        debugged.set_debug(when == "before")
        async with DelayedOperationPurgatory() as purgatory:
            purgatory.try_complete_else_watch(Flag(30.0), ["other"])
            operation = forgotten(purgatory, "topic-1", "topic-2")
            debugged.set_debug(when != "never")
            assert await operation == "result of flag"
            assert len(logged(caplog)) == (when != "never")
            for message in logged(caplog):
                assert "Flag, watched on ['topic-1', 'topic-2']" in message
                assert "check_and_complete" in message

    @pytest.mark.usefixtures("debugged")
    @pytest.mark.parametrize("method", ["on_complete", "on_done"])
    async def test_it_has_all_keys_even_if_the_operation_checks_them(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, caplog: pytest.LogCaptureFixture, method: str
    ) -> None:
        def check(self: Flag) -> str:
            assert purgatory.check_and_complete("a") == 0
            return "result"

        checking: type[Flag] = type("Checking", (Flag,), {method: check})
        purgatory.try_complete_else_watch(checking(1.0), ["a", "b"]).ready = True
        clock.advance(1.0)
        (message,) = logged(caplog)
        assert "Checking, watched on ['a', 'b']" in message

    @pytest.mark.usefixtures("debugged")
    async def test_a_handler_that_raises_harms_no_operation(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging.getLogger("purgatory"), "filters", [raising()])
        operation = forgotten(purgatory, "key")
        clock.advance(1.0)
        assert (operation.outcome, purgatory.statistics().missed) == ("satisfied", 1)
        assert [type(fault) for fault in clock.exceptions] == [LookupError]
