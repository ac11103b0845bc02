"""The tests of the core, the promises and the family once more, without the extension in C."""

import os
import subprocess
import sys

import pytest

from purgatory import _core
from tests.support.paths import ROOT

LONG = [
    f"tests/core/test_{name}.py"
    for name in ("memory_of_buckets", "purgatory_model", "soak", "timer_against_a_sorted_list")
] + ["tests/promises/test_6_bounded_turns.py", "tests/promises/test_7_idle_is_free.py"]
"""Millions of steps, which take two to three times as long if coverage counts the lines."""


@pytest.mark.skipif(_core.c is None, reason="the core is the one in Python")
@pytest.mark.timeout(3600)  # it is thousands of tests
@pytest.mark.parametrize("part", ["long", "others"])
def test_core_in_python(part: str, pytestconfig: pytest.Config) -> None:
    arguments = ["-q", "-p", "no:cacheprovider"]
    if part == "long":
        arguments += LONG
    else:
        arguments += ["tests/core", "tests/promises", "tests/family", *(f"--ignore={path}" for path in LONG)]
        if pytestconfig.getoption("cov_source", None):
            arguments += ["--cov", "--cov-report=", "--cov-fail-under=0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    # The run around this one combines its coverage with all files of this form.
    environment |= {"PURGATORY_PURE": "1", "COVERAGE_FILE": str(ROOT / ".coverage.python")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
