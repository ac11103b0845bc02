"""A delay waits, and no more."""

from typing import Any

import pytest

from purgatory import Delay, DelayedOperationPurgatory
from tests.support.operations import FaultLog


def test_a_delay_completes_when_its_time_is_over(purgatory: DelayedOperationPurgatory, clock: FaultLog) -> None:
    delay = purgatory.try_complete_else_watch(Delay(0.5), ["client"])
    clock.advance(0.499)
    assert purgatory.check_and_complete("client") == 0
    assert not delay.done()
    clock.advance(0.001)
    assert delay.expired()
    assert delay.result() is None


def test_a_delay_without_an_end_is_refused() -> None:
    seconds: Any = None
    with pytest.raises(TypeError, match="seconds must be a number of seconds, not None"):
        Delay(seconds)
    with pytest.raises(ValueError, match=r"seconds must be finite and not negative, not -1\.0"):
        Delay(-1.0)
