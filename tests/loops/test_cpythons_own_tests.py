"""CPython's own tests of asyncio pass on event loops whose timers are on wheels."""

import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.paths import ROOT

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

PROCESSES = 4
"""At a time: most of these tests wait for a time."""


@pytest.mark.timeout(1800)
def test_cpythons_own_asyncio_tests_pass() -> None:
    if importlib.util.find_spec("test.test_asyncio") is None:
        message = f"needs CPython's own tests: sudo apt-get install libpython{VERSION}-testsuite"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    from tests.loops import cpython

    # A variable that selects another mode of asyncio is not for them, nor is coverage: with it, the wait for a process
    # of test_get_event_loop_new_process has once spun forever.
    others = "PYTHONASYNCIO", "COVERAGE_"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}

    def run(module: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.loops.cpython", module]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    # Each module has a process of its own, because test_free_threading of 3.14 leaves another class of futures behind.
    with ThreadPoolExecutor(PROCESSES) as executor:
        outputs = list(executor.map(run, cpython.modules()))
    tests = timers = 0
    for output in outputs:
        assert output.stdout, output.stderr
        result = json.loads(output.stdout.splitlines()[-1])
        assert result["failed"] == [], output.stderr
        tests += result["tests"]
        timers += result["timers"]
    assert tests > 2000
    assert timers > 5000
