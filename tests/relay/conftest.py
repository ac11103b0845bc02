"""The fixtures of the relay's tests."""

from functools import partial

import pytest

from tests.relay.relays import MakeProcess, MemoryBroker, Process
from tests.support.servers import postgres as postgres
from tests.support.servers import redis as redis


@pytest.fixture
def broker() -> MemoryBroker:
    """A broker in this process, for relays."""
    return MemoryBroker()


@pytest.fixture
def process(broker: MemoryBroker) -> MakeProcess:
    """Makes a process that shares a state with the others that this makes, and the broker."""
    return partial(Process, {}, broker)
