"""uvicorn's own tests pass with our protocol."""

import re
from pathlib import Path

import pytest

from tests.uvicorn import own_tests


@pytest.mark.timeout(1200)
def test_uvicorns_own_tests_pass(tmp_path: Path) -> None:
    done = own_tests.run(tmp_path)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    used = re.search(r"connections with ParkingProtocol: (\d+)", done.stdout)
    assert passed is not None and int(passed[1]) > 300  # noqa: PT018
    assert used is not None and int(used[1]) > 100  # noqa: PT018
