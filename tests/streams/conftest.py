"""The fixtures of the tests of streams."""

from collections.abc import Iterator

import pytest

from tests.support.servers import PostgresServer, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of a process: take a database of your own, and leave it running."""
    with running_postgres() as server:
        yield server
