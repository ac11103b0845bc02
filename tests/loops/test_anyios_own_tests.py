"""anyio's own tests pass on event loops whose timers are on wheels."""

import importlib.util
import os
import re
from pathlib import Path

import pytest

from tests.loops import anyio_tests


@pytest.mark.timeout(1200)
def test_anyios_own_tests_pass_as_on_the_usual_loops(tmp_path: Path) -> None:
    for package in ("pytest_mock", "trustme"):
        if importlib.util.find_spec(package) is None:
            message = f"needs {package}: pip install -e '.[dev]'"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)
    output, failed = anyio_tests.run_all(tmp_path)
    assert failed == [], output
    passed = re.search(r"(\d+) passed", output)
    timers = re.search(r"timers on wheels: (\d+)", output)
    assert passed is not None and int(passed[1]) > 1000  # noqa: PT018
    assert timers is not None and int(timers[1]) > 300  # noqa: PT018
