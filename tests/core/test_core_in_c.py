"""The tests of the core, the promises and the family once more, on the extension in C."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cores import extension, in_python
from tests.support.paths import ROOT

FOLDERS = ("tests/core", "tests/promises", "tests/family")


@in_python
@pytest.mark.skipif(extension is None, reason="needs the extension: python purgatory/_core/build.py")
@pytest.mark.timeout(3600)  # it is thousands of tests
def test_core_in_c_passes_the_tests_of_the_core() -> None:
    assert extension is not None
    assert extension.origin is not None
    built = Path(extension.origin).stat().st_mtime
    sources = Path(extension.origin).parent.glob("*.[ch]")
    newer = [path.name for path in sources if path.stat().st_mtime > built]
    assert not newer, "compile them: python purgatory/_core/build.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", *FOLDERS],
        cwd=ROOT,
        env=environment | {"PURGATORY_PURE": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert "core in C" in done.stdout
