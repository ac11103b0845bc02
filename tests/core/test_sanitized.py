"""A part of the core's tests with the extension in C under the compiler's sanitizers."""

from pathlib import Path

import pytest

from tests.support.cores import extension, in_python
from tests.support.paths import ROOT
from tests.support.sanitized import libraries, run

TESTS = (
    "calls_in_odd_places",
    "dropped_purgatory",
    "no_memory",
    "odd_keys",
    "operation",
    "outcomes",
    "requests_to_exit",
    "several_awaiters",
    "timer",
    "weak_references",
)


@in_python
@pytest.mark.skipif(extension is None or not libraries(), reason="needs the core in C, gcc and its sanitizers")
@pytest.mark.skipif(not (ROOT / "purgatory").is_dir(), reason="needs the source of the package")
@pytest.mark.timeout(3600)  # it is hundreds of tests, several times slower
def test_sanitizers_find_no_misuse_of_memory(tmp_path: Path) -> None:
    done = run([f"tests/core/test_{name}.py" for name in TESTS], tmp_path)
    assert done.returncode == 0, done.stdout[-20_000:]
