"""The memory of connections that rest, in a server of its own."""

import pytest

from tests.connections.measure import measure


@pytest.mark.slow
def test_a_connection_that_rests_takes_less_than_half_of_one_that_does_not() -> None:
    resting, _ = measure("quiet", "uvloop", 10_000, 6.0)
    plain, _ = measure("plain", "uvloop", 10_000, 1.0)
    assert resting <= 0.6
    assert resting < plain / 2
