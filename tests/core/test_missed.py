"""An operation that was satisfied by its last try, because nobody checked its keys, is named."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support.operations import FaultLog, Flag, raising


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


class TestTheLog:
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
