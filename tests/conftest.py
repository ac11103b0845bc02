"""What all tests share: async tests run on asyncio's own loop and on uvloop; the clock of the others is virtual."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from purgatory import DelayedOperationPurgatory, VirtualClock
from tests.operations import FaultLog


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def clock() -> FaultLog:
    """A virtual clock that collects the faults reported to it."""
    return FaultLog()


@pytest.fixture
def purgatory(clock: VirtualClock) -> DelayedOperationPurgatory:
    """A purgatory on the virtual clock."""
    return DelayedOperationPurgatory("test", clock=clock)
