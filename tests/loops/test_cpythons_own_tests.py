"""CPython's own tests of asyncio pass on event loops whose timers are on wheels."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

PARTS = 4
"""Processes at a time: most of these tests wait for a time."""


@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="CPython 3.14 makes its loops in another way")
def test_cpythons_own_asyncio_tests_pass() -> None:
    if importlib.util.find_spec("test.test_asyncio") is None:
        message = f"needs CPython's own tests: sudo apt-get install libpython{VERSION}-testsuite"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    from tests.loops import cpython

    modules = cpython.modules()
    # A variable that selects another mode of asyncio is not for them.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHONASYNCIO")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.loops.cpython", *modules[part::PARTS]],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part in range(PARTS)
    ]
    outputs = [process.communicate() for process in processes]
    tests = timers = 0
    for output, errors in outputs:
        assert output, errors
        result = json.loads(output.splitlines()[-1])
        assert result["failed"] == [], errors
        tests += result["tests"]
        timers += result["timers"]
    assert tests > 2000
    assert timers > 5000
