"""The fixtures of the relay's tests."""

from collections.abc import Callable
from functools import partial

import pytest

from tests.relay.relays import MemoryBroker, Process
from tests.support.servers import postgres as postgres
from tests.support.servers import redis as redis


@pytest.fixture
def broker() -> MemoryBroker:
    """A broker in this process, for relays."""
    return MemoryBroker()


@pytest.fixture
def process(broker: MemoryBroker) -> Callable[..., Process]:
    """Makes a process that shares a state with the others that this makes, and the broker."""
    return partial(Process, {}, broker)
