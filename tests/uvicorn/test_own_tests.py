"""uvicorn's own tests pass with our protocol."""

from pathlib import Path

import pytest

from tests.support import brought
from tests.uvicorn import own_tests


@pytest.mark.timeout(1200)
def test_uvicorns_own_tests_pass(tmp_path: Path) -> None:
    passed, used = brought.counts(own_tests.run(tmp_path), "connections with ParkingProtocol")
    assert passed > 300
    assert used > 100
