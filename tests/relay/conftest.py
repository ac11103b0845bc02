"""The fixtures of the relay's tests."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.relay.relays import MemoryBroker, Process
from tests.support.servers import PostgresServer, RedisServer, running_postgres, running_redis


@pytest.fixture
def broker() -> MemoryBroker:
    """A broker in this process, for relays."""
    return MemoryBroker()


@pytest.fixture
def process(broker: MemoryBroker) -> Callable[..., Process]:
    """Makes a process that shares a state with the others that this makes, and the broker."""
    return partial(Process, {}, broker)


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """One Redis for all tests of a process: take a channel of your own, and leave it running."""
    with running_redis() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of a process: take a database of your own, and leave it running."""
    with running_postgres() as server:
        yield server
