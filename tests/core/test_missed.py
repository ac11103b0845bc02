"""An operation that was satisfied by its last try, because nobody checked its keys, is named."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from purgatory import DelayedOperationPurgatory, FinishedOperation
from tests.support.operations import FaultLog, Flag


def forgotten(purgatory: DelayedOperationPurgatory, *keys: str) -> Flag:
    """Hand an operation over whose condition holds unnoticed a little later."""
    operation = purgatory.try_complete_else_watch(Flag(0.01), keys)
    operation.ready = True
    return operation


def test_the_record_says_which_operation_it_was(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    heard: list[FinishedOperation] = []
    counted: list[int] = []
    purgatory.add_listener(heard.append)
    purgatory.add_listener(lambda finished: counted.append(purgatory.statistics().missed))
    forgotten(purgatory, "a", "b")
    purgatory.try_complete_else_watch(Flag(0.01), ["c"])
    checked = forgotten(purgatory, "d")
    purgatory.check_and_complete("d")
    clock.advance(1.0)
    assert [(each.keys, each.outcome, each.missed) for each in heard] == [
        (("d",), "satisfied", False),
        (("a", "b"), "satisfied", True),
        (("c",), "expired", False),
    ]
    assert checked.outcome == "satisfied"
    assert counted == [0, 1, 1], "it is counted before listeners are told"


def test_an_operation_that_another_one_s_last_try_completes_was_not_missed(
    purgatory: DelayedOperationPurgatory, clock: FaultLog
) -> None:
    heard: list[FinishedOperation] = []
    purgatory.add_listener(heard.append)
    other = purgatory.try_complete_else_watch(Flag(None, "other"), ["b"])

    class Checks(Flag):
        def try_complete(self) -> bool:
            if self.ready:
                other.force_complete()
            return False

    checks = purgatory.try_complete_else_watch(Checks(1.0), ["a"])
    checks.ready = True
    clock.advance(1.0)
    assert [(each.keys, each.outcome, each.missed) for each in heard] == [
        (("b",), "satisfied", False),
        (("a",), "expired", False),
    ]


def test_a_last_try_in_another_one_s_last_try_is_its_own(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    heard: list[FinishedOperation] = []
    purgatory.add_listener(heard.append)

    class Expires(Flag):
        def try_complete(self) -> bool:
            if self.ready:
                inner._timer_expire()  # as a loop that runs inside this one would
            return super().try_complete()

    inner = purgatory.try_complete_else_watch(Flag(5.0), ["inner"])
    outer = purgatory.try_complete_else_watch(Expires(1.0), ["outer"])
    inner.ready = outer.ready = True
    clock.advance(1.0)
    assert [(each.keys, each.missed) for each in heard] == [(("inner",), True), (("outer",), True)]


class TestTheLog:
    @pytest.mark.parametrize("when", ["before", "after", "never"], ids="debug mode switched on {}".format)
    async def test_in_debug_mode_it_has_the_type_and_the_keys(
        self, caplog: pytest.LogCaptureFixture, when: str
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(when == "before")
        async with DelayedOperationPurgatory() as purgatory:
            purgatory.try_complete_else_watch(Flag(30.0), ["other"])
            operation = forgotten(purgatory, "topic-1", "topic-2")
            loop.set_debug(when != "never")
            with caplog.at_level(logging.WARNING, "purgatory"):
                assert await operation == "result of flag"
            messages = [record.getMessage() for record in caplog.records if record.name == "purgatory"]
            assert len(messages) == (when != "never")
            for message in messages:
                assert "Flag, watched on ['topic-1', 'topic-2']" in message
                assert "check_and_complete" in message
            loop.set_debug(False)

    async def test_a_purgatory_on_a_virtual_clock_has_the_debug_mode_of_the_running_loop(
        self, clock: FaultLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        forgotten(DelayedOperationPurgatory(clock=clock), "key")
        clock.advance(1.0)
        loop.set_debug(False)
        assert [record.name for record in caplog.records].count("purgatory") == 1

    def test_without_a_loop_there_is_no_debug_mode(
        self, purgatory: DelayedOperationPurgatory, clock: FaultLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        forgotten(purgatory, "key")
        clock.advance(1.0)
        assert purgatory.statistics().missed == 1
        assert caplog.records == []

    @pytest.mark.parametrize("method", ["on_complete", "on_done"])
    async def test_it_has_all_keys_even_if_the_operation_checks_them(
        self, caplog: pytest.LogCaptureFixture, method: str
    ) -> None:
        def check(self: Flag) -> str:
            assert purgatory.check_and_complete("a") == 0
            return "result"

        checking: type[Flag] = type("Checking", (Flag,), {method: check})
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        async with DelayedOperationPurgatory() as purgatory:
            operation = purgatory.try_complete_else_watch(checking(0.01), ["a", "b"])
            operation.ready = True
            await operation
        loop.set_debug(False)
        (message,) = [record.getMessage() for record in caplog.records if record.name == "purgatory"]
        assert "Checking, watched on ['a', 'b']" in message

    async def test_a_handler_that_raises_harms_no_operation(self) -> None:
        class Broken(logging.Filter):
            def filter(self, record: logging.LogRecord) -> bool:
                raise LookupError

        loop = asyncio.get_running_loop()
        faults: list[object] = []
        loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
        loop.set_debug(True)
        logger, broken = logging.getLogger("purgatory"), Broken()
        logger.addFilter(broken)
        heard: list[bool] = []
        try:
            async with DelayedOperationPurgatory() as purgatory:
                purgatory.add_listener(lambda finished: heard.append(finished.missed))
                assert await forgotten(purgatory, "key") == "result of flag"
        finally:
            logger.removeFilter(broken)
            loop.set_debug(False)
        assert ([type(fault) for fault in faults], heard) == ([LookupError], [True])


Cause = Callable[[DelayedOperationPurgatory, FaultLog], object]


@pytest.mark.parametrize(
    "cause",
    [
        lambda purgatory, clock: None,
        lambda purgatory, clock: purgatory.check_and_complete("key", limit=1),
        lambda purgatory, clock: clock.call_at(1.0, purgatory.check_and_complete_soon, "key"),
    ],
    ids=["no check", "a check with a limit", "a check that is still queued"],
)
def test_each_cause_counts(purgatory: DelayedOperationPurgatory, clock: FaultLog, cause: Cause) -> None:
    first, second = (purgatory.try_complete_else_watch(Flag(timeout), ["key"]) for timeout in (None, 1.0))
    first.ready = second.ready = True
    cause(purgatory, clock)
    clock.advance(1.0)
    assert (second.outcome, purgatory.statistics().missed) == ("satisfied", 1)
