"""Tests of the core in C with AddressSanitizer and UndefinedBehaviorSanitizer: `python -m tests.support.sanitized`.

The extension is compiled with both in a copy of the package, and pytest runs there. Options and tests for pytest may
follow; by default all tests of the core, the promises and the family run. It needs gcc and its sanitizers.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.paths import ROOT

FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-DPURGATORY_CHECKS")


def libraries() -> list[str]:
    """The libraries of the compiler's sanitizers, as paths; empty if there are none."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        try:
            told = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        except OSError:
            return []
        path = Path(told.stdout.strip())
        if not path.is_absolute():
            return []
        found.append(str(path.resolve()))
    return found


def run(arguments: list[str], folder: Path) -> int:
    """Compile a copy in `folder`, which is empty, and run pytest there. Returns its exit code."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "measured", "spark", "streams")
    shutil.copytree(ROOT / "purgatory", folder / "purgatory", ignore=ignored)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    build = [sys.executable, "purgatory/_speedups/build.py", *FLAGS, f"-I{folder / 'tests' / 'support' / 'c'}"]
    subprocess.run(build, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    check = "import purgatory; assert (purgatory.__core__, purgatory.__path__[0]) == ('C', {!r}), purgatory.__path__"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_XDIST", "PURGATORY_"))},
        "PYTHONPATH": str(folder),
        "PURGATORY_PURE": "0",
        "LD_PRELOAD": " ".join(libraries()),
        "PYTHONMALLOC": "malloc",  # each object is an allocation that the sanitizer knows
        "ASAN_OPTIONS": "detect_leaks=0",  # CPython keeps some to the end
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    code = check.format(str(folder / "purgatory"))
    subprocess.run([sys.executable, "-P", "-c", code], cwd=folder, env=environment, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", "--capture=sys", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    if not libraries():
        sys.exit("cc is not gcc, or its sanitizers are not installed: apt install gcc")
    with TemporaryDirectory() as temporary:
        sys.exit(run(sys.argv[1:] or ["tests/core", "tests/promises", "tests/family"], Path(temporary)))
